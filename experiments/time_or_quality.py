"""What does a longer search buy? Seconds of search against the speed of what it finds.

For a handful of layers: `estimate` (the model's first choice, nothing run), the best of the model's
first 1, 3, 5 and 10, each compiled, checked and timed, `patient`, and `exhaustive` until --limit.
Every search starts with an empty cache: nothing is compiled or recorded before, only the machine is
calibrated and the compiler's header prepared. At the end the winners of a layer are timed again, in
turns, in one run: those are the speeds shown, so that no search profits from a lucky sample.

  search   wall time, from the problem to the chosen schedule; the ranking of a large space counts,
           and --limit is looked at only after it
  tried    schedules that were run
  of best  best time among the winners over this one's

Beside them stand times that others published, for their machines; see PUBLISHED. Times things:
wants a quiet machine, and some two hours for the five default layers (--limit 60: half an hour).
Writes time_or_quality.csv, after every layer, and time_or_quality.png.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import plots
import script

from polysci import tune
from polysci.cli.layers import positive, say, seconds, threads_of, title
from polysci.cost.shortlist import choices
from polysci.errors import CheckError, PolysciError
from polysci.measure.bench import Bench
from polysci.measure.trials import build_trials, time_trials
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.text.tables import columns, time_text
from polysci.tune.calibrate import machine_of, machine_path
from polysci.tune.wisdom import Wisdom

LAYERS = ("res2a_branch2b", "res3a_branch2b", "res4a_branch2a", "res5a_branch2b", "res5b_branch2a")
TINY = "mb1ic16ih4oc16kh1"  # prepares the compiler's header in an empty cache
SAMPLES = 15


@dataclass(frozen=True, slots=True)
class Published:
    """Seconds that another search takes, from ``least`` to ``most``, for ``what``."""

    system: str
    least: float
    most: float
    what: str
    source: str


# As published, on other machines than ours: an order of magnitude to stand beside.
PUBLISHED = (
    Published("AutoTVM", 1358, 3990, "a layer of ResNet-18, 252 to 784 trials",
              "TVM, tutorial tune_relay_x86, sample output"),
    Published("AutoTVM", 39250, 39250, "all of ResNet-50, Intel CPU",
              "quoted by others from Ansor, OSDI 2020, table 3"),
    Published("Ansor", 4540, 4540, "all of ResNet-50, Intel CPU, to AutoTVM's speed",
              "quoted by others from Ansor, OSDI 2020, table 3"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """What a search chose, and how many schedules it ran."""

    schedule: Schedule
    tried: int


Search = Callable[[Problem, int, float], Found]


def level(name: str, *, limited: bool = False) -> Search:
    """The search that ``polysci optimize --level NAME`` does."""

    def search(problem: Problem, threads: int, limit: float) -> Found:
        result = tune.optimize(
            problem, name, threads, wisdom=Wisdom(), time_limit=limit if limited else None
        )
        if result.interrupted:
            raise KeyboardInterrupt
        return Found(result.schedule, sum(trial.seconds is not None for trial in result.trials))

    return search


def first(count: int) -> Search:
    """The fastest of the model's first ``count``."""

    def search(problem: Problem, threads: int, limit: float) -> Found:
        context = tune.context_of(problem, threads)
        schedules = [choice.schedule for choice in choices(context, count)]
        with Bench(problem, threads) as bench:
            samples = {
                trial.schedule: its.median
                for trial, its in time_trials(bench, build_trials(problem, schedules, threads))
                if not isinstance(its, PolysciError)
            }
        if not samples:
            raise CheckError(f"{problem}: none of the first {count} could be run")
        return Found(min(samples, key=lambda schedule: samples[schedule]), len(samples))

    return search


METHODS: Mapping[str, Search] = MappingProxyType(
    {
        "estimate": level("estimate"),
        "top-1": first(1),
        "top-3": first(3),
        "top-5": first(5),
        "top-10": first(10),
        "patient": level("patient", limited=True),
        "exhaustive": level("exhaustive", limited=True),
    }
)


def main() -> int:
    parser = script.layer_options(__doc__)
    parser.add_argument(
        "--methods", nargs="+", choices=tuple(METHODS), default=tuple(METHODS), metavar="NAME",
        help=f"which, of {', '.join(METHODS)} (all)",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=seconds, metavar="S",
        help="seconds for patient and for exhaustive, each (600; with --quick 5)",
    )  # fmt: skip
    parser.add_argument("--samples", type=positive, default=SAMPLES, help=f"at the end ({SAMPLES})")
    return script.run(work, parser.parse_args())


def work(arguments: Namespace) -> bool:
    """Search, time, write, print, draw; False if Ctrl-C cut it short."""
    arguments.limit = arguments.limit or (5.0 if arguments.quick else 600.0)
    layers = script.chosen(arguments, LAYERS, quick=2)
    path = script.stem(arguments, "time_or_quality")
    machine_of(detect())  # once a machine: no part of any search
    rows: list[dict[str, Any]] = []
    steps = compared(layers, arguments, rows, path.with_suffix(".csv"))
    _, whole = script.kept(steps, "searching", len(layers))
    if not rows:
        return whole
    print(table(rows))
    plots.draw(path.with_suffix(".png"), lambda axes: paint(axes, rows), size=(9, 6))
    return whole


def compared(
    layers: Sequence[Problem], arguments: Namespace, rows: list[dict[str, Any]], path: Path
) -> Iterator[Problem]:
    """Every layer as it is done; its rows are in ``rows``, and all rows in the file ``path``."""
    for problem in layers:
        try:
            rows += rows_of(problem, arguments)
        except PolysciError as error:
            say(f"{title(problem)}: {error}")
        if rows:
            script.write_csv(path, rows)
        yield problem


def rows_of(problem: Problem, arguments: Namespace) -> list[dict[str, Any]]:
    """All searches for one layer, one after the other, then their winners in turns."""
    threads = threads_of(arguments)
    spent: dict[str, float] = {}
    winner_by_method: dict[str, Found] = {}
    for name in arguments.methods:
        with empty_cache():
            start = time.monotonic()
            winner_by_method[name] = METHODS[name](problem, threads, arguments.limit)
            spent[name] = time.monotonic() - start
        say(
            f"{title(problem)}: {name}: {time_text(spent[name])}, "
            f"{winner_by_method[name].tried} tried"
        )
    winners = list(dict.fromkeys(winner.schedule for winner in winner_by_method.values()))
    again = dict(zip(winners, retimed(problem, winners, threads, arguments.samples), strict=True))
    best = min(again.values())
    return [
        {
            "layer": title(problem), "problem": problem.key, "threads": threads, "method": name,
            "search": spent[name], "tried": winner.tried, "seconds": again[winner.schedule],
            "gflops": problem.flops / again[winner.schedule] * 1e-9,
            "of_best": best / again[winner.schedule], "schedule": str(winner.schedule),
        }
        for name, winner in winner_by_method.items()
    ]  # fmt: skip


def retimed(
    problem: Problem, schedules: Sequence[Schedule], threads: int, samples: int
) -> list[float]:
    """Median seconds of each, sampled in turns in one process."""
    tried = build_trials(problem, schedules, threads)
    for trial in tried:
        if trial.error is not None:
            raise trial.error
    with Bench(problem, threads) as bench:
        return [its.median for its in bench.time([t.candidate for t in tried], samples=samples)]


@contextmanager
def empty_cache() -> Iterator[None]:
    """A cache directory with the machine's rates and the compiler's header, and nothing else."""
    rates = machine_path(detect())
    with tempfile.TemporaryDirectory(prefix="polysci-search-") as folder:
        if rates.exists():
            shutil.copy(rates, folder)
        with script.cache_in(Path(folder)):
            tune.optimize(parse_problem(TINY), "estimate", wisdom=Wisdom())
            model_of.cache_clear()  # every search reads the loop nest for itself
            yield


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Each layer and method, geomeans by method, and what others published."""
    head = ["layer", "method", "search", "tried", "GFLOP/s", "of best"]
    cells = [
        [row["layer"], row["method"], time_text(row["search"]), str(row["tried"]),
         f"{row['gflops']:.1f}", f"{row['of_best']:.3f}"]
        for row in rows
    ]  # fmt: skip
    means = [
        ["geomean", name, time_text(spent), "", "", f"{share:.3f}"]
        for name, spent, share in by_method(rows)
    ]
    lines = [columns([head, *cells, *means], (0, 1)), "", "Published, on other machines"]
    others = [[p.system, _range(p), p.what, p.source] for p in PUBLISHED]
    return "\n".join([*lines, columns(others, (0, 2, 3))])


def _range(other: Published) -> str:
    least, most = (f"{value:.0f}" for value in (other.least, other.most))
    return f"{least} s" if least == most else f"{least}-{most} s"


def by_method(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, float, float]]:
    """Method, geomean of its search times, geomean of the share of the best speed."""
    names = dict.fromkeys(row["method"] for row in rows)
    its = {name: [row for row in rows if row["method"] == name] for name in names}
    return [
        (
            name,
            script.geomean(r["search"] for r in value),
            script.geomean(r["of_best"] for r in value),
        )
        for name, value in its.items()
    ]


def paint(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Share of the best speed over search time: thin a layer, thick the geomean."""
    axis = axes[0][0]
    for layer in dict.fromkeys(row["layer"] for row in rows):
        its = sorted((r["search"], r["of_best"]) for r in rows if r["layer"] == layer)
        axis.plot(*zip(*its, strict=True), color="0.8", marker=".", zorder=1)
    means = by_method(rows)
    axis.plot([m[1] for m in means], [m[2] for m in means], "o-", color=plots.COLOURS[0], zorder=3)
    for at, (name, spent, share) in enumerate(means):
        place = (3, 6) if at % 2 else (3, -14)
        axis.annotate(name, (spent, share), xytext=place, textcoords="offset points")
    for at, other in enumerate(PUBLISHED):
        axis.axvspan(
            other.least, other.most * 1.05, color=plots.COLOURS[1 + at], alpha=0.5,
            label=f"{other.system}: {other.what}",
        )  # fmt: skip
    axis.legend(loc="lower center", fontsize="small", title="published, on other machines")
    axis.set_ylim(min(0.9, axis.get_ylim()[0]), 1.01)
    axis.set_xscale("log")
    axis.set_xlabel("seconds of search for a layer")
    axis.set_ylabel("speed of the result, of the best found")


if __name__ == "__main__":
    sys.exit(main())
