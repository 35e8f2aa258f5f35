"""Formulas as text, whose operations become nodes: ``derive(graph, "dy * (1 - y * y)", dy=, y=)``.

Names stand for tensors or numbers, ``Exp(x)`` and its like for ONNX's operators, ``:=`` gives
a part a name.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.graph.builder import GrowingGraph

Part = str | float  # a tensor, or a number
_BINARY: Mapping[type, tuple[str, Callable[[Any, Any], Any]]] = MappingProxyType(
    {
        ast.Add: ("Add", operator.add),
        ast.Sub: ("Sub", operator.sub),
        ast.Mult: ("Mul", operator.mul),
        ast.Div: ("Div", operator.truediv),
        ast.Pow: ("Pow", operator.pow),
    }
)
_COMPARISONS: Mapping[type, str] = MappingProxyType(
    {
        ast.Gt: "Greater",
        ast.GtE: "GreaterOrEqual",
        ast.Lt: "Less",
        ast.LtE: "LessOrEqual",
        ast.Eq: "Equal",
    }
)
_TRUTHS = (*_COMPARISONS.values(), "And", "Or", "Not")
_parse = lru_cache(maxsize=256)(lambda text: ast.parse(text, mode="eval").body)


def derive(graph: GrowingGraph, text: str, **names: Part) -> str:
    """The tensor that a formula of tensors and numbers gives; shapes broadcast."""
    made = _value(graph, _parse(text), names)
    assert isinstance(made, str), f"{text}: no tensor in it"
    return made


def _value(graph: GrowingGraph, part: ast.AST, names: dict[str, Part]) -> Part:
    match part:
        case ast.Name(name):
            return names[name]
        case ast.Constant(value):
            return float(value)  # type: ignore[arg-type]
        case ast.NamedExpr(ast.Name(name), value):
            names[name] = _value(graph, value, names)
            return names[name]
        case ast.UnaryOp(ast.USub(), operand):
            inner = _value(graph, operand, names)
            return _apply(graph, "Neg", [inner]) if isinstance(inner, str) else -inner
        case ast.BinOp(left, symbol, right):
            op, function = _BINARY[type(symbol)]
            pair = [_value(graph, left, names), _value(graph, right, names)]
            if not any(isinstance(value, str) for value in pair):
                return float(function(*pair))
            return _apply(graph, op, pair)
        case ast.Compare(left, [symbol], [right]):
            pair = [_value(graph, left, names), _value(graph, right, names)]
            return _apply(graph, _COMPARISONS[type(symbol)], pair)
        case ast.Call(ast.Name(op), arguments):
            return _apply(graph, op, [_value(graph, argument, names) for argument in arguments])
        case _:
            raise ValueError(f"formula: {ast.unparse(part)}")


def _apply(graph: GrowingGraph, op: str, parts: list[Part]) -> str:
    """A node; numbers are of the element type of the tensors beside them."""
    values = parts[1:] if op == "Where" else parts
    dtypes = [graph.dtype(part) for part in values if isinstance(part, str)]
    truths = op == "Where" and dtypes == ["bool"] * len(values)
    own = "bool" if truths else next((dtype for dtype in dtypes if dtype != "bool"), "float32")
    inputs = [part if isinstance(part, str) else graph.number(part, own) for part in parts]
    shape = np.broadcast_shapes(*(graph.shape(name) for name in inputs))
    return graph.add(op, inputs, shape, "bool" if op in _TRUTHS else own)
