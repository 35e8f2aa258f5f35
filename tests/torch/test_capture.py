"""What programs of torch.export are captured of, and operands that are no tensors."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
import polysci.torch as ours  # noqa: E402
from polysci.torch.dynamo import compile_graph  # noqa: E402
from polysci.torch.variants import capture  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of


class Sum(nn.Module):  # type: ignore[misc]
    """Of two inputs, the first one weighted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any, y: Any) -> Any:
        return torch.tanh(self.layer(x)) + 2 * y


class Branches(nn.Module):  # type: ignore[misc]
    """Data decides which of two products is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, self.first, self.second, (x,))


def test_a_tensor_that_is_given_twice_is_two_inputs() -> None:
    module, x, y = Sum().eval(), torch.randn(2, 4), torch.randn(2, 4)
    fast = ours.optimize(module, (x, x), level="estimate")
    with torch.no_grad():
        torch.testing.assert_close(fast(x, x), module(x, x))
        torch.testing.assert_close(fast(x, y), module(x, y))


def test_marks_of_free_sizes_do_not_count() -> None:
    x = torch.randn(2, 4)
    torch._dynamo.mark_dynamic(x, 0)
    program = capture(nn.Linear(4, 4), (x,), {})
    placed = [node for node in program.graph.nodes if node.name == "input"]
    assert [tuple(node.meta["val"].shape) for node in placed] == [(2, 4)]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_branches_that_data_chooses_stay_as_they_are(sign: float) -> None:
    torch.manual_seed(0)
    module, x = Branches().eval(), sign * torch.rand(2, 4)
    fast = ours.optimize(module, x, level="estimate")
    assert "torch.cond" in str(fast.report)
    step = torch.compile(module, backend=compile_graph, options={"rest": "eager"})
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x))
        torch.testing.assert_close(step(x), module(x))


@pytest.mark.parametrize(
    ("name", "operands", "message"),
    [
        ("conv1d", ([1.0], torch.ones(1, 1, 1)), "conv1d: input: expected a tensor, got list"),
        ("conv2d", (torch.ones(1, 1, 2, 2), None), "conv2d: weight: expected a tensor, got None"),
        ("conv3d", (1, 2), "conv3d: input: expected a tensor, got int"),
        ("conv_transpose2d", ("x", "w"), "conv_transpose2d: input: expected a tensor, got str"),
        ("linear", (torch.ones(2), [1.0]), "linear: weight: expected a tensor, got list"),
        ("matmul", (torch.ones(2), 3), "matmul: other: expected a tensor, got int"),
    ],
)
def test_operands_that_are_no_tensors(name: str, operands: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        getattr(ours, name)(*operands)


def test_states_that_are_no_tensors() -> None:
    lstm = nn.LSTM(4, 3)
    words = True, 1, 0.0, False, False, False
    with pytest.raises(TypeError, match="lstm: hx: expected a tensor, got int"):
        ours.lstm(torch.ones(2, 1, 4), (1, 2), lstm._flat_weights, *words)


class Watched(torch.nn.Module):  # type: ignore[misc]
    """Notes at each call whether the weights of the first such module are fake."""

    first: Any = None
    fakes: list[bool] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        weight = Watched.first.linear.weight
        Watched.fakes.append(isinstance(weight, torch._subclasses.FakeTensor))
        return self.linear(x)


def test_other_threads_may_run_a_module_while_it_is_captured() -> None:
    Watched.first = module = Watched().eval()
    weight, x = module.linear.weight, torch.ones(2, 4)
    optimized = ours.optimize(module, x, "estimate")
    assert len(Watched.fakes) > 1 and not any(Watched.fakes)
    assert module.linear.weight is weight and optimized.report.parts
