"""Checks of the fields of layers, by their types and names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from types import MappingProxyType
from typing import Any

from polysci.border.arguments import check_real, check_type, check_whole
from polysci.errors import SpecError

Extents = int | Sequence[int]
MOST_ELEMENTS = 1 << 60  # of a tensor; so many f64 are 2^63 bytes
# Fields that may be smaller than 1, and real ones that have another limit than f32 has.
_LEAST = MappingProxyType(
    {"padding": 0, "output_padding": 0}
    | dict.fromkeys(("dim", "start_dim", "end_dim", "negative_slope", "alpha"), -MOST_ELEMENTS)
)
_BELOW = MappingProxyType({"p": 1.0})


@dataclass(frozen=True, slots=True)
class CheckedLayer:
    """A layer whose wrong fields raise TypeError or SpecError."""

    def __post_init__(self) -> None:
        """Raise TypeError for a value of another type, SpecError for one out of range."""
        for field in fields(self):
            kind, value = str(field.type).removesuffix(" | None"), getattr(self, field.name)
            if kind in _CHECKS and (value is not None or kind == field.type):
                name = type(self).__name__.removesuffix("Layer")
                _CHECKS[kind](f"{name}: {field.name}", value)


def check_number(what: str, value: object) -> None:
    """Raise TypeError for no real number, SpecError for one that the field cannot be."""
    name = what.split()[-1]
    check_real(what, value, _LEAST.get(name, 0), _BELOW.get(name, 2.0**128))


def check_elements(what: str, shape: Sequence[int]) -> None:
    """Raise SpecError for a shape that no memory holds."""
    if prod(shape) >= MOST_ELEMENTS:
        raise SpecError(f"{what}: {list(shape)} has 2^60 elements or more")


def _check_count(what: str, value: object) -> None:
    check_whole(what, value, _LEAST.get(what.split()[-1], 1), MOST_ELEMENTS)


def _check_extents(what: str, value: object) -> None:
    parts = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    for part in parts:
        _check_count(what, part)


# By the text of a field's type.
_CHECKS: Mapping[str, Callable[[str, Any], None]] = MappingProxyType(
    {
        "int": _check_count,
        "Extents": _check_extents,
        "float": check_number,
        "bool": lambda what, value: check_type(what, value, bool),
        "Sequence[Layer]": lambda what, value: check_type(what, value, list, tuple),
    }
)
