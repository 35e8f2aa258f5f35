"""Seconds of stages that run together in one kernel of groups of work-items, and their bound.

Apart, each stage is a launch: its result goes to the last cache, or to memory where that has no
room, and comes back. Together they are one launch. Groups make rows that two of them share twice,
there may be too few of them for all compute units, and the memory that a group takes for rows
limits how many of them a compute unit runs at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from polysci.cost.estimate import Context
from polysci.cost.fusion import FusedWork, FusionCosts
from polysci.cost.groups import GroupWork, cache_rate_of, clock_of

ELEMENT_INSTRUCTIONS: Final = 16  # of a warp, for a term of each of its items' elements
# The wait for weights in a cache by that for an element of memory; assumed, on no machine measured.
NEAR: Final = 0.4


@dataclass(frozen=True, slots=True)
class HeldTile:
    """A tile of a layer as one of the groups that hold rows computes it, after the other ones.

    It has ``rows`` of the ``all_rows`` of the product. ``across`` tiles have the same rows, other
    columns or other products. ``weights`` are bytes.
    """

    work: GroupWork
    context: Context
    rows: int
    all_rows: int
    across: int
    weights: int

    def tiles(self, rows: int) -> int:
        """Return the tiles of so many rows of the product."""
        return -(-rows // self.rows) * self.across


@dataclass(frozen=True, slots=True)
class GroupLaunch:
    """A launch of ``blocks`` groups, each of which takes ``held`` bytes for rows."""

    blocks: int
    held: int


@dataclass(frozen=True)
class GroupFusionCosts(FusionCosts):
    """Costs of stages that run together in kernels of a device with groups."""

    @property
    def limit(self) -> int:
        """The bytes of its memory that a group may take; 0: it has none."""
        local = self.target.local
        return min(local.size, self.target.unit.shared) if local else 0

    @property
    def launch(self) -> float:
        """Seconds between two kernels, of which one needs what the other made."""
        return 1e-6 * self.machine.coefficient("launch_us")

    @property
    def _clock(self) -> float:
        return clock_of(self.target, self.machine, self.machine.peak)

    def moving(self, size: int) -> float:
        """Return seconds that a tensor takes to the last cache, or to memory where it is larger."""
        rate = self.target.cores * cache_rate_of(self.target, self.machine, self._clock)
        fits = size <= self.target.last_level.size
        return 1e-9 * size / (rate if fits else min(rate, self.machine.memory_all))

    def writing(self, size: int) -> float:
        """Return seconds that a result takes to the last cache or to memory."""
        return self.moving(size)

    def loop(self, size: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> float:
        """Return seconds of a launch of loops over so many elements."""
        unit = self.target.unit
        a_clock = self.target.cores * unit.width * unit.issues / ELEMENT_INSTRUCTIONS
        computed = size / a_clock / self._clock
        return self.launch + max(computed, sum(map(self.moving, (*reads, *writes))))

    def rows(self, elements: int, terms: int, launch: GroupLaunch) -> float:
        """Return seconds of loops over so many elements in each group of a launch.

        An item takes the ``terms`` of an element one after the other.
        """
        unit, waves = self.target.unit, -(-launch.blocks // self.target.cores)
        item = max(terms * ELEMENT_INSTRUCTIONS, unit.latency * NEAR)
        clocks = max(item, -(-elements // unit.width) * terms * ELEMENT_INSTRUCTIONS / unit.issues)
        return waves * clocks / self._clock

    def layer(self, tile: HeldTile, rows: int, outside: int, launch: GroupLaunch) -> float:
        """Return seconds of a layer that makes so many rows of a product in each group of a launch.

        ``outside`` are the bytes of its tensors that no group holds.
        """
        work = replace(
            tile.work, groups=launch.blocks, steps=tile.work.steps * tile.tiles(rows),
            shared=min(launch.held, self.limit), compulsory=outside + tile.weights,
            fetched=outside + launch.blocks * tile.weights, waits=tile.work.waits * NEAR,
        )  # fmt: skip
        return work.seconds(tile.context)

    def bound(self, work: FusedWork) -> float:
        """Return the seconds below which no code of the members together can be."""
        missed = max(0, work.leaves - self.target.last_level.size)
        moved = 1e-9 * missed / self.machine.memory_all
        return self.safe * (self.launch + max(work.least, moved))

    def together(self, work: FusedWork) -> float:
        """Return the predicted seconds of the members in one kernel."""
        computed = sum(member.together for member in work.members)
        return max(self.bound(work), self.launch + computed)
