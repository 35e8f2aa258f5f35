"""The order in which a schedule sums the products of an element, whatever threads do meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polysci.numerics.dtypes import COMPUTES
from polysci.polyhedral.contraction import Contraction
from polysci.space.directives import Plain, Private, Swap
from polysci.space.enumerate import Family
from polysci.space.schedule import Schedule
from polysci.target.microkernels import find


@dataclass(frozen=True, slots=True)
class SummationOrder:
    """The order of sums, which decides the bits of a result: equal orders form equal sums.

    ``kernel`` is the family, instruction set and way to multiply, whose calls run over taps and k
    in a fixed order; ``loops`` the loops over reductions, the outermost first: dimension, step, and
    whether its turns have private copies. ``packed``: words of several products come from a copy
    of A, where they may join taps. ``plain``: vectors may run along k, and sums of lanes are added
    last. ``transform`` and ``swap`` as in the schedule.
    """

    kernel: tuple[str, str, str]
    loops: tuple[tuple[str, int, bool], ...] = ()
    packed: bool = False
    plain: bool = False
    transform: str = ""
    swap: bool = False

    @classmethod
    def of(cls, contraction: Contraction, schedule: Schedule) -> SummationOrder:
        """The order of a schedule's sums."""
        kernel, reduced = find(schedule.kernel), contraction.reductions
        loops = tuple(
            (loop.dim, loop.step, loop.parallel and schedule.has(Private))
            for loop in schedule.loops
            if loop.dim in reduced
        )
        paired = COMPUTES[kernel.compute].vnni_factor > 1
        return cls(
            (kernel.family, kernel.isa, kernel.compute), loops,
            paired and schedule.pack is not None, schedule.has(Plain),
            str(schedule.transform or ""), schedule.has(Swap),
        )  # fmt: skip

    def members(self, family: Family, *, swap: bool) -> NDArray[np.bool_]:
        """Return which members of a direct family, of swapped factors or not, sum in this order."""
        none = np.zeros(len(family), dtype=bool)
        kernel = family.tiles[0].kernel
        same = (kernel.family, kernel.isa, kernel.compute) == self.kernel
        wanted = {dim: (step, private) for dim, step, private in self.loops}
        reduced = [dim for dim in family.dims if dim in family.reductions]
        in_order = [dim for dim in reduced if dim in wanted] == [dim for dim, _, _ in self.loops]
        once = len(wanted) == len(self.loops) and len(set(reduced)) == len(reduced)
        if self.transform or self.plain or swap != self.swap or not (same and in_order and once):
            return none
        agree = ~none
        for position, dim in enumerate(family.dims):
            if dim not in reduced:
                continue
            step, private = wanted.get(dim, (family.extents[dim], False))
            agree &= family.steps[:, position] == step
            if dim in wanted:
                agree &= (position < family.parallel) == private
        if COMPUTES[kernel.compute].vnni_factor > 1:
            agree &= (family.pack >= 0) == self.packed
        return agree
