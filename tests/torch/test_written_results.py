"""Memory that callers share with an optimized module: results, inputs in any order, weights."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
import polysci.torch as ps  # noqa: E402
from polysci.torch.dynamo import compile_graph  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of
X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Constants(torch.nn.Module):  # type: ignore[misc]
    """A product, and results that depend on no input."""

    def __init__(self, apart: bool = False) -> None:
        super().__init__()
        self.linear, self.apart = torch.nn.Linear(4, 4), apart
        self.register_buffer("places", torch.arange(4.0))

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        y = torch.special.bessel_j0(y) if self.apart else y
        return y, torch.zeros(3), self.places * 2


@pytest.mark.parametrize("apart", [False, True])
def test_constant_results_can_be_written_to(apart: bool) -> None:
    module = Constants(apart).eval()
    optimized = ps.optimize(module, X, "estimate")
    assert optimized.report.parts and not optimized.report.reason
    for _ in range(2):
        _, zeros, places = optimized(X)
        assert zeros.tolist() == [0, 0, 0] and places.tolist() == [0, 2, 4, 6]
        zeros += 1
        places += 1


def test_constant_results_of_compiled_graphs_can_be_written_to() -> None:
    compiled = torch.compile(Constants().eval(), backend=compile_graph)
    with torch.no_grad():
        for _ in range(2):
            zeros = compiled(X)[1]
            assert zeros.tolist() == [0, 0, 0]
            zeros += 1


class Difference(torch.nn.Module):  # type: ignore[misc]
    def forward(self, pair: dict[str, Any], **words: Any) -> Any:
        return pair["a"] * 2 - pair["b"][0]["c"]


def test_keys_of_inputs_may_come_in_another_order() -> None:
    a, c = X.clone(), X.exp()
    optimized = ps.optimize(Difference().eval(), ({"a": a, "b": [{"c": c, "d": a}]},), "estimate")
    torch.testing.assert_close(optimized({"b": [{"d": a, "c": c}], "a": a}), a * 2 - c)
    with pytest.raises(TypeError, match="structure"):
        optimized({"b": [{"d": a}], "a": a})


def test_weights_that_lie_otherwise_are_noticed() -> None:
    layer = torch.nn.Linear(4, 4).eval()
    optimized = ps.optimize(layer, X, "estimate")
    with torch.no_grad():
        for run in (optimized, lambda x: ps.linear(x, layer.weight, layer.bias)):
            run(X)
            layer.weight.data = layer.weight.data.t()  # at the same place, of the same version
            torch.testing.assert_close(run(X), layer(X))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, places: x.exp().index_put((places,), torch.ones(())),
        lambda x, places: x.exp().scatter(0, places[:, None], 2.0),
        lambda x, places: x.exp().scatter_add(0, places[:, None], X),
    ],
)
def test_places_to_write_to_are_checked(function: Any) -> None:
    class Written(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, places: Any) -> Any:
            return function(x, places)

    places = torch.tensor([2, 0])
    optimized = ps.optimize(Written().eval(), (X, places), "estimate")
    assert not optimized.report.refused
    torch.testing.assert_close(optimized(X, places), function(X, places))
    for wrong in (3, -4):
        with pytest.raises(IndexError, match="out of range"):
            optimized(X, torch.tensor([0, wrong]))


def test_sparse_buffers_are_no_obstacle() -> None:
    layer = torch.nn.Linear(4, 4)
    layer.register_buffer("table", torch.eye(4).to_sparse())
    optimized = ps.optimize(layer.eval(), X, "estimate")
    with torch.no_grad():
        torch.testing.assert_close(optimized(X), layer(X))
