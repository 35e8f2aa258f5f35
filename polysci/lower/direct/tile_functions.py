"""One function per kind of register tile: the microkernel with every constant in place."""

from __future__ import annotations

import numpy as np

from polysci.loop_ir.index import (
    FALSE,
    TRUE,
    Condition,
    Flag,
    Variable,
    as_index,
    choose,
    compare,
    every,
    negate,
)
from polysci.loop_ir.nodes import (
    INTEGER,
    Address,
    AddressOf,
    Alternative,
    Buffer,
    Comment,
    Constant,
    Declare,
    Fields,
    Invoke,
    Let,
    LoopFunction,
    LoopStatement,
    Member,
    Named,
    Point,
    Result,
    ScalarParameter,
    Scope,
    Unused,
    Value,
    block,
)
from polysci.lower.direct.activation_calls import activation_function
from polysci.lower.direct.reduction import reduction
from polysci.lower.direct.stacked import stacked_calls
from polysci.lower.direct.stencil import stencil_calls
from polysci.lower.direct.swapped_tiles import (
    begin,
    end,
    gaps,
    reduce_plain,
    reduce_swapped,
    result_place,
)
from polysci.lower.direct.tiles import Tile
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
from polysci.target.isa import TileRegisters

# What a tile function says of `next`.
PREFETCH = "Bytes from B to what a step prefetches of the panel that comes next; 0: nothing new"


def _operands(plan: Plan) -> list[LoopStatement]:
    """The definitions of A and B: x, and panels of w."""
    packed, x = (Member("g", name, pointed=True) for name in ("packed", "a"))
    places = Variable("a"), Variable("b")
    if not plan.contraction.swapped:
        return [
            _factor("A", "ps_a", Address(x, places[0], "ps_a", const=True)),
            _factor("B", "ps_b", Address(packed, places[1])),
        ]
    return [
        _factor("A", "ps_b", Address(packed, places[0])),
        _factor("B", "ps_a", Address(x, places[1], "ps_a", const=True)),
    ]


def _factor(name: str, dtype: str, address: Address) -> LoopStatement:
    return Point(Buffer(name, dtype, const=True, restrict=True), address)


def _begins_with_offset(plan: Plan) -> bool:
    """Whether accumulators begin with offset and bias: of vectors those of scaled sums do."""
    return plan.precision.scaled and plan.kernel.tile_registers is None


def _epilogue(plan: Plan) -> Value:
    """Return what is done to the sums of a tile: factors, and the function behind them."""
    contraction = plan.contraction
    place: Value = Result("ps_shifted", (Named("g"), Variable("n"), Variable("c")))
    if plan.batches:
        place = Result("ps_in_batch", (place, Variable("batch")))
    factors = (contraction.alpha, contraction.beta)
    if factors != (1, 1):
        numbers = (Constant(float(np.float32(factor))) for factor in factors)
        place = Result("ps_times", (place, *numbers))
    if activation := activation_function(contraction.activation):
        return Result("ps_then", (place, Named(activation)))
    return place


def _beginning(plan: Plan, first: Condition) -> LoopStatement:
    """The first step: accumulators of zeros, of earlier sums, or of offset and bias."""
    if _begins_with_offset(plan):
        operands = (Named("acc"), Named("t"), AddressOf("e"))
        return Invoke("ps_begin_offset", operands)
    return begin(plan, first)


def _ending(plan: Plan, last: Value) -> LoopStatement:
    """The last step."""
    if plan.kernel.stencil:
        return Invoke("ps_end_channel", (*result_place(), last))
    return end(plan, last)


def _reduction(tile: Tile) -> list[LoopStatement]:
    """The statements between them, which accumulate."""
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


def parameters(plan: Plan) -> tuple[ScalarParameter, ...]:
    """Return the parameters of a tile function behind ``g``, in order."""
    names = ["a", "b", "c", "n", *["batch"] * bool(plan.batches)]
    kinds = dict.fromkeys(names, INTEGER)
    if plan.blocked:
        kinds |= {"first": "int", "last": "int"}
    for tap in plan.ranges:
        kinds |= {f"{tap}_first": INTEGER, f"{tap}_last": INTEGER}
    if plan.gaps is not None:
        kinds["phase"] = INTEGER
    if plan.ahead is not None:
        kinds |= {"call": INTEGER, "panel": INTEGER}
    return tuple(ScalarParameter(name, kind) for name, kind in kinds.items())


def _prefetch(tile: Tile, reuse: PanelReuse) -> tuple[int, list[LoopStatement]]:
    """Lines that a step prefetches, and the definition of the distance at which they lie."""
    item, call = tile.plan.compute.bytes, Variable("call")
    lines = -(-tile.step * tile.plan.compute.vnni_factor * item // LINE)
    count, first, end = share_lines(lines, reuse.calls)
    when: list[Condition] = [Flag("panel")]
    when += [compare(call, ">=", first)] * (first > 0)
    when += [compare(call, "<", end)] * (end < reuse.calls)
    place = item * Variable("panel") + count * LINE * (call - first)
    return count, [Comment(PREFETCH), Let("next", choose(every(when), place, 0))]


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


def tile_function(name: str, tile: Tile, *, adds: bool = False) -> LoopFunction:
    """Return the function of a register tile; a, b, c, n are offsets in elements."""
    plan = tile.plan
    fields: dict[str, Value] = dict(_shape(tile))
    before: list[LoopStatement] = []
    if plan.ahead:
        lines, before = _prefetch(tile, plan.ahead)
        fields |= {"ahead": lines, "next": Variable("next")}
    first: Condition = FALSE
    last: Value = AddressOf("e")
    if plan.blocked:
        first, last = negate(Flag("first")), Alternative(Flag("last"), AddressOf("e"), 0)
    steps = _reduction(tile)
    if not steps:  # every tap of this tile lies in the padding
        ends = (f"{tap}_{end}" for tap in plan.ranges for end in ("first", "last"))
        steps = [Unused(("A", "B", *ends))]
    registers, sums = plan.kernel.tile_registers, tile.rows * tile.step // plan.kernel.lanes
    begins = TRUE if adds and not plan.private else first
    body = [
        *before,
        Let("t", Fields(tuple(fields.items())), "ps_tile", static=not plan.ahead),
        *_operands(plan),
        Let("e", _epilogue(plan), "ps_epilogue"),
        Declare(Buffer("acc", "ps_acc", as_index(sums), Scope.REGISTER)),
        *([_configuration(registers)] if registers else []),
        *gaps(plan),
        *[Unused(("first",))] * (plan.blocked and begins != first),
        _beginning(plan, begins),
        Invoke("ps_ahead", (Named("t"), Member("e", "residual"))),
        *steps,
        *[Invoke("ps_unshift", (Named("acc"), Named("t")))] * (plan.kernel.shifts > 1),
        *[Invoke("ps_unpair", (Named("acc"), Named("t")))] * plan.paired,
        _ending(plan, last),
    ]
    g = Buffer("g", "ps_args", const=True, restrict=True)
    return LoopFunction(name, (g, *parameters(plan)), block(*body))


def _configuration(registers: TileRegisters) -> LoopStatement:
    """The statement before a register tile that needs its shape configured."""
    return Invoke(registers.configure, (Member("g", registers.state, pointed=True), Named("t")))


def _shape(tile: Tile) -> dict[str, int]:
    """What the microkernel takes as constants of the tile."""
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
    if plan.contraction.swapped:  # rows of a panel of w
        fields |= {"wrap": tile.rows, "a_outer": 0, "a_inner": 1}
    if plan.kernel.shifts > 1:
        fields["shifts"] = plan.kernel.shifts
    for directive in plan.schedule.directives:
        fields |= directive.tile_fields(plan)
    if _begins_with_offset(plan):
        fields["begun"] = 1
    if soon := _steps_ahead(tile):
        fields["soon"] = soon
    registers = plan.kernel.tile_registers
    if registers and (words := step_words(tile, registers.words)) < registers.words:
        fields["words"] = words
    return fields
