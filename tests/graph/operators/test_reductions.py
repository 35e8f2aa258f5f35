"""Reductions over axes, and the places of extremes."""

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.graph.passes.table import simplify
from polysci.network.prepare import prepare
from tests.support.networks import network_of, read
from tests.support.nodecases import Case, faults, model_of
from tests.support.onnxmodels import model, node

pytestmark = pytest.mark.sampled

NORMS = ("ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2",
         "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")  # fmt: skip
WAYS = (((2, 3, 4, 5), (1,)), ((2, 3, 4, 5), (-1,)), ((2, 3, 4, 5), (2, 0)), ((6, 7), ()),
        ((3, 70), (1,)), ((70, 5), (0,)), ((), ()))  # fmt: skip


def numbers(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype in ("float32", "float64"):
        return random.uniform(0.5, 1.5, shape).astype(dtype)
    return random.integers(0 if dtype[0] in "ub" else -9, 10, shape).astype(dtype)


def listed(axes: tuple[int, ...]) -> np.ndarray:
    return np.array(axes, np.int64)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reductions_of_real_numbers(dtype: str) -> None:
    cases = [
        Case(op, (numbers(shape, dtype), listed(axes)), {"keepdims": keep}, (1,))
        for op in NORMS for keep in (0, 1) for shape, axes in WAYS[keep :: 1 + (op != "ReduceSum")]
        if shape or op != "ReduceLogSumExp"
    ]  # fmt: skip
    assert not faults(cases, 18)


def test_axes_as_an_attribute() -> None:
    cases = [
        Case(op, (numbers((2, 3, 4)),), {"axes": axes, "keepdims": 1 - len(axes) % 2})
        for op in NORMS for axes in ([1], [0, 2])
    ]  # fmt: skip
    assert not faults([*cases, *(Case(op, (numbers((2, 3)),)) for op in NORMS)], 11)


@pytest.mark.parametrize("noop", [0, 1])
def test_no_axes_are_all_or_none(noop: int) -> None:
    words = {"noop_with_empty_axes": noop}
    x = numbers((2, 3))
    cases = [Case(op, (x,), words) for op in NORMS if op != "ReduceLogSumExp"]
    cases += [Case(op, (x, listed(())), words, (1,)) for op in ("ReduceSum", "ReduceSumSquare")]
    wanted = x if noop else np.log(np.exp(x).sum(keepdims=True))
    cases.append(Case("ReduceLogSumExp", (x,), words, exact=wanted))
    assert not faults(cases, 18)


def test_reductions_of_whole_numbers() -> None:
    cases = [
        Case(op, (numbers((3, 4), dtype), listed((1,))), {}, (1,))
        for op in NORMS[:-1] for dtype in ("int32", "int64", "uint32", "uint64")
        if op not in ("ReduceLogSum", "ReduceMean", "ReduceSumSquare")
    ]  # fmt: skip
    cases += [Case(op, (numbers((3, 4), dtype), listed((1,))), {}, (1,))
              for op in ("ReduceMax", "ReduceMin")
              for dtype in ("int8", "uint8", "bool")]  # fmt: skip
    mean = np.array([[-2], [2]], np.int32)  # towards zero
    x = np.array([[-3, -2], [3, 2]], np.int32)
    cases.append(Case("ReduceMean", (x, listed((1,))), {}, (1,), exact=mean))
    squares = np.array([[13], [13]], np.int32)
    cases.append(Case("ReduceSumSquare", (x, listed((1,))), {}, (1,), exact=squares))
    assert not faults(cases, 20)


def test_reductions_of_nothing() -> None:
    cases = [
        Case(op, (numbers((2, 0, 3)), listed((1,))), {}, (1,)) for op in NORMS if op != "ReduceMean"
    ]
    cases += [
        Case(op, (numbers((2, 0), dtype), listed((1,))), {}, (1,))
        for op in ("ReduceMax", "ReduceMin")
        for dtype in ("int8", "uint8", "bool", "int32", "uint32", "int64", "uint64")
    ]
    cases += [Case(op, (numbers((0, 3)), listed((1,))), {}, (1,)) for op in NORMS]
    assert not faults(cases, 20)


def test_infinities_and_nan() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[inf, 1, 2], [-inf, -inf, -inf], [nan, 1, 2], [1, nan, inf]], np.float32)
    exact = np.array([inf, -inf, nan, nan], np.float32)
    cases = [
        Case(op, (x, listed((1,))), {"keepdims": 0}, (1,)) for op in ("ReduceMax", "ReduceMin")
    ]
    cases += [Case("ReduceLogSumExp", (x, listed((1,))), {"keepdims": 0}, (1,), exact=exact)]
    cases += [Case("ReduceLogSumExp", (800 * numbers((3, 4)), listed((1,))), {}, (1,))]
    cases += [Case(op, (x,), {"axis": 1, "select_last_index": last})
              for op in ("ArgMax", "ArgMin") for last in (0, 1)]  # fmt: skip
    assert not faults(cases, 18)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_places_of_extremes(op: str) -> None:
    cases = [
        Case(op, (numbers(shape, dtype),), {"axis": at, "keepdims": keep, "select_last_index": end})
        for dtype in ("int32", "float32", "uint64", "int8")
        for shape, at in (((3, 4), 0), ((3, 4), -1), ((2, 3, 4, 5), 1), ((70,), 0))
        for keep, end in ((0, 1), (1, 0))
    ]  # fmt: skip
    cases += [Case(op, (numbers((0, 3)),), {"axis": 1})]
    assert not faults(cases, 13)


def test_in_bf16_with_threads() -> None:
    cases = [Case(op, (numbers((2, 8, 6, 5)), listed((1,))), {}, (1,))
             for op in ("ReduceMax", "ReduceL2", "ReduceLogSumExp")]  # fmt: skip
    cases += [Case("ArgMax", (numbers((2, 8, 6, 5)),), {"axis": axis}) for axis in (1, 3)]
    assert not faults(cases, 18, dtype="bf16", threads=2)


@pytest.mark.parametrize("isa", ["portable", "avx2"])
@pytest.mark.parametrize("axis", [0, 1])
def test_long_sums_lose_no_more_than_short_ones(isa: str, axis: int) -> None:
    """2 ulp, where a sum in f32 of numbers of one sign loses some hundred."""
    shape = (1 << 20, 8) if axis == 0 else (8, 1 << 20)
    graph = read(model([node("ReduceSum", "x axes", "y", keepdims=0)], {"x": shape}, {"y": None},
                       {"axes": listed((axis,))}))  # fmt: skip
    x = numbers(shape)
    results = network_of(graph, isa=isa)({"x": x})
    exact = x.sum(axis=axis, dtype=np.float64)
    assert isinstance(results, dict)
    assert np.abs(results["y"] / exact - 1).max() < 2.0**-23


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((5000, 40), (0,)), ((40, 5000), (1,)), ((3, 70, 1, 41, 600), (0, 1, 3)), ((9, 5000), (0, 1)),
     ((2, 5, 70, 71), (0, 2, 3)), ((1, 33000), (0, 1))],
)  # fmt: skip
def test_sums_in_parts(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Whole numbers exactly; others to the same bits for any threads, near the sum in double."""
    graph = read(model([node("ReduceSum", "x axes", "y", keepdims=0)], {"x": shape}, {"y": None},
                       {"axes": listed(axes)}))  # fmt: skip
    networks = [network_of(graph, threads) for threads in (1, 2)]
    random = np.random.default_rng(3)
    whole = random.integers(-8, 9, shape).astype(np.float32)
    for network in networks:
        results = network({"x": whole})
        assert isinstance(results, dict)
        assert np.array_equal(results["y"], whole.sum(axes))
    x = random.normal(size=shape).astype(np.float32)
    first, second = (network({"x": x})["y"] for network in networks)
    assert np.array_equal(first, second)
    limit = 1024 * 2.0**-24 * np.abs(x).sum(axes, dtype=np.float64)
    assert (np.abs(first - x.sum(axes, dtype=np.float64)) <= limit).all()


def test_pools_of_everything_and_norms() -> None:
    cases = [
        Case("GlobalMaxPool", (x,), exact=x.max(tuple(range(2, x.ndim)), keepdims=True))
        for x in map(numbers, ((2, 3, 4, 5), (1, 2, 3), (2, 3, 1, 2, 2)))
    ]
    for p in (1, 2, 3):
        x = numbers((2, 3, 4, 5))
        exact = (x.astype(float) ** p).sum((2, 3), keepdims=True) ** (1 / p)
        cases.append(Case("GlobalLpPool", (x,), {"p": p}, exact=exact))
        cases.append(Case("LpPool", (x,), {"p": p, "kernel_shape": [2, 3], "strides": [2, 1]}))
        cases.append(Case("LpPool", (x,), {"p": p, "kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}))
    for p in (1, 2):
        x = numbers((2, 3, 4)) * np.float32([[[1]], [[0]]])
        size = (np.abs(x.astype(float)) ** p).sum(1, keepdims=True) ** (1 / p)
        exact = np.where(size == 0, 0, x / np.where(size == 0, 1, size))
        cases.append(Case("LpNormalization", (x,), {"axis": 1, "p": p}, exact=exact))
    assert not faults(cases, 18)


REFUSED = {
    "name an axis twice": Case("ReduceMean", (numbers((2, 3)), listed((0, -2))), {}, (1,)),
    "a mean of nothing": Case("ReduceMean", (numbers((2, 0)), listed((1,))), {}, (1,)),
    "a place in an axis without elements": Case("ArgMax", (numbers((2, 0)),), {"axis": 1}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        prepare(simplify(read(model_of([REFUSED[message]], 18))))


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_values_side_by_side_along_the_last_axis(isa: str) -> None:
    """Around whole vectors of accumulators, for infinities, NaN and equal values."""
    random = np.random.default_rng(0)
    cases = []
    for extent in (16, 17, 63, 64, 65, 130, 200):
        whole = random.integers(-3, 4, (2, extent))
        x = random.integers(-3, 4, (5, extent)).astype(np.float32)
        x[0, ::3], x[1], x[2, extent // 2], x[3, 3:5] = np.inf, -np.inf, np.nan, np.nan
        for op in ("ReduceMax", "ReduceMin"):
            cases.append(Case(op, (x, listed((1,))), {"keepdims": 0}, (1,)))
            cases.append(Case(op, (whole.astype(np.int8), listed((1,))), {}, (1,)))
        for op in ("ArgMax", "ArgMin"):
            for last in (0, 1):
                words = {"axis": 1, "select_last_index": last}
                cases.append(Case(op, (x,), words))
                cases.append(Case(op, (whole,), words))
        cases.append(Case("ReduceProd", (numbers((5, extent)) ** 0.1, listed((1,))), {}, (1,)))
        cases.append(Case("ReduceMax", (x.reshape(1, 5, extent), listed((1, 2))), {}, (1,)))
        cases.append(Case("ArgMax", (np.full((2, extent), -np.inf, np.float32),), {"axis": 1}))
    assert not faults(cases, 18, isa=isa)
