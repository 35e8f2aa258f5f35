"""Calls of PT2E's quantised programs: whole numbers of 8 and 16 bits that stand for real ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.pytorch.call import AtenCall, AtenRules, Operand
from polysci.graph.formulas import derive
from polysci.graph.graph import QuantisedConstant
from polysci.numerics.arrays import Array

LIBRARY = "quantized_decomposed::"
DEQUANTISE = tuple(f"{LIBRARY}dequantize_per_{what}" for what in ("tensor", "channel"))


def convert(op: str, call: AtenCall, x: str, **words: Any) -> str:
    """Add QuantizeLinear or DequantizeLinear, with scales and zeros of a tensor or an axis."""
    scale, zero = _scale_and_zero(words)
    narrow = call.dtype if op == "quantize" else call.graph.dtype(x)
    names = (_parameter(call, scale, "float32"), _parameter(call, zero, narrow))
    made = call.add(op, call.cast(x, "float32") if op == "quantize" else x, *names,
                    axis=words.get("axis", 1))  # fmt: skip
    limits, bounds = np.iinfo(narrow), (words["quant_min"], words["quant_max"])
    if op == "dequantize" or bounds == (limits.min, limits.max):
        return made
    return call.add("clip", made, *(call.graph.number(bound, narrow) for bound in bounds))


def _parameter(call: AtenCall, value: Operand, dtype: str) -> str:
    """Return a scale or zero of another type, a constant where it is known."""
    known = call.graph.value(value) if isinstance(value, str) else np.array(value)
    return call.cast(str(value), dtype) if known is None else call.graph.constant(
        known.astype(dtype)
    )  # fmt: skip


def numbers_of(x: Array, **words: Any) -> QuantisedConstant:
    """Return the numbers that a call of known arguments dequantises."""
    scale, zero = (np.asarray(part).reshape(-1) for part in _scale_and_zero(words))
    return QuantisedConstant(x, scale.astype(np.float32), zero, words.get("axis", 0))


def _scale_and_zero(words: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return scale and zero, whose names differ in calls for a tensor and along an axis."""
    zero = words.get("zero_point", words.get("zero_points"))
    return words.get("scale", words.get("scales")), 0 if zero is None else zero


def choose(symmetric: bool, call: AtenCall, x: str, **words: Any) -> tuple[str, str]:
    """Choose the scale and the zero with which the range of x, and 0, take all numbers."""
    graph, (scale, zero) = call.graph, call.results
    least, most = (graph.add(f"reduce_{end}", (x,), (), keepdims=0) for end in ("min", "max"))
    low, high = words["quant_min"], words["quant_max"]
    text = "max(max(-least, most) / half, eps)" if symmetric else (
        "max((max(most, 0) - min(least, 0)) / whole, eps)"
    )  # fmt: skip
    step = derive(graph, text, least=least, most=most, half=(high - low) / 2, whole=high - low,
                  eps=words["eps"])  # fmt: skip
    text = "clip(low - rint(min(least, 0) / step), low, high)"
    place = derive(graph, text, least=least, step=step, low=low, high=high)
    if symmetric:
        unsigned = str(words["dtype"]).endswith("uint8")
        place = graph.number(128 if unsigned else 0)
    return (
        graph.reshape(call.cast(step, scale.dtype), scale.shape),
        graph.reshape(call.cast(place, zero.dtype), zero.shape),
    )


RULES: AtenRules = MappingProxyType(
    {
        **{f"{LIBRARY}quantize_per_{what}": partial(convert, "quantize")
           for what in ("tensor", "channel")},
        **dict.fromkeys(DEQUANTISE, partial(convert, "dequantize")),
        f"{LIBRARY}choose_qparams": partial(choose, False),
        f"{LIBRARY}choose_qparams_symmetric": partial(choose, True),
    }
)  # fmt: skip
