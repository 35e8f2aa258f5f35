"""Seconds of tiles that groups of work-items compute, by what bounds them.

Widths and limits are those of NVIDIA's multiprocessors from sm_80 on (CUDA C++ Programming Guide,
throughput of instructions and technical specifications by compute capability). The rates are the
target's: the peak of a compute unit, the bandwidth of its groups' memory and of the device's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from polysci.cost.estimate import Context
from polysci.cost.warps import SECTOR

WARP: Final = 32  # work-items that take an instruction together
LANES: Final = 128  # multiplications of f32 a clock and compute unit, where nothing else is known
WAVEFRONT: Final = 128  # bytes of the memory of a group, a clock
ISSUES: Final = 4  # instructions of warps, a clock
MOST_WARPS: Final = 48  # in a compute unit at a time
MOST_SHARED: Final = 48 << 10  # bytes that a kernel may declare for its groups
REGISTERS: Final = 65536  # of a compute unit, 32 bits each
OWN_REGISTERS: Final = 40  # of a work-item beside sums and factors: addresses and counters
LATENCY: Final = 500  # clocks from the request of an element to the end of its copy
COPY_INSTRUCTIONS: Final = 8  # of a warp, for an element that each of its items copies
FILLED: Final = 64  # bytes that a compute unit reads of the last cache in a clock, if not known


@dataclass(frozen=True, slots=True)
class GroupWork:
    """The features of a launch: ``groups`` of ``items``, each with ``rows`` x ``vectors`` x 4 sums.

    ``steps`` of ``depth`` products follow each other, behind copies of ``copied`` elements and
    ``waits`` barriers each. ``shared`` are the bytes of a group's memory, ``compulsory`` those that
    must come from the device's memory or go there; all copies read ``fetched`` elements. ``across``
    are the items along the columns of a tile, neighbours of each other. ``fronts`` are the turns of
    a group's memory, and ``sectors`` those of its copies, that were counted in a step; 0: they were
    not. ``held`` are the groups that a compute unit
    holds at a time, where a compiler told; 0: they are guessed.
    """

    groups: int
    items: int
    rows: int
    vectors: int
    steps: int
    depth: int
    copied: int
    waits: int
    shared: int
    compulsory: int
    fetched: int = 0
    across: int = WARP
    fronts: int = 0
    sectors: int = 0
    held: int = 0

    @property
    def warps(self) -> int:
        """Warps of a group."""
        return -(-self.items // WARP)

    def resident(self, context: Context) -> int:
        """Return the groups that a compute unit holds at a time; 0: a group is too large."""
        if self.held:
            return self.held
        registers = OWN_REGISTERS + 4 * self.rows * self.vectors + self.rows + 4 * self.vectors
        if self.shared > MOST_SHARED:
            return 0
        return min(
            MOST_WARPS // self.warps,
            REGISTERS // (registers * self.warps * WARP),
            context.target.memory("local").size // max(self.shared, 1),
        )

    def waves(self, context: Context) -> int:
        """Return the groups that the busiest compute unit has, one after the other."""
        return -(-self.groups // context.target.cores)

    def busy(self, context: Context) -> float:
        """Return the least seconds of a group's products: of sums, reads of factors, or issues.

        Four elements of a row, or a vector, are read at a time; items that read the same ones get
        them together.
        """
        lines = self.steps * self.depth
        sums, loads = self.rows * 4 * self.vectors, -(-self.rows // 4) + self.vectors
        near, far = min(WARP, self.across), -(-WARP // self.across)
        rows, columns = (-(-16 * items // WAVEFRONT) for items in (far, near))
        fronts = -(-self.rows // 4) * rows + self.vectors * columns
        clocks = max(fronts, (sums + loads) / ISSUES) * lines * self.warps
        return max(2e-9 * lines * self.items * sums / context.peak, clocks / clock(context))

    def bound(self, context: Context) -> float:
        """Return the seconds below which no launch can be.

        The last cache may hold its size of all bytes from before; the first ones serve no copy.
        """
        missed = max(0, self.compulsory - context.target.last_level.size)
        moved = missed / context.machine.memory_all
        read = 4 * self.fetched / (context.target.cores * filled(context))
        return max(self.waves(context) * self.busy(context), 1e-9 * moved, 1e-9 * read)

    def seconds(self, context: Context) -> float:
        """Return the predicted seconds of a launch.

        The groups of a compute unit run some at a time: while one of them waits for its copies,
        others compute.
        """
        together = min(self.resident(context), self.waves(context))
        copies = self.copied / WARP * COPY_INSTRUCTIONS / ISSUES / clock(context)
        busy = max(self.busy(context) / self.steps, self.fronts / clock(context))
        step = busy + copies
        waiting = self.waits * LATENCY / clock(context)
        turns = -(-self.waves(context) // together)
        taken = turns * self.steps * max(together * step, step + waiting)
        moved = self.compulsory / context.machine.memory_all
        copied = max(4 * self.copied, SECTOR * self.sectors) * self.waves(context) * self.steps
        read = copied / filled(context)
        return max(taken, self.bound(context), 1e-9 * moved, 1e-9 * read)


def filled(context: Context) -> float:
    """Return the GB/s at which a compute unit reads the last cache."""
    known = context.target.last_level.bandwidth
    return known or 1e-9 * FILLED * clock(context)


def clock(context: Context) -> float:
    """Return the clocks of a second: those at which groups read their memory, or of the peak."""
    bandwidth = context.target.memory("local").bandwidth
    return 1e9 * (bandwidth / WAVEFRONT if bandwidth else context.peak / (2 * LANES))
