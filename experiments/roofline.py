"""Where does every layer of a network stand under the roofs of this machine?

For each layer its chosen schedule: the measured rate, the rate that the model predicts, the FMA
peak and what the caches' bandwidths allow. The model counts the bytes that the schedule moves into
L1 (from L2), into L2 (from L3) and into L3 (from memory); flops over these bytes are three
intensities, each with a roof of its own: min(peak, intensity x bandwidth of what the bytes leave).

  of roof     measured rate over the least of the three roofs; above 1 the model counts too many
              bytes. Rates and intensities leave out taps in the padding
  over bound  modelled traffic into L1, L2, L3 over the least that any schedule must load there;
              1 is as little as can be (polysci.polyhedral.footprint.load_bound_bytes)

Bandwidths are those of one core times the threads (polysci machine), for L3 and memory no more
than all cores get together. Measured rates come from the wisdom file, which 'polysci optimize'
fills; --level measure measures what is not there. Writes roofline_NETWORK.csv and
roofline_NETWORK.png.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import plots
import script

from polysci import tune
from polysci.cli.layers import LEVELS, positive, problems, say, threads_of, title
from polysci.cost import Context
from polysci.cost.shortlist import estimate_of
from polysci.errors import PolysciError, SpecError, WisdomError
from polysci.ops.problem import Problem
from polysci.polyhedral.footprint import load_bound_bytes
from polysci.target.host import detect
from polysci.text.tables import columns

INTO = ("L1", "L2", "L3")
FROM = MappingProxyType({"L1": "L2", "L2": "L3", "L3": "memory"})


@dataclass(frozen=True, slots=True)
class Roofs:
    """What the machine can do: the FMA peak in GFLOP/s, and GB/s into each cache level."""

    peak: float
    rates: Mapping[str, float]

    def at(self, level: str, intensity: float) -> float:
        """GFLOP/s that a level allows at so many flops a byte."""
        return min(self.peak, intensity * self.rates[level])


def roofs_of(context: Context) -> Roofs:
    """The roofs for the context's threads: cores add up until they reach what they share."""
    machine, threads = context.machine, context.threads
    rates = {
        "L1": machine.l2 * threads,
        "L2": min(machine.l3 * threads, machine.l3_all),
        "L3": min(machine.memory * threads, machine.memory_all),
    }
    return Roofs(machine.peak * threads, MappingProxyType(rates))


def main() -> int:
    parser = script.options(__doc__, sample=False)
    parser.add_argument(
        "networks", nargs="*", default=["resnet50"], metavar="NETWORK|FILE|SPEC",
        help="one picture each (resnet50)",
    )  # fmt: skip
    parser.add_argument("--layout", choices=("nhwc", "nchw"), default="nhwc", help="(nhwc)")
    parser.add_argument("--batch", type=positive, metavar="N", help="replace the batch of all")
    parser.add_argument("--threads", type=positive, metavar="N", help="(1)")
    parser.add_argument(
        "--level", choices=LEVELS, default="wisdom-only",
        help="how hard to look for what was not measured (wisdom-only: not at all)",
    )  # fmt: skip
    return script.run(work, parser.parse_args())


def work(arguments: Namespace) -> bool:
    """One picture a network; False if Ctrl-C cut it short."""
    return all(one_network(name, arguments) for name in arguments.networks)


def one_network(name: str, arguments: Namespace) -> bool:
    """Look up, write, print, draw one network."""
    words = Namespace(layers=[name], layout=arguments.layout, dtype="f32", batch=arguments.batch)
    layers = list({problem.key: problem for problem in reversed(problems(words))}.values())[::-1]
    layers = layers[:3] if arguments.quick else layers
    threads, missing = threads_of(arguments), list[str]()
    steps = measured(layers, arguments.level, threads, missing)
    points, whole = script.kept(steps, name, len(layers))
    rows = [row for row in points if row is not None]
    if missing:
        again = f"'polysci optimize {name} --threads {threads} --layout {arguments.layout}'"
        text = f"{name}: no measurement of {len(missing)} of {len(layers)} layers; {again} makes it"
        if not rows:
            raise SpecError(text)
        say(text)
    if not rows:
        return whole
    path = script.stem(arguments, f"roofline_{Path(name).stem}")
    roofs = roofs_of(tune.context_of(layers[0], threads))
    script.write_csv(path.with_suffix(".csv"), rows)
    print(table(name, rows, roofs))
    plots.draw(
        path.with_suffix(".png"), lambda axes: paint(axes[0], rows, roofs, name),
        columns=3, size=(16, max(5.0, 0.28 * len(rows) + 1.5)),
    )  # fmt: skip
    return whole


def measured(
    layers: Sequence[Problem], level: str, threads: int, missing: list[str]
) -> Iterator[dict[str, Any] | None]:
    """A row a layer; None, and a line in ``missing``, where there is no measurement."""
    for problem in layers:
        try:
            result = tune.optimize(problem, level, threads)
        except WisdomError:
            missing.append(title(problem))
            yield None
            continue
        except PolysciError as error:
            say(f"{title(problem)}: {error}")
            yield None
            continue
        yield row_of(problem, result, tune.context_of(problem, threads))
        if result.interrupted:
            raise KeyboardInterrupt


def row_of(problem: Problem, result: tune.Result, context: Context) -> dict[str, Any]:
    """Rates, traffic, roofs and bounds of one layer under its schedule."""
    estimate, target, roofs = estimate_of(context, result.schedule), detect(), roofs_of(context)
    sizes = {cache.name: float(cache.size) for cache in target.caches}
    sizes["L3"] /= context.threads
    work = problem.multiplied_flops * 1e-9
    rate = work / result.measurement.median if result.measurement else None
    row: dict[str, Any] = {
        "layer": title(problem), "problem": problem.key, "threads": context.threads,
        "measured": "" if rate is None else rate,
        "predicted": work / result.predicted, "peak": roofs.peak,
    }  # fmt: skip
    for level, moved in zip(INTO, estimate.levels, strict=True):
        total = float(moved.total.ravel()[0])
        bound = load_bound_bytes(context.contraction, sizes[level])
        intensity = work * 1e9 / total
        row |= {
            f"{level}_bytes": total, f"{level}_bound": bound, f"{level}_over_bound": total / bound,
            f"{level}_intensity": intensity, f"{level}_roof": roofs.at(level, intensity),
        }  # fmt: skip
    row["roof"] = min(row[f"{level}_roof"] for level in INTO)
    row["of_roof"] = "" if rate is None else rate / row["roof"]
    return row | {"schedule": str(result.schedule)}


def table(name: str, rows: Sequence[Mapping[str, Any]], roofs: Roofs) -> str:
    """The roofs, and every layer beside them."""
    bandwidths = ", ".join(f"{FROM[level]} {roofs.rates[level]:.0f}" for level in INTO)
    head = ["layer", "measured", "of peak", "predicted", "roof", "of roof",
            *(f"over bound {level}" for level in INTO)]  # fmt: skip
    cells = [
        [row["layer"], _number(row["measured"], 1), _share(row["measured"], row["peak"]),
         _number(row["predicted"], 1), _number(row["roof"], 1), _number(row["of_roof"], 2),
         *(f"{row[f'{level}_over_bound']:.2f}" for level in INTO)]
        for row in rows
    ]  # fmt: skip
    title_line = f"{name}: peak {roofs.peak:.0f} GFLOP/s; GB/s: {bandwidths}"
    return "\n".join([title_line, columns([head, *cells])])


def _number(value: float | str, digits: int) -> str:
    return "" if isinstance(value, str) else f"{value:.{digits}f}"


def _share(value: float | str, whole: float) -> str:
    return "" if isinstance(value, str) else f"{100 * value / whole:.0f} %"


def paint(axes: Sequence[Any], rows: Sequence[Mapping[str, Any]], roofs: Roofs, name: str) -> None:
    """Left the roofs and the layers under them; then, layer by layer, rates and traffic."""
    _roofs(axes[0], rows, roofs)
    axes[0].set_title(f"{name}, {rows[0]['threads']} thread(s)")
    places = range(len(rows))
    for axis, names in ((axes[1], [row["layer"] for row in rows]), (axes[2], [])):
        axis.set_yticks(places, names or [""] * len(rows), fontsize="small")
        axis.invert_yaxis()
    _rates(axes[1], rows, roofs)
    _distances(axes[2], rows)


def _roofs(axis: Any, rows: Sequence[Mapping[str, Any]], roofs: Roofs) -> None:
    every = [row[f"{level}_intensity"] for row in rows for level in INTO]
    low, high = min(every) / 2, max(every) * 2
    for at, level in enumerate(INTO):
        ridge = roofs.peak / roofs.rates[level]
        ends = [min(low, ridge / 4), ridge, max(high, 2 * ridge)]
        colour = plots.COLOURS[at]
        axis.plot(ends, [roofs.at(level, end) for end in ends], color=colour, linewidth=1,
                  label=f"{FROM[level]}: {roofs.rates[level]:.0f} GB/s")  # fmt: skip
        axis.scatter(
            [row[f"{level}_intensity"] for row in rows], [_rate(row) for row in rows],
            color=colour, s=18, zorder=3,
        )  # fmt: skip
    axis.axhline(roofs.peak, color="k", linewidth=1, label=f"FMA peak: {roofs.peak:.0f} GFLOP/s")
    plots.doublings(axis.set_xscale, axis.xaxis)
    plots.doublings(axis.set_yscale, axis.yaxis)
    axis.set(ylabel="GFLOP/s", xlabel="flops a byte that comes from L2, L3, memory")
    axis.set_ylim(min(min(map(_rate, rows)) / 2, roofs.peak / 8), roofs.peak * 1.6)
    axis.legend(loc="lower right", fontsize="small")


def _rate(row: Mapping[str, Any]) -> float:
    """The measured rate, or the predicted one where nothing was run."""
    return float(row["predicted"] if row["measured"] == "" else row["measured"])


def _rates(axis: Any, rows: Sequence[Mapping[str, Any]], roofs: Roofs) -> None:
    places = range(len(rows))
    run = [(row["measured"], at) for at, row in enumerate(rows) if row["measured"] != ""]
    axis.plot([row["roof"] for row in rows], places, "k|", markersize=12, label="least roof")
    axis.scatter([row["predicted"] for row in rows], places, facecolors="none",
                 edgecolors=plots.COLOURS[1], label="predicted")  # fmt: skip
    if run:
        axis.scatter(*zip(*run, strict=True), color=plots.COLOURS[0], s=18, label="measured")
    axis.axvline(roofs.peak, color="k", linewidth=1)
    axis.set_xlim(0, None)
    axis.set_xlabel("GFLOP/s; the line is the FMA peak")
    axis.legend(loc="lower left", fontsize="small")


def _distances(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for at, level in enumerate(INTO):
        axis.scatter([row[f"{level}_over_bound"] for row in rows], range(len(rows)), s=18,
                     color=plots.COLOURS[at], label=f"into {level}")  # fmt: skip
    axis.axvline(1, color="k", linewidth=1)
    plots.doublings(axis.set_xscale, axis.xaxis)
    axis.set_xlabel("modelled traffic over the least that any schedule loads")
    axis.legend(loc="lower right", fontsize="small")


if __name__ == "__main__":
    sys.exit(main())
