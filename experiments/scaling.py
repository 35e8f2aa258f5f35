"""How would a network scale, and where does the way to share its work change? On paper.

For every machine described in experiments/machines (or --machine), 1 to 64 threads, batch 1 and as
many images as threads: the traffic model's first choice for each layer, its predicted speed, its
parallel efficiency, and what its threads share: images, pixels, output channels or several of them.
Nothing is compiled or run, so the figures are as good as the model and the descriptions are.

  efficiency  speed with T threads over T times that with one; at batch T each thread has as much
              to do as that one had
  change      a layer whose threads share other loops than with fewer threads. The reason is the
              term that grows most in the best schedule that still shares the old ones. Where that
              one is within 1 %, the model hardly cares: the table leaves such changes out

Writes scaling.csv (a row a machine, batch, thread count and layer), scaling_changes.csv and
scaling.png. Takes some ten minutes.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plots
import script

from polysci import tune
from polysci.cost import RANKERS, Context
from polysci.cost.shortlist import choices
from polysci.errors import PolysciError
from polysci.explain.terms import terms_of
from polysci.ops import layer_lists
from polysci.ops.problem import Problem
from polysci.space.enumerate import Family
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule
from polysci.target.machine_file import MachineFile, read
from polysci.text.tables import columns, time_text

MACHINES = Path(__file__).parent / "machines"
THREADS = (1, 2, 4, 8, 16, 28, 64)
QUICK_THREADS = (1, 2, 8, 64)
BATCHES = ("1", "threads")
KINDS: Mapping[str, str] = {"n": "images", "p": "pixels", "q": "pixels", "k": "channels"}
ORDER = ("images", "pixels", "channels")
ALONE = "nothing"  # what one thread shares
TIE = 1.01  # of two predictions
LAST = 40  # schedules of one strategy that are tried until one can be generated


@dataclass(frozen=True, slots=True)
class Point:
    """The model's choice for one layer; ``images`` of the whole batch, times in seconds."""

    machine: str
    batch: str
    threads: int
    problem: Problem
    schedule: str
    shared: str
    seconds: float
    peak: float
    parts: Mapping[str, float]

    @property
    def layer(self) -> str:
        return self.problem.name or str(self.problem)


@dataclass(frozen=True, slots=True)
class Change:
    """A layer that shares other loops than with ``before`` threads, and what decided.

    ``seconds`` as chosen and ``kept`` with the best schedule that shares as before, if there is
    one; ``term`` is what grows most.
    """

    point: Point
    before: Point
    kept: float | None
    term: str
    grown: float

    @property
    def decided(self) -> bool:
        """Whether sharing as before would cost something."""
        return self.kept is None or self.kept > TIE * self.point.seconds


def main() -> int:
    parser = script.options(__doc__, sample=False)
    parser.add_argument(
        "--machine", nargs="+", type=Path, metavar="FILE.toml",
        default=sorted(MACHINES.glob("*.toml")), help="(experiments/machines/*.toml)",
    )  # fmt: skip
    parser.add_argument("--network", default="resnet50", metavar="NAME|FILE", help="(resnet50)")
    return script.run(work, parser.parse_args())


def work(arguments: Namespace) -> bool:
    """Predict, write, print, draw; False if Ctrl-C cut it short."""
    machines = {path.stem: read(path) for path in arguments.machine}
    layers = list({layer.key: layer for layer in layer_lists.load(arguments.network)}.values())
    layers = (layers[2:17:5] or layers[:3]) if arguments.quick else layers
    series = [
        (
            name,
            batch,
            [
                t
                for t in (QUICK_THREADS if arguments.quick else THREADS)
                if t <= description.target.cores
            ],
        )
        for name, description in machines.items()
        for batch in BATCHES
    ]
    total = sum(len(threads) * len(layers) for _, _, threads in series)
    steps = (
        point
        for name, batch, threads in series
        for layer in layers
        for point in scaled(name, machines[name], layer, batch, threads)
    )
    results, whole = script.kept(steps, "predicting", total)
    if not results:
        return whole
    points, changes = [point for point, _ in results], [change for _, change in results if change]
    path = script.stem(arguments, "scaling")
    script.write_csv(path.with_suffix(".csv"), rows_of(points))
    if changes:
        script.write_csv(path.with_name(f"{path.name}_changes.csv"), [_row(c) for c in changes])
    print(table(points))
    print(told(changes))
    names = list(dict.fromkeys(point.machine for point in points))
    plots.draw(
        path.with_suffix(".png"), lambda axes: paint(axes, points, names),
        rows=len(BATCHES), columns=len(names), size=(1 + 3.2 * len(names), 6.5),
    )  # fmt: skip
    return whole


def scaled(
    name: str, description: MachineFile, layer: Problem, batch: str, threads: Sequence[int]
) -> Iterator[tuple[Point, Change | None]]:
    """The choices for more and more threads, and how each differs from the one before."""
    before: Point | None = None
    for count in threads:
        problem = layer.with_(N=count if batch == "threads" else 1)
        context = tune.context_of(problem, count, description.target, machine=description.machine)
        schedule = choices(context, 1)[0].schedule
        seconds, parts = parts_of(context, schedule)
        point = Point(
            name, batch, count, problem, str(schedule), shared_by(schedule), seconds,
            description.machine.peak * count, parts,
        )  # fmt: skip
        changed = before and before.shared not in (ALONE, point.shared)
        yield point, compared(context, before, point) if before and changed else None
        before = point


def shared_by(schedule: Schedule) -> str:
    """What the threads share, in words: ``pixels x channels``."""
    kinds = {KINDS.get(loop.dim, loop.dim) for loop in schedule.parallel}
    return (
        " x ".join(kind for kind in (*ORDER, *sorted(kinds - {*ORDER})) if kind in kinds) or ALONE
    )


def parts_of(context: Context, schedule: Schedule) -> tuple[float, dict[str, float]]:
    """Predicted seconds and what they add up from: a thread's mean work, waiting, the rest."""
    terms = terms_of(context, schedule)
    threads = context.threads if schedule.parallel else 1
    parts = {name: value / threads for name, value in terms.work}
    parts["imbalance"] = sum(parts.values()) * (terms.imbalance - 1)
    parts["starting threads"] = max(0.0, terms.seconds - sum(parts.values()))
    return terms.seconds, parts


def compared(context: Context, before: Point, point: Point) -> Change:
    """Why ``point`` does not share what ``before`` shared."""
    kept = best_sharing(context, before.shared)
    if kept is None:
        return Change(point, before, None, "no schedule does", 0.0)
    seconds, parts = parts_of(context, kept)
    grown = {name: value - point.parts.get(name, 0.0) for name, value in parts.items()}
    term = max(grown, key=lambda name: grown[name])
    return Change(point, before, seconds, term, grown[term])


def best_sharing(context: Context, shared: str) -> Schedule | None:
    """The model's best schedule whose threads share that."""
    ranker, pool = RANKERS["traffic"], list[tuple[float, str, Schedule]]()
    for family in ranker.families(context, 8, 2):
        members = np.flatnonzero(_shares(family, frozenset(shared.split(" x "))))
        if len(members):
            cost = ranker.cost(context, family)[members]
            for at in np.argsort(cost, kind="stable")[:LAST]:
                schedule = family.schedule(int(members[at]))
                pool.append((float(cost[at]), str(schedule), schedule))
    for _, _, schedule in sorted(pool, key=lambda entry: entry[:2])[:LAST]:
        try:
            resolve(context.contraction, context.strides, schedule)
        except PolysciError:
            continue
        return schedule
    return None


def _shares(family: Family, wanted: frozenset[str]) -> np.ndarray:
    """Which members have parallel loops that run more than once over those kinds and no others."""
    kind_shared = np.zeros((len(family), len(wanted)), dtype=bool)
    other = np.zeros(len(family), dtype=bool)
    names = sorted(wanted)
    for at, dim in enumerate(family.dims[: int(family.parallel.max())]):
        runs = (at < family.parallel) & (family.steps[:, at] < family.extents[dim])
        kind = KINDS.get(dim, dim)
        if kind in wanted:
            kind_shared[:, names.index(kind)] |= runs
        else:
            other |= runs
    shares: np.ndarray = kind_shared.all(axis=1) & ~other
    return shares


def rows_of(points: Sequence[Point]) -> list[dict[str, object]]:
    """One line a point; the seconds of every part, and what one thread needs for one image."""
    alone = {(p.machine, p.layer): p.seconds for p in points if p.threads == 1}
    return [
        {
            "machine": p.machine,
            "batch": p.batch,
            "threads": p.threads,
            "layer": p.layer,
            "shared": p.shared,
            "seconds": p.seconds,
            "gflops": p.problem.flops / p.seconds * 1e-9,
            "of_peak": p.problem.multiplied_flops / p.seconds * 1e-9 / p.peak,
            "efficiency": _efficiency(alone[p.machine, p.layer], p.seconds, p.batch, p.threads),
            **{name.replace(" ", "_"): value for name, value in p.parts.items()},
            "schedule": p.schedule,
        }
        for p in points
    ]


def _efficiency(alone: float, seconds: float, batch: str, threads: int) -> float:
    return alone / seconds / (threads if batch == "1" else 1)


def _row(change: Change) -> dict[str, object]:
    point, before = change.point, change.before
    return {
        "machine": point.machine,
        "batch": point.batch,
        "layer": point.layer,
        "threads_before": before.threads,
        "threads": point.threads,
        "shared_before": before.shared,
        "shared": point.shared,
        "seconds": point.seconds,
        "seconds_shared_as_before": "" if change.kept is None else change.kept,
        "term": change.term,
        "seconds_of_term": change.grown,
    }


Series = Mapping[tuple[str, str, int], Sequence[Point]]


def series_of(points: Sequence[Point]) -> Series:
    """The layers by machine, batch and threads."""
    series: dict[tuple[str, str, int], list[Point]] = {}
    for point in points:
        series.setdefault((point.machine, point.batch, point.threads), []).append(point)
    return series


def network(points: Sequence[Point]) -> tuple[float, float]:
    """Seconds of all layers, each as often as the network has it; and their flops."""
    products = [(p.problem.multiplicity * p.seconds, p.problem.multiplicity * p.problem.flops)
            for p in points]  # fmt: skip
    return sum(seconds for seconds, _ in products), sum(flops for _, flops in products)


def efficiency(series: Series, key: tuple[str, str, int]) -> float:
    """Of the whole network; only layers that are there with one thread count."""
    machine, batch, threads = key
    alone = {p.layer: p for p in series.get((machine, batch, 1), ())}
    both = [p for p in series[key] if p.layer in alone]
    alone_seconds, _ = network([alone[p.layer] for p in both])
    many, _ = network(both)
    return _efficiency(alone_seconds, many, batch, threads) if both else 0.0


def table(points: Sequence[Point]) -> str:
    """The network on every machine, and how many layers share what."""
    series = series_of(points)
    head = ("machine", "batch", "threads", "time", "GFLOP/s", "of peak", "efficiency", "shared")
    rows: list[tuple[str, ...]] = [head]
    for key, its in series.items():
        machine, batch, threads = key
        seconds, flops = network(its)
        rate = flops / seconds * 1e-9
        needed = sum(p.problem.multiplicity * p.problem.multiplied_flops for p in its)
        share = needed / seconds * 1e-9 / its[0].peak
        counts = Counter(p.shared for p in its)
        shared = ", ".join(f"{shared} {n}" for shared, n in sorted(counts.items()))
        rows.append((
            machine, batch, str(threads), time_text(seconds), f"{rate:.0f}",
            f"{share:.3f}", f"{efficiency(series, key):.3f}", shared,
        ))  # fmt: skip
    return columns(rows, left=(0, 1, 7), indent="")


def told(changes: Sequence[Change]) -> str:
    """Where the way to share changes, and how often which term decided."""
    decided = [change for change in changes if change.decided]
    ties = f"{len(changes) - len(decided)} more that are worth less than 1 %"
    if not decided:
        return f"\nno change that matters, and {ties}"
    rows: list[tuple[str, ...]] = [
        ("machine", "batch", "layer", "threads", "from", "to", "chosen", "as before", "because of")
    ]
    for change in decided:
        point, before = change.point, change.before
        kept = "" if change.kept is None else time_text(change.kept)
        because = change.term + (f" +{time_text(change.grown)}" if change.kept else "")
        rows.append((
            point.machine, point.batch, point.layer, f"{before.threads} > {point.threads}",
            before.shared, point.shared, time_text(point.seconds), kept, because,
        ))  # fmt: skip
    terms = Counter(change.term for change in decided).most_common()
    why = ", ".join(f"{term} {n}" for term, n in terms)
    lines = columns(rows, left=(0, 1, 2, 4, 5, 8), indent="")
    return f"\n{lines}\n\n{len(decided)} changes: {why}; and {ties}"


def paint(axes: Any, points: Sequence[Point], names: Sequence[str]) -> None:
    """Bars: which share of the layers shares what; the line: the network's efficiency."""
    series = series_of(points)
    kinds = {point.shared for point in points} - {ALONE}
    ways = [ALONE, *sorted(kinds, key=lambda way: (way.count(" x "), way))]
    for row, batch in enumerate(BATCHES):
        for column, name in enumerate(names):
            axis = axes[row][column]
            keys = [key for key in series if key[:2] == (name, batch)]
            places, bottom = np.arange(len(keys)), np.zeros(len(keys))
            for at, way in enumerate(ways):
                part = np.array([
                    sum(p.shared == way for p in series[key]) / len(series[key]) for key in keys
                ])  # fmt: skip
                colour = plots.COLOURS[(at - 1) % len(plots.COLOURS)] if at else "#dddddd"
                axis.bar(places, part, bottom=bottom, color=colour, alpha=0.55, label=way)
                bottom = bottom + part
            line = [efficiency(series, key) for key in keys]
            axis.plot(places, line, color="black", marker="o", label="parallel efficiency")
            axis.set_xticks(places, [str(key[2]) for key in keys])
            axis.set_ylim(0, 1.15)
            axis.set_title(f"{name}, batch {batch}", fontsize=9)
            if row == len(BATCHES) - 1:
                axis.set_xlabel("threads")
    axes[0][0].set_ylabel("share of the layers; efficiency")
    handles, labels = axes[0][0].get_legend_handles_labels()
    axes[0][0].figure.legend(handles, labels, loc="outside lower center", ncols=2 * len(names))


if __name__ == "__main__":
    sys.exit(main())
