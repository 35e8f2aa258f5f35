"""Repeating, cutting out and rearranging, against ONNX's reference."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.operatorcases import OperatorCase, faults, refusal

R = np.random.default_rng(0)
TYPES = ("float32", "float64", "int32", "int64", "uint8", "bool")


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return (R.normal(size=shape) * 9).astype("int8" if "int" in dtype else dtype).astype(dtype)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def repeats() -> list[OperatorCase]:
    shapes = [((3,), (3,)), ((1,), (4, 2)), ((3, 1), (2, 3, 4)), ((), (2, 2)),
              ((2, 1, 3), (2, 5, 3)), ((0, 1), (0, 3))]  # fmt: skip
    cases = [
        OperatorCase("Expand", "x s", {"x": numbers(*shape)}, {"s": ints(*full)})
        for shape, full in shapes
    ]
    tiles = [((3,), (2,)), ((3, 4), (2, 1)), ((3, 4), (1, 3)), ((2, 3, 4), (2, 2, 3)),
             ((1, 5), (4, 2)), ((2, 3), (0, 1)), ((0, 3), (2, 2)),
             ((2, 1, 3), (1, 1, 1))]  # fmt: skip
    cases += [
        OperatorCase("Tile", "x r", {"x": numbers(*shape)}, {"r": ints(*copies)})
        for shape, copies in tiles
    ]
    for dtype in TYPES:
        x = {"x": numbers(2, 3, dtype=dtype)}
        cases.append(OperatorCase("Tile", "x r", x, {"r": ints(2, 3)}))
        cases.append(OperatorCase("Expand", "x r", x, {"r": ints(4, 2, 3)}))
    cases.append(OperatorCase("Tile", "x r", {"x": numbers(2, 3)}, {"r": ints(2, 2)}, before=("x",),
                              behind="Sigmoid"))  # fmt: skip
    return cases


def blocks() -> list[OperatorCase]:
    cases = [
        OperatorCase("DepthToSpace", "x", {"x": numbers(*shape)}, words=words)
        for shape, words in [
            ((2, 12, 3, 5), {"blocksize": 2}), ((1, 9, 2, 2), {"blocksize": 3, "mode": "CRD"}),
            ((2, 8, 1, 3), {"blocksize": 2, "mode": "CRD"}), ((0, 4, 1, 1), {"blocksize": 2}),
        ]
    ]  # fmt: skip
    shapes = (((2, 3, 4, 6), 2), ((1, 1, 3, 9), 3), ((2, 2, 2, 2), 1))
    cases += [
        OperatorCase("SpaceToDepth", "x", {"x": numbers(*shape)}, words={"blocksize": block})
        for shape, block in shapes
    ]
    cases.append(OperatorCase("DepthToSpace", "x", {"x": numbers(1, 4, 3, 3)},
                              words={"blocksize": 2}, before=("x",), behind="Sigmoid"))  # fmt: skip
    return cases


def triangles() -> list[OperatorCase]:
    return [
        OperatorCase("Trilu", "x k" if k is not None else "x", {"x": numbers(*shape, dtype=dtype)},
                     {} if k is None else {"k": np.array(k)}, {"upper": upper})
        for shape, dtype, k, upper in [
            ((4, 5), "float32", None, 1), ((4, 5), "float32", None, 0), ((5, 3), "int64", 1, 1),
            ((5, 3), "int64", -2, 1), ((2, 3, 3), "float64", 1, 0), ((2, 3, 4), "bool", -1, 0),
            ((3, 4), "int32", 9, 1), ((3, 4), "int32", -9, 0), ((0, 4), "float32", 1, 1),
        ]
    ]  # fmt: skip


def crops() -> list[OperatorCase]:
    sizes = [((7, 5), (4, 9), None), ((6, 4), (3, 3), None), ((3, 8, 4), (5, 4), [-1, 0]),
             ((2, 3), (2, 3), None), ((5,), (0,), None)]  # fmt: skip
    return [
        OperatorCase("CenterCropPad", "x s", {"x": numbers(*shape)}, {"s": ints(*wanted)},
                     {} if axes is None else {"axes": axes})
        for shape, wanted, axes in sizes
    ]  # fmt: skip


def columns() -> list[OperatorCase]:
    settings = [
        ((5, 5), (1, 5), {}), ((5, 5), (2, 3), {"strides": [2, 2]}),
        ((4, 6), (3, 2), {"pads": [1, 0, 1, 1]}), ((6, 6), (2, 2), {"dilations": [2, 3]}),
        ((7, 5), (3, 3), {"strides": [2, 1], "pads": [1, 1, 1, 1]}),
        ((6, 7), (2, 2), {"dilations": [2, 1], "strides": [2, 3]}), ((4, 3, 5), (1, 2, 3), {}),
        ((8,), (3,), {"strides": [2]}),
    ]  # fmt: skip
    cases = list[OperatorCase]()
    for image, block, words in settings:
        rank = len(image)
        pads, strides = words.get("pads", [0] * 2 * rank), words.get("strides", [1] * rank)
        dilations, count = words.get("dilations", [1] * rank), 1
        for at in range(rank):
            wide = image[at] + pads[at] + pads[rank + at] - dilations[at] * (block[at] - 1) - 1
            count *= wide // strides[at] + 1
        x = numbers(2, 3 * int(np.prod(block)), count)
        sizes = {"i": ints(*image), "b": ints(*block)}
        cases.append(OperatorCase("Col2Im", "x i b", {"x": x}, sizes, words))
    return cases


def splits() -> list[OperatorCase]:
    x = {"x": numbers(7, 4)}
    return [
        OperatorCase("Split", "x", x, words={"num_outputs": 3}, outputs="a b c"),
        OperatorCase("Split", "x s", x, {"s": ints(2, 0, 5)}, outputs="a b c"),
        OperatorCase("Split", "x s", x, {"s": ints(2, 4, 1)}, outputs="a - c"),
        OperatorCase("Split", "x s", x, {"s": ints(1, 3)}, {"axis": -1}, outputs="a b"),
        OperatorCase("Split", "x", {"x": numbers(6, 2, dtype="int64")}, words={"num_outputs": 2},
                     outputs="a b"),
    ]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_rearranging(threads: int) -> None:
    cases = [*repeats(), *blocks(), *triangles(), *crops(), *columns(), *splits()]
    assert not faults(cases, threads=threads)


@pytest.mark.exhaustive
def test_rearranging_without_fusion() -> None:
    assert not faults([*repeats(), *blocks()], fuse=False)


def test_an_identity_matrix_of_a_tensor_of_unknown_values() -> None:
    cases = [OperatorCase("EyeLike", "x", {"x": numbers(3, 5)}, words={"k": k}) for k in (-1, 0, 2)]
    cases.append(OperatorCase("EyeLike", "x", {"x": numbers(2, 2)}, words={"dtype": 7}))
    assert not faults(cases)


@pytest.mark.parametrize("opset", [7, 9, 10])
def test_enlarging_before_opset_11(opset: int) -> None:
    """Nearest pixels, rounded down; linear ones without a shift of half a pixel."""
    x, op = numbers(1, 2, 3, 4), "Resize" if opset == 10 else "Upsample"
    columns = np.arange(12) / 3
    low = np.minimum(columns.astype(int), 3)
    high, part = np.minimum(low + 1, 3), (columns - low).astype(np.float32)
    rows = np.repeat(x, 2, axis=2)
    wanted = {
        "nearest": np.repeat(rows, 3, axis=3),
        "linear": (rows := _between_rows(x))[..., low] * (1 - part) + rows[..., high] * part,
    }
    cases = list[OperatorCase]()
    for mode, result in wanted.items():
        scales = [1.0, 1.0, 2.0, 3.0]
        words = {"mode": mode} | ({"scales": scales} if opset == 7 else {})
        weights = {} if opset == 7 else {"s": np.array(scales, np.float32)}
        names = "x" if opset == 7 else "x s"
        cases.append(OperatorCase(op, names, {"x": x}, weights, words, expected=(result,)))
    assert not faults(cases, opset)
    assert not faults([replace(case, expected=None) for case in cases], opset)


def _between_rows(x: np.ndarray) -> np.ndarray:
    places = np.arange(2 * x.shape[2]) / 2
    low = np.minimum(places.astype(int), x.shape[2] - 1)
    high, part = np.minimum(low + 1, x.shape[2] - 1), (places - low)[:, None].astype(np.float32)
    return x[:, :, low] * (1 - part) + x[:, :, high] * part


REFUSED = {
    "mode": (OperatorCase("DepthToSpace", "x", {"x": numbers(1, 4, 4, 4)},
                          words={"blocksize": 2, "mode": "CDR"}), "mode CDR with blocks of 2"),
    "k": (OperatorCase("Trilu", "x k", {"x": numbers(3, 3), "k": np.array(1)}),
          "k is not constant"),
    "columns": (OperatorCase("Col2Im", "x i b", {"x": numbers(1, 4, 3)},
                             {"i": ints(3, 3), "b": ints(2, 2)}), "x [1, 4, 3] for blocks [2, 2]"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    case, message = REFUSED[name]
    assert message in refusal(case)
