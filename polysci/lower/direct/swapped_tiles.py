"""The parts of a tile function where factors may be swapped: the reduction, C with gaps."""

from __future__ import annotations

from collections.abc import Mapping

from polysci.loop_ir.index import (
    Condition,
    Index,
    Variable,
    as_index,
    choose,
    compare,
    least,
    linear,
)
from polysci.loop_ir.nodes import (
    Address,
    Buffer,
    Declare,
    Fields,
    Invoke,
    Let,
    LoopStatement,
    Member,
    Named,
    Scope,
    Value,
)
from polysci.lower.direct.tiles import Tile
from polysci.space.directives import Ahead
from polysci.space.directives.ahead import LINE
from polysci.space.resolve import Plan

OPERANDS: tuple[Value, ...] = tuple(map(Named, ("acc", "t", "A", "B")))


def reduce_swapped(tile: Tile) -> list[LoopStatement]:
    """Return the reduction with swapped factors: A by panels of its rows, B from x by vectors."""
    plan, width, depth = tile.plan, tile.width, tile.depth
    x = plan.coef["x"]
    b_k = x[plan.depth] if plan.depth else 0
    taps = [tap for tap in plan.taps if plan.extent(tap) > 1]
    if taps:
        pairs = [(1, 0)] * (2 - len(taps)) + [(plan.extent(tap), x[tap]) for tap in taps]
        values = tuple(Fields((("", count), ("", step))) for count, step in pairs)
        buffer = Buffer("taps", "ps_tap", as_index(2), Scope.CONSTANT)
        run = Invoke("ps_run_taps", (*OPERANDS, depth, b_k, Named("taps")))
        return [Declare(buffer, values), run]
    following: Index = as_index(0)
    if plan.schedule.has(Ahead):  # the first calls prefetch a line each of the next columns
        call, line = Variable("n") // plan.tile[plan.panel_dim], LINE // 4
        lines = width // line + 1
        following = choose(compare(call, "<", lines), width + line * call, 0)
    return [Invoke("ps_run_rows", (*OPERANDS, depth, b_k, following))]


def reduce_plain(tile: Tile) -> list[LoopStatement]:
    """Return the reduction of factors that are read as they lie, vectors along columns or k."""
    plan = tile.plan
    a_k, b_k = (plan.coef[of][plan.depth] if plan.depth else 0 for of in ("x", "B"))
    b_col = plan.coef["B"][plan.column]
    if b_col != 1 or plan.extent(plan.column) == 1:
        return [Invoke("ps_run_dots", (*OPERANDS, tile.depth, b_col))]
    return [Invoke("ps_run_plain", (*OPERANDS, tile.depth, a_k, b_k))]


def gaps(plan: Plan) -> list[LoopStatement]:
    """Return the definition of which columns C has, if it lacks some."""
    if plan.gaps is None:
        return []
    fields = (
        ("pitch", plan.gaps.pitch), ("columns", plan.gaps.columns), ("phase", Variable("phase")),
    )  # fmt: skip
    return [Let("gaps", Fields(fields), "ps_gaps")]


def result_place() -> tuple[Value, ...]:
    """Return the operands of a tile's first and last step: sums, tile, where in C it lies."""
    y = Member("g", "y", pointed=True)
    return Named("acc"), Named("t"), Address(y, Variable("c"))


def begin(plan: Plan, first: Condition) -> Invoke:
    """Return the first step: sums are 0, or what C holds."""
    if plan.gaps:
        return Invoke("ps_begin_gaps", (*result_place(), first, Named("gaps")))
    return Invoke("ps_begin", (*result_place(), first))


def end(plan: Plan, last: Value) -> Invoke:
    """Return the last step: a bias runs along the columns, or down the rows."""
    if plan.gaps:
        return Invoke("ps_end_gaps", (*result_place(), last, Named("gaps")))
    name = "ps_end_rows" if plan.contraction.swapped else "ps_end"
    return Invoke(name, (*result_place(), last))


def result_offset(plan: Plan, origin: Mapping[str, Index]) -> Index:
    """Return where in C a tile starts: its columns may be positions of which C lacks some."""
    if plan.gaps is None:
        return linear(plan.coef["C"], origin)
    around = {dim: at for dim, at in origin.items() if dim != plan.column}
    at, (pitch, columns) = _column(plan, origin), (plan.gaps.pitch, plan.gaps.columns)
    pixels = columns * (at // pitch) + least(at % pitch, columns)
    return linear(plan.coef["C"], around) + pixels


def phase(plan: Plan, origin: Mapping[str, Index]) -> list[Index]:
    """Return where in an image row the columns of a tile start, if C lacks some."""
    return [] if plan.gaps is None else [_column(plan, origin) % plan.gaps.pitch]


def _column(plan: Plan, origin: Mapping[str, Index]) -> Index:
    return origin.get(plan.column, as_index(0))
