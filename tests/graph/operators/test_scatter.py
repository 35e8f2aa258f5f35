"""Elements written to places that are data, against ONNX's reference."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals
from tests.support.operatorcases import OperatorCase, faults, joined, refusal

pytestmark = pytest.mark.sampled

R = np.random.default_rng(0)
REDUCTIONS = ("none", "add", "mul", "min", "max")


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return R.integers(0, 2 if dtype == "bool" else 4, shape).astype(dtype)


def distinct(high: int, *shape: int, axis: int = 0) -> np.ndarray:
    """Places that differ along an axis, some of them counted from the end."""
    others = [size for at, size in enumerate(shape) if at != axis % len(shape)]
    rows = [R.permutation(high)[: shape[axis]] for _ in range(int(np.prod(others)))]
    array = np.moveaxis(np.array(rows).reshape(*others, shape[axis]), -1, axis)
    return (array - high * R.integers(0, 2, shape)).astype(np.int64)


def elements() -> list[OperatorCase]:
    shapes = [((6,), 0, (4,)), ((4, 5), 0, (3, 5)), ((4, 5), 1, (2, 3)), ((4, 5), -2, (4, 1)),
              ((2, 3, 4), 1, (2, 2, 3)), ((2, 3, 4), 2, (1, 3, 4)),
              ((3, 2), 0, (0, 2))]  # fmt: skip
    cases = [
        OperatorCase("ScatterElements", "x at u",
                     {"x": numbers(*shape), "at": distinct(shape[axis], *box, axis=axis),
                      "u": numbers(*box)}, words={"axis": axis})
        for shape, axis, box in shapes
    ]  # fmt: skip
    repeated = {"x": numbers(4, 5), "at": R.integers(-4, 4, (3, 5)), "u": numbers(3, 5)}
    cases += [
        OperatorCase("ScatterElements", "x at u",
                     repeated | {name: repeated[name].astype(dtype) for name in "xu"},
                     words={"reduction": reduction})
        for reduction in REDUCTIONS for dtype in ("float32", "float64", "int32", "int64", "uint8")
    ]  # fmt: skip
    truths = {name: numbers(*repeated[name].shape, dtype="bool") for name in "xu"}
    cases.append(OperatorCase("ScatterElements", "x at u", repeated | truths))
    cases.append(OperatorCase("ScatterElements", "x at u", repeated, before=("x", "u"),
                              behind="Sigmoid"))  # fmt: skip
    return cases


def vectors() -> list[OperatorCase]:
    cases = list[OperatorCase]()
    for shape, at in [
        ((8,), distinct(8, 5)[:, None]), ((4, 3), distinct(4, 2)[:, None]),
        ((4, 3), np.array([[0, 1], [-1, 2]])), ((4, 3, 2), np.array([[[1]], [[-2]]])),
        ((2, 3, 70), np.array([[0, 1], [1, -1], [0, 0]])), ((3, 2), np.zeros((0, 1), np.int64)),
        ((1, 1, 5), np.array([[0, 0, 2]])), ((3, 4, 2, 5), np.array([[2, 0], [0, 3]])),
    ]:  # fmt: skip
        updates = numbers(*at.shape[:-1], *shape[at.shape[-1] :])
        inputs = {"x": numbers(*shape), "at": at, "u": updates}
        cases.append(OperatorCase("ScatterND", "x at u", inputs))
    at = np.array([[1], [0], [1], [-1], [1]])
    cases += [
        OperatorCase("ScatterND", "x at u", {"x": numbers(3, 4, dtype=dtype), "at": at,
                                             "u": numbers(5, 4, dtype=dtype)},
                     words={"reduction": reduction})
        for reduction in REDUCTIONS for dtype in ("float32", "int64")
    ]  # fmt: skip
    return cases


def unpools() -> list[OperatorCase]:
    square = {"kernel_shape": [2, 2], "strides": [2, 2]}
    row = {"kernel_shape": [4], "strides": [2]}
    at, few = np.array([[[[5, 7], [13, 15]]]]), distinct(60, 24).reshape(2, 3, 4) % 60
    return [
        OperatorCase("MaxUnpool", "x at", {"x": numbers(1, 1, 2, 2), "at": at}, words=square),
        OperatorCase("MaxUnpool", "x at", {"x": numbers(2, 3, 4), "at": few}, words=row),
    ]


def test_unpooling_to_another_shape_counts_in_that_shape() -> None:
    """So that indices of a MaxPool of 5 x 5 pixels fit, as in ONNX Runtime."""
    words = {"kernel_shape": [2, 2], "strides": [2, 2]}
    inputs = {"x": reals(1, 1, 2, 2), "at": np.array([[[[6, 8], [16, 18]]]])}
    wanted = np.zeros((1, 1, 5, 5), np.float32)
    wanted[:, :, 1::2, 1::2] = inputs["x"]
    case = OperatorCase("MaxUnpool", "x at s", inputs, {"s": np.array([1, 1, 5, 5])}, words,
                        expected=(wanted,))  # fmt: skip
    assert not faults([case])
    assert not faults([replace(case, expected=None)])


def caches() -> list[OperatorCase]:
    cases = list[OperatorCase]()
    for shape, axis, count, starts, mode in [
        ((2, 3, 6, 4), -2, 3, [0, 3], "linear"), ((2, 3, 6, 4), -2, 4, [1, 5], "circular"),
        ((3, 5), 1, 2, [3, 0, 1], "linear"), ((2, 4, 3), 1, 4, None, "linear"),
    ]:  # fmt: skip
        box = [count if at == axis % len(shape) else size for at, size in enumerate(shape)]
        inputs = {"x": numbers(*shape), "u": numbers(*box)}
        names = "x u" if starts is None else "x u at"
        inputs |= {} if starts is None else {"at": np.array(starts)}
        cases.append(OperatorCase("TensorScatter", names, inputs,
                                  words={"axis": axis, "mode": mode}))  # fmt: skip
    return cases


def test_sequences_written_into_caches() -> None:
    assert not faults(caches(), 24, 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_scattering(threads: int) -> None:
    assert not faults([*elements(), *vectors(), *unpools()], threads=threads)


def test_scattering_of_opset_9() -> None:
    """Under the name that it had."""
    inputs = {"x": numbers(4, 5), "at": distinct(4, 3, 5), "u": numbers(3, 5)}
    assert not faults([OperatorCase("Scatter", "x at u", inputs)], 9)


@pytest.mark.exhaustive
def test_scattering_in_bf16() -> None:
    """Between layers, where tensors of three axes and more are narrow."""
    nodes = [node("Conv", "x w", "c"), node("ScatterElements", "c at u", "s", axis=2),
             node("Conv", "s w", "y")]  # fmt: skip
    weights = {
        "w": reals(3, 3, 1, 1),
        "at": np.ones((1, 3, 1, 4), np.int64),
        "u": reals(1, 3, 1, 4),
    }
    graph = read(model(nodes, {"x": [1, 3, 5, 4]}, {"y": None}, weights))
    x = {"x": reals(1, 3, 5, 4, seed=1)}
    wide, narrow = (network_of(graph, dtype=dtype)(x) for dtype in ("f32", "bf16"))
    assert isinstance(wide, dict) and isinstance(narrow, dict)
    np.testing.assert_allclose(narrow["y"], wide["y"], atol=0.05)


@pytest.mark.parametrize("wild", [-(2**63), -7, 5, 2**62])
def test_places_outside_of_a_tensor_are_moved_inside(wild: int) -> None:
    x, update = reals(5, 2), np.float32([[7, 8]])
    for op, at in (("ScatterElements", [[wild, wild]]), ("ScatterND", [[wild]])):
        inputs = {"x": x, "at": np.array(at), "u": update}
        network = network_of(read(joined([OperatorCase(op, "x at u", inputs)], 18)))
        results = network({f"c0_{name}": array for name, array in inputs.items()})
        assert isinstance(results, dict)
        wanted = x.copy()
        wanted[0 if wild < 0 else 4] = update
        np.testing.assert_array_equal(results["c0_y"], wanted)


REFUSED = {
    "outside": (OperatorCase("ScatterElements", "x at u", {"x": reals(3), "u": reals(1)},
                             {"at": np.array([3])}), "indices outside of axes of [3] elements"),
    "updates": (OperatorCase("ScatterElements", "x at u",
                             {"x": reals(3), "u": reals(2), "at": np.array([1])}),
                "updates [2] for indices [1]"),
    "slices": (OperatorCase("ScatterND", "x at u",
                            {"x": reals(3, 2), "u": reals(1, 3), "at": np.array([[1]])}),
               "indices [1, 1] and updates [1, 3] for data [3, 2]"),
    "reduction": (OperatorCase("ScatterND", "x at u",
                               {"x": reals(3), "u": reals(1), "at": np.array([[1]])},
                               words={"reduction": "sub"}), "reduction sub"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    case, message = REFUSED[name]
    assert message in refusal(case)


@pytest.mark.exhaustive
def test_a_row_fusion_does_not_skip_an_update() -> None:
    """What reads an updated tensor waits for the update, not for its first values."""
    nodes = [node("Conv", "x w", "c"), node("ScatterElements", "c at u", "s", axis=2),
             node("MaxPool", "s", "y", kernel_shape=[3, 3])]  # fmt: skip
    weights = {"w": reals(8, 8, 1, 1), "at": np.ones((1, 8, 1, 9), np.int64),
               "u": 9 + reals(1, 8, 1, 9)}  # fmt: skip
    graph = read(model(nodes, {"x": [1, 8, 9, 9]}, {"y": None}, weights))
    results = network_of(graph)({"x": reals(1, 8, 9, 9)})
    assert isinstance(results, dict)
    assert (results["y"][:, :, :2] > 7).all()
