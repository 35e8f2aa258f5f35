"""Linear layers in one line of text: what it says, what it computes, what is refused."""

import re

import numpy as np
import pytest

import polysci
from polysci.errors import SpecError
from polysci.frontends.layers.words import model_of
from polysci.network.compiled import compile_network
from polysci.network.prepare import graph_of
from polysci.numerics.scalar_functions import ACTIVATIONS, apply_numpy
from tests.support.command import polysci as command


@pytest.mark.sampled
@pytest.mark.parametrize("activation", ["", *ACTIVATIONS])
def test_every_layer_ends_in_the_activation(activation: str) -> None:
    words = f" act={activation}" if activation else ""
    network = compile_network(f"mlp:5x19x33x7{words}", "estimate", isa="portable")
    x = np.random.default_rng(0).standard_normal((5, 19), dtype=np.float32)
    y = x.astype(np.float64)
    held = model_of(f"mlp:5x19x33x7{words}").parameters
    for layer in {name.split(".")[0]: None for name in held}:
        y = y @ held[f"{layer}.weight"].T.astype(np.float64) + held[f"{layer}.bias"]
        y = apply_numpy(activation, y) if activation else y
    np.testing.assert_allclose(network(x), y, rtol=0, atol=2e-6)
    stages = network.prepared.program.stages
    alone = activation not in ("", "relu")
    assert len(stages) == 2 + 2 * alone, "a clamp is part of its layer, other functions are loops"


@pytest.mark.exhaustive
def test_parameters_of_ones_own() -> None:
    model = polysci.layers.build_model([polysci.layers.Linear(3, 2)], (4, 3))
    own = {name: np.full(value.shape, 2.0) for name, value in model.parameters.items()}
    x = np.ones((4, 3), np.float32)
    assert np.array_equal(
        compile_network(model.fix_values(own), "estimate")(x), np.full((4, 2), 8.0)
    )
    with pytest.raises(SpecError, match=re.escape("0.bias: expected shape (2,), got None")):
        model.fix_values({"0.weight": own["0.weight"]})
    with pytest.raises(SpecError, match=re.escape("0.weight: expected shape (2, 3), got (3, 2)")):
        model.fix_values(own | {"0.weight": own["0.weight"].T})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mlp:4x5", "two or more numbers of features"),
        ("mlp:", "expected rows"),
        ("mlp:4x0x3", "extents from 1"),
        ("mlp:4x5x3 act=rellu", "did you mean 'relu'"),
        ("mlp:4x5x3 relu", "unknown word 'relu'"),
        ("mlp:4x5x3 act=relu more", "unknown word 'more'"),
    ],
)
def test_wrong_words(words: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as raised:
        graph_of(words)
    assert "^" in str(raised.value)


def test_recurrent_words() -> None:
    graph = graph_of("gru:T5xN2xC3xK4 dirs=2")
    (x,), (y, *_) = graph.inputs, graph.outputs
    assert (x.shape, y.shape) == ((5, 2, 3), (5, 2, 8))


def test_words_of_layers_have_one_free_size() -> None:
    assert graph_of("mlp:4x5x3", {"rows": 7}).inputs[0].shape == (7, 5)
    for words, name in (("mlp:4x5x3", "batch"), ("gru:T5xN2xC3xK4", "rows")):
        with pytest.raises(SpecError, match=f"{name}=3: words of layers have one free size: rows"):
            graph_of(words, {name: 3})


def test_the_command_takes_words() -> None:
    done = command("compile", "mlp:4x16x16 act=gelu", "--explain", "--isa", "portable")
    assert done.returncode == 0 and "gelu" in done.stdout
    done = command("compile", "mlp:4x16x16", "--compare", "onnxruntime")
    assert (
        done.returncode == 2 and "--compare onnxruntime: this model is for torch.nn" in done.stderr
    )
