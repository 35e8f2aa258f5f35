"""Seconds of tiles that groups of work-items compute, by what bounds them.

Widths, limits and rates are the target's: those of a compute unit (``ComputeUnit``), its peak, the
bandwidth of its groups' memory, of its caches and of the device's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from polysci.cost.estimate import Context
from polysci.cost.warps import SECTOR
from polysci.target.machine import Machine
from polysci.target.target import ComputeUnit, Target

GROUPS: Final = 2  # that registers of a compute unit have room for, whatever kernel it is
NAMED: Final = 255  # registers of an item at most: CUDA C++ Programming Guide
OWN_REGISTERS: Final = 40  # of a work-item beside sums and factors: addresses and counters
PLACE_REGISTERS: Final = 4  # of a row that an item reads itself: where it lies, and on which axes
COPY_INSTRUCTIONS: Final = 8  # of a warp, for what each of its items copies at once
STEP_INSTRUCTIONS: Final = 40  # of a warp beside its copies and products: places, loops, waits
MEETING: Final = 30  # clocks of a barrier whose items come to it at about the same time
VECTOR: Final = 16  # bytes of a vector of columns
LINE: Final = 128  # bytes of a cache that are read in a clock at most
FILLED: Final = 64  # bytes that a compute unit reads of the last cache in a clock, if not known


@dataclass(frozen=True, slots=True)
class Reads:
    """Reads of both factors by work-items, through the caches, where a group copies none.

    ``items`` are those along rows and columns of a tile; neighbours are so along the rows, or along
    the columns. A load of a row serves ``across`` products. With ``channels`` both factors are
    vectors along the columns. An element of x has ``x_bytes``, one of weights 4; of 8-bit numbers
    words count as elements.
    """

    items: tuple[int, int]
    along_rows: bool
    across: int
    channels: bool
    x_bytes: int = 4

    def clocks(self, work: GroupWork, context: Context) -> float:
        """Return the clocks in which a warp reads both factors of a product.

        A clock serves a line, or as many bytes as the nearest cache gives; items of a warp that
        read the same elements get them together, and neighbours share lines.
        """
        width, inner = context.target.unit.width, self.items[not self.along_rows]
        near, far = min(width, inner), -(-width // inner)
        rows, columns = (near, far) if self.along_rows else (far, near)
        lines = work.vectors * (columns if self.along_rows else _lines(VECTOR * columns))
        fetched = VECTOR * work.vectors * columns
        if self.channels:
            one, vector = self.x_bytes * near, VECTOR // 4 * self.x_bytes
            loads = 4 * _lines(one) if self.along_rows else _lines(vector * near)
            lines += work.rows * work.vectors * far * loads
            fetched += vector * work.rows * work.vectors * width
        else:
            loads = _lines(self.x_bytes * near) if self.along_rows else rows / self.across
            lines += work.rows * loads
            fetched += self.x_bytes * work.rows * rows
        return max(lines, 1e-9 * fetched * clock(context) / _near(context))


@dataclass(frozen=True, slots=True)
class GroupWork:
    """The features of a launch: ``groups`` of ``items``, each with ``sums`` of its own.

    ``steps`` of ``depth`` products for each sum follow each other; an item has ``factors`` in
    registers, of products and copies. A step has ``copies`` of ``copied`` bytes in all and
    ``waits`` barriers; copies are issued ``ahead`` steps before they are waited for, 0 where items
    wait for each. ``speed`` are the multiplications in the time of one of f32. ``shared`` are the
    bytes of a group's memory, ``compulsory`` those that must come from the device's memory or go
    there; all copies read ``fetched`` bytes.

    An item has ``rows`` x ``vectors`` of its own, and ``across`` items lie along the columns of a
    tile, neighbours of each other; where warps multiply matrices, reading the factors of a product
    costs a warp ``fronts_each`` of the group's memory instead. ``fronts`` are the turns of a
    group's memory, and ``sectors`` those of its copies, that were counted in a step; 0: they were
    not. ``held`` are the groups that a compute unit holds at a time, where a compiler told; 0: they
    are guessed. Where nothing is copied, ``reads`` is what items read themselves.
    """

    groups: int
    items: int
    sums: int
    factors: int
    rows: int
    vectors: int
    steps: int
    depth: int
    copies: int
    copied: int
    waits: float
    shared: int
    compulsory: int
    ahead: int = 0
    speed: float = 1.0
    fetched: int = 0
    across: int = 1
    fronts_each: float = 0.0
    fronts: int = 0
    sectors: int = 0
    held: int = 0
    reads: Reads | None = None

    @property
    def registers(self) -> int:
        """Registers of an item: sums, factors, and what finds their places."""
        places = PLACE_REGISTERS * self.rows if self.reads else 0
        return OWN_REGISTERS + self.sums + self.factors + places

    def spills(self, unit: ComputeUnit, registers: int) -> bool:
        """Return whether items that need so many registers get fewer of them from a compiler.

        That has room for GROUPS of them (PS_GROUP in microkernels/prelude_cuda.h).
        """
        return registers > min(unit.registers // (GROUPS * self.items), NAMED)

    def warps(self, unit: ComputeUnit) -> int:
        """Return the warps of a group: its items, as many as take an instruction together."""
        return -(-self.items // unit.width)

    def resident(self, context: Context) -> int:
        """Return the groups that a compute unit holds at a time; 0: a group is too large."""
        if self.held:
            return self.held
        unit, local = context.target.unit, context.target.local
        if not self.reads and (local is None or self.shared > unit.shared):
            return 0
        warps = self.warps(unit)
        held = min(unit.most // warps, unit.registers // (self.registers * warps * unit.width))
        return min(held, local.size // self.shared) if self.shared and local else held

    def waves(self, context: Context) -> int:
        """Return the groups that the busiest compute unit has, one after the other."""
        return -(-self.groups // context.target.cores)

    def busy(self, context: Context) -> float:
        """Return the least seconds of a group's products: of sums, reads of factors, or issues."""
        return max(self._parts(context))

    def _parts(self, context: Context) -> tuple[float, float]:
        """Return the seconds of a group's products, and those of the reads of their factors.

        The latter are at least those in which all instructions are issued.
        """
        unit, steps = context.target.unit, self.steps * self.depth
        clocks = self._clocks(context) * steps * self.warps(unit)
        peak = context.machine.peak * self.speed
        return 2e-9 * steps * self.items * self.sums / peak, clocks / clock(context)

    def _clocks(self, context: Context) -> float:
        """Return the clocks of a warp's product beside the sums: of reads, or of issues."""
        if self.fronts_each:  # an instruction multiplies matrices
            return self.fronts_each
        unit, loads = context.target.unit, -(-self.rows // 4) + self.vectors
        own = self.reads.clocks(self, context) if self.reads else self._held(unit)
        return max(own, (self.sums + loads) / unit.issues)

    def _held(self, unit: ComputeUnit) -> float:
        """Return the clocks in which a warp reads both factors of a product from its memory.

        Four elements of a row, or a vector, are read at a time; items that read the same ones get
        them together.
        """
        near, far = min(unit.width, self.across), -(-unit.width // self.across)
        rows, columns = (-(-VECTOR * items // unit.front) for items in (far, near))
        return -(-self.rows // 4) * rows + self.vectors * columns

    def bound(self, context: Context) -> float:
        """Return the seconds below which no launch can be.

        The last cache may hold its size of all bytes from before; the first ones serve no copy.
        """
        missed = max(0, self.compulsory - context.target.last_level.size)
        moved = missed / context.machine.memory_all
        read = self.fetched / (context.target.cores * cache_rate(context))
        return max(self.waves(context) * self.busy(context), 1e-9 * moved, 1e-9 * read)

    def seconds(self, context: Context) -> float:
        """Return the predicted seconds of a launch.

        The groups of a compute unit run some at a time: while one of them waits for its copies,
        others compute. Copies that are issued ahead arrive while their own group does. Items that
        read through the caches compute when all that has come, since no step has anything of the
        next one.
        """
        together = min(self.resident(context), self.waves(context))
        unit = context.target.unit
        copies = self.copies / unit.width * COPY_INSTRUCTIONS / unit.issues / clock(context)
        counting = self.warps(unit) * STEP_INSTRUCTIONS / unit.issues / clock(context)
        busy = max(self.busy(context) / self.steps, self.fronts / clock(context))
        step = sum(self._parts(context)) / self.steps if self.reads else busy + copies + counting
        alone = step + self.waits * unit.latency / clock(context)
        if self.ahead:
            late = unit.latency / self.ahead / clock(context)
            alone = max(step + MEETING / clock(context), late)
        turns = -(-self.waves(context) // together)
        taken = turns * self.steps * max(together * step, alone)
        moved = self.compulsory / context.machine.memory_all
        copied = max(self.copied, SECTOR * self.sectors) * self.waves(context) * self.steps
        read = copied / cache_rate(context)
        return max(taken, self.bound(context), 1e-9 * moved, 1e-9 * read)


def _lines(size: int) -> float:
    """Return the lines that so many neighbouring bytes fill."""
    return max(1.0, size / LINE)


def cache_rate(context: Context) -> float:
    """Return the GB/s at which a compute unit reads the last cache."""
    return cache_rate_of(context.target, context.machine, clock(context))


def cache_rate_of(target: Target, machine: Machine, clock: float) -> float:
    """Return the same of a target with so many clocks a second."""
    return machine.bandwidth(target.last_level) or 1e-9 * FILLED * clock


def _near(context: Context) -> float:
    """Return the GB/s at which a compute unit reads its nearest cache: its own, or the last one."""
    first = context.target.first_level
    if first is context.target.last_level:
        return cache_rate(context)
    known = context.machine.bandwidth(first)
    return known or 1e-9 * context.target.unit.front * clock(context)


def clock(context: Context) -> float:
    """Return the clocks of a second: those at which groups read their memory, or of the peak."""
    return clock_of(context.target, context.machine, context.peak)


def clock_of(target: Target, machine: Machine, peak: float) -> float:
    """Return the same of a target; ``peak``: GFLOP/s of a compute unit."""
    unit, local = target.unit, target.local
    if local is not None and (bandwidth := machine.bandwidth(local)):
        return 1e9 * bandwidth / unit.front
    return 1e9 * peak / (2 * unit.lanes)
