"""How much of a layer's speed is loop order, and how much the other knobs of a schedule?

From the schedules that sample.py measured, by threads and warm or cold caches; nothing is run.
The knobs: loop order (dimensions by their outermost loops), register tile (the microkernel), cache
blocks (which dimensions, into how many parts), row merging (how many image lines one call spans),
packing (none, before all loops, inside some), parallel loops (which), streaming of C. They overlap:
a call that spans several lines is another register tile as well, so shares do not add up to one.

  held      best time of the layer over its best with the knob held at one setting for all layers:
            that of least loss on average (a layer that lacks a setting takes the next best one;
            lacking it counts as much as that layer's middle setting). 0.9: 10 % of the speed is
            lost by whoever may not choose this knob by layer
  chance    the same for as many schedules taken at random: holding a knob leaves fewer to choose
            from, and that alone loses speed
  middle, worst   as held, with the layer's middle and its worst setting
  share     of log(best over median) that is lost by holding the knob
  variance  share of the variance of log time between the knob's settings in one layer, adjusted
            for their number (epsilon squared): 0 explains nothing, 1 all

Writes order_or_knobs.csv (a row a setting, layer and knob), order_or_knobs_summary.csv and
order_or_knobs.png.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb, exp, log
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np
import plots
import script
from records import Layer

from polysci.polyhedral.contraction import Contraction, Strides
from polysci.space import schedule
from polysci.space.directives import Stream
from polysci.space.enumerate import row_dims
from polysci.space.schedule import Schedule
from polysci.text.tables import columns
from polysci.tune import model_of


@dataclass(frozen=True, slots=True)
class Nest:
    """What the knobs ask of a layer."""

    contraction: Contraction
    strides: Strides

    @property
    def extents(self) -> dict[str, int]:
        return {d.name: d.extent for d in self.contraction.dims}


Knob = Callable[[Schedule, Nest], str]


def order(schedule: Schedule, nest: Nest) -> str:
    """Dimensions by their outermost loops, from the outside inwards."""
    return " ".join(dict.fromkeys(loop.dim for loop in schedule.loops)) or "none"


def blocks(schedule: Schedule, nest: Nest) -> str:
    """Dimensions with a loop around their innermost one, reductions with any; and parts each.

    Parts are rounded up to a power of two, so that layers of different extents can agree.
    """
    depths = {d.name for d in nest.contraction.by_role("k")}
    sizes: dict[str, int] = {}
    for at, loop in enumerate(schedule.loops):
        inside = any(inner.dim == loop.dim for inner in schedule.loops[at + 1 :])
        if inside or loop.dim in depths:
            sizes[loop.dim] = -(-nest.extents[loop.dim] // loop.step)
    words = [f"{dim}/{1 << (parts - 1).bit_length()}" for dim, parts in sorted(sizes.items())]
    return " ".join(words) or "none"


def merging(schedule: Schedule, nest: Nest) -> str:
    """Lines of the image that one call spans."""
    rows = row_dims(nest.contraction, nest.strides)
    if len(rows) < 2:
        return "one line"
    lines = schedule.tile(nest.extents)[rows[-2].name]
    if lines == rows[-2].extent:
        return "whole image"
    return "one line" if lines == 1 else "2 or 3" if lines < 4 else "4 or more"


def packing(schedule: Schedule, nest: Nest) -> str:
    """Where A is packed."""
    if schedule.pack is None:
        return "none"
    return "inside" if schedule.pack_depth else "before"


def parallel(schedule: Schedule, nest: Nest) -> str:
    """The dimensions of the parallel loops."""
    return " ".join(loop.dim for loop in schedule.parallel) or "none"


KNOBS: Mapping[str, Knob] = MappingProxyType(
    {
        "loop order": order,
        "register tile": lambda schedule, nest: schedule.kernel,
        "cache blocks": blocks,
        "row merging": merging,
        "packing": packing,
        "parallel loops": parallel,
        "streaming": lambda schedule, nest: "stream" if schedule.has(Stream) else "keep",
    }
)


@dataclass(frozen=True, slots=True)
class Held:
    """A layer's times by one knob: setting -> seconds of the schedules that have it, ascending."""

    layer: Layer
    by_setting: Mapping[str, np.ndarray]

    @property
    def best(self) -> float:
        return float(self.layer.seconds.min())

    def reached(self, setting: str) -> float:
        """Best time of all over the best with this setting."""
        return self.best / float(self.by_setting[setting][0])

    def middle(self) -> float:
        return median(self.reached(setting) for setting in self.by_setting)

    def worst(self) -> float:
        return min(self.reached(setting) for setting in self.by_setting)

    def chance(self, setting: str) -> float:
        """Geometric mean of what as many random schedules of the layer would reach."""
        return chance(self.layer.seconds, len(self.by_setting[setting]))


def main() -> int:
    return script.run(work, script.options(__doc__).parse_args())


def work(arguments: Namespace) -> bool:
    """Attribute, write, print, draw; False if Ctrl-C cut it short."""
    layers = list(script.sampled(arguments.sample, arguments.quick))
    read, whole = script.kept(map(by_knob, layers), "reading schedules", len(layers))
    rows = list(attributed(read))
    if not rows:
        return whole
    summary = summaries(rows)
    path = script.stem(arguments, "order_or_knobs")
    script.write_csv(path.with_suffix(".csv"), rows)
    script.write_csv(path.with_name(f"{path.name}_summary.csv"), summary)
    print(table(rows, summary))
    plots.draw(path.with_suffix(".png"), lambda axes: paint(axes, summary), columns=2, size=(12, 5))
    return whole


def by_knob(layer: Layer) -> dict[str, Held]:
    """The layer's times by every knob."""
    _, contraction, strides = model_of(layer.problem)
    nest = Nest(contraction, strides)
    schedules = [schedule.parse(text) for text in layer.schedules]
    layer_by_knob = {}
    for name, knob in KNOBS.items():
        settings = [knob(parsed, nest) for parsed in schedules]
        its = {
            setting: np.sort(layer.seconds[[other == setting for other in settings]])
            for setting in sorted(set(settings))
        }
        layer_by_knob[name] = Held(layer, MappingProxyType(its))
    return layer_by_knob


def attributed(layers: Sequence[Mapping[str, Held]]) -> Iterator[dict[str, Any]]:
    """A row for every layer and knob; the held setting is chosen over the layers of one kind."""
    for kind in script.SETTINGS:
        for knob in KNOBS:
            its = [layer[knob] for layer in layers if layer[knob].layer.setting == kind]
            ranking = preferred(its)
            for layer in its:
                yield _row(
                    knob, layer, next(setting for setting in ranking if setting in layer.by_setting)
                )


def preferred(layers: Sequence[Held]) -> list[str]:
    """Settings, the one of least average loss first.

    Where a layer lacks one, its middle setting stands in: else a setting that only one layer has
    would win for being good there.
    """
    settings = sorted({setting for layer in layers for setting in layer.by_setting})

    def loss(setting: str) -> float:
        return -sum(
            log(layer.reached(setting) if setting in layer.by_setting else layer.middle())
            for layer in layers
        )

    return sorted(settings, key=loss)


def _row(knob: str, held_layer: Held, setting: str) -> dict[str, Any]:
    layer = held_layer.layer
    return {
        "setting": layer.setting,
        "network": layer.network,
        "layer": layer.problem.name or str(layer.problem),
        "problem": layer.problem.key,
        "schedules": len(layer.seconds),
        "best_over_median": float(np.median(layer.seconds)) / held_layer.best,
        "knob": knob,
        "choices": len(held_layer.by_setting),
        "held_at": setting,
        "held": held_layer.reached(setting),
        "chance": held_layer.chance(setting),
        "middle": held_layer.middle(),
        "worst": held_layer.worst(),
        "variance": explained(list(held_layer.by_setting.values())),
    }


def chance(seconds: np.ndarray, count: int) -> float:
    """Geometric mean of the best over the least of ``count`` of the times drawn at random.

    Exact: the i-th least of N is the least of the draw in C(N-i, count-1) of C(N, count) cases.
    """
    ordered, total = np.sort(seconds), comb(len(seconds), count)
    mean = sum(
        comb(len(seconds) - 1 - at, count - 1) / total * log(ordered[0] / value)
        for at, value in enumerate(ordered)
    )
    return exp(mean)


def explained(groups: Sequence[np.ndarray]) -> float:
    """Epsilon squared of log time: one-way, adjusted for the number of groups, never below 0.

    Kelley, An unbiased correlation ratio measure (PNAS 1935). 0 where nothing is left to judge by.
    """
    logs = [np.log(group) for group in groups]
    every = np.concatenate(logs)
    total = float(((every - every.mean()) ** 2).sum())
    free = len(every) - len(logs)
    if len(logs) < 2 or free < 1 or total == 0:
        return 0.0
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in logs)
    return max(0.0, 1 - (within / free) / (total / (len(every) - 1)))


def summaries(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each setting and knob: geomeans over the layers; ``free`` layers have a choice."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["setting"], row["knob"]), []).append(row)
    table = []
    for (setting, knob), its in groups.items():
        means = {
            name: script.geomean(row[name] for row in its)
            for name in ("held", "chance", "middle", "worst", "best_over_median")
        }
        spread = log(means["best_over_median"])
        table.append({
            "setting": setting, "knob": knob, "layers": len(its),
            "free": sum(row["choices"] > 1 for row in its), **means,
            "held_worst_layer": min(row["held"] for row in its),
            "share": abs(log(means["held"])) / spread if spread else 0.0,
            "variance": float(np.mean([row["variance"] for row in its])),
        })  # fmt: skip
    return table


def table(rows: Sequence[Mapping[str, Any]], summary: Sequence[Mapping[str, Any]]) -> str:
    """The summary as text, one part a setting."""
    lines = []
    names = ("held", "held_worst_layer", "chance", "middle", "worst", "share", "variance")
    head = ["knob", "layers with a choice", "held", "worst layer", "chance", "middle", "worst",
            "share", "variance"]  # fmt: skip
    for setting in dict.fromkeys(row["setting"] for row in summary):
        its = [row for row in summary if row["setting"] == setting]
        ratio = its[0]["best_over_median"]
        lines.append(f"{setting}: best over median {ratio:.2f}, geomean of {its[0]['layers']}")
        cells = [
            [row["knob"], f"{row['free']}/{row['layers']}", *(f"{row[n]:.3f}" for n in names)]
            for row in its
        ]
        lines += [columns([head, *cells]), ""]
    return "\n".join(lines[:-1])


def paint(axes: Any, summary: Sequence[Mapping[str, Any]]) -> None:
    """Bars a knob: speed lost when it is held, beside chance; and variance explained."""
    settings = list(dict.fromkeys(row["setting"] for row in summary))
    knobs, height = list(KNOBS), 0.8 / len(settings)
    for at, setting in enumerate(settings):
        its = {row["knob"]: row for row in summary if row["setting"] == setting}
        places = [number + at * height for number in range(len(knobs))]
        threads, caches = setting.split()
        style = {"height": height, "label": f"{threads} thread(s), {caches}",
                 "color": plots.COLOURS[at]}  # fmt: skip
        axes[0][0].barh(places, [100 * (1 - its[knob]["held"]) for knob in knobs], **style)
        axes[0][0].plot(
            [100 * (1 - its[knob]["chance"]) for knob in knobs], places, "k|", markersize=10,
            label="as many schedules at random" if not at else None,
        )  # fmt: skip
        axes[0][1].barh(places, [100 * its[knob]["variance"] for knob in knobs], **style)
    for axis in axes[0]:
        axis.set_yticks([n + 0.4 - height / 2 for n in range(len(knobs))], knobs)
        axis.invert_yaxis()
    axes[0][0].set_xlabel("% of the best speed lost with the knob held at one setting")
    axes[0][1].set_xlabel("% of the variance of log time between its settings")
    axes[0][0].legend(loc="lower right", fontsize="small")


if __name__ == "__main__":
    sys.exit(main())
