"""Rules of a valid convolution: types, signs, divisibility, an output, 64-bit products."""

from __future__ import annotations

import math
import operator
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from polysci.border.arguments import describe
from polysci.errors import SpecError
from polysci.ops.words import LIMIT

AXES = (("H", "R", "P", 0), ("W", "S", "Q", 1))  # input, filter, output, place in the pairs


@dataclass(frozen=True, slots=True)
class ConvolutionFamily:
    """Convolutions over the same axes: their class's name, and the fields of each axis.

    Of an axis: the fields of its extents in input, filter and output, and its place in ``stride``,
    ``pad`` and ``dilation``. ``transposed``: strides are between outputs, not inputs.
    """

    name: str
    axes: tuple[tuple[str, str, str, int], ...]
    transposed: bool = False

    @property
    def letters(self) -> str:
        """The axes as words call them: ``hw``."""
        return "".join(size.lower() for size, *_ in self.axes)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The fields of output extents."""
        return tuple(out for _, _, out, _ in self.axes)


class FieldError(SpecError):
    """A rule that fields break; ``{field}`` in ``template`` stands for a field and its value.

    The first field of the template is the offender. The words' reader catches this and says the
    same of its words, with a caret.
    """

    def __init__(self, family: ConvolutionFamily, template: str, values: Mapping[str, int]) -> None:
        self.family, self.template, self.values = family, template, dict(values)
        message = self.phrase({k: f"{k}={_show(v)}" for k, v in values.items()})
        super().__init__(f"{family.name}: {message}")

    def phrase(self, names: Mapping[str, str]) -> str:
        """Return the message, with the fields called ``names``."""
        text = self.template
        for field, name in names.items():
            text = text.replace(f"{{{field}}}", name)
        return text

    def fields(self) -> list[str]:
        """Return the fields that the message names, the offender first."""
        named = [field for field in self.values if f"{{{field}}}" in self.template]
        return sorted(named, key=lambda field: self.template.index(f"{{{field}}}"))

    def __reduce__(self) -> tuple[type[FieldError], tuple[ConvolutionFamily, str, dict[str, int]]]:
        return FieldError, (self.family, self.template, self.values)


def integer(family: ConvolutionFamily, field: str, value: object) -> int:
    """``value`` as an int. Raises TypeError for anything else, bool and float included."""
    if not isinstance(value, bool):
        with suppress(Exception):  # whatever a caller's own object raises
            return operator.index(value)  # type: ignore[arg-type]
    raise TypeError(f"{family.name}: {field} must be an int, got {_describe_type(value)}")


def spread(family: ConvolutionFamily, field: str, value: object) -> tuple[int, ...]:
    """``value`` as an int for each axis; one int stands for all. Raises TypeError."""
    count = len(family.axes)
    if not isinstance(value, tuple | list):
        value = (value,) * count
    if len(value) != count:
        kind = f"a {('tuple', 'pair', 'triple')[count - 1]} ({', '.join(family.letters)})"
        raise TypeError(
            f"{family.name}: {field} must be an int or {kind}, got {_describe_type(value)}"
        )
    return tuple(integer(family, field, item) for item in value)


def text(family: ConvolutionFamily, field: str, value: object) -> str:
    """``value`` as a str. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{family.name}: {field} must be a str, got {_describe_type(value)}")
    return str(value)


def complete(
    family: ConvolutionFamily,
    counts: Mapping[str, object],
    tuples: Mapping[str, object],
    stated: Mapping[str, object],
    item: int,
) -> dict[str, Any]:
    """All fields that count: the outputs that are not ``stated`` (None) are those of the padding.

    ``item`` is the size of an element in bytes. Raises TypeError, and FieldError for a broken rule.
    """
    values = {field: integer(family, field, value) for field, value in counts.items()}
    fixed = {field: spread(family, field, value) for field, value in tuples.items()}
    known = values | flat(fixed)
    check_values(family, known)
    chosen = {o: integer(family, o, v) for o, v in stated.items() if v is not None}
    results = dict(zip(family.outputs, outputs(family, known), strict=True)) | chosen
    check_output(family, known | results, chosen, item)
    return {**values, **fixed, **results}


def extent(size: int, span: int, stride: int, pad: int) -> int:
    """Output extent of an axis whose filter spans ``span`` elements, padded alike on both sides."""
    return (size + 2 * pad - span) // stride + 1


def span(taps: int, dilation: int) -> int:
    """Input elements from the first to the last tap of a filter; dilation counts from 1."""
    return (taps - 1) * dilation + 1


def flat(tuples: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """``{"pad": (1, 2)}`` as ``{"pad[0]": 1, "pad[1]": 2}``."""
    return {
        f"{field}[{at}]": item for field, value in tuples.items() for at, item in enumerate(value)
    }


def outputs(family: ConvolutionFamily, v: Mapping[str, int]) -> list[int]:
    """Return the output extents of symmetric padding; below 1 if the filter does not fit."""
    return [
        extent(
            v[size],
            span(v[taps], v[f"dilation[{axis}]"]),
            v[f"stride[{axis}]"],
            v[f"pad[{axis}]"],
        )
        for size, taps, _, axis in family.axes
    ]


def check_values(family: ConvolutionFamily, values: Mapping[str, int]) -> None:
    """Signs, 64 bits and divisibility of every field but the output. Raises FieldError."""
    for field, value in values.items():
        least = 0 if field == "N" or "pad" in field else 1
        if value < least:
            rule = "must be positive" if least else "must not be negative"
            raise FieldError(family, f"{{{field}}} {rule}", values)
        if value >= LIMIT:
            raise FieldError(family, f"{{{field}}} is beyond 2^63", values)
    for field in ("C", "K"):
        if values[field] % values["groups"]:
            raise FieldError(family, f"{{{field}}} is not divisible by {{groups}}", values)


def check_output(
    family: ConvolutionFamily, values: Mapping[str, int], names: Container[str], item: int
) -> None:
    """A positive output and products below 2^63; ``item`` is the size of an element in bytes.

    ``names`` are the outputs that the caller chose. Raises FieldError.
    """
    for size, taps, out, axis in family.axes:
        if values[out] >= 1:
            continue
        if out in names:
            raise FieldError(family, f"{{{out}}} must be positive", values)
        used = span(values[taps], values[f"dilation[{axis}]"])
        raise FieldError(
            family,
            f"{{{taps}}} gives an empty output: the filter spans {used} elements with "
            f"{{dilation[{axis}]}}, and {{{size}}} has "
            f"{values[size] + 2 * values[f'pad[{axis}]']} with {{pad[{axis}]}} on both sides",
            values,
        )
    for what, field, product in _products(family, values, item):
        if product >= LIMIT:
            message = f"{{{field}}}: {what} is {_show(product)}, beyond 2^63"
            raise FieldError(family, message, values)


def _products(
    family: ConvolutionFamily, v: Mapping[str, int], item: int
) -> Iterator[tuple[str, str, int]]:
    """Yield the counts held in 64 bits, with the field to blame: the largest factor."""
    batch, per_group = max(v["N"], 1), v["C"] // v["groups"]
    sizes, taps, outs, _ = zip(*family.axes, strict=True)
    padded = {axis[0]: _padded_extent(v, *axis) for axis in family.axes}
    counts = {
        "bytes of the input": {"N": batch, "C": v["C"], **{size: v[size] for size in sizes}},
        "bytes of the weights": {"K": v["K"], "C": per_group, **{tap: v[tap] for tap in taps}},
        "bytes of the output": {"N": batch, "K": v["K"], **{out: v[out] for out in outs}},
        "bytes of the padded input": {"N": batch, "C": v["C"], **padded},
    }
    for what, factors in counts.items():
        yield f"the count of {what}", max(factors, key=factors.__getitem__), item * _of(factors)
    work = counts["bytes of the output"] | counts["bytes of the weights"]
    yield "the count of operations", max(work, key=work.__getitem__), 2 * _of(work)


def _of(factors: Mapping[str, int]) -> int:
    return math.prod(factors.values())


def _padded_extent(v: Mapping[str, int], size: str, taps: str, out: str, axis: int) -> int:
    read = (v[out] - 1) * v[f"stride[{axis}]"] + span(v[taps], v[f"dilation[{axis}]"])
    return max(read, v[size] + v[f"pad[{axis}]"])


def _show(value: int) -> str:
    """Digits, or a power of two: Python refuses to print integers of thousands of digits."""
    bits = value.bit_length()
    return str(value) if bits <= 256 else f"about {'-' if value < 0 else ''}2^{bits - 1}"


def _describe_type(value: object) -> str:
    shown = describe(value)
    return f"{type(value).__name__} {shown[:40]}{'...' * (len(shown) > 40)}"
