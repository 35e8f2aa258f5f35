"""One function per kind of register tile: the microkernel with every constant in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polysci.loop_ir.index import FALSE, TRUE, Condition, Flag, Variable, as_index, negate
from polysci.loop_ir.nodes import (
    INTEGER,
    Address,
    AddressOf,
    Alternative,
    Buffer,
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
    RoutineResult,
    ScalarParameter,
    Scope,
    Unused,
    Value,
    block,
)
from polysci.lower.direct.reduction import reduction, stacked_calls, stencil_calls
from polysci.space.directives import TilePart
from polysci.space.plan import Plan, Tile
from polysci.space.prefetch import RowsAhead
from polysci.target.coefficients import prior_of
from polysci.target.isa import TileRegisters

HEADERS = ("functions", "functions_exponential", "activations")


def activation_function(name: str) -> str:
    """Return the C function that applies a row of ACTIVATIONS to vectors; empty for none."""
    return name and f"ps_each_{name}"


def activation_headers(name: str) -> tuple[str, ...]:
    """Return the headers of an activation, of which a file holds what it uses."""
    return HEADERS if name else ()


def _operands(plan: Plan) -> list[LoopStatement]:
    """Return the definitions of A and B: x, and panels of w."""
    packed, x = (Member("g", name, pointed=True) for name in ("packed", "a"))
    places = Variable("a"), Variable("b")
    if not plan.contraction.swapped:
        item = plan.packed_item if plan.blocked_weights else 1  # blocks are of so many bytes
        return [
            _factor("A", "ps_a", Address(x, places[0], "ps_a", const=True)),
            _factor("B", "ps_b", Address(packed, item * places[1])),
        ]
    return [
        _factor("A", "ps_b", Address(packed, places[0])),
        _factor("B", "ps_a", Address(x, places[1], "ps_a", const=True)),
    ]


def _factor(name: str, dtype: str, address: Address) -> LoopStatement:
    return Point(Buffer(name, dtype, const=True, restrict=True), address)


def _begins_with_offset(plan: Plan) -> bool:
    """Return whether accumulators begin with offset and bias: scaled sums in vectors do.

    They do if vectors hold them in the order of columns.
    """
    kernel = plan.kernel
    return plan.precision.scaled and kernel.tile_registers is None and kernel.in_lane == 1


def _epilogue(plan: Plan) -> Value:
    """Return what is done to the sums of a tile: factors, and the function behind them."""
    contraction = plan.contraction
    place: Value = RoutineResult("ps_shifted", (Named("g"), Variable("n"), Variable("c")))
    if plan.batches:
        place = RoutineResult("ps_in_batch", (place, Variable("batch")))
    factors = (contraction.alpha, contraction.beta)
    if factors != (1, 1):
        numbers = (Constant(float(np.float32(factor))) for factor in factors)
        place = RoutineResult("ps_times", (place, *numbers))
    if activation := activation_function(contraction.activation):
        return RoutineResult("ps_then", (place, Named(activation)))
    return place


def _beginning(plan: Plan, first: Condition) -> Invoke:
    """Return the first step: sums begin with zeros, what C holds, or offset and bias."""
    if _begins_with_offset(plan):
        return Invoke("ps_begin_offset", (Named("acc"), Named("t"), AddressOf("e")))
    if plan.gaps:
        return Invoke("ps_begin_gaps", (*_result_place(), first, Named("gaps")))
    return Invoke("ps_begin", (*_result_place(), first))


def _ending(plan: Plan, last: Value) -> Invoke:
    """Return the last step: a bias runs along the columns, down the rows, or is a channel's."""
    if plan.gaps:
        return Invoke("ps_end_gaps", (*_result_place(), last, Named("gaps")))
    name = "ps_end_rows" if plan.contraction.swapped else "ps_end"
    return Invoke("ps_end_channel" if plan.kernel.stencil else name, (*_result_place(), last))


def _result_place() -> tuple[Value, ...]:
    """Return the operands of the first and the last step: sums, tile, where in C it lies."""
    y = Member("g", "y", pointed=True)
    return Named("acc"), Named("t"), Address(y, Variable("c"))


def _gaps(plan: Plan) -> list[LoopStatement]:
    """Return the definition of which columns C has, if it lacks some."""
    if plan.gaps is None:
        return []
    fields = (
        ("pitch", plan.gaps.pitch), ("columns", plan.gaps.columns), ("phase", Variable("phase")),
    )  # fmt: skip
    return [Let("gaps", Fields(fields), "ps_gaps")]


def _sums(tile: Tile) -> list[LoopStatement]:
    """Return the statements between them, which accumulate, where no directive has its own."""
    if tile.plan.kernel.stencil:
        return stencil_calls(tile.plan, tile.pieces)
    return stacked_calls(tile) if tile.plan.stacked else reduction(tile)


def step_words(tile: Tile, most: int) -> int:
    """Words of k in a step on tile registers, at most ``most``.

    What a run has left behind its last whole step is copied. A number that divides every run
    avoids that, where it needs hardly more steps.
    """
    plan = tile.plan
    run = tile.depth * (plan.extent(plan.joined) if plan.joined else 1)
    steps = max(run // plan.compute.vnni_factor, 1)
    fits = max(size for size in range(1, most + 1) if steps % size == 0)
    return fits if steps // fits <= prior_of("fitting_steps") * -(-steps // most) else most


def _parameters(plan: Plan, parts: Sequence[TilePart]) -> tuple[ScalarParameter, ...]:
    """Return the parameters of a tile function behind ``g``, in order."""
    names = ["a", "b", "c", "n", *["batch"] * bool(plan.batches)]
    kinds = dict.fromkeys(names, INTEGER)
    if plan.blocked:
        kinds |= {"first": "int", "last": "int"}
    for tap in plan.ranges:
        kinds |= {f"{tap}_first": INTEGER, f"{tap}_last": INTEGER}
    if plan.gaps is not None:
        kinds["phase"] = INTEGER
    for part in parts:
        kinds |= dict.fromkeys(part.parameters, INTEGER)
    return tuple(ScalarParameter(name, kind) for name, kind in kinds.items())


def _steps_ahead(tile: Tile) -> int:
    """Return how many steps ahead the rows of x are asked for."""
    plan, item, x = tile.plan, tile.plan.contraction.x.bytes, tile.plan.coef["x"]
    if not plan.depth or plan.blocked_weights:
        return 0
    rows = [(tile.size(dim), item * x[dim]) for dim in plan.rows]
    ahead = RowsAhead.of(plan.kernel, rows, item * x[plan.depth], tile.depth)
    return ahead.steps if ahead else 0


def tile_function(name: str, tile: Tile, *, adds: bool = False) -> LoopFunction:
    """Return the function of a register tile; a, b, c, n are offsets in elements.

    ``adds``: sums are added to what C holds.
    """
    plan = tile.plan
    parts = [directive.tile_part(tile) for directive in plan.schedule.directives]
    own = [part.sums for part in parts if part.sums is not None]
    fields, sums = dict[str, Value](_shape(tile)), [*own[-1]] if own else _sums(tile)
    if not own and (soon := _steps_ahead(tile)):
        fields["soon"] = soon
    for part in parts:
        fields |= part.fields
    if not sums:  # every tap of this tile lies in the padding
        ends = (f"{tap}_{end}" for tap in plan.ranges for end in ("first", "last"))
        sums = [Unused(("A", "B", *ends))]
    first: Condition = FALSE
    last: Value = AddressOf("e")
    if plan.blocked:
        first, last = negate(Flag("first")), Alternative(Flag("last"), AddressOf("e"), 0)
    registers, vectors = plan.kernel.tile_registers, tile.rows * tile.step // plan.kernel.lanes
    begins = TRUE if adds and not plan.private else first
    last_added = begins != FALSE and plan.kernel.in_lane > 1  # once sums are in order
    constant = all(isinstance(value, int) for value in fields.values())
    body = [
        *(statement for part in parts for statement in part.statements),
        Let("t", Fields(tuple(fields.items())), "ps_tile", static=constant),
        *_operands(plan),
        Let("e", _epilogue(plan), "ps_epilogue"),
        Declare(Buffer("acc", "ps_acc", as_index(vectors), Scope.REGISTER)),
        *([_configuration(registers)] if registers else []),
        *_gaps(plan),
        *[Unused(("first",))] * (plan.blocked and begins != first),
        _beginning(plan, FALSE if last_added else begins),
        Invoke("ps_ahead", (Named("t"), Member("e", "residual"))),
        *sums,
        *[Invoke("ps_unshift", (Named("acc"), Named("t")))] * (plan.kernel.group > 1),
        *[Invoke("ps_accumulate", _result_place())] * last_added,
        *[Invoke("ps_unpair", (Named("acc"), Named("t")))] * plan.paired,
        _ending(plan, last),
    ]
    g = Buffer("g", "ps_args", const=True, restrict=True)
    return LoopFunction(name, (g, *_parameters(plan, parts)), block(*body))


def _configuration(registers: TileRegisters) -> LoopStatement:
    """Return the statement that configures the shape of a tile in tile registers."""
    return Invoke(registers.configure, (Member("g", registers.state, pointed=True), Named("t")))


def _shape(tile: Tile) -> dict[str, int]:
    """Return what the microkernel takes as constants of the tile."""
    plan = tile.plan
    size, lanes = tile.size(plan.column), plan.kernel.lanes
    vecs = -(-size // lanes)
    inner = plan.rows[-1] if plan.rows else None
    outer = plan.rows[0] if len(plan.rows) == 2 else None
    fields = {
        "rows": tile.rows,
        "vecs": vecs,
        "wrap": tile.size(inner) if inner else 1,
        "lanes": size - (vecs - 1) * lanes,
        "a_outer": plan.coef["x"][outer] if outer else 0,
        "a_inner": plan.coef["x"][inner] if inner else 0,
        "c_outer": plan.coef["C"][outer] if outer else 0,
        "c_inner": plan.coef["C"][inner] if inner else 0,
        "c_col": plan.coef["C"][plan.column],
        "diagonal": int(plan.kernel.diagonal),
    }
    if plan.kernel.group > 1:
        fields["shifts"] = plan.kernel.shifts
    if plan.kernel.in_lane > 1:
        fields["together"] = plan.kernel.in_lane
    if plan.blocked_weights:
        fields["block"] = plan.contraction.a.block
    if _begins_with_offset(plan):
        fields["begun"] = 1
    registers = plan.kernel.tile_registers
    if registers and (words := step_words(tile, registers.words)) < registers.words:
        fields["words"] = words
    return fields
