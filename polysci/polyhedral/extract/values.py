"""The right-hand side of an assignment: the elements it reads, and whether it accumulates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import islpy as isl
from pycparser import c_ast

from polysci.polyhedral.extract.access import ArrayTable, access
from polysci.polyhedral.extract.affine import COMPARISONS, REFUSED, LoopLevel, condition
from polysci.polyhedral.extract.parse import place_of
from polysci.polyhedral.extract.source import wordset
from polysci.polyhedral.scop import Access

RULE = "A value is made of array elements, constants, + - * /, comparisons and ?:."
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
    """The operands of a value that is computed from them all."""
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
    return level.source.fail(place_of(node), f"{what} in a value", RULE)


def _is_data(node: c_ast.Node, level: LoopLevel) -> bool:
    """Whether a condition depends on an element, so that either branch may be read."""
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
    """The terms of a sum with their signs."""
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
