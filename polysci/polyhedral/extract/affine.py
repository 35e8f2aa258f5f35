"""C expressions as isl: affine values (PwAff) and affine conditions (Set) over the iterators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import islpy as isl
from pycparser import c_ast

from polysci.polyhedral.extract.parse import place_of
from polysci.polyhedral.extract.source import UNSIGNED, SourceText, integer, is_unsigned

MAX_CASES = 64  # pieces of one piecewise value
LARGEST = 2**63 - 1
RULE = (
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
    """The value of an integer expression. Raises SpecError when it is not affine."""
    reader = _VALUES.get(type(node))
    if reader is None:
        _refuse(node, level, f"{REFUSED.get(type(node), 'this expression')} is not affine here")
    value = reader(node, level)
    if value.n_piece() > MAX_CASES:
        _refuse(node, level, f"an expression of more than {MAX_CASES} cases")
    return value


def condition(node: c_ast.Node, level: LoopLevel) -> isl.Set:
    """The iterations for which an affine condition holds. Raises SpecError."""
    if isinstance(node, c_ast.UnaryOp) and node.op == "!":
        return condition(node.expr, level).complement()
    if isinstance(node, c_ast.BinaryOp) and node.op in _JOINS:
        left, right = condition(node.left, level), condition(node.right, level)
        return _JOINS[node.op](left, right).coalesce()
    if isinstance(node, c_ast.BinaryOp) and node.op in _COMPARISONS:
        return _COMPARISONS[node.op](affine(node.left, level), affine(node.right, level))
    return affine(node, level).ne_set(level.constant(0))


def constant(node: c_ast.Node, level: LoopLevel) -> int:
    """The value of an expression that has to be an integer constant. Raises SpecError."""
    value = _constant_value(affine(node, level))
    if value is None:
        _refuse(node, level, "an integer constant is needed here")
    return value


def _refuse(node: c_ast.Node, level: LoopLevel, what: str) -> NoReturn:
    level.source.fail(place_of(node), what, RULE)


def _constant_value(value: isl.PwAff) -> int | None:
    """The value if it is one constant everywhere."""
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
