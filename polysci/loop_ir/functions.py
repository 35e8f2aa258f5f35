"""The functions of expressions as C text, by the kind of number that they compute with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from polysci.loop_ir.expressions import Apply, Expr, Load, Number, Position, Reduce, Where
from polysci.numerics.scalar_functions import (
    EXACT,
    FUNCTIONS,
    LONG,
    REAL,
    UNSIGNED,
    WHOLE,
    is_predicate,
    template,
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
_LIMITS: Final = {  # C has no other way to write the first two
    **{-(2**31): "INT32_MIN", -(2**63): "INT64_MIN", 2**31 - 1: "INT32_MAX"},
    **{2**63 - 1: "INT64_MAX", 2**64 - 1: "UINT64_MAX"},
}
_KINDS = {
    **{"float16": REAL, "float32": REAL, "bf16": REAL, "float64": EXACT},
    **{"int64": LONG, "uint32": LONG, "uint64": UNSIGNED},
}


def neutral(function: str, kind: str) -> float:
    """Return the value of a reduction of nothing: of whole kinds an int."""
    smallest, largest = RANGES[kind]
    return {"add": 0, "mul": 1, "max": smallest, "min": largest}[function]


def kind_of_type(dtype: str) -> str:
    """The kind of number that computes with elements of a type."""
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
    """In which a predicate compares numbers that are known; empty for whole ones."""
    numbers = [part.value for part in expr.arguments if isinstance(part, Number)]
    whole = all(float(number).is_integer() for number in numbers)
    return EXACT if is_predicate(expr.function) and not whole else ""


def call(function: str, own: str, kinds: Sequence[str], texts: Sequence[str]) -> str:
    """A function of C texts of ``kinds``; what no kind of argument has a row for is a cast."""
    text = template(function, kinds[-1])
    if text is not None:
        return text.format(*texts)
    assert FUNCTIONS[function].result, f"{function} of {kinds[-1]}"
    return cast(texts[0], kinds[0], own)


def cast(text: str, own: str, kind: str) -> str:
    """C text of a number of one kind as one of another kind."""
    return text if own == kind else f"(({kind})({text}))"


def is_truth(expr: Expr, dtypes: Mapping[str, str]) -> bool:
    """Whether an expression is 0 or 1 by what it says."""
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


def number(value: float, kind: str) -> str:
    """A constant as C text; not finite ones need math.h."""
    if kind in (WHOLE, LONG, UNSIGNED):
        return _LIMITS.get(int(value), f"{int(value)}")
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    rounded, suffix = float(value) if kind == EXACT else _single(value), "f" * (kind == REAL)
    text = f"{rounded:.1f}" if rounded.is_integer() and abs(rounded) < 1e6 else rounded.hex()
    return f"{text}{suffix}"


def _single(value: float) -> float:
    """Rounded to f32, as C would."""
    return float(np.float32(value))
