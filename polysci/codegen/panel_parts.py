"""The C function that copies part of B into panels, for ``pack(B)`` inside loops."""

from __future__ import annotations

from math import prod

from polysci.codegen import ctree as c
from polysci.codegen.panels import panel_width, vector_copy
from polysci.errors import UnsupportedError
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
    copy, offset = vector_copy(plan, strides), plan.contraction.w.offset(strides)
    if not copy:
        raise UnsupportedError(
            f"schedule {plan.schedule}: pack(B) copies vectors: columns or steps of the reduction "
            f"must be neighbours in {plan.contraction.w.array}"
        )
    panel, origins = plan.panel_dim, part_origins(plan)
    place = {d.name: [c.variable(d.name)] for d in plan.contraction.dims if d.name in origins}
    *around, deepest = (*plan.taps, plan.depth) if plan.depth else plan.taps
    looped = [*plan.taps] if plan.depth else around
    for dim in [panel, *looped, *([plan.depth] if plan.depth else [])]:
        place.setdefault(dim, []).append(_within(dim))
    terms = [f"{offset.coef(dim)} * ({' + '.join(at)})" for dim, at in place.items()]
    source = " + ".join([*([str(offset.const)] if offset.const else []), *terms])
    to = [f"panels + {plan.reduction} * {_within(panel)}"]
    if plan.depth:
        taps = prod(plan.panels[tap] for tap in plan.taps)
        to.append(f"{taps} * width * {_within(plan.depth)}")
    for position, tap in enumerate(looped):
        inner = prod(plan.panels[other] for other in looped[position + 1 :])
        inside = "deep" if plan.depth else str(plan.panels[deepest])
        to.append(f"{inner} * {inside} * width * {_within(tap)}")
    along = panel if copy == "ps_panel_turned" else deepest
    real = f"{_count(plan, panel, origins)} - {_within(panel)}"
    call = f"{copy}({' + '.join(to)}, w + {source}, {offset.coef(along)}, deep, width, {real})"
    body: c.Generable = c.Block([c.Statement(call)])
    for tap in reversed(looped):
        body = _loop(plan, tap, 1, origins, body)
    deep = _count(plan, deepest, origins)
    if plan.depth:
        deep = f"ps_least({deep} - {_within(deepest)}, {plan.tile[deepest]})"
    body = c.Block([c.Statement(f"const int64_t deep = {deep}"), *c.items(body)])
    if plan.depth:
        body = _loop(plan, deepest, plan.tile[deepest], origins, body)
    body = c.Block([panel_width(plan, real), *c.items(body)])
    body = _loop(plan, panel, plan.tile[panel], origins, body)
    arguments = ["const float *restrict w", "float *restrict panels"]
    arguments += [f"int64_t {c.variable(dim)}" for dim in origins]
    head = f"static PS_KERNEL void {symbol}_pack_b({', '.join(arguments)})"
    return c.function(head, [body])


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
