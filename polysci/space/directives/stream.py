"""``stream(C)``: store C past the caches, for results larger than those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polysci.errors import UnsupportedError
from polysci.loop_ir.nodes import Assign, Invoke, LoopStatement, Member, Named, RoutineResult
from polysci.polyhedral.contraction import columns_of
from polysci.space.directives.directive import Directive, EntryPoint, Place, TilePart
from polysci.target.isas import isa_of

if TYPE_CHECKING:
    from polysci.space.enumerate import LoopOrder
    from polysci.space.plan import Plan, Tile


@dataclass(frozen=True, slots=True)
class Stream(Directive):
    """C is stored past the caches."""

    word = "stream(C)"
    place = Place.LAST
    own_kind = True
    sentence = "C is stored past the caches."

    def resolve(self, plan: Plan) -> Plan:
        if not _stores_whole_vectors(plan):
            raise UnsupportedError(
                f"schedule {plan.schedule}: {plan.contraction.out} is not written once in whole "
                "aligned vectors"
            )
        return plan

    @classmethod
    def variants(cls, order: LoopOrder) -> Sequence[NDArray[np.bool_]]:
        none = np.zeros(len(order.steps), dtype=bool)
        if not _may_stream(order):
            return (none,)
        step = order.kernel.streamed_columns(order.contraction.out.bytes)
        whole = [step > 0 and tile.sizes[0][1] % step == 0 for tile in order.tiles]
        return none, np.array(whole)[order.which]

    def enter(self, entry: EntryPoint) -> Sequence[LoopStatement]:
        aligned = RoutineResult("ps_is_aligned", (Named("y"), 4 * entry.plan.kernel.lanes))
        return (Assign(Member("args", "aligned"), aligned),)

    def leave(self, entry: EntryPoint) -> Sequence[LoopStatement]:
        return (Invoke("ps_fence"),)  # others see the stores before the caller goes on

    def tile_part(self, tile: Tile) -> TilePart:
        return TilePart(fields={"stream": 1})


def _may_stream(order: LoopOrder) -> bool:
    """Return whether C exceeds the caches, is written once, and has whole stores in some tile."""
    contraction, kernel = order.contraction, order.kernel
    out = contraction.out.offset(order.strides[contraction.out.array])
    reduced = (*contraction.by_role("k"), *contraction.by_role("br"))
    written_once = not any(d.name in order.dims for d in reduced)  # and no copies are summed
    return (
        order.large
        and written_once
        and bool(kernel.streamed_columns(contraction.out.bytes))
        and isa_of(kernel.isa).machine == "x86_64"  # elsewhere there is no such store
        and out.coef(columns_of(contraction).name) == 1
        and not (contraction.image and contraction.image.gaps)
    )


def _stores_whole_vectors(plan: Plan) -> bool:
    """Return whether a plan writes C once, in whole aligned stores."""
    contraction, c, column = plan.contraction, plan.coef["C"], columns_of(plan.contraction)
    step = plan.kernel.streamed_columns(contraction.out.bytes)
    reduced = (*contraction.by_role("k"), *contraction.by_role("br"))
    strides = [c[d.name] for d in contraction.dims if d != column and d.extent > 1]
    return (
        all(plan.tile[d.name] == d.extent for d in reduced)
        and step > 0
        and not (contraction.image and contraction.image.gaps)
        and c[column.name] == 1
        and column.extent % step == 0
        and plan.tile[column.name] % step == 0
        and all(stride % step == 0 for stride in strides)
    )
