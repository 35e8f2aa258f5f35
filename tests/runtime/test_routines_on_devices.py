"""Stages that call a routine for each of their items compute on devices what they do in C."""

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest

from polysci.network.compiled import CompileOptions, compile_network
from polysci.runtime.backends import backend_named
from tests.support.any_device import DEVICES, at_hand
from tests.support.onnxmodels import model, node, reals

REGIONS = np.float32([[2, 2, 12, 10], [0, 4, 6, 18], [-2, 0, 8, 8]])
BOXES = np.float32([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 0.9, 1, 1.9], [2, 2, 3, 3], [2, 2, 4, 3]]])
SCORES = np.float32([[[0.9, 0.8, 0.95, 0.1, 0.5], [0.2, 0.2, 0.3, 0.9, 0.1]]])
Arrays = dict[str, np.ndarray]


def cases() -> dict[str, tuple[onnx.ModelProto, Arrays]]:
    """A model of one operator, and its inputs."""
    x, pixels = np.round(reals(3, 70) * 4) / 4, reals(1, 2, 9, 8)
    x[1, 3], x[1, 5], x[2, 60] = np.nan, -0.0, np.inf
    numbers = np.round(reals(9, 5, seed=2) * 3).astype(np.int32)
    batch = {"batch": np.zeros(3, np.int64)}
    boxes = {"boxes": BOXES, "scores": SCORES}
    limits = {"most": np.int64([3]), "share": np.float32([0.4]), "least": np.float32([0.15])}

    def of(made: Any, inputs: Arrays, outputs: dict[str, Any], constants: Arrays) -> Any:
        ports = {name: array.shape for name, array in inputs.items()}
        return model(made, ports, outputs, constants), inputs

    top = {"k": np.int64([40])}
    made = {
        "top": of([node("TopK", "x k", "y i")], {"x": x}, {"y": None, "i": None}, top),
        "least": of([node("Cast", "x", "n", to=onnx.TensorProto.INT32),
                     node("TopK", "n k", "y i", axis=0, largest=0)],
                    {"x": numbers.astype(np.float32)}, {"y": None, "i": None},
                    {"k": np.int64([4])}),
        "wide": of([node("Cast", "x", "n", to=onnx.TensorProto.DOUBLE),
                    node("TopK", "n k", "y i")], {"x": x}, {"y": None, "i": None}, top),
        "places": of([node("NonZero", "x", "y")], {"x": np.float32(numbers)}, {"y": None}, {}),
        "boxes": of([node("NonMaxSuppression", "boxes scores most share least", "y")],
                    boxes, {"y": None}, limits),
        "determinant": of([node("Det", "x", "y")], {"x": reals(3, 6, 6)}, {"y": None}, {}),
    }  # fmt: skip
    for mode in ("avg", "max"):
        align = node("RoiAlign", "x rois batch", "y", mode=mode, output_height=3, output_width=2,
                     spatial_scale=0.5, sampling_ratio=0)  # fmt: skip
        made[mode] = of([align], {"x": pixels, "rois": REGIONS}, {"y": None}, batch)
    numbered = np.float32([[0, *row] for row in REGIONS])
    pool = node("MaxRoiPool", "x rois", "y", pooled_shape=[3, 2], spatial_scale=0.5)
    made["pool"] = of([pool], {"x": pixels, "rois": numbered}, {"y": None}, {})
    return made


CASES = cases()


@pytest.mark.parametrize(
    ("device", "name"),
    [pytest.param(*case, marks=[pytest.mark.exhaustive] * (case != ("opencl:0", "top")))
     for case in product(DEVICES, CASES)],
)  # fmt: skip
def test_routines_compute_what_they_do_here(device: str, name: str) -> None:
    made, inputs = CASES[name]
    with at_hand(device):
        (target,) = backend_named(device).targets()
        results, expected = (
            compile_network(made, CompileOptions("estimate", target=where))(inputs)
            for where in (target, None)
        )
    assert results.keys() == expected.keys()
    for title, array in expected.items():
        assert results[title].shape == array.shape and results[title].dtype == array.dtype
        if array.dtype.kind == "f" and name in ("avg", "max", "determinant"):
            assert np.allclose(results[title], array, rtol=1e-5, atol=1e-6)
        else:
            assert np.array_equal(results[title], array, equal_nan=array.dtype.kind == "f")
