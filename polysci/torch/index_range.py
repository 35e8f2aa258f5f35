"""Inputs that are places in tables: networks take the nearest row, where eager raises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch

# Of operators that take places: which argument is the table, which the places, which the axis.
_READERS: Final = MappingProxyType(
    {
        "embedding": (0, 1, None),
        **dict.fromkeys(("index_select", "gather", "scatter", "scatter_add"), (0, 2, 1)),
    }
)
_INDEXED: Final = ("index", "index_put")  # whose places may count from the end
_MOVING: Final = frozenset(
    ("view", "reshape", "flatten", "unsqueeze", "squeeze", "transpose", "permute", "t", "expand",
     "clone", "contiguous", "alias", "detach", "_to_copy", "to")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlaceRange:
    """The numbers from ``low`` to below ``end``."""

    low: int
    end: int

    def check(self, name: str, x: Any) -> None:
        """Raise IndexError for a tensor with other numbers."""
        if not x.numel():
            return
        least, largest = (int(extreme) for extreme in torch.aminmax(x))
        if least < self.low or largest >= self.end:
            wrong = least if least < self.low else largest
            raise IndexError(
                f"{name}: index out of range: expected {self.low} to {self.end - 1}, got {wrong}"
            )


def range_of(node: Any) -> PlaceRange | None:
    """Return the numbers that an integer tensor may hold, by the calls that index with it."""
    if not _is_whole(node):
        return None
    ranges = [*_ranges(node)]
    if not ranges:
        return None
    return PlaceRange(max(row.low for row in ranges), min(row.end for row in ranges))


def _ranges(node: Any) -> Iterator[PlaceRange]:
    for reader in node.users:
        name = getattr(reader.target, "_opname", "")
        if name in _MOVING and reader.args[0] is node:
            if _is_whole(reader):
                yield from _ranges(reader)
        elif name in _INDEXED:
            for axis, places in enumerate(reader.args[1]):
                if places is node:
                    size = reader.args[0].meta["val"].shape[axis]
                    yield PlaceRange(-size, size)
        elif name in _READERS:
            table, places, dim = _READERS[name]
            shape = reader.args[table].meta["val"].shape
            if reader.args[places] is node and shape:
                yield PlaceRange(0, shape[0 if dim is None else reader.args[dim]])


def _is_whole(node: Any) -> bool:
    """Whether a node makes a tensor of whole numbers wide enough for places."""
    return getattr(node.meta.get("val"), "dtype", None) in (torch.int32, torch.int64)
