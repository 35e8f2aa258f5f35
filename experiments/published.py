"""How do the rankers order the schedules that PolyDL's authors measured?

FILE is `scripts/example_conv2d_all_layers_N_1.csv` of the PolyDL repository: 19 layers of ResNet-50
at batch 1 on one core of a Cascade Lake server, each in four loop orders around a microkernel, with
the speed of each and the working sets that the authors' program found. The nest is
img, ofm_t, ifm_t, oj, kj, ki in the order of the version, then oi, ofm, ifm inside the microkernel.

For every ranker and layer: the speed of its first choice, of the best (top-1); Kendall's tau; the
share of the pairs more than 2 % apart that it puts the right way. The rankers:

  traffic         footprint times refetches of every cache level, over its bandwidth, summed: what
                  polysci.polyhedral.footprint counts, on the machine described below
  polyscientist,  the published costs of exact working sets, as published or with the last iteration
  polydl          (inclusive), placed pessimistically or optimistically
  ... its sizes   the published costs of the sizes that the file gives
  constant        the one order that is best over all layers of the file, which it has seen
  random          the mean over all 24 orders of preference

Writes published.csv (a row a ranker and layer), published_summary.csv and published.png. Nothing is
run; it takes some seconds.
"""

from __future__ import annotations

import csv
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import plots
import script
from exact_working_sets import from_exact, text_order, working_sets

from polysci.cost import metrics, published
from polysci.cost.published import BANDWIDTHS, CONVENTIONS, LATENCIES, WEIGHTS, Sizes
from polysci.errors import SpecError
from polysci.polyhedral.contraction import contraction
from polysci.polyhedral.extract import extract
from polysci.polyhedral.footprint import FLOAT, footprint, refetches
from polysci.polyhedral.footprint import traffic as level_traffic
from polysci.polyhedral.scop import Scop
from polysci.target import machine
from polysci.target.coefficients import PRIORS
from polysci.target.isas import ISAS
from polysci.target.target import KIB, MIB, Memory, Target
from polysci.text.tables import columns

Numbers = np.ndarray
SOURCE = "scripts/example_conv2d_all_layers_N_1.csv of the PolyDL repository"
ORDERS = {
    2: "img ofm_t ifm_t oj kj ki",
    3: "img oj kj ki ofm_t ifm_t",
    4: "img ofm_t kj ki ifm_t oj",
    5: "img ifm_t kj ki oj ofm_t",
}
INNER = "oi ofm ifm"
FIELDS = 10  # a version: number, GFLOP/s, four counts of working sets, four sizes in bytes
BLOCK = 64  # channels: with it our exact working sets are the file's, with 16 they are not
CLOCK = 2.7  # GHz, by which the published programs turn GB/s into bytes a cycle

# The published machine: 32 KiB and 1 MiB a core, 39 MiB in all (PolyScientist, arXiv 2002.02145:
# Xeon Platinum 8280, of which 38.5 MiB are in its data sheet); one core of it is used.
TARGET = Target(
    isa=ISAS["avx512"], features=ISAS["avx512"].features,
    memories=(Memory("L1", 32 * KIB), Memory("L2", 1 * MIB), Memory("L3", 39 * MIB)), cores=1,
    model_name="one core of a Cascade Lake server",
)  # fmt: skip
# L2 and L3 at the published bytes a cycle. Memory at the assumed rate of one server core: the
# published 55 bytes a cycle are a whole socket's; here every layer fits L3, so it decides nothing.
MACHINE = replace(
    machine.assume_rates(TARGET), l2=BANDWIDTHS[1] * CLOCK, l3=BANDWIDTHS[2] * CLOCK
)  # fmt: skip
COSTS = {"polyscientist": LATENCIES, "polydl": WEIGHTS}


@dataclass(frozen=True, slots=True)
class Version:
    """One loop order of a layer: its nest, its speed, and the file's bytes at L1 .. memory."""

    number: int
    scop: Scop
    gflops: float
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """A line of the file."""

    name: str
    versions: tuple[Version, ...]

    @property
    def seconds(self) -> Numbers:
        """Times of the versions, in an arbitrary unit."""
        return 1 / np.array([version.gflops for version in self.versions])


def main() -> int:
    parser = script.options(__doc__, sample=False)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help=SOURCE)
    return script.run(work, parser.parse_args())


def work(arguments: Namespace) -> bool:
    """Score, write, print, draw; False if Ctrl-C cut it short."""
    layers = read(arguments.file)
    layers = layers[:: len(layers) // 3][:3] if arguments.quick else layers
    counted, whole = script.kept(map(exact_sizes, layers), "working sets", len(layers))
    if not counted:
        return whole
    layers = layers[: len(counted)]
    rows = list(scored(layers, counted))
    path = script.stem(arguments, "published")
    script.write_csv(path.with_suffix(".csv"), rows)
    script.write_csv(path.with_name(f"{path.name}_summary.csv"), summaries(rows))
    print(table(summaries(rows)))
    same, total = agreement(layers, counted)
    print(f"\nExact working sets, as published: {same} of {total} orders have the file's own bytes")
    plots.draw(path.with_suffix(".png"), lambda axes: paint(axes, rows), size=(9, 6.5))
    return whole


def read(path: Path | None) -> list[Layer]:
    """The layers of the file. Raises SpecError where it is missing or another."""
    if path is None or not path.is_file():
        missing = "FILE is missing" if path is None else f"{path}: no such file"
        raise SpecError(f"{missing}: it is {SOURCE}, whose data are not ours to hand on")
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))[1:]
        layers = [_layer(line) for line in lines if line]
    except (ValueError, LookupError) as error:
        raise SpecError(f"{path}: expected {SOURCE}: {error}") from None
    if not layers:
        raise SpecError(f"{path}: expected {SOURCE}: no layer in it")
    return layers


def _layer(line: Sequence[str]) -> Layer:
    _, width, height, inputs, outputs, kw, kh, _, _, stride = map(int, line[0].split())
    if stride != 1:
        raise ValueError(f"stride {stride}: the nest is written for stride 1")
    versions = []
    for start in range(1, len(line), FIELDS):
        number, gflops, *counts = line[start : start + FIELDS]
        text = nest(ORDERS[int(number)], height, width, inputs, outputs, kh, kw)
        sizes = tuple(map(int, counts[4:]))
        versions.append(Version(int(number), extract(text), float(gflops), sizes))
    return Layer(f"{inputs} to {outputs}, {kh}x{kw}, {height}x{width}", tuple(versions))


def nest(order: str, height: int, width: int, inputs: int, outputs: int, kh: int, kw: int) -> str:
    """A layer in C over blocked channels, its input padded beforehand."""
    extents = {
        "img": 1, "ofm_t": outputs // BLOCK, "ifm_t": inputs // BLOCK, "oj": height, "kj": kh,
        "ki": kw, "oi": width, "ofm": BLOCK, "ifm": BLOCK,
    }  # fmt: skip
    loops = " ".join(
        f"for (int {name} = 0; {name} < {extents[name]}; ++{name})"
        for name in f"{order} {INNER}".split()
    )
    return (
        f"float O[1][{extents['ofm_t']}][{height}][{width}][{BLOCK}],"
        f" I[1][{extents['ifm_t']}][{height + kh - 1}][{width + kw - 1}][{BLOCK}],"
        f" W[{extents['ofm_t']}][{extents['ifm_t']}][{kh}][{kw}][{BLOCK}][{BLOCK}];\n"
        f"#pragma scop\n{loops}\n"
        "O[img][ofm_t][oj][oi][ofm] += I[img][ifm_t][oj + kj][oi + ki][ifm]"
        " * W[ofm_t][ifm_t][kj][ki][ifm][ofm];\n#pragma endscop\n"
    )


def exact_sizes(layer: Layer) -> dict[str, list[Sizes]]:
    """The exact working sets of every version, by convention."""
    return {
        convention: [
            from_exact(working_sets(text_order(version.scop), convention))
            for version in layer.versions
        ]
        for convention in CONVENTIONS
    }


def agreement(
    layers: Sequence[Layer], counted: Sequence[Mapping[str, list[Sizes]]]
) -> tuple[int, int]:
    """In how many orders ours, placed optimistically, are the bytes of the file; of how many."""
    same = [
        tuple(published.optimistic(sizes, published.caches_of(TARGET))[0]) == version.sizes
        for layer, counts in zip(layers, counted, strict=True)
        for version, sizes in zip(layer.versions, counts["published"], strict=True)
    ]
    return sum(same), len(same)


def scored(
    layers: Sequence[Layer], counted: Sequence[Mapping[str, list[Sizes]]]
) -> Iterator[script.Row]:
    """A row for each ranker and layer."""
    for layer in layers:
        yield row_of("traffic", layer, np.array([traffic(v) for v in layer.versions]))
    for name, weights in COSTS.items():
        for convention in CONVENTIONS:
            for place in published.PLACEMENTS:
                for layer, sizes in zip(layers, counted, strict=True):
                    cost = [_weighed(s, weights, place) for s in sizes[convention]]
                    yield row_of(f"{name}, {convention}, {place}", layer, np.array(cost))
    for name, weights in COSTS.items():
        for layer in layers:
            cost = np.array([version.sizes for version in layer.versions]) @ np.array(weights)
            yield row_of(f"{name}, its sizes", layer, cost)
    usual = slowness(layers)
    for layer in layers:
        yield row_of("constant", layer, np.array([usual[v.number] for v in layer.versions]))
    for layer in layers:
        yield random_row(layer)


def _weighed(sizes: Sizes, weights: Sequence[float], place: str) -> float:
    return float(published.weigh(sizes, published.caches_of(TARGET), weights, place)[0])


def traffic(version: Version) -> float:
    """Seconds that all cache levels take to deliver what the loops fetch: a microkernel's call
    lies inside the six outer loops."""
    roles, order = contraction(version.scop), ORDERS[version.number].split()
    tile = {d.name: np.full(1, float(d.extent)) for d in roles.dims}
    trips, kept, moved = [tile[dim] for dim in order], [], []
    for depth in range(len(order) + 1):
        inside = {**tile, **{dim: np.ones(1) for dim in order[:depth]}}
        a, b, c = (FLOAT * footprint(operand, inside) for operand in (roles.a, roles.b, roles.out))
        kept.append(a + b + c)
        times = [refetches(op, order, trips, depth) for op in (roles.a, roles.b, roles.out)]
        moved.append((a * times[0], b * times[1], 2 * c * times[2]))  # C is read and written
    sizes = [cache.size for cache in TARGET.caches]
    rates = (MACHINE.l2, MACHINE.l3, MACHINE.memory)
    return sum(
        float(level_traffic(kept, moved, PRIORS["usable_cache"] * size).total[0]) / (rate * 1e9)
        for size, rate in zip(sizes, rates, strict=True)
    )


def slowness(layers: Sequence[Layer]) -> dict[int, float]:
    """The mean over all layers of how much slower than the best an order is."""
    ratios: dict[int, list[float]] = {}
    for layer in layers:
        for version, seconds in zip(layer.versions, layer.seconds, strict=True):
            ratios.setdefault(version.number, []).append(float(seconds / layer.seconds.min()))
    return {number: script.geomean(values) for number, values in ratios.items()}


def row_of(ranker: str, layer: Layer, cost: Numbers) -> dict[str, Any]:
    """The measures of one ranker on one layer."""
    seconds = layer.seconds
    return {
        "ranker": ranker,
        "layer": layer.name,
        "choice": layer.versions[int(np.argmin(cost))].number,
        "top1": metrics.best_of_top(cost, seconds),
        "tau": metrics.tau(cost, seconds),
        "pairs": metrics.pair_accuracy(cost, seconds),
    }


def random_row(layer: Layer) -> dict[str, Any]:
    """The means over all orders of preference."""
    count = len(layer.versions)
    rows = [row_of("random", layer, np.array(costs)) for costs in permutations(range(count))]
    top1 = script.geomean(row["top1"] for row in rows)
    tau, pairs = (float(np.mean([row[name] for row in rows])) for name in ("tau", "pairs"))
    return {**rows[0], "choice": "", "top1": top1, "tau": tau, "pairs": pairs}


def summaries(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each ranker: top-1 geomean and worst, tau and pairs on average."""
    table = []
    for ranker in dict.fromkeys(row["ranker"] for row in rows):
        its = [row for row in rows if row["ranker"] == ranker]
        top1 = [row["top1"] for row in its]
        means = {name: float(np.mean([row[name] for row in its])) for name in ("tau", "pairs")}
        table.append(
            {"ranker": ranker, "layers": len(its), "top1": script.geomean(top1),
             "top1_worst": min(top1), **means}
        )  # fmt: skip
    return table


def table(summary: Sequence[Mapping[str, Any]]) -> str:
    """The summary as text."""
    head = ["ranker", "layers", "top-1", "worst", "tau", "pairs"]
    names = ("top1", "top1_worst", "tau", "pairs")
    lines = [
        [row["ranker"], str(row["layers"]), *(f"{row[name]:.3f}" for name in names)]
        for row in summary
    ]
    return columns([head, *lines], (0,))


def paint(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Top-1 of every layer as dots, one line a ranker, with the geomean as a bar."""
    axis, summary = axes[0][0], summaries(rows)
    for at, ranker in enumerate(reversed(summary)):
        values = [row["top1"] for row in rows if row["ranker"] == ranker["ranker"]]
        axis.plot(values, [at] * len(values), "o", color=plots.COLOURS[0], alpha=0.4, ms=5)
        axis.plot([ranker["top1"]], [at], "|", color=plots.COLOURS[1], ms=18, mew=3)
    axis.set_yticks(range(len(summary)), [row["ranker"] for row in reversed(summary)])
    axis.set_xlabel("speed of the first choice, of the best of four orders; bar: geomean")
    axis.set_title("PolyDL's measurements, one Cascade Lake core")


if __name__ == "__main__":
    sys.exit(main())
