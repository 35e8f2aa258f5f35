"""The function that copies part of B into panels, for ``pack(B)`` inside loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import Index, Variable, as_index, least, linear
from polysci.loop_ir.nodes import (
    Address,
    Buffer,
    Invoke,
    LoopFunction,
    LoopStatement,
    Named,
    ScalarParameter,
    block,
    loop,
)
from polysci.lower.direct.panels import panel_width, vector_copy
from polysci.lower.direct.tiles import iterator
from polysci.numerics.dtypes import DTYPES
from polysci.space.resolve import Plan


def part_origins(plan: Plan) -> list[str]:
    """Dimensions whose tile origin the function takes."""
    around = plan.schedule.loops[: plan.schedule.panels_depth]
    dims = dict.fromkeys(loop.dim for loop in around)
    return [dim for dim in dims if plan.contraction.w.uses(dim)]


def part_function(symbol: str, plan: Plan, strides: tuple[int, ...]) -> LoopFunction:
    """Return ``SYMBOL_pack_b(w, panels, origins...)``: the part of B from these origins on.

    Its panels are laid out as those of a B that ends with the part.
    """
    copy = vector_copy(plan, strides)
    if not copy:
        raise UnsupportedError(
            f"schedule {plan.schedule}: pack(B) copies vectors: columns or steps of the reduction "
            f"must be neighbours in {plan.contraction.w.array}"
        )
    origins = part_origins(plan)
    copies = {"ps_panel_rows": _rows, "ps_panel_turned": _turned, "ps_panel_pairs": _pairs}
    body = copies[copy](plan, strides, origins)
    parameters: tuple[Buffer | ScalarParameter, ...] = (
        Buffer("w", DTYPES[plan.contraction.b.dtype].c_type, const=True, restrict=True),
        Buffer("panels", "ps_b", restrict=True),
        *(ScalarParameter(iterator(dim).name) for dim in origins),
    )
    return LoopFunction(f"{symbol}_pack_b", parameters, block(body))


def _rows(plan: Plan, strides: tuple[int, ...], origins: list[str]) -> LoopStatement:
    """Row by row of B, each of which gives every panel a row."""
    *around, deepest = [plan.depth] if plan.depth else plan.taps
    offset, panel = plan.contraction.w.offset(strides), plan.panel_dim
    row = linear(_tap_steps(plan, around), {tap: _within(tap) for tap in around})
    lanes, tile = plan.panel_lanes, plan.tile[panel]
    width = -(-tile // lanes) * lanes
    body: LoopStatement = Invoke("ps_part_rows", (
        Named("panels"), _source(plan, strides, origins, around), row, offset.coef(deepest),
        _count(plan, deepest, origins), _count(plan, panel, origins), width, plan.reduction,
    ))  # fmt: skip
    for tap in reversed(around):
        body = _loop(plan, tap, 1, origins, body)
    return body


def _tap_steps(plan: Plan, around: Sequence[str]) -> Mapping[str, int]:
    """Rows of B from one value of a tap to the next."""
    return {tap: prod(plan.panels[t] for t in plan.taps[at + 1 :]) for at, tap in enumerate(around)}


def _pairs(plan: Plan, strides: tuple[int, ...], origins: list[str]) -> LoopStatement:
    """Two rows of B at a time, which give every panel words, for all taps before the next ones."""
    assert plan.depth
    offset, panel, around = plan.contraction.w.offset(strides), plan.panel_dim, plan.taps
    deep, lanes = _count(plan, plan.depth, origins), plan.panel_lanes
    tap = linear(_tap_steps(plan, around), {tap: _within(tap) for tap in around})
    width = -(-plan.tile[panel] // lanes) * lanes
    body: LoopStatement = Invoke("ps_part_pair", (
        Named("panels"), _source(plan, strides, origins, [plan.depth, *around]), tap,
        offset.coef(plan.depth), deep, _within(plan.depth), _count(plan, panel, origins), width,
        plan.reduction,
    ))  # fmt: skip
    for name in reversed(around):
        body = _loop(plan, name, 1, origins, body)
    return _loop(plan, plan.depth, 2, origins, body)


def _turned(plan: Plan, strides: tuple[int, ...], origins: list[str]) -> LoopStatement:
    """Panel by panel, where steps of the reduction are neighbours in B."""
    assert plan.depth
    offset, panel, width = plan.contraction.w.offset(strides), plan.panel_dim, Variable("width")
    source = _source(plan, strides, origins, [panel, plan.depth])
    rest = _count(plan, panel, origins) - _within(panel)
    left = _count(plan, plan.depth, origins) - _within(plan.depth)
    deep = least(left, plan.tile[plan.depth])
    to = Address(Named("panels"), plan.reduction * _within(panel) + width * _within(plan.depth))
    call = Invoke("ps_panel_turned", (to, source, offset.coef(panel), deep, width, rest))
    body = _loop(plan, plan.depth, plan.tile[plan.depth], origins, call)
    return _loop(plan, panel, plan.tile[panel], origins, block(panel_width(plan, rest), body))


def _source(
    plan: Plan, strides: tuple[int, ...], origins: list[str], looped: Sequence[str]
) -> Address:
    """Where in B the loops are."""
    offset, at = plan.contraction.w.offset(strides), dict[str, Index]()
    for dim in dict.fromkeys([*origins, *looped]):
        at[dim] = as_index(0)
        if dim in origins:
            at[dim] = at[dim] + iterator(dim)
        if dim in looped:
            at[dim] = at[dim] + _within(dim)
    coef = {d.name: offset.coef(d.name) for d in plan.contraction.dims}
    return Address(Named("w"), linear(coef, at, offset.const))


def _within(dim: str) -> Variable:
    """The variable that counts positions of a dimension inside the part."""
    return Variable(f"{iterator(dim)}_at")


def _count(plan: Plan, dim: str, origins: list[str]) -> Index:
    """How many positions of a dimension the part has."""
    extent, size = plan.extent(dim), plan.panels[dim]
    if dim not in origins or extent % size == 0:
        return as_index(size)
    return least(extent - iterator(dim), size)


def _loop(
    plan: Plan, dim: str, step: int, origins: list[str], body: LoopStatement
) -> LoopStatement:
    return loop(_within(dim).name, _count(plan, dim, origins), body, step=step)
