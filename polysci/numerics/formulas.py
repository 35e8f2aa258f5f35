"""Formulas as text over any kind of terms, and the derivatives of scalar functions as formulas.

``exp(x)`` and its like call rows of the table of scalar functions, operators and comparisons stand
for such rows too, and ``:=`` gives a part a name: ``(s := sigmoid(x)) * (1 - s)``.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

from polysci.numerics.scalar_functions import FUNCTIONS

T = TypeVar("T")
# A function of the table, or of graphs, applied to terms and numbers.
Applies = Callable[[str, Sequence[T | float]], T]
_BINARY: Mapping[type, tuple[str, Callable[[Any, Any], Any]]] = MappingProxyType(
    {
        ast.Add: ("add", operator.add),
        ast.Sub: ("sub", operator.sub),
        ast.Mult: ("mul", operator.mul),
        ast.Div: ("div", operator.truediv),
        ast.Pow: ("pow", operator.pow),
        ast.Gt: ("greater", operator.gt),
        ast.GtE: ("greater_equal", operator.ge),
        ast.Lt: ("less", operator.lt),
        ast.LtE: ("less_equal", operator.le),
        ast.Eq: ("equal", operator.eq),
    }
)


@lru_cache(maxsize=512)
def parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def is_number(part: object) -> bool:
    return isinstance(part, int | float)


def evaluate(part: ast.expr, names: dict[str, Any], apply: Applies[Any]) -> Any:
    """The term, or the number, that a formula gives; parts with names are added to ``names``."""
    match part:
        case ast.Name(name):
            return names[name]
        case ast.Constant(value):
            return value
        case ast.NamedExpr(ast.Name(name), value):
            names[name] = evaluate(value, names, apply)
            return names[name]
        case ast.UnaryOp(ast.USub(), operand):
            inner = evaluate(operand, names, apply)
            return -inner if is_number(inner) else apply("neg", [inner])
        case ast.UnaryOp(ast.Not(), operand):
            return apply("not", [evaluate(operand, names, apply)])
        case ast.BoolOp(ast.And(), [left, right]):
            pair = [evaluate(side, names, apply) for side in (left, right)]
            known = next((side for side in pair if is_number(side)), None)
            return apply("and", pair) if known is None else known and pair[1]
        case ast.BinOp(left, symbol, right) | ast.Compare(left, [symbol], [right]):
            function, compute = _BINARY[type(symbol)]
            pair = [evaluate(side, names, apply) for side in (left, right)]
            return compute(*pair) if all(map(is_number, pair)) else apply(function, pair)
        case ast.Call(ast.Name("select"), [condition, body, otherwise]):
            test = evaluate(condition, names, apply)
            if is_number(test):
                return evaluate(body if test else otherwise, names, apply)
            return apply("select", [test, *(evaluate(v, names, apply) for v in (body, otherwise))])
        case ast.Call(ast.Name(function), arguments):
            return apply(function, [evaluate(value, names, apply) for value in arguments])
        case _:
            raise ValueError(f"formula: {ast.unparse(part)}")


@lru_cache(maxsize=512)
def gradients(function: str) -> tuple[ast.expr | None, ...]:
    """Return the gradient of each argument of a function where ``dy`` is that of its value.

    None: it is 0 everywhere. Formulas are of ``dy``, the value ``y``, and ``ScalarFunction.names``.
    """
    row = FUNCTIONS[function]
    if row.choice is not None:
        condition, *sides = row.choice
        chosen = condition.replace("x", "y") if row.by_value else condition
        pairs = {side: ["dy" if side == own else "0" for own in sides] for side in sides}
        texts = [f"select({chosen}, {', '.join(pairs[n])})" if n in pairs else "0"
                 for n in row.inputs]  # fmt: skip
        return tuple(None if text == "0" else parse(text) for text in texts)
    return tuple(
        None if text == "0" else _times(ast.Name("dy"), parse(text)) for text in row.derivatives
    )


def gradient_text(function: str) -> str:
    """Return the gradient of a function of one number as text."""
    (part,) = gradients(function)[:1]
    assert part is not None
    return ast.unparse(part)


def _times(dy: ast.expr, slope: ast.expr) -> ast.expr:
    """``dy * slope``; of a choice dy times each side, so that 0 stays 0 beside infinity."""
    match slope:
        case ast.Constant(0):
            return slope
        case ast.Constant(1):
            return dy
        case ast.UnaryOp(ast.USub(), operand):
            return ast.UnaryOp(ast.USub(), _times(dy, operand))
        case ast.BinOp(left, ast.Mult() | ast.Div() as symbol, right):
            return ast.BinOp(_times(dy, left), symbol, right)
        case ast.Call(ast.Name("select") as name, [condition, *sides]):
            return ast.Call(name, [condition, *(_times(dy, side) for side in sides)], [])
        case _:
            return ast.BinOp(dy, ast.Mult(), slope)
