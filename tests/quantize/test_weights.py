"""Types of weights under a budget: it holds, and the report tells what each product lost."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from polysci.cli import main
from polysci.errors import SpecError
from polysci.frontends.onnx import reference
from polysci.graph.graph import NARROW_MATMUL, Graph
from polysci.graph.passes.rounded_weights import check_weights, round_weights
from polysci.quantize import choose_weights
from polysci.quantize.weights import TYPES
from tests.support.networks import read
from tests.support.onnxmodels import model, node, reals

WEIGHTS = {"w": reals(64, 32), "v": reals(5, 32, seed=1), "b": reals(5, seed=2)}
X = np.stack([reals(3, 64, seed=seed) for seed in (3, 4)])


def small() -> onnx.ModelProto:
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "r"),
             node("Gemm", "r v b", "y", transB=1)]  # fmt: skip
    return model(nodes, {"x": (3, 64)}, {"y": (3, 5)}, WEIGHTS)


def stored(graph: Graph) -> dict[str, str]:
    """Products -> the type of their weights."""
    return {
        it.outputs[0]: str(it.attributes["weights"]) for it in graph.nodes if it.op == NARROW_MATMUL
    }


def loss(graph: Graph) -> float:
    found, wanted = (
        np.concatenate([reference.run(own, {"x": x})["y"] for x in X])
        for own in (graph, read(small()))
    )
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


# Budget -> the types that the products may get.
BUDGETS = {0.5: {"int4a8"}, 0.03: {"int8a8", "int8", "bf16"}, 0.0: {"f32"}}


@pytest.mark.sampled
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_budget_holds(budget: float) -> None:
    chosen = choose_weights(small(), {"x": X}, budget)
    assert chosen.samples == 2 and chosen.loss <= budget
    assert {row.weights for row in chosen.products} <= BUDGETS[budget]
    assert loss(chosen.graph) == pytest.approx(chosen.loss, rel=0.02, abs=1e-6)
    kinds = [check_weights(row.weights) for row in chosen.products if row.weights != "f32"]
    assert [*stored(chosen.graph).values()] == kinds


def test_losses_are_those_of_products_by_themselves() -> None:
    chosen = choose_weights(small(), {"x": X}, 0.02)
    first, last = chosen.products
    assert list(first.losses) == list(last.losses) == list(TYPES)
    exact = X.reshape(-1, 64).astype(np.float64) @ WEIGHTS["w"]
    for kind, narrow in first.losses.items():
        graph, _ = round_weights(read(small()), kind)
        own = np.concatenate([reference.run(graph, {"x": x})["a"] for x in X])
        off = np.linalg.norm(own - exact) / np.linalg.norm(exact)
        assert narrow == pytest.approx(off, rel=0.02, abs=1e-6)
    assert first.losses["bf16"] < first.losses["int8"] < first.losses["int4"]


def test_narrow_products_may_get_inputs_of_8_bits() -> None:
    narrow, _ = round_weights(read(small()), "int4")
    chosen = choose_weights(narrow, {"x": X}, 0.5)
    assert [row.weights for row in chosen.products] == ["a8", "a8"]
    assert {*stored(chosen.graph).values()} == {"s4a8x32"}
    assert {*stored(choose_weights(narrow, {"x": X}, 0).graph).values()} == {"s4x32"}


def test_other_calls_are_refused() -> None:
    with pytest.raises(SpecError, match="max_loss 1: expected a number from 0"):
        choose_weights(small(), {"x": X}, 1)
    with pytest.raises(TypeError, match="max_loss: expected a number"):
        choose_weights(small(), {"x": X}, "1%")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="data: lacks 'x'"):
        choose_weights(small(), {"z": X}, 0.1)
    empty = model([node("Relu", "x", "y")], {"x": (2,)}, {"y": (2,)})
    with pytest.raises(SpecError, match="no product of matrices with constant weights"):
        choose_weights(empty, {"x": np.ones(2, np.float32)}, 0.1)


def test_the_command_reports_each_product(tmp_path: Path, capsys) -> None:
    path, data = tmp_path / "small.onnx", tmp_path / "data.npz"
    onnx.save(small(), path)
    np.savez(data, x=X)
    words = ["compile", str(path), "--level", "estimate", "--weights", "auto"]
    assert main([*words, "--max-loss", "0.5", "--data", str(data), "--explain"]) == 0
    told = capsys.readouterr().err
    assert told.count("int4a8") >= 2 and "loss of the network: " in told
    assert main([*words, "--data", str(data)]) == 2
    assert "--weights auto: needs --max-loss" in capsys.readouterr().err
    assert main([*words[:-1], "int4", "--max-loss", "0.1"]) == 2
    assert "--max-loss 0.1: an option of --weights auto" in capsys.readouterr().err
