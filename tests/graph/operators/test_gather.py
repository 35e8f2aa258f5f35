"""Elements whose places are data, against ONNX's reference: ranks, axes, types, indices."""

from dataclasses import replace

import numpy as np
import pytest

from polysci.graph.operators.lower import lower
from polysci.graph.passes.table import simplify
from polysci.program.stages import LoopStage, ViewStage
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals
from tests.support.operatorcases import OperatorCase, faults, joined, refusal

pytestmark = pytest.mark.sampled

R = np.random.default_rng(0)
TYPES = ("float32", "float64", "int32", "int64", "uint8", "int8", "bool")


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    if dtype == "bool":
        return R.integers(0, 2, shape).astype(dtype)
    return (
        (R.normal(size=shape) * 20).astype(dtype)
        if "int" not in dtype
        else R.integers(0 if dtype[0] == "u" else -99, 99, shape).astype(dtype)
    )


def places(high: int, *shape: int, dtype: str = "int64", low: int | None = None) -> np.ndarray:
    return R.integers(-high if low is None else low, high, shape).astype(dtype)


def gathers() -> list[OperatorCase]:
    cases = [
        OperatorCase("Gather", "x at", {"x": numbers(*shape), "at": places(shape[axis], *index)},
                     words={"axis": axis})
        for shape, axis, index in [
            ((5,), 0, ()), ((5,), 0, (3,)), ((5,), 0, (0,)), ((4, 3), 0, (2, 2)), ((4, 3), 1, (7,)),
            ((4, 3), -1, ()), ((2, 3, 4), 1, (2, 1)), ((2, 3, 4), -3, (5,)),
            ((2, 3, 4, 5), 2, (3,)), ((1, 3, 1, 5), 3, (2, 2)), ((0, 3), 1, (2,)),
            ((70, 9), 0, (3,)),
        ]
    ]  # fmt: skip
    cases += [
        OperatorCase("Gather", "x at", {"x": numbers(4, 3, dtype=dtype),
                                        "at": places(4, 6, dtype="int32")})
        for dtype in TYPES
    ]  # fmt: skip
    constants = ([1], 2, -1, [0, 2], [3, 1], [2, 2], [0, 1, 3], [[0, 1], [2, 3]], [[3], [0]], [])
    cases += [
        OperatorCase("Gather", "x at", {"x": numbers(3, 4, 2)}, {"at": np.array(at, np.int64)},
                     {"axis": 1})
        for at in constants
    ]  # fmt: skip
    table = {"x": numbers(9, 4)}
    cases.append(OperatorCase("Gather", "x at", {"at": places(9, 2, 3)}, table))
    cases.append(OperatorCase("Gather", "x at", {"x": numbers(6, 5), "at": places(6, 4)},
                              before=("x",), behind="Sigmoid"))  # fmt: skip
    return cases


def elements() -> list[OperatorCase]:
    cases = [
        OperatorCase("GatherElements", "x at",
                     {"x": numbers(*shape, dtype=dtype), "at": places(shape[axis], *index)},
                     words={"axis": axis})
        for shape, axis, index, dtype in [
            ((50,), 0, (7,), "float32"), ((3, 4), 0, (2, 4), "int32"), ((3, 4), 1, (3, 6), "bool"),
            ((3, 4), -2, (5, 4), "float64"), ((2, 3, 4), 2, (2, 1, 3), "uint8"),
            ((2, 3, 4), 1, (0, 3, 4), "int64"),
        ]
    ]  # fmt: skip
    vectors = [
        ((2, 2), (2, 2), 0), ((2, 2), (2, 1), 0), ((2, 3, 4), (5, 2), 0), ((2, 3, 4), (2, 3), 0),
        ((2, 3, 4), (2, 1), 1), ((2, 3, 4), (2, 3, 1), 2), ((2, 3, 4), (2, 5, 2), 1),
        ((3, 4), (0, 2), 0),
    ]  # fmt: skip
    for shape, index, batch in vectors:
        least = min(shape[batch : batch + index[-1]])
        cases.append(OperatorCase(
            "GatherND", "x at", {"x": numbers(*shape), "at": places(least, *index)},
            words={"batch_dims": batch},
        ))  # fmt: skip
    known = {"at": np.array([[0, -1], [1, 2]])}
    cases.append(OperatorCase("GatherND", "x at", {"x": numbers(2, 3, 2)}, known))
    return cases


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fuse", [True, False])
def test_gathering(threads: int, fuse: bool) -> None:
    cases = gathers() + elements()
    assert not faults(cases, threads=threads, fuse=fuse)


def test_compress_with_a_constant_condition() -> None:
    cases = [
        OperatorCase("Compress", "x c", {"x": numbers(3, 4)}, {"c": np.array(condition)}, words)
        for condition, words in [
            ([True, False, True], {"axis": 0}), ([False, True, True, True], {"axis": -1}),
            ([True, False, False, True, True, False], {}), ([False, False], {"axis": 0}),
        ]
    ]  # fmt: skip
    assert not faults(cases)


def hot() -> list[OperatorCase]:
    cases = list[OperatorCase]()
    for shape, axis, values, dtype in [
        ((4,), -1, np.float32([0, 1]), "int64"), ((2, 3), 0, np.float32([-1, 5]), "int32"),
        ((2, 3), 1, np.array([7, 3]), "float32"), ((2, 3), -2, np.array([2, 9], np.int32), "int64"),
        ((1,), 0, np.float64([0.5, 1]), "int64"),
    ]:  # fmt: skip
        at = places(9, *shape, dtype=dtype)
        weights = {"depth": np.array(5), "v": values}
        cases.append(OperatorCase("OneHot", "at depth v", {"at": at}, weights, {"axis": axis}))
    at = places(9, 3, low=0).astype(np.uint8)
    wanted = (at[:, None] != np.arange(5),)
    weights = {"depth": np.array(5), "v": np.array([True, False])}
    cases.append(OperatorCase("OneHot", "at depth v", {"at": at}, weights, expected=wanted))
    inputs = {"at": places(5, 4), "v": np.float32([2, 3])}
    cases.append(OperatorCase("OneHot", "at depth v", inputs, {"depth": np.array(6)}))
    return cases


def reversals() -> list[OperatorCase]:
    settings = [((5, 3), {}), ((3, 5), {"time_axis": 1, "batch_axis": 0}),
                ((4, 2, 3), {"time_axis": 0, "batch_axis": 1})]  # fmt: skip
    cases = list[OperatorCase]()
    for shape, words in settings:
        time, batch = (words.get(name, at) for name, at in (("time_axis", 0), ("batch_axis", 1)))
        words = {"time_axis": time, "batch_axis": batch}
        lengths = places(shape[time] + 1, shape[batch], low=1)
        for dtype in ("float32", "int32"):
            inputs = {"x": numbers(*shape, dtype=dtype), "n": lengths}
            cases.append(OperatorCase("ReverseSequence", "x n", inputs, words=words))
    return cases


@pytest.mark.parametrize("threads", [1, 2])
def test_one_hot_vectors_and_reversals(threads: int) -> None:
    assert not faults([*hot(), *reversals()], threads=threads)


def test_constant_places_that_are_evenly_spaced_are_views() -> None:
    def kinds(at: object) -> list[type]:
        case = OperatorCase("Gather", "x at", {"x": numbers(6, 5)}, {"at": np.array(at, np.int64)})
        return [type(stage) for stage in lower(simplify(read(joined([case], 18)))).stages]

    for even in (2, [1], [0, 2, 4], [5, 4, 3], [[0, 1], [3, 4]]):
        assert kinds(even) == [ViewStage], even
    for odd in ([0, 1, 3], [2, 2]):
        assert kinds(odd) == [LoopStage], odd


@pytest.mark.parametrize("wild", [-(2**63), -7, 5, 2**62])
def test_places_outside_of_a_tensor_are_moved_inside(wild: int) -> None:
    """In the network and in the reference that it is compared with."""
    x, row = reals(5, 2), 0 if wild < 0 else 4
    cases = [
        OperatorCase(op, "x at", {"x": x, "at": np.full(shape, wild, np.int64)})
        for op, shape in (("Gather", (3,)), ("GatherElements", (3, 2)), ("GatherND", (3, 1)))
    ]
    assert not faults(cases)
    wanted = (np.broadcast_to(x[row], (3, 2)),)
    assert not faults([replace(case, expected=wanted) for case in cases])


REFUSED = {
    "outside": (OperatorCase("Gather", "x at", {"x": reals(3)}, {"at": np.array([3])}),
                "indices outside of axes of [3] elements"),
    "below": (OperatorCase("GatherElements", "x at", {"x": reals(3)}, {"at": np.array([-4])}),
              "indices outside of axes of [3] elements"),
    "nothing": (OperatorCase("Gather", "x at", {"x": reals(0, 2), "at": np.array([0])}),
                "an axis without elements"),
    "wider": (OperatorCase("GatherElements", "x at", {"x": reals(3, 2), "at": places(3, 3, 3)}),
              "indices [3, 3] for a tensor [3, 2]"),
    "batch": (OperatorCase("GatherND", "x at", {"x": reals(3, 2), "at": places(2, 2, 1)},
                           words={"batch_dims": 1}), "indices [2, 1] for x [3, 2]"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    case, message = REFUSED[name]
    assert message in refusal(case)


def test_a_gathered_tensor_keeps_its_maker() -> None:
    """Nothing is computed again for every place that is read, nor rounded on the way."""
    nodes = [node("Tanh", "x", "t"), node("Gather", "t at", "g"), node("Sigmoid", "g", "y")]
    graph = read(model(nodes, {"x": [5, 4]}, {"y": None}, {"at": np.array([0, 3, 3])}))
    stages = network_of(graph).code.placed.program.stages
    assert len(stages) == 2
