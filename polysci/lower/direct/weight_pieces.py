"""Large weights packed some columns at a time, so that they need not be in memory as a whole."""

from __future__ import annotations

from math import prod

from polysci.loop_ir.index import Variable
from polysci.loop_ir.nodes import (
    Address,
    Buffer,
    LoopFunction,
    Named,
    Point,
    ScalarParameter,
    block,
)
from polysci.lower.direct.panels import columns_loop, target_of
from polysci.printers.team import Team
from polysci.space.group_views import shift_of
from polysci.space.packed_copy import ALIGNMENT
from polysci.space.resolve import Plan

LARGE = 16 << 20  # bytes of weights that are packed piece by piece
PIECE = 4 << 20  # about so many at a time


def declare_columns(symbol: str, kind: str) -> str:
    """The prototype of what ``columns_functions`` defines."""
    return f"{columns_head(symbol, kind)};\n"


def columns_head(symbol: str, kind: str) -> str:
    w = f"const {kind} *w"
    return f"void {symbol}_pack_columns({w}, void *panels, int64_t first, int64_t last)"


def columns_at_a_time(plan: Plan, strides: tuple[int, ...], team: Team) -> tuple[int, int] | None:
    """Of a network's large weights, packed some columns at a time: elements of one, and how many.

    The elements of a column lie side by side then, column after column, and so many of them fill
    whole lines. None for others.
    """
    w, columns = plan.contraction.w, plan.extent(plan.panel_dim)
    whole, tile = prod(w.shape), plan.tile[plan.panel_dim]
    offset = w.offset(strides)
    refused = (
        team is Team.OWN
        or plan.contraction.packs_b
        or plan.contraction.swapped
        or plan.precision.integer
    )
    if refused or plan.groups or plan.merged > 1 or shift_of(plan.contraction) or offset.const:
        return None
    row = whole // columns
    step = tile * max(1, PIECE // (tile * row * w.bytes))
    apart = offset.coef(plan.panel_dim) == row and step * row * w.bytes % ALIGNMENT == 0
    return (row, step) if apart and whole * w.bytes >= LARGE else None


def columns_functions(
    symbol: str, plan: Plan, strides: tuple[int, ...], team: Team
) -> list[LoopFunction]:
    """Return ``SYMBOL_pack_columns(w, panels, first, last)``, which packs some columns.

    It packs columns first..last-1 of the weights; ``w`` begins with column ``first``, which is
    the first one of a panel. None for weights that are packed at once.
    """
    if columns_at_a_time(plan, strides, team) is None:
        return []
    first, last = Variable("first"), Variable("last")
    panels = Address(Named("panels"), dtype="ps_b")
    body = block(
        Point(
            Buffer(target_of(plan), "ps_b", restrict=True),
            Address(panels, plan.reduction * first),
        ),
        columns_loop(plan, strides, first, last, first),
    )
    parameters = (
        Buffer("w", plan.precision.w.c_type, const=True),
        Buffer("panels", "void"),
        ScalarParameter("first"),
        ScalarParameter("last"),
    )
    return [LoopFunction(f"{symbol}_pack_columns", parameters, body, attributes=())]
