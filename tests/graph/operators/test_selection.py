"""Largest elements in order, pools over regions, determinants: what routines in C compute."""

from dataclasses import replace
from math import ceil, floor

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.graph.operators.lower import lower
from polysci.graph.passes.table import simplify
from tests.support.networks import network_of, read
from tests.support.onnxmodels import reals
from tests.support.operatorcases import OperatorCase, faults, joined

R = np.random.default_rng(0)
TYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
         "uint64")  # fmt: skip


def first(x: np.ndarray, k: int, axis: int, *, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    """The first k elements in order, of equal ones the first, and their places."""
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    order = np.argsort(-ranks if largest else ranks, axis=axis, kind="stable")
    places = np.take(order, range(k), axis=axis)
    return np.take_along_axis(x, places, axis), places


def top(x: np.ndarray, k: int, axis: int = -1, *, largest: int = 1, **words: int) -> OperatorCase:
    return OperatorCase("TopK", "x k", {"x": x}, {"k": np.array([k])},
                        {"axis": axis, "largest": largest, **words}, "v i",
                        first(x, k, axis, largest=bool(largest)))  # fmt: skip


def tops() -> list[OperatorCase]:
    wide = R.permutation(200).astype(np.float32)
    cases = [top(wide, k, largest=largest) for k in (0, 1, 7, 199, 200) for largest in (0, 1)]
    for dtype in TYPES:
        ends = np.iinfo(dtype) if "int" in dtype else np.finfo(dtype)
        few = R.integers(0, 5, (4, 9)).astype(dtype)
        few[1, 2:5] = ends.min, ends.max, ends.min
        cases += [top(few, 4, largest=0), top(few, 9), top(few, 3, 0)]
    signed = np.float32([[0.0, -0.0, -1.5, np.inf, -np.inf, 0.0, 3, -2, 1e-30, -1e-30]])
    cases += [top(signed, 10), top(signed, 10, largest=0)]
    cube = R.integers(0, 9, (3, 4, 5)).astype(np.float32)
    cases += [top(cube, 2, axis) for axis in (0, 1, 2, -2)]
    cases += [top(cube, 3, sorted=0), top(cube[:0], 2, 1)]
    return cases


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 2])
def test_largest_elements(threads: int) -> None:
    assert not faults(tops(), threads=threads)


def test_largest_elements_between_layers() -> None:
    x = {"x": reals(2, 7, 4)}
    cases = [
        OperatorCase("TopK", "x k", x, {"k": np.array([3])}, {"axis": 1}, "v i", before=("x",),
                     behind="Sigmoid")
    ]  # fmt: skip
    assert not faults(cases, threads=2)


def test_a_nan_is_larger_than_all() -> None:
    x = np.float32([2, np.nan, np.inf, -np.nan, 1])
    graph = read(joined([top(x, 5)], 18))
    results = network_of(graph)({"c0_x": x})
    assert isinstance(results, dict)
    assert results["c0_i"].tolist() == [1, 3, 2, 0, 4]


def regions(count: int, size: float) -> np.ndarray:
    corners = np.sort(R.uniform(-0.2 * size, 1.2 * size, (count, 2, 2)), axis=1)
    return corners.reshape(count, 4).astype(np.float32)


def aligned() -> list[OperatorCase]:
    x, batch = reals(2, 3, 8, 7), R.integers(0, 2, 5)
    settings = [
        {"output_height": 3, "output_width": 2, "sampling_ratio": 2},
        {"output_height": 2, "output_width": 2, "spatial_scale": 0.5},
        {"output_height": 3, "output_width": 3, "mode": "max", "sampling_ratio": 3},
        {"output_height": 1, "output_width": 4, "sampling_ratio": 1,
         "coordinate_transformation_mode": "output_half_pixel"},
        {"output_height": 2, "output_width": 3, "mode": "max",
         "coordinate_transformation_mode": "output_half_pixel"},
    ]  # fmt: skip
    inputs = {"x": x, "r": regions(5, 8), "b": batch}
    return [OperatorCase("RoiAlign", "x r b", inputs, words=words) for words in settings]


@pytest.mark.parametrize("threads", [1, 2])
def test_pools_of_points_inside_regions(threads: int) -> None:
    assert not faults(aligned(), threads=threads, tolerance=2e-5)


def largest_of_cells(x: np.ndarray, rois: np.ndarray, cells: tuple[int, int]) -> np.ndarray:
    """MaxRoiPool, which ONNX's reference lacks."""
    y = np.zeros((len(rois), x.shape[1], *cells), x.dtype)
    for number, (image, *corners) in enumerate(rois):
        left, top_, right, bottom = (floor(corner + 0.5) for corner in corners)
        high, wide = max(bottom - top_ + 1, 1) / cells[0], max(right - left + 1, 1) / cells[1]
        for row, column in np.ndindex(cells):
            rows = slice(max(top_ + floor(row * high), 0), max(top_ + ceil((row + 1) * high), 0))
            columns = slice(max(left + floor(column * wide), 0),
                            max(left + ceil((column + 1) * wide), 0))  # fmt: skip
            cell = x[int(image), :, rows, columns]
            if cell.size:
                y[number, :, row, column] = cell.max(axis=(1, 2))
    return y


def test_the_largest_pixels_of_regions() -> None:
    x, rois = reals(2, 3, 9, 8), np.hstack([R.integers(0, 2, (6, 1)), regions(6, 9)])
    rois = rois.astype(np.float32)
    case = OperatorCase("MaxRoiPool", "x r", {"x": x, "r": rois},
                        words={"pooled_shape": [3, 2]})  # fmt: skip
    assert not faults([case, replace(case, expected=(largest_of_cells(x, rois, (3, 2)),))])


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_wild_regions_read_nothing_outside(wild: float) -> None:
    """And they end: a region as wide as a number can be has a bounded number of points."""
    x, rois = reals(1, 1, 4, 4), np.full((2, 4), wild, np.float32)
    rois[1, 2:] = 3
    words = {"output_height": 1, "output_width": 1, "sampling_ratio": 2}
    case = OperatorCase("RoiAlign", "x r b", {"x": x, "r": rois, "b": np.array([9, -9])},
                        words=words)  # fmt: skip
    results = network_of(read(joined([case], 18)))(
        {"c0_x": x, "c0_r": rois, "c0_b": np.array([9, -9])}
    )
    assert isinstance(results, dict) and results["c0_y"].shape == (2, 1, 1, 1)


def test_determinants() -> None:
    singular = np.float32([[1, 2], [2, 4]])
    swapped = np.float32([[0, 2, 1], [3, 0, 0], [0, 1, 4]])
    cases = [OperatorCase("Det", "x", {"x": x}) for x in (
        reals(3, 3), reals(2, 4, 5, 5), reals(1, 1), singular, swapped,
        reals(3, 6, 6).astype(np.float64), np.zeros((0, 2, 2), np.float32),
    )]  # fmt: skip
    assert not faults(cases, threads=2)


def test_regions_of_other_types_are_refused() -> None:
    inputs = {"x": np.zeros((1, 1, 4, 4)), "r": np.zeros((1, 4)), "b": np.array([0])}
    case = OperatorCase("RoiAlign", "x r b", inputs)
    with pytest.raises(UnsupportedError, match="elements of float64"):
        lower(simplify(read(joined([case], 18))))
