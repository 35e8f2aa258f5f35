"""The functions of expressions as C text, by the kind of number that they compute with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from polysci.loop_ir.expressions import Apply, Expr, Load, Number, Position, Reduce, Where
from polysci.numerics.dtypes import C_TYPES

REAL, EXACT, WHOLE, LONG, UNSIGNED = (
    C_TYPES[name] for name in ("float32", "float64", "int32", "int64", "uint64")
)


def _calls(prefix: str, arguments: int, names: str) -> dict[str, str]:
    """Functions of so many arguments that C knows by their names behind a prefix."""
    places = ", ".join(f"{{{at}}}" for at in range(arguments))
    return {name: f"{prefix}{name}({places})" for name in names.split()}


_OF_ONE: Final = (
    "relu sigmoid silu gelu gelu_tanh hard_swish sign square cube reciprocal softplus "
    "softsign mish isnan isinf to_whole to_long to_unsigned"
)
_LIBM: Final = (
    "exp log sqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf floor ceil rint"
)
_COMPARISONS: Final = {
    "equal": "({0} == {1})",
    "not_equal": "({0} != {1})",
    "less": "({0} < {1})",
    "less_equal": "({0} <= {1})",
    "greater": "({0} > {1})",
    "greater_equal": "({0} >= {1})",
    "select": "({0} ? {1} : {2})",
}
_ARITHMETIC: Final = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "neg": "(-{0})",
}


def _real(letter: str) -> dict[str, str]:
    """Functions of floating-point numbers, by the letter of their width."""
    prefix = f"ps_{letter}_"
    return {
        **_COMPARISONS,
        **_ARITHMETIC,
        **_calls(prefix, 1, _OF_ONE),
        **_calls(prefix, 2, "max min leaky elu celu swish mod above below not_below not_above"),
        **_calls(prefix, 3, "hard_sigmoid"),
    }


def _whole(letter: str) -> dict[str, str]:
    """Functions of whole numbers, by the letter of their width."""
    prefix = f"ps_{letter}_"
    return {
        **_COMPARISONS,
        **_calls(prefix, 1, "abs neg sign square cube"),
        **_calls(
            prefix, 2, "add sub mul div max min pow mod remainder shift_left shift_right place"
        ),
        "relu": f"{prefix}max({{0}}, 0)",
        "above": "({0} > {1})",
        "below": "({0} < {1})",
        "not_below": "({0} >= {1})",
        "not_above": "({0} <= {1})",
        "and": "(({0} != 0) & ({1} != 0))",
        "or": "(({0} != 0) | ({1} != 0))",
        "xor": "(({0} != 0) ^ ({1} != 0))",
        "not": "({0} == 0)",
        "bit_and": "({0} & {1})",
        "bit_or": "({0} | {1})",
        "bit_xor": "({0} ^ {1})",
        "bit_not": "(~{0})",
    }


# Function -> C text, by the kind of its arguments.
FUNCTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        REAL: {
            **_real("f"),
            **_calls("ps_f_", 1, f"{_LIBM} abs half brain"),
            **_calls("ps_f_", 2, "pow"),
            "remainder": "fmodf({0}, {1})",
        },
        EXACT: {
            **_real("d"),
            **_calls("", 1, _LIBM),
            **_calls("", 2, "pow"),
            "abs": "fabs({0})",
            "remainder": "fmod({0}, {1})",
        },
        WHOLE: _whole("w"),
        LONG: _whole("l"),
        UNSIGNED: {**_whole("u"), **_calls("ps_u_", 3, "philox")},
    }
)
# Functions whose results are 0 or 1, whatever they compare.
PREDICATES: Final = frozenset(
    (
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("above", "below", "not_below", "not_above"),
        *("and", "or", "xor", "not", "isnan", "isinf"),
    )
)
# Kind -> the function that makes a number of that kind of any other.
CONVERSIONS: Mapping[str, str] = MappingProxyType(
    {REAL: "real", EXACT: "exact", WHOLE: "whole", LONG: "long", UNSIGNED: "unsigned"}
)
# Function -> the kind of its result, where that is not the kind of its arguments. ``to_`` ones of
# real numbers round towards zero and saturate; a NaN becomes 0.
RESULTS: Mapping[str, str] = MappingProxyType(
    {
        **{function: kind for kind, function in CONVERSIONS.items()},
        **{"to_whole": WHOLE, "to_long": LONG, "to_unsigned": UNSIGNED},
        **dict.fromkeys(PREDICATES, WHOLE),
    }
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
_BOUNDS = {WHOLE: "INT32", LONG: "INT64"}
FIRST: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {  # of a reduction of nothing
        "add": {REAL: "0.0f", EXACT: "0.0", WHOLE: "0", LONG: "0", UNSIGNED: "0"},
        "mul": {REAL: "1.0f", EXACT: "1.0", WHOLE: "1", LONG: "1", UNSIGNED: "1"},
        "max": {
            **dict.fromkeys((REAL, EXACT), "-INFINITY"),
            **{kind: f"{name}_MIN" for kind, name in _BOUNDS.items()},
            UNSIGNED: "0",
        },
        "min": {
            **dict.fromkeys((REAL, EXACT), "INFINITY"),
            **{kind: f"{name}_MAX" for kind, name in _BOUNDS.items()},
            UNSIGNED: "UINT64_MAX",
        },
    }
)
_KINDS = {
    **{"float16": REAL, "float32": REAL, "bf16": REAL, "float64": EXACT},
    **{"int64": LONG, "uint32": LONG, "uint64": UNSIGNED},
}


def kind_of_type(dtype: str) -> str:
    """The kind of number that computes with elements of a type."""
    return _KINDS.get(dtype, WHOLE)


def kind_of(expr: Expr, dtypes: Mapping[str, str]) -> str:
    """The kind of number that an expression is; of two kinds the wider one."""
    match expr:
        case Load(tensor, _):
            return kind_of_type(dtypes[tensor])
        case Number():
            return ""
        case Position():
            return LONG
        case Apply(function, _) if function in RESULTS:
            return RESULTS[function]
        case Apply(function, arguments):
            values = arguments[1:] if function == "select" else arguments
            return _widest(*(kind_of(argument, dtypes) for argument in values))
        case Where(_, body, otherwise):
            return _widest(kind_of(body, dtypes), kind_of(otherwise, dtypes))
        case Reduce(function, _, body, _):
            return WHOLE if function in PLACES else kind_of(body, dtypes)


def argument_kinds(expr: Apply, own: str, dtypes: Mapping[str, str]) -> tuple[str, ...]:
    """The kinds in which a function whose result is of kind ``own`` takes its arguments."""
    kinds = [kind_of(argument, dtypes) for argument in expr.arguments]
    if expr.function == "select":
        return (kinds[0] or WHOLE, own, own)
    if expr.function in RESULTS:
        own = _widest(*kinds) or _kind_of_numbers(expr) or own
    return (own,) * len(kinds)


def _kind_of_numbers(expr: Apply) -> str:
    """In which a predicate compares numbers that are known; empty for whole ones."""
    numbers = [part.value for part in expr.arguments if isinstance(part, Number)]
    whole = all(float(number).is_integer() for number in numbers)
    return EXACT if expr.function in PREDICATES and not whole else ""


def call(function: str, own: str, kinds: Sequence[str], texts: Sequence[str]) -> str:
    """A function of C texts of ``kinds``; what no kind of argument has a row for is a cast."""
    template = FUNCTIONS[kinds[-1]].get(function)
    if template is not None:
        return template.format(*texts)
    assert function in RESULTS, f"{function} of {kinds[-1]}"
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
            return function in PREDICATES
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
        return f"{int(value)}"
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    suffix = "f" if kind == REAL else ""
    return f"{value.hex()}{suffix}" if kind == EXACT else f"{_single(value).hex()}{suffix}"


def _single(value: float) -> float:
    """Rounded to f32, as C would."""
    return float(np.float32(value))
