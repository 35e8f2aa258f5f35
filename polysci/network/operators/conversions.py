"""Elements of one type as elements of another."""

from __future__ import annotations

from polysci.network.ir.expressions import Expr
from polysci.network.ir.graph import Node
from polysci.network.operators.builder import FLOATS, STORED, Builder, apply

# Element type -> function of functions.RESULTS that makes its kind of number; "whole" for others.
_FUNCTIONS = {
    "float16": "half",
    "float32": "real",
    "float64": "exact",
    "int64": "long",
    "uint32": "long",
    "uint64": "unsigned",
}
_REALS = (*FLOATS, "float16")


def convert(expr: Expr, source: str, target: str) -> Expr:
    """A number of one element type as one of another: rounded towards zero, saturated, wrapped.

    Real numbers saturate at 32 bits, or at 64 for types of more; narrower whole numbers keep the
    last bits of that.
    """
    if source == target:
        return expr
    if target == "bool":
        return apply("not_equal", expr, 0)
    function = _FUNCTIONS.get(target, "whole")
    if function == "half":
        return apply("half", apply("real", expr))
    rounds = source in _REALS and target not in _REALS
    return apply(f"to_{function}" if rounds else function, expr)


def cast(build: Builder, node: Node) -> None:
    """Cast and CastLike: the type of the output is known."""
    x, y = node.inputs[0], node.outputs[0]
    for name in (x, y):
        if build.dtype(name) not in STORED:
            build.refuse(f"elements of {build.dtype(name)}")
    build.define(node, convert(build.load(x, y), build.dtype(x), build.dtype(y)))


OPERATORS = {"Cast": cast, "CastLike": cast}
