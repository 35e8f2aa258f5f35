"""Operators of ai.onnx.ml against NumPy, and the advice for those that are refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.errors import UnsupportedError
from tests.support.networks import network_of, read
from tests.support.onnxmodels import reals

Array = np.ndarray
X = np.concatenate([reals(3, 4), np.zeros((1, 4), np.float32)])
ROWS = reals(2, 4, seed=1)


def model_of(
    op: str, inputs: str = "x", kind: int = TensorProto.FLOAT, opset: int = 17, **words: Any
) -> onnx.ModelProto:
    one = helper.make_node(op, inputs.split(), ["y"], domain="ai.onnx.ml", **words)
    graph = helper.make_graph(
        [one], "classical", [helper.make_tensor_value_info("x", kind, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([2, 0]), "n")],
    )  # fmt: skip
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=domains)


def over(norm: Array) -> Array:
    made: Array = X / np.where(norm == 0, 1, norm)[:, None]
    return made


CASES: dict[str, tuple[onnx.ModelProto, Callable[[], Array]]] = {
    "Scaler": (
        model_of("Scaler", offset=[1.0, 2.0, 3.0, 4.0], scale=[0.5, 1.0, 2.0, 3.0]),
        lambda: (X - [1, 2, 3, 4]) * [0.5, 1, 2, 3],
    ),
    "Scaler, one number": (model_of("Scaler", scale=[2.0]), lambda: 2 * X),
    "LinearRegressor": (
        model_of("LinearRegressor", targets=2, intercepts=[0.5, -1.0],
                 coefficients=[float(value) for value in ROWS.reshape(-1)]),
        lambda: X @ ROWS.T + [0.5, -1],
    ),
    "Normalizer, MAX": (model_of("Normalizer"), lambda: over(np.abs(X).max(1))),
    "Normalizer, L1": (model_of("Normalizer", norm="L1"), lambda: over(np.abs(X).sum(1))),
    "Normalizer, L2": (
        model_of("Normalizer", norm="L2", opset=20), lambda: over(np.sqrt((X**2).sum(1))),
    ),
    "ArrayFeatureExtractor": (model_of("ArrayFeatureExtractor", "x n"), lambda: X[:, [2, 0]]),
}  # fmt: skip


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    model, expected = CASES[name]
    made = network_of(read(model))({"x": X})
    np.testing.assert_allclose(made["y"], expected(), rtol=1e-5, atol=1e-6)


def test_whole_numbers_become_real_ones() -> None:
    x = np.arange(16).reshape(4, 4)
    made = network_of(read(model_of("Scaler", kind=TensorProto.INT64, scale=[0.5])))({"x": x})
    np.testing.assert_array_equal(made["y"], x / 2)


@pytest.mark.parametrize(
    ("op", "words", "message"),
    [
        ("TreeEnsembleRegressor", {}, "classical machine learning.*; end the model before it"),
        ("LinearRegressor", {"post_transform": "PROBIT"}, "post_transform PROBIT"),
        ("Normalizer", {"norm": "L3"}, "norm L3"),
    ],
)
def test_refused(op: str, words: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read(model_of(op, **words))
