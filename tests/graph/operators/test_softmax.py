"""Softmax, LogSoftmax and Hardmax of all versions."""

import numpy as np
import pytest

from tests.support.nodecases import Case, faults

pytestmark = pytest.mark.sampled

SHAPES = (((2, 3, 4, 5), 1), ((2, 3, 4, 5), -1), ((6, 70), 1), ((7,), 0), ((2, 0), 0), ((0, 3), 1))


def numbers(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).normal(scale=9, size=shape).astype(dtype)


def exact(op: str, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """In float64, over several axes as one."""
    if not x.size:
        return x
    wide = x.astype(np.float64)
    below = wide - wide.max(axes, keepdims=True)
    total = np.exp(below).sum(axes, keepdims=True)
    if op == "Hardmax":
        flat = np.moveaxis(wide, axes, range(-len(axes), 0))
        rows = flat.reshape(-1, int(np.prod([x.shape[at] for at in axes])))
        ones = np.zeros_like(rows)
        ones[np.arange(len(rows)), rows.argmax(1)] = 1
        return np.moveaxis(ones.reshape(flat.shape), range(-len(axes), 0), axes)
    return below - np.log(total) if op == "LogSoftmax" else np.exp(below) / total


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [11, 13])
def test_along_an_axis_or_all_from_one_on(op: str, opset: int) -> None:
    cases = []
    for shape, axis in SHAPES:
        for dtype in ("float32", "float64"):
            x = numbers(shape, dtype)
            first = axis % len(shape)
            axes = tuple(range(first, len(shape))) if opset < 13 else (first,)
            cases.append(Case(op, (x,), {"axis": axis}, exact=exact(op, x, axes)))
    assert not faults(cases, opset)


def test_large_numbers_and_equal_ones() -> None:
    x = np.array([[1e4, 1e4, -1e4], [0, 0, 0], [-1e4, -1e4, -2e4]], np.float32)
    cases = [
        Case(op, (x,), exact=exact(op, x, (1,))) for op in ("Softmax", "LogSoftmax", "Hardmax")
    ]
    assert not faults(cases, 13)


def test_in_bf16_with_threads() -> None:
    x = np.random.default_rng(0).permutation(2 * 6 * 4 * 5).reshape(2, 6, 4, 5).astype(np.float32)
    ops = {"Hardmax": x, "Softmax": x / 64}
    cases = [Case(op, (x,), {"axis": 1}, exact=exact(op, x, (1,))) for op, x in ops.items()]
    assert not faults(cases, 13, dtype="bf16", threads=2)
