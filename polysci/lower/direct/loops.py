"""The loops around the register tiles: isl schedule tree -> isl AST -> cgen."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import islpy as isl

from polysci.lower.direct.tiles import Tile
from polysci.polyhedral.tile_schedule import PACKING, TileSchedule
from polysci.printers import ctree as c
from polysci.space.resolve import Plan


@dataclass(frozen=True, slots=True)
class TileCall:
    """A place where the AST reaches a register tile: its origin, as C text, by dimension."""

    index: int
    tile: Tile
    origin: Mapping[str, str]


def tile_schedule(plan: Plan) -> TileSchedule:
    """The loops of a plan as isl takes them."""
    return plan.schedule.tile_schedule({dim.name: dim.extent for dim in plan.contraction.dims})


def origins(plan: Plan) -> list[dict[str, range]]:
    """Where the register tiles of every class start, by dimension."""
    return [{dim: piece.origins for dim, piece in pieces.items()} for pieces in plan.classes()]


def nest(
    plan: Plan,
    parameters: int,
    call: Callable[[TileCall], c.Generable],
    pack: Callable[[str, Mapping[str, str]], list[c.Generable]],
    comments: Mapping[str, str],
) -> c.Generable:
    """C loops over every register tile; ``call`` and ``pack`` (of an operand) print the leaves.

    The first ``parameters`` loops are not printed: their iterators are variables of the caller.
    ``comments`` are of loops, by iterator.
    """
    order = tile_schedule(plan)
    names = order.names[parameters:]
    build = isl.AstBuild.from_context(order.context(parameters))
    ids = isl.IdList.alloc(build.get_ctx(), len(names))
    for name in names:
        ids = ids.add(isl.Id(name))
    build = build.set_iterators(ids)
    tree = order.tree(order.tiles(origins(plan), parameters), parameters)
    tiles = [Tile(plan, pieces) for pieces in plan.classes()]
    printer = _Printer(order, parameters, tiles, call, pack, comments)
    return printer.node(build.node_from_schedule(tree))


def _items(part: c.Generable) -> list[c.Generable]:
    """The statements of a block that declares nothing, so that blocks do not nest idly."""
    if isinstance(part, c.Block) and not any("const int64_t" in str(x) for x in part.contents[:1]):
        return list(part.contents)
    return [part]


def declare_origins(values: Mapping[str, str], body: c.Generable) -> list[c.Generable]:
    """Declarations of the constants that ``body`` uses."""
    words = set(re.findall(r"\w+", str(body)))
    return [
        c.Statement(f"const int64_t {name} = {value}")
        for name, value in values.items()
        if name in words
    ]


def tap_range(plan: Plan, tile: Tile, tap: str, at: str, start: str) -> list[str]:
    """First and last value of a tap, from ``start`` on, that reads inside A from row ``at``."""
    dim = plan.ranges[tap]
    a = plan.contraction.a
    axis = next(i for i, affine in enumerate(a.index) if affine.coef(tap))
    affine, limit = a.index[axis], a.shape[axis]
    along, across = affine.coef(dim), affine.coef(tap)
    moved = {dim: -along}
    first = f"ps_ceil_div({c.linear(moved, {dim: at}, -affine.const)}, {across})"
    last = f"ps_ceil_div({c.linear(moved, {dim: at}, limit - affine.const)}, {across})"
    if tap in plan.split:
        first, last = f"ps_most(0, {first} - {start})", f"{last} - {start}"
    return [first, f"ps_least({tile.taps_of(tap)}, {last})"]


_KIND: Any = isl.ast_node_type  # its members are not declared
_INTEGER = {"min": "ps_least", "max": "ps_most", "floord": "ps_floor_div"}


def _text(expr: isl.AstExpr) -> str:
    """C text of an isl expression, its integer functions by our names."""
    return re.sub(r"\b(min|max|floord)\(", lambda m: _INTEGER[m[1]] + "(", expr.to_C_str())


@dataclass(frozen=True, slots=True)
class _Printer:
    """isl AST -> cgen."""

    order: TileSchedule
    parameters: int
    tiles: list[Tile]
    call: Callable[[TileCall], c.Generable]
    pack: Callable[[str, Mapping[str, str]], list[c.Generable]]
    comments: Mapping[str, str]

    def node(self, node: isl.AstNode) -> c.Generable:
        printers = {
            _KIND.for_: self._for,
            _KIND.if_: self._if,
            _KIND.block: self._block,
            _KIND.user: self._user,
        }
        return printers[node.get_type()](node)

    def _body(self, node: isl.AstNode) -> c.Block:
        printed = self.node(node)
        return printed if isinstance(printed, c.Block) else c.Block([printed])

    def _for(self, node: isl.AstNode) -> c.Generable:
        name = node.for_get_iterator().to_C_str()
        start = _text(node.for_get_init())
        body = self._body(node.for_get_body())
        if node.for_is_degenerate():
            return c.Block([*declare_origins({name: start}, body), *body.contents])
        step = _text(node.for_get_inc())
        loop = c.loop(
            f"int64_t {name} = {start}",
            _text(node.for_get_cond()),
            f"++{name}" if step == "1" else f"{name} += {step}",
            body,
        )
        return c.Block([c.remark(self.comments[name]), loop]) if name in self.comments else loop

    def _if(self, node: isl.AstNode) -> c.Generable:
        condition, then = _text(node.if_get_cond()), self._body(node.if_get_then_node())
        if node.if_has_else_node():
            return c.when(condition, then, self._body(node.if_get_else_node()))
        return c.when(condition, then)

    def _block(self, node: isl.AstNode) -> c.Generable:
        children = node.block_get_children()
        parts = [self.node(children.get_at(i)) for i in range(children.n_ast_node())]
        return c.Block([item for part in parts for item in _items(part)])

    def _user(self, node: isl.AstNode) -> c.Generable:
        expr = node.user_get_expr()
        name = expr.get_op_arg(0).to_C_str()
        arguments = [_text(expr.get_op_arg(i)) for i in range(1, expr.get_op_n_arg())]
        if name.startswith(PACKING):
            origin = self._pack_origin(arguments)
            operands = name.removeprefix(PACKING)
            return c.Block([part for of in operands for part in self.pack(of, origin)])
        tile = self.tiles[int(name[1:])]
        origin = dict(zip(self.order.looped, arguments, strict=True))
        return self.call(TileCall(int(name[1:]), tile, origin))

    def _pack_origin(self, arguments: list[str]) -> dict[str, str]:
        """Origin of the packed tile: the innermost value of every dimension looped around it."""
        around = [*self.order.names[: self.parameters], *arguments]
        return {loop.dim: value for loop, value in zip(self.order.loops, around, strict=False)}
