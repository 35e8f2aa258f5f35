"""Does the choice of a schedule hang on one calibration? Several, and a search after each.

Calibrates this machine --count times, each time in an empty cache, and searches every layer with
each of the calibrations, from no records. At the end the winners of a layer are timed again, in
turns, in one run: a difference between them is one of the choices, not of the moment.

  chosen  distinct schedules among the winners
  worst   the slowest winner's time over the fastest one's
  median  the middle winner's time over the fastest one's

Times things: wants a quiet machine, 15 seconds for each calibration and up to 10 for each search
of a layer. Writes calibrations.csv after every layer.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import script
from time_or_quality import retimed

from polysci import tune
from polysci.cli.layers import positive, say, threads_of, title
from polysci.errors import PolysciError
from polysci.measure.samples import DisturbedError
from polysci.ops.problem import Problem
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.text.tables import columns
from polysci.tune.calibrate import calibrate
from polysci.tune.wisdom import Wisdom

LAYERS = ("res2a_branch1", "res2a_branch2b", "res3b_branch2a", "res4a_branch2b", "res5a_branch2c")
COUNT, SAMPLES = 10, 15
TRIES = 5  # of one calibration


def main() -> int:
    parser = script.layer_options(__doc__)
    parser.add_argument("--level", choices=("estimate", "measure"), default="measure")
    parser.add_argument("--count", type=positive, help=f"calibrations ({COUNT}; with --quick 2)")
    parser.add_argument("--samples", type=positive, default=SAMPLES, help=f"at the end ({SAMPLES})")
    return script.run(work, parser.parse_args())


def work(arguments: Namespace) -> bool:
    """Calibrate, search, time, write, print; False if Ctrl-C cut it short."""
    layers, rows = script.chosen(arguments, LAYERS, quick=1), list[dict[str, Any]]()
    count = arguments.count or (2 if arguments.quick else COUNT)
    path = script.stem(arguments, "calibrations").with_suffix(".csv")
    with tempfile.TemporaryDirectory(prefix="polysci-calibrations-") as folder:
        steps = calibrated(Path(folder), count)
        caches, whole = script.kept(steps, "calibrating", count)
        if whole:
            steps = compared(layers, caches, arguments, rows, path)
            _, whole = script.kept(steps, "searching", len(layers))
    if rows:
        print(table(rows))
    return whole


def calibrated(folder: Path, count: int) -> Iterator[Path]:
    """So many caches, each with the rates of a calibration of its own.

    A disturbed calibration is repeated; DisturbedError after ``TRIES`` in a row.
    """
    for number in range(count):
        cache = folder / str(number)
        cache.mkdir(mode=0o700)
        with script.cache_in(cache):
            _calibrate()
        yield cache


def _calibrate() -> None:
    for tries_left in reversed(range(TRIES)):
        try:
            calibrate(detect(), lambda done, total: None)
            return
        except DisturbedError as error:
            if not tries_left:
                raise
            say(f"calibrating again: {error}")


def compared(
    layers: Sequence[Problem],
    caches: Sequence[Path],
    arguments: Namespace,
    rows: list[dict[str, Any]],
    path: Path,
) -> Iterator[Problem]:
    """Every layer as it is done; its row is in ``rows``, and all rows in the file ``path``."""
    for problem in layers:
        try:
            rows.append(row_of(problem, caches, arguments))
        except PolysciError as error:
            say(f"{title(problem)}: {error}")
        if rows:
            script.write_csv(path, rows)
        yield problem


def row_of(problem: Problem, caches: Sequence[Path], arguments: Namespace) -> dict[str, Any]:
    """One search after each calibration, then the winners in turns."""
    threads, winners = threads_of(arguments), list[Schedule]()
    for cache in caches:
        with script.cache_in(cache):
            result = tune.optimize(problem, arguments.level, threads, wisdom=Wisdom(), again=True)
        if result.interrupted:
            raise KeyboardInterrupt
        winners.append(result.schedule)
    schedules = list(dict.fromkeys(winners))
    times = retimed(problem, schedules, threads, arguments.samples)
    its = dict(zip(schedules, times, strict=True))
    spent = [its[winner] for winner in winners]
    slowest = max(schedules, key=lambda schedule: its[schedule])
    return {
        "layer": title(problem), "problem": problem.key, "layout": arguments.layout,
        "threads": threads, "calibrations": len(caches), "chosen": len(schedules),
        "seconds": min(spent), "worst": max(spent) / min(spent),
        "median": median(spent) / min(spent),
        "fastest_schedule": str(min(schedules, key=lambda schedule: its[schedule])),
        "slowest_schedule": str(slowest),
    }  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line for each layer."""
    head = ["layer", "chosen", "worst", "median"]
    cells = [
        [row["layer"], str(row["chosen"]), f"{row['worst']:.3f}", f"{row['median']:.3f}"]
        for row in rows
    ]
    return columns([head, *cells], (0,))


if __name__ == "__main__":
    sys.exit(main())
