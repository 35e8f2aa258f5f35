"""The rules of the notation's element types once more, for one number at a time.

A term is its text, its element type and a function of the numbers of the inputs and of i.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import fmod, isfinite, isnan, trunc
from random import Random
from typing import Any

import numpy as np

# Input -> its element type.
NAMES: Mapping[str, str] = {
    "P": "bool", "S": "int8", "T": "int16", "W": "int32", "U": "uint8", "V": "uint16",
    "X": "uint32", "L": "int64", "Y": "uint64", "H": "float16", "G": "bf16", "A": "float32",
    "D": "float64",
}  # fmt: skip
Term = tuple[str, str, Callable[[Mapping[str, Any], int], Any]]
ORDER = ("int32", "int64", "uint64", "float32", "float64")
REALS = ("float16", "bf16", "float32", "float64")
OTHERS = {"uint32": "int64", "float16": "float32", "bf16": "float32"}


def computed_in(*kinds: str) -> str:
    wide = [OTHERS.get(kind, kind if kind in ORDER else "int32") for kind in kinds]
    return max(wide, key=ORDER.index)


def wrap(value: int, kind: str) -> int:
    """The last bits of a whole number."""
    info = np.iinfo(kind)
    return (value - int(info.min)) % (int(info.max) - int(info.min) + 1) + int(info.min)


def convert(value: Any, source: str, target: str) -> Any:
    """A number of one element type as one of another."""
    if target == "bool":
        return int(value != 0)
    if target == "bf16":
        bits = int(np.float32(value).view(np.uint32))
        return float(np.uint32(bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).view(np.float32))
    if target in REALS:
        return float(np.dtype(target).type(value))
    if source not in REALS:
        return wrap(int(value), target)
    wide = "int32" if np.iinfo(target).bits < 32 or target == "int32" else "int64"
    if isnan(value):
        return 0
    limits = np.iinfo("uint64" if target == "uint64" and value > 0 else wide)
    edge = limits.max if value > 0 else limits.min
    whole = trunc(value) if isfinite(value) else int(edge)
    return wrap(min(max(whole, int(limits.min)), int(limits.max)), target)


def operate(sign: str, a: Any, b: Any, kind: str) -> Any:
    """An operator of numbers that are of a kind already."""
    if kind in REALS:
        real = np.dtype(kind).type
        if sign == "%":
            return fmod(a, b) if b and isfinite(a) else float("nan")
        x, y = real(a), real(b)
        return float({"+": x + y, "-": x - y, "*": x * y, "/": np.divide(x, y)}[sign])
    if sign in "/%":
        whole = trunc(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else 0
        return wrap(whole if sign == "/" else a - whole * b if b else 0, kind)
    return wrap({"+": a + b, "-": a - b, "*": a * b}[sign], kind)


def value_of(term: Term, numbers: Mapping[str, Any], i: int) -> Any:
    return term[2](numbers, i)


def draw_value(random: Random, depth: int) -> Term:
    """A random term."""
    if not depth:
        name = random.choice([*NAMES, "i"])
        if name == "i":
            return "i", "int64", lambda numbers, i: i
        kind = NAMES[name]
        python = float if kind in REALS else int
        return f"{name}(i)", kind, lambda numbers, i: python(numbers[name])
    left, right = draw_value(random, depth - 1), draw_value(random, depth - 1)
    form = random.choice(["operator"] * 4 + ["cast"] * 3 + ["compare", "choose"])
    if form == "cast":
        kind = random.choice([*NAMES.values()])
        text, own, value = left
        return f"{kind}({text})", kind, lambda n, i: convert(value(n, i), own, kind)
    kind = computed_in(left[1], right[1])

    def pair(n: Mapping[str, Any], i: int) -> tuple[Any, Any]:
        a, b = (convert(part[2](n, i), part[1], kind) for part in (left, right))
        return a, b

    if form == "compare":
        return (
            f"({left[0]} < {right[0]})", "bool",
            lambda n, i: int(pair(n, i)[0] < pair(n, i)[1]),
        )  # fmt: skip
    if form == "choose":
        own = left[1] if left[1] == right[1] else kind
        return (
            f"({left[0]} > {right[0]} ? {left[0]} : {right[0]})", own,
            lambda n, i: convert(pair(n, i)[not pair(n, i)[0] > pair(n, i)[1]], kind, own),
        )  # fmt: skip
    sign = random.choice("+-*/" if kind in REALS else "+-*/%")  # a rest jumps where numbers round
    return (
        f"({left[0]} {sign} {right[0]})", kind, lambda n, i: operate(sign, *pair(n, i), kind),
    )  # fmt: skip
