"""``private(C)``: copies of the result, one for each turn of the parallel loops over reductions.

Without such loops there is one, where the result cannot keep partial sums. Their number follows
from the schedule alone: whatever threads there are, the same sums are formed in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Self

from polysci.errors import UnsupportedError
from polysci.numerics.arrays import round_up
from polysci.numerics.dtypes import COMPUTES, DTYPES, DType
from polysci.polyhedral.contraction import Contraction
from polysci.space.directives.directive import Directive
from polysci.target.microkernels import Microkernel

if TYPE_CHECKING:
    from polysci.polyhedral.tile_schedule import Loop
    from polysci.space.enumerate import Family
    from polysci.space.schedule import Schedule

MOST_COPIES = 32  # that the end sums: their bytes grow with them


@dataclass(frozen=True, slots=True)
class Private(Directive):
    """Each turn of a parallel loop over a reduction sums into a copy of C; the end adds these."""

    word = "private(C)"
    sentence = "Partial sums are kept in copies of C, one for each turn of parallel reductions."

    @classmethod
    def of_member(cls, family: Family, index: int, loops: Sequence[Loop]) -> Self | None:
        """Return it for loops over reductions that are parallel, or of a ``narrow`` C."""
        summed = (loop for loop in loops if loop.dim in family.reductions)
        return cls() if any(loop.parallel or family.narrow for loop in summed) else None

    def remark(self, contraction: Contraction, schedule: Schedule, names: Sequence[str]) -> str:
        reduced = contraction.reductions
        turns = " ".join(loop.dim for loop in schedule.parallel if loop.dim in reduced)
        if turns:
            return f"each turn over {turns} sums into a copy of {names[2]} of its own"
        return f"partial sums of {names[2]} are kept in a copy"


@dataclass(frozen=True, slots=True)
class PrivateCopies:
    """Copies of a result of type ``y``, each dense and of sums.

    ``turns`` has the parallel reductions in order: the step of the loop, and its turns. Of a copy
    ``shape`` and ``strides`` are those of the array, strides of dense storage; a call stores the
    result where ``stored`` says.
    """

    y: DType
    turns: Mapping[str, tuple[int, int]]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    stored: tuple[int, ...]

    @property
    def count(self) -> int:
        return prod(turns for _, turns in self.turns.values())

    @property
    def size(self) -> int:
        """Sums from one copy to the next: whole cache lines."""
        return round_up(4 * prod(self.shape)) // 4

    @property
    def bytes(self) -> int:
        """Bytes of all copies."""
        return 4 * self.size * self.count

    def sums(self, contraction: Contraction, kernel: Microkernel) -> Contraction:
        """The contraction that calls compute: its result is a copy."""
        name = COMPUTES[kernel.compute].sum.name
        return replace(contraction, out=replace(contraction.out, dtype=name))


def copies_of(
    contraction: Contraction, stored: tuple[int, ...], schedule: Schedule, kernel: Microkernel
) -> PrivateCopies | None:
    """The copies that a schedule needs; None where its result is written as it is summed.

    Without a parallel loop over a reduction that is one copy, of a result that cannot keep partial
    sums. Raises UnsupportedError where the schedule needs none, for whole numbers, and for more
    than MOST_COPIES.
    """
    if not schedule.has(Private):
        return None
    reduced = contraction.reductions
    turns = {
        loop.dim: (loop.step, -(-contraction.extent(loop.dim) // loop.step))
        for loop in schedule.parallel
        if loop.dim in reduced
    }
    shape = contraction.out.shape
    copies = PrivateCopies(
        DTYPES[contraction.out.dtype], turns, shape, dense_strides(shape, stored), stored
    )
    looped = any(loop.dim in reduced for loop in schedule.loops)
    if not turns and not (looped and needs_copy(contraction, kernel)):
        raise UnsupportedError(f"schedule {schedule}: no parallel loop runs over a reduction")
    if COMPUTES[kernel.compute].sum.integer:
        raise UnsupportedError(f"schedule {schedule}: private copies hold sums of reals")
    if copies.count > MOST_COPIES:
        raise UnsupportedError(
            f"schedule {schedule}: {copies.count} private copies of {contraction.out.array}: "
            f"expected at most {MOST_COPIES}"
        )
    return copies


def needs_copy(contraction: Contraction, kernel: Microkernel) -> bool:
    """Whether partial sums need a copy: B changes from call to call and C is of narrower reals."""
    sums = COMPUTES[kernel.compute].sum
    return contraction.packs_b and not sums.integer and contraction.out.dtype != sums.name


def dense_strides(shape: Sequence[int], stored: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps, the axes in the order in which they are stored."""
    strides, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda axis: (stored[axis], -axis)):
        strides[axis], step = step, step * shape[axis]
    return tuple(strides)
