"""Seconds of tiles that groups of work-items compute, by what bounds them.

Widths and limits are those of NVIDIA's multiprocessors from sm_80 on (CUDA C++ Programming Guide,
throughput of instructions and technical specifications by compute capability). The rates are the
target's: the peak of a compute unit, the bandwidth of its groups' memory and of the device's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from polysci.cost.estimate import Context

WARP: Final = 32  # work-items that take an instruction together
LANES: Final = 128  # multiplications of f32 a clock and compute unit, where nothing else is known
WAVEFRONT: Final = 128  # bytes of the memory of a group, a clock
ISSUES: Final = 4  # instructions of warps, a clock
MOST_WARPS: Final = 48  # in a compute unit at a time
MOST_SHARED: Final = 48 << 10  # bytes that a kernel may declare for its groups
REGISTERS: Final = 65536  # of a compute unit, 32 bits each
OWN_REGISTERS: Final = 40  # of a work-item beside sums and factors: addresses and counters
LATENCY: Final = 500  # clocks from the request of an element to the end of its copy
COPY_INSTRUCTIONS: Final = 8  # of a warp, for what each of its items copies at once
STEP_INSTRUCTIONS: Final = 40  # of a warp beside its copies and products: places, loops, waits
MEETING: Final = 30  # clocks of a barrier whose items come to it at about the same time
FILLED: Final = 64  # bytes that a compute unit reads of the last cache in a clock, if not known


@dataclass(frozen=True, slots=True)
class GroupWork:
    """The features of a launch: ``groups`` of ``items``, each with ``sums`` of its own.

    ``steps`` of ``depth`` products for each sum follow each other; reading their factors costs a
    warp ``fronts`` of the group's memory a product, and an item has ``factors`` in registers, of
    products and copies. A step has ``copies`` of ``copied`` bytes in all and ``waits`` barriers;
    copies are issued ``ahead`` steps before they are waited for, 0 where items wait for each.
    ``speed`` are the multiplications in the time of one of f32. ``shared`` are the bytes of a
    group's memory, ``compulsory`` those that must come from the device's memory or go there.
    """

    groups: int
    items: int
    sums: int
    factors: int
    fronts: float
    steps: int
    depth: int
    copies: int
    copied: int
    waits: int
    ahead: int
    speed: float
    shared: int
    compulsory: int

    @property
    def warps(self) -> int:
        """Warps of a group."""
        return -(-self.items // WARP)

    @property
    def registers(self) -> int:
        """Registers of an item: sums, factors, and what finds their places."""
        return OWN_REGISTERS + self.sums + self.factors

    def resident(self, context: Context) -> int:
        """Return the groups that a compute unit holds at a time; 0: a group is too large."""
        if self.shared > MOST_SHARED:
            return 0
        return min(
            MOST_WARPS // self.warps,
            REGISTERS // (self.registers * self.warps * WARP),
            context.target.memory("local").size // max(self.shared, 1),
        )

    def waves(self, context: Context) -> int:
        """Return the groups that the busiest compute unit has, one after the other."""
        return -(-self.groups // context.target.cores)

    def busy(self, context: Context) -> float:
        """Return the seconds of a group's products, or of the reads of their factors."""
        products = self.steps * self.depth * self.items * self.sums
        fronts = self.steps * self.depth * self.warps * self.fronts
        peak = context.machine.peak * self.speed
        return max(2e-9 * products / peak, fronts / clock(context))

    def bound(self, context: Context) -> float:
        """Return the seconds below which no launch can be."""
        moved = self.compulsory / context.machine.memory_all
        read = self.waves(context) * self.steps * self.copied / _fill(context)
        return max(self.waves(context) * self.busy(context), 1e-9 * moved, 1e-9 * read)

    def seconds(self, context: Context) -> float:
        """Return the predicted seconds of a launch.

        The groups of a compute unit run some at a time: while one of them waits for its copies,
        others compute. Copies that are issued ahead arrive while their own group does.
        """
        together = min(self.resident(context), self.waves(context))
        copies = self.copies / WARP * COPY_INSTRUCTIONS / ISSUES / clock(context)
        counting = self.warps * STEP_INSTRUCTIONS / ISSUES / clock(context)
        step = self.busy(context) / self.steps + copies + counting
        alone = step + self.waits * LATENCY / clock(context)
        if self.ahead:
            alone = max(step + MEETING / clock(context), LATENCY / self.ahead / clock(context))
        turns = -(-self.waves(context) // together)
        taken = turns * self.steps * max(together * step, alone)
        return max(taken, self.bound(context))


def _fill(context: Context) -> float:
    """Return the GB/s at which a compute unit reads the last cache."""
    known = context.target.last_level.bandwidth
    return known or 1e-9 * FILLED * clock(context)


def clock(context: Context) -> float:
    """Return the clocks of a second: those at which groups read their memory, or of the peak."""
    bandwidth = context.target.memory("local").bandwidth
    return 1e9 * (bandwidth / WAVEFRONT if bandwidth else context.peak / (2 * LANES))
