"""The functions of expressions as C text, by the kind of number that they compute with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from polysci.network.ir.expressions import Apply, Expr, Load, Number, Position, Reduce, Where
from polysci.numerics.dtypes import C_TYPES

REAL, EXACT, WHOLE, LONG = (C_TYPES[n] for n in ("float32", "float64", "int32", "int64"))

_ANY: Final = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
}
_REAL: Final = {
    "exp": "ps_f_exp({0})",
    "sqrt": "ps_f_sqrt({0})",
    "relu": "ps_f_relu({0})",
    "leaky": "ps_f_leaky({0}, {1})",
    "sigmoid": "ps_f_sigmoid({0})",
    "tanh": "ps_f_tanh({0})",
    "erf": "ps_f_erf({0})",
    "gelu": "ps_f_gelu({0})",
    "gelu_tanh": "ps_f_gelu_tanh({0})",
    "hard_sigmoid": "ps_f_hard_sigmoid({0}, {1}, {2})",
    "hard_swish": "ps_f_hard_swish({0})",
    "silu": "ps_f_silu({0})",
    "pow": "ps_f_pow({0}, {1})",
    "max": "ps_f_max({0}, {1})",
    "min": "ps_f_min({0}, {1})",
    "rint": "ps_f_rint({0})",
}
_EXACT: Final = {
    "exp": "exp({0})",
    "sqrt": "sqrt({0})",
    "tanh": "tanh({0})",
    "erf": "erf({0})",
    "pow": "pow({0}, {1})",
    "rint": "rint({0})",
    "relu": "ps_d_relu({0})",
    "leaky": "ps_d_leaky({0}, {1})",
    "sigmoid": "ps_d_sigmoid({0})",
    "silu": "ps_d_silu({0})",
    "gelu": "ps_d_gelu({0})",
    "gelu_tanh": "ps_d_gelu_tanh({0})",
    "hard_sigmoid": "ps_d_hard_sigmoid({0}, {1}, {2})",
    "hard_swish": "ps_d_hard_swish({0})",
    "max": "ps_d_max({0}, {1})",
    "min": "ps_d_min({0}, {1})",
}


def _whole(letter: str) -> dict[str, str]:
    """Functions of whole numbers, by the letter of their width."""
    return {
        **{name: f"ps_{letter}_{name}({{0}}, {{1}})" for name in ("add", "sub", "mul")},
        "relu": f"ps_{letter}_max({{0}}, 0)",
        "max": f"ps_{letter}_max({{0}}, {{1}})",
        "min": f"ps_{letter}_min({{0}}, {{1}})",
        "div": f"ps_{letter}_div({{0}}, {{1}})",
    }


# Function -> C text, by the kind of its arguments.
FUNCTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        REAL: {**_ANY, **_REAL},
        EXACT: {**_ANY, **_EXACT},
        WHOLE: {**_ANY, **_whole("w")},
        LONG: {**_ANY, **_whole("l")},
    }
)
# Conversions: function -> kind of the result.
CONVERSIONS: Mapping[str, str] = MappingProxyType(
    {"real": REAL, "exact": EXACT, "whole": WHOLE, "long": LONG}
)
FIRST: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {  # of a reduction of nothing
        "add": {REAL: "0.0f", EXACT: "0.0", WHOLE: "0", LONG: "0"},
        "max": {REAL: "-INFINITY", EXACT: "-INFINITY", WHOLE: "INT32_MIN", LONG: "INT64_MIN"},
        "min": {REAL: "INFINITY", EXACT: "INFINITY", WHOLE: "INT32_MAX", LONG: "INT64_MAX"},
    }
)
_KINDS = {"float32": REAL, "bf16": REAL, "float64": EXACT}
_LONG = ("int64", "uint64", "uint32")


def kind_of(expr: Expr, dtypes: Mapping[str, str]) -> str:
    """The kind of number that an expression is; of two kinds the wider one."""
    match expr:
        case Load(tensor, _):
            dtype = dtypes[tensor]
            return _KINDS.get(dtype) or (LONG if dtype in _LONG else WHOLE)
        case Number():
            return ""
        case Position():
            return LONG
        case Apply(function, _) if function in CONVERSIONS:
            return CONVERSIONS[function]
        case Apply(_, arguments):
            return _widest(*(kind_of(argument, dtypes) for argument in arguments))
        case Where(_, body, otherwise):
            return _widest(kind_of(body, dtypes), kind_of(otherwise, dtypes))
        case Reduce(_, _, body, _):
            return kind_of(body, dtypes)


def _widest(*kinds: str) -> str:
    order = ("", WHOLE, LONG, REAL, EXACT)
    return max(kinds, key=order.index)


def number(value: float, kind: str) -> str:
    """A constant as C text; not finite ones need math.h."""
    if kind in (WHOLE, LONG):
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
