"""Calls that treat every element alike, and conversions to quantised numbers of 8 and 16 bits."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.pytorch.call import AtenCall, AtenRules, Operand
from polysci.graph.formulas import derive
from polysci.graph.graph import QuantisedConstant
from polysci.graph.operators import OPERATORS
from polysci.numerics.arrays import Array
from polysci.numerics.scalar_functions import FUNCTIONS

LIBRARY = "quantized_decomposed::"
DEQUANTISE = tuple(f"{LIBRARY}dequantize_per_{what}" for what in ("tensor", "channel"))


def convert(op: str, call: AtenCall, x: str, **arguments: Any) -> str:
    """Add QuantizeLinear or DequantizeLinear, with scales and zeros of a tensor or an axis."""
    scale, zero = _scale_and_zero(arguments)
    narrow = call.dtype if op == "quantize" else call.graph.dtype(x)
    names = (_parameter(call, scale, "float32"), _parameter(call, zero, narrow))
    x = call.cast(x, "float32") if op == "quantize" else x
    y = call.add(op, x, *names, axis=arguments.get("axis", 1))
    limits, bounds = np.iinfo(narrow), (arguments["quant_min"], arguments["quant_max"])
    if op == "dequantize" or bounds == (limits.min, limits.max):
        return y
    return call.add("clip", y, *(call.graph.number(bound, narrow) for bound in bounds))


def _parameter(call: AtenCall, value: Operand, dtype: str) -> str:
    """Return a scale or zero of another type, a constant where it is known."""
    known = call.graph.constant_value(value) if isinstance(value, str) else np.array(value)
    return call.cast(str(value), dtype) if known is None else call.graph.constant(
        known.astype(dtype)
    )  # fmt: skip


def numbers_of(x: Array, **arguments: Any) -> QuantisedConstant:
    """Return the numbers that a call of known arguments dequantises."""
    scale, zero = (np.asarray(part).reshape(-1) for part in _scale_and_zero(arguments))
    return QuantisedConstant(x, scale.astype(np.float32), zero, arguments.get("axis", 0))


def _scale_and_zero(arguments: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return scale and zero, whose names differ in calls for a tensor and along an axis."""
    zero = arguments.get("zero_point", arguments.get("zero_points"))
    return arguments.get("scale", arguments.get("scales")), 0 if zero is None else zero


def choose(symmetric: bool, call: AtenCall, x: str, **arguments: Any) -> tuple[str, str]:
    """Choose the scale and the zero with which the range of x, and 0, take all numbers."""
    graph, (scale, zero) = call.graph, call.results
    least, most = (graph.add(f"reduce_{end}", (x,), (), keepdims=0) for end in ("min", "max"))
    low, high = arguments["quant_min"], arguments["quant_max"]
    text = "max(max(-least, most) / half, eps)" if symmetric else (
        "max((max(most, 0) - min(least, 0)) / whole, eps)"
    )  # fmt: skip
    step = derive(graph, text, least=least, most=most, half=(high - low) / 2, whole=high - low,
                  eps=arguments["eps"])  # fmt: skip
    text = "clip(low - rint(min(least, 0) / step), low, high)"
    place = derive(graph, text, least=least, step=step, low=low, high=high)
    if symmetric:
        unsigned = str(arguments["dtype"]).endswith("uint8")
        place = graph.number(128 if unsigned else 0)
    return (
        graph.reshape(call.cast(step, scale.dtype), scale.shape),
        graph.reshape(call.cast(place, zero.dtype), zero.shape),
    )


# Operator -> the formula of its result; names are those of ATen's arguments.
FORMULAS: Mapping[str, str] = MappingProxyType(
    {
        **{row.torch: f"{name}(x)" for name, row in FUNCTIONS.items() if row.torch},
        "hardsigmoid": "clip(x / 6 + 0.5, 0, 1)",
        "hardtanh": "clip(x, min_val, max_val)",
        "relu6": "clip(x, 0, 6)",
        "log_sigmoid_forward": "-softplus(-x)",
        "softplus": "select(x * beta > threshold, x, softplus(x * beta) / beta)",
        "elu": "scale * select(x > 0, x, alpha * (exp(x * input_scale) - 1))",
        "_prelu_kernel": "prelu(x, weight)",
        "threshold": "select(x <= threshold, value, x)",  # a NaN stays
        "trunc": "sign(x) * floor(abs(x))",
        "rsqrt": "reciprocal(sqrt(x))",
        "square": "x * x",
        "exp2": "exp(x * 0.6931471805599453)",  # log 2
        # which loses nothing near 0, where Exp(x) - 1 would
        "expm1": "select(abs(x) < 1, 2 * sinh(x / 2) * exp(x / 2), exp(x) - 1)",
        "log1p": "select(abs(x) < 0.5, 2 * atanh(x / (x + 2)), log(x + 1))",
        "log2": "log(x) * 1.4426950408889634",  # 1 / log 2
        "log10": "log(x) * 0.4342944819032518",  # 1 / log 10
        "pow": "pow(x, exponent)",
        "clamp_min": "max(x, min)",
        "clamp_max": "min(x, max)",
        "where": "select(condition, x, other)",
        "masked_fill": "select(mask, value, x)",
        "eq": "x == other",
        "ne": "not(x == other)",
        "lt": "x < other",
        "le": "x <= other",
        "gt": "x > other",
        "ge": "x >= other",
    }
)
_DEFAULTS = {
    "min_val": -1, "max_val": 1, "beta": 1, "threshold": 20, "alpha": 1, "scale": 1,
    "input_scale": 1,
}  # fmt: skip
_CONDITIONS = ("condition", "mask")
# Operator -> the graph's, and its attributes by the names of ATen's arguments.
_ATTRIBUTES: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType(
    {
        "leaky_relu": ("leaky", {"alpha": "negative_slope"}),
        "gelu": ("gelu", {"approximate": "approximate"}),
    }
)
_LOGICAL = ("and", "or", "xor", "not")


def formula(text: str, call: AtenCall, **arguments: Any) -> str:
    """Add a formula of tensors in the result's type, of a comparison in what they promote to."""
    nodes = [*ast.walk(ast.parse(text))]
    called = {id(part.func) for part in nodes if isinstance(part, ast.Call)}
    used = {part.id for part in nodes if isinstance(part, ast.Name) and id(part) not in called}
    parts = {name: value for name, value in {**_DEFAULTS, **arguments}.items() if name in used}
    numbers = [value for name, value in parts.items() if name not in _CONDITIONS]
    dtype = call.common_dtype(*numbers) if call.dtype == "bool" else call.dtype
    for name, value in parts.items():
        if name not in _CONDITIONS and (isinstance(value, str) or dtype == "bool"):
            parts[name] = call.cast(value, dtype)
    if not any(isinstance(value, str) for value in parts.values()):
        call.refuse("none of its operands is a tensor")
    y = derive(call.graph, text, **parts)
    return y if call.graph.shape(y) == call.shape else call.graph.expand(y, call.shape)


def with_attributes(
    op: str, names: Mapping[str, str], call: AtenCall, x: str, **arguments: Any
) -> str:
    """Add an operator with attributes, whose defaults are ATen's."""
    known = {name: arguments[own] for name, own in names.items() if own in arguments}
    return call.add(op, x, **known)


def with_inputs(op: str, call: AtenCall, **arguments: Operand) -> str:
    """Add an operator of the table whose inputs are the call's arguments, in their order."""
    values = [*arguments.values()]
    dtype = call.common_dtype(*values) if call.dtype == "bool" else call.dtype
    return call.add(op, *(call.cast(value, dtype) for value in values))


def truth_or(word: str, text: str, call: AtenCall, x: Operand, other: Operand) -> str:
    """Add a logical operator of booleans, or a formula of numbers."""
    if call.dtype == "bool":
        return logical(word, call, x, other)
    return formula(text, call, x=x, other=other)


def add(call: AtenCall, x: Operand, other: Operand, alpha: float = 1) -> str:
    if call.dtype == "bool":
        return logical("or", call, x, other) if alpha else call.cast(x)
    return formula("x + other" if alpha == 1 else "x + other * alpha", call, x=x, other=other,
                   alpha=alpha)  # fmt: skip


def sub(call: AtenCall, x: Operand, other: Operand, alpha: float = 1) -> str:
    return formula("x - other" if alpha == 1 else "x - other * alpha", call, x=x, other=other,
                   alpha=alpha)  # fmt: skip


def div(call: AtenCall, x: Operand, other: Operand, rounding_mode: str | None = None) -> str:
    """Divide; with a rounding mode by the remainder, as a quotient may round up to an integer."""
    if rounding_mode is None:
        return formula("x / other", call, x=x, other=other)
    real = "float" in call.dtype
    if real and rounding_mode == "trunc":
        return formula("sign(q := x / other) * floor(abs(q))", call, x=x, other=other)
    x, other = call.cast(x), call.cast(other)
    if not real:
        rest = call.add("mod", x, other, fmod=int(rounding_mode == "trunc"))
        return derive(call.graph, "(x - r) / other", x=x, other=other, r=rest)
    text = "(q := (x - r) / other) - select(sign(r) * sign(other) < 0, 1, 0)"
    quotient = derive(call.graph, text, x=x, other=other, r=fmod(call, x, other))
    text = "select(other == 0, x / other, select(q - (f := floor(q)) > 0.5, f + 1, f))"
    return formula(text, call, x=x, other=other, q=quotient)


def remainder(call: AtenCall, x: Operand, other: Operand) -> str:
    """Return the remainder of the sign of the divisor, as in Python."""
    x, other = call.cast(x), call.cast(other)
    if "float" not in call.dtype:
        return call.add("mod", x, other)
    text = "select(sign(r) * sign(other) < 0, r + other, r)"
    return derive(call.graph, text, r=fmod(call, x, other), other=other)


def fmod(call: AtenCall, x: Operand, other: Operand) -> str:
    return call.add("mod", call.cast(x), call.cast(other), fmod=1)


def clamp(call: AtenCall, x: str, min: Operand | None = None, max: Operand | None = None) -> str:
    """Limit x to two bounds, each of which may be left out; tensors broadcast."""
    bounds = {"min": min, "max": max}
    if not any(isinstance(bound, str) for bound in bounds.values()):
        sides = [None if bound is None else call.cast(bound) for bound in bounds.values()]
        return call.add("clip", call.cast(x), *sides)
    text = "x" if min is None else "max(x, min)"
    return formula(text if max is None else f"min({text}, max)", call, x=x, min=min, max=max)


def round_values(call: AtenCall, x: str, decimals: int = 0) -> str:
    if decimals:
        call.refuse(f"decimals {decimals}")
    return call.add("rint", x)


def logical(word: str, call: AtenCall, x: Operand, other: Operand | None = None) -> str:
    """Add a logical operator of whether elements are other than 0."""
    return call.add(word, *(call.cast(v, "bool") for v in (x, other) if v is not None))


def bitwise(word: str, call: AtenCall, x: Operand, other: Operand | None = None) -> str:
    if call.dtype == "bool":
        return logical(word, call, x, other)
    return call.add(f"bit_{word}", *(call.cast(value) for value in (x, other) if value is not None))


RULES: AtenRules = MappingProxyType(
    {
        **{name: partial(formula, text) for name, text in FORMULAS.items()},
        **{name: partial(with_inputs, row.name) for row in OPERATORS.values()
           for name in row.torch},
        **{name: partial(with_attributes, *row) for name, row in _ATTRIBUTES.items()},
        **{f"logical_{word}": partial(logical, word) for word in _LOGICAL},
        **{f"bitwise_{word}": partial(bitwise, word) for word in _LOGICAL},
        "mul": partial(truth_or, "and", "x * other"),
        "maximum": partial(truth_or, "or", "max(x, other)"),
        "minimum": partial(truth_or, "and", "min(x, other)"),
        "add": add,
        "sub": sub,
        "rsub": lambda call, x, other, alpha=1: sub(call, other, x, alpha),
        "div": div,
        "floor_divide": partial(div, rounding_mode="floor"),
        "remainder": remainder,
        "fmod": fmod,
        "clamp": clamp,
        "round": round_values,
        **{f"{LIBRARY}quantize_per_{what}": partial(convert, "quantize")
           for what in ("tensor", "channel")},
        **dict.fromkeys(DEQUANTISE, partial(convert, "dequantize")),
        f"{LIBRARY}choose_qparams": partial(choose, False),
        f"{LIBRARY}choose_qparams_symmetric": partial(choose, True),
    }
)  # fmt: skip
