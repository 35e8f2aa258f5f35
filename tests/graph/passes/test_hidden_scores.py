"""Attention in blocks of queries: the scores that constant masks hide are not computed."""

from typing import Any

import numpy as np
import pytest

from polysci.frontends.onnx import reference
from polysci.graph.graph import AFFINE, Graph
from polysci.graph.passes.affine import make_affine
from polysci.graph.passes.hidden_scores import skip_hidden_scores
from polysci.graph.passes.table import simplify
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

TOKENS, WIDTH = 300, 8
LEAST = float(np.finfo(np.float32).min)
AGE = np.arange(TOKENS)[:, None] - np.arange(TOKENS)  # of a key, as a query sees it
SCORES = node("MatMul", "q k", "s")
PRODUCT = node("MatMul", "p v", "y")


def masked(mask: Any, *more: Any, **weights: Any) -> Graph:
    """Return ``softmax(s + mask) @ v`` of four heads; ``more`` stands in place of the addition."""
    steps = more or (node("Add", "s mask", "m"),)
    inputs = {"q": [1, 4, TOKENS, WIDTH], "k": [1, 4, WIDTH, TOKENS], "v": [1, 4, TOKENS, WIDTH],
              "padding": [1, 1, 1, TOKENS]}  # fmt: skip
    nodes = [SCORES, *steps, node("Softmax", "m", "p", axis=-1), PRODUCT]
    return read(model(nodes, inputs, {"y": None}, {"mask": mask, **weights}))


def additive(seen: Any, hidden: float = -np.inf) -> Any:
    return np.where(seen, 0, hidden).astype(np.float32)


def products(graph: Graph) -> list[tuple[int, ...]]:
    """Return rows and columns of each product of scores."""
    names = [its.outputs[0] for its in graph.nodes if its.op == "matmul"]
    return [graph.tensors[name].shape[-2:] for name in names[::2]]


def check(before: Graph, after: Graph, **inputs: Any) -> None:
    """Expect the same results of both."""
    values = {it.name: reals(*it.shape, seed=at) for at, it in enumerate(before.inputs)} | inputs
    expected, found = (reference.run(its, values)["y"] for its in (before, after))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("hidden", [-np.inf, LEAST])
def test_causal_blocks(hidden: float) -> None:
    before = masked(additive(AGE >= 0, hidden))
    after = skip_hidden_scores(before)
    assert products(after) == [(128, 128), (128, 256), (44, 300)]
    check(before, after)


def test_graphs_of_a_range_have_no_blocks() -> None:
    before = masked(additive(AGE >= 0))
    assert len(products(simplify(before))) == 3
    assert products(simplify(before, any_size=True)) == [(TOKENS, TOKENS)]


def test_a_window_leaves_out_the_past() -> None:
    before = masked(additive((AGE >= 0) & (AGE < 40)))
    after = skip_hidden_scores(before)
    assert products(after) == [(128, 128), (128, 192), (44, 108)]
    check(before, after)


def test_a_choice_under_padding() -> None:
    """Runs may hide more: with minus infinity, what nobody sees is the same."""
    steps = (node("Greater", "padding zero", "real"), node("And", "mask real", "both"),
             node("Where", "both s hidden", "m"))  # fmt: skip
    numbers = {"zero": np.float32(0), "hidden": np.float32(-np.inf)}
    before = masked(AGE[None, None] >= 0, *steps, **numbers)
    after = skip_hidden_scores(before)
    assert products(after) == [(128, 128), (128, 256), (44, 300)]
    padding = np.ones((1, 1, 1, TOKENS), np.float32)
    padding[..., :5] = 0  # the first five queries see nothing, and are no numbers
    check(before, after, padding=padding)


def test_scores_that_are_changed_before_the_mask() -> None:
    steps = (node("Tanh", "s", "t"), node("Mul", "t slopes", "u"), node("Add", "u mask", "m"))
    before = masked(additive(AGE >= 0), *steps, slopes=reals(1, 4, 1, TOKENS))
    after = skip_hidden_scores(before)
    assert products(after) == [(128, 128), (128, 256), (44, 300)]
    check(before, after)


def test_zero_in_place_of_no_number() -> None:
    nodes = [SCORES, node("Add", "s mask", "m"), node("Softmax", "m", "p0", axis=-1),
             node("IsNaN", "p0", "n"), node("Where", "n zero p0", "p"), PRODUCT]  # fmt: skip
    inputs = {"q": [4, TOKENS, WIDTH], "k": [4, WIDTH, TOKENS], "v": [4, TOKENS, WIDTH]}
    weights = {"mask": additive(AGE >= 0), "zero": np.float32(0)}
    before = read(model(nodes, inputs, {"y": None}, weights))
    after = skip_hidden_scores(before)
    assert len(products(after)) == 3
    values = {it.name: reals(*it.shape, seed=at) for at, it in enumerate(before.inputs)}
    values["q"][:, 7] = np.nan
    check(before, after, **values)
    assert not reference.run(after, values)["y"][:, 7].any()


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_scales_of_scores(batch: tuple[int, ...]) -> None:
    """Of one matrix the places along axis 1 are keys, of a stack queries, and heads behind."""
    nodes = [SCORES, node("Mul", "s scale", "t"), node("Add", "t mask", "m"),
             node("Softmax", "m", "p", axis=-1), PRODUCT]  # fmt: skip
    inputs = {"q": [*batch, TOKENS, WIDTH], "k": [*batch, WIDTH, TOKENS],
              "v": [*batch, TOKENS, WIDTH]}  # fmt: skip
    weights = {"scale": np.float32(0.3), "mask": additive(AGE >= 0)}
    before = make_affine(read(model(nodes, inputs, {"y": None}, weights)))
    assert any(its.op == AFFINE for its in before.nodes)
    after = skip_hidden_scores(before)
    assert len(products(after)) == 3
    check(before, after)


@pytest.mark.parametrize(("other", "v"), [("one", [4, TOKENS, WIDTH]), ("zero", [TOKENS])])
def test_guards_and_vectors_that_stay(other: str, v: list[int]) -> None:
    """What hidden keys count with where a softmax is no number, and a product by a vector."""
    nodes = [SCORES, node("Add", "s mask", "m"), node("Softmax", "m", "p0", axis=-1),
             node("IsNaN", "p0", "n"), node("Where", f"n {other} p0", "p"), PRODUCT]  # fmt: skip
    inputs = {"q": [4, TOKENS, WIDTH], "k": [4, WIDTH, TOKENS], "v": v}
    weights = {"mask": additive(AGE >= 0), other: np.float32(other == "one")}
    before = read(model(nodes, inputs, {"y": None}, weights))
    assert skip_hidden_scores(before).nodes == before.nodes


def test_keys_are_cut_before_they_are_repeated() -> None:
    """Heads that share keys: the slice stands before what expands and turns them."""
    nodes = [node("Reshape", "k one", "k1"), node("Expand", "k1 four", "k4"),
             node("Reshape", "k4 heads", "k5"), node("Transpose", "k5", "kt", perm=[0, 1, 3, 2]),
             node("MatMul", "q kt", "s"), node("Add", "s mask", "m"),
             node("Softmax", "m", "p", axis=-1), PRODUCT]  # fmt: skip
    inputs = {"q": [1, 4, TOKENS, WIDTH], "k": [1, 2, TOKENS, WIDTH], "v": [1, 4, TOKENS, WIDTH]}
    shapes = {"one": (1, 2, 1, TOKENS, WIDTH), "four": (1, 2, 2, TOKENS, WIDTH),
              "heads": (1, 4, TOKENS, WIDTH)}  # fmt: skip
    weights = {name: np.array(shape) for name, shape in shapes.items()}
    before = read(model(nodes, inputs, {"y": None}, {"mask": additive(AGE >= 0), **weights}))
    after = skip_hidden_scores(before)
    cut = [after.tensors[its.inputs[0]].shape for its in after.nodes if its.op == "slice"]
    assert cut.count((1, 2, TOKENS, WIDTH)) == 2  # two blocks see a part of the keys
    check(before, after)


@pytest.mark.parametrize(
    ("mask", "steps"),
    [
        (additive(AGE > 0), ()),  # a query that sees nothing
        (additive(AGE > -250), ()),  # hides too little
        (additive(AGE >= 0), (node("Add", "s mask", "a"), node("Relu", "a", "m"))),
        # A run may hide what a query sees by the same least number.
        (additive(AGE >= 0, LEAST), (node("Add", "s mask", "a"), node("Add", "a padding", "m"))),
    ],
)  # fmt: skip
def test_what_stays(mask: Any, steps: tuple[Any, ...]) -> None:
    before = masked(mask, *steps)
    assert skip_hidden_scores(before).nodes == before.nodes


def test_a_network_computes_blocks() -> None:
    """In C, of three heads, with a window: beside float64."""
    mask = additive((AGE >= 0) & (AGE < 150))
    nodes = [SCORES, node("Add", "s mask", "m"), node("Softmax", "m", "p", axis=-1), PRODUCT]
    inputs = {"q": [3, TOKENS, WIDTH], "k": [3, WIDTH, TOKENS], "v": [3, TOKENS, WIDTH]}
    network = network_of(read(model(nodes, inputs, {"y": None}, {"mask": mask})))
    q, k, v = (reals(*shape, seed=at) for at, shape in enumerate(inputs.values()))
    scores = q.astype(np.float64) @ k + mask
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    expected = shares / shares.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(network({"q": q, "k": k, "v": v})["y"], expected, rtol=0, atol=2e-6)
