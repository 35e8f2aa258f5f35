"""Weights of products in narrower types, and what that loses."""

import numpy as np
import pytest

from polysci.errors import SpecError
from polysci.frontends.onnx import reference
from polysci.graph.graph import NARROW_MATMUL, Graph
from polysci.graph.passes.rounded_weights import check_weights, round_weights, rounds_inputs
from polysci.network.options import CompileOptions
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

WEIGHTS = {"w": reals(64, 6), "v": reals(5, 6, seed=1), "b": reals(5, seed=2)}
X = {"x": reals(2, 3, 64, seed=3)}


def graph() -> Graph:
    nodes = [
        node("MatMul", "x w", "a"), node("Reshape", "a shape", "r"),
        node("Gemm", "r v b", "y", transB=1),
    ]  # fmt: skip
    shape = {"shape": np.array([6, 6])}
    return read(model(nodes, {"x": (2, 3, 64)}, {"y": (6, 5)}, WEIGHTS | shape))


# Type -> half of the largest step of a weight, of which the largest is 1.
STEPS = {"bf16": 2.0**-9, "s8x16": 1 / 128, "u8x32": 1 / 255, "int4": 1 / 8, "u4x64": 1 / 15}


@pytest.mark.parametrize("weights", STEPS)
def test_weights_are_rounded_in_blocks(weights: str) -> None:
    narrow, rows = round_weights(graph(), weights)
    first, second = rows
    products = [it for it in narrow.nodes if it.op == NARROW_MATMUL]
    assert len(products) == (2 if weights == "bf16" else 1)  # K is 6
    assert (second.loss is None) == (weights != "bf16")
    kind = check_weights(weights)
    identity = {"x": np.eye(64, dtype=np.float32)[:6].reshape(2, 3, 64)}
    found, exact = (reference.run(own, identity)["a"].reshape(6, 6) for own in (narrow, graph()))
    assert np.abs(found - exact).max() <= STEPS[weights] * (1 + 1e-6), kind
    assert first.loss is not None
    assert 0 < first.loss < 1.2 * STEPS[weights]


def test_what_a_type_holds_is_exact() -> None:
    values = np.random.default_rng(0).integers(-7, 8, (32, 3)).astype(np.float32)
    values[0], values[1] = -8, 7
    own = model([node("MatMul", "x w", "y")], {"x": (4, 32)}, {"y": (4, 3)}, {"w": values})
    x = {"x": reals(4, 32)}
    for weights in ("s4x32", "u4x32", "bf16"):
        narrow, (row,) = round_weights(read(own), weights)
        assert row.loss == 0
        np.testing.assert_array_equal(
            reference.run(narrow, x)["y"], reference.run(read(own), x)["y"]
        )


def test_inputs_of_8_bits_beside_narrow_weights() -> None:
    """In C as in the reference, which rounds alike; of weights that are narrow already, too."""
    rounded, (row, _) = round_weights(graph(), "int4a8")
    narrow, _ = round_weights(graph(), "int4")
    again, rows = round_weights(narrow, "a8")
    assert row.loss == round_weights(graph(), "int4")[1][0].loss and not rows
    assert sum(map(rounds_inputs, again.nodes)) == sum(map(rounds_inputs, rounded.nodes)) == 1
    exact, near = (reference.run(own, X)["y"] for own in (narrow, rounded))
    assert 0 < np.abs(near - exact).max() < 0.02 * np.abs(exact).max()
    np.testing.assert_allclose(network_of(again)(X)["y"], near, rtol=0, atol=1e-5)


def test_a_graph_in_f32_stays() -> None:
    own = graph()
    assert round_weights(own, "f32") == (own, ())


def test_other_types_are_refused() -> None:
    with pytest.raises(SpecError, match=r"weights 'int5': expected f32, bf16, int8"):
        CompileOptions(weights="int5")
    with pytest.raises(TypeError, match="weights"):
        CompileOptions(weights=8)  # type: ignore[arg-type]


@pytest.mark.exhaustive
@pytest.mark.parametrize("weights", STEPS)
def test_networks_multiply_by_what_is_stored(weights: str) -> None:
    narrow, _ = round_weights(graph(), weights)
    expected = reference.run(narrow, X)["y"]
    np.testing.assert_allclose(network_of(narrow)(X["x"]), expected, atol=1e-5)
