"""``plain(B)``: calls read a B that changes from call to call where it lies, without panels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polysci.loop_ir.nodes import Invoke
from polysci.polyhedral.contraction import Contraction, Strides, columns_of
from polysci.space.directives.ahead import Ahead
from polysci.space.directives.directive import Directive, TilePart
from polysci.space.directives.swap import OPERANDS, Swap
from polysci.space.prefetch import steps_ahead
from polysci.target.coefficients import prior_of
from polysci.target.microkernels import Microkernel

if TYPE_CHECKING:
    from polysci.space.plan import Tile
    from polysci.space.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Plain(Directive):
    """Calls read B where it lies."""

    word = "plain(B)"
    features = ("dot_products", "rows_in_place")

    def refusal(
        self, contraction: Contraction, strides: Strides, schedule: Schedule, kernel: Microkernel
    ) -> str:
        why = panels_refusal(contraction, strides)
        if not why and (kernel.family != "brgemm" or kernel.outer_products):
            why = f"{kernel} does not"
        if not why and (schedule.has(Swap) or schedule.has(Ahead)):
            why = f"{Swap.word} and {Ahead.word} are of panels"
        return f"cannot read B where it lies: {why}" if why else ""

    def tile_part(self, tile: Tile) -> TilePart:
        """Return the reduction by vectors along the columns of B, or along k where none has any."""
        plan = tile.plan
        a_k, b_k = (plan.coef[of][plan.depth] if plan.depth else 0 for of in ("x", "B"))
        b_col = plan.coef["B"][plan.column]
        sums = Invoke("ps_run_plain", (*OPERANDS, tile.depth, a_k, b_k))
        if b_col != 1 or plan.extent(plan.column) == 1:
            sums = Invoke("ps_run_dots", (*OPERANDS, tile.depth, b_col))
        soon = plan.depth is not None and tile.depth >= prior_of("long_depth")
        return TilePart(fields={"soon": steps_ahead()} if soon else {}, sums=(sums,))


def plain_roles(contraction: Contraction) -> Contraction:
    """Return the contraction as calls see it that read B where it lies."""
    return replace(contraction, packs_b=False, plain=True)


def panels_refusal(contraction: Contraction, strides: Strides) -> str:
    """Return why no schedule can read B where it lies; empty where some can."""
    if not contraction.packs_b:
        return f"{contraction.b.array} is packed ahead"
    types = {operand.dtype for operand in (contraction.a, contraction.b, contraction.out)}
    if types != {"f32"}:
        return "only products of f32 do"
    if contraction.padded or any(d.extent > 1 for d in contraction.by_role("br")):
        return "it has several reductions, or padding"
    if contraction.b.offset(strides[contraction.b.array]).const:
        return f"{contraction.b.array} does not begin with the first column"
    if not (columns_touch(contraction, strides) or sums_dots(contraction, strides)):
        return f"neither columns of {contraction.b.array} are neighbours, nor rows of both factors"
    return ""


def columns_touch(contraction: Contraction, strides: Strides) -> bool:
    """Return whether a row of B is read by whole vectors."""
    b, column = contraction.b, columns_of(contraction)
    return b.offset(strides[b.array]).coef(column.name) == 1 and column.extent > 1


def sums_dots(contraction: Contraction, strides: Strides) -> bool:
    """Return whether both factors are read by vectors along k: each result is a dot product."""
    depths = contraction.by_role("k")
    return len(depths) == 1 and all(
        factor.offset(strides[factor.array]).coef(depths[0].name) == 1
        for factor in (contraction.a, contraction.b)
    )
