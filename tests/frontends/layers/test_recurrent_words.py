"""Words of recurrent layers: round trips, models, and errors that point into the text."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.errors import SpecError
from polysci.frontends.layers.words import CELLS, RecurrentWords, layers_of, model_of
from polysci.graph.passes.table import simplify
from polysci.network.prepare import graph_of

EXTENTS = st.integers(1, 10**6)


@given(st.sampled_from([*CELLS]), EXTENTS, EXTENTS, EXTENTS, EXTENTS, st.integers(1, 2),
       st.integers(1, 9), st.booleans())  # fmt: skip
def test_text_is_read_back(
    cell: str, t: int, n: int, c: int, k: int, dirs: int, layers: int, backward: bool
) -> None:
    words = RecurrentWords(cell, t, n, c, k, dirs, layers, backward)
    assert RecurrentWords.parse(str(words)) == words


def test_words_come_in_any_order() -> None:
    text = "  gru:T5xN1xC3xK4 bwd  dirs=2 "
    assert str(RecurrentWords.parse(text)) == "gru:T5xN1xC3xK4 dirs=2 bwd"


def test_the_model() -> None:
    model = RecurrentWords.parse("gru:T5xN2xC3xK4 dirs=2 layers=2").build()
    assert model.graph.inputs[0].shape == (5, 2, 3)
    assert model.graph.outputs[0].shape == (5, 2, 8)
    assert model.parameters["0.weight_ih_l1_reverse"].shape == (12, 8)


@pytest.mark.parametrize("words", ["lstm:T3xN2xC5xK6 dirs=2", "gru:T3xN2xC5xK6", "rnn:T3xN2xC5xK6"])
def test_weights_of_a_forward_pass_are_known_ahead(words: str) -> None:
    graph = graph_of(words)
    recurrent = [node for node in graph.nodes if node.op in ("lstm", "gru", "rnn")]
    assert recurrent
    assert all(name in graph.constants for node in recurrent for name in node.inputs[1:])


def test_a_moved_weight_that_is_an_output_has_a_node() -> None:
    graph = model_of("rnn:T3xN2xC5xK6").fix_values()
    moved = next(node.outputs[0] for node in graph.nodes if node.op == "reshape")
    both = replace(graph, outputs=(*graph.outputs, graph.tensors[moved]))
    assert moved in {name for node in simplify(both).nodes for name in node.outputs}
    assert moved not in {name for node in simplify(graph).nodes for name in node.outputs}


def test_words_of_a_backward_pass_have_weights_as_inputs() -> None:
    graph = graph_of("gru:T5xN2xC3xK4 bwd")
    names = ["x", *(f"0.{word}_l0" for word in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))]
    y, *gradients = [tensor.name for tensor in graph.outputs]
    assert [tensor.name for tensor in graph.inputs] == [*names, f"{y}.gradient"]
    assert gradients == [f"{name}.gradient" for name in names]
    with pytest.raises(SpecError, match="expected words of a forward pass"):
        layers_of("gru:T5xN2xC3xK4 bwd")


@pytest.mark.parametrize(
    ("text", "told", "column"),
    [
        ("lstm:T5xN1xC3", "expected T, N, C and K", 5),
        ("gru:T5xN0xC3xK4", "with extents from 1", 4),
        ("rnn:T5xN1xC3xK4 dirs=3", "unknown word 'dirs=3'", 16),
        ("rnn:T5xN1xC3xK4 bwd bwd", "repeated word 'bwd'", 20),
        ("lsmt:T5xN1xC3xK4", "expected 'lstm:'", 0),
    ],
)
def test_refused(text: str, told: str, column: int) -> None:
    with pytest.raises(SpecError, match=told) as error:
        RecurrentWords.parse(text)
    lines = str(error.value).splitlines()
    assert lines[2].index("^") - 4 == column
