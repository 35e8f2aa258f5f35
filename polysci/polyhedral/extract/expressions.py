"""C expressions as isl: affine values and conditions, references to arrays, reads of a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NoReturn

import islpy as isl
from pycparser import c_ast

from polysci.errors import SpecError
from polysci.polyhedral.extract.parse import ArrayDeclaration, place_of
from polysci.polyhedral.extract.source import (
    KEYWORDS,
    RESERVED,
    UNSIGNED,
    SourceText,
    integer,
    is_unsigned,
    wordset,
)
from polysci.polyhedral.scop import Access, Array

MAX_CASES = 64  # pieces of one piecewise value
LARGEST = 2**63 - 1
RULE_AFFINE = (
    "Subscripts, bounds and guards are affine: sums of iterators times integer constants; "
    "/ and % by positive constants; comparisons joined by &&, || and !."
)


@dataclass(frozen=True, slots=True)
class LoopLevel:
    """The iterators in scope at a point of the nest, and the number of dims of its isl space.

    ``depth`` is one more than the number of iterators while a new loop's first value is read.
    """

    source: SourceText
    iterators: tuple[str, ...]
    depth: int

    def space(self) -> isl.LocalSpace:
        space = isl.Space.set_alloc(isl.DEFAULT_CONTEXT, 0, self.depth)
        return isl.LocalSpace.from_space(space)

    def constant(self, value: int) -> isl.PwAff:
        return isl.PwAff.from_aff(isl.Aff.val_on_domain(self.space(), isl.Val(value)))

    def variable(self, dim: int) -> isl.PwAff:
        return isl.PwAff.from_aff(isl.Aff.var_on_domain(self.space(), isl.dim_type.set, dim))


def affine(node: c_ast.Node, level: LoopLevel) -> isl.PwAff:
    """Return the value of an integer expression. Raises SpecError when it is not affine."""
    reader = _VALUES.get(type(node))
    if reader is None:
        _refuse(node, level, f"{REFUSED.get(type(node), 'this expression')} is not affine here")
    value = reader(node, level)
    if value.n_piece() > MAX_CASES:
        _refuse(node, level, f"an expression of more than {MAX_CASES} cases")
    return value


def condition(node: c_ast.Node, level: LoopLevel) -> isl.Set:
    """Return the iterations for which an affine condition holds. Raises SpecError."""
    if isinstance(node, c_ast.UnaryOp) and node.op == "!":
        return condition(node.expr, level).complement()
    if isinstance(node, c_ast.BinaryOp) and node.op in _JOINS:
        left, right = condition(node.left, level), condition(node.right, level)
        return _JOINS[node.op](left, right).coalesce()
    if isinstance(node, c_ast.BinaryOp) and node.op in _COMPARISONS:
        return _COMPARISONS[node.op](affine(node.left, level), affine(node.right, level))
    return affine(node, level).ne_set(level.constant(0))


def constant(node: c_ast.Node, level: LoopLevel) -> int:
    """Return the value of an expression that has to be an integer constant. Raises SpecError."""
    value = _constant_value(affine(node, level))
    if value is None:
        _refuse(node, level, "an integer constant is needed here")
    return value


def _refuse(node: c_ast.Node, level: LoopLevel, what: str) -> NoReturn:
    level.source.fail(place_of(node), what, RULE_AFFINE)


def _constant_value(value: isl.PwAff) -> int | None:
    """Return the value if it is one constant everywhere."""
    if not value.isa_aff() or not value.is_cst():
        return None
    return int(value.as_aff().get_constant_val().to_python())


def _literal(node: c_ast.Constant, level: LoopLevel) -> isl.PwAff:
    value = integer(node.value, {})
    if value is None:
        what = UNSIGNED if is_unsigned(node.value) else "not an integer literal"
        _refuse(node, level, f"{node.value[:24]}: {what}")
    if value > LARGEST:
        _refuse(node, level, f"{node.value[:24]} does not fit in 64 bits")
    return level.constant(value)


def _name(node: c_ast.ID, level: LoopLevel) -> isl.PwAff:
    if node.name in level.iterators:
        return level.variable(level.iterators.index(node.name))
    if node.name not in level.source.constants:
        what = f"{node.name} is neither an iterator of a loop around this nor an integer macro"
        _refuse(node, level, what)
    value = level.source.constants[node.name]
    if abs(value) > LARGEST:
        _refuse(node, level, f"the macro {node.name} = {value} does not fit in 64 bits")
    return level.constant(value)


def _unary(node: c_ast.UnaryOp, level: LoopLevel) -> isl.PwAff:
    if node.op not in "+-":
        _refuse(node, level, f"the operator {node.op.strip('p')} is not affine here")
    value = affine(node.expr, level)
    return value.neg() if node.op == "-" else value


def _binary(node: c_ast.BinaryOp, level: LoopLevel) -> isl.PwAff:
    operator = _OPERATORS.get(node.op)
    if operator is None:
        _refuse(node, level, f"the operator {node.op} is not affine here")
    return operator(node, affine(node.left, level), affine(node.right, level), level)


def _sum(node: c_ast.BinaryOp, left: isl.PwAff, right: isl.PwAff, level: LoopLevel) -> isl.PwAff:
    return left.add(right) if node.op == "+" else left.sub(right)


def _product(
    node: c_ast.BinaryOp, left: isl.PwAff, right: isl.PwAff, level: LoopLevel
) -> isl.PwAff:
    if _constant_value(left) is None and _constant_value(right) is None:
        _refuse(node, level, "a product of two values that both vary is not affine")
    return left.mul(right)


def _division(
    node: c_ast.BinaryOp, left: isl.PwAff, right: isl.PwAff, level: LoopLevel
) -> isl.PwAff:
    divisor = _constant_value(right)
    if divisor is None or divisor < 1:
        _refuse(node.right, level, f"{node.op} by anything but a positive constant is not affine")
    return left.tdiv_q(right) if node.op == "/" else left.tdiv_r(right)


def _choice(node: c_ast.TernaryOp, level: LoopLevel) -> isl.PwAff:
    chosen = condition(node.cond, level)
    yes = affine(node.iftrue, level).intersect_domain(chosen)
    no = affine(node.iffalse, level).intersect_domain(chosen.complement())
    return yes.union_add(no).coalesce()


_VALUES: dict[type[c_ast.Node], Callable[[c_ast.Node, LoopLevel], isl.PwAff]] = {
    c_ast.Constant: _literal,
    c_ast.ID: _name,
    c_ast.UnaryOp: _unary,
    c_ast.BinaryOp: _binary,
    c_ast.TernaryOp: _choice,
}
_OPERATORS = {"+": _sum, "-": _sum, "*": _product, "/": _division, "%": _division}
_JOINS: dict[str, Callable[[isl.Set, isl.Set], isl.Set]] = {
    "&&": isl.Set.intersect,
    "||": isl.Set.union,
}
_COMPARISONS: dict[str, Callable[[isl.PwAff, isl.PwAff], isl.Set]] = {
    "<": isl.PwAff.lt_set,
    "<=": isl.PwAff.le_set,
    ">": isl.PwAff.gt_set,
    ">=": isl.PwAff.ge_set,
    "==": isl.PwAff.eq_set,
    "!=": isl.PwAff.ne_set,
}
COMPARISONS = frozenset(_COMPARISONS)
REFUSED: dict[type[c_ast.Node], str] = {
    c_ast.ArrayRef: "an array element",
    c_ast.FuncCall: "a function call",
    c_ast.Cast: "a cast",
    c_ast.Assignment: "an assignment inside an expression",
    c_ast.ExprList: "a comma expression",
    c_ast.StructRef: "a struct member",
    c_ast.CompoundLiteral: "a compound literal",
    c_ast.InitList: "an initialiser list",
    c_ast.Typename: "a type",
}


RULE_ARRAYS = (
    "Arrays are declared with constant extents: float A[64][56], or #define N 64 and A[N][N]."
)


@dataclass(frozen=True, slots=True)
class ArrayTable:
    """The arrays of a nest: declared in the text, or with ``shapes`` from the caller.

    The walk adds the arrays that the nest touches to ``used``, and its loops to ``iterators``.
    """

    source: SourceText
    declared: Mapping[str, Sequence[ArrayDeclaration]]
    shapes: Mapping[str, tuple[int, ...]]
    used: dict[str, Array] = field(default_factory=dict)
    iterators: set[str] = field(default_factory=set)

    def find(self, name: str, node: c_ast.Node) -> Array:
        """Return the array ``name`` that ``node`` refers to. Raises SpecError."""
        if name not in self.used:
            self.used[name] = self._resolve(name, node)
        return self.used[name]

    def declare(self, array: Array, node: c_ast.Node, iterators: Sequence[str]) -> None:
        """Add a scalar declared in the region; two with the same name and type are one array."""
        name = array.name
        taken = name in iterators or name in self.shapes or name in RESERVED
        if taken or name in self.source.constants or self.used.get(name, array) != array:
            self.source.fail(place_of(node), f"the name {name} is taken; rename this one")
        self.used[name] = array

    def _resolve(self, name: str, node: c_ast.Node) -> Array:
        place = place_of(node)
        if name in self.source.constants or name in RESERVED:
            what = "a macro" if name in self.source.constants else "a word of isl's notation"
            self.source.fail(place, f"{name} is {what}; rename the array")
        if name in self.iterators:
            what = f"{name} is the iterator of a loop that does not enclose this"
            self.source.fail(place, what, RULE_ARRAYS)
        candidates = self.declared.get(name, ())
        shapes = {d.sizes: d for d in candidates}
        if not candidates and name not in self.shapes:
            self.source.fail(place, f"{name} is not declared", RULE_ARRAYS)
        if len(shapes) > 1 or any(declared.pointer for declared in candidates):
            what = f"{name} is declared as {' and as '.join(map(str, shapes.values()))}"
            self.source.fail(place, what, RULE_ARRAYS)
        dtype = candidates[0].dtype_c if candidates else "float"
        shape = self._shape(candidates[0]) if candidates else self.shapes[name]
        if self.shapes.get(name, shape) != shape:
            what = f"{name} is declared with the extents {shape}, but given {self.shapes[name]}"
            self.source.fail(place, what)
        return Array(name, shape, dtype)

    def _shape(self, declared: ArrayDeclaration) -> tuple[int, ...]:
        place = self.source.place(declared.offset)
        values = [integer(size, self.source.constants) for size in declared.sizes]
        for size, value in zip(declared.sizes, values, strict=True):
            if value is None or value < 1:
                what = f"the extent {size[:24]!r} of {declared.name} is not a positive integer"
                self.source.fail(place, what, RULE_ARRAYS)
        shape = tuple(value for value in values if value is not None)
        if prod(shape) > LARGEST:
            self.source.fail(place, f"{declared.name} has more than 2^63 elements")
        return shape


def shapes_of_arguments(arrays: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """Return the caller's ``arrays``, checked. Raises SpecError."""
    shapes = {}
    for name, extents in (arrays or {}).items():
        shape = tuple(extents)
        if not name.isascii() or not name.isidentifier() or name in KEYWORDS:
            raise SpecError(f"arrays: {name!r} is not a C identifier")
        if any(type(extent) is not int or extent < 1 for extent in shape):
            raise SpecError(f"arrays: expected positive integers as extents of {name}, got {shape}")
        if prod(shape) > LARGEST:
            raise SpecError(f"arrays: {name} has more than 2^63 elements")
        shapes[name] = shape
    return shapes


def access(
    node: c_ast.Node,
    kind: str,
    level: LoopLevel,
    domain: isl.Set,
    where: isl.Set | None,
    arrays: ArrayTable,
) -> Access:
    """One reference, in bounds for all of ``domain`` (and ``where``). Raises SpecError."""
    base, subscripts = _subscripts(node)
    if not isinstance(base, c_ast.ID):
        arrays.source.fail(place_of(node), "only plain arrays can be subscripted", RULE_ARRAYS)
    array = arrays.find(base.name, base)
    if len(subscripts) != len(array.shape):
        what = f"{array.name} has {len(array.shape)} dimensions, not {len(subscripts)}"
        arrays.source.fail(place_of(node), what, f"It is declared as {array}.")
    domain = domain if where is None else domain.intersect(where)
    relation = isl.Map.from_domain(isl.Set.universe(domain.get_space()))
    for axis, subscript in enumerate(subscripts):
        value = affine(subscript, level)
        _check_bounds(subscript, value, array, axis, level, domain)
        relation = relation.flat_range_product(isl.Map.from_pw_aff(value))
    relation = relation if where is None else relation.intersect_domain(where)
    return Access(array.name, kind, relation.set_tuple_name(isl.dim_type.out, array.name))


def _subscripts(node: c_ast.Node) -> tuple[c_ast.Node, list[c_ast.Node]]:
    subscripts = []
    while isinstance(node, c_ast.ArrayRef):
        subscripts.append(node.subscript)
        node = node.name
    return node, subscripts[::-1]


def _check_bounds(
    node: c_ast.Node, value: isl.PwAff, array: Array, axis: int, level: LoopLevel, domain: isl.Set
) -> None:
    extent = array.shape[axis]
    outside = value.lt_set(level.constant(0)).union(value.ge_set(level.constant(extent)))
    outside = outside.intersect(domain)
    if outside.is_empty():
        return
    point = outside.sample_point()
    values = [
        point.get_coordinate_val(isl.dim_type.set, dim).to_python() for dim in range(level.depth)
    ]
    reached = value.eval(point).to_python()
    at = ", ".join(f"{n} = {v}" for n, v in zip(level.iterators, values, strict=True))
    what = f"subscript {axis} of {array.name} is {reached} at {at or 'the only iteration'}"
    level.source.fail(place_of(node), what, f"Its range is 0 to {extent - 1}: {array}.")


RULE_VALUES = "A value is made of array elements, constants, + - * /, comparisons and ?:."
_UNARY = ("+", "-", "!", "~")
_BINARY = COMPARISONS | wordset("+ - * / % && || & | ^ << >>")
_FLOATING = ("float", "double", "bf16", "Float16", "half")


@dataclass(frozen=True, slots=True)
class Read:
    """A reference in the syntax tree and its access relation."""

    node: c_ast.Node
    access: Access


def reads(node: c_ast.Node, level: LoopLevel, domain: isl.Set, arrays: ArrayTable) -> list[Read]:
    """Every element that evaluating ``node`` may read, from left to right. Raises SpecError."""
    return list(_reads(node, level, domain, None, arrays))


def accumulates(
    node: c_ast.Assignment, write: Access, operands: Sequence[Read], arrays: ArrayTable
) -> tuple[str, tuple[Access, ...]]:
    """``+`` or ``*`` if iterations may swap, and the two factors of the one term; else empty.

    ``X = X + e``, ``X += e`` and ``X -= e`` add, ``X = X * e`` and ``X *= e`` multiply; ``e`` may
    not read X, and may not be floating where X is an integer (each step would truncate).
    """
    terms = list(_terms(node.rvalue, 1))
    assigned = terms if node.op == "=" else []
    targets = [term for term in assigned if _is_target(term, operands, write)]
    rest = [term for term in terms if term not in targets[:1]]
    factors = _factors(rest, operands) if node.op in ("=", "+=") else ()
    others = [read for read in operands if read.access.array == write.array]
    if len(others) != 1 or _truncates(node.rvalue, write, operands, arrays):
        return "", factors
    if targets or node.op in ("+=", "-="):
        return "+", factors
    scaled = list(_leaves(node.rvalue, "*"))
    if node.op == "*=" or any(_is_target((1, leaf), operands, write) for leaf in scaled):
        return "*", factors
    return "", factors


def _reads(
    node: c_ast.Node, level: LoopLevel, domain: isl.Set, where: isl.Set | None, arrays: ArrayTable
) -> Iterator[Read]:
    if isinstance(node, c_ast.Constant) and node.type != "string":
        return
    if isinstance(node, c_ast.ID) and (
        node.name in level.iterators or node.name in level.source.constants
    ):
        return
    if isinstance(node, c_ast.ID | c_ast.ArrayRef):
        yield Read(node, access(node, "read", level, domain, where, arrays))
        return
    if isinstance(node, c_ast.TernaryOp) and not _is_data(node.cond, level):
        holds = condition(node.cond, level)
        for branch, case in ((node.iftrue, holds), (node.iffalse, holds.complement())):
            case = case if where is None else case.intersect(where)
            yield from _reads(branch, level, domain, case, arrays)
        return
    for part in _parts(node, level):
        yield from _reads(part, level, domain, where, arrays)


def _parts(node: c_ast.Node, level: LoopLevel) -> list[c_ast.Node]:
    """Return the operands of a value that is computed from them all."""
    if isinstance(node, c_ast.BinaryOp) and node.op in _BINARY:
        return [node.left, node.right]
    if isinstance(node, c_ast.UnaryOp) and node.op in _UNARY:
        return [node.expr]
    if isinstance(node, c_ast.TernaryOp):
        return [node.cond, node.iftrue, node.iffalse]
    if isinstance(node, c_ast.Cast):
        return [node.expr]
    what = REFUSED.get(type(node), "this expression")
    if isinstance(node, c_ast.UnaryOp):
        what = f"the operator {node.op.strip('p')}"
    return level.source.fail(place_of(node), f"{what} in a value", RULE_VALUES)


def _is_data(node: c_ast.Node, level: LoopLevel) -> bool:
    """Return whether a condition depends on an element, so that either branch may be read."""
    if isinstance(node, c_ast.ID):
        return node.name not in level.iterators and node.name not in level.source.constants
    if isinstance(node, c_ast.ArrayRef):
        return True
    return any(_is_data(child, level) for _, child in node.children())


def _leaves(node: c_ast.Node, op: str) -> Iterator[c_ast.Node]:
    if isinstance(node, c_ast.BinaryOp) and node.op == op:
        yield from _leaves(node.left, op)
        yield from _leaves(node.right, op)
    else:
        yield node


def _terms(node: c_ast.Node, sign: int) -> Iterator[tuple[int, c_ast.Node]]:
    """Yield the terms of a sum with their signs."""
    if isinstance(node, c_ast.BinaryOp) and node.op in ("+", "-"):
        yield from _terms(node.left, sign)
        yield from _terms(node.right, sign if node.op == "+" else -sign)
    else:
        yield sign, node


def _is_target(term: tuple[int, c_ast.Node], operands: Sequence[Read], write: Access) -> bool:
    sign, node = term
    return sign > 0 and any(
        read.node is node
        and read.access.array == write.array
        and read.access.map.is_equal(write.map)
        for read in operands
    )


def _factors(
    terms: Sequence[tuple[int, c_ast.Node]], operands: Sequence[Read]
) -> tuple[Access, ...]:
    if len(terms) != 1 or terms[0][0] < 0:
        return ()
    of = {id(read.node): read.access for read in operands}
    factors = [of.get(id(leaf)) for leaf in _leaves(terms[0][1], "*")]
    accesses = tuple(factor for factor in factors if factor is not None)
    return accesses if len(accesses) == len(factors) == 2 else ()


def _truncates(
    node: c_ast.Node, write: Access, operands: Sequence[Read], arrays: ArrayTable
) -> bool:
    def floats(dtype: str) -> bool:
        return any(word in dtype for word in _FLOATING)

    if floats(arrays.used[write.array].dtype_c):
        return False
    return _has_float(node) or any(floats(arrays.used[r.access.array].dtype_c) for r in operands)


def _has_float(node: c_ast.Node) -> bool:
    if isinstance(node, c_ast.Constant):
        return "float" in node.type or "double" in node.type
    return any(_has_float(child) for _, child in node.children())
