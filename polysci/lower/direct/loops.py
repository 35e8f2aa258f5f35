"""The loops around register tiles, out of isl's syntax tree, and the calls of tiles in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import islpy as isl

from polysci.loop_ir.index import (
    FALSE,
    Condition,
    Index,
    Variable,
    add,
    as_index,
    ceil_divide,
    choose,
    compare,
    divide,
    either,
    every,
    floor_divide,
    least,
    linear,
    most,
    number_in,
    remainder,
    times,
)
from polysci.loop_ir.nodes import (
    Block,
    Comment,
    For,
    If,
    Invoke,
    Let,
    LoopStatement,
    Named,
    Scoped,
    Value,
    block,
    names_in,
)
from polysci.polyhedral.tile_schedule import PACKING, TileSchedule
from polysci.polyhedral.turns import in_turn
from polysci.space.directives import EntryPoint
from polysci.space.packed_copy import origin_coef
from polysci.space.plan import Plan, Tile


def origins(plan: Plan) -> list[dict[str, range]]:
    """Return where the register tiles of every class start, by dimension."""
    return [{dim: piece.origins for dim, piece in pieces.items()} for pieces in plan.classes()]


@in_turn
def nest(
    entry: EntryPoint, parameters: int, comments: Mapping[str, str], ends: Sequence[str] = ()
) -> Block:
    """Return loops over every register tile, with calls of tiles and packing inside.

    The first ``parameters`` loops are left out: their iterators are variables of the caller.
    ``comments`` are of loops, by iterator. Loops over the dimensions of ``ends`` stop at variables
    of the caller.
    """
    plan, order = entry.plan, entry.plan.tile_schedule
    names = order.names[parameters:]
    build = isl.AstBuild.from_context(order.context(parameters, ends))
    ids = isl.IdList.alloc(build.get_ctx(), len(names))
    for name in names:
        ids = ids.add(isl.Id(name))
    build = build.set_iterators(ids)
    tree = order.tree(order.tiles(origins(plan), parameters, ends), parameters, ends)
    tiles = [Tile(plan, pieces) for pieces in plan.classes()]
    reader = _Reader(entry, order, parameters, tiles, comments)
    return block(reader.node(build.node_from_schedule(tree)))


def declare_origins(values: Mapping[str, Index], body: Block) -> list[Let]:
    """Return definitions of the constants that ``body`` uses."""
    names = names_in(body)
    return [Let(name, value) for name, value in values.items() if name in names]


def tap_range(plan: Plan, tile: Tile, tap: str, at: Index, start: Index) -> list[Index]:
    """Return first value and end of a tap that read inside A from row ``at``.

    They count from ``start`` on.
    """
    dim = plan.ranges[tap]
    a = plan.contraction.a
    axis = next(i for i, affine in enumerate(a.index) if affine.coef(tap))
    affine, limit = a.index[axis], a.shape[axis]
    along, across = affine.coef(dim), affine.coef(tap)
    first, last = (
        most(0, ceil_divide(linear({dim: -along}, {dim: at}, end - affine.const), across))
        for end in (0, limit)
    )
    if tap in plan.split:
        first, last = most(0, first - start), last - start
    return [first, least(tile.taps_of(tap), last)]


def _tile_call(entry: EntryPoint, index: int, tile: Tile, origin: Mapping[str, Index]) -> Invoke:
    """Return the call of a tile function: offsets in elements, and what else changes by tile.

    The tile starts at ``origin``, by dimension.
    """
    plan, zero = entry.plan, as_index(0)
    n = {d.name: plan.channel.coef(d.name) for d in plan.contraction.dims}
    factors = [
        _offset_of_x(plan, origin),
        linear(tile.panel_strides(), _inside(plan, origin, plan.schedule.panels_depth)),
    ]
    operands: list[Value] = [
        *(reversed(factors) if plan.contraction.swapped else factors),
        _result_offset(plan, origin),
        linear(n, origin),
    ]
    if plan.batches:
        operands.append(linear(plan.batches, origin))
    if plan.blocked:
        operands += _ends(tile, origin)
    for tap, row in plan.ranges.items():
        at, start = origin.get(row, zero), origin.get(tap, zero)
        operands += tap_range(plan, tile, tap, at, start)
    if plan.gaps:
        operands.append(_column(plan, origin) % plan.gaps.pitch)
    for directive in plan.schedule.directives:
        operands += directive.tile_operands(tile, origin)
    return Invoke(f"{entry.symbol}_t{index}", (Named("g"), *operands))


def _ends(tile: Tile, origin: Mapping[str, Index]) -> tuple[Condition, Condition]:
    """Return whether a call is the first one that adds to its sums, and whether it is the last.

    None is the last one of private copies: the epilogue is that of their sum.
    """
    plan = tile.plan
    turns = plan.private.turns if plan.private else {}
    starts, ends = list[Condition](), list[Condition]()
    for dim in plan.split:
        at, (step, _) = origin[dim], turns.get(dim, (0, 0))
        if step != plan.tile[dim]:
            starts.append(compare(at % step if step else at, "==", 0))
        ends.append(compare(at + tile.size(dim), "==", plan.extent(dim)))
    return every(starts), FALSE if plan.private else every(ends)


def _result_offset(plan: Plan, origin: Mapping[str, Index]) -> Index:
    """Return where in C a tile starts: its columns may be positions of which C lacks some."""
    if plan.gaps is None:
        return linear(plan.coef["C"], origin)
    around = {dim: at for dim, at in origin.items() if dim != plan.column}
    at, (pitch, columns) = _column(plan, origin), (plan.gaps.pitch, plan.gaps.columns)
    pixels = columns * (at // pitch) + least(at % pitch, columns)
    return linear(plan.coef["C"], around) + pixels


def _column(plan: Plan, origin: Mapping[str, Index]) -> Index:
    return origin.get(plan.column, as_index(0))


def _offset_of_x(plan: Plan, origin: Mapping[str, Index]) -> Index:
    """Return where in x, or in its copy, a call begins."""
    if plan.box is None:
        return linear(plan.coef["x"], origin, plan.base)
    coef = origin_coef(plan.coef["x"], plan.contraction.x, plan.box)
    return linear(coef, _inside(plan, origin, plan.schedule.pack_depth), plan.base)


def _inside(plan: Plan, origin: Mapping[str, Index], depth: int) -> dict[str, Index]:
    """Return a call's origin inside the tile of the outermost ``depth`` loops, which is packed."""
    moved = dict(origin)
    for dim, step in {loop.dim: loop.step for loop in plan.schedule.loops[:depth]}.items():
        moved[dim] = as_index(0) if step == plan.tile[dim] else origin[dim] % step
    return moved


_KIND: Any = isl.ast_node_type  # its members are not declared
_TYPE: Any = isl.ast_expr_type
_OPERATION: Any = isl.ast_expr_op_type
_BINARY: Mapping[int, Callable[[Index, Index], Index]] = {
    _OPERATION.add: add,
    _OPERATION.sub: lambda left, right: left - right,
    _OPERATION.mul: times,
    _OPERATION.div: divide,  # without a remainder
    _OPERATION.fdiv_q: floor_divide,
    _OPERATION.pdiv_q: divide,
    _OPERATION.pdiv_r: remainder,
    _OPERATION.zdiv_r: remainder,  # compared with 0 alone
    _OPERATION.min: least,
    _OPERATION.max: most,
}
_COMPARE: Mapping[int, str] = {
    _OPERATION.eq: "==",
    _OPERATION.le: "<=",
    _OPERATION.lt: "<",
    _OPERATION.ge: ">=",
    _OPERATION.gt: ">",
}


def _index(expr: isl.AstExpr) -> Index:
    """Return an integer expression of isl as an index."""
    kind = expr.get_type()
    if kind == _TYPE.id:
        return Variable(expr.get_id().get_name())
    if kind == _TYPE.int:
        return as_index(int(expr.get_val().to_str()))
    operation = expr.get_op_type()
    if operation in (_OPERATION.cond, _OPERATION.select):
        then, otherwise = (_index(expr.get_op_arg(at)) for at in (1, 2))
        return choose(_condition(expr.get_op_arg(0)), then, otherwise)
    values = [_index(expr.get_op_arg(at)) for at in range(expr.get_op_n_arg())]
    if operation == _OPERATION.minus:
        return -values[0]
    result = values[0]
    for value in values[1:]:
        result = _BINARY[operation](result, value)
    return result


def _condition(expr: isl.AstExpr) -> Condition:
    """Return a condition of isl."""
    if expr.get_type() == _TYPE.int:
        return compare(_index(expr), "!=", 0)
    operation, parts = (
        expr.get_op_type(),
        [expr.get_op_arg(at) for at in range(expr.get_op_n_arg())],
    )
    if operation in (_OPERATION.and_, _OPERATION.and_then):
        return every([*map(_condition, parts)])
    if operation in (_OPERATION.or_, _OPERATION.or_else):
        return either([*map(_condition, parts)])
    return compare(_index(parts[0]), _COMPARE[operation], _index(parts[1]))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns a syntax tree of isl into loop IR."""

    entry: EntryPoint
    order: TileSchedule
    parameters: int
    tiles: list[Tile]
    comments: Mapping[str, str]

    def node(self, node: isl.AstNode) -> LoopStatement:
        readers = {
            _KIND.for_: self._for,
            _KIND.if_: self._if,
            _KIND.block: self._block,
            _KIND.user: self._user,
        }
        return readers[node.get_type()](node)

    def _for(self, node: isl.AstNode) -> LoopStatement:
        name = node.for_get_iterator().get_id().get_name()
        start = _index(node.for_get_init())
        body = block(self.node(node.for_get_body()))
        if node.for_is_degenerate():
            origins = declare_origins({name: start}, body)
            return Scoped(block(*origins, body)) if origins else body
        step = number_in(_index(node.for_get_inc()))
        assert step
        loop = For(name, start, self._end(node.for_get_cond()), body, step)
        return block(Comment(self.comments[name]), loop) if name in self.comments else loop

    def _end(self, condition: isl.AstExpr) -> Index:
        """Return the first value of an iterator that is behind its last one."""
        last = _index(condition.get_op_arg(1))
        return last if condition.get_op_type() == _OPERATION.lt else last + 1

    def _if(self, node: isl.AstNode) -> LoopStatement:
        then = block(self.node(node.if_get_then_node()))
        otherwise = Block()
        if node.if_has_else_node():
            otherwise = block(self.node(node.if_get_else_node()))
        return If(_condition(node.if_get_cond()), then, otherwise)

    def _block(self, node: isl.AstNode) -> LoopStatement:
        children = node.block_get_children()
        return block(*(self.node(children.get_at(at)) for at in range(children.n_ast_node())))

    def _user(self, node: isl.AstNode) -> LoopStatement:
        expr = node.user_get_expr()
        name = expr.get_op_arg(0).get_id().get_name()
        arguments = [_index(expr.get_op_arg(at)) for at in range(1, expr.get_op_n_arg())]
        if name.startswith(PACKING):
            origin = self._pack_origin(arguments)
            packings = self.entry.plan.schedule.packings
            copies = (packings[of].copy_block(self.entry, origin) for of in name[len(PACKING) :])
            return block(*chain(*copies))
        index, origin = int(name[1:]), dict(zip(self.order.looped, arguments, strict=True))
        return _tile_call(self.entry, index, self.tiles[index], origin)

    def _pack_origin(self, arguments: list[Index]) -> dict[str, Index]:
        """Return where the packed tile starts: the innermost value of each dimension around it."""
        around = [*map(Variable, self.order.names[: self.parameters]), *arguments]
        return {loop.dim: value for loop, value in zip(self.order.loops, around, strict=False)}
