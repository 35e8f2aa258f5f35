"""CumSum and CumProd: extents around a block, both directions, with and without the element."""

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.graph.operators.reductions import BLOCK
from polysci.graph.passes.table import simplify
from polysci.network.prepare import prepare
from tests.support.networks import network_of, read
from tests.support.nodecases import Case, faults, model_of
from tests.support.onnxmodels import model, node

pytestmark = pytest.mark.sampled

WAYS = tuple({"exclusive": out, "reverse": back} for out in (0, 1) for back in (0, 1))


def axis(number: int) -> np.ndarray:
    return np.array(number, np.int64)


def numbers(shape: tuple[int, ...], dtype: str = "int32") -> np.ndarray:
    return np.random.default_rng(0).integers(-9, 10, shape).astype(dtype)


@pytest.mark.parametrize("extent", [1, 5, 2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 7])
def test_sums_of_whole_numbers(extent: int) -> None:
    cases = [
        Case("CumSum", (numbers(shape), axis(along)), words, (1,))
        for words in WAYS for shape, along in (((extent,), 0), ((2, extent, 3), 1))
    ]  # fmt: skip
    assert not faults(cases, 14)


def test_types_and_shapes() -> None:
    types = ("float32", "float64", "int64", "uint32", "uint64")
    cases = [Case("CumSum", (numbers((3, 4), dtype), axis(-1)), WAYS[at % 4], (1,))
             for at, dtype in enumerate(types)]  # fmt: skip
    cases += [Case("CumSum", (numbers(shape, "float32"), axis(0)), {}, (1,))
              for shape in ((0,), (0, 3), (3, 0), (2, 3, 4, 5))]  # fmt: skip
    assert not faults(cases, 14)


def test_products() -> None:
    random = np.random.default_rng(0)
    x = random.uniform(0.9, 1.1, (2, 100))
    cases = [Case("CumProd", (x.astype(dtype), axis(1)), words, (1,))
             for dtype in ("float32", "float64") for words in WAYS]  # fmt: skip
    cases += [Case("CumProd", (numbers((3, 4)), axis(0)), words, (1,)) for words in WAYS]
    assert not faults(cases, 26)


@pytest.mark.exhaustive
def test_an_error_grows_with_the_logarithm_of_the_extent() -> None:
    x = np.random.default_rng(0).uniform(0, 1, 1 << 17).astype(np.float32)
    graph = read(model([node("CumSum", "x a", "y")], {"x": x.shape}, {"y": None}, {"a": axis(0)}))
    exact = np.cumsum(x.astype(np.float64))
    for options in ({}, {"threads": 2, "isa": "avx2"}):
        results = network_of(graph, **options)({"x": x})
        assert isinstance(results, dict)
        assert np.abs(results["y"] / exact - 1).max() < 17 * 2.0**-24


def test_an_axis_that_is_computed_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="axis is not constant"):
        prepare(simplify(read(model_of([Case("CumSum", (numbers((3,)), axis(0)))], 14))))
