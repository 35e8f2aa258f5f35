"""Does the lower bound of groups of operators ever prune the fastest way to divide a network?

Of each small network every division into row fusions is generated, compiled and timed, those too
that the search prunes by a bound, refuses by its prediction, or does not look at because all
tensors stay in L2. All divisions run in turns, each in two contexts: what the same program differs
from itself by is the noise. Seconds are the least of all rounds: those of the processor for a
division on this CPU, those of the clock for single stages, and those of its kernels on a device.

The first table has a row a network and place: runs of neighbours, how many were pruned, refused or
stay in L2, the divisions that were timed, the fastest of all, the fastest that holds no pruned run,
the noise, and the largest bound of a run over its measured seconds. The script fails where a
division with a pruned run is faster than all others by more than the noise, or where a bound is
above what was measured. The second table has a row a run of neighbours: bound, predicted and
measured seconds together and apart. fusion-bounds-divisions.csv has the seconds of each division.

Takes a minute a network at first, then seconds, since libraries are kept. Results of other networks
and places stay in the files, so that a run may take some only:

  python experiments/fusion_bounds.py --place host "conv 3 3" "conv pool"
"""

from __future__ import annotations

import csv
import fcntl
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import script
from fused_groups import GROUPS

from polysci.cli.layers import positive
from polysci.errors import CheckError, SpecError
from polysci.graph.graph import Graph
from polysci.network.build import runner_of
from polysci.network.options import CompileOptions, PlanOptions
from polysci.network.prepare import (
    PreparedNetwork,
    fuse_with_schedules,
    generate_code,
    graph_of,
    prepare_with,
    search_schedules,
    setting_of,
)
from polysci.network.runner import Runner, inputs_of
from polysci.program.passes.row import FusionGroup
from polysci.program.passes.row_fusion import FusionVerdict, fuse_rows
from polysci.program.stages import RowFusion, Stage
from polysci.space.schedule import Schedule
from polysci.target.target import HOST
from polysci.text.names import suggest
from polysci.text.tables import columns

PLACES = ("host", "opencl:0")
ROUNDS = 15
SAMPLE_S = 4e-3
PRUNED, REFUSED, IN_CACHE, POSSIBLE = "pruned", "refused", "in L2", "possible"
Inside = tuple[str, ...]  # the tensors within a run of neighbours
Division = frozenset[Inside]  # those of its row fusions


@dataclass(frozen=True, slots=True)
class Subject:
    """A network whose layers have schedules, on a place, and its runs of neighbours.

    ``considered`` are those of the search, which prefers the division ``chosen``; ``runs`` are all.
    """

    prepared: PreparedNetwork
    plan: PlanOptions
    schedules: Mapping[str, Schedule]
    seconds: Mapping[str, float]
    considered: Mapping[Inside, FusionGroup]
    runs: Mapping[Inside, FusionGroup]
    chosen: Division

    @classmethod
    def of(cls, name: str, place: str) -> Subject:
        """Prepare a network by its name in GROUPS; nothing is measured."""
        options = CompileOptions("estimate", device=place)
        model, plan = GROUPS[name](), options.plan()
        graph = model if isinstance(model, Graph) else graph_of(model)
        prepared = prepare_with(graph, options)
        results = search_schedules(prepared, plan)
        schedules = {key: result.schedule for key, result in results.items()}
        seconds = {key: result.predicted for key, result in results.items()}
        setting = setting_of(schedules, seconds, plan)

        class EveryRun(setting.fuser):  # type: ignore[name-defined, misc]
            """Considers runs too whose tensors stay in L2."""

            def saves(self, run: Sequence[Any]) -> bool:
                return True

        space, every = (
            fuse_rows(prepared.placed, replace(setting, fuser=fuser))
            for fuser in (setting.fuser, EveryRun)
        )
        chosen = division_of(space.divide().program.stages)
        return cls(prepared, plan, schedules, seconds, space.groups, every.groups, chosen)

    def verdict(self, inside: Inside) -> str:
        """Return what the search says of a run."""
        run = self.considered.get(inside)
        if run is None:
            return IN_CACHE
        return PRUNED if run.pruned else REFUSED if run.refusal else POSSIBLE

    def divide(self, tensors: frozenset[str]) -> PreparedNetwork:
        """Return the network where exactly these tensors are to lie inside row fusions."""
        names = {name for inside in self.runs for name in inside}
        decided = {name: FusionVerdict("" if name in tensors else "apart") for name in names}
        return fuse_with_schedules(self.prepared, self.schedules, self.seconds, self.plan, decided)

    def divisions(self) -> dict[Division, PreparedNetwork]:
        """Return all divisions that have code, that into stages by themselves first."""
        divided = dict[Division, PreparedNetwork]()
        for tensors in unions([*map(frozenset, self.runs)]):
            network = self.divide(tensors)
            inside = division_of(network.placed.program.stages)
            if inside <= self.runs.keys():
                divided.setdefault(inside, network)
        return divided


def division_of(stages: Sequence[Stage]) -> Division:
    """Return the tensors within the row fusions of stages."""
    return frozenset(its.internal for its in stages if isinstance(its, RowFusion))


def unions(sets: Sequence[frozenset[str]]) -> list[frozenset[str]]:
    """Return the unions of all choices among sets, the smallest first."""
    reached = {frozenset[str]()}
    for chosen in sets:
        reached |= {its | chosen for its in reached}
    return sorted(reached, key=lambda its: (len(its), sorted(its)))


@dataclass(slots=True)
class Context:
    """A context of a program; the seconds of its fastest run, and of each of its stages.

    ``clock`` is that of the processor's seconds; a device, which another process may run, tells
    those of its kernels.
    """

    run: Callable[[], object]
    marks: Callable[[], list[float]]
    clock: Callable[[], float] | None = time.process_time
    seconds: float = float("inf")
    stages: list[float] = field(default_factory=list)

    def sample(self) -> None:
        """Take another sample: some runs in a row."""
        clock, runs = self.clock or time.perf_counter, 0
        start = clock()
        while (spent := clock() - start) < SAMPLE_S or not runs:
            self.run()
            runs += 1
            times = [end - begin for begin, end in pairwise(self.marks())]
            self.stages = [*map(min, self.stages or times, times)]
        self.seconds = min(self.seconds, spent / runs) if self.clock else sum(self.stages)


@dataclass(frozen=True, slots=True)
class Trial:
    """A division that was built, and two contexts of its program."""

    division: Division
    stages: tuple[Stage, ...]
    runner: Runner
    contexts: tuple[Context, Context]

    @classmethod
    def of(cls, subject: Subject, division: Division, network: PreparedNetwork) -> Trial:
        """Generate the code of a division, build and load it."""
        stages = network.placed.program.stages
        code = generate_code(
            network.placed, subject.schedules, "divided", subject.plan, timed=True
        )  # fmt: skip
        runner = runner_of(code)
        arrays = inputs_of(runner.inputs)
        inputs = [arrays[port.name] for port in runner.inputs]

        def context() -> Context:
            held = runner.context()
            run = runner.bind(held, inputs, runner.results())
            clock = time.process_time if subject.plan.target.backend == HOST else None
            return Context(run, lambda: runner.network.stage_times(held, len(stages)), clock)

        return cls(division, stages, runner, (context(), context()))

    @property
    def seconds(self) -> float:
        """The least seconds of both contexts."""
        return min(its.seconds for its in self.contexts)

    @property
    def noise(self) -> float:
        """What the program differs from itself by, over its seconds."""
        return max(its.seconds for its in self.contexts) / self.seconds - 1

    def stage_seconds(self) -> Iterator[tuple[Stage, float]]:
        """Yield each stage and its least seconds."""
        yield from zip(self.stages, map(min, *(its.stages for its in self.contexts)), strict=True)


@dataclass(frozen=True, slots=True)
class Proof:
    """All divisions of a subject, timed; the first one is that into stages by themselves."""

    subject: Subject
    trials: Sequence[Trial]

    @property
    def noise(self) -> float:
        return max(its.noise for its in self.trials)

    def holds_pruned(self, trial: Trial) -> bool:
        """Return whether a run of a division was pruned."""
        return any(self.subject.verdict(its) == PRUNED for its in trial.division)

    def together(self, inside: Inside) -> float | None:
        """Return the least seconds of a run as a row fusion; None where it has no code."""
        seconds = [
            taken for trial in self.trials for stage, taken in trial.stage_seconds()
            if isinstance(stage, RowFusion) and stage.internal == inside
        ]  # fmt: skip
        return min(seconds, default=None)

    def apart(self, inside: Inside) -> float:
        """Return the least seconds of the members of a run by themselves."""
        ends = {
            stage.output for trial in self.trials for stage in trial.stages
            if isinstance(stage, RowFusion) and stage.internal == inside
        }  # fmt: skip
        names = {*inside, *ends}
        return sum(
            taken for stage, taken in self.trials[0].stage_seconds() if names & {*stage.outputs}
        )

    def wins_pruned(self) -> bool:
        """Return whether a division with a pruned run is the fastest by more than the noise."""
        pruned = [its.seconds for its in self.trials if self.holds_pruned(its)]
        kept = [its.seconds for its in self.trials if not self.holds_pruned(its)]
        return bool(pruned) and min(pruned) * (1 + self.noise) < min(kept)

    def ratios(self) -> list[float]:
        """Return the bound of each run over its measured seconds."""
        measured = ((its.bound, self.together(inside)) for inside, its in self.subject.runs.items())
        return [bound / seconds for bound, seconds in measured if seconds]

    def summary(self, name: str, place: str) -> dict[str, Any]:
        """Return the row of the first table."""
        verdicts = [*map(self.subject.verdict, self.subject.runs)]
        fastest = min(self.trials, key=lambda its: its.seconds)
        kept = min(its.seconds for its in self.trials if not self.holds_pruned(its))
        chosen = (its.seconds for its in self.trials if its.division == self.subject.chosen)
        return {
            "network": name, "place": place, "runs": len(verdicts),
            PRUNED: verdicts.count(PRUNED), REFUSED: verdicts.count(REFUSED),
            IN_CACHE: verdicts.count(IN_CACHE), "divisions": len(self.trials),
            "fastest us": micro(fastest.seconds), "without pruned us": micro(kept),
            "chosen us": micro(next(chosen, None)), "apart us": micro(self.trials[0].seconds),
            "noise": f"{self.noise:.3f}",
            "largest bound": f"{max(self.ratios(), default=0.0):.3f}",
            "pruned wins": self.wins_pruned(),
        }  # fmt: skip

    def rows(self, name: str, place: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of the second table."""
        for inside, run in self.subject.runs.items():
            measured = self.together(inside)
            yield {
                "network": name, "place": place, "run": " > ".join(run.members),
                "verdict": self.subject.verdict(inside), "bound us": micro(run.bound),
                "predicted us": micro(run.together), "measured us": micro(measured),
                "apart predicted us": micro(run.apart),
                "apart us": micro(self.apart(inside) if measured else None),
            }  # fmt: skip

    def divisions(self, name: str, place: str) -> Iterator[dict[str, Any]]:
        """Yield a row a division, with the seconds of both contexts."""
        for trial in self.trials:
            first, second = (micro(its.seconds) for its in trial.contexts)
            yield {
                "network": name, "place": place,
                "inside": "; ".join(", ".join(its) for its in sorted(trial.division)),
                "us": first, "again us": second, "pruned run": self.holds_pruned(trial),
            }  # fmt: skip


def micro(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.1f}"


@contextmanager
def locked(path: Path | None) -> Iterator[None]:
    """Hold the lock of a file, if any."""
    if path is None:
        yield
        return
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prove(subject: Subject, rounds: int, lock: Path | None = None) -> Proof:
    """Build all divisions of a subject, and time them in turns."""
    trials = [Trial.of(subject, *its) for its in subject.divisions().items()]
    with locked(lock):
        for _ in range(rounds):
            for trial in trials:
                for context in trial.contexts:
                    context.sample()
    return Proof(subject, trials)


def options() -> ArgumentParser:
    parser = script.options(__doc__, sample=False)
    parser.add_argument(
        "--place", action="append", metavar="NAME", help=f"({' and '.join(PLACES)})"
    )  # fmt: skip
    parser.add_argument(
        "--rounds", type=positive, default=ROUNDS, metavar="N", help=f"({ROUNDS})"
    )  # fmt: skip
    parser.add_argument(
        "--lock", type=Path, metavar="FILE", help="hold the lock of FILE while anything is timed"
    )
    parser.add_argument("networks", nargs="*", metavar="NAME", help=f"({', '.join(GROUPS)})")
    return parser


def work(arguments: Namespace) -> bool:
    """Build, time, write, print; False if Ctrl-C cut it short. Raises CheckError."""
    names = arguments.networks or [*GROUPS][: 1 if arguments.quick else None]
    if other := [name for name in names if name not in GROUPS]:
        raise SpecError(f"network {other[0]!r}: no such network{suggest(other[0], [*GROUPS])}")
    tasks = [(name, place) for place in arguments.place or PLACES for name in names]

    stem = script.stem(arguments, "fusion-bounds")

    def results() -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        for name, place in tasks:
            proof = prove(Subject.of(name, place), arguments.rounds, arguments.lock)
            summary, rows = proof.summary(name, place), [*proof.rows(name, place)]
            add_rows(stem.with_suffix(".csv"), [summary])
            add_rows(stem.with_name(f"{stem.name}-divisions.csv"), [*proof.divisions(name, place)])
            if rows:
                add_rows(stem.with_name(f"{stem.name}-runs.csv"), rows)
            yield summary, rows

    done, whole = script.kept(results(), "divisions", len(tasks))
    for table in ([summary for summary, _ in done], [row for _, rows in done for row in rows]):
        if table:
            print(columns([(*table[0],), *(tuple(map(str, row.values())) for row in table)]), "\n")
    for summary, _ in done:
        if summary["pruned wins"]:
            raise CheckError(f"{summary['network']}: a division with a pruned run is the fastest")
        if float(summary["largest bound"]) > 1:
            raise CheckError(f"{summary['network']}: a bound is above what was measured")
    return whole


def add_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows in place of those that a file has of the same network and place."""
    before = list[script.Row]()
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as file:
            before = [*csv.DictReader(file)]
    same = (rows[0]["network"], rows[0]["place"])
    kept = [row for row in before if (row["network"], row["place"]) != same]
    script.write_csv(path, [*kept, *rows])


if __name__ == "__main__":
    sys.exit(script.run(work, options().parse_args()))
