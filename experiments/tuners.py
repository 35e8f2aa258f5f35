"""How long does each way to search take until it has a schedule within 1 % of the best?

For twenty problems, each from an empty cache: the model's choice (estimate), the usual search
(measure), and the tuners genetic, bayesian and random until --limit. What was fastest when is noted
while they run; at the end all schedules that were so of a problem are timed again, in turns: times
of searches that follow each other differ by more than 1 %.

  spent    seconds of the whole search, ranking and compiling included
  to_99    seconds until what was its fastest schedule then takes, timed again, at most 1/0.99 of
           the least of all; none where it never did
  of_best  least time of all, timed again, over that of its winner

Times things: wants a quiet machine, and a minute and a half a problem with --limit 20. Writes
tuners.csv after every problem, and goes on behind the problems in it; tuners.png.
"""

from __future__ import annotations

import csv
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import plots
import script
from time_or_quality import empty_cache, retimed

from polysci import tune
from polysci.cli.layers import say, seconds, threads_of, title
from polysci.errors import PolysciError
from polysci.ops.problem import Problem
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.text.tables import columns, time_text
from polysci.tune import Progress
from polysci.tune.calibrate import machine_of
from polysci.tune.wisdom import Wisdom

PROBLEMS = (
    "mb1ic64ih56oc64kh3ph1", "mb1ic128ih28oc128kh3ph1", "mb1ic256ih14oc256kh3ph1",
    "mb1ic512ih7oc512kh3ph1", "mb1ic256ih56oc64kh1", "mb1ic512ih28oc128kh1",
    "mb1ic1024ih14oc256kh1",
    "mb1ic2048ih7oc512kh1", "mb1ic3ih224oc64kh7ph3sh2", "mb1ic256ih56oc512kh1sh2",
    "g32mb1ic32ih112oc32kh3ph1", "g32mb32ic256ih28oc256kh3ph1", "mm:128x32x256",
    "mm:128x1024x1024", "mm:64x64x64", "mm:16x1024x4096", "mm:512x512x512", "mm:1000x1000x1000",
    "mm:bmk,bnk->bmn b=500 m=26 n=26 k=72", "bwd_d mb1ic64ih56oc64kh3ph1",
)  # fmt: skip
METHODS = ("estimate", "measure", "genetic", "bayesian", "random")
NEAR = 0.99
SAMPLES = 25


@dataclass(slots=True)
class Course:
    """What a search found: seconds since its start, and the schedule that was the fastest then."""

    start: float = field(default_factory=time.monotonic)
    points: list[tuple[float, Schedule]] = field(default_factory=list)

    def note(self, schedule: Schedule | None) -> None:
        if schedule is not None and (not self.points or schedule != self.points[-1][1]):
            self.points.append((time.monotonic() - self.start, schedule))

    def until(self, wanted: float, times: Mapping[Schedule, float]) -> float | None:
        """Seconds until its schedule was one whose time is at most ``wanted``."""
        return next((at for at, schedule in self.points if times[schedule] <= wanted), None)


def main() -> int:
    parser = script.layer_options(__doc__)
    parser.add_argument(
        "--limit", type=seconds, metavar="S", help="seconds of a tuner (60; with --quick 3)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the tuners (0)")
    return script.run(work, parser.parse_args())


def work(arguments: Namespace) -> bool:
    """Search, time, write, print, draw; False if Ctrl-C cut it short."""
    arguments.limit = arguments.limit or (3.0 if arguments.quick else 60.0)
    arguments.layers = arguments.layers or list(PROBLEMS)
    problems = script.chosen(arguments, (), quick=1)
    path = script.stem(arguments, "tuners")
    rows = known_rows(path.with_suffix(".csv"))
    machine_of(detect())  # once a machine: no part of any search
    done = {(row["problem"], int(row["threads"])) for row in rows}
    threads = threads_of(arguments)
    left = [problem for problem in problems if (problem.key, threads) not in done]
    steps = measured(left, arguments, rows, path.with_suffix(".csv"))
    _, whole = script.kept(steps, "searching", len(left))
    if rows:
        print(table(rows))
        plots.draw(path.with_suffix(".png"), lambda axes: paint(axes, rows), size=(9, 5))
    return whole


def known_rows(path: Path) -> list[dict[str, Any]]:
    """What an earlier run wrote."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [
            row | {name: float(row[name]) if row[name] else None
                   for name in ("spent", "to_99", "of_best", "seconds")}
            for row in csv.DictReader(file)
        ]  # fmt: skip


def measured(
    problems: Sequence[Problem], arguments: Namespace, rows: list[dict[str, Any]], path: Path
) -> Iterator[Problem]:
    """Every problem as it is done; its rows are in ``rows``, and all rows in the file ``path``."""
    for problem in problems:
        try:
            rows += rows_of(problem, arguments)
        except PolysciError as error:
            say(f"{title(problem)}: {error}")
        if rows:
            script.write_csv(path, [row | {"to_99": row["to_99"] or ""} for row in rows])
        yield problem


def rows_of(problem: Problem, arguments: Namespace) -> list[dict[str, Any]]:
    """All searches of one problem, one after the other, then their winners in turns."""
    threads, results, courses = threads_of(arguments), dict[str, tune.Result](), {}
    for method in METHODS:
        with empty_cache():
            course = courses[method] = Course()
            results[method] = search(problem, method, threads, course, arguments)
        say(f"{title(problem)}: {method}: {time_text(results[method].spent)}")
    leaders = {schedule: None for course in courses.values() for _, schedule in course.points}
    times = retimed(problem, [*leaders], threads, SAMPLES)
    again = dict(zip(leaders, times, strict=True))
    least = min(times)
    return [
        {
            "layer": title(problem), "problem": problem.key, "threads": threads, "method": method,
            "spent": result.spent, "tried": sum(t.seconds is not None for t in result.trials),
            "to_99": courses[method].until(least / NEAR, again), "seconds": again[result.schedule],
            "of_best": least / again[result.schedule], "schedule": str(result.schedule),
        }
        for method, result in results.items()
    ]  # fmt: skip


def search(
    problem: Problem, method: str, threads: int, course: Course, arguments: Namespace
) -> tune.Result:
    """One search, by a level or a tuner, from no records."""

    def watch(step: Progress) -> None:
        course.note(step.schedule)

    if method in tune.LEVELS:
        result = tune.optimize(problem, method, threads, wisdom=Wisdom(), progress=watch)
    else:
        tuner = tune.TunerOptions(method, seed=arguments.seed)
        result = tune.optimize(
            problem, "measure", threads, wisdom=Wisdom(), progress=watch, tuner=tuner,
            time_limit=arguments.limit, again=True,
        )  # fmt: skip
    if result.interrupted:
        raise KeyboardInterrupt
    course.note(result.schedule)
    return result


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Each problem and way; then the ways over all problems."""
    head = ["problem", "way", "spent", "tried", "to 0.99 of the best", "of best, again"]
    cells = [
        [row["layer"], row["method"], time_text(row["spent"]), str(row["tried"]),
         time_text(row["to_99"]) if row["to_99"] else "never", f"{row['of_best']:.3f}"]
        for row in rows
    ]  # fmt: skip
    means = [
        [f"all {count}", name, time_text(spent), "", reached, f"{share:.3f}"]
        for name, count, spent, reached, share in by_method(rows)
    ]
    return columns([head, *cells, *means], (0, 1))


def by_method(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int, float, str, float]]:
    """Way, problems, geomean of seconds, how often and when 0.99 was reached, share of the best."""
    for name in METHODS:
        its = [row for row in rows if row["method"] == name]
        reached = [row["to_99"] for row in its if row["to_99"]]
        when = f", geomean {time_text(script.geomean(reached))}" if reached else ""
        yield (
            name, len(its), script.geomean(row["spent"] for row in its),
            f"{len(reached)} times{when}", script.geomean(row["of_best"] for row in its),
        )  # fmt: skip


def paint(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Share of the problems that are within 1 % of the best, over seconds of search."""
    axis = axes[0][0]
    for colour, name in zip(plots.COLOURS, METHODS, strict=False):
        its = [row["to_99"] for row in rows if row["method"] == name]
        reached = sorted(at for at in its if at)
        shares = [(number + 1) / len(its) for number in range(len(reached))]
        times, shares = [*reached, 100.0], [*shares, (shares or [0.0])[-1]]
        axis.step(times, shares, where="post", color=colour, label=name)
    axis.set_xscale("log")
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("seconds of search")
    axis.set_ylabel("problems within 1 % of the best time")
    axis.legend()


if __name__ == "__main__":
    sys.exit(main())
