"""A hint where one size after the other is compiled, as a cache that grows makes it: said once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

COUNT: Final = 3  # compiles that differ in one size
_AXIS: Final = ", axis "
_log = logging.getLogger(__name__)
_told = set[str]()  # what was said


class SizeWatch:
    """The compiles of one module or graph, whose inputs have ``names``."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = [*names]
        self._keys = list[Sequence[Any]]()

    def note(self, key: Sequence[Any], seconds: float) -> None:
        """A compile for inputs that ``key_of`` or their numbers tell apart, and how long it took.

        Warns, once in a process, where one size alone made the last ones differ.
        """
        self._keys = [*self._keys, key][-COUNT:]
        places = self._changing() if len(self._keys) == COUNT else {}
        if not places or _told:
            return
        (name, sizes), more = next(iter(places.items())), len(places) - 1
        others = f" (and of {more} more)" if more else ""
        text = (
            f"compiled for size {', '.join(map(str, sizes))} of {name}{others}: each new size is "
            f"compiled anew, the last one in {seconds:.1f} s. Keep the size: a cache of fixed "
            "length, written in place (transformers: cache_implementation='static'), or inputs "
            "padded to a few lengths"
        )
        _told.add(text)
        _log.warning("%s", text)

    def _changing(self) -> dict[str, list[int]]:
        """The places of the size that changes; none where anything else does, or another size."""
        places = dict[str, list[Any]]()
        for name, values in zip(self._names, zip(*self._keys, strict=True), strict=True):
            if len({*values}) > 1:
                places |= _differences(name, values)
        whole = all(type(size) is int for sizes in places.values() for size in sizes)
        if not whole or any(len({*sizes}) < COUNT for sizes in places.values()):
            return {}
        steps = {tuple(size - sizes[0] for size in sizes) for sizes in places.values()}
        if len(steps) != 1:
            return {}
        axes = {place: sizes for place, sizes in places.items() if _AXIS in place}
        return axes or places


def _differences(name: str, values: Sequence[Any]) -> dict[str, list[Any]]:
    """The sizes of an input that differ, or what it is itself."""
    shapes = [value for value in values if isinstance(value, tuple)]
    if len(shapes) < len(values) or len({len(shape) for shape in shapes}) > 1:
        return {name: [*values]}
    if isinstance(shapes[0][0], type):  # a number: its type, and itself
        return {name: [number for _, number in shapes]}
    return {
        f"{name}{_AXIS}{axis}": [*sizes] for axis, sizes in enumerate(zip(*shapes, strict=True))
        if len({*sizes}) > 1
    }  # fmt: skip
