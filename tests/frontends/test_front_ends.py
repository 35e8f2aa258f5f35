"""The table of front ends: which row reads a model, and that a new row is all that one needs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polysci import compile_network, layers
from polysci.frontends import table
from polysci.frontends.layers import build_model
from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import Graph, Tensor

MODELS: dict[str, Any] = {
    "words": "mlp:2x3x4 act=relu",
    "layers": build_model([layers.ReLU()], (2, 3)),
    "pytorch": Path("model.pt2"),
    "gguf": Path("model.GGUF"),
    "notation": "program.TC",
    "onnx": "model.onnx",
}


@pytest.mark.parametrize("name", MODELS)
def test_one_row_accepts_a_model(name: str) -> None:
    model = MODELS[name]
    assert [row.name for row in table.FRONT_ENDS if row.accepts(model)] == [name]
    assert table.front_end_of(model).name == name


def test_what_no_row_accepts_is_for_onnx() -> None:
    assert table.front_end_of(b"bytes").name == table.front_end_of("model.bin").name == "onnx"
    assert not table.names_model("mb1ic16ih14oc16kh3ph1")


def test_a_new_front_end_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(rank: Any, *_: Any) -> Graph:
        x = Tensor("x", (2,) * rank)
        graph = GraphBuilder(Graph("ranks", (x,), (), (), {}, {"x": x}))
        return graph.to_graph([x], [graph.transpose("x", range(rank)[::-1])])

    row = table.FrontEnd("ranks", lambda model: isinstance(model, int), read, lambda rank: "turned")
    monkeypatch.setattr(table, "FRONT_ENDS", (row, *table.FRONT_ENDS))
    network = compile_network(2, level="estimate")  # type: ignore[arg-type]  # of the new row
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    (y,) = network({"x": x}).values()
    assert network.name == "turned" and np.array_equal(y, x.T)
