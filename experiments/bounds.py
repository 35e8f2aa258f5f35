"""Does the lower bound of tiles for groups of work-items ever prune the best one?

Of each problem all tiles, items and steps of the space are run by the interpreter of loop IR, which
counts what they do: products, issued instructions and wavefronts of the busiest compute unit, the
elements that copies read, and the bytes that are touched at all. At given rates the largest of
these times is the least that a device could take. A schedule is pruned if its bound exceeds the
least time of all. Rates are made up, so that each of the counts decides in one of the rows; nothing
is timed: what PoCL takes on a CPU says nothing about GPUs, and a GPU may take longer than what is
counted for other reasons.

The table gives, for each problem, the schedules, the share of them that is pruned, and the least
and the largest bound over the counted time. Where one exceeds 1, or a pruned schedule is the best,
the script fails. Takes some minutes a problem. Writes bounds.csv.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import and_
from typing import Any

import numpy as np
import script

from polysci.cli.layers import positive
from polysci.cost import Context, warps
from polysci.cost.groups import cache_rate, clock
from polysci.errors import CheckError
from polysci.loop_ir.interpreter import Interpreter
from polysci.loop_ir.memory import At, InterpretedMemory, MemoryUser, Pointer
from polysci.lower.algorithm import EmitOptions, SpaceLimits
from polysci.lower.mapped.nest import SHARED
from polysci.lower.registry import MAPPED, algorithm_named
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.runtime.backends.cuda import target_of
from polysci.runtime.source import emit
from polysci.space.directives.copy import Copy
from polysci.space.schedule import Schedule
from polysci.target.machine import assume_rates
from polysci.text.tables import columns

PROBLEMS = (
    *("mm:16x4x16", "mm:9x5x33", "mm:2:17x4x20", "mm:24x6x12 ta", "mm:12x3x24 tb"),
    *("mm:3x4x70", "mm:65x3x5 alpha=2", "mb1ic4ih4oc8oh4kh1", "mb2ic1ih4oc5oh2kh2ph0sh2"),
    *("mb1ic1ih5oc8oh5kh3ph1", "mb1ic4ih6oc4oh3kh1sh2ph0", "g2mb1ic8ih3oc8kh1"),
    *("mb1ic1ih6oc6oh5kh2ph0", "conv1d mb2ic2iw7oc6kw3pw1", "conv1d mb1ic8iw9oc4kw1"),
    *("bwd_w mb1ic2ih2oc4oh2kh3ph1", "bwd_w mb2ic3ih2oc4oh2kh1", "bwd_d mb1ic3ih4oc1oh4kh3ph1"),
    *("bwd_d mb1ic6ih3oc4oh3kh1", "conv3d mb1ic1id2ih3iw3oc4kd2kh2kw2pd0ph0pw0"),
)
LAYOUTS = ("nhwc", "nchw")
WORD = 4
HIGH = 1e9  # a rate that nothing waits for


@dataclass(slots=True)
class Counts:
    """What the groups of a launch do, in all; accesses since the last barrier are not in it yet."""

    products: int = 0
    issued: int = 0  # instructions of warps: sums, and loads of their factors
    reads: int = 0  # wavefronts
    writes: int = 0
    fetched: int = 0  # elements
    touched: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    span: int = -1
    accesses: dict[Any, dict[int, list[np.ndarray]]] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)  # of each item
    heights: dict[int, int] = field(default_factory=dict)  # rows that an item has read last

    def watch(self, user: MemoryUser, pointer: Pointer, at: At, writes: bool) -> None:
        """Count an access of the interpreter."""
        places, name = np.atleast_1d(np.asarray(at)) + pointer.offset // WORD, pointer.memory.name
        if name not in SHARED:
            if name in ("x", "packed", "y"):
                self.fetched += 0 if writes else places.size
                self.touched[name].update(places.ravel().tolist())
            return
        if user.span != self.span:
            self.fold()
            self.span = user.span
        for words in instructions(places, writes=writes):
            items = self.accesses.setdefault((name, writes, words.shape[1]), {})
            items.setdefault(user.number, []).append(words)
        if not writes and name == SHARED[0]:
            self.heights[user.number] = places.shape[1]
        elif not writes:
            own = places.size * self.heights[user.number]
            self.sums[user.number] = self.sums.get(user.number, 0) + own

    def fold(self) -> None:
        """Count the accesses between two barriers, warp by warp."""
        for (_, writes, width), items in self.accesses.items():
            listed = {item: np.concatenate(parts) for item, parts in items.items()}
            for first in range(0, max(listed) + 1, warps.BANKS):
                words, active = in_step([listed.get(first + lane, EMPTY[:, :width])
                                         for lane in range(warps.BANKS)])  # fmt: skip
                fronts, _ = warps.wavefronts(words, active)
                if writes:
                    self.writes += fronts
                else:
                    self.reads += fronts
                    self.issued += len(words)
        warp = defaultdict[int, int](int)
        for item, count in self.sums.items():
            self.products += count
            warp[item // warps.BANKS] = max(warp[item // warps.BANKS], count)
        self.issued += sum(warp.values())
        self.accesses, self.sums = {}, {}


EMPTY = np.zeros((0, 4), np.int64)


def instructions(places: np.ndarray, *, writes: bool) -> Iterator[np.ndarray]:
    """Yield the words that an item takes in each of some instructions, which are equally wide.

    Four neighbours are taken at once.
    """
    lines = np.atleast_2d(places)
    neighbours = not writes or bool((np.diff(lines) == 1).all())
    if not neighbours:
        yield lines.reshape(-1, 1)
        return
    for first in range(0, lines.shape[1], 4):
        yield lines[:, first : first + 4]


def in_step(lanes: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the words of a warp's instructions, and which items take part in each."""
    most, width = max(map(len, lanes)), lanes[0].shape[1]
    words = np.zeros((most, len(lanes), width), np.int64)
    active = np.zeros((most, len(lanes)), bool)
    for lane, own in enumerate(lanes):
        words[: len(own), lane], active[: len(own), lane] = own, True
    return words, active


def count(problem: Problem, schedule: Schedule) -> Counts:
    """Run a schedule in the interpreter; zeros serve as well as other numbers."""
    source = emit(problem, schedule, 1, EmitOptions("layer"))
    counts, byte = Counts(), np.dtype(np.int8)

    def array(name: str, shape: Sequence[int]) -> Pointer:
        return Pointer(InterpretedMemory.of(name, np.zeros(shape, np.float32)), 0, byte)

    packed = Pointer(InterpretedMemory.empty("packed", source.packed), 0, byte)
    interpreter = Interpreter(source.module)
    weights = {"w": array("w", problem.w_shape), "packed": packed, "x_zero": 0}
    interpreter.run("layer_pack_weights", weights)
    interpreter.watch = counts.watch
    absent = dict.fromkeys(("bias", "residual", "clamp", "to", "workspace"), 0)
    interpreter.run("layer", {
        **absent, "x": array("x", problem.x_shape), "packed": packed,
        "y": array("y", problem.y_shape),
    })  # fmt: skip
    counts.fold()
    return counts


def seconds(counts: Counts, groups: int, context: Context) -> float:
    """Return the least time of what was counted, at the rates of a context."""
    busiest = -(-groups // context.target.cores) / groups
    clocks = max(counts.reads, counts.issued / context.target.unit.issues) * busiest
    touched = WORD * sum(map(len, counts.touched.values()))
    missed = max(0, touched - context.target.last_level.size)
    return max(
        2e-9 * counts.products * busiest / context.peak, clocks / clock(context),
        1e-9 * missed / context.machine.memory_all,
        1e-9 * WORD * counts.fetched / (context.target.cores * cache_rate(context)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a made-up device in GFLOP/s and GB/s; its clock is 1 GHz."""

    products: float = HIGH
    copies: float = HIGH
    memory: float = HIGH

    def context(self, problem: Problem) -> Context:
        """Return the context of a problem on three units, whose last cache holds 64 bytes."""
        known = {"L2": (64, self.copies), "local": (48 << 10, 128.0)}
        target = target_of("sm_80")
        memories = tuple(
            replace(it, size=known[it.name][0], bandwidth=known[it.name][1])
            if it.name in known else it for it in target.memories
        )  # fmt: skip
        target, (_, roles, strides) = replace(target, memories=memories, cores=3), model_of(problem)
        rates = replace(assume_rates(target), peak=self.products, memory_all=self.memory)
        return Context(roles, strides, target, rates, 3)


DEVICES = {
    "products": Rates(products=2.0), "issues and wavefronts": Rates(),
    "copies": Rates(copies=0.02), "memory": Rates(memory=0.01),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Proof:
    """The bounds of a problem's schedules over what was counted, on one device."""

    schedules: int
    pruned: int
    ratios: tuple[float, ...]
    best_pruned: bool

    @property
    def holds(self) -> bool:
        """Return whether nothing that is pruned can be the best."""
        return max(self.ratios) <= 1 + 1e-9 and not self.best_pruned


def prove(problem: Problem, context: Context, counted: Sequence[tuple[Schedule, Counts]]) -> Proof:
    """Compare the bounds of schedules with what was counted of them."""
    algorithm, times, bounds = algorithm_named(MAPPED), list[float](), list[float]()
    for schedule, counts in counted:
        groups = algorithm.resolve(problem, schedule, 1).groups
        times.append(seconds(counts, groups, context))
        bounds.append(algorithm.lower_bound(context, schedule))
    least = min(times)
    pruned = [bound > least * (1 + 1e-9) for bound in bounds]
    ratios = (bound / time for bound, time in zip(bounds, times, strict=True))
    winners = (time == least for time in times)
    return Proof(len(times), sum(pruned), tuple(ratios),
                 any(map(and_, pruned, winners)))  # fmt: skip


def every(problem: Problem, step: int = 1) -> list[Schedule]:
    """Return the schedules of the whole space whose groups copy, or each ``step``-th."""
    context = Rates().context(problem)
    limits = SpaceLimits()
    ranked = algorithm_named(MAPPED).candidates(problem, context, None, limits)
    return [it.schedule for it in ranked if it.schedule.has(Copy)][::step]


def main() -> int:
    return script.run(work, options().parse_args())


def options() -> ArgumentParser:
    parser = script.options(__doc__, sample=False)
    parser.add_argument("--step", type=positive, default=1, metavar="N", help="each N-th schedule")
    parser.add_argument("problems", nargs="*", metavar="SPEC", help="(twenty small ones)")
    return parser


def work(arguments: Namespace) -> bool:
    """Count, compare, write, print; False if Ctrl-C cut it short. Raises CheckError."""
    texts = arguments.problems or PROBLEMS[: 1 if arguments.quick else None]
    problems = [parsed(text, at) for at, text in enumerate(texts)]
    steps = (rows_of(problem, arguments.step) for problem in problems)
    rows, whole = script.kept(steps, "problems", len(problems))
    flat = [row for own in rows for row in own]
    if flat:
        script.write_csv(script.stem(arguments, "bounds").with_suffix(".csv"), flat)
        print(columns([(*flat[0],), *(tuple(map(str, row.values())) for row in flat)]))
    if wrong := [row for row in flat if row["largest"] > 1 + 1e-9 or row["best pruned"]]:
        raise CheckError(f"{wrong[0]['problem']}: a bound exceeds what was counted")
    return whole


def parsed(text: str, at: int) -> Problem:
    """Return a problem; every second convolution is stored by channels."""
    return parse_problem(text, "nhwc" if text.startswith("mm") else LAYOUTS[at % 2])


def rows_of(problem: Problem, step: int) -> list[dict[str, Any]]:
    """Return the rows of a problem, one a device."""
    counted = [(schedule, count(problem, schedule)) for schedule in every(problem, step)]
    rows = []
    for name, rates in DEVICES.items():
        proof = prove(problem, rates.context(problem), counted)
        rows.append({
            "problem": str(problem), "bound by": name, "schedules": proof.schedules,
            "pruned": round(proof.pruned / proof.schedules, 3),
            "least": round(min(proof.ratios), 3), "largest": round(max(proof.ratios), 3),
            "best pruned": proof.best_pruned,
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    sys.exit(main())
