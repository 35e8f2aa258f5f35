"""How well does every ranker order the measured schedules of a layer?

Shows, for each ranker of polysci.cost.RANKERS on the schedules that sample.py measured, by threads
and warm or cold caches:

  top-1, top-5   least time of the whole sample over that of the ranker's first, or best of its
                 first five: 1 is perfect, 0.9 means 10 % of the speed given away; geomean, worst
  tau            Kendall's tau between cost and time; 1 is the same order, 0 none; mean, worst
  pairs          share of the pairs more than 2 % apart in time that it puts the right way
  / constant     its top-1 over that of one schedule template for everything: above 1 it is better

`constant` and `learned` are trained without the network that they are tried on. With --before, an
earlier measurement of the same schedules is one more ranker, `measured`: what its times lack of 1
is noise, which no ranker can foresee. `pip install experiments/rankers` adds those to compare with:
`constant`, `rules`, `random`, and `tiles` of the literature.
Writes rank_quality.csv (a row a setting, layer and ranker), rank_quality_summary.csv and
rank_quality.png. Nothing is run; it takes about a minute a ranker.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import plots
import script
from records import Layer

from polysci import tune
from polysci.cost import RANKERS, Context, metrics
from polysci.cost.batch import costs
from polysci.cost.shortlist import ranker_of
from polysci.errors import PolysciError
from polysci.space import schedule
from polysci.space.schedule import Schedule
from polysci.text.tables import columns
from polysci.tune import training as learn

BASELINE = "constant"
Numbers = np.ndarray
Costed = tuple[Layer, Numbers | PolysciError]


def main() -> int:
    parser = script.options(__doc__)
    parser.add_argument(
        "--ranker", nargs="+", choices=tuple(RANKERS), default=tuple(RANKERS), metavar="NAME",
        help=f"which, of {', '.join(RANKERS)} (all)",
    )  # fmt: skip
    parser.add_argument(
        "--before", type=Path, metavar="FILE", help="what sample.py measured before (none)"
    )
    return script.run(work, parser.parse_args())


def work(arguments: Namespace) -> bool:
    """Score, write, print, draw; False if Ctrl-C cut it short."""
    layers = list(script.sampled(arguments.sample, arguments.quick))
    skipped: dict[tuple[str, str], int] = {}
    before = list(script.sampled(arguments.before)) if arguments.before else []
    steps = chain(scored(layers, arguments.ranker, skipped), by_times(layers, before))
    count = len(layers) * len(arguments.ranker) + len(before)
    ranked, whole = script.kept(steps, "ranking", count)
    settings = list(dict.fromkeys(layer.setting for layer in layers))
    rows = against_baseline([row for row in ranked if row is not None])
    rows.sort(key=lambda row: settings.index(row["setting"]))  # stable: rankers keep their order
    for (ranker, reason), times in skipped.items():
        print(f"{ranker} left out of {times} layer(s): {reason}", file=sys.stderr)
    if not rows:
        return whole
    path = script.stem(arguments, "rank_quality")
    summary = summaries(rows)
    script.write_csv(path.with_suffix(".csv"), rows)
    script.write_csv(path.with_name(f"{path.name}_summary.csv"), summary)
    print(table(summary))
    settings = [setting for setting in settings if any(row["setting"] == setting for row in rows)]
    plots.draw(
        path.with_suffix(".png"), lambda axes: paint(axes, rows, settings),
        columns=len(settings), size=(1 + 4.5 * len(settings), 5),
    )  # fmt: skip
    return whole


def scored(
    layers: Sequence[Layer], rankers: Sequence[str], skipped: dict[tuple[str, str], int]
) -> Iterator[script.Row | None]:
    """A row for each ranker and layer, None where the ranker refuses; ``skipped`` counts why."""
    for ranker in rankers:
        for setting in dict.fromkeys(layer.setting for layer in layers):
            alike = [layer for layer in layers if layer.setting == setting]
            for layer, outcome in COSTS.get(ranker, untrained)(ranker, alike):
                if isinstance(outcome, PolysciError):
                    reason = ranker, str(outcome).partition("\n")[0]
                    skipped[reason] = skipped.get(reason, 0) + 1
                    yield None
                else:
                    yield row_of(layer, ranker, outcome)


def by_times(layers: Sequence[Layer], before: Sequence[Layer]) -> Iterator[script.Row]:
    """The rows of an earlier measurement, on the schedules that both have."""
    later = {(layer.setting, layer.problem.key): layer for layer in layers}
    for earlier in before:
        layer = later.get((earlier.setting, earlier.problem.key))
        known = dict(zip(earlier.schedules, earlier.seconds, strict=True))
        both = [at for at, name in enumerate(layer.schedules if layer else ()) if name in known]
        if layer and both:
            names = tuple(layer.schedules[at] for at in both)
            common = replace(layer, schedules=names, seconds=layer.seconds[both])
            yield row_of(common, "measured", np.array([known[name] for name in names]))


def row_of(layer: Layer, ranker: str, cost: Numbers) -> dict[str, object]:
    """The measures of one ranker on one layer."""
    seconds = layer.seconds
    return {
        "setting": layer.setting,
        "network": layer.network,
        "layer": layer.problem.name or str(layer.problem),
        "problem": layer.problem.key,
        "schedules": len(seconds),
        "ranker": ranker,
        "top1": metrics.best_of_top(cost, seconds),
        "top5": metrics.best_of_top(cost, seconds, 5),
        "tau": metrics.tau(cost, seconds),
        "pairs": metrics.pair_accuracy(cost, seconds),
    }


def context_of(layer: Layer) -> Context:
    """What a ranker is told of a layer: its threads, and whether the caches are cold."""
    cold = layer.setting.endswith("cold")
    return replace(tune.context_of(layer.problem, layer.threads), cold=cold)


def plans_of(layer: Layer) -> tuple[Schedule, ...]:
    return tuple(map(schedule.parse, layer.schedules))


def untrained(ranker: str, layers: Sequence[Layer]) -> Iterator[Costed]:
    """Costs of a ranker that knows what it knows."""
    for layer in layers:
        try:
            yield layer, costs(context_of(layer), plans_of(layer), ranker_of(ranker).cost)
        except PolysciError as error:
            yield layer, error


def learned(ranker: str, layers: Sequence[Layer]) -> Iterator[Costed]:
    """Costs by what the layers of the other networks teach, with as many threads and as warm."""
    try:
        samples = [
            learn.TrainingSample(layer.network, context_of(layer), plans_of(layer), layer.seconds)
            for layer in layers
        ]
        scores = learn.cross_validate(samples)
    except PolysciError as error:
        yield from ((layer, error) for layer in layers)
        return
    yield from ((layer, score.costs) for layer, score in zip(layers, scores, strict=True))


def constant(ranker: str, layers: Sequence[Layer]) -> Iterator[Costed]:
    """Costs by the template that suits the layers of the other networks best."""
    from polysci_rankers.constant import best_template, nearness  # only its package offers it

    for network in dict.fromkeys(layer.network for layer in layers):
        its = [layer for layer in layers if layer.network == network]
        others = [layer for layer in layers if layer.network != network]
        training = [(context_of(layer), plans_of(layer), layer.seconds) for layer in others]
        try:
            cost = nearness(best_template(training))
            for layer in its:
                yield layer, costs(context_of(layer), plans_of(layer), cost)
        except PolysciError as error:
            yield from ((layer, error) for layer in its)


COSTS: Mapping[str, Callable[[str, Sequence[Layer]], Iterator[Costed]]] = MappingProxyType(
    {"learned": learned, "constant": constant}
)


def against_baseline(rows: Sequence[script.Row]) -> list[dict[str, Any]]:
    """The rows with ``against_constant``: their top-1 over the baseline's on the same layer."""
    of_baseline = {
        (row["setting"], row["problem"]): row["top1"] for row in rows if row["ranker"] == BASELINE
    }
    return [
        {**row, "against_constant": _ratio(row["top1"], of_baseline.get(_place(row)))}
        for row in rows
    ]


def _place(row: script.Row) -> tuple[object, object]:
    return row["setting"], row["problem"]


def _ratio(value: Any, other: Any) -> float | str:
    return "" if other is None else float(value / other)


def summaries(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each setting and ranker: over all networks, then network by network."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for network in ("all", *dict.fromkeys(row["network"] for row in rows)):
        for row in rows:
            if network in ("all", row["network"]):
                groups.setdefault((row["setting"], network, row["ranker"]), []).append(row)
    return [
        {"setting": setting, "network": network, "ranker": ranker, **_summary(its)}
        for (setting, network, ranker), its in groups.items()
    ]


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ratios = [row["against_constant"] for row in rows if row["against_constant"] != ""]
    summary: dict[str, Any] = {"layers": len(rows)}
    for name, mean in MEANS.items():
        values = [row[name] for row in rows]
        summary |= {name: mean(values), f"{name}_worst": min(values)}
    return summary | {"against_constant": script.geomean(ratios) if ratios else ""}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


MEANS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "top1": script.geomean, "top5": script.geomean, "tau": _mean, "pairs": _mean,
}  # fmt: skip


def table(summary: Sequence[Mapping[str, Any]]) -> str:
    """The summary over all networks, then top-1 by network, as text."""
    head = ["threads, caches", "ranker", "layers", "top-1", "worst", "top-5", "worst", "tau",
            "worst", "pairs", "worst", "/ constant"]  # fmt: skip
    names = [f"{name}{end}" for name in MEANS for end in ("", "_worst")] + ["against_constant"]
    overall = [
        [row["setting"], row["ranker"], str(row["layers"]), *(_text(row[name]) for name in names)]
        for row in summary
        if row["network"] == "all"
    ]
    networks = [name for name in dict.fromkeys(row["network"] for row in summary) if name != "all"]
    cells = {(row["setting"], row["ranker"], row["network"]): row["top1"] for row in summary}
    by_network = [
        [setting, ranker, *(_text(cells.get((setting, ranker, name), "")) for name in networks)]
        for setting, ranker in dict.fromkeys((key[0], key[1]) for key in overall)
    ]
    header = ["threads, caches", "ranker", *networks]
    left = (0, 1)
    return "\n".join(
        ["Of the sample's best speed, geomean and worst layer; tau and pairs: mean and worst",
         columns([head, *overall], left), "", "Top-1 by network",
         columns([header, *by_network], left)]
    )  # fmt: skip


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3f}"


def paint(axes: Any, rows: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> None:
    """Top-1 of every layer, sorted, one line a ranker, one panel a setting."""
    rankers = list(dict.fromkeys(row["ranker"] for row in rows))
    floor = np.floor(10 * min(row["top1"] for row in rows)) / 10
    for axis, setting in zip(axes[0], settings, strict=True):
        for at, ranker in enumerate(rankers):
            values = sorted(
                row["top1"] for row in rows if (row["setting"], row["ranker"]) == (setting, ranker)
            )
            axis.plot(
                np.linspace(0, 1, len(values)), values, label=ranker,
                color=plots.COLOURS[at % len(plots.COLOURS)],
                linestyle="-" if at < len(plots.COLOURS) else "--", marker=".",
            )  # fmt: skip
        threads, caches = setting.split()
        axis.set_title(f"{threads} thread{'s' if threads != '1' else ''}, {caches} caches")
        axis.set_xlabel("share of the layers, worst first")
        axis.set_ylim(floor, 1.01)
    axes[0][0].set_ylabel("speed of the first choice, of the sample's best")
    axes[0][-1].legend(loc="lower right")


if __name__ == "__main__":
    sys.exit(main())
