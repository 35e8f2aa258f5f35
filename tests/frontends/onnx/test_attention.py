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


@pytest.mark.exhaustive
def test_attention_behind_keys_of_the_past() -> None:
    """Keys that are split by heads stand behind those of the past, which become an output."""
    shapes = {"q": (2, 3, 8), "k": (2, 2, 3, 4), "v": (2, 2, 3, 4), "pk": (2, 2, 4, 4),
              "pv": (2, 2, 4, 4)}  # fmt: skip
    arrays = {name: reals(*shape, seed=at) for at, (name, shape) in enumerate(shapes.items())}
    names = ["q", "k", "v", "", "", "", "pk", "pv"]
    made = helper.make_node("MultiHeadAttention", names, ["y", "nk", "nv"], domain="com.microsoft",
                            num_heads=2)  # fmt: skip
    built = model([made], shapes, dict.fromkeys(("y", "nk", "nv")), {}, 14)
    built.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    results = network_of(read(built))(arrays)
    k, v = (np.concatenate((arrays["p" + name], arrays[name]), 2) for name in "kv")
    assert (results["nk"] == k).all() and (results["nv"] == v).all()
    flat = (part.swapaxes(1, 2).reshape(2, 7, 8).astype(np.float64) for part in (k, v))
    assert np.abs(results["y"] - scores(arrays["q"].astype(np.float64), *flat)).max() < 5e-6


def rotated(
    x: np.ndarray, places: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairs: bool
) -> Any:
    """Rotate (batch, heads, length, size) as complex numbers."""
    half = cos.shape[1]
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if pairs
        else (slice(half), slice(half, 2 * half))
    )
    turned = (x[..., first] + 1j * x[..., second]) * (cos + 1j * sin)[places][:, None]
    y = x.copy()
    y[..., first], y[..., second] = turned.real, turned.imag
    return y


ANGLES = np.outer(np.arange(16), 0.4 ** np.arange(8)).astype(np.float32)
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)
# Name: past, tokens of the call, tokens of each text behind it, keys there is room for, attributes.
GROUPED: dict[str, tuple[int, int, list[int], int, dict[str, Any]]] = {
    "prompt": (0, 5, [5, 3], 5, {}),
    "step behind the past": (4, 1, [5], 5, {"do_rotary": 1}),
    "step into a buffer": (9, 1, [5, 3], 9, {"do_rotary": 1, "softcap": 3.0}),
    "several tokens": (4, 3, [7, 5], 7, {"do_rotary": 1, "rotary_interleaved": 1}),
    "window": (9, 3, [8], 9, {"local_window_size": 4, "scale": 0.3}),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", GROUPED)
def test_heads_of_queries_that_share_keys(name: str, packed: bool) -> None:
    past, length, ends, room, words = GROUPED[name]
    batch, heads, shared, size = len(ends), 4, 2, 16
    q, k, v = (reals(batch, length, n * size, seed=n) for n in (heads, shared, shared))
    v = v + 1
    held = [reals(batch, shared, past, size, seed=seed) for seed in (7, 8)]
    arrays = {"q": np.concatenate((q, k, v), 2) if packed else q}
    arrays |= {} if packed else {"k": k, "v": v}
    arrays |= {"pk": held[0], "pv": held[1]} if past else {}
    arrays["ends"] = np.array(ends, np.int32) - 1
    constants = {"total": np.array(room, np.int32), "cos": COS, "sin": SIN}
    names = [name if name in arrays or name in constants else ""
             for name in ("q", "k", "v", "pk", "pv", "ends", "total", "cos", "sin")]  # fmt: skip
    words = words | {"num_heads": heads, "kv_num_heads": shared}
    results = ["y", "nk", "nv"]
    made = helper.make_node("GroupQueryAttention", names, results, domain="com.microsoft", **words)
    shapes = {name: array.shape for name, array in arrays.items()}
    built = model([made], shapes, dict.fromkeys(results), constants, 14)
    built.graph.input[-1].type.tensor_type.elem_type = onnx.TensorProto.INT32
    built.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    computed = network_of(read(built))(arrays)
    window = words.get("local_window_size", room)
    for at, end in enumerate(ends):
        before = max(end - length, 0)
        own = [part[at].reshape(length, -1, size).swapaxes(0, 1) for part in (q, k, v)]
        if words.get("do_rotary"):
            places = np.arange(length)[None] + before
            turn = bool(words.get("rotary_interleaved"))
            own[:2] = [rotated(part[None], places, COS, SIN, turn)[0] for part in own[:2]]
        keys, values = (
            np.concatenate((part[at][:, :before], new), 1)
            for part, new in zip(held, own[1:], strict=True)
        )
        for name, part in (("nk", keys), ("nv", values)):
            real = part[:, :end]
            assert np.abs(computed[name][at][:, :end] - real).max() < 1e-6
        for token in range(min(length, end - before)):
            seen = slice(max(before + token + 1 - window, 0), before + token + 1)
            for head in range(heads):
                scale = words.get("scale", size**-0.5)
                s = keys[head // 2][seen].astype(np.float64) @ own[0][head, token] * scale
                cap = words.get("softcap", 0.0)
                s = cap * np.tanh(s / cap) if cap else s
                s = np.exp(s - s.max())
                exact = s / s.sum() @ values[head // 2][seen]
                y = computed["y"][at, token].reshape(heads, size)[head]
                assert np.abs(y - exact).max() < 5e-6, (at, token, head)


@pytest.mark.exhaustive
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("rank", [3, 4])
def test_rotary_embedding(rank: int, pairs: bool) -> None:
    x, places = reals(2, 3, 5, 8), np.array([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]])
    flat = x.swapaxes(1, 2).reshape(2, 5, 24)
    words = {"num_heads": 3, "rotary_embedding_dim": 6} if rank == 3 else {}
    built = foreign(
        "RotaryEmbedding", "x p cos sin", {"x": (flat if rank == 3 else x).shape},
        {"p": places, "cos": COS[:, :3], "sin": SIN[:, :3]}, interleaved=int(pairs), **words,
    )  # fmt: skip
    y = network_of(read(built))({"x": flat if rank == 3 else x})["y"]
    exact = rotated(x.astype(np.float64), places, COS[:, :3], SIN[:, :3], pairs)
    exact = exact.swapaxes(1, 2).reshape(2, 5, 24) if rank == 3 else exact
    assert np.abs(y - exact).max() < 1e-6


def test_refused() -> None:
    built = foreign("Attention", "x w b - p", {"x": X.shape}, {
        "w": W, "b": B, "p": reals(2, 2, 2, 1, 4)
    }, num_heads=2)  # fmt: skip
    with pytest.raises(UnsupportedError, match="of the past"):
        network_of(read(built))
