"""Programs of torch.export that change buffers or inputs: caches of keys and values as state."""

import copy
from typing import Any

import numpy as np
import pytest

import polysci
from polysci.program.stages import LoopStage, UpdateStage

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
from tests.support import decoders  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of
TOKENS = np.random.default_rng(0).integers(0, decoders.VOCABULARY, decoders.CAPACITY)
CLOSE = 2e-5


def errors(model: Any, run: Any, lengths: list[int], shift: int = 0) -> list[float]:
    """The largest difference from a model in float64 after each call, of so many tokens."""
    exact, differences, at = copy.deepcopy(model).double(), [], 0
    for count in lengths:
        tokens, places = TOKENS[None, at : at + count], np.arange(at, at + count)
        y = run({"tokens": tokens, "places": places + shift * (at == 3)})
        with torch.no_grad():
            expected = exact(torch.tensor(tokens), torch.tensor(places)).numpy()
        differences.append(float(np.abs(next(iter(y.values())) - expected).max()))
        at += count
    return differences


@pytest.mark.exhaustive
def test_a_cache_is_written_where_it_lies() -> None:
    model = decoders.decoder()
    network = polysci.compile_network(decoders.export(model, 1), "estimate")
    stages = network.prepared.program.stages
    shape = network.state["layers.0.1.keys"].shape
    updates = [its for its in stages if isinstance(its, UpdateStage)]
    assert len(updates) == 4 and {its.extents for its in updates} == {(1, 4, 1, 8)}
    values = network.prepared.program.values
    moved = [
        its for its in stages if isinstance(its, LoopStage) and values[its.output].shape == shape
    ]
    assert not moved
    assert max(errors(model, network, [1] * 8)) < CLOSE
    network.reset()
    assert max(errors(model, network, [1] * 3)) < CLOSE
    network.reset()  # one place off by one
    assert errors(model, network, [1] * 6, shift=1)[3] > 100 * CLOSE


@pytest.mark.exhaustive
def test_entries_of_several_lengths_share_a_cache() -> None:
    model = decoders.decoder()
    whole = polysci.compile_sizes(decoders.export(model), {"tokens.1": (1, 3, 8)}, "estimate")
    assert max(errors(model, whole, [8, 1, 3, 1, 8])) < CLOSE
    other = whole.sequence()
    assert max(errors(model, other, [3, 1, 1])) < CLOSE
    whole.reset()
    assert not any(array.any() for array in whole.state.values())
    assert any(array.any() for array in other.state.values())


class Counter(torch.nn.Module):
    """It changes a buffer in part, and an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.arange(12.0).reshape(4, 3))

    def forward(self, x: Any, total: Any) -> Any:
        self.rows[1:3] = x
        total += self.rows.sum(0)
        return total * 2


def test_slices_and_inputs_that_change() -> None:
    x, total = torch.ones(2, 3), torch.zeros(3)
    program = torch.export.export(Counter(), (x, total))
    network, model = polysci.compile_network(program, "estimate"), Counter()
    assert [port.name for port in network.inputs] == ["x"]
    assert sorted(network.state) == ["rows", "total"]
    for turn in range(3):
        x = torch.full((2, 3), float(turn))
        assert np.array_equal(network(x.numpy()), model(x, total).numpy())
        assert np.array_equal(network.state["rows"], model.rows.numpy())
        assert np.array_equal(network.state["total"], total.numpy())
    stages = network.prepared.program.stages
    assert [its.extents for its in stages if isinstance(its, UpdateStage)] == [(2, 3)]
