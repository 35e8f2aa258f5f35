"""Operators of ONNX Runtime's domain compute what their definitions say."""

from collections.abc import Callable, Mapping, Sequence
from math import erf, pi, sqrt
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from polysci.errors import UnsupportedError
from polysci.frontends.onnx.importer import graph_of
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, reals

pytestmark = pytest.mark.sampled

Arrays = Mapping[str, np.ndarray]
X = reals(2, 3, 4)
ROWS = {"skip": reals(2, 3, 4, seed=1), "g": reals(4, seed=2), "b": reals(4, seed=3),
        "c": reals(4, seed=4)}  # fmt: skip


def foreign(op: str, inputs: str, weights: Arrays, shape: Sequence[int], outputs: str = "y",
            domain: str = "com.microsoft", **words: Any) -> onnx.ModelProto:  # fmt: skip
    names = ["" if name == "-" else name for name in inputs.split()]
    one = helper.make_node(op, names, outputs.split(), f"the {op}", domain=domain, **words)
    made = model([one], {"x": shape}, dict.fromkeys(outputs.split()), weights, 14)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


def computed(one: onnx.ModelProto, x: np.ndarray) -> dict[str, np.ndarray]:
    made = network_of(read(one))({"x": x})
    assert isinstance(made, dict)
    return made


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(erf)(x.astype(float) / sqrt(2)))


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))


def norm(x: np.ndarray, g: np.ndarray, b: Any = 0.0) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * g + b


def rms(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * g


S, G, B, C = ROWS.values()
CASES: dict[str, tuple[onnx.ModelProto, Callable[[np.ndarray], np.ndarray]]] = {
    "Gelu": (foreign("Gelu", "x", {}, X.shape), gelu),
    "BiasGelu": (foreign("BiasGelu", "x b", ROWS, X.shape), lambda x: gelu(x + B)),
    "FastGelu": (foreign("FastGelu", "x b", ROWS, X.shape), lambda x: tanh_gelu(x + B)),
    "BiasSplitGelu": (
        foreign("BiasSplitGelu", "x b", ROWS, X.shape),
        lambda x: (x + B)[..., :2] * gelu((x + B)[..., 2:]),
    ),
    "QuickGelu": (
        foreign("QuickGelu", "x", {}, X.shape, alpha=2.0), lambda x: x / (1 + np.exp(-2 * x)),
    ),
    "SkipLayerNormalization": (
        foreign("SkipLayerNormalization", "x skip g b c", ROWS, X.shape, epsilon=1e-3),
        lambda x: norm(x + S + C, G, B),
    ),
    "without beta": (
        foreign("SkipLayerNormalization", "x skip g", ROWS, X.shape, epsilon=1e-3),
        lambda x: norm(x + S, G),
    ),
    "SkipSimplifiedLayerNormalization": (
        foreign("SkipSimplifiedLayerNormalization", "x skip g c", ROWS, X.shape, epsilon=1e-3),
        lambda x: rms(x + S + C, G),
    ),
    "SimplifiedLayerNormalization": (
        foreign("SimplifiedLayerNormalization", "x g", ROWS, X.shape, domain="", epsilon=1e-3),
        lambda x: rms(x, G),
    ),
    "FusedMatMul": (
        foreign("FusedMatMul", "x skip", ROWS, X.shape, transB=1, alpha=0.5),
        lambda x: 0.5 * x @ S.swapaxes(1, 2),
    ),
    "FusedGemm": (
        foreign("FusedGemm", "x w c", {"w": reals(4, 4), "c": C}, (3, 4), activation="LeakyRelu",
                activation_alpha=0.5),
        lambda x: np.maximum(x @ reals(4, 4) + C, 0.5 * (x @ reals(4, 4) + C)),
    ),
    "FusedConv": (
        foreign("FusedConv", "x w - z", {"w": reals(2, 3, 1), "z": reals(1, 2, 4)}, (1, 3, 4),
                activation="Relu"),
        lambda x: np.maximum(np.einsum("kc,ncw->nkw", reals(2, 3), x) + reals(1, 2, 4), 0),
    ),
    "clipped": (
        foreign("FusedConv", "x w", {"w": reals(2, 3, 1)}, (1, 3, 4), activation="Clip",
                activation_params=[-0.5, 0.5]),
        lambda x: np.clip(np.einsum("kc,ncw->nkw", reals(2, 3), x), -0.5, 0.5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    one, expected = CASES[name]
    shape = [dim.dim_value for dim in one.graph.input[0].type.tensor_type.shape.dim]
    x = reals(*shape, seed=9)
    np.testing.assert_allclose(computed(one, x)["y"], expected(x), rtol=1e-4, atol=1e-5)


def test_the_sum_that_is_normalised_is_an_output() -> None:
    one = foreign("SkipLayerNormalization", "x skip g b c", ROWS, X.shape)
    one.graph.node[0].output.extend(["", "", "s"])
    one.graph.output.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, None))
    np.testing.assert_allclose(computed(one, X)["s"], X + S + C, rtol=1e-6)


def test_operators_on_bytes() -> None:
    """``(a - 3) * 0.5 + (b - 1) * 0.25`` in steps of 0.5 from 2."""
    inputs = "a sa za b sb zb sy zy"
    weights = {"sa": np.float32(0.5), "za": np.uint8(3), "b": np.arange(4, dtype=np.uint8),
               "sb": np.float32(0.25), "zb": np.uint8(1), "sy": np.float32(0.5),
               "zy": np.uint8(2)}  # fmt: skip
    one = foreign("QLinearAdd", inputs, weights, (2, 4))
    del one.graph.input[:]
    one.graph.input.append(helper.make_tensor_value_info("a", TensorProto.UINT8, (2, 4)))
    one.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    a = np.arange(8, dtype=np.uint8).reshape(2, 4)
    made = network_of(read(one))({"a": a})["y"]
    real = (a.astype(float) - 3) * 0.5 + (np.arange(4) - 1) * 0.25
    np.testing.assert_array_equal(made, np.clip(np.rint(real / 0.5) + 2, 0, 255))


@pytest.mark.parametrize(
    ("op", "words", "message"),
    [
        ("FusedMatMul", {"transBatchA": 1}, "transBatchA 1"),
        ("FusedConv", {"activation": "Wave"}, "activation Wave"),
        ("Unknown", {}, "polysci has no such operator"),
    ],
)
def test_what_is_refused(op: str, words: dict[str, Any], message: str) -> None:
    one = foreign(op, "x w", {"w": reals(2, 3, 1)}, (1, 3, 4), **words)
    with pytest.raises(UnsupportedError, match=rf"com.microsoft.{op}.*{message}"):
        graph_of(one)
