"""Tuners of whole networks: every individual is right, a crash falls out, a killed one goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polysci
from polysci.errors import CheckError
from polysci.frontends.onnx import reference
from polysci.measure.samples import Samples, samples_of
from polysci.network import tuning
from polysci.network.build import runner_of
from polysci.network.code import Code
from polysci.network.options import PlanOptions
from polysci.network.prepare import prepare, search_schedules
from polysci.network.tuning import NetworkTuner, retune
from polysci.program.stages import RowFusion, members_of
from polysci.target.host import detect
from polysci.tune import TunerOptions
from polysci.tune.tuners import Genome, Space, TunerState
from polysci.tune.wisdom import Wisdom
from tests.program.passes.test_row_fusion import inverted_bottleneck
from tests.support.flags import QUICK
from tests.support.networks import bounds, fault, given
from tests.support.rates import fuse_rows_everywhere

FEW = TunerOptions("genetic", 6, 2, elites=1)
GRAPH = inverted_bottleneck(13, 1)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tensors of this small network are beyond the cache, and may lie in row fusions."""
    fuse_rows_everywhere(monkeypatch)
    monkeypatch.setattr(tuning, "state_path", lambda _: tmp_path / "state.jsonl")
    return tmp_path / "state.jsonl"


def tuner_of(tmp_path: Path, threads: int = 1) -> NetworkTuner:
    target = detect("portable")
    options = PlanOptions("estimate", threads, "f32", "direct", target)
    prepared, wisdom = prepare(GRAPH, target=target), Wisdom(tmp_path / "wisdom.sqlite")
    results = search_schedules(prepared, options, wisdom=wisdom)
    _, chosen = retune(prepared, results, options, "net", wisdom)
    return NetworkTuner(prepared, results, chosen, options, "net", wisdom)


def corners(space: Space, count: int) -> list[Genome]:
    """The seed, all otherwise, and random individuals."""
    rng = np.random.default_rng(1)
    every = tuple(len(decision.options) - 1 for decision in space.decisions)
    return [*space.seeds, every, *(space.genome(rng) for _ in range(count))]


@pytest.mark.exhaustive
def test_all_individuals_compute_the_same(tmp_path: Path) -> None:
    tuner, inputs = tuner_of(tmp_path), given(GRAPH)
    exact, space = reference.run(GRAPH, inputs), tuner._space()
    limits = bounds(GRAPH, exact, "f32")
    kinds = {decision.name.partition(" ")[0] for decision in space.decisions}
    assert kinds == {"layer", "apart", "turned", "no_rows"}
    texts = set[str]()
    for genome in corners(space, 3):
        code = tuner.network_of(space.texts(genome)).code
        texts |= {code.files["net.c"]}
        runner = runner_of(code, QUICK)
        assert not fault(GRAPH, Plain(runner), inputs, exact, limits), genome  # type: ignore[arg-type]
    assert len(texts) > 3


class Plain:
    """A runner that is called by names."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner

    def __call__(self, inputs: Any) -> dict[str, np.ndarray]:
        arrays = self.runner([inputs[port.name] for port in self.runner.inputs])
        return dict(zip([port.name for port in self.runner.outputs], arrays, strict=True))


@pytest.mark.exhaustive
def test_choices_change_what_they_name(tmp_path: Path) -> None:
    tuner = tuner_of(tmp_path)
    space = tuner._space()
    (seed,) = space.seeds
    names = [decision.name for decision in space.decisions]

    def stages_with(kind: str) -> tuple[Any, ...]:
        on = tuple(int(name.startswith(kind)) for name in names)
        return tuner.network_of(space.texts(on)).prepared.program.stages

    before = tuner.network_of(space.texts(seed)).prepared.program.stages
    assert any(isinstance(stage, RowFusion) for stage in before)
    assert not any(isinstance(stage, RowFusion) for stage in stages_with("no_rows "))
    assert len(parts(stages_with("apart "))) > len(parts(before))


def parts(stages: tuple[Any, ...]) -> list[Any]:
    """All stages, those inside row fusions one by one."""
    return [part for stage in stages for part in members_of(stage)]


def times(built: Sequence[tuple[Code, Path]], *_: int) -> list[Samples]:
    """A stand-in timer: seconds from the code's text."""
    return [samples_of([1 + sum(code.files["net.c"].encode()) % 997 / 997] * 3)
            for code, _ in built]  # fmt: skip


@pytest.mark.exhaustive
def test_the_fastest_wins_and_a_second_run_measures_nothing(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "library_of", lambda code: code.files["net.c"])
    monkeypatch.setattr(tuning, "time_networks", times)
    monkeypatch.setattr(NetworkTuner, "_fault", lambda *_: "")
    first = tuner_of(tmp_path).run(FEW)
    kept = TunerState.load(state, FEW)
    assert kept is not None and 6 <= len(kept.outcomes) <= FEW.budget
    assert times([(first.code, Path())])[0].median == pytest.approx(kept.best)
    text = state.read_text()
    assert tuner_of(tmp_path).run(FEW).code.files == first.code.files
    assert state.read_text() == text


@pytest.mark.exhaustive
def test_a_layer_that_is_wrong_does_not_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "library_of", lambda code: code.files["net.c"])
    monkeypatch.setattr(tuning, "time_networks", times)
    told: list[str] = []

    def wrong(_: NetworkTuner, network: Any) -> str:
        told.append(network.code.files["net.c"])
        return "wrong" if len(told) < 3 else ""

    monkeypatch.setattr(NetworkTuner, "_fault", wrong)
    won = tuner_of(tmp_path).run(FEW)
    assert len(told) == 3 and won.code.files["net.c"] == told[2] not in told[:2]
    told[:] = []
    monkeypatch.setattr(NetworkTuner, "_fault", lambda *_: "wrong")
    with pytest.raises(CheckError, match=r"no individual of the tuner survived: wrong; wrong"):
        tuner_of(tmp_path).run(FEW)


@pytest.mark.exhaustive
def test_one_that_crashes_falls_out(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def crash(built: Sequence[tuple[Code, Path]], *_: int) -> list[Samples]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise CheckError("ended by SIGSEGV")
        return times(built)

    monkeypatch.setattr(tuning, "library_of", lambda code: code.files["net.c"])
    monkeypatch.setattr(tuning, "time_networks", crash)
    monkeypatch.setattr(NetworkTuner, "_fault", lambda *_: "")
    tuner_of(tmp_path).run(FEW)
    kept = TunerState.load(state, FEW)
    assert kept is not None
    assert [its.fault for its in kept.outcomes.values()].count("ended by SIGSEGV") == 1


@pytest.mark.exhaustive
def test_why_none_was_timed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[Samples]:
        raise CheckError("no process starts")

    monkeypatch.setattr(tuning, "library_of", lambda code: code.files["net.c"])
    monkeypatch.setattr(tuning, "time_networks", refuse)
    with pytest.raises(
        CheckError, match=r"no individual of the tuner survived: no process starts$"
    ):
        tuner_of(tmp_path).run(FEW)


@pytest.mark.exhaustive
def test_it_ends_where_the_bound_of_all_is_reached(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "library_of", lambda code: code.files["net.c"])
    monkeypatch.setattr(tuning, "time_networks", times)
    monkeypatch.setattr(NetworkTuner, "_fault", lambda *_: "")
    monkeypatch.setattr(NetworkTuner, "_lower_bound", lambda *_: 3.0)
    tuner_of(tmp_path).run(FEW)
    kept = TunerState.load(state, FEW)
    assert kept is not None and len(kept.outcomes) <= 4


@pytest.mark.exhaustive
def test_a_network_is_timed_in_a_process_of_its_own(tmp_path: Path, state: Path) -> None:
    """From the words of a model to a callable."""
    network = polysci.compile_network(
        "mlp:4x16x8 act=relu", "estimate", isa="portable", wisdom=Wisdom(tmp_path / "wisdom"),
        tuner=TunerOptions("genetic", 3, 1, elites=0),
    )  # fmt: skip
    plain = polysci.compile_network("mlp:4x16x8 act=relu", "estimate", isa="portable")
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    assert np.allclose(network(x), plain(x), rtol=1e-5, atol=1e-6)
    _, *kept = state.read_text().splitlines()
    assert len(kept) == 3 and all(line.endswith('""]') for line in kept)


@pytest.mark.exhaustive
def test_the_state_is_the_same_networks_in_every_process() -> None:
    code = (
        "from tests.network.test_network_tuner import tuner_of, FEW\n"
        "from pathlib import Path; import tempfile\n"
        "print(tuner_of(Path(tempfile.mkdtemp()))._path(FEW).name)"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(names) == 1
