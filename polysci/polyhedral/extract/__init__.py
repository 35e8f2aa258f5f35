"""A C loop nest, as text or as a cgen tree, as a Scop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

import islpy as isl
from pycparser import c_ast

from polysci.errors import SpecError
from polysci.polyhedral.extract.expressions import (
    ArrayTable,
    LoopLevel,
    Read,
    access,
    accumulates,
    affine,
    condition,
    constant,
    reads,
    shapes_of_arguments,
)
from polysci.polyhedral.extract.parse import declarations, parse, place_of
from polysci.polyhedral.extract.source import RESERVED, SourceText, read
from polysci.polyhedral.scop import Access, Array, Scop, Statement, bound_operations

if TYPE_CHECKING:
    from cgen import Generable

__all__ = ["extract"]

MAX_STATEMENTS = 256
MAX_LOOPS = 24
RULE_LOOP = (
    "Loops are for (int i = low; i < high; ++i): a signed iterator of 32 bits or more, affine"
    " bounds, a constant step (++, --, +=, -=), a condition that the step runs towards."
)
Places = tuple[tuple[int, int], ...]  # (-1, position in a sequence) or (dim of a loop, direction)
RULE_BODY = "A region holds for, if, { }, and the assignments =, +=, -=, *=."


def extract(
    source: str | Generable,
    *,
    filename: str = "<nest>",
    arrays: Mapping[str, Sequence[int]] | None = None,
) -> Scop:
    """Return the Scop of the code between ``#pragma scop`` and ``#pragma endscop``.

    A cgen tree without the pragmas is one region. ``arrays`` maps names to extents, for arrays that
    the text does not declare. The Scop has the file's name.

    Raises SpecError with file, line, column and a caret where the text is not C or not affine, or
    where a subscript can exceed its array; UnsupportedError where isl needs too many operations;
    TypeError for a source of another kind.
    """
    text = source if isinstance(source, str) else _c_text(source)
    try:
        with bound_operations(f"extraction of {filename}"):
            return _extract(text, filename, shapes_of_arguments(arrays))
    except RecursionError:
        raise SpecError(
            f"{filename}: statements or expressions nested too deeply; split them"
        ) from None


def _c_text(tree: Generable) -> str:
    if not callable(getattr(type(tree), "generate", None)):
        raise TypeError(f"source: expected C text or a cgen tree, got {type(tree).__name__}")
    text = "\n".join(tree.generate())
    return text if "#pragma scop" in text else f"#pragma scop\n{text}\n#pragma endscop\n"


def _extract(text: str, filename: str, shapes: Mapping[str, tuple[int, ...]]) -> Scop:
    code = read(text, filename)
    nodes = parse(code)
    reach = ArrayTable(code, declarations(code.outside), shapes)
    statements = Walk(code, reach).statements(nodes)
    touched = {access.array for statement in statements for access in statement.accesses}
    used = tuple(array for name, array in reach.used.items() if name in touched)
    return Scop(filename, used, statements)


@dataclass(frozen=True, slots=True)
class ExtractedNest:
    """The loops and guards around the current point of the walk.

    ``box`` is the space that the loops span, ``domain`` the part that guards leave; ``places`` the
    order so far.
    """

    level: LoopLevel
    domain: isl.Set
    box: isl.Set
    places: Places = ()
    position: Iterator[int] = field(default_factory=count)

    def next_place(self) -> Places:
        return (*self.places, (-1, next(self.position)))


@dataclass(frozen=True, slots=True)
class Walk:
    """One pass over a region, which adds its statements to ``collected``."""

    source: SourceText
    arrays: ArrayTable
    collected: list[tuple[Statement, Places]] = field(default_factory=list)

    def statements(self, nodes: Sequence[c_ast.Node]) -> tuple[Statement, ...]:
        """Every assignment under ``nodes``. Raises SpecError at the first unsupported node."""
        universe = isl.Set.universe(isl.Space.set_alloc(isl.DEFAULT_CONTEXT, 0, 0))
        nest = ExtractedNest(LoopLevel(self.source, (), 0), universe, universe)
        for node in nodes:
            self.visit(node, nest)
        width = max((len(places) for _, places in self.collected), default=0)
        return tuple(_place(statement, places, width) for statement, places in self.collected)

    def visit(self, node: c_ast.Node, nest: ExtractedNest) -> None:
        visitor = _VISITORS.get(type(node))
        if visitor is None:
            what = _REFUSED.get(type(node), "a statement without effect")
            self.source.fail(place_of(node), f"{what} in the region", RULE_BODY)
        visitor(self, node, nest)

    def block(self, node: c_ast.Compound, nest: ExtractedNest) -> None:
        for child in node.block_items or ():
            self.visit(child, nest)

    def guard(self, node: c_ast.If, nest: ExtractedNest) -> None:
        holds = condition(node.cond, nest.level)
        if node.iftrue is not None:
            self.visit(node.iftrue, replace(nest, domain=nest.domain.intersect(holds)))
        if node.iffalse is not None:
            self.visit(node.iffalse, replace(nest, domain=nest.domain.subtract(holds)))

    def loop(self, node: c_ast.For, nest: ExtractedNest) -> None:
        name, first = self._first(node, nest)
        outer = nest.level
        dim = outer.depth
        if dim == MAX_LOOPS:
            self.source.fail(place_of(node), f"more than {MAX_LOOPS} loops inside one another")
        step = self._step(node, name, outer)
        level = LoopLevel(self.source, (*outer.iterators, name), dim + 1)
        start = affine(first, replace(outer, depth=dim + 1))
        runs = self._runs(node, level, step).intersect(_from(start, level, step))
        inner = ExtractedNest(
            level,
            nest.domain.add_dims(isl.dim_type.set, 1).intersect(runs),
            nest.box.add_dims(isl.dim_type.set, 1).intersect(runs),
            (*nest.next_place(), (dim, 1 if step > 0 else -1)),
        )
        self.visit(node.stmt, inner)

    def _first(self, node: c_ast.For, nest: ExtractedNest) -> tuple[str, c_ast.Node]:
        """Name of the iterator and the node of its first value."""
        init = node.init
        if isinstance(init, c_ast.DeclList) and len(init.decls) == 1 and init.decls[0].init:
            (declared,) = init.decls
            name, first, specifiers = declared.name, declared.init, _type_specifiers(declared)
            if specifiers is None or not _is_iterator_type(specifiers):
                self.source.fail(place_of(node), f"the type of the iterator {name}", RULE_LOOP)
        elif isinstance(init, c_ast.Assignment) and init.op == "=":
            if not isinstance(init.lvalue, c_ast.ID):
                self.source.fail(place_of(init), "the iterator of a loop is a variable", RULE_LOOP)
            name, first = init.lvalue.name, init.rvalue
            for declared in self.arrays.declared.get(name, ()):
                if not _is_iterator_type(declared.dtype_c.split()):
                    self.source.fail(place_of(init), f"{name} is declared {declared}", RULE_LOOP)
        else:
            self.source.fail(place_of(node), "a loop without one 'i = low'", RULE_LOOP)
        self._check_iterator(node, name, nest)
        return name, first

    def _check_iterator(self, node: c_ast.For, name: str, nest: ExtractedNest) -> None:
        if name in nest.level.iterators:
            self.source.fail(place_of(node), f"{name} is the iterator of a loop around this")
        if name in self.source.constants or name in RESERVED:
            what = "a macro" if name in self.source.constants else "a word of isl's notation"
            self.source.fail(place_of(node), f"{name} is {what}; rename the iterator")
        if name in self.arrays.used:
            self.source.fail(place_of(node), f"{name} is read or written as a variable elsewhere")
        self.arrays.iterators.add(name)

    def _step(self, node: c_ast.For, name: str, level: LoopLevel) -> int:
        change = node.next
        target = change.expr if isinstance(change, c_ast.UnaryOp) else None
        target = change.lvalue if isinstance(change, c_ast.Assignment) else target
        sign = _STEPS.get(change.op, 0) if target is not None else 0
        if sign == 0 or not isinstance(target, c_ast.ID) or target.name != name:
            place = place_of(node if change is None else change)
            self.source.fail(place, f"this does not change {name} by a constant", RULE_LOOP)
        if isinstance(change, c_ast.UnaryOp):
            return sign
        step = sign * constant(change.rvalue, replace(level, iterators=()))
        if step == 0:
            self.source.fail(place_of(change), f"{name} stands still", RULE_LOOP)
        return step

    def _runs(self, node: c_ast.For, level: LoopLevel, step: int) -> isl.Set:
        if node.cond is None:
            self.source.fail(place_of(node), "a loop without a condition", RULE_LOOP)
        self._check_ends(node.cond, level, step)
        return condition(node.cond, level)

    def _check_ends(self, node: c_ast.Node, level: LoopLevel, step: int) -> None:
        """Raise SpecError unless the condition, once false, stays false."""
        if isinstance(node, c_ast.BinaryOp) and node.op == "&&":
            self._check_ends(node.left, level, step)
            self._check_ends(node.right, level, step)
            return
        sign = _TOWARDS.get(node.op, 0) if isinstance(node, c_ast.BinaryOp) else 0
        if sign:
            gap = affine(node.right, level).sub(affine(node.left, level))
            if _shrinks(gap if sign > 0 else gap.neg(), level.depth - 1, step):
                return
        what = f"this does not bound {level.iterators[-1]} in the direction of its step, {step}"
        self.source.fail(place_of(node), what, RULE_LOOP)

    def declaration(self, node: c_ast.Decl, nest: ExtractedNest) -> None:
        specifiers = _type_specifiers(node)
        if specifiers is None or not node.name:
            rule = "Inside the region only scalars are declared; arrays go before it."
            self.source.fail(place_of(node), "this declaration in the region", rule)
        if node.init is None and _is_iterator_type(specifiers):
            return
        array = Array(node.name, (), " ".join(specifiers))
        self.arrays.declare(array, node, nest.level.iterators)
        if node.init is not None:
            target = c_ast.ID(node.name, node.coord)
            self.assignment(c_ast.Assignment("=", target, node.init, node.coord), nest)

    def assignment(self, node: c_ast.Assignment, nest: ExtractedNest) -> None:
        if node.op not in _ASSIGNMENTS:
            self.source.fail(place_of(node), f"the assignment {node.op}", RULE_BODY)
        if len(self.collected) == MAX_STATEMENTS:
            self.source.fail(place_of(node), f"more than {MAX_STATEMENTS} statements")
        self._check_target(node.lvalue, nest.level)
        write = access(node.lvalue, "write", nest.level, nest.domain, None, self.arrays)
        operands: list[Read] = []
        if node.op != "=":
            operands.append(Read(node.lvalue, replace(write, kind="read")))
        operands += reads(node.rvalue, nest.level, nest.domain, self.arrays)
        reduction, factors = accumulates(node, write, operands, self.arrays)
        statement = Statement(
            f"S{len(self.collected)}",
            nest.domain,
            (*(read.access for read in operands), write),
            isl.Map("{ [] -> [] }"),
            self._text(node),
            node.coord.line,
            nest.box,
            reduction,
            factors,
        )
        self.collected.append((_name(statement, nest.level.iterators), nest.next_place()))

    def _check_target(self, node: c_ast.Node, level: LoopLevel) -> None:
        name = getattr(node, "name", None)
        if isinstance(node, c_ast.ID) and (
            name in level.iterators or name in level.source.constants
        ):
            what = "an iterator" if name in level.iterators else "a macro"
            self.source.fail(place_of(node), f"an assignment to {what}, {name}", RULE_BODY)
        if not isinstance(node, c_ast.ID | c_ast.ArrayRef):
            self.source.fail(place_of(node), "an assignment to something else", RULE_BODY)

    def _text(self, node: c_ast.Node) -> str:
        start = self.source.offset(place_of(node))
        end = self.source.code.find(";", start)
        return " ".join(self.source.code[start:end].split()) + ";"


def _from(start: isl.PwAff, level: LoopLevel, step: int) -> isl.Set:
    """Return the values from ``start`` on, ``step`` apart, without an end."""
    iterator = level.variable(level.depth - 1)
    values = iterator.ge_set(start) if step > 0 else iterator.le_set(start)
    if abs(step) == 1:
        return values
    phase = iterator.sub(start).mod_val(isl.Val(abs(step)))
    return values.intersect(phase.eq_set(level.constant(0)))


def _shrinks(gap: isl.PwAff, dim: int, step: int) -> bool:
    """Return whether a step along ``dim`` makes ``gap`` smaller, wherever it starts."""
    answers: list[bool] = []

    def piece(where: isl.Set, value: isl.Aff) -> None:
        slope = value.get_coefficient_val(isl.dim_type.in_, dim).to_python() * step
        divided = any(
            value.get_div(div).involves_dims(isl.dim_type.in_, dim, 1)
            for div in range(value.dim(isl.dim_type.div))
        )
        answers.append(
            slope < 0 and not divided and not where.involves_dims(isl.dim_type.set, dim, 1)
        )

    gap.foreach_piece(piece)
    return all(answers)


def _type_specifiers(node: c_ast.Decl) -> list[str] | None:
    """``["long", "int"]`` of a scalar declaration; None for anything else."""
    if not isinstance(node.type, c_ast.TypeDecl):
        return None
    kind = node.type.type
    return list(kind.names) if isinstance(kind, c_ast.IdentifierType) else None


def _is_iterator_type(specifiers: Sequence[str]) -> bool:
    plain = [word for word in specifiers if word not in ("int", "signed")]
    return plain in _ITERATOR_TYPES


def _name(statement: Statement, iterators: Sequence[str]) -> Statement:
    domain = _name_set(statement.domain, statement.name, iterators)
    box = _name_set(statement.box, statement.name, iterators)

    def named(part: Access) -> Access:
        return replace(part, map=_name_domain(part.map, statement.name, iterators))

    accesses = tuple(map(named, statement.accesses))
    factors = tuple(map(named, statement.factors))
    return replace(statement, domain=domain, box=box, accesses=accesses, factors=factors)


def _name_set(points: isl.Set, name: str, iterators: Sequence[str]) -> isl.Set:
    for dim, iterator in enumerate(iterators):
        points = points.set_dim_name(isl.dim_type.set, dim, iterator)
    return points.set_tuple_name(name)


def _name_domain(relation: isl.Map, name: str, iterators: Sequence[str]) -> isl.Map:
    for dim, iterator in enumerate(iterators):
        relation = relation.set_dim_name(isl.dim_type.in_, dim, iterator)
    return relation.set_tuple_name(isl.dim_type.in_, name)


def _place(statement: Statement, places: Places, width: int) -> Statement:
    """Return the statement with its schedule: positions and iterators in turn, zeros to the end."""
    domain = statement.domain.get_space()
    space = isl.LocalSpace.from_space(
        isl.Space.set_alloc(isl.DEFAULT_CONTEXT, 0, domain.dim(isl.dim_type.set))
    )
    order = isl.Map.from_domain(isl.Set.universe(space.get_space()))
    for dim, value in (*places, *[(-1, 0)] * (width - len(places))):
        place = isl.Aff.val_on_domain(space, isl.Val(value if dim < 0 else 0))
        if dim >= 0:
            place = place.set_coefficient_val(isl.dim_type.in_, dim, isl.Val(value))
        order = order.flat_range_product(isl.Map.from_aff(place))
    named = _name_domain(order, statement.name, statement.iterators)
    return replace(statement, schedule=named)


_VISITORS: dict[type[c_ast.Node], Callable[[Walk, c_ast.Node, ExtractedNest], None]] = {
    c_ast.Compound: Walk.block,
    c_ast.If: Walk.guard,
    c_ast.For: Walk.loop,
    c_ast.Decl: Walk.declaration,
    c_ast.Assignment: Walk.assignment,
    c_ast.EmptyStatement: lambda walk, node, nest: None,
}
_REFUSED: dict[type[c_ast.Node], str] = {
    c_ast.While: "while",
    c_ast.DoWhile: "do ... while",
    c_ast.Goto: "goto",
    c_ast.Label: "a label",
    c_ast.Break: "break",
    c_ast.Continue: "continue",
    c_ast.Return: "return",
    c_ast.Switch: "switch",
    c_ast.FuncCall: "a function call",
    c_ast.UnaryOp: "an increment or another operator as a statement",
    c_ast.ExprList: "a comma expression",
    c_ast.Typedef: "a typedef",
}
_STEPS = {"++": 1, "p++": 1, "+=": 1, "--": -1, "p--": -1, "-=": -1}
_TOWARDS = {"<": 1, "<=": 1, ">": -1, ">=": -1}
_ASSIGNMENTS = ("=", "+=", "-=", "*=")
_ITERATOR_TYPES: tuple[list[str], ...] = (
    [],
    ["long"],
    ["long", "long"],
    ["int32_t"],
    ["int64_t"],
    ["intptr_t"],
    ["ptrdiff_t"],
    ["ssize_t"],
)
