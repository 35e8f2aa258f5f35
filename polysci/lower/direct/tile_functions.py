"""One C function per kind of register tile: the microkernel with every constant in place."""

from __future__ import annotations

import numpy as np

from polysci.lower.direct.activation_calls import activation_function
from polysci.lower.direct.reduction import reduction
from polysci.lower.direct.stacked import stacked_calls
from polysci.lower.direct.stencil import stencil_calls
from polysci.lower.direct.swapped_tiles import begin, end, gaps, reduce_plain, reduce_swapped
from polysci.lower.direct.tiles import Tile
from polysci.printers import ctree as c
from polysci.space.directives import Plain
from polysci.space.directives.ahead import (
    LEAST_SWAPPED,
    LINE,
    STEPS,
    PanelReuse,
    RowsAhead,
    share_lines,
)
from polysci.space.resolve import Plan

# What a tile function says of `next`.
PREFETCH = "Bytes from B to what a step prefetches of the panel that comes next; 0: nothing new"


def _operands(plan: Plan) -> tuple[str, str]:
    """C declarations of A and B: x, and panels of w."""
    if plan.contraction.swapped:
        return (
            "const ps_b *restrict A = g->packed + a",
            "const ps_a *restrict B = (const ps_a *)g->a + b",
        )
    return (
        "const ps_a *restrict A = (const ps_a *)g->a + a",
        "const ps_b *restrict B = g->packed + b",
    )


def _begins_with_offset(plan: Plan) -> bool:
    """Whether accumulators begin with offset and bias: of vectors those of scaled sums do."""
    return plan.precision.scaled and plan.kernel.tile_registers is None


def _epilogue(plan: Plan) -> str:
    """Return the C of what is done to the sums of a tile: factors, and the function behind them."""
    contraction = plan.contraction
    place, activation = "ps_shifted(g, n, c)", activation_function(contraction.activation)
    if plan.batches:
        place = f"ps_in_batch({place}, batch)"
    factors = (contraction.alpha, contraction.beta)
    if factors != (1, 1):
        numbers = ", ".join(f"{float(np.float32(factor))!r}f" for factor in factors)
        place = f"ps_times({place}, {numbers})"
    return f"ps_then({place}, {activation})" if activation else place


def _beginning(plan: Plan, first: str) -> str:
    """The C of the first step: accumulators of zeros, of earlier sums, or of offset and bias."""
    if _begins_with_offset(plan):
        return "ps_begin_offset(acc, t, &e)"
    return begin(plan, first)


def _ending(plan: Plan, last: str) -> str:
    """The C of the last step."""
    if plan.kernel.stencil:
        return f"ps_end_channel(acc, t, g->y + c, {last})"
    return end(plan, last)


def _reduction(tile: Tile) -> list[c.Generable]:
    """The C between them, which accumulates."""
    if tile.plan.kernel.stencil:
        return stencil_calls(tile.plan, tile.pieces)
    if tile.plan.stacked:
        return stacked_calls(tile)
    if tile.plan.schedule.has(Plain):
        return reduce_plain(tile)
    return reduce_swapped(tile) if tile.plan.contraction.swapped else reduction(tile)


def step_words(tile: Tile, most: int) -> int:
    """Words of k in a step on tile registers, at most ``most``.

    What a run has left behind its last whole step is copied. A number that divides every run
    avoids that, where it needs hardly more steps.
    """
    plan = tile.plan
    run = tile.depth * (plan.extent(plan.joined) if plan.joined else 1)
    words = max(run // plan.compute.vnni_factor, 1)
    fits = max(size for size in range(1, most + 1) if words % size == 0)
    return fits if words // fits <= 1.25 * -(-words // most) else most


def parameters(plan: Plan) -> list[str]:
    """C parameters of a tile function, in order."""
    names = ["int64_t a", "int64_t b", "int64_t c", "int64_t n"]
    names += ["int64_t batch"] * bool(plan.batches)
    if plan.blocked:
        names += ["int first", "int last"]
    for tap in plan.ranges:
        names += [f"int64_t {tap}_first", f"int64_t {tap}_last"]
    names += ["int64_t phase"] * (plan.gaps is not None)
    return names + ["int64_t call", "int64_t panel"] * (plan.ahead is not None)


def _prefetch(tile: Tile, reuse: PanelReuse) -> tuple[int, list[c.Generable]]:
    """Lines that a step prefetches, and the C of the distance at which they lie."""
    item = tile.plan.compute.bytes
    lines = -(-tile.step * tile.plan.compute.vnni_factor * item // LINE)
    count, first, end = share_lines(lines, reuse.calls)
    when = ["panel", *[f"call >= {first}"] * (first > 0), *[f"call < {end}"] * (end < reuse.calls)]
    place = f"{item} * panel + {count * LINE} * " + (f"(call - {first})" if first else "call")
    text = f"const int64_t next = {' && '.join(when)} ? {place} : 0"
    return count, [c.remark(PREFETCH), c.Statement(text)]


def _steps_ahead(tile: Tile) -> int:
    """How many steps ahead the rows of x are asked for."""
    plan, item, x = tile.plan, tile.plan.contraction.x.bytes, tile.plan.coef["x"]
    if not plan.depth:
        return 0
    step = item * x[plan.depth]
    if plan.contraction.swapped:
        single = all(plan.extent(tap) == 1 for tap in plan.taps)
        return STEPS if single and tile.depth >= LEAST_SWAPPED and step >= LINE else 0
    if plan.schedule.has(Plain):
        return STEPS if tile.depth >= LEAST_SWAPPED else 0
    rows = [(tile.size(dim), item * x[dim]) for dim in plan.rows]
    ahead = RowsAhead.of(plan.kernel, rows, step, tile.depth)
    return ahead.steps if ahead else 0


def tile_function(name: str, tile: Tile, *, adds: bool = False) -> c.Generable:
    """The C function of a register tile; a, b, c, n are offsets in elements."""
    plan = tile.plan
    size, lanes = tile.size(plan.column), plan.kernel.lanes
    inner = plan.rows[-1] if plan.rows else None
    outer = plan.rows[0] if len(plan.rows) == 2 else None
    fields = {
        "rows": tile.rows,
        "vecs": tile.width // lanes,
        "wrap": tile.size(inner) if inner else 1,
        "lanes": size - (tile.width - lanes),
        "a_outer": plan.coef["x"][outer] if outer else 0,
        "a_inner": plan.coef["x"][inner] if inner else 0,
        "c_outer": plan.coef["C"][outer] if outer else 0,
        "c_inner": plan.coef["C"][inner] if inner else 0,
        "c_col": plan.coef["C"][plan.column],
        "diagonal": int(plan.kernel.diagonal),
    }
    shifts = plan.kernel.shifts
    if plan.contraction.swapped:  # rows of a panel of w
        fields |= {"wrap": tile.rows, "a_outer": 0, "a_inner": 1}
    if shifts > 1:
        fields["shifts"] = shifts
    for directive in plan.schedule.directives:
        fields |= directive.tile_fields(plan)
    if _begins_with_offset(plan):
        fields["begun"] = 1
    if soon := _steps_ahead(tile):
        fields["soon"] = soon
    registers = plan.kernel.tile_registers
    if registers and (words := step_words(tile, registers.words)) < registers.words:
        fields["words"] = words
    constants = ", ".join(f".{key} = {value}" for key, value in fields.items())
    shape: c.Body = [c.Statement(f"static const ps_tile t = {{{constants}}}")]
    if plan.ahead:
        lines, distance = _prefetch(tile, plan.ahead)
        constants += f", .ahead = {lines}, .next = next"
        shape = [*distance, c.Statement(f"const ps_tile t = {{{constants}}}")]
    first, last = ("!first", "last ? &e : 0") if plan.blocked else ("0", "&e")
    first += " | 1" * (adds and not plan.private)
    steps = _reduction(tile)
    if not steps:  # every tap of this tile lies in the padding
        unused = ["A", "B", *(f"{tap}_{end}" for tap in plan.ranges for end in ("first", "last"))]
        steps = [c.Statement(", ".join(f"(void){name}" for name in unused))]
    body = [
        *shape,
        *map(c.Statement, _operands(plan)),
        c.Statement(f"const ps_epilogue e = {_epilogue(plan)}"),
        c.local_array("ps_acc", "acc", tile.rows * tile.step // lanes),
        *([c.Statement(registers.configuration(f"g->{registers.state}"))] if registers else []),
        *gaps(plan),
        c.Statement(_beginning(plan, first)),
        c.Statement("ps_ahead(t, e.residual)"),
        *steps,
        *([c.Statement("ps_unshift(acc, t)")] if shifts > 1 else []),
        *([c.Statement("ps_unpair(acc, t)")] if plan.paired else []),
        c.Statement(_ending(plan, last)),
    ]
    head = ", ".join(["const ps_args *restrict g", *parameters(plan)])
    return c.function(f"static PS_KERNEL void {name}({head})", body)
