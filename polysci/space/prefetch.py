"""Prefetches of x, which kernels issue in any schedule where they pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from polysci.numerics.arrays import LINE
from polysci.target.coefficients import prior_of
from polysci.target.microkernels import Microkernel


def steps_ahead() -> int:
    """Return the steps from a prefetch of x to its use."""
    return int(prior_of("ahead_steps"))


@dataclass(frozen=True, slots=True)
class RowsAhead:
    """``steps`` ahead of its use a step of the reduction asks for ``lines`` of x.

    Kernels do that in any schedule, as no prefetcher of the CPU does: neighbouring pixels of a
    channel share lines, while steps of the reduction, channels, lie lines or pages apart. Every
    load of a line that is on its way is issued twice. Measured on an Intel core, a load for every
    product and steps a page apart in L2: 10.0 ns a step, with prefetches 5.6, from L1 5.2; the same
    on huge pages.
    """

    steps: int
    lines: int

    @classmethod
    def of(
        cls, kernel: Microkernel, rows: Sequence[tuple[int, int]], step: int, depth: int
    ) -> Self | None:
        """Return what a kernel asks for; None where it need not.

        ``rows`` are the size of each dimension of the tile's rows, innermost last, and the bytes in
        x from one to the next; ``step`` bytes lie between steps, ``depth`` steps make a run.
        """
        if kernel.family != "brgemm" or not kernel.in_vectors or not rows:
            return None
        if depth < 2 * steps_ahead():  # prefetches come in time for half of a run
            return None
        *around, (size, apart) = rows
        if not 0 < apart < LINE <= step:
            return None
        lines = -(-size * apart // LINE) + 1
        for count, _ in around:
            lines *= count
        return cls(steps_ahead(), lines)
