"""Which weights a call prefetches: lines of the panel that follows the one it reads."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Self

from polysci.errors import UnsupportedError
from polysci.polyhedral.contraction import Contraction
from polysci.polyhedral.schedule import Loop, Schedule
from polysci.target.microkernels import Microkernel


@dataclass(frozen=True, slots=True)
class PanelReuse:
    """The calls that read one panel of B, and the loop around them that moves to the next panel.

    ``loops`` are around those calls alone: (loop, iterations, extent around it).
    """

    mover: Loop
    loops: tuple[tuple[Loop, int, int], ...]

    @classmethod
    def of(cls, contraction: Contraction, schedule: Schedule, kernel: Microkernel) -> Self:
        """Raises UnsupportedError where no panel follows another, or none is used twice."""
        if kernel.family != "brgemm" or kernel.tile_registers:
            raise UnsupportedError(
                f"schedule {schedule}: ahead(B) needs a brgemm kernel on vector registers, "
                f"not {kernel}"
            )
        around = {dim.name: dim.extent for dim in contraction.dims}
        loops = list[tuple[Loop, int, int]]()
        for loop in schedule.loops:
            extent = around[loop.dim]
            loops.append((loop, -(-extent // loop.step), extent))
            around[loop.dim] = loop.step
        loops = [entry for entry in loops if entry[1] > 1]
        moves = [at for at, (loop, _, _) in enumerate(loops) if contraction.b.uses(loop.dim)]
        if not moves or moves[-1] == len(loops) - 1:
            raise UnsupportedError(
                f"schedule {schedule}: ahead(B) needs a loop over rows inside one over "
                f"{contraction.b.array}, so that calls share a panel while the next one comes"
            )
        return cls(loops[moves[-1]][0], tuple(loops[moves[-1] + 1 :]))

    @property
    def calls(self) -> int:
        """How many calls read one panel."""
        return prod(trips for _, trips, _ in self.loops)

    def share(self, lines: int) -> tuple[int, int, int]:
        """Lines that one call prefetches a step, of so many; the first call to do so, and the end.

        The calls in the middle: the first ones may still wait for their own panel.
        """
        most = -(-lines // self.calls)
        needed = -(-lines // most)
        first = (self.calls - needed) // 2
        return most, first, first + needed
