"""Where pools find their largest elements, against ONNX's reference."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.networks import network_of, read
from tests.support.onnxmodels import reals
from tests.support.operatorcases import OperatorCase, faults, joined


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


def wide_pools() -> list[OperatorCase]:
    """Of every second element, rows of at least 16 results, and of 64 and some."""
    settings = [
        ((1, 2, 7, 40), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ((2, 1, 6, 33), {"kernel_shape": [2, 3], "pads": [0, 2, 1, 0]}),
        ((1, 1, 5, 43), {"kernel_shape": [1, 4], "pads": [0, 3, 0, 3], "dilations": [1, 3]}),
        ((2, 2, 141), {"kernel_shape": [5], "pads": [2, 3]}),
        ((1, 3, 36, 36), {"kernel_shape": [2, 2]}),
    ]  # fmt: skip
    return [
        OperatorCase(
            op, "x", {"x": reals(*shape)}, words={**words, "strides": [2] * (len(shape) - 2)},
            outputs=outputs,
        )
        for shape, words in settings
        for op, outputs in (("MaxPool", "y"), ("MaxPool", "y i"), ("AveragePool", "y"))
        if op == "MaxPool" or "dilations" not in words
    ]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_windows_two_elements_apart(threads: int) -> None:
    assert not faults(wide_pools(), threads=threads)


@pytest.mark.parametrize(
    ("words", "outputs", "side_by_side"),
    [
        ({"pads": [1, 1, 1, 1]}, "y", True),
        ({}, "y", False),  # whole windows stay in registers
        ({}, "y i", True),
    ],
)
def test_padded_windows_are_reduced_side_by_side(
    words: dict[str, list[int]], outputs: str, side_by_side: bool
) -> None:
    words = {"kernel_shape": [3, 3], "strides": [2, 2], **words}
    case = OperatorCase("MaxPool", "x", {"x": reals(1, 1, 9, 40)}, words=words, outputs=outputs)
    network = network_of(read(joined([case], 22)))
    code = "".join(network.code.files.values())
    assert ("acc[j] = " in code) == side_by_side  # neighbouring windows have a maximum each


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
