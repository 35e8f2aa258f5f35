"""Which way to share out gradients of weights wins where, predicted and measured?

A gradient of weights sums over images and rows of pixels. Its schedules are of four kinds:

  private      every thread sums some images or rows into a copy of its own, and copies are added
  hybrid       the same, but threads share out parts of the weights as well: fewer copies
  tiles        threads share out parts of the weights; loops around calls run over images or rows
  one batch    the same, and a call runs over all images and rows: no sum is stored twice

For each layer and number of threads: the best schedule of each kind among the model's ``--count``
best, its predicted seconds, and its median, all kinds in turns. Writes update_strategies.csv and
update_strategies.png. Takes some 30 s a layer, less with --level estimate, which times nothing.

Recurrent layers (``lstm:T50xN16xC256xK256``) have two ways to sum gradients of weights:

  fused        every step adds its part
  diffused     one product behind the steps sums the parts of all

Their predictions are of these products alone, their medians of both passes of the whole layer.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import plots
import script
from time_or_quality import retimed

from polysci import compile_network
from polysci.cli.layers import positive, problems, title
from polysci.cost.networks import StageCosts
from polysci.errors import SpecError
from polysci.frontends.layers.words import CELLS, RecurrentWords
from polysci.graph.operators.lower import lower
from polysci.lower.algorithm import Candidate
from polysci.lower.choice import candidates
from polysci.network.build import library_of, time_networks
from polysci.network.options import machine_for
from polysci.network.prepare import graph_of, pass_context
from polysci.ops import Conv2d, Conv2dBackwardWeights
from polysci.polyhedral.contraction import Contraction
from polysci.program.passes.fused_updates import UpdatePredictions, step_products
from polysci.program.passes.table import program_before
from polysci.space.directives import Private
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.text.tables import columns, time_text
from polysci.tune.context import context_of

KINDS = ("private", "hybrid", "tiles", "one batch", "fused", "diffused")
SAMPLES = 9
COUNT = 200


def main() -> int:
    parser = script.options(__doc__, sample=False)
    parser.add_argument(
        "layers", nargs="*", default=["resnet50"], metavar="SPEC|FILE",
        help="convolutions, as of 'polysci optimize' (resnet50), or recurrent layers",
    )  # fmt: skip
    parser.add_argument("--layout", choices=("nhwc", "nchw"), default="nhwc", help="(nhwc)")
    parser.add_argument("--batch", type=positive, metavar="N", help="replace the batch of all")
    parser.add_argument("--threads", type=positive, nargs="+", default=[1, 2], help="(1 2)")
    parser.add_argument("--count", type=positive, default=COUNT, help=f"schedules ({COUNT})")
    parser.add_argument("--level", choices=("estimate", "measure"), default="measure")
    return script.run(work, parser.parse_args())


def work(arguments: Namespace) -> bool:
    """Rank, time, write, print, draw; False if Ctrl-C cut it short."""
    recurrent = [text for text in arguments.layers if text.startswith(tuple(CELLS))]
    words = Namespace(
        layers=[text for text in arguments.layers if text not in recurrent],
        layout=arguments.layout, dtype="f32", batch=arguments.batch,
    )  # fmt: skip
    every = {problem.key: problem for problem in problems(words)}.values() if words.layers else ()
    layers: list[Conv2dBackwardWeights | RecurrentWords] = [
        Conv2dBackwardWeights(it) for it in every if isinstance(it, Conv2d)
    ]
    layers += [RecurrentWords.parse(text) for text in recurrent]
    if not layers:
        raise SpecError("no convolution among the layers, and no recurrent layer")
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
    if not schedule.has(Private):
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
    layer: Conv2dBackwardWeights | RecurrentWords, threads: int, count: int, *, timed: bool
) -> dict[str, object]:
    """A row of the table; seconds are 0 for kinds without a schedule, or where nothing is timed."""
    if isinstance(layer, RecurrentWords):
        ways = predicted_updates(layer)
        medians = timed_updates(layer, [*ways], threads) if timed else [0.0] * len(ways)
        return row_of(str(layer), threads, ways, dict(zip(ways, ways, strict=True)), medians)
    best = best_of_kinds(layer, threads, count)
    schedules = [choice.schedule for choice in best.values()]
    medians = retimed(layer, schedules, threads, SAMPLES) if timed else [0.0] * len(best)
    predicted = {kind: choice.seconds for kind, choice in best.items()}
    texts = dict(zip(best, map(str, schedules), strict=True))
    return row_of(title(layer), threads, predicted, texts, medians)


def predicted_updates(words: RecurrentWords) -> dict[str, float]:
    """Seconds of the products of both updates on one thread, as the model decides by them."""
    target = detect()
    context = pass_context("f32", target, machine_for(target))
    predictions = UpdatePredictions(StageCosts(context.machine, target), context.predict)
    program = program_before("fused updates", lower(graph_of(f"{words} bwd")), context)
    products = step_products(program)
    return {
        "fused": sum(predictions.fused(product, products) for product in products),
        "diffused": sum(predictions.diffused(product) for product in products),
    }


def timed_updates(words: RecurrentWords, ways: Sequence[str], threads: int) -> list[float]:
    """Median seconds of both passes, the ways in turns."""
    networks = [
        compile_network(f"{words} bwd", "estimate", threads, update=way, name=way) for way in ways
    ]
    built = [(network.code, library_of(network.code)) for network in networks]
    return [samples.median for samples in time_networks(built, threads, SAMPLES)]


def row_of(
    layer: str, threads: int, predicted: Mapping[str, float], texts: Mapping[str, str],
    medians: Sequence[float],
) -> dict[str, object]:  # fmt: skip
    """The times of a layer by kind; medians are of the kinds that have a prediction."""
    measured = dict(zip(predicted, medians, strict=True))
    row: dict[str, object] = {"layer": layer, "threads": threads}
    row["predicted_winner"] = min(predicted, key=lambda kind: predicted[kind])
    row["measured_winner"] = min(measured, key=lambda kind: measured[kind]) if any(medians) else ""
    for kind in KINDS:
        row[f"{kind}_predicted"] = predicted.get(kind, 0.0)
        row[f"{kind}_measured"] = measured.get(kind, 0.0)
        row[f"{kind}_schedule"] = texts.get(kind, "")
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
    lines = [f"seconds {how}", columns([head, *body], (0, len(head) - 2, len(head) - 1))]
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
