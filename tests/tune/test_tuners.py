"""Tuners with a stand-in timer: a seed proposes the same again, a killed one goes on, it learns."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from polysci import cli
from polysci.errors import SpecError, UnsupportedError
from polysci.tune import TunerOptions
from polysci.tune.tuners import (
    TUNERS,
    Decision,
    Genome,
    Outcome,
    Space,
    TunerState,
    drive,
    options_of,
    state_of,
)
from polysci.tune.tuners.state import FOLDER
from tests.support.command import started

PARTS, WAYS = 12, 6
KERNEL = "brgemm_avx2_f32_6x16"


def space_of(parts: int = PARTS, ways: int = WAYS) -> Space:
    """A program of layers that may each be computed in some ways."""
    decisions = [Decision.of(f"part {part}", [f"way {way}" for way in range(ways)])
                 for part in range(parts)]  # fmt: skip
    return Space(tuple(decisions), ((0,) * parts,))


def time_of(genome: Genome) -> Outcome:
    """Every part has another best way; one way of the first part crashes."""
    if genome[0] == 1:
        return Outcome(None, "SIGSEGV")
    return Outcome(1.0 + sum((way - 5 * at % WAYS) ** 2 for at, way in enumerate(genome)) / 100)


def measure(genomes: Sequence[Genome]) -> Iterator[tuple[Genome, Outcome]]:
    for genome in genomes:
        yield genome, time_of(genome)


def run(path: Path, options: TunerOptions, most: int | None = None) -> TunerState:
    """A tuner from the file, as far as it goes, or for so many new individuals."""
    state = state_of(path, options, space_of)
    left = most if most is not None else options.budget + 1

    def some(genomes: Sequence[Genome]) -> Iterator[tuple[Genome, Outcome]]:
        nonlocal left
        for pair in islice(measure(genomes), left):
            left -= 1
            yield pair
        if not left:
            raise KeyboardInterrupt

    try:
        drive(state, some, lambda: False)
    except KeyboardInterrupt:
        assert most is not None
    return state


@pytest.mark.sampled
@pytest.mark.parametrize("name", TUNERS)
def test_the_same_seed_proposes_the_same(name: str, tmp_path: Path) -> None:
    sequences = [
        list(run(tmp_path / f"{number}", TunerOptions(name, 12, 3, elites=3, seed=seed)).outcomes)
        for number, seed in enumerate((4, 4, 5))
    ]
    assert sequences[0] == sequences[1] != sequences[2]
    assert len(sequences[0]) == len(set(sequences[0])) <= 36


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", TUNERS)
@pytest.mark.parametrize("stop", [1, 11, 20])
def test_one_that_was_ended_goes_on_as_if_it_was_not(name: str, stop: int, tmp_path: Path) -> None:
    options = TunerOptions(name, 12, 3, elites=3)
    whole = run(tmp_path / "whole", options)
    run(tmp_path / "part", options, stop)
    assert len(TunerState.load(tmp_path / "part", options).outcomes) == stop  # type: ignore[union-attr]
    assert run(tmp_path / "part", options).outcomes == whole.outcomes
    texts = [(tmp_path / name).read_text().splitlines()[1:] for name in ("part", "whole")]
    assert texts[0] == texts[1] and len(texts[0]) == len(whole.outcomes)


SCRIPT = """
import sys, time
from pathlib import Path
from polysci.tune.tuners import drive, state_of
from tests.tune.test_tuners import OPTIONS, measure, space_of

def slow(genomes):
    for pair in measure(genomes):
        time.sleep(0.005)
        yield pair
        print("measured", flush=True)

drive(state_of(Path(sys.argv[1]), OPTIONS, space_of), slow, lambda: False)
"""
OPTIONS = TunerOptions("genetic", 20, 4, elites=2, seed=1)


@pytest.mark.exhaustive
def test_a_killed_process_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with started(sys.executable, "-c", SCRIPT, str(path)) as process:
        assert process.stdout is not None
        for _ in range(30):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
    state = TunerState.load(path, OPTIONS)
    assert state is not None and len(state.outcomes) >= 30
    assert run(path, OPTIONS).outcomes == run(tmp_path / "whole", OPTIONS).outcomes


@pytest.mark.exhaustive
def test_generations_improve_more_than_chance(tmp_path: Path) -> None:
    shares = list[float]()
    for seed in range(3):
        genetic, chance = (
            run(tmp_path / f"{name}{seed}", TunerOptions(name, 20, 12, elites=2, seed=seed)).best
            for name in ("genetic", "random")
        )
        assert genetic is not None and chance is not None
        shares.append(genetic / chance)
    assert max(shares) < 1 and np.mean(shares) < 0.9, shares


def test_a_state_of_which_nothing_survived_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state"
    state = TunerState(path, OPTIONS, space_of())
    for way in range(3):
        state.note((way,) * PARTS, Outcome(None, f"disk {way % 2} is full"))
    assert state.faults == ["disk 0 is full", "disk 1 is full"]
    assert run(path, OPTIONS).outcomes == run(tmp_path / "whole", OPTIONS).outcomes
    assert caplog.text.count("starts anew: nothing that it measured survived") == 1
    assert TunerState.load(path, OPTIONS).outcomes == run(path, OPTIONS).outcomes  # type: ignore[union-attr]


def test_elites_live_on_and_what_crashed_does_not(tmp_path: Path) -> None:
    options = TunerOptions("genetic", 30, 2, elites=5)
    proposals = TUNERS["genetic"](space_of(), options)
    first = next(proposals)
    state = TunerState(tmp_path / "state", options, space_of(), dict(measure(first)))
    second = proposals.send([state.seconds(genome) for genome in first])
    assert [*second[:5]] == state.ranked[:5]
    crashed = [genome for genome in second if time_of(genome).seconds is None]
    assert len(crashed) < len([genome for genome in first if time_of(genome).seconds is None])


def test_nothing_is_measured_once_it_is_enough(tmp_path: Path) -> None:
    state = state_of(tmp_path / "state", OPTIONS, space_of)
    drive(state, measure, lambda: state.best is not None and state.best < 2)
    assert 0 < len(state.outcomes) <= 4


def test_a_space_of_few_ends(tmp_path: Path) -> None:
    for name in TUNERS:
        few = Space((Decision.of("part", ["way 0", "way 2"]),), ((0,),))
        state = TunerState(tmp_path / name, TunerOptions(name, 8, 3, elites=1), few)
        drive(state, measure, lambda: False)
        assert set(state.outcomes) == {(0,), (1,)}


def test_a_state_is_text_and_says_what_is_best(tmp_path: Path) -> None:
    state = run(tmp_path / "state", OPTIONS, 5)
    assert str(state).startswith("genetic: 5 of at most 80 individuals measured; ")
    assert "part 11: way" in str(state)
    head, *lines = (tmp_path / "state").read_text().splitlines()
    assert '"population": 20' in head and '["part 0", ["way 0", ' in head and len(lines) == 5


@pytest.mark.parametrize("damage", [b"", b"no JSON", b"[]", b"{}\n[1]", b"\x8f\xff\0" * 99])
def test_a_damaged_state_is_none(
    damage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state"
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert TunerState.load(path, OPTIONS) is None
    assert "the tuner starts anew" in caplog.text
    run(path, OPTIONS, 3)
    state = TunerState.load(path, OPTIONS)
    assert state is not None and len(state.outcomes) == 3


@pytest.mark.parametrize(
    ("before", "after"), [("way 3", "way 4"), ('"seeds": [', '"seeds": [[1], '), ("seed", "seeds")]
)
def test_a_damaged_space_is_none(before: str, after: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    run(path, OPTIONS, 3)
    head, *lines = path.read_text().split("\n")
    assert before in head
    path.write_text("\n".join([head.replace(before, after, 1), *lines]))
    assert TunerState.load(path, OPTIONS) is None
    assert run(path, OPTIONS).outcomes == run(tmp_path / "whole", OPTIONS).outcomes


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    "words",
    ['NaN, ""', 'Infinity, ""', '-1.0, ""', '"fast", ""', 'true, ""', '1e-30, ""', "null, [1]", "",
     "1.0"],
)  # fmt: skip
def test_an_outcome_of_nonsense_is_measured_again(words: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    run(path, OPTIONS, 5)
    head, first, *lines = path.read_text().split("\n")
    genome = first[: first.index("]") + 1]
    path.write_text("\n".join([head, f"{genome}, {words}]", *lines]))
    state = TunerState.load(path, OPTIONS)
    assert state is not None and len(state.outcomes) == 4
    assert run(path, OPTIONS).outcomes == run(tmp_path / "whole", OPTIONS).outcomes


def test_states_are_listed_the_last_one_first(
    fresh_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fresh_cache / FOLDER
    assert cli.main(["wisdom", "tuners"]) == 0 and capsys.readouterr().out == ""
    folder.mkdir()
    for at, name in enumerate(("first", "second", "third")):
        run(folder / f"{name}.jsonl", OPTIONS, 5)
        os.utime(folder / f"{name}.jsonl", (at, at))
    (folder / "second.jsonl").write_text("damage")
    assert cli.main(["wisdom", "tuners"]) == 0
    told = capsys.readouterr()
    assert told.out.index("third.jsonl") < told.out.index("first.jsonl")
    assert told.out.count("genetic: 5 of at most 80 individuals measured; ") == 2
    assert "second.jsonl: not read: " in told.err and "third" not in told.err
    assert cli.main(["wisdom", "tuners", "--json"]) == 0
    last, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert last["measured"] == 5 and last["limit"] == 80 and last["best"]["part 11"]
    assert last["options"] == OPTIONS.members() and last["seconds"] > 0


def test_an_outcome_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "state"
    run(path, OPTIONS, 5)
    whole = path.read_text()
    path.write_text(whole[:-3])
    state = TunerState.load(path, OPTIONS)
    assert state is not None and len(state.outcomes) == 4
    assert run(path, OPTIONS).outcomes == run(tmp_path / "whole", OPTIONS).outcomes
    assert whole.splitlines()[-1] in path.read_text().splitlines()


def test_a_state_of_another_program_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path / "other", OPTIONS, 3)
    (tmp_path / "other").rename(tmp_path / "state")
    with caplog.at_level(logging.WARNING):
        assert TunerState.load(tmp_path / "state", OPTIONS) is None
    assert "the tuner starts anew: it was written for another program" in caplog.text


def test_two_at_a_time_keep_what_either_measures(tmp_path: Path) -> None:
    path = tmp_path / "state"
    first, second = (TunerState(path, OPTIONS, space_of()) for _ in range(2))
    for at, state in enumerate([first, second, first, second]):
        genome = (at,) + (0,) * (PARTS - 1)
        state.note(genome, time_of(genome))
    state = TunerState.load(path, OPTIONS)
    assert state is not None and state.outcomes == first.outcomes | second.outcomes


def test_a_state_of_a_larger_space_is_none(tmp_path: Path) -> None:
    state = run(tmp_path / "state", OPTIONS, 3)
    text = state.path.read_text().replace(', "way 5"]', "]")
    state.path.write_text(text.replace("[[0, 0,", "[[99, 0,"))
    assert TunerState.load(state.path, OPTIONS) is None


def test_a_state_that_cannot_be_written_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        assert run(tmp_path / "file" / "state", OPTIONS, 3).best
    assert caplog.text.count("the tuner's state is not kept") == 1


def test_other_options_are_another_state(tmp_path: Path) -> None:
    run(tmp_path / "state", OPTIONS, 3)
    assert TunerState.load(tmp_path / "state", TunerOptions("genetic", 20, 4, elites=2)) is None


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"name": "genetics"}, r"tuner 'genetics': expected one of genetic, bayesian, random"),
        ({"population": 1}, "population=1: a tuner has at least 2"),
        ({"generations": 0}, "generations=0"),
        ({"elites": 100}, "elites=100: expected fewer than population"),
        ({"mutation": 1.5}, r"mutation=1.5: expected a chance from 0 to 1"),
        ({"crossover": float("nan")}, "crossover=nan"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_settings_out_of_range(members: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        TunerOptions(**members)  # type: ignore[arg-type]


def test_settings_of_another_type() -> None:
    with pytest.raises(TypeError, match="population"):
        TunerOptions(population=True)
    with pytest.raises(TypeError, match="tuner: expected str or TunerOptions"):
        options_of(3)
    assert options_of(None) is None and options_of("random") == TunerOptions("random")


def test_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'polysci\[tuners\]'"):
        next(TUNERS["bayesian"](space_of(), TunerOptions("bayesian")))


def test_schedules_are_told_apart_by_properties() -> None:
    texts = [
        f"p:8 q:6 > {KERNEL}", f"p:8 k:32 q:6 > {KERNEL}", f"p:8 pack(A) q:6 > {KERNEL}",
        f"p:8* q:6 > {KERNEL}", f"p:8 q:4 > {KERNEL.replace('6x16', '4x16')}",
    ]  # fmt: skip
    decision = Decision.of("layer", texts)
    assert len({row.tobytes() for row in decision.genes}) == len(texts)
    assert [decision.nearest(row) for row in decision.genes] == [*range(len(texts))]
    # A schedule for other sizes has its own steps; packing and order decide what is like it.
    assert decision.nearest_to(f"p:16 pack(A) q:6 > {KERNEL}") == 2
    assert decision.nearest_to(f"p:2* q:6 > {KERNEL}") == 3
    # Nothing is like a record with a directive or a kernel of another version.
    assert decision.nearest_to(f"hilbert(C) p:2* q:6 > {KERNEL}") == 0
    assert decision.nearest_to("p:2* q:6 > brgemm_avx2_f32_99x16") == 0
