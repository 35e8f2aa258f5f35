"""What PyTorch's users do to tensors and modes: weights that change, errors, forks, threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polysci.errors import SpecError, UnsupportedError

torch = pytest.importorskip("torch")
ours = pytest.importorskip("polysci.torch")
theirs = torch.nn.functional

from tests.torch.test_operators import integers  # noqa: E402

SHAPES = (2, 6, 7, 9), (4, 6, 3, 3), (4,)


def operands() -> tuple[Any, ...]:
    return tuple(integers(*shape, seed=at) for at, shape in enumerate(SHAPES))


def write_data(w: Any) -> None:
    w.data.add_(1)


def write_numpy(w: Any) -> None:
    w.detach().numpy()[...] += 1


def swap_twice(w: Any) -> None:
    for _ in range(2):  # the memory of the first may be used again
        w.data = w.data + 1


def assign(w: Any) -> None:
    w.data = w.data.mT.contiguous().mT + 1


def step(w: Any) -> None:
    w.grad = torch.ones_like(w)
    torch.optim.SGD([w], lr=1.0).step()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda w: w.detach().add_(1), "one element": lambda w: w.detach()[1, 2].zero_(),
    "by data": write_data, "by NumPy": write_numpy, "swapped": swap_twice, "assigned": assign,
    "by an optimizer": step, "copied to": lambda w: w.detach().copy_(integers(*w.shape, seed=7)),
}  # fmt: skip


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("inside", ["no_grad", "inference_mode"])
def test_changed_weights_are_packed_again(change: str, inside: str) -> None:
    x, w, b = operands()
    w = torch.nn.Parameter(w)
    with getattr(torch, inside)():
        for _ in range(3):
            assert torch.equal(ours.conv2d(x, w, b), theirs.conv2d(x, w, b))
    CHANGES[change](w)
    with getattr(torch, inside)():
        assert torch.equal(ours.conv2d(x, w, b), theirs.conv2d(x, w, b))
        if change != "assigned":
            CHANGES[change](w)
        assert torch.equal(ours.conv2d(x, w, b), theirs.conv2d(x, w, b))


def test_packed_weights_end_with_their_tensor() -> None:
    from polysci.torch.kernels import _tensors

    x, w, _ = operands()
    before = len(_tensors)
    ours.conv2d(x, w)
    assert len(_tensors) == before + 1
    del w
    assert len(_tensors) == before


def test_tensors_made_in_inference_mode() -> None:
    with torch.inference_mode():
        x, w, b = operands()
        for _ in range(2):
            assert torch.equal(ours.conv2d(x, w, b), theirs.conv2d(x, w, b))
            w += 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("images", [0, 2])
def test_no_images(images: int) -> None:
    x, w, b = (t.requires_grad_() for t in operands())
    x = x.detach()[:images].requires_grad_()
    y = ours.conv2d(x, w, b, padding=1)
    assert y.shape == (images, 4, 7, 9)
    gradients = torch.autograd.grad(y.sum(), (x, w, b))
    y = theirs.conv2d(x, w, b, padding=1)
    assert all(map(torch.equal, gradients, torch.autograd.grad(y.sum(), (x, w, b))))


def test_products_of_nothing() -> None:
    for a, b in (((0, 3), (3, 2)), ((2, 0), (0, 3)), ((0, 2, 3), (3, 2))):
        a, b = torch.ones(a), torch.ones(b)
        assert torch.equal(ours.matmul(a, b), a @ b)
    assert torch.equal(ours.linear(torch.ones(0, 3), torch.ones(2, 3)), torch.ones(0, 2))


double = torch.float64
WRONG: dict[str, tuple[Callable[[Any, Any, Any], Any], type[Exception], str]] = {
    "float64": (lambda x, w, b: ours.conv2d(x.double(), w.double()), UnsupportedError,
                "conv2d: input: expected torch.float32, torch.bfloat16, .*got torch.float64"),
    "integers": (lambda x, w, b: ours.linear(x.int(), w[0, 0]), UnsupportedError, "linear: input"),
    "types": (lambda x, w, b: ours.conv2d(x, w.half()), TypeError,
              "weight: expected torch.float32 as the input, got torch.float16"),
    "bias type": (lambda x, w, b: ours.conv2d(x, w, b.double()), TypeError, "bias: expected"),
    "bias shape": (lambda x, w, b: ours.conv2d(x, w, b[1:]), ValueError, r"bias: .*\(4,\).*\(3,\)"),
    "channels": (lambda x, w, b: ours.conv2d(x[:, 1:], w), ValueError, r"weight: expected shape"),
    "groups": (lambda x, w, b: ours.conv2d(x, w, groups=4), SpecError, "divisible by groups=4"),
    "stride": (lambda x, w, b: ours.conv2d(x, w, stride=0), SpecError, "stride.* must be positive"),
    "numbers": (lambda x, w, b: ours.conv2d(x, w, stride=(1, 2, 3)), ValueError,
                "stride: expected 2 numbers"),
    "too small": (lambda x, w, b: ours.conv2d(x[..., :2], w), SpecError, "empty output"),
    "axes": (lambda x, w, b: ours.conv2d(x[0, 0], w), ValueError, "input: expected 4 axes"),
    "padding": (lambda x, w, b: ours.conv2d(x, w, padding="full"), ValueError, "'same' or 'valid'"),
    "same": (lambda x, w, b: ours.conv2d(x, w, padding="same", stride=2), ValueError, "stride 1"),
    "output padding": (lambda x, w, b: ours.conv_transpose2d(x, w, output_padding=1), ValueError,
                       "output_padding: expected 0 to 0"),
    "meta": (lambda x, w, b: ours.conv2d(x, w.to("meta")), ValueError, "on cpu as the input, got"),
    "terms": (lambda x, w, b: ours.matmul(x, x), ValueError, "do not fit"),
    "scalar": (lambda x, w, b: ours.matmul(x, x[0, 0, 0, 0]), ValueError, "at least 1 axis"),
    "features": (lambda x, w, b: ours.linear(x, w[0, 0]), ValueError, "weight .OUT, IN."),
    "one operand": (lambda x, w, b: ours.einsum("ijkl->ijkl", x), UnsupportedError, "two or more"),
    "words": (lambda x, w, b: ours.conv_transpose2d(x, w, None, "2"), TypeError, "a whole number"),
    "float words": (lambda x, w, b: ours.conv2d(x, w, None, 2.0), TypeError, "got 2.0"),
    "layout": (lambda x, w, b: ours.linear(x, w.to_sparse()), NotImplementedError, "SparseCPU"),
    "extents": (lambda x, w, b: ours.einsum("i,i->", b, b[1:]), ValueError, "i is 4 and 3"),
    "level": (lambda x, w, b: ours.options(level="mesure"), SpecError, "measure"),
    "algorithm": (lambda x, w, b: ours.options(algorithm="winogard"), SpecError, "winograd"),
    "threads": (lambda x, w, b: ours.set_threads(-1), SpecError, "threads=-1"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case: str) -> None:
    call, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        call(*operands())
    with torch.inference_mode(), pytest.raises(error, match=message):
        call(*operands())


def test_gradcheck_in_double_is_refused() -> None:
    x, w, _ = (t.double().requires_grad_() for t in operands())
    with pytest.raises(UnsupportedError, match="float64"):
        torch.autograd.gradcheck(ours.conv2d, (x, w))


def test_meta_and_fake_tensors() -> None:
    from torch._subclasses import FakeTensorMode

    x, w, b = (t.to("meta") for t in operands())
    y = ours.conv2d(x.to(memory_format=torch.channels_last), w, b, stride=2)
    assert y.is_meta and y.shape == (2, 4, 3, 4)
    assert y.is_contiguous(memory_format=torch.channels_last)
    with FakeTensorMode() as mode:
        x, w, b = (mode.from_tensor(t) for t in operands())
        assert ours.conv2d(x, w, b).shape == (2, 4, 5, 7)
        assert ours.linear(x, torch.empty(3, 9)).shape == (2, 6, 7, 3)


@pytest.mark.exhaustive
def test_hooks_and_retained_gradients() -> None:
    x, w, b = operands()
    w.requires_grad_()
    y = ours.conv2d(x, w, b)
    y.retain_grad()
    seen: list[Any] = []
    w.register_hook(lambda gradient: seen.append(gradient))
    w.register_hook(lambda gradient: gradient * 2)
    y.sum().backward()
    assert torch.equal(w.grad, 2 * seen[0]) and torch.equal(y.grad, torch.ones_like(y))


def test_writing_to_what_gradients_need_is_noticed() -> None:
    x, w, _ = operands()
    w.requires_grad_()
    y = ours.conv2d(x, w)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_negated_and_conjugated_views() -> None:
    imaginary = torch.tensor([[1 + 2j]]).conj().imag
    assert imaginary.is_neg() and imaginary.item() == -2
    one = torch.ones(1, 1)
    assert ours.linear(imaginary, one).item() == ours.matmul(one, imaginary).item() == -2
    assert ours.linear(one, imaginary).item() == -2


@pytest.mark.parametrize("training", [False, True])
def test_autocast(training: bool) -> None:
    x, w, b = operands()
    w.requires_grad_(training)
    with torch.autocast("cpu", torch.bfloat16):
        y = ours.conv2d(x, w, b)
        assert y.dtype == torch.bfloat16
        assert ours.matmul(x, x.mT).dtype == torch.bfloat16
        assert torch.equal(y, theirs.conv2d(x.double(), w.double(), b.double()).bfloat16())
        with torch.autocast("cpu", enabled=False):
            assert ours.conv2d(x, w, b).dtype == torch.float32
    if training:
        y.float().sum().backward()
        assert w.grad.dtype == torch.float32 and w.grad.abs().sum() > 0


@pytest.mark.filterwarnings("ignore")  # of PyTorch's own imports
def test_forward_mode_is_refused() -> None:
    from torch.autograd import forward_ad

    x, w, _ = operands()
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="jvp"):
        ours.conv2d(forward_ad.make_dual(x, x), w)
    with pytest.raises(UnsupportedError, match="jvp"):
        torch.func.jvp(lambda x: ours.conv2d(x, w), (x,), (x,))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_compiled_by_pytorch_without_a_break() -> None:
    x, w, b = operands()
    w.requires_grad_()

    def function(x: Any, w: Any, b: Any) -> Any:
        return ours.linear(ours.conv2d(x, w, b, stride=2).relu(), torch.ones(3, 4))

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, w, b), function(x, w, b))
    (dw,) = torch.autograd.grad(compiled(x, w, b).sum(), w)
    assert torch.equal(dw, torch.autograd.grad(function(x, w, b).sum(), w)[0])
    with torch.no_grad():
        assert torch.equal(compiled(x, w, b), function(x, w, b))


def test_four_threads_at_once() -> None:
    x, w, b = operands()
    module = torch.nn.Parameter(w)
    expected = theirs.conv2d(x, w, b, dilation=2)
    wrong = list[Any]()

    def call() -> None:
        with torch.no_grad():
            for _ in range(50):
                if not torch.equal(ours.conv2d(x, module, b, dilation=2), expected):
                    wrong.append(1)

    workers = [threading.Thread(target=call) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


FORK = """
import os, torch, polysci.torch as ours
torch.set_num_threads(2)
x, w = torch.ones(2, 8, 16, 16), torch.ones(16, 8, 3, 3)
expected = torch.nn.functional.conv2d(x, w)
assert torch.equal(ours.conv2d(x, w), expected)
child = os.fork()
if not child:
    good = torch.equal(ours.conv2d(x, w), expected)
    os._exit(0 if good else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(ours.conv2d(x, w), expected)
"""


@pytest.mark.exhaustive
def test_a_child_of_fork() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], timeout=120, capture_output=True, text=True,
        cwd=Path(__file__).parents[2], env=os.environ,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def test_options_and_threads() -> None:
    from polysci.torch import settings

    with ours.options(level="measure", algorithm="auto"):
        assert settings.current() == settings.Settings("measure", "auto", 0)
        first = settings.key()
    assert settings.current() == settings.Settings() and settings.key() != first
    assert settings.threads() == torch.get_num_threads()
    with ours.options(threads=3):
        assert settings.threads() == 3


def test_without_pytorch_the_extra_is_named() -> None:
    code = "import sys; sys.modules['torch'] = None; import polysci.torch"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode and "pip install 'polysci[torch]'" in ran.stderr
