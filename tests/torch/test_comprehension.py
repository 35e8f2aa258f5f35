"""torch_op: comprehensions on PyTorch's tensors beside the interpreter and beside autograd."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from polysci import notation
from polysci.errors import SpecError, UnsupportedError
from polysci.network.runner import Runner

torch = pytest.importorskip("torch")

PRODUCT = "def mm(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
SEVERAL = """def several(double(N) A, double s, int(N) I) -> (Z, W, J) {
    Z(i) = exp(A(i)) * s * A(i)
    W +=! tanh(A(i)) * A(I(i))
    J(i) = I(i) + 1
}"""
KINDS = {
    "bool": "bool", "int8": "int8", "int16": "int16", "int": "int32", "long": "int64",
    "u8": "uint8", "uint16": "uint16", "uint32": "uint32", "size_t": "uint64",
    "half": "float16", "bf16": "bfloat16", "float": "float32", "double": "float64",
}  # fmt: skip


def several_inputs() -> tuple[Any, Any, Any]:
    a = torch.linspace(-1, 1, 6, dtype=torch.double).requires_grad_()
    s = torch.tensor(1.5, dtype=torch.double, requires_grad=True)
    return a, s, torch.tensor([2, 0, 5, 1, 1, 3], dtype=torch.int32)


@pytest.mark.exhaustive
def test_every_element_type_goes_in_and_out_as_it_lies() -> None:
    for kind, name in KINDS.items():
        operator = notation.torch_op(f"def f({kind}(N) A) -> (Z) {{ Z(i) = A(i) }}")
        x = torch.tensor([0, 1, 1, 0, 1]).to(getattr(torch, name))
        z = operator(x)
        assert z.dtype == x.dtype and torch.equal(z, x), kind
        assert z.data_ptr() != x.data_ptr() and z.is_contiguous()


def test_contiguous_tensors_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, run = list[list[int]](), Runner.run_at

    def watch(self: Runner, addresses: list[int]) -> None:
        seen.append([*addresses])
        run(self, addresses)

    monkeypatch.setattr(Runner, "run_at", watch)
    operator = notation.torch_op(PRODUCT)
    a, b = torch.rand(5, 7), torch.rand(7, 3)
    c = operator(a, b)
    assert seen == [[a.data_ptr(), b.data_ptr(), c.data_ptr()]]
    strided = torch.rand(7, 10).T[::2]  # copied, as are parts of complex numbers
    wanted = strided @ b
    assert torch.allclose(operator(strided, b), wanted, atol=1e-6)
    negative = torch.imag(torch.rand(5, 7, dtype=torch.complex64).conj())
    assert negative.is_neg() and torch.allclose(operator(negative, b), negative @ b, atol=1e-6)


@pytest.mark.exhaustive
def test_each_size_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from polysci.torch import comprehension

    made = list[Any]()
    compiled = comprehension.compile_elaborated
    monkeypatch.setattr(
        comprehension, "compile_elaborated", lambda *a: made.append(a[1]) or compiled(*a)
    )
    operator = notation.torch_op(PRODUCT.replace("mm", "once"))
    b = torch.rand(7, 3)
    with ThreadPoolExecutor(4) as pool:
        tensors = [torch.rand(2 + at % 2, 7) for at in range(16)]
        for a, c in zip(tensors, pool.map(lambda a: operator(a, b), tensors), strict=True):
            assert torch.allclose(c, a @ b, atol=1e-6)
    assert sorted(sizes["M"] for sizes in made) == [2, 3]


def test_gradients_of_any_order_are_numeric_ones() -> None:
    operator = notation.torch_op(SEVERAL)
    a, s, i = several_inputs()
    results = operator(a, s, I=i)
    assert [*results] == ["Z", "W", "J"] and results["J"].tolist() == (i + 1).tolist()
    assert not results["J"].requires_grad

    def function(a: Any, s: Any) -> Any:
        z, w, _ = operator(a, s, i).values()
        return z, w

    assert torch.autograd.gradcheck(function, (a, s))
    assert torch.autograd.gradgradcheck(function, (a, s))
    (only,) = torch.autograd.grad(operator(a, s.detach(), i)["W"], a)
    assert torch.allclose(only, torch.autograd.grad(function(a, s)[1], a)[0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["half", "bf16"])
def test_gradients_have_the_types_of_the_inputs(kind: str) -> None:
    text = f"def f({kind}(N) A, float(N) B) -> (Z) {{ Z(i) = {kind}(A(i) * B(i) * B(i)) }}"
    a = torch.linspace(-1, 1, 8).to(getattr(torch, KINDS[kind])).requires_grad_()
    b = torch.linspace(2, 3, 8).requires_grad_()
    z = notation.torch_op(text)(a, b)
    assert z.dtype == a.dtype
    z.sum().backward()
    assert a.grad.dtype == a.dtype and torch.equal(a.grad, (b * b).to(a.dtype))
    assert torch.allclose(b.grad, 2 * a.float() * b)


@pytest.mark.exhaustive
def test_opcheck() -> None:
    a, s, i = several_inputs()
    operator = notation.torch_op(SEVERAL)
    overload = torch.ops.polysci.comprehension.default
    assert {*torch.library.opcheck(overload, ([a, s, i], operator.plan)).values()} == {"SUCCESS"}


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_whole_by_torch(dynamic: bool) -> None:
    torch._dynamo.reset()
    operator = notation.torch_op(PRODUCT)

    def function(a: Any, b: Any) -> Any:
        return torch.relu(operator(a, B=b) * 2).sum()

    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic)
    torch._dynamo.config.error_on_recompile = dynamic  # one graph for all sizes
    for rows in (5, 9, 5, 4):
        a, b = torch.rand(rows, 7, requires_grad=True), torch.rand(7, 3, requires_grad=True)
        made = torch.autograd.grad(compiled(a, b), (a, b))
        expected = torch.autograd.grad(function(a, b), (a, b))
        assert all(map(torch.allclose, made, expected))
    torch._dynamo.config.error_on_recompile = False
    torch._dynamo.reset()


@pytest.mark.exhaustive
def test_exported_programs_have_it() -> None:
    operator = notation.torch_op(PRODUCT)

    class Model(torch.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return operator(a, b) + 1

    a, b = torch.rand(5, 7), torch.rand(7, 3)
    program = torch.export.export(Model(), (a, b))
    assert "polysci.comprehension" in str(program.graph)
    assert torch.allclose(program.module()(a, b), a @ b + 1)


def test_autocast_casts_to_the_declared_types() -> None:
    operator = notation.torch_op(PRODUCT)
    a, b = torch.rand(5, 7, requires_grad=True), torch.rand(7, 3)
    with torch.autocast("cpu", torch.bfloat16):
        half = torch.mm(a, torch.eye(7))
        assert half.dtype is torch.bfloat16
        c = operator(half, b)
    assert c.dtype is torch.float32
    c.sum().backward()
    assert torch.allclose(a.grad, b.sum(1).expand(5, 7), rtol=0.02)


def test_pickles_and_copies() -> None:
    operator = notation.torch_op(PRODUCT, threads=2)
    a, b = torch.rand(5, 7), torch.rand(7, 3)
    for other in (pickle.loads(pickle.dumps(operator)), copy.deepcopy(operator)):
        assert other == operator and torch.equal(other(a, b), operator(a, b))
    assert repr(operator) == "TorchOperator(mm(A, B) -> (C))"


FORK = f"""
import os, sys, torch
from polysci import notation
operator = notation.torch_op({PRODUCT!r}, threads=2)
a, b = torch.rand(64, 70), torch.rand(70, 30)
expected = operator(a, b)
child = os.fork()
if child == 0:
    os._exit(0 if torch.allclose(operator(a, b), expected, atol=1e-5) else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.exhaustive
def test_a_child_of_fork() -> None:
    assert subprocess.run([sys.executable, "-c", FORK], timeout=300).returncode == 0


def test_scalars_sizes_and_checks() -> None:
    text = "def f(float(N) A, int(M) I, int k, bool t) -> (Z) { Z(i) = t ? A(I(i)) * k : 0.0 }"
    a, i = torch.arange(4.0), torch.tensor([3, 0], dtype=torch.int32)
    assert notation.torch_op(text)(a, i, 2, True).tolist() == [6, 0]
    operator = notation.torch_op(text, sizes={"k": 3}, check=True)
    assert operator.inputs == ("A", "I", "t")
    assert operator(a, i, t=torch.tensor(True)).tolist() == [9, 0]
    with pytest.raises(ValueError, match="1 computed subscripts lie outside"):
        operator(a, i + 1, True)
    with pytest.raises(TypeError, match=r"f: t: expected a number of torch.bool, got 2"):
        operator(a, i, 2)
    with pytest.raises(TypeError, match=r"f: k: expected a number of torch.int32, got 2.5"):
        notation.torch_op(text)(a, i, 2.5, True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own jvp
def test_refusals() -> None:
    operator = notation.torch_op(PRODUCT)
    a, b = torch.rand(5, 7), torch.rand(7, 3)
    rows: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
        (TypeError, r"mm: A: expected a dense tensor on the CPU, got one of .* on meta",
         (a.to("meta"), b), {}),
        (TypeError, r"mm: B: expected a dense tensor on the CPU, got one of torch.sparse_coo",
         (a, b.to_sparse()), {}),
        (TypeError, r"mm: A: expected torch.float32, got torch.float64", (a.double(), b), {}),
        (TypeError, "mm: A: expected a tensor, got ndarray", (a.numpy(), b), {}),
        (TypeError, "mm: A: expected a tensor, got float", (1.0, b), {}),
        (TypeError, r"mm: expected 2 tensors \(A, B\), got 3", (a, b, b), {}),
        (TypeError, "mm: B is missing", (a,), {}),
        (TypeError, "mm: A: given twice", (a,), {"A": a}),
        (TypeError, "mm: D: no input: A, B", (a,), {"D": a}),
        (SpecError, r"B: K is 7, got shape \(3, 7\)", (a, b.T), {}),
        (SpecError, r"A: expected float32\(M, K\) A, got shape \(7,\)", (a[0], b), {}),
        (SpecError, "mm: M=0: expected a positive size", (a[:0], b), {}),
    ]  # fmt: skip
    for kind, message, tensors, named in rows:
        with pytest.raises(kind, match=message):
            operator(*tensors, **named)
    with pytest.raises(UnsupportedError, match="no gradients in forward mode"):
        torch.func.jvp(operator, (a, b), (a, b))
    with pytest.raises(SpecError, match="expected"):
        notation.torch_op("def f(")
    with pytest.raises(SpecError, match="Q=3: no shape variable or scalar"):
        notation.torch_op(PRODUCT, sizes={"Q": 3})
    with pytest.raises(TypeError, match="torch_op: wisdom: expected one of dtype"):
        notation.torch_op(PRODUCT, wisdom=None)
    changed = notation.torch_op("def f(float(N) A) -> (A) { A(i) = A(i) * 2.0 }")
    leaf = torch.rand(3, requires_grad=True)
    result = changed(leaf)
    with pytest.raises(UnsupportedError, match="A has values before"):
        result.sum().backward()


def test_the_notation_needs_no_torch() -> None:
    code = "import sys; from polysci import notation; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'torch_operation'"):
        notation.torch_operation  # noqa: B018
