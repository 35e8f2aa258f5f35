"""Backward passes that compute attention's probabilities again, beside formulas in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polysci.frontends.onnx import reference
from polysci.graph.differentiate import differentiate
from polysci.graph.graph import Graph
from polysci.graph.passes.table import simplify
from polysci.graph.recompute import recomputable, recompute
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

HEADS, LENGTH, SIZE = 4, 12, 8
SCALE, CAP = 0.3, 2.0
KINDS = ("self", "causal", "masked", "grouped", "capped")
# What rounding leaves of gradients: sums of up to 12 x 8 products of numbers below 1.
BOUND = 96 * 2.0**-23


def mask_of(kind: str) -> np.ndarray:
    """Return what is added to the scores."""
    if kind == "masked":
        return reals(HEADS, 1, LENGTH, seed=5)
    below = np.tril(np.ones((LENGTH, LENGTH), bool)) | (kind != "causal")
    return np.where(below, 0.0, -np.inf).astype(np.float32)


def arrays_of(kind: str) -> dict[str, np.ndarray]:
    """Return queries, keys and values, whose heads two of the queries' share where grouped."""
    shared = HEADS // 2 if kind == "grouped" else HEADS
    shapes = {"q": HEADS, "k": shared, "v": shared}
    return {name: reals(heads, LENGTH, SIZE, seed=at)
            for at, (name, heads) in enumerate(shapes.items())}  # fmt: skip


def attention(kind: str) -> tuple[Graph, int]:
    """Return the gradients of a weighted sum of the results, and the nodes of the forward pass."""
    weights: dict[str, Any] = {"scale": np.float32(SCALE), "weights": WEIGHTS}
    weights |= {"mask": mask_of(kind), "cap": np.float32(CAP)}
    k, v, scores = "k", "v", "scaled"
    nodes = []
    if kind == "grouped":
        for name in "kv":
            single, wide = f"{name}_single_shape", f"{name}_wide_shape"
            weights[single] = np.array([HEADS // 2, 1, LENGTH, SIZE])
            weights[wide] = np.array([HEADS // 2, 2, LENGTH, SIZE])
            nodes += [
                node("Reshape", f"{name} {single}", f"{name}_single"),
                node("Expand", f"{name}_single {wide}", f"{name}_wide"),
                node("Reshape", f"{name}_wide all_shape", f"{name}_all"),
            ]
        weights["all_shape"] = np.array([HEADS, LENGTH, SIZE])
        k, v = "k_all", "v_all"
    nodes += [
        node("Transpose", k, "turned", perm=[0, 2, 1]),
        node("MatMul", "q turned", "products"),
        node("Mul", "products scale", "scaled"),
    ]
    if kind == "capped":
        nodes += [node("Div", "scaled cap", "part"), node("Tanh", "part", "tanh"),
                  node("Mul", "tanh cap", "capped")]  # fmt: skip
        scores = "capped"
    nodes += [
        node("Add", f"{scores} mask", "masked"), node("Softmax", "masked", "shares", axis=-1),
        node("MatMul", f"shares {v}", "y"), node("Mul", "y weights", "weighted"),
        node("ReduceSum", "weighted", "loss", keepdims=0),
    ]  # fmt: skip
    shapes = {name: list(array.shape) for name, array in arrays_of(kind).items()}
    graph = read(model(nodes, shapes, {"loss": []}, weights))
    return differentiate(graph, "loss", [*shapes]), len(graph.nodes)


WEIGHTS = reals(HEADS, LENGTH, SIZE, seed=9)


def exact(kind: str) -> dict[str, np.ndarray]:
    """Return the gradients in float64 (Dao et al., 2022, appendix B.2)."""
    q, k, v = (array.astype(np.float64) for array in arrays_of(kind).values())
    group = HEADS // len(k)
    k, v = k.repeat(group, 0), v.repeat(group, 0)
    scores = q @ k.swapaxes(1, 2) * np.float64(np.float32(SCALE))
    capped = CAP * np.tanh(scores / CAP) if kind == "capped" else scores
    powers = np.exp(capped + mask_of(kind))
    shares, dy = powers / powers.sum(-1, keepdims=True), WEIGHTS.astype(np.float64)
    by_shares = dy @ v.swapaxes(1, 2)
    by_scores = shares * (by_shares - (by_shares * shares).sum(-1, keepdims=True))
    if kind == "capped":
        by_scores *= 1 - np.tanh(scores / CAP) ** 2
    by_scores *= np.float64(np.float32(SCALE))
    dk, dv = by_scores.swapaxes(1, 2) @ q, shares.swapaxes(1, 2) @ dy
    of_heads = (x.reshape(-1, group, LENGTH, SIZE).sum(1) for x in (dk, dv))
    return dict(zip("qkv", (by_scores @ k, *of_heads), strict=True))


def without_scores(kind: str) -> Graph:
    """Return the gradients, for which the forward pass keeps no tensor as large as the scores."""
    graph, count = attention(kind)
    names = [name for group in recomputable(graph, count) for name in group]
    assert "shares" in names
    assert scores_kept(graph)
    changed = recompute(graph, count, names)
    assert not scores_kept(changed)
    return changed


def scores_kept(graph: Graph) -> set[str]:
    """Return the tensors as large as the scores that nodes behind the loss read from before it."""
    place = next(at for at, its in enumerate(graph.nodes) if "loss" in its.outputs) + 1
    made = {name for its in graph.nodes[:place] for name in its.outputs}
    used = {name for its in graph.nodes[place:] for name in its.inputs}
    return {name for name in made & used if graph.tensors[name].size >= HEADS * LENGTH * LENGTH}


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_the_reference(kind: str) -> None:
    graph, expected = without_scores(kind), exact(kind)
    results = reference.run(graph, arrays_of(kind))
    for name, gradient in expected.items():
        np.testing.assert_allclose(results[f"{name}.gradient"], gradient, rtol=0, atol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_compiled(kind: str, threads: int) -> None:
    network = network_of(simplify(without_scores(kind)), threads=threads)
    results = network(arrays_of(kind))
    for name, gradient in exact(kind).items():
        np.testing.assert_allclose(results[f"{name}.gradient"], gradient, rtol=0, atol=BOUND)


def test_what_frees_no_memory_stays() -> None:
    """A root stays instead of as large a tensor behind which it stands, and so do outputs."""
    nodes = [
        node("Concat", "x x", "pair", axis=0), node("Sqrt", "pair", "a"), node("Softmax", "a", "b"),
        node("ReduceSumSquare", "b", "loss", keepdims=0),
    ]  # fmt: skip
    graph = read(model(nodes, {"x": [3, 4]}, {"loss": []}))
    whole = differentiate(graph, "loss", ["x"])
    assert recomputable(whole, len(nodes)) == (("b",),)
    outputs = (*whole.outputs, whole.tensors["b"])
    assert recomputable(replace(whole, outputs=outputs), len(nodes)) == ()
