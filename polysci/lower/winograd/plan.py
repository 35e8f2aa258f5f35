"""A Winograd schedule resolved for one convolution: tiles, blocks, buffers and register tiles."""

from __future__ import annotations

from dataclasses import dataclass

from polysci.errors import SpecError, UnsupportedError
from polysci.lower.winograd.tiles import (
    STORED,
    OutputTile,
    convolution,
    planes_of,
    schedule_tile,
)
from polysci.numerics.arrays import LINE
from polysci.numerics.dtypes import DTYPES, F32, DType
from polysci.ops.convolutions import Conv2d
from polysci.ops.problem import Problem
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Ahead
from polysci.space.directives.ahead import share_lines
from polysci.space.schedule import Schedule, Transform
from polysci.target import microkernels
from polysci.target.microkernels import Microkernel

SPREAD = 512  # bytes: rows of V or M a multiple of this apart crowd into few cache sets
LINE_FLOATS = LINE // 4


@dataclass(frozen=True, slots=True)
class WinogradPlan:
    """A Winograd schedule resolved for a convolution; distances and sizes count elements.

    ``origin`` is that convolution.
    ``problem`` has two axes, one of which may have one row; its ``tiles`` lie ``across`` by
    ``down`` in an image. A block is ``t`` tiles by ``k`` filters. ``fused``: V holds the tiles of
    one block, not of all images. ``stored`` is the type of elements of U.
    """

    problem: Conv2d
    schedule: Schedule
    threads: int
    tile: OutputTile
    kernel: Microkernel
    across: int
    down: int
    t: int
    k: int
    fused: bool
    origin: Problem
    stored: DType

    @property
    def points(self) -> int:
        return self.tile.points

    @property
    def tiles(self) -> int:
        return self.problem.N * self.across * self.down

    @property
    def filters(self) -> int:
        """Columns of U: K up to whole panels."""
        return _up(self.problem.K, self.kernel.cols)

    @property
    def depth(self) -> int:
        """Channels that a filter reads."""
        return self.problem.C // self.problem.groups

    @property
    def v_tile(self) -> int:
        planes = planes_of(self.origin).taps
        channels = self.problem.C // planes
        return _pitch((planes - 1) * channels + _up(channels, self.kernel.lanes))

    @property
    def m_tile(self) -> int:
        return _pitch(min(self.k, self.filters))

    @property
    def v_tiles(self) -> int:
        """Tiles that V holds."""
        return self.t if self.fused else self.tiles

    @property
    def teams(self) -> int:
        """Threads that share the work."""
        return self.threads if self.schedule.parallel else 1

    @property
    def v_size(self) -> int:
        """Elements of one copy of V; every thread has its own where it is fused."""
        return self.points * self.v_tiles * self.v_tile

    @property
    def m_size(self) -> int:
        """Elements of one thread's M."""
        return self.points * self.t * self.m_tile

    @property
    def prefetch(self) -> tuple[int, int, int]:
        """Lines of the next panel that a call prefetches a step; the first such call, and the end.

        The panels of U lie in the order in which the loops over points and filters read them.
        """
        return share_lines(-(-self.kernel.cols * self.stored.bytes // LINE), self.calls)

    @property
    def calls(self) -> int:
        """Register tiles of a block that read the same panel of U."""
        return -(-min(self.t, self.tiles) // self.kernel.rows)

    @property
    def workspace(self) -> int:
        copies = self.teams if self.fused else 1
        return copies * self.v_size + self.teams * self.m_size

    @property
    def packed(self) -> int:
        """Elements of U."""
        return self.points * self.depth * self.filters

    @property
    def packed_bytes(self) -> int:
        """Bytes of U, and of what undoes the scale of each filter where they are narrow."""
        return self.stored.bytes * self.packed + (self.stored != F32) * F32.bytes * self.filters

    @property
    def rests(self) -> list[int]:
        """Rows of register tiles that are not whole, largest first."""
        last = self.tiles % self.t or self.t
        rests = {blocks % self.kernel.rows for blocks in (min(self.t, self.tiles), last)}
        return sorted(rests - {0}, reverse=True)


def resolve(problem: Problem, schedule: Schedule, threads: int = 1) -> WinogradPlan:
    """Return the plan of a schedule. Raises SpecError or UnsupportedError where it does not fit."""
    conv = convolution(problem)
    transform = schedule.transform
    if transform is None or transform.name not in STORED:
        raise SpecError(f"schedule {schedule}: no winograd(m) in it")
    tile = schedule_tile(conv, f"schedule {schedule}: {transform}", transform.numbers)
    kernel = microkernels.find(schedule.kernel)
    if (kernel.family, kernel.compute) != ("brgemm", "f32"):
        raise UnsupportedError(f"schedule {schedule}: expected a brgemm kernel of f32")
    if any(not isinstance(directive, Ahead) for directive in schedule.directives):
        raise UnsupportedError(
            f"schedule {schedule}: winograd(m) packs, streams and swaps nothing, and has one result"
        )
    down, across = tile.count(conv)
    filters = _up(conv.K, kernel.cols)
    extents = {"t": max(1, conv.N * across * down), "k": filters}
    schedule.check(extents)
    loops = [loop.dim for loop in schedule.loops]
    if len(set(loops)) != len(loops):
        raise UnsupportedError(f"schedule {schedule}: one loop over t and one over k at most")
    before = _before(schedule, transform)
    if before not in ([], ["t"]):
        raise UnsupportedError(f"schedule {schedule}: only a loop over t may enclose {transform}")
    if before and len(schedule.parallel) > 1:
        raise UnsupportedError(f"schedule {schedule}: loops inside {transform} cannot be parallel")
    size = schedule.tile(extents)
    if size["k"] % kernel.cols:
        raise UnsupportedError(
            f"schedule {schedule}: k:{size['k']} is no multiple of {kernel.cols} columns"
        )
    if conv.groups > 1 and conv.K // conv.groups % kernel.cols:
        raise UnsupportedError(
            f"schedule {schedule}: {kernel.cols} columns do not divide the "
            f"{conv.K // conv.groups} filters of a group"
        )
    if kernel.rows > size["t"]:
        raise UnsupportedError(
            f"schedule {schedule}: {kernel.rows} rows exceed the {size['t']} tiles of a block"
        )
    return WinogradPlan(
        conv, schedule, threads, tile, kernel, across, down, size["t"], size["k"],
        before == ["t"], problem, DTYPES[STORED[transform.name]],
    )  # fmt: skip


def _before(schedule: Schedule, transform: Transform) -> list[str]:
    around = schedule.nest[: schedule.nest.index(transform)]
    return [step.dim for step in around if isinstance(step, Loop)]


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _pitch(length: int) -> int:
    """Return a distance of rows that spreads them over the cache sets."""
    return length + LINE_FLOATS if length * 4 % SPREAD == 0 else length
