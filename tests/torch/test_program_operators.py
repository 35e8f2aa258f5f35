"""ATen's operators in a graph: what they compute, in f64, is what PyTorch computes."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.frontends.onnx import reference
from polysci.frontends.pytorch.program import (
    load_program,
    read_program,
    run_program,
)
from polysci.graph.operators.lower import lower
from polysci.graph.passes.table import simplify

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
from tests.support.torch_functions import GROUPS, SHAPES, F, weights  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of


class Functions(torch.nn.Module):
    """Functions of one input as a module."""

    def __init__(self, functions: list[Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Any) -> list[Any]:
        return [function(x) for function in self.functions]


def exported(*functions: Callable[..., Any], shape: tuple[int, ...] = (4, 3, 5)) -> Any:
    return torch.export.export(Functions([*functions]), (weights(*shape),))


def compare(program: Any, shape: tuple[int, ...]) -> None:
    """In f64: PyTorch's own run of the program, and ONNX's reference on the graph."""
    calls = read_program(program)
    graph = simplify(load_program(program))
    lower(graph)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = run_program(calls, {"x": x})
    made = reference.run(graph, {"x": x})
    for node, tensor in zip(calls.made, graph.outputs, strict=True):
        name = node.name if node.name in expected else tensor.name
        wanted, actual = expected[name], made[tensor.name]
        assert tensor.shape == wanted.shape == actual.shape, (node, tensor)
        np.testing.assert_allclose(
            actual.astype(wanted.dtype), wanted, rtol=1e-6, atol=1e-6, err_msg=str(node)
        )
        kind = torch.empty(0, dtype=node.meta["val"].dtype).numpy().dtype.name
        assert tensor.dtype == kind, (node, tensor)


@pytest.mark.parametrize("group", GROUPS)
def test_operators_compute_what_pytorch_does(group: str) -> None:
    shape = SHAPES.get(group, (4, 3, 5))
    compare(exported(*GROUPS[group].values(), shape=shape), shape)


class Cells(torch.nn.Module):
    """Every kind of recurrent layer, with and without states, biases and a second direction."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(5, 4, 2, bidirectional=True)
        self.gru = torch.nn.GRU(5, 4, batch_first=True, bias=False)
        self.tanh = torch.nn.RNN(5, 4, 2)
        self.relu = torch.nn.RNN(5, 4, nonlinearity="relu", bidirectional=True)

    def forward(self, x: Any) -> Any:
        y, (h, c) = self.lstm(x)
        states = self.lstm(x, (h, c))[1]
        return y, h, c, states, self.gru(x), self.tanh(x, torch.ones(2, 3, 4)), self.relu(x)


def test_recurrent_layers_compute_what_pytorch_does() -> None:
    x = torch.zeros(4, 3, 5)
    compare(torch.export.export(Cells().eval(), (x,)), tuple(x.shape))


def refusal(function: Callable[..., Any], **words: Any) -> str:
    with pytest.raises(UnsupportedError) as error:
        load_program(exported(function, **words))
    return str(error.value)


def test_every_operator_that_is_missing_is_listed() -> None:
    text = refusal(lambda x: (torch.linalg.qr(x)[0], x.erfinv(), x.erfinv() + 1, x.relu()))
    assert "exported program: 3 unsupported nodes:" in text
    assert re.search(r"2 x aten.erfinv.default \('erfinv, test_program_operators.py:[0-9]+'", text)
    assert "1 x aten.linalg_qr.default" in text


def test_the_submodule_of_a_call_is_named() -> None:
    module = torch.nn.Sequential(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Dropout()))
    with pytest.raises(UnsupportedError, match=r"'dropout of 0\.1, .*call eval\(\)"):
        load_program(torch.export.export(module.train(), (torch.zeros(2, 3),)))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: F.dropout(x, 0.5, training=True), "call eval"),
        (lambda x: F.adaptive_max_pool1d(x, 2), "[5] elements in [2] windows"),
        (lambda x: F.avg_pool1d(x, 2, 1) + F.avg_pool2d(x, 2, divisor_override=3).sum(), "divisor"),
        (lambda x: x.to(torch.bfloat16), "elements of bfloat16"),
        (lambda x: x + torch.rand(5), "polysci has no such operator"),
        (lambda x: x.norm(3), "norm of order 3"),
    ],
)
def test_what_cannot_be_expressed_is_refused(function: Callable[..., Any], reason: str) -> None:
    assert reason in refusal(function)
