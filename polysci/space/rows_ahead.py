"""Where a microkernel asks for rows of x some steps ahead: no prefetcher of the CPU does.

Neighbouring pixels of a channel share lines, while steps of the reduction, channels, lie lines or
pages apart. Every load of a line that is on its way is issued twice. Measured on an Intel core, a
load for every product and steps a page apart in L2: 10.0 ns a step, with prefetches 5.6, from L1
5.2; the same on huge pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from polysci.space.directives.ahead import LINE
from polysci.target.microkernels import Microkernel

STEPS: Final = 8  # from a prefetch to its use: L2 answers in 15 cycles, L3 in 200; a step takes 14
LEAST_DEPTH: Final = 2 * STEPS  # of a run, for half of which its prefetches come in time
LEAST_SWAPPED: Final = (
    16 * STEPS
)  # with few loads a product: longer runs, of more lines than L1 has


@dataclass(frozen=True, slots=True)
class RowsAhead:
    """``steps`` ahead of its use a step of the reduction asks for ``lines`` of x."""

    steps: int
    lines: int

    @classmethod
    def of(
        cls, kernel: Microkernel, rows: Sequence[tuple[int, int]], step: int, depth: int
    ) -> Self | None:
        """What a kernel asks for; None where it need not.

        ``rows`` are the size of each dimension of the tile's rows, innermost last, and the bytes in
        x from one to the next; ``step`` bytes lie between steps, ``depth`` steps make a run.
        """
        if kernel.family != "brgemm" or kernel.tile_registers or not rows or depth < LEAST_DEPTH:
            return None
        *around, (size, apart) = rows
        if not 0 < apart < LINE <= step:
            return None
        lines = -(-size * apart // LINE) + 1
        for count, _ in around:
            lines *= count
        return cls(STEPS, lines)
