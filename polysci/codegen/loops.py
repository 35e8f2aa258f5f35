"""The loops around the register tiles: isl schedule tree -> isl AST -> cgen."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import islpy as isl

from polysci.codegen import ctree as c
from polysci.codegen.tiles import Tile
from polysci.polyhedral.schedule import Loop
from polysci.space.padding import Piece
from polysci.space.resolve import Plan


@dataclass(frozen=True, slots=True)
class TileCall:
    """A place where the AST reaches a register tile: its origin, as C text, by dimension."""

    index: int
    tile: Tile
    origin: Mapping[str, str]


def iterators(plan: Plan) -> list[str]:
    """Names of the loop iterators, outer to inner: ``k0, k1`` for the levels over k."""
    seen: dict[str, int] = {}
    names = []
    for loop in plan.schedule.loops:
        level = seen.get(loop.dim, 0)
        seen[loop.dim] = level + 1
        names.append(f"{loop.dim}{level}")
    return names


def domains(plan: Plan, parameters: int) -> list[tuple[Tile, isl.Set]]:
    """The register-tile origins of every class, for fixed values of the first loops."""
    dims, origins = loop_dims(plan), ", ".join(map(_origin, loop_dims(plan)))
    names = iterators(plan)[:parameters]
    fixed = [
        f"{_origin(loop.dim)} - {_origin(loop.dim)} mod {loop.step} = {name}"
        for loop, name in zip(plan.schedule.loops, names, strict=False)
    ]
    head = f"[{', '.join(names)}] -> " if names else ""
    found = []
    for index, pieces in enumerate(plan.classes()):
        bounds = [_origins(dim, pieces[dim]) for dim in dims]
        text = f"{head}{{ T{index}[{origins}] : {' and '.join(bounds + fixed) or 'true'} }}"
        found.append((Tile(plan, pieces), isl.Set(text)))
    return found


def _origin(dim: str) -> str:
    """isl's name for the origin along a dimension, which may look like an iterator itself."""
    return f"{dim}_"


def _origins(dim: str, piece: Piece) -> str:
    origin = _origin(dim)
    if piece.first == piece.last:
        return f"{origin} = {piece.first}"
    return f"{piece.first} <= {origin} <= {piece.last} and {origin} mod {piece.step} = 0"


def loop_dims(plan: Plan) -> list[str]:
    """Dimensions with at least one loop, outermost first."""
    return list(dict.fromkeys(loop.dim for loop in plan.schedule.loops))


def schedule_tree(plan: Plan, parameters: int) -> isl.Schedule:
    """One band of one member a loop, full and partial tiles separated, packing in its place."""
    origins, loops = ", ".join(map(_origin, loop_dims(plan))), plan.schedule.loops
    parts = domains(plan, parameters)
    union = isl.UnionSet.from_set(parts[0][1])
    for _, part in parts[1:]:
        union = union.union(isl.UnionSet.from_set(part))
    tree = isl.Schedule.from_domain(union)
    for position in reversed(range(parameters, len(loops))):
        value = _value(loops, position)
        maps = "; ".join(f"T{index}[{origins}] -> [({value})]" for index in range(len(parts)))
        node = tree.get_root().child(0)
        node = node.insert_partial_schedule(isl.MultiUnionPwAff(f"[{{{maps}}}]"))
        node = node.band_member_set_ast_loop_type(0, isl.ast_loop_type.separate)
        tree = node.get_schedule()
    depth = plan.schedule.pack_depth
    if plan.box is None or depth == 0:  # packed before all loops, by the caller
        return tree
    node = tree.get_root().child(0)
    for _ in range(parameters, depth):
        node = node.child(0)
    graft = isl.ScheduleNode.from_extension(_packing(plan, parameters))
    return node.graft_before(graft).get_schedule()


def _packing(plan: Plan, parameters: int) -> isl.UnionMap:
    """The instances of packing: one for every iteration of the loops around it."""
    loops = plan.schedule.loops[: plan.schedule.pack_depth]
    names = iterators(plan)[: len(loops)]
    bounds, inside = list[str](), dict[str, tuple[str, int]]()
    for name, loop in zip(names, loops, strict=True):
        bounds.append(f"0 <= {name} < {plan.extent(loop.dim)} and {name} mod {loop.step} = 0")
        if loop.dim in inside:
            outer, step = inside[loop.dim]
            bounds.append(f"{name} - {name} mod {step} = {outer}")
        inside[loop.dim] = (name, loop.step)
    head = f"[{', '.join(names[:parameters])}] -> " if parameters else ""
    own = ", ".join(names[parameters:])
    return isl.UnionMap(f"{head}{{ [{own}] -> P[{own}] : {' and '.join(bounds) or 'true'} }}")


def _value(loops: tuple[Loop, ...], position: int) -> str:
    """What a loop iterates over: the origin of its tile."""
    loop = loops[position]
    origin = _origin(loop.dim)
    if any(inner.dim == loop.dim for inner in loops[position + 1 :]):
        return f"{origin} - {origin} mod {loop.step}"
    return origin


def nest(
    plan: Plan,
    parameters: int,
    call: Callable[[TileCall], c.Generable],
    pack: Callable[[Mapping[str, str]], list[c.Generable]],
) -> c.Generable:
    """C loops over every register tile; ``call`` and ``pack`` print the leaves.

    The first ``parameters`` loops are not printed: their iterators are variables of the caller.
    """
    names = iterators(plan)[parameters:]
    build = isl.AstBuild.from_context(_context(plan, parameters))
    ids = isl.IdList.alloc(build.get_ctx(), len(names))
    for name in names:
        ids = ids.add(isl.Id(name))
    build = build.set_iterators(ids)
    ast = build.node_from_schedule(schedule_tree(plan, parameters))
    tiles = [tile for tile, _ in domains(plan, parameters)]
    return _Printer(plan, parameters, tiles, call, pack).node(ast)


def _context(plan: Plan, parameters: int) -> isl.Set:
    names = iterators(plan)[:parameters]
    bounds = [
        f"0 <= {name} < {plan.extent(loop.dim)} and {name} mod {loop.step} = 0"
        for name, loop in zip(names, plan.schedule.loops, strict=False)
    ]
    return isl.Set(f"[{', '.join(names)}] -> {{ : {' and '.join(bounds) or 'true'} }}")


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


_KIND: Any = isl.ast_node_type  # its members are not declared
_INTEGER = {"min": "ps_least", "max": "ps_most", "floord": "ps_floor_div"}


def _text(expr: isl.AstExpr) -> str:
    """C text of an isl expression, its integer functions by our names."""
    return re.sub(r"\b(min|max|floord)\(", lambda m: _INTEGER[m[1]] + "(", expr.to_C_str())


@dataclass(frozen=True, slots=True)
class _Printer:
    """isl AST -> cgen."""

    plan: Plan
    parameters: int
    tiles: list[Tile]
    call: Callable[[TileCall], c.Generable]
    pack: Callable[[Mapping[str, str]], list[c.Generable]]

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
        return c.loop(
            f"int64_t {name} = {start}",
            _text(node.for_get_cond()),
            f"++{name}" if step == "1" else f"{name} += {step}",
            body,
        )

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
        if name == "P":
            return c.Block(self.pack(self._pack_origin(arguments)))
        tile = self.tiles[int(name[1:])]
        origin = dict(zip(loop_dims(self.plan), arguments, strict=True))
        return self.call(TileCall(int(name[1:]), tile, origin))

    def _pack_origin(self, arguments: list[str]) -> dict[str, str]:
        """Origin of the packed tile: the innermost value of every dimension looped around it."""
        around = [*iterators(self.plan)[: self.parameters], *arguments]
        return {
            loop.dim: value for loop, value in zip(self.plan.schedule.loops, around, strict=False)
        }
