"""Weights that PyTorch's tools put in the place of a module's own: each call computes with them."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
from torch.nn.utils import parametrize, prune  # noqa: E402

import polysci.torch as ours  # noqa: E402
from tests.support.torch_results import compare  # noqa: E402

nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x).relu())


def change_both(module: Any) -> None:
    with torch.no_grad():
        module.first.weight.mul_(2)


def untie(module: Any) -> None:
    module.last.weight = nn.Parameter(torch.randn(6, 6))


def mask(module: Any) -> None:
    prune.l1_unstructured(module.first, "weight", 0.5)


def remove_mask(module: Any) -> None:
    prune.remove(module.first, "weight")


def normalise(module: Any) -> None:
    nn.utils.parametrizations.weight_norm(module.first)


def scale_norms(module: Any) -> None:
    with torch.no_grad():
        module.first.parametrizations.weight.original0.mul_(3)


def remove_norms(module: Any) -> None:
    parametrize.remove_parametrizations(module.first, "weight")


CHANGES: dict[str, tuple[Callable[[Any], None], ...]] = {
    "ties": (change_both, untie, change_both),
    "masks": (mask, remove_mask),
    "parametrisations": (normalise, scale_norms, remove_norms),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", CHANGES)
def test_optimized_modules_follow(name: str) -> None:
    torch.manual_seed(0)
    module, x = Tied().eval(), torch.randn(3, 6)
    optimized, before = ours.optimize(module, x, "estimate"), module(x)
    for change in CHANGES[name]:
        change(module)
        compare_values(module, optimized, x)
    assert not torch.allclose(module(x), before)


def compare_values(module: Any, optimized: Any, x: Any) -> None:
    """As ``compare``, of modules that cannot be copied either."""
    with torch.no_grad():
        wanted = module(x)
        assert optimized.report.parts and not optimized.report.reason
        torch.testing.assert_close(optimized(x), wanted)


def test_an_optimized_module_called_with_other_weights() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(6, 5), nn.Tanh()).eval(), torch.randn(3, 6)
    optimized = ours.optimize(module, x, "estimate")
    other = {f"module.{name}": torch.randn_like(w) for name, w in module.named_parameters()}
    with torch.no_grad():
        made = torch.func.functional_call(optimized, other, (x,))
        wanted = F.linear(x, other["module.0.weight"], other["module.0.bias"]).tanh()
    torch.testing.assert_close(made, wanted)
    compare(module, optimized, x)  # its own are back


def test_operators_called_with_other_weights() -> None:
    class Layer(nn.Linear):
        def forward(self, x: Any) -> Any:
            return ours.linear(x, self.weight, self.bias)

    torch.manual_seed(0)
    layer, x = Layer(6, 5), torch.randn(3, 6)
    other = {name: torch.randn_like(w).requires_grad_() for name, w in layer.named_parameters()}
    own = layer(x)
    made = torch.func.functional_call(layer, other, (x,))
    wanted = F.linear(x, other["weight"], other["bias"])
    torch.testing.assert_close(made, wanted)
    gradients = [torch.autograd.grad(y.sum(), [*other.values()]) for y in (made, wanted)]
    torch.testing.assert_close(*gradients)
    assert torch.equal(layer(x), own)
