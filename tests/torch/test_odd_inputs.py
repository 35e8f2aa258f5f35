"""Inputs, modes and modules that PyTorch takes and that networks could mistake."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
import polysci.torch as ours  # noqa: E402
from polysci.errors import UnsupportedError  # noqa: E402
from polysci.torch.dynamo import compile_graph  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of


class Bag(nn.Module):
    """A bag, which no network computes, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.layer = nn.EmbeddingBag(20, 8), nn.Linear(8, 3)

    def forward(self, indices: Any, offsets: Any) -> Any:
        return self.layer(self.bag(indices, offsets))


class Listed(nn.Module):
    """Tensors in a list, which torch does not list among its own."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices = [torch.randn(4, 4), {"last": torch.randn(4, 4)}]

    def forward(self, x: Any) -> Any:
        return x @ self.matrices[0] @ self.matrices[1]["last"]


class Chooser(nn.Module):
    """Layers that values choose: torch.export cannot capture it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.a(x) if x.sum() > 0 else self.b(x)


class Cells(nn.Module):
    """Steps of a cell, which autocast casts within."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(5, 6)

    def forward(self, x: Any) -> Any:
        h = x.new_zeros(x.shape[1], 6)
        for step in x:
            h = self.cell(step, h)
        return h


def compiled(module: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(module, backend=compile_graph, options={"rest": "eager"})


def test_what_torch_computes_gets_dense_inputs() -> None:
    module = Bag().eval()
    indices, offsets = torch.randint(0, 20, (9,)), torch.tensor([0, 3, 3, 8])
    fast = ours.optimize(module, (indices, offsets), level="estimate")
    apart = [x.repeat_interleave(2)[::2] for x in (indices, offsets)]
    torch.testing.assert_close(fast(*apart), module(indices, offsets).detach())


def test_a_view_with_another_sign() -> None:
    module, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    fast = ours.optimize(module, x, level="estimate")
    torch.testing.assert_close(fast(torch._neg_view(x)), module(-x).detach())


def test_tensors_in_lists_are_followed() -> None:
    module, x = Listed().eval(), torch.randn(2, 4)
    fast = ours.optimize(module, x, level="estimate")
    module.matrices[0].mul_(2)
    torch.testing.assert_close(fast(x), module(x))
    module.matrices[1]["last"] = torch.randn(4, 4)
    torch.testing.assert_close(fast(x), module(x))


def test_a_layer_that_begins_to_learn_is_noticed() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    fast, x = ours.optimize(module, torch.randn(8, 4), level="estimate"), torch.randn(8, 4)
    module[1].train()
    torch.testing.assert_close(fast(x), module(x).detach())


def test_what_cannot_be_captured_stays_eager_with_free_sizes_too() -> None:
    module, batch = Chooser().eval(), torch.export.Dim("batch", min=2, max=64)
    x = torch.ones(7, 4)
    fast = ours.optimize(module, x[:5], level="estimate", dynamic_shapes=({0: batch},))
    assert "cannot capture" in fast.report.reason
    assert torch.equal(fast(x), module(x))


def test_no_trace_is_made_of_an_optimized_module() -> None:
    fast = ours.optimize(nn.Linear(2, 2).eval(), torch.randn(1, 2), level="estimate")
    with pytest.raises(UnsupportedError, match="is no program"):
        torch.jit.trace(fast, torch.randn(1, 2))


def test_gradients_through_batch_norm_in_inference() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    module[1].running_mean.normal_()
    x = torch.randn(2, 3, 6, 6)
    gradients = [torch.autograd.grad(run(x).square().mean(), [*module.parameters()])
                 for run in (compiled(module), module)]  # fmt: skip
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["cells", "layer of a transformer"])
def test_types_under_autocast_are_those_of_eager(name: str) -> None:
    module, x = (
        (Cells(), torch.randn(4, 3, 5)) if name == "cells"
        else (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), torch.randn(2, 6, 16))
    )  # fmt: skip
    module.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(module)(x), module(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: ours.einsum("ij,jk->ik", x, [1]), TypeError, "operand 1: expected a tensor"),
        (lambda x: ours.einsum(3, x, x), TypeError, "equation: expected str, got 3"),
        (lambda x: ours.conv2d(x[None], x[None, None], stride=1.5), TypeError, "1.5"),
        (lambda x: ours.conv_transpose2d(x[None], x[None, None], stride="a"), TypeError, "'a'"),
        (lambda x: ours.gru(x[:0, None], x[None, :1], [x, x], False, 1, 0.0, False, False, False),
         UnsupportedError, "at least one step"),
        (lambda x: ours.gru(x[:, :0, None].mT, x[None, :1], [x, x], False, 1, 0.0, False, False,
                            False), UnsupportedError, "one feature"),
    ],
)  # fmt: skip
def test_arguments_of_operators(call: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        call(torch.randn(4, 4))
