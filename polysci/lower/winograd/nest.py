"""The loop IR of a Winograd schedule: transforms around a register tile, loops over blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from polysci.errors import SpecError, UnsupportedError
from polysci.explain.comments import caches_text
from polysci.loop_ir import interface
from polysci.loop_ir.index import (
    THREAD,
    ZERO,
    Index,
    Variable,
    as_index,
    choose,
    compare,
    every,
    iterator,
    least,
    thread_share,
)
from polysci.loop_ir.nodes import (
    Address,
    AddressOf,
    Advance,
    Buffer,
    Comment,
    Declare,
    Fields,
    If,
    Invoke,
    Let,
    LoopFunction,
    LoopModule,
    LoopStatement,
    Mask,
    Member,
    Named,
    Point,
    Return,
    ScalarParameter,
    Scope,
    Team,
    Unused,
    Value,
    block,
    loop,
    run_threads,
)
from polysci.lower.algorithm import EmitOptions
from polysci.lower.direct.nest import flush_denormals
from polysci.lower.direct.tile_functions import activation_function, activation_headers
from polysci.lower.lowering import LoweredPrimitive, share_turns
from polysci.lower.winograd.plan import WinogradPlan
from polysci.lower.winograd.tiles import (
    STORED,
    OutputTile,
    convolution,
    image_strides,
    planes_of,
    steps_of,
)
from polysci.numerics.dtypes import F32, PRECISIONS
from polysci.ops.problem import Problem
from polysci.space.directives import Ahead
from polysci.target.microkernels import HeaderSet
from polysci.text.tables import bytes_text

# By the type in which transformed filters are kept.
HEADERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    stored: ("winograd_in", f"winograd_{stored}", "winograd", "winograd_out", "winograd_back")
    for stored in STORED.values()
})  # fmt: skip
Strides = Mapping[str, tuple[int, ...]]


def lower_winograd(plan: WinogradPlan, options: EmitOptions) -> LoweredPrimitive:
    """Return a convolution under a Winograd schedule; the interface is every primitive's.

    Raises SpecError or UnsupportedError for options that do not fit.
    """
    symbol, schedule = options.symbol, plan.schedule
    if options.by_rows:
        raise UnsupportedError(f"schedule {schedule}: its outermost loop is over tiles, not rows")
    if options.adds:
        raise UnsupportedError(f"schedule {schedule}: its epilogue does not add to y")
    interface.check_symbol(symbol)
    if plan.threads < 1:
        raise SpecError(f"threads={plan.threads}: at least one thread is needed")
    rows = dict.fromkeys([plan.kernel.rows, *plan.rests])
    module = LoopModule((
        _shape(plan, symbol, options.strides),
        _entry(plan, symbol, options),
        *_sizes(plan, symbol),
        *(_tile(plan, symbol, count) for count in rows),
        *_steps(symbol, plan.problem.activation),
        _multiply(plan, symbol),
        _block(plan, symbol),
    ))  # fmt: skip
    return LoweredPrimitive(
        module, symbol, HeaderSet(plan.kernel.isa, w=plan.stored.name), schedule,
        PRECISIONS["f32"], options.team,
        (*HEADERS[plan.stored.name], *activation_headers(plan.problem.activation)),
        4 * plan.workspace, plan.packed_bytes,
    )  # fmt: skip


def _shape(plan: WinogradPlan, symbol: str, strides: Strides) -> Let:
    """Return the constant that the transforms take."""
    sizes = (plan.v_tiles * plan.v_tile, plan.v_tile), (plan.t * plan.m_tile, plan.m_tile)
    fields = shape_fields(plan.origin, plan.tile, strides, sizes, (plan.k, plan.kernel.cols))
    return Let(f"{symbol}_shape", Fields(tuple(fields.items())), "ps_winograd", static=True)


def shape_fields(
    problem: Problem, tile: OutputTile, strides: Strides,
    distances: tuple[tuple[int, int], tuple[int, int]], columns: tuple[int, int],
) -> dict[str, Value]:  # fmt: skip
    """Return the fields of a shape.

    ``distances`` are those of points and of tiles, in V and in M; ``columns`` those of U: of a
    block and of a panel.
    """
    conv, planes, arrays = convolution(problem), planes_of(problem), problem.arrays()
    (into, back), (down, across), steps = distances, tile.count(conv), steps_of(conv)
    return {
        "tall": tile.down.m, "wide": tile.across.m,
        "rows": tile.down.points, "columns": tile.across.points,
        "tall_step": steps[0], "wide_step": steps[1],
        "tall_stride": conv.stride[0], "wide_stride": conv.stride[1],
        "across": across, "down": down,
        "height": conv.H, "width": conv.W, "channels": conv.C // planes.taps,
        "top": conv.pad[0], "left": conv.pad[1], "depth": conv.C // conv.groups,
        "planes": planes.taps, "plane_stride": planes.stride, "plane_step": planes.step,
        "front": planes.front, "deep": planes.size, "images": max(1, planes.outputs),
        "p": conv.P, "q": conv.Q, "filters": conv.K,
        **_distances("x", strides.get("I") or arrays["I"][1]),
        **_distances("y", strides.get("O") or arrays["O"][1]),
        "v_point": into[0], "v_tile": into[1], "m_point": back[0], "m_tile": back[1],
        "block": columns[0], "cols": columns[1],
    }  # fmt: skip


def _distances(letter: str, strides: tuple[int, ...]) -> dict[str, int]:
    image, channel, plane, row, col = image_strides(strides)
    return {
        f"{letter}_image": image, f"{letter}_plane": plane, f"{letter}_row": row,
        f"{letter}_col": col, f"{letter}_channel": channel,
    }  # fmt: skip


def _function(
    name: str, buffers: Mapping[str, str], numbers: Sequence[str], *body: LoopStatement
) -> LoopFunction:
    """Return a function of this file alone; ``buffers`` are types of its pointers by name."""
    pointers = (
        Buffer(name, kind.removeprefix("const "), const=kind.startswith("const "))
        for name, kind in buffers.items()
    )
    scalars = (ScalarParameter(number) for number in numbers)
    return LoopFunction(name, (*pointers, *scalars), block(*body))


def _tile(plan: WinogradPlan, symbol: str, rows: int) -> LoopFunction:
    """Return the function of a register tile of one point: rows of tiles by columns of filters."""
    kernel, ahead = plan.kernel, plan.schedule.has(Ahead)
    fields: dict[str, Value] = {
        "rows": rows, "vecs": kernel.vecs, "wrap": rows, "lanes": kernel.lanes,
        "a_inner": plan.v_tile, "c_inner": plan.m_tile, "c_col": 1,
    }  # fmt: skip
    if ahead:
        fields |= {"ahead": plan.prefetch[0], "next": Variable("next")}
    acc, t, out = map(Named, ("acc", "t", "out"))
    factors = (Mask((1 << rows) - 1), Named("v"), Named("u"))
    return _function(
        f"{symbol}_t{rows}",
        {"v": "const float32", "u": "const ps_b", "out": "float32"},
        ["next"] * ahead,
        Let("t", Fields(tuple(fields.items())), "ps_tile", static=not ahead),
        Declare(Buffer("acc", "ps_vec", as_index(rows * kernel.vecs), Scope.REGISTER)),
        Invoke("ps_begin", (acc, t, out, 0)),
        Invoke("ps_run", (acc, t, *factors, plan.depth, 1)),
        Invoke("ps_end", (acc, t, out, 0)),
    )


def _steps(symbol: str, activation: str) -> list[LoopFunction]:
    """Return the transforms, each a function of its own."""
    shape, function = Named(f"{symbol}_shape"), activation_function(activation)
    places = [Variable(name) for name in ("t0", "t1", "k0", "count")]
    return [
        _function(
            f"{symbol}_input", {"x": "const float32", "v": "float32"}, ["t0", "t1"],
            Invoke("ps_winograd_input", (shape, Named("x"), Named("v"), *places[:2])),
        ),
        _function(
            f"{symbol}_output", {"g": "const ps_args", "sums": "const float32"},
            ["t0", "t1", "k0", "count"],
            Invoke("ps_winograd_output", (
                shape, Named("g"), Named("sums"), *places, Named(function) if function else 0
            )),
        ),
    ]  # fmt: skip


def _multiply(plan: WinogradPlan, symbol: str) -> LoopFunction:
    """Return the function of M = V U of one block, point by point."""
    kernel, tiles, whole = plan.kernel, Variable("tiles"), Variable("whole")
    point, k, row = Variable("point"), Variable("k"), Variable("row")

    def tile(rows: int, at: Variable) -> Invoke:
        a, c = Address(Named("a"), at * plan.v_tile), Address(Named("c"), at * plan.m_tile)
        return Invoke(f"{symbol}_t{rows}", (a, Named("u"), c, *_next(plan, at)))

    groups = plan.problem.groups
    place = point * (plan.v_tiles * plan.v_tile)
    if groups > 1:  # that of the panel's filters
        place = place + (Variable("k0") + k) // (plan.problem.K // groups) * plan.depth
    a = Address(Named("v"), place)
    c = Address(Named("sums"), point * (plan.t * plan.m_tile) + k)
    columns: list[LoopStatement] = [
        Point(Buffer("a", "float32", const=True), a),
        Point(Buffer("c", "float32"), c),
        loop(row.name, whole, tile(kernel.rows, row), step=kernel.rows),
        *(If(compare(tiles - whole, "==", rest), block(tile(rest, whole))) for rest in plan.rests),
        Advance("u", as_index(plan.depth * kernel.cols)),
    ]
    points = loop("point", plan.points, loop("k", Variable("width"), *columns, step=kernel.cols))
    return _function(
        f"{symbol}_multiply",
        {"v": "const float32", "u": "const ps_b", "sums": "float32"},
        ["tiles", "width", *["k0"] * (groups > 1)],
        Let(whole.name, tiles // kernel.rows * kernel.rows),
        points,
    )


def _next(plan: WinogradPlan, row: Variable) -> list[Index]:
    """Return the operand that says how far behind u the next panel lies; 0: nothing new."""
    if not plan.schedule.has(Ahead):
        return []
    lines, first, end = plan.prefetch
    start, rows = plan.stored.bytes * plan.depth * plan.kernel.cols, plan.kernel.rows
    place = as_index(start)
    if plan.calls > 1:
        place = place + 64 * lines * (row // rows - first)
    when = [compare(row, ">=", first * rows)] * (first > 0)
    when += [compare(row, "<", end * rows)] * (end < plan.calls)
    return [choose(every(when), place, 0)]


def _block(plan: WinogradPlan, symbol: str) -> LoopFunction:
    """Return the function of products of tiles t0.. by filters k0.., and of what leaves them."""
    conv, t0, k0 = plan.problem, Variable("t0"), Variable("k0")
    t1, width = Variable("t1"), Variable("width")
    factors = Address(Member("g", "packed", pointed=True), k0 * (plan.points * plan.depth))
    v, sums, g = map(Named, ("v", "sums", "g"))
    return _function(
        f"{symbol}_block",
        {"g": "const ps_args", "v": "const float32", "sums": "float32"},
        ["t0", "k0"],
        Let("t1", least(plan.tiles, t0 + plan.t)),
        Let("width", least(plan.k, plan.filters - k0)),
        Invoke(f"{symbol}_multiply", (v, factors, sums, t1 - t0, width, *[k0] * (conv.groups > 1))),
        Invoke(f"{symbol}_output", (g, sums, t0, t1, k0, least(width, conv.K - k0))),
    )


def _sizes(plan: WinogradPlan, symbol: str) -> list[LoopFunction]:
    workspace, packed, weights, _ = interface.functions(PRECISIONS["f32"])
    operands = (Named(f"{symbol}_shape"), Named("w"), _factors(plan))
    pack = block(Invoke("ps_winograd_weights", operands))
    return [
        workspace.define(symbol, block(Return(4 * plan.workspace))),
        packed.define(symbol, block(Return(plan.packed_bytes))),
        weights.define(symbol, pack, restrict=("w", "packed")),
    ]


def _factors(plan: WinogradPlan, *, const: bool = False) -> Value:
    """Return the packed weights, which callers hold as floats, as what they are."""
    packed = Named("packed")
    return packed if plan.stored == F32 else Address(packed, ZERO, "ps_b", const=const)


def _entry(plan: WinogradPlan, symbol: str, options: EmitOptions) -> LoopFunction:
    copies = plan.teams if plan.fused else 1
    own = plan.v_size * THREAD if copies > 1 else ZERO
    own_sums = plan.m_size * THREAD if plan.teams > 1 else ZERO
    own_v = [_floats("v", own)] if plan.fused else []
    about = [Comment(_comment(plan, options.caches))] if options.caches else []
    sums = _floats("sums", copies * plan.v_size + own_sums)
    blocks = [*own_v, sums, *about, *_loops(plan, symbol)]
    steps, team = list[LoopStatement](), options.team
    if not plan.fused:
        transform = _share(plan, _transform(plan, symbol), team, last=False)
        steps += [_floats("v", ZERO), *transform]
    steps += _share(plan, blocks, team, last=True)
    if plan.teams == 1 and team is Team.OWN:
        steps = flush_denormals(steps)
    pool = team is Team.POOL
    *_, run = interface.functions(PRECISIONS["f32"], team=pool)
    fields: dict[str, Value] = {"a": Named("x")}
    fields |= {"packed": _factors(plan, const=True)}
    fields |= {name: Named(name) for name in ("y", "bias", "residual", "clamp")}
    body = block(
        *[Unused(("team",))] * (pool and plan.teams == 1),
        Let("args", Fields(tuple(fields.items())), "ps_args"),
        Point(Buffer("g", "ps_args", const=True), AddressOf("args")),
        *steps,
        Return(interface.OK),
    )
    return replace(run.define(symbol, body), comment=f"{symbol}: {plan.schedule}")


def _floats(name: str, at: Index) -> Point:
    """Return the definition of floats in the workspace."""
    return Point(Buffer(name, "float32"), Address(Named("workspace"), at, "float32"))


def _comment(plan: WinogradPlan, caches: tuple[int, ...]) -> str:
    """Return a comment: the bytes that the products of one block read and write."""
    inputs = plan.points * plan.t * plan.problem.C
    filters = plan.points * min(plan.k, plan.filters) * plan.depth
    sizes = 4 * inputs, plan.stored.bytes * filters, 4 * plan.m_size
    x, w, sums = map(bytes_text, sizes)
    return f"A block: transformed x {x}, transformed w {w}, sums {sums}; {caches_text(caches)}"


def _transform(plan: WinogradPlan, symbol: str) -> list[LoopStatement]:
    """Return the transform of all of V before the loops, which threads share."""
    x, v, t0, t1 = Named("x"), Named("v"), Variable("t0"), Variable("t1")
    if plan.teams == 1:
        return [Invoke(f"{symbol}_input", (x, v, 0, plan.tiles))]
    first, end = thread_share(plan.tiles, plan.teams)
    return [
        Let("t0", first),
        Let("t1", end),
        Invoke(f"{symbol}_input", (x, Address(v, t0 * plan.v_tile), t0, t1)),
    ]


def _share(
    plan: WinogradPlan, body: Sequence[LoopStatement], team: Team, *, last: bool
) -> list[LoopStatement]:
    """Return statements once a thread."""
    if plan.teams == 1:
        return [*body]
    body = flush_denormals(body) if team is Team.OWN else body
    return [run_threads(plan.teams, body, last=last)]


def _loops(plan: WinogradPlan, symbol: str) -> list[LoopStatement]:
    """Return loops over blocks, the parallel ones as one loop over tasks."""
    dims = [loop.dim for loop in plan.schedule.loops]
    parallel = len(plan.schedule.parallel) if plan.teams > 1 else 0
    shared, inner = dims[:parallel], dims[parallel:]
    t0, k0 = (iterator(dim) if dim in dims else ZERO for dim in "tk")
    v, transform = Named("v"), list[LoopStatement]()
    if plan.fused:
        upto = least(plan.tiles, t0 + plan.t)
        transform = [Invoke(f"{symbol}_input", (Named("x"), v, t0, upto))]
    place = v if plan.fused else Address(v, t0 * plan.v_tile)
    body: list[LoopStatement] = [
        Invoke(f"{symbol}_block", (Named("g"), place, Named("sums"), t0, k0))
    ]
    extents, steps = {"t": plan.tiles, "k": plan.filters}, {"t": plan.t, "k": plan.k}
    for dim in reversed(inner):
        first = transform if dim == "t" else []
        body = [loop(iterator(dim).name, extents[dim], *first, *body, step=steps[dim])]
    if "t" not in inner:
        body = [*transform, *body]
    turns = {"t": (-(-plan.tiles // plan.t), plan.t), "k": (-(-plan.filters // plan.k), plan.k)}
    return [share_turns({dim: turns[dim] for dim in shared}, plan.teams, body)] if shared else body
