"""Which way to share out gradients of weights wins where, predicted and measured?

A gradient of weights sums over images and rows of pixels. Its schedules are of four kinds:

  private      every thread sums some images or rows into a copy of its own, and copies are added
  hybrid       the same, but threads share out parts of the weights as well: fewer copies
  tiles        threads share out parts of the weights; loops around calls run over images or rows
  one batch    the same, and a call runs over all images and rows: no sum is stored twice

For each layer and number of threads: the best schedule of each kind among the model's ``--count``
best, its predicted seconds, and its median, all kinds in turns. Writes update_strategies.csv and
update_strategies.png. Takes some 30 s a layer, less with --level estimate, which times nothing.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import plots
import script
from time_or_quality import retimed

from polysci.algorithms.algorithm import Candidate
from polysci.algorithms.choice import candidates
from polysci.cli.layers import positive, problems, title
from polysci.errors import SpecError
from polysci.ops import Conv2d, Conv2dBackwardWeights
from polysci.polyhedral.contraction import Contraction
from polysci.polyhedral.schedule import Schedule
from polysci.text.tables import columns, time_text
from polysci.tune.context import context_of

KINDS = ("private", "hybrid", "tiles", "one batch")
SAMPLES = 9
COUNT = 200


def main() -> int:
    parser = script.options(__doc__, sample=False)
    parser.add_argument(
        "layers", nargs="*", default=["resnet50"], metavar="SPEC|FILE",
        help="convolutions, as of 'polysci optimize' (resnet50)",
    )  # fmt: skip
    parser.add_argument("--layout", choices=("nhwc", "nchw"), default="nhwc", help="(nhwc)")
    parser.add_argument("--batch", type=positive, metavar="N", help="replace the batch of all")
    parser.add_argument("--threads", type=positive, nargs="+", default=[1, 2], help="(1 2)")
    parser.add_argument("--count", type=positive, default=COUNT, help=f"schedules ({COUNT})")
    parser.add_argument("--level", choices=("estimate", "measure"), default="measure")
    return script.run(work, parser.parse_args())


def work(arguments: Namespace) -> bool:
    """Rank, time, write, print, draw; False if Ctrl-C cut it short."""
    words = Namespace(
        layers=arguments.layers, layout=arguments.layout, dtype="f32", batch=arguments.batch
    )
    every = {problem.key: problem for problem in problems(words)}.values()
    layers = [Conv2dBackwardWeights(it) for it in every if isinstance(it, Conv2d)]
    if not layers:
        raise SpecError("no convolution among the layers")
    layers = layers[:1] if arguments.quick else layers
    cases = [(layer, threads) for layer in layers for threads in arguments.threads]
    timed = arguments.level == "measure"
    steps = (compared(*case, arguments.count, timed=timed) for case in cases)
    rows, whole = script.kept(steps, "gradients", len(cases))
    if rows:
        path = script.stem(arguments, "update_strategies")
        script.write_csv(path.with_suffix(".csv"), rows)
        print(table(rows))
        plots.draw(path.with_suffix(".png"), lambda axes: paint(axes[0][0], rows))
    return whole


def kind_of(contraction: Contraction, schedule: Schedule) -> str:
    """How a schedule shares out a gradient of weights: one of KINDS."""
    around = {loop.dim for loop in schedule.loops} & contraction.reductions
    if not schedule.private:
        return "tiles" if around else "one batch"
    shared = {loop.dim for loop in schedule.parallel}
    return "private" if shared <= contraction.reductions else "hybrid"


def best_of_kinds(
    problem: Conv2dBackwardWeights, threads: int, count: int
) -> Mapping[str, Candidate]:
    """The model's best schedule of each kind among its ``count`` best."""
    context = context_of(problem, threads)
    best = dict[str, Candidate]()
    for choice in candidates(problem, context, count):
        best.setdefault(kind_of(context.contraction, choice.schedule), choice)
    return {kind: best[kind] for kind in KINDS if kind in best}


def compared(
    problem: Conv2dBackwardWeights, threads: int, count: int, *, timed: bool
) -> dict[str, object]:
    """A row of the table; seconds are 0 for kinds without a schedule, or where nothing is timed."""
    best = best_of_kinds(problem, threads, count)
    schedules = [choice.schedule for choice in best.values()]
    medians = retimed(problem, schedules, threads, SAMPLES) if timed else [0.0] * len(best)
    measured = dict(zip(best, medians, strict=True))
    row: dict[str, object] = {"layer": title(problem), "threads": threads}
    row["predicted_winner"] = min(best, key=lambda kind: best[kind].seconds)
    row["measured_winner"] = min(best, key=lambda kind: measured[kind]) if timed else ""
    for kind in KINDS:
        row[f"{kind}_predicted"] = best[kind].seconds if kind in best else 0.0
        row[f"{kind}_measured"] = measured.get(kind, 0.0)
        row[f"{kind}_schedule"] = str(best[kind].schedule) if kind in best else ""
    return row


def _seconds(row: script.Row, kind: str, how: str) -> float:
    return float(str(row[f"{kind}_{how}"]))


def table(rows: Sequence[script.Row]) -> str:
    """Times by kind, who wins, and how much slower the kind is that the model prefers."""
    how = "measured" if any(row["measured_winner"] for row in rows) else "predicted"
    head = ("layer", "threads", *KINDS, "predicted winner", "measured winner")
    body = [
        (
            str(row["layer"]), str(row["threads"]),
            *(time_text(_seconds(row, kind, how)) if row[f"{kind}_schedule"] else "-"
              for kind in KINDS),
            str(row["predicted_winner"]), str(row["measured_winner"]) or "-",
        )
        for row in rows
    ]  # fmt: skip
    lines = [f"seconds {how}", columns([head, *body], (0, 6, 7))]
    for threads in dict.fromkeys(row["threads"] for row in rows):
        some = [row for row in rows if row["threads"] == threads]
        wins = Counter(str(row[f"{how}_winner"]) for row in some)
        lines.append(f"{threads} threads: " + ", ".join(f"{k} {n}" for k, n in wins.most_common()))
    if how == "measured":
        kept = [
            _seconds(row, str(row["measured_winner"]), how)
            / _seconds(row, str(row["predicted_winner"]), how)
            for row in rows
        ]
        mean, least = script.geomean(kept), min(kept)
        lines.append(f"the predicted kind at {mean:.3f} of the fastest, least {least:.3f}")
    return "\n".join(lines)


def paint(axis: plots.Any, rows: Sequence[script.Row]) -> None:
    """Time of each kind over the fastest kind's, layer by layer."""
    how = "measured" if any(row["measured_winner"] for row in rows) else "predicted"
    ratios = list(_ratios(rows, how))
    for kind, colour in zip(KINDS, plots.COLOURS, strict=False):
        points = [(x, ratio) for x, own, ratio in ratios if own == kind]
        if points:
            axis.plot(*zip(*points, strict=True), "o", color=colour, label=kind)
    axis.legend()
    labels = [f"{row['layer']}, {row['threads']}" for row in rows]
    axis.set_xticks(range(len(rows)), labels, rotation=60, ha="right", fontsize=6)
    axis.set_ylabel(f"time over that of the fastest kind, {how}")


def _ratios(rows: Sequence[script.Row], how: str) -> Iterator[tuple[int, str, float]]:
    for x, row in enumerate(rows):
        there = [kind for kind in KINDS if row[f"{kind}_schedule"]]
        least = min(_seconds(row, kind, how) for kind in there)
        yield from ((x, kind, _seconds(row, kind, how) / least) for kind in there)


if __name__ == "__main__":
    sys.exit(main())
