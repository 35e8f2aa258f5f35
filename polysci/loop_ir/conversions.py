"""Elements of one type as elements of another."""

from __future__ import annotations

from typing import Final

from polysci.loop_ir.expressions import Apply, Expr, Number

# Element type -> function of functions.RESULTS that makes its kind of number; "whole" for others.
_FUNCTIONS: Final = {
    "float16": "half",
    "bf16": "real",
    "float32": "real",
    "float64": "exact",
    "int64": "long",
    "uint32": "long",
    "uint64": "unsigned",
}
_REALS: Final = ("float32", "float64", "float16", "bf16")


def convert(expr: Expr, source: str, target: str) -> Expr:
    """A number of one element type as one of another: rounded towards zero, saturated, wrapped.

    Real numbers saturate at 32 bits, or at 64 for types of more; narrower whole numbers keep the
    last bits of that.
    """
    if source == target:
        return expr
    if target == "bool":
        return Apply("not_equal", (expr, Number(0.0)))
    function = _FUNCTIONS.get(target, "whole")
    if function == "half":
        return Apply("half", (Apply("real", (expr,)),))
    rounds = source in _REALS and target not in _REALS
    return Apply(f"to_{function}" if rounds else function, (expr,))
