"""Convolutions whose taps are moved by data, against ONNX's reference."""

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.graph.operators.lower import lower
from polysci.graph.passes.table import simplify
from tests.support.networks import read
from tests.support.onnxmodels import reals
from tests.support.operatorcases import OperatorCase, faults, joined


def deform_conv_cases() -> list[OperatorCase]:
    cases = list[OperatorCase]()
    for x, w, out, words in [
        ((1, 2, 5, 6), (3, 2, 2, 3), (4, 4), {}),
        ((2, 2, 5, 5), (2, 2, 3, 3), (5, 5), {"pads": [1, 1, 1, 1]}),
        ((1, 4, 6, 6), (4, 2, 2, 2), (5, 5), {"group": 2, "offset_group": 2}),
        ((1, 2, 7, 7), (1, 2, 2, 2), (3, 2), {"strides": [2, 3], "dilations": [2, 1],
                                              "offset_group": 2}),
    ]:  # fmt: skip
        count = words.get("offset_group", 1) * w[2] * w[3]
        inputs = {"x": reals(*x), "o": 2 * reals(x[0], 2 * count, *out, seed=1)}
        masked = inputs | {"m": reals(x[0], count, *out, seed=2)}
        weights = {"w": reals(*w, seed=3), "b": reals(w[0], seed=4)}
        cases.append(OperatorCase("DeformConv", "x w o b m", masked, weights, words))
    cases.append(OperatorCase("DeformConv", "x w o", inputs | {"w": weights["w"]}, words=words))
    return cases


@pytest.mark.exhaustive
def test_moved_taps() -> None:
    assert not faults(deform_conv_cases(), 19, 2, tolerance=3e-5)


def test_offsets_of_another_shape_are_refused() -> None:
    inputs = {"x": reals(1, 1, 4, 4), "o": np.zeros((1, 4, 3, 3), np.float32)}
    case = OperatorCase("DeformConv", "x w o", inputs, {"w": reals(1, 1, 2, 2)})
    with pytest.raises(UnsupportedError, match=r"offset \[1, 4, 3, 3\]: expected \[1, 8, 3, 3\]"):
        lower(simplify(read(joined([case], 19))))
