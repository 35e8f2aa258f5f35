"""Wavefronts and sectors of a step of a group, counted from the places that its items access."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.cost import warps
from polysci.loop_ir.index import (
    Comparison,
    Index,
    Linear,
    Modulo,
    Product,
    Quotient,
    Variable,
    iterator,
)
from polysci.lower.mapped.accesses import ITEM, ItemAccess, accesses_of
from polysci.lower.mapped.nest import SHARED, GroupNest
from polysci.lower.mapped.plan import MappedPlan, resolve
from polysci.polyhedral.contraction import Contraction
from polysci.space.schedule import Schedule

WARP: Final = warps.BANKS  # items that take an instruction together
Numbers = NDArray[np.int64]
_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WarpCounts:
    """Counts of a step of a group, inside of the launch: no edge of the image is near.

    ``reads`` and ``writes`` are wavefronts of the group's memory, ``conflicts`` those beyond what
    the words need, of reads and of writes; ``sectors`` are those that copies read.
    """

    reads: int
    writes: int
    conflicts: tuple[int, int]
    sectors: int

    @property
    def fronts(self) -> int:
        """All wavefronts."""
        return self.reads + self.writes


def counts_of(plan: MappedPlan) -> WarpCounts:
    """Return the counts of a plan."""
    strides = tuple(sorted(plan.strides.items()))
    return _counts(plan.contraction, strides, plan.schedule)


@lru_cache(maxsize=4096)
def _counts(
    contraction: Contraction, strides: tuple[tuple[str, tuple[int, ...]], ...], schedule: Schedule
) -> WarpCounts:
    plan = resolve(contraction, dict(strides), schedule)
    fronts, least, sectors = {True: 0, False: 0}, {True: 0, False: 0}, 0
    for access in accesses_of(GroupNest(plan).item()):
        if not any(turns.waits for turns in access.loops):
            continue  # the sums of the last steps, whose own copies are behind
        words, active = _instructions(access, plan)
        if access.buffer in SHARED:
            counted, even = warps.wavefronts(words, active)
            fronts[access.writes] += counted
            least[access.writes] += even
        else:
            sectors += warps.sectors(words, active)
    conflicts = (fronts[False] - least[False], fronts[True] - least[True])
    return WarpCounts(fronts[False], fronts[True], conflicts, sectors)


def _instructions(access: ItemAccess, plan: MappedPlan) -> tuple[warps.Words, warps.Active]:
    """Return the words that each instruction of a step takes, and the items that take part.

    Loops with barriers stand in the middle of their turns, and so does the group.
    """
    free = [turns for turns in access.loops if not turns.waits]
    names = _middle(plan)
    for turns in access.loops:
        if turns.waits:
            names[turns.name] = np.array(turns.values[len(turns.values) // 2])
    for axis, turns in enumerate(free):
        names[turns.name] = np.array(turns.values).reshape(-1, *[1] * (len(free) - axis))
    wide = -(-plan.items // WARP) * WARP
    names[ITEM] = np.arange(wide)
    shape = (*(len(turns.values) for turns in free), wide)
    active = names[ITEM] < plan.items
    reads_shared = access.buffer in SHARED and not access.writes
    for condition in () if reads_shared else access.conditions:  # first steps have no sums yet
        assert isinstance(condition, Comparison)
        left, right = _value(condition.left, names), _value(condition.right, names)
        active = active & _COMPARE[condition.operator](left, right)
    places = np.broadcast_to(_value(access.place, names), shape).reshape(-1, WARP)
    rows = prod(shape) // WARP
    words = places[:, :, None] + np.arange(access.width)
    return words, np.broadcast_to(active, shape).reshape(rows, WARP)


def _middle(plan: MappedPlan) -> dict[str, Numbers]:
    """Return where the group in the middle of all begins."""
    along_rows, along_columns = plan.blocks
    dims = {iterator(dim.name).name: np.array(dim.extent // 2) for dim in plan.batches}
    row, column = along_rows // 2 * plan.rows, along_columns // 2 * plan.columns
    return {**dims, "row": np.array(row), "column": np.array(column)}


def _value(index: Index, names: Mapping[str, Numbers]) -> Numbers:
    """Return the values of an expression."""
    match index:
        case Variable(name):
            return names[name]
        case Linear(terms, constant):
            total = np.array(constant)
            for term, factor in terms:
                total = total + factor * _value(term, names)
            return total
        case Quotient(left, right, _):
            return _value(left, names) // _value(right, names)
        case Modulo(left, right):
            return _value(left, names) % _value(right, names)
        case Product(left, right):
            return _value(left, names) * _value(right, names)
        case _:
            raise AssertionError(f"{index}: no expression of what items do")
