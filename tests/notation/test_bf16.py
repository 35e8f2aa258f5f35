"""Tensors of bf16: read and written as their bits, and multiplied as they lie."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import pytest

from polysci import notation
from polysci.network.compiled import rebuild_network
from polysci.network.debug import compare_tensors
from polysci.numerics.dtypes import from_bf16, to_bf16
from tests.support.command import done

PRODUCT = "def f(bf16(M,K) A, bf16(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"
WIDE, NARROW = "bf16:bf16:f32", "bf16"


def compile_text(text: str, sizes: Mapping[str, int], **options: Any) -> notation.TensorFunction:
    function = notation.compile(text, sizes, level="estimate", **options)
    assert isinstance(function, notation.TensorFunction)
    return function


def precisions(function: notation.TensorFunction) -> list[str]:
    """Of the layers of a function."""
    return [layer.problem.dtype for layer in function.network.prepared.program.layers()]


def draw(function: notation.TensorFunction, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays for the inputs of a function."""
    random = np.random.default_rng(seed)
    arrays = {port.name: random.standard_normal(port.shape) for port in function.network.inputs}
    return {
        tensor.name: to_bf16(arrays[tensor.name])
        if tensor.dtype == "bf16" else arrays[tensor.name].astype(tensor.dtype)
        for tensor in function.inputs
    }  # fmt: skip


def check(text: str, sizes: Mapping[str, int], **options: Any) -> notation.TensorFunction:
    """A function whose results are the interpreter's: up to a rounding to bf16, if they have it."""
    function = compile_text(text, sizes, **options)
    arrays = draw(function)
    (name,) = function.outputs
    wanted, result = notation.interpret(text, arrays)[name], function(**arrays)
    narrow = function.types[name] == "bf16"
    assert result.dtype == (np.uint16 if narrow else np.float32)
    rounded = narrow or any("bf16(" in part for part in text.split("{")[1:])
    error = 2.0**-7 if rounded else 1e-5
    largest = max(1.0, float(np.abs(wanted).max(initial=0)))
    wanted, result = (from_bf16(a) if narrow else a for a in (wanted, result))
    np.testing.assert_allclose(result, wanted, rtol=error, atol=error * largest)
    return function


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 1, 1), (5, 7, 19), (33, 64, 48), (1, 130, 17), (70, 31, 1), (16, 256, 64)]
)
def test_products_read_bf16_as_it_lies(m: int, k: int, n: int) -> None:
    function = check(PRODUCT, {"M": m, "K": k, "N": n})
    assert precisions(function) == [WIDE]
    assert len(function.network.prepared.program.stages) == 1  # nothing converts
    assert function.network.inputs[0].dtype == "bf16"


QKV = "bf16(B,H,M,D) Q, bf16(B,H,N,D) K, bf16(B,H,N,D) V"
FACTORS = "bf16(M,K) A, bf16(K,N) B, bf16(N,K) T, bf16(K,M) U, bf16(M,N) C, float(K,N) F"
SIZES = {"B": 2, "H": 3, "M": 13, "N": 21, "D": 10, "K": 35}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("inputs", "statements", "layers"),
    [
        (FACTORS, "Z(m,n) +=! A(m,k) * B(k,n)", [WIDE]),
        (FACTORS, "Z(m,n) +=! U(k,m) * T(n,k)", [WIDE]),
        (FACTORS, "Z(n,m) +=! 0.5 * A(m,k) * T(n,k)", [WIDE]),
        (QKV, "Z(b,h,m,n) +=! Q(b,h,m,d) * K(b,h,n,d)", [WIDE]),
        (QKV, "Z(b,m,h,n) +=! Q(b,h,m,d) * K(b,h,n,d)", [WIDE]),
        (QKV, "Z(m,n) +=! Q(b,h,m,d) * K(b,h,n,d)", [WIDE]),
        (QKV, "S(b,h,m,n) +=! Q(b,h,m,d) * K(b,h,n,d)  P(b,h,m,n) = bf16(S(b,h,m,n))"
         "  Z(b,h,m,d) +=! P(b,h,m,n) * V(b,h,n,d)", [NARROW, WIDE]),
        (FACTORS, "X(m,n) +=! A(m,k) * B(k,n)  Z(m,n) = bf16(X(m,n))", [NARROW]),
        (FACTORS, "X(m,n) +=! A(m,k) * B(k,n)  Z(m,n) = bf16(max(X(m,n), 0.0))", [NARROW]),
        (FACTORS, "X(m,n) +=! A(m,k) * B(k,n)  Z(m,n) = max(X(m,n), 0.0)", [WIDE]),
        (FACTORS, "X(m,n) +=! A(m,k) * B(k,n)  Z(m,n) = bf16(X(m,n) + C(m,n))", [WIDE]),
        (FACTORS, "X(m,n) +=! A(m,k) * B(k,n)  Z(m,n) = bf16(X(m,n) + F(0,n))", [WIDE]),
        (FACTORS, "Z(m,n) = C(m,n)  Z(m,n) += A(m,k) * B(k,n)", [WIDE]),
        (FACTORS, "Z(m,n) +=! A(m,k) * F(k,n)", ["f32"]),
        (FACTORS, "Z(m,n) +=! A(m,k) * B(k,n) * C(m,n)", ["f32"]),
        (FACTORS, "Z(m,n) +=! A(m,k) * A(m,k) * B(k,n)", None),
        (FACTORS, "Z(m) +=! A(m,k) * B(k,n)", None),
        (FACTORS, "Z(m,k) = A(m,k)", []),
        (FACTORS, "Z(m,k) = A(m,k) * 2.5 + U(k,m)", []),
        (FACTORS, "X(m,n) +=! A(m,k) * B(k,n)  Z(m,k) = A(m,k) * X(m,0)", [WIDE]),
    ],
)  # fmt: skip
def test_statements_of_bf16(inputs: str, statements: str, layers: list[str] | None) -> None:
    used = ", ".join(part for part in inputs.split(", ") if f"{part[-1]}(" in statements)
    text = f"def f({used}) -> (Z) {{ {statements} }}"
    extents = {name for part in re.findall(r"\((.*?)\)", used) for name in part.split(",")}
    function = check(text, {name: SIZES[name] for name in sorted(extents)})
    if layers is not None:
        assert precisions(function) == layers


@pytest.mark.exhaustive
def test_with_threads_and_in_networks_of_bf16() -> None:
    for options in ({"threads": 2}, {"dtype": "bf16"}):
        assert precisions(check(PRODUCT, {"M": 37, "K": 65, "N": 50}, **options)) == [WIDE]


def test_calls_convert_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = PRODUCT.replace("(C)", "(Z)").replace(" }", "  Z(m,n) = bf16(C(m,n)) }")
    function = compile_text(text, {"M": 4, "K": 6, "N": 8})
    arrays = draw(function)
    for name in ("from_bf16", "to_bf16"):
        monkeypatch.setattr(f"polysci.numerics.dtypes.{name}", None)
        monkeypatch.setattr(f"polysci.notation.compiled.{name}", None, raising=False)
    assert function.plain
    assert function(*arrays.values()).dtype == function(**arrays).dtype == np.uint16


@pytest.mark.exhaustive
def test_arrays_that_are_no_bf16_are_refused() -> None:
    function = compile_text(PRODUCT, {"M": 4, "K": 6, "N": 8})
    with pytest.raises(TypeError, match=r"A: expected dtype uint16 \(the bits of bf16; polysci"):
        function(np.zeros((4, 6), "f4"), np.zeros((8, 6), "u2"))


def test_arrays_of_another_library_s_bf16() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    function = compile_text(PRODUCT, {"M": 4, "K": 6, "N": 8})
    ones = np.ones((4, 6), bfloat16), np.ones((8, 6), bfloat16)
    assert np.array_equal(function(*ones), np.full((4, 8), 6, "f4"))


@pytest.mark.exhaustive
def test_pickled_functions() -> None:
    function = compile_text(PRODUCT, {"M": 9, "K": 18, "N": 27})
    arrays = draw(function)
    sent = pickle.loads(pickle.dumps(function.network))
    assert np.array_equal(sent(arrays)["C"], function(**arrays))


@pytest.mark.exhaustive
def test_every_tensor_beside_the_reference() -> None:
    text = PRODUCT.replace("(C)", "(Z)").replace(" }", "  Z(m,n) = bf16(exp(C(m,n) * 0.1)) }")
    function = compile_text(text, {"M": 9, "K": 18, "N": 27})
    rows = compare_tensors(rebuild_network(function.network, apart=True), draw(function))
    assert {row.tensor for row in rows} >= {"Z"} and not any(row.wrong for row in rows)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["bf16", "half"])
@pytest.mark.usefixtures("fresh_cache")
def test_exported_code(kind: str, tmp_path: Path) -> None:
    text = PRODUCT.replace("(C)", "(C, Z)").replace(" }", "  Z(m,n) = bf16(C(m,n) * 0.5) }")
    (tmp_path / "f.tc").write_text(text.replace("bf16", kind))
    words = ("--dim", "M=5,12", "--dim", "K=20", "--dim", "N=33", "--level", "estimate")
    done("compile", tmp_path / "f.tc", *words, "-o", tmp_path / "out")
    header = (tmp_path / "out" / "f.h").read_text()
    assert "const uint16_t *x0, const uint16_t *x1, float *y0, uint16_t *y1" in header
    ran = run(["make", "-C", tmp_path / "out", "check"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.exhaustive
@pytest.mark.usefixtures("fresh_cache")
def test_exported_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PRODUCT.replace("(C)", "(Z)").replace(" }", "  Z(m,n) = bf16(C(m,n)) }")
    (tmp_path / "narrow_product.tc").write_text(text)
    words = ("--dim", "M=5", "--dim", "K=20", "--dim", "N=33", "--level", "estimate", "--python")
    done("compile", tmp_path / "narrow_product.tc", *words, "-o", tmp_path / "out")
    monkeypatch.syspath_prepend(tmp_path / "out")
    net = import_module("narrow_product").net
    function = compile_text(text, {"M": 5, "K": 20, "N": 33})
    arrays = draw(function)
    assert np.array_equal(net(arrays)["Z"], function(**arrays))
    with pytest.raises(TypeError, match=r"A: expected dtype uint16 \(the bits of bf16\)"):
        net(dict(arrays, A=from_bf16(arrays["A"])))
