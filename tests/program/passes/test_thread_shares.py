"""Stages that one thread computes, alone or beside others, and those that all share."""

import re
from collections.abc import Iterator

import numpy as np
import pytest

from polysci.cost.networks import StageCosts
from polysci.network.compiled import Network
from polysci.program.passes.thread_shares import first_alone, independent_loops
from polysci.program.stages import RepeatStage
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from tests.graph.operators.test_recurrent import inputs_of, recurrent_model
from tests.support.networks import Arrays, network_of, read
from tests.support.onnxmodels import model, node, reals
from tests.support.rates import set_coefficients


@pytest.fixture
def dear_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Barriers cost what they do outside of tests; a team may save as little as it likes."""
    set_coefficients(monkeypatch, barrier_us=1.0)
    yield


def bidirectional(threads: int, outputs: int = 3) -> tuple[Network, Arrays]:
    arrays = inputs_of("LSTM", 9, 1, 16, 32, 2, bias=True)
    built = recurrent_model("LSTM", {"direction": "bidirectional"}, arrays)
    del built.graph.output[outputs:]
    network = network_of(read(built), threads)
    random = np.random.default_rng(3)
    shapes = {port.name: port.shape for port in network.inputs}
    return network, {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }


def same(network: Network, other: Network, inputs: Arrays) -> bool:
    """Whether they give the same results, however often they run."""
    expected = other(dict(inputs))
    return all(
        all(np.allclose(results[name], expected[name], rtol=1e-5, atol=1e-6) for name in expected)
        for results in (network(dict(inputs)) for _ in range(20))
    )


@pytest.mark.exhaustive
@pytest.mark.usefixtures("dear_waits")
def test_directions_run_beside_each_other() -> None:
    network, inputs = bidirectional(2)
    text = network.code.files["small.c"]
    beside = text[text.index("schedule(static, 1)") :]
    assert "barrier" not in beside[: beside.index("\n    }\n")]
    assert beside.count("for (int64_t step = 0") == 2
    assert same(network, bidirectional(1)[0], inputs)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("dear_waits")
def test_directions_beside_each_other_share_no_memory() -> None:
    network, _ = bidirectional(2)
    placed, offsets = network.code.placed, network.code.arena.offsets
    loops = [stage for stage in placed.program.stages if isinstance(stage, RepeatStage)]
    spaces = []
    for stage in loops:
        made = {name for member in stage.members for name in member.outputs}
        buffers = {placed.places[name].buffer for name in made} & offsets.keys()
        sizes = {name: placed.program.values[name].bytes for name in buffers}
        spaces.append([(offsets[name], offsets[name] + sizes[name]) for name in buffers])
    assert all(spaces)
    assert all(a[1] <= b[0] or b[1] <= a[0] for a in spaces[0] for b in spaces[1])


@pytest.mark.exhaustive
def test_loops_that_need_each_other_are_not_independent() -> None:
    first = recurrent_model("LSTM", {}, inputs_of("LSTM", 3, 1, 4, 4))
    program = network_of(read(first)).prepared.program
    assert independent_loops(program) == []
    both = bidirectional(1)[0].prepared.program
    (stages,) = independent_loops(both)
    assert all(isinstance(both.stages[at], RepeatStage) for at in stages) and len(stages) == 2
    twice = program.stages[: stages.start]
    again = next(stage for stage in program.stages if isinstance(stage, RepeatStage))
    assert independent_loops(program.with_stages((*twice, again, again))) == []


@pytest.mark.exhaustive
def test_a_network_that_two_threads_would_slow_down_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = model([node("MatMul", "x w", "y")], {"x": [1, 8]}, {"y": [1, 8]},
                  {"w": reals(8, 8)})  # fmt: skip
    assert "#pragma omp" in all_code(network_of(read(built), 2))
    set_coefficients(monkeypatch, barrier_us=1.0, team_us=5.0)
    network = network_of(read(built), 2)
    assert "#pragma omp parallel" not in all_code(network) and network.threads == 2


@pytest.mark.exhaustive
@pytest.mark.usefixtures("dear_waits")
def test_what_is_computed_alone_is_waited_for() -> None:
    nodes = [node("Tanh", "z", "s"), node("Exp", "s", "v"),
             node("ReduceSum", "v", "t", keepdims=0), node("Sin", "x", "a"),
             node("Mul", "a t", "y")]  # fmt: skip
    built = model(nodes, {"x": [300, 500], "z": [3]}, {"y": None, "v": None})
    networks = [network_of(read(built), threads) for threads in (2, 1)]
    words = re.findall(r"barrier|master|small_s\d(?=\(m\);)", networks[0].code.files["small.c"])
    stages = [word for word in words if word.startswith("small")]
    assert words.count("master") == len(stages) - 1
    assert words.index("barrier") < words.index(stages[-1])
    inputs = {"x": np.ones((300, 500), np.float32), "z": np.arange(3, dtype=np.float32)}
    assert same(networks[0], networks[1], inputs)


def test_threads_that_sleep_are_not_woken_for_little() -> None:
    target, little = detect("portable"), 10.0
    costs = StageCosts(assume_rates(target), target)
    long = costs.machine.coefficient("spin_us") + 1
    serial, shared = [little, long, little], [little / 2, 2 * long, little / 2]
    first = first_alone(serial, shared, frozenset(), 0.0, costs)
    assert first == ({1, 2}, little / 2, long + little)
    rested = first_alone(serial, shared, frozenset(), long, costs)
    assert rested == ({0, 1, 2}, 0.0, 2 * long + 2 * little)


def all_code(network: Network) -> str:
    return "".join(network.code.files.values())
