"""Attention: ONNX's operator, and those of com.microsoft, against NumPy in float64."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from polysci.errors import UnsupportedError
from polysci.frontends.onnx import reference
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

pytestmark = pytest.mark.sampled

# Name: attributes, shapes of inputs in order, outputs.
ONNX: dict[str, tuple[dict[str, Any], list[list[int]], str]] = {
    "4-D": ({}, [[2, 3, 4, 8], [2, 3, 6, 8], [2, 3, 6, 8]], "y"),
    "3-D": ({"q_num_heads": 4, "kv_num_heads": 4}, [[2, 5, 16], [2, 6, 16], [2, 6, 24]], "y"),
    "fewer keys": ({"q_num_heads": 4, "kv_num_heads": 2}, [[1, 5, 16], [1, 6, 8], [1, 6, 8]], "y"),
    "mask": ({"scale": 0.3}, [[1, 2, 4, 8], [1, 2, 6, 8], [1, 2, 6, 8], [4, 6]], "y"),
    "causal, capped": (
        {"is_causal": 1, "softcap": 2.0}, [[1, 2, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8]], "y",
    ),
    "past": (
        {"is_causal": 1},
        [[1, 2, 3, 8], [1, 2, 3, 8], [1, 2, 3, 8], [], [1, 2, 4, 8], [1, 2, 4, 8]], "y k1 v1",
    ),
    "products": (
        {"qk_matmul_output_mode": 3}, [[1, 2, 4, 8], [1, 2, 6, 8], [1, 2, 6, 8]], "y - - s",
    ),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ONNX)
def test_as_onnx_defines_it(name: str) -> None:
    attributes, shapes, outputs = ONNX[name]
    arrays = {f"x{at}": reals(*shape, seed=at) for at, shape in enumerate(shapes) if shape}
    words = " ".join(f"x{at}" if shape else "-" for at, shape in enumerate(shapes))
    made = [title for title in outputs.split() if title != "-"]
    built = model(
        [node("Attention", words, outputs, **attributes)],
        {title: array.shape for title, array in arrays.items()}, dict.fromkeys(made), opset=23,
    )  # fmt: skip
    graph = read(built)
    exact = reference.run(graph, arrays)
    for title, result in network_of(graph)(arrays).items():
        assert np.abs(result - exact[title]).max() < 2e-6, title


@pytest.mark.exhaustive
def test_of_a_mask_that_hides_all_keys_is_0() -> None:
    shapes = {"q": [1, 1, 2, 4], "k": [1, 1, 3, 4], "v": [1, 1, 3, 4]}
    mask = np.array([[True, False, True], [False, False, False]])
    nodes = [node("Attention", "q k v mask", "y")]
    graph = read(model(nodes, shapes, {"y": None}, {"mask": mask}, 23))
    arrays = {title: reals(*shape, seed=at) for at, (title, shape) in enumerate(shapes.items())}
    y = network_of(graph)(arrays)["y"]
    assert np.abs(y - reference.run(graph, arrays)["y"]).max() < 2e-6
    assert not y[0, 0, 1].any()


# ------------------------------------------------------------------ com.microsoft


def scores(q: np.ndarray, k: np.ndarray, v: np.ndarray, added: Any = 0.0) -> np.ndarray:
    """Of (batch, length, heads * 4) in float64."""
    heads = [part.reshape(*part.shape[:2], -1, 4).swapaxes(1, 2) for part in (q, k)]
    values = v.reshape(*v.shape[:2], heads[0].shape[1], -1).swapaxes(1, 2)
    s = heads[0] @ heads[1].swapaxes(2, 3) / 2 + added
    s = np.exp(s - s.max(-1, keepdims=True))
    y = s / s.sum(-1, keepdims=True) @ values
    return y.swapaxes(1, 2).reshape(*q.shape[:2], -1)


W, B = reals(6, 24, seed=8), reals(24, seed=9)
X = reals(2, 5, 6, seed=10)
MASKS = {
    "raw": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
    "lengths": np.array([3, 5], np.int32),
    "pairs": (reals(2, 5, 5, seed=4) > -0.5).astype(np.int32),
}


def foreign(
    op: str, inputs: str, ports: dict[str, Any], weights: Any, **words: Any
) -> onnx.ModelProto:
    names = ["" if name == "-" else name for name in inputs.split()]
    made = helper.make_node(op, names, ["y"], f"the {op}", domain="com.microsoft", **words)
    built = model([made], ports, {"y": None}, weights, 14)
    built.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return built


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MASKS)
def test_attention_of_one_tensor(name: str) -> None:
    mask = MASKS[name]
    built = foreign(
        "Attention", "x w b m", {"x": X.shape}, {"w": W, "b": B, "m": mask}, num_heads=2
    )
    wide = (np.arange(5) < mask[:, None]) if mask.ndim == 1 else mask
    wide = (wide[:, None, None] if wide.ndim == 2 else wide[:, None]).astype(np.float64)
    q, k, v = np.split(X.astype(np.float64) @ W + B, 3, 2)
    y = network_of(read(built))({"x": X})["y"]
    assert np.abs(y - scores(q, k, v, (1 - wide) * -10000)).max() < 5e-6


@pytest.mark.exhaustive
def test_attention_that_sees_no_later_keys() -> None:
    weights = {"w": W, "b": B}
    built = foreign("Attention", "x w b", {"x": X.shape}, weights, num_heads=2, unidirectional=1)
    q, k, v = np.split(X.astype(np.float64) @ W + B, 3, 2)
    exact = scores(q, k, v, np.triu(np.full((5, 5), -np.inf), 1))
    assert np.abs(network_of(read(built))({"x": X})["y"] - exact).max() < 5e-6


@pytest.mark.exhaustive
def test_attention_of_three_tensors() -> None:
    arrays = {"q": reals(2, 3, 8), "k": reals(2, 5, 8, seed=1), "v": reals(2, 5, 12, seed=2)}
    bias, mask, added = reals(28, seed=3), MASKS["raw"], reals(1, 2, 3, 5, seed=4)
    built = foreign(
        "MultiHeadAttention", "q k v b m a", {n: a.shape for n, a in arrays.items()},
        {"b": bias, "m": mask, "a": added}, num_heads=2,
    )  # fmt: skip
    parts = np.split(bias.astype(np.float64), [8, 16])
    q, k, v = (array + part for array, part in zip(arrays.values(), parts, strict=True))
    exact = scores(q, k, v, added + (1 - mask[:, None, None]) * -10000.0)
    assert np.abs(network_of(read(built))(arrays)["y"] - exact).max() < 5e-6


def test_refused() -> None:
    built = foreign("Attention", "x w b - p", {"x": X.shape}, {
        "w": W, "b": B, "p": reals(2, 2, 2, 1, 4)
    }, num_heads=2)  # fmt: skip
    with pytest.raises(UnsupportedError, match="of the past"):
        network_of(read(built))
