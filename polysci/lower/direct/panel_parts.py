"""The C function that copies part of B into panels, for ``pack(B)`` inside loops."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.errors import UnsupportedError
from polysci.lower.direct.panels import panel_width, vector_copy
from polysci.numerics.dtypes import DTYPES
from polysci.printers import ctree as c
from polysci.space.resolve import Plan


def part_origins(plan: Plan) -> list[str]:
    """Dimensions whose tile origin the function takes."""
    around = plan.schedule.loops[: plan.schedule.panels_depth]
    dims = dict.fromkeys(loop.dim for loop in around)
    return [dim for dim in dims if plan.contraction.w.uses(dim)]


def part_function(symbol: str, plan: Plan, strides: tuple[int, ...]) -> c.Generable:
    """``static void SYMBOL_pack_b(w, panels, origins...)``: the part of B from these origins on.

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
    item = DTYPES[plan.contraction.b.dtype].c_type
    arguments = [f"const {item} *restrict w", "ps_b *restrict panels"]
    arguments += [f"int64_t {c.variable(dim)}" for dim in origins]
    head = f"static PS_KERNEL void {symbol}_pack_b({', '.join(arguments)})"
    return c.function(head, [body])


def _rows(plan: Plan, strides: tuple[int, ...], origins: list[str]) -> c.Generable:
    """Row by row of B, each of which gives every panel a row."""
    *around, deepest = [plan.depth] if plan.depth else plan.taps
    offset, panel = plan.contraction.w.offset(strides), plan.panel_dim
    steps = {
        tap: prod(plan.panels[t] for t in plan.taps[at + 1 :]) for at, tap in enumerate(around)
    }
    row = c.linear(steps, {tap: _within(tap) for tap in around})
    lanes, tile = plan.panel_lanes, plan.tile[panel]
    width = -(-tile // lanes) * lanes
    numbers = [row, offset.coef(deepest), _count(plan, deepest, origins)]
    numbers += [_count(plan, panel, origins), width, plan.reduction]
    call = f"ps_part_rows(panels, {_source(plan, strides, origins, around)}, "
    body: c.Generable = c.Statement(call + ", ".join(map(str, numbers)) + ")")
    for tap in reversed(around):
        body = _loop(plan, tap, 1, origins, body)
    return body


def _pairs(plan: Plan, strides: tuple[int, ...], origins: list[str]) -> c.Generable:
    """Two rows of B at a time, which give every panel words, for all taps before the next ones."""
    assert plan.depth
    offset, panel, around = plan.contraction.w.offset(strides), plan.panel_dim, plan.taps
    steps = {tap: prod(plan.panels[t] for t in around[at + 1 :]) for at, tap in enumerate(around)}
    deep, lanes = _count(plan, plan.depth, origins), plan.panel_lanes
    tap = c.linear(steps, {tap: _within(tap) for tap in around})
    width = -(-plan.tile[panel] // lanes) * lanes
    numbers = [tap, offset.coef(plan.depth), deep, _within(plan.depth)]
    numbers += [_count(plan, panel, origins), width, plan.reduction]
    call = f"ps_part_pair(panels, {_source(plan, strides, origins, [plan.depth, *around])}, "
    body: c.Generable = c.Statement(call + ", ".join(map(str, numbers)) + ")")
    for name in reversed(around):
        body = _loop(plan, name, 1, origins, body)
    return _loop(plan, plan.depth, 2, origins, body)


def _turned(plan: Plan, strides: tuple[int, ...], origins: list[str]) -> c.Generable:
    """Panel by panel, where steps of the reduction are neighbours in B."""
    assert plan.depth
    offset, panel = plan.contraction.w.offset(strides), plan.panel_dim
    source = _source(plan, strides, origins, [panel, plan.depth])
    rest = f"{_count(plan, panel, origins)} - {_within(panel)}"
    left = f"{_count(plan, plan.depth, origins)} - {_within(plan.depth)}"
    deep = f"ps_least({left}, {plan.tile[plan.depth]})"
    to = f"panels + {plan.reduction} * {_within(panel)} + width * {_within(plan.depth)}"
    call = f"ps_panel_turned({to}, {source}, {offset.coef(panel)}, {deep}, width, {rest})"
    body = _loop(plan, plan.depth, plan.tile[plan.depth], origins, c.Statement(call))
    return _loop(plan, panel, plan.tile[panel], origins, c.Block([panel_width(plan, rest), body]))


def _source(plan: Plan, strides: tuple[int, ...], origins: list[str], looped: Sequence[str]) -> str:
    """The C of where in B the loops are."""
    offset, at = plan.contraction.w.offset(strides), dict[str, str]()
    for dim in dict.fromkeys([*origins, *looped]):
        words = [c.variable(dim)] * (dim in origins) + [_within(dim)] * (dim in looped)
        at[dim] = " + ".join(words)
    coef = {d.name: offset.coef(d.name) for d in plan.contraction.dims}
    return f"w + {c.linear(coef, at, offset.const)}"


def _within(dim: str) -> str:
    """The C variable that counts positions of a dimension inside the part."""
    return f"{c.variable(dim)}_at"


def _count(plan: Plan, dim: str, origins: list[str]) -> str:
    """The C of how many positions of a dimension the part has."""
    extent, size = plan.extent(dim), plan.panels[dim]
    if dim not in origins or extent % size == 0:
        return str(size)
    return f"ps_least({extent} - {c.variable(dim)}, {size})"


def _loop(plan: Plan, dim: str, step: int, origins: list[str], body: c.Generable) -> c.Generable:
    at, update = _within(dim), f"++{_within(dim)}" if step == 1 else f"{_within(dim)} += {step}"
    count = _count(plan, dim, origins)
    return c.loop(f"int64_t {at} = 0", f"{at} < {count}", update, c.Block([*c.items(body)]))
