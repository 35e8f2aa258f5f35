"""Where pools find their largest elements, against ONNX's reference."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.onnxmodels import reals
from tests.support.operatorcases import OperatorCase, faults


def pools() -> list[OperatorCase]:
    settings = [
        ((2, 3, 9), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
        ((1, 2, 7, 6), {"kernel_shape": [3, 2], "strides": [2, 1]}),
        ((2, 2, 6, 5), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ((1, 2, 8, 7), {"kernel_shape": [2, 3], "dilations": [3, 2]}),
        ((1, 2, 4, 5, 4), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2]}),
    ]  # fmt: skip
    return [
        OperatorCase("MaxPool", "x", {"x": reals(*shape)}, words=words, outputs="y i")
        for shape, words in settings
    ]


@pytest.mark.parametrize("threads", [1, 2])
def test_places_of_largest_elements(threads: int) -> None:
    assert not faults(pools(), threads=threads)


def test_the_first_of_equal_elements_and_bytes() -> None:
    x = np.array([[[3, 3, 1, 7, 7, 7]]], np.uint8)
    words = {"kernel_shape": [3], "strides": [3]}
    wanted = (np.array([[[3, 7]]], np.uint8), np.array([[[0, 3]]]))
    case = OperatorCase("MaxPool", "x", {"x": x}, words=words, outputs="y i", expected=wanted)
    assert not faults([case])


def test_places_counted_down_the_columns() -> None:
    x = np.arange(30, dtype=np.float32).reshape(1, 1, 5, 6)
    words = {"kernel_shape": [2, 2], "strides": [2, 2], "storage_order": 1}
    rows, columns = np.array([[1], [3]]), np.array([1, 3, 5])
    wanted = (x[:, :, rows, columns], (rows + 5 * columns)[None, None])
    case = OperatorCase("MaxPool", "x", {"x": x}, words=words, outputs="y i", expected=wanted)
    assert not faults([case])


def test_whole_rows_and_volumes() -> None:
    cases = [
        OperatorCase("GlobalMaxPool", "x", {"x": x}, expected=(x.max(axis, keepdims=True),))
        for x, axis in ((reals(2, 3, 5), 2), (reals(1, 2, 3, 4, 2), (2, 3, 4)))
    ]
    assert not faults(cases)
    assert not faults([replace(case, expected=None) for case in cases])


def test_powers_of_sums_over_channels() -> None:
    x, channels = 3 * reals(1, 6, 4, 3), np.arange(6)
    near = np.abs(channels[:, None] - channels) <= 1  # of the three around each
    sums = 2 + 1.5 / 3 * np.einsum("kc,nchw->nkhw", near, x.astype(np.float64) ** 2)
    cases = [
        OperatorCase(
            "LRN", "x", {"x": x}, words={"size": 3, "alpha": 1.5, "beta": beta, "bias": 2.0},
            expected=((x / sums**beta).astype(np.float32),),
        )
        for beta in (-0.75, 0.0, 0.25, 0.5, 0.6, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25)
    ]  # fmt: skip
    assert not faults(cases)
