"""What a network consists of as bytes."""

from __future__ import annotations

import hashlib
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


class _Digest:
    """A file that keeps a digest of what is written to it."""

    def __init__(self) -> None:
        self.state = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.state.update(data)
        return memoryview(data).nbytes


def dumps(value: object) -> bytes:
    """The pickle of a value; ``pickle.loads`` reads it."""
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def digest_of(value: object) -> str:
    """A digest of the pickle of a value that does not contain itself, whose sets have one order."""
    file = _Digest()
    pickler = _Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True  # what is equal is written alike, whether it is one object or several
    pickler.dump(value)
    return file.state.hexdigest()
