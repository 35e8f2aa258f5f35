"""What a network consists of as bytes."""

from __future__ import annotations

import io
import pickle
from types import MappingProxyType
from typing import Any


def freeze(items: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    """An immutable mapping, whose own class has no name that a pickle could hold."""
    return MappingProxyType(items)


class _Pickler(pickle.Pickler):
    """Takes immutable mappings too."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, MappingProxyType):
            return freeze, (dict(value),)
        return NotImplemented


def dumps(value: object) -> bytes:
    """The pickle of a value; ``pickle.loads`` reads it."""
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()
