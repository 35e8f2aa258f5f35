"""What makes a convolution valid: types, signs, divisibility, an output, 64-bit products."""

from __future__ import annotations

import math
import operator
from collections.abc import Container, Iterator, Mapping

from polysci.border.arguments import describe
from polysci.errors import SpecError
from polysci.ops.words import LIMIT

AXES = (("H", "R", "P", 0), ("W", "S", "Q", 1))  # input, filter, output, place in the pairs
SIZES = ("C", "H", "W", "K", "R", "S", "groups", "multiplicity")


class FieldError(SpecError):
    """A rule that fields break; ``{field}`` in ``template`` stands for a field and its value.

    The first field of the template is the offender. The words' reader catches this and says the
    same of its words, with a caret.
    """

    def __init__(self, template: str, values: Mapping[str, int]) -> None:
        self.template, self.values = template, dict(values)
        super().__init__(f"Conv2d: {self.told({k: f'{k}={_shown(v)}' for k, v in values.items()})}")

    def told(self, names: Mapping[str, str]) -> str:
        """The message, with the fields called ``names``."""
        text = self.template
        for field, name in names.items():
            text = text.replace(f"{{{field}}}", name)
        return text

    def fields(self) -> list[str]:
        """The fields that the message names, the offender first."""
        named = [field for field in self.values if f"{{{field}}}" in self.template]
        return sorted(named, key=lambda field: self.template.index(f"{{{field}}}"))

    def __reduce__(self) -> tuple[type[FieldError], tuple[str, dict[str, int]]]:
        return FieldError, (self.template, self.values)


def integer(field: str, value: object) -> int:
    """``value`` as an int. Raises TypeError for anything else, bool and float included."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise TypeError(f"Conv2d: {field} must be an int, got {_told(value)}")


def pair(field: str, value: object) -> tuple[int, int]:
    """``value`` as a pair (h, w); one int stands for both. Raises TypeError."""
    if not isinstance(value, tuple | list):
        value = (value, value)
    if len(value) != 2:
        raise TypeError(f"Conv2d: {field} must be an int or a pair (h, w), got {_told(value)}")
    first, second = (integer(field, item) for item in value)
    return first, second


def text(field: str, value: object) -> str:
    """``value`` as a str. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"Conv2d: {field} must be a str, got {_told(value)}")
    return str(value)


def extent(size: int, span: int, stride: int, pad: int) -> int:
    """Output extent of an axis whose filter spans ``span`` elements, padded alike on both sides."""
    return (size + 2 * pad - span) // stride + 1


def span(taps: int, dilation: int) -> int:
    """Input elements from the first to the last tap of a filter; dilation counts from 1."""
    return (taps - 1) * dilation + 1


def flat(pairs: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """``{"pad": (1, 2)}`` as ``{"pad[0]": 1, "pad[1]": 2}``."""
    return {f"{field}[{axis}]": value[axis] for field, value in pairs.items() for axis in (0, 1)}


def outputs(v: Mapping[str, int]) -> tuple[int, int]:
    """The extents P and Q of symmetric padding; below 1 if the filter does not fit."""
    p, q = (
        extent(
            v[size],
            span(v[taps], v[f"dilation[{axis}]"]),
            v[f"stride[{axis}]"],
            v[f"pad[{axis}]"],
        )
        for size, taps, _, axis in AXES
    )
    return p, q


def check_values(values: Mapping[str, int]) -> None:
    """Signs, 64 bits and divisibility of every field but the output. Raises FieldError."""
    for field, value in values.items():
        least = 1 if field in SIZES or field.startswith(("stride", "dilation")) else 0
        if value < least:
            rule = "must be positive" if least else "must not be negative"
            raise FieldError(f"{{{field}}} {rule}", values)
        if value >= LIMIT:
            raise FieldError(f"{{{field}}} is beyond 2^63", values)
    for field in ("C", "K"):
        if values[field] % values["groups"]:
            raise FieldError(f"{{{field}}} is not divisible by {{groups}}", values)


def check_output(values: Mapping[str, int], names: Container[str], item: int) -> None:
    """A positive output and products below 2^63; ``item`` is the size of an element in bytes.

    ``given`` holds those of P and Q that the caller chose. Raises FieldError.
    """
    for size, taps, out, axis in AXES:
        if values[out] >= 1:
            continue
        if out in names:
            raise FieldError(f"{{{out}}} must be positive", values)
        used = span(values[taps], values[f"dilation[{axis}]"])
        raise FieldError(
            f"{{{taps}}} gives an empty output: the filter spans {used} elements with "
            f"{{dilation[{axis}]}}, and {{{size}}} has "
            f"{values[size] + 2 * values[f'pad[{axis}]']} with {{pad[{axis}]}} on both sides",
            values,
        )
    for what, field, product in _products(values, item):
        if product >= LIMIT:
            raise FieldError(f"{{{field}}}: {what} is {_shown(product)}, beyond 2^63", values)


def _products(v: Mapping[str, int], item: int) -> Iterator[tuple[str, str, int]]:
    """What is counted in 64 bits, and the field to blame: its largest factor."""
    batch, per_group = max(v["N"], 1), v["C"] // v["groups"]
    counts = {
        "bytes of the input": {"N": batch, "C": v["C"], "H": v["H"], "W": v["W"]},
        "bytes of the weights": {"K": v["K"], "C": per_group, "R": v["R"], "S": v["S"]},
        "bytes of the output": {"N": batch, "K": v["K"], "P": v["P"], "Q": v["Q"]},
        "bytes of the padded input": {
            "N": batch,
            "C": v["C"],
            **{size: _padded(v, size, taps, out, axis) for size, taps, out, axis in AXES},
        },
    }
    for what, factors in counts.items():
        yield f"the count of {what}", max(factors, key=factors.__getitem__), item * _of(factors)
    work = counts["bytes of the output"] | counts["bytes of the weights"]
    yield "the count of operations", max(work, key=work.__getitem__), 2 * _of(work)


def _of(factors: Mapping[str, int]) -> int:
    return math.prod(factors.values())


def _padded(v: Mapping[str, int], size: str, taps: str, out: str, axis: int) -> int:
    read = (v[out] - 1) * v[f"stride[{axis}]"] + span(v[taps], v[f"dilation[{axis}]"])
    return max(read, v[size] + v[f"pad[{axis}]"])


def _shown(value: int) -> str:
    """Digits, or a power of two: Python refuses to print integers of thousands of digits."""
    bits = value.bit_length()
    return str(value) if bits <= 256 else f"about {'-' if value < 0 else ''}2^{bits - 1}"


def _told(value: object) -> str:
    shown = describe(value)
    return f"{type(value).__name__} {shown[:40]}{'...' * (len(shown) > 40)}"
