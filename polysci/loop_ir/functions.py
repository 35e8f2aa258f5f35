"""The kinds of numbers that expressions compute with, and elements of one type as another's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from polysci.loop_ir.expressions import Apply, Expr, Load, Number, Position, Reduce, Where
from polysci.numerics.scalar_functions import (
    EXACT,
    FUNCTIONS,
    LONG,
    REAL,
    UNSIGNED,
    WHOLE,
    is_predicate,
)

# Reductions to the place of the largest or smallest value, counted along all that is reduced:
# what the values are reduced by, and whether a later value takes the place of an earlier one.
PLACES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "argmax": ("max", "above"),
        "argmin": ("min", "below"),
        "last_argmax": ("max", "not_below"),
        "last_argmin": ("min", "not_above"),
    }
)
# The smallest and the largest number of a kind.
RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        **dict.fromkeys((REAL, EXACT), (float("-inf"), float("inf"))),
        WHOLE: (-(2**31), 2**31 - 1),
        LONG: (-(2**63), 2**63 - 1),
        UNSIGNED: (0, 2**64 - 1),
    }
)
# Element type -> function that makes its kind of number; "whole" for others.
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
_KINDS: Final = {
    **{"float16": REAL, "float32": REAL, "bf16": REAL, "float64": EXACT},
    **{"int64": LONG, "uint32": LONG, "uint64": UNSIGNED},
}


def neutral(function: str, kind: str) -> float:
    """Return the value of a reduction of nothing: of whole kinds an int."""
    smallest, largest = RANGES[kind]
    return {"add": 0, "mul": 1, "max": smallest, "min": largest}[function]


def kind_of_type(dtype: str) -> str:
    """Return the kind of number that computes with elements of a type."""
    return _KINDS.get(dtype, WHOLE)


def kind_of(expr: Expr, dtypes: Mapping[str, str], known: dict[int, str] | None = None) -> str:
    """Return the kind of number that an expression is; of two kinds the wider one.

    ``known`` keeps the kinds of expressions that live as long, by their identities.
    """
    if known is None:
        known = {}
    elif (kind := known.get(id(expr))) is not None:
        return kind
    kind = known[id(expr)] = _kind_of(expr, dtypes, known)
    return kind


def _kind_of(expr: Expr, dtypes: Mapping[str, str], known: dict[int, str]) -> str:
    match expr:
        case Load(tensor, _):
            return kind_of_type(dtypes[tensor])
        case Number():
            return ""
        case Position():
            return LONG
        case Apply(function, _) if FUNCTIONS[function].result:
            return FUNCTIONS[function].result
        case Apply(function, arguments):
            values = arguments[1:] if function == "select" else arguments
            return _widest(*[kind_of(argument, dtypes, known) for argument in values])
        case Where(_, body, otherwise):
            return _widest(kind_of(body, dtypes, known), kind_of(otherwise, dtypes, known))
        case Reduce(function, _, body, _):
            return WHOLE if function in PLACES else kind_of(body, dtypes, known)


def argument_kinds(
    expr: Apply, own: str, dtypes: Mapping[str, str], known: dict[int, str] | None = None
) -> tuple[str, ...]:
    """Return the kinds in which a function with a result of kind ``own`` takes its arguments."""
    kinds = [kind_of(argument, dtypes, known) for argument in expr.arguments]
    if expr.function == "select":
        return (kinds[0] or WHOLE, own, own)
    if FUNCTIONS[expr.function].result:
        own = _widest(*kinds) or _kind_of_numbers(expr) or own
    return (own,) * len(kinds)


def _kind_of_numbers(expr: Apply) -> str:
    """Return the kind in which a predicate compares known numbers; empty for whole ones."""
    numbers = [part.value for part in expr.arguments if isinstance(part, Number)]
    whole = all(float(number).is_integer() for number in numbers)
    return EXACT if is_predicate(expr.function) and not whole else ""


def is_truth(expr: Expr, dtypes: Mapping[str, str]) -> bool:
    """Return whether an expression is 0 or 1 by what it says."""
    match expr:
        case Load(tensor, _):
            return dtypes[tensor] == "bool"
        case Apply("select", (_, *values)):
            return all(is_truth(value, dtypes) for value in values)
        case Apply(function, _):
            return is_predicate(function)
        case Where(_, body, otherwise):
            return is_truth(body, dtypes) and is_truth(otherwise, dtypes)
        case Number(value):
            return value in (0, 1)
        case _:
            return False


def _widest(*kinds: str) -> str:
    order = ("", WHOLE, LONG, UNSIGNED, REAL, EXACT)
    return max(kinds, key=order.index, default="")


def convert(expr: Expr, source: str, target: str) -> Expr:
    """Return a number of one element type as one of another: rounded to zero, saturated, wrapped.

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
