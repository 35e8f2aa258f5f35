"""Seconds of tiles that groups of work-items compute, by what bounds them; nothing is measured.

The numbers are those of NVIDIA's multiprocessors from sm_80 on (CUDA C++ Programming Guide, tables
of arithmetic throughput and of technical specifications per compute capability); other devices are
assumed to differ by factors that are the same for all schedules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from polysci.target.target import Target

WARP: Final = 32  # work-items that take an instruction together
LANES: Final = 128  # multiplications of f32 a clock and multiprocessor
SHARED_BYTES: Final = 128  # of the memory of a group, a clock: a wavefront
MOST_WARPS: Final = 48  # in a multiprocessor at a time
REGISTERS: Final = 65536  # of a multiprocessor, 32 bits each
OWN_REGISTERS: Final = 40  # of a work-item beside sums and factors: addresses and counters
HIDDEN_WARPS: Final = 12  # in flight, so that one waits for memory while others compute
WAIT_CLOCKS: Final = 40  # that a group waits at a barrier beyond its work
COPY_CLOCKS: Final = 8  # instructions of a warp for an element that each of its items copies
CLOCK: Final = 1.4e9  # a second
MEMORY_BANDWIDTH: Final = 6e9  # bytes a second and multiprocessor: 0.65 TB/s of 108


@dataclass(frozen=True, slots=True)
class GroupWork:
    """The features of a launch: ``groups`` of ``items``, each with ``rows`` x ``vectors`` x 4 sums.

    ``steps`` of ``depth`` products follow each other, behind copies of ``copied`` elements and
    ``waits`` barriers each. ``shared`` are the bytes of a group's memory, ``compulsory`` those that
    must come from the device's memory or go there.
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

    @property
    def warps(self) -> int:
        """Warps of a group."""
        return -(-self.items // WARP)

    def resident(self, target: Target) -> int:
        """Return the groups that a multiprocessor holds at a time; 0: a group is too large."""
        registers = OWN_REGISTERS + 4 * self.rows * self.vectors + self.rows + 4 * self.vectors
        return min(
            MOST_WARPS // self.warps,
            REGISTERS // (registers * self.warps * WARP),
            target.memory("local").size // max(self.shared, 1),
        )

    @property
    def multiply_clocks(self) -> float:
        """Clocks of a group's multiplications, those of padding among them."""
        products = self.steps * self.depth * self.items * self.rows * 4 * self.vectors
        return products / LANES

    @property
    def read_clocks(self) -> float:
        """Clocks of a group's reads of its memory: a row is read by all of a warp at once."""
        vectors = self.vectors * WARP * 16 // SHARED_BYTES
        return self.steps * self.depth * self.warps * (-(-self.rows // 4) + vectors)

    @property
    def other_clocks(self) -> float:
        """Clocks of a group's copies and waits."""
        copies = self.copied / WARP * COPY_CLOCKS / (LANES / WARP)
        return self.steps * (copies + self.waits * WAIT_CLOCKS)

    def bound(self, target: Target) -> float:
        """Return the seconds below which no launch can be."""
        waves = -(-self.groups // target.cores)
        moved = self.compulsory / (MEMORY_BANDWIDTH * target.cores)
        return max(waves * max(self.multiply_clocks, self.read_clocks) / CLOCK, moved)

    def seconds(self, target: Target) -> float:
        """Return the predicted seconds of a launch."""
        resident = min(self.resident(target), -(-self.groups // target.cores))
        hidden = min(1.0, resident * self.warps / HIDDEN_WARPS)
        busy = max(self.multiply_clocks, self.read_clocks)
        clocks = busy + self.other_clocks * (1 / max(resident, 1) if hidden == 1 else 1)
        waves = -(-self.groups // target.cores)
        return max(waves * clocks / hidden / CLOCK, self.bound(target))
