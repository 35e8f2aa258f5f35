"""Comprehensions, their gradients and einsum on devices: the results of C, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np
import pytest

import polysci
from polysci import notation
from polysci.errors import SpecError, UnsupportedError
from polysci.runtime.backends.cuda import resources
from tests.notation import test_compiled as forward
from tests.notation import test_gradients as backward
from tests.notation.test_einsum import EQUATIONS
from tests.support.any_device import DEVICES, at_hand

PRODUCT = "def mm(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
SIZES = {"M": 8, "K": 16, "N": 12}
RANDOM = np.random.default_rng(5)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with at_hand(request.param) as name:
        yield name


@pytest.mark.sampled(every=60)
@pytest.mark.parametrize("statement", forward.STATEMENTS)
def test_results_are_those_of_c(statement: str, device: str) -> None:
    text = f"def f({forward.INPUTS}) -> (Z) {{ {statement} }}"
    here, there = (
        notation.compile(text, forward.SIZES, level="estimate", device=name)(**forward.ARRAYS)
        for name in (None, device)
    )
    assert here.dtype == there.dtype
    assert np.array_equal(here, there)


@pytest.mark.sampled
@pytest.mark.parametrize(("statement", "wanted"), backward.STATEMENTS)
def test_gradients_are_those_of_c(statement: str, wanted: str, device: str) -> None:
    text = f"def f({backward.INPUTS}) -> (Z) {{ {statement} }}"
    arrays = {name: RANDOM.uniform(0.5, 2, shape) for name, shape in backward.SHAPES.items()}
    arrays["I"] = RANDOM.integers(0, 4, 4).astype(np.int32)
    results = []
    for name in (None, device):
        function = notation.compile(text, backward.SIZES, level="estimate", device=name)
        seed = np.ones_like(function(**arrays))
        results.append(function.grad(*wanted)(**arrays, d_Z=seed))
    here, there = (x if isinstance(x, dict) else {wanted: x} for x in results)
    for name, expected in here.items():
        np.testing.assert_allclose(there[name], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.sampled
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_is_numpys(equation: tuple[str, ...], device: str) -> None:
    text, *shapes = equation
    arrays = [RANDOM.integers(-3, 4, shape).astype(np.float32) for shape in shapes]
    result = polysci.einsum(text, *arrays, device=device)
    assert np.array_equal(result, np.einsum(text, *arrays))


def test_free_sizes_and_pickles_stay_on_the_device() -> None:
    with at_hand("opencl:0") as device:
        function = notation.compile(PRODUCT, level="estimate", device=device)
        a, b = (RANDOM.integers(-3, 4, shape).astype(np.float32) for shape in ((3, 4), (4, 5)))
        assert np.array_equal(function(a, b), a @ b)
        (network,) = (own.network for own in function.functions.values())
        again = pickle.loads(pickle.dumps(network))
        assert again.code.backend == network.code.backend == device
        assert np.array_equal(again({"A": a, "B": b})["C"], a @ b)


def test_an_architecture_has_its_code_compiled() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA: NVRTC is not installed")
    function = notation.compile(PRODUCT, SIZES, level="estimate", device="cuda:sm_80")
    for own in (function, function.grad()):
        kernels = resources(own.network.runner.library.path)
        assert kernels and {kernel.spilled for kernel in kernels} == {0}
    with pytest.raises(UnsupportedError, match=r"^cuda:sm_80: compiles code, which runs on a"):
        function(np.zeros((8, 16), np.float32), np.zeros((16, 12), np.float32))


@pytest.mark.exhaustive
@pytest.mark.parametrize("statement", forward.STATEMENTS)
def test_all_statements_compile_for_an_architecture(statement: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA: NVRTC is not installed")
    text = f"def f({forward.INPUTS}) -> (Z) {{ {statement} }}"
    notation.compile(text, forward.SIZES, level="estimate", device="cuda:sm_80")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"threads": 2}, "its compute units share the work; leave out threads"),
        ({"isa": "portable"}, "it has its own description; leave out isa"),
    ],
)
def test_a_device_has_units_and_a_description(options: dict[str, object], why: str) -> None:
    with pytest.raises(SpecError, match=f"^device opencl:0: {why}$"):
        notation.compile(PRODUCT, SIZES, device="opencl:0", **options)


@pytest.mark.exhaustive
def test_the_host_is_a_device() -> None:
    function = notation.compile(PRODUCT, SIZES, level="estimate", threads=2, device="host")
    assert function.network.code.backend == "host" and function.network.threads == 2


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"^no backend 'vulkan:0'; known: host, "):
        polysci.einsum("ij,jk", np.ones((2, 3)), np.ones((3, 4)), device="vulkan:0")
    with pytest.raises(TypeError, match=r"^device: expected str or None, got 0"):
        notation.compile(PRODUCT, SIZES, device=0)
