"""How do the rankers order the variants of GEMMs that PolyDL's authors measured?

FILE lists measured variants: M,N,K, the tile sizes, the parallel loop, GFLOP/s, and the bytes that
the authors' program places into L1, L2, L3 and memory. They come from `apps/dnn-models` of the
PolyDL repository: 4,207 variants of 10 GEMMs on 28 cores of a Cascade Lake server, f32. The nest is
it2, jt2, kt2 over tiles M2 N2 K2, in them it1, jt1, kt1 over packed tiles M1 N1 K1, in them a
microkernel of m rows by n columns that takes k steps at a time; it2 or jt2 is parallel.

Two questions: which of all variants (`all`); and which cache tiling, each with its best kernel
(`tilings`, the question of the authors' own learned ranker: top-1 0.958, least 0.787, trained on
pairs of the same GEMMs). The rankers:

  traffic        registers' loads, and for L1, L2 and L3 what polysci.polyhedral.footprint counts,
                 over the rates of the machine that published.py describes, summed
  fitted         the same terms with coefficients fitted to the other nine GEMMs (least squares of
                 relative times, none negative), as polysci fits its own coefficients
  tournament     logistic regression on pairs of variants of the other nine GEMMs, of the logarithms
                 of the same terms and their squares, as the ranker 'learned' does
  polyscientist, the published costs of the bytes that the file gives
  polydl
  its bytes      a tournament on the shares of those bytes, which the authors' network has as inputs
  median         the median variant

Writes published_gemm.csv (a row a ranker, question and GEMM), published_gemm_summary.csv and
published_gemm.png. Nothing is run; it takes some seconds. Needs scikit-learn ([learn]).
"""

from __future__ import annotations

import csv
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import plots
import published
import script
from scipy.optimize import nnls

from polysci.cost import metrics
from polysci.errors import SpecError, UnsupportedError
from polysci.polyhedral.contraction import Contraction, contraction
from polysci.polyhedral.extract import extract
from polysci.polyhedral.footprint import FLOAT, footprint, refetches
from polysci.polyhedral.footprint import traffic as level_traffic
from polysci.target.coefficients import PRIORS
from polysci.text.tables import columns

Numbers = np.ndarray
SOURCE = "a table M,N,K,tiles,parallel_loop,gflops,l1_bytes,... of the PolyDL repository's results"
CORES, LANES = 28, 16
ORDER = ("i", "j", "k") * 3
EXTENT_OF = {"i": "M", "j": "N", "k": "K"}
BYTES = ("l1_bytes", "l2_bytes", "l3_bytes", "mem_bytes")
QUESTIONS = ("all", "tilings")
CALL = 60e-9  # seconds: a call of the published microkernel, assumed
PAIRS, STRENGTH, SQUARES, LIMIT = 400, 0.1, 0.3, 3.0  # of the tournament
NO_TRAFFIC = 1e-9  # beside the largest term, before a logarithm


@dataclass(frozen=True, slots=True)
class Gemm:
    """One product: its variants' tiles [variants, 9], GFLOP/s, published bytes [variants, 4]."""

    sizes: tuple[int, int, int]
    parallel: str
    tiles: Numbers
    gflops: Numbers
    bytes: Numbers

    @property
    def name(self) -> str:
        return "x".join(map(str, self.sizes))

    @property
    def seconds(self) -> Numbers:
        rows, columns_, depth = self.sizes
        seconds: Numbers = 2e-9 * rows * columns_ * depth / self.gflops
        return seconds

    def subset(self, question: str) -> Numbers:
        """Positions of the variants among which a question asks to choose."""
        if question == "all":
            return np.arange(len(self.gflops))
        best: dict[tuple[int, ...], int] = {}
        for at in np.argsort(-self.gflops, kind="stable"):
            best.setdefault(tuple(self.tiles[at, :6]), int(at))
        return np.array(sorted(best.values()))


def main() -> int:
    parser = script.options(__doc__, sample=False)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help=SOURCE)
    return script.run(work, parser.parse_args())


def work(arguments: Namespace) -> bool:
    """Score, write, print, draw."""
    gemms = read(arguments.file)
    gemms = gemms[:3] if arguments.quick else gemms
    rows = list(score_rankers(gemms))
    path = script.stem(arguments, "published_gemm")
    script.write_csv(path.with_suffix(".csv"), rows)
    table = summarise(rows)
    script.write_csv(path.with_name(f"{path.name}_summary.csv"), table)
    print(as_text(table))
    plots.draw(path.with_suffix(".png"), lambda axes: paint(axes, rows), size=(9, 5))
    return True


def read(path: Path | None) -> list[Gemm]:
    """The GEMMs of the file. Raises SpecError where it is missing or another."""
    if path is None or not path.is_file():
        missing = "FILE is missing" if path is None else f"{path}: no such file"
        raise SpecError(f"{missing}: it is {SOURCE}, whose data are not ours to hand on")
    groups: dict[tuple[int, int, int], list[dict[str, str]]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                groups.setdefault((int(row["M"]), int(row["N"]), int(row["K"])), []).append(row)
        gemms = [_gemm(sizes, rows) for sizes, rows in groups.items()]
    except (ValueError, LookupError, TypeError) as error:
        raise SpecError(f"{path}: expected {SOURCE}: {error}") from None
    if len(gemms) < 3:
        raise SpecError(f"{path}: expected {SOURCE}: {len(gemms)} GEMMs in it, three at least")
    return gemms


def _gemm(sizes: tuple[int, int, int], rows: Sequence[Mapping[str, str]]) -> Gemm:
    tiles = np.array([list(map(int, row["tiles"].split("-"))) for row in rows], float)
    if tiles.shape[1] != len(ORDER) or (tiles < 1).any():
        raise ValueError(f"tiles {rows[0]['tiles']!r}: nine positive sizes")
    parallel = {row["parallel_loop"] for row in rows}
    if len(parallel) != 1 or not parallel <= {"it2", "jt2"}:
        raise ValueError(f"parallel_loop {sorted(parallel)}: it2 or jt2, the same for a GEMM")
    bytes_ = np.array([[float(row[name]) for name in BYTES] for row in rows])
    gflops = np.array([float(row["gflops"]) for row in rows])
    return Gemm(sizes, parallel.pop(), tiles, gflops, bytes_)


def terms(gemm: Gemm) -> Numbers:
    """Seconds of one thread by what causes them, [variants, terms].

    Multiplications; loads of a register tile, m + n/16 for m * n/16 multiplications; latency of a
    tile with few sums; loads and stores of C in every call; calls; bytes into L1, L2 and L3.
    """
    extents = {
        dim: np.full(len(gemm.gflops), float(gemm.sizes[at])) for at, dim in enumerate("ijk")
    }
    shared = gemm.parallel[0]
    tile = gemm.tiles[:, ORDER.index(shared)]
    extents[shared] = np.ceil(np.ceil(extents[shared] / tile) / CORES) * tile  # of the busiest core
    rows, wide = np.minimum(gemm.tiles[:, 6], gemm.tiles[:, 3]), gemm.tiles[:, 7] / LANES
    clock, depth = published.CLOCK * 1e9, np.minimum(gemm.tiles[:, 5], extents["k"])
    vectors = extents["i"] * extents["j"] * extents["k"] / LANES
    calls = vectors * LANES / np.prod(np.minimum(gemm.tiles[:, 3:6], np.inf), axis=1)
    multiplied = vectors / 2 / clock  # two units
    return np.stack(
        [
            multiplied,
            multiplied * (rows + wide) / (rows * wide),
            multiplied * 8 / (rows * wide),  # a sum waits four cycles, with two units for eight
            2 * multiplied / depth,
            calls * CALL,
            *_level_seconds(gemm, extents),
        ],
        axis=1,
    )


def _level_seconds(gemm: Gemm, extents: Mapping[str, Numbers]) -> Iterator[Numbers]:
    """Seconds that L1, L2 and a core's part of L3 wait for the level behind each of them.

    All cores read the factor that the parallel loop does not index, and L3 holds it once.
    """
    target, machine = published.TARGET, published.MACHINE
    behind = published.BANDWIDTHS[-1] * published.CLOCK / CORES  # of the whole socket, GB/s
    levels = ((machine.l2, 1), (machine.l3, 1), (behind, CORES))
    for cache, (rate, sharers) in zip(target.caches, levels, strict=True):
        kept, moved = _sub_nests(gemm, extents, sharers)
        bytes_ = level_traffic(kept, moved, PRIORS["usable_cache"] * cache.size / sharers).total
        yield bytes_ / (rate * 1e9)


def _sub_nests(
    gemm: Gemm, extents: Mapping[str, Numbers], sharers: int
) -> tuple[list[Numbers], list[tuple[Numbers, Numbers, Numbers]]]:
    """By depth: bytes that the loops inside touch, and what of A, B and C moves in all visits."""
    roles, tile = _roles(gemm.sizes), dict(extents)
    operands = (roles.a, roles.b, roles.out)
    part = [1 if operand.uses(gemm.parallel[0]) else 1 / sharers for operand in operands]
    kept, moved, trips = list[Numbers](), list[tuple[Numbers, ...]](), list[Numbers]()
    for depth in range(len(ORDER) + 1):
        feet = [
            FLOAT * share * footprint(operand, tile)
            for operand, share in zip(operands, part, strict=True)
        ]
        times = [refetches(operand, ORDER, trips, depth) for operand in operands]
        kept.append(feet[0] + feet[1] + feet[2])
        moved.append((feet[0] * times[0], feet[1] * times[1], 2 * feet[2] * times[2]))
        if depth < len(ORDER):
            dim = ORDER[depth]
            step = np.minimum(gemm.tiles[:, depth], tile[dim])
            trips.append(np.ceil(tile[dim] / step))
            tile = {**tile, dim: step}
    return kept, moved


def _roles(sizes: tuple[int, int, int]) -> Contraction:
    rows, columns_, depth = sizes
    text = (
        f"float O[{rows}][{columns_}], A[{rows}][{depth}], B[{depth}][{columns_}];\n"
        f"#pragma scop\nfor (int i = 0; i < {rows}; ++i) for (int j = 0; j < {columns_}; ++j)"
        f" for (int k = 0; k < {depth}; ++k) O[i][j] += A[i][k] * B[k][j];\n#pragma endscop\n"
    )
    return contraction(extract(text))


def score_rankers(gemms: Sequence[Gemm]) -> Iterator[script.Row]:
    """A row for each ranker, question and GEMM."""
    counted = [terms(gemm) for gemm in gemms]
    logs = [np.log(table + NO_TRAFFIC * table.max()) for table in counted]
    shares = [gemm.bytes / gemm.bytes.sum(axis=1, keepdims=True) for gemm in gemms]
    rankers: dict[str, Callable[[int], Numbers]] = {
        "traffic": lambda at: counted[at].sum(axis=1),
        "fitted": lambda at: counted[at] @ fit_coefficients(gemms, counted, at),
        "tournament": lambda at: tournament(gemms, logs, at),
        **{
            name: partial(_weigh, gemms, np.array(weights))
            for name, weights in published.COSTS.items()
        },
        "its bytes": lambda at: tournament(gemms, shares, at),
    }
    for ranker, cost_of in rankers.items():
        costs = [cost_of(at) for at in range(len(gemms))]
        for question in QUESTIONS:
            for gemm, cost in zip(gemms, costs, strict=True):
                own = gemm.subset(question)
                yield row_of(ranker, question, gemm, cost[own], gemm.seconds[own])
    for question in QUESTIONS:
        for gemm in gemms:
            seconds = np.sort(gemm.seconds[gemm.subset(question)])
            median = float(seconds[0] / np.median(seconds))
            yield {
                "ranker": "median", "question": question, "gemm": gemm.name,
                "variants": len(seconds), "top1": median, "tau": 0.0, "pairs": 0.5,
            }  # fmt: skip


def _weigh(gemms: Sequence[Gemm], weights: Numbers, at: int) -> Numbers:
    """The published cost of a GEMM's variants."""
    return gemms[at].bytes @ weights


def row_of(
    ranker: str, question: str, gemm: Gemm, cost: Numbers, seconds: Numbers
) -> dict[str, Any]:
    """The measures of one ranker on one GEMM; of equal costs the mean speed counts."""
    first = np.flatnonzero(cost == cost.min())
    return {
        "ranker": ranker, "question": question, "gemm": gemm.name, "variants": len(cost),
        "top1": float(np.mean(seconds.min() / seconds[first])),
        "tau": metrics.tau(cost, seconds), "pairs": metrics.pair_accuracy(cost, seconds),
    }  # fmt: skip


def fit_coefficients(gemms: Sequence[Gemm], counted: Sequence[Numbers], out: int) -> Numbers:
    """Of every term, from all GEMMs but one, each of which weighs the same."""
    others = [at for at in range(len(gemms)) if at != out]
    weights = [1 / np.sqrt(len(gemms[at].gflops)) for at in others]
    shares = [counted[at] / gemms[at].seconds[:, None] for at in others]
    table = np.vstack([w * share for w, share in zip(weights, shares, strict=True)])
    wanted = np.concatenate([np.full(len(s), w) for w, s in zip(weights, shares, strict=True)])
    return np.asarray(nnls(table, wanted)[0])


def tournament(gemms: Sequence[Gemm], features: Sequence[Numbers], out: int) -> Numbers:
    """Minus a score that is trained on pairs of all GEMMs but one."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise UnsupportedError(
            "a tournament is trained by scikit-learn: pip install 'polysci[learn]'"
        ) from None
    rng, others = np.random.default_rng(0), [at for at in range(len(gemms)) if at != out]
    known = np.vstack([features[at] for at in others])
    spread = np.vstack([features[at] - features[at].mean(axis=0) for at in others]).std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)

    def widen(table: Numbers) -> Numbers:
        z = (table - known.mean(axis=0)) / scale
        return np.concatenate([z, SQUARES * np.clip(z, -LIMIT, LIMIT) ** 2], axis=1)

    differences, faster = list[Numbers](), list[Numbers]()
    for at in others:
        seconds = gemms[at].seconds
        first, second = rng.integers(0, len(seconds), (2, 3 * PAIRS))
        apart = np.abs(np.log(seconds[first] / seconds[second])) > metrics.NOISE
        first, second = first[apart][:PAIRS], second[apart][:PAIRS]
        wide = widen(features[at])
        differences.append(wide[first] - wide[second])
        faster.append(seconds[first] < seconds[second])
    model = LogisticRegression(C=STRENGTH, max_iter=2000, fit_intercept=False)
    model.fit(np.vstack(differences), np.concatenate(faster))
    return -widen(features[out]) @ np.asarray(model.coef_[0])


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each question and ranker: top-1 geomean and least, tau and pairs on average."""
    table = []
    for question, ranker in dict.fromkeys((row["question"], row["ranker"]) for row in rows):
        own = [row for row in rows if (row["question"], row["ranker"]) == (question, ranker)]
        top1 = [row["top1"] for row in own]
        means = {name: float(np.mean([row[name] for row in own])) for name in ("tau", "pairs")}
        table.append(
            {"question": question, "ranker": ranker, "gemms": len(own),
             "top1": script.geomean(top1), "top1_worst": min(top1), **means}
        )  # fmt: skip
    return sorted(table, key=lambda row: QUESTIONS.index(row["question"]))


def as_text(summary: Sequence[Mapping[str, Any]]) -> str:
    """The summary as text."""
    head = ["question", "ranker", "GEMMs", "top-1", "worst", "tau", "pairs"]
    names = ("top1", "top1_worst", "tau", "pairs")
    lines = [
        [row["question"], row["ranker"], str(row["gemms"]), *(f"{row[n]:.3f}" for n in names)]
        for row in summary
    ]
    return columns([head, *lines], (0, 1))


def paint(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Top-1 of every GEMM among the cache tilings as dots, a line a ranker, geomean as a bar."""
    own = [row for row in rows if row["question"] == "tilings"]
    axis, summary = axes[0][0], summarise(own)
    for at, ranker in enumerate(reversed(summary)):
        values = [row["top1"] for row in own if row["ranker"] == ranker["ranker"]]
        axis.plot(values, [at] * len(values), "o", color=plots.COLOURS[0], alpha=0.4, ms=5)
        axis.plot([ranker["top1"]], [at], "|", color=plots.COLOURS[1], ms=18, mew=3)
    axis.set_yticks(range(len(summary)), [row["ranker"] for row in reversed(summary)])
    axis.set_xlabel("speed of the first choice, of the best cache tiling; bar: geomean")
    axis.set_title("PolyDL's GEMMs, 28 Cascade Lake cores")


if __name__ == "__main__":
    sys.exit(main())
