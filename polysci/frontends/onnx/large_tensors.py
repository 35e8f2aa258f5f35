"""Large initialisers of a model go from its file into arrays, and the rest is parsed without them.

A parser of protocol buffers copies their bytes, and so does whoever asks it for them. Of the wire
format (protobuf.dev/programming-guides/encoding) the reader knows fields and their lengths.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from io import BufferedReader
from math import prod
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from polysci.errors import PolysciError
from polysci.numerics import arrays as aligned
from polysci.numerics.arrays import Array

BYTE: Final = np.dtype(np.uint8)
LEAST: Final = 1 << 16  # bytes of a large tensor
LONGEST: Final = 10  # bytes of a varint
# Fields of onnx.proto: the graph of a model, an initialiser of a graph, the bytes of a tensor.
PATH: Final = (7, 5, 9)
VARINT, LENGTH = 0, 2  # kinds of fields; those of the other kinds have a fixed size
FIXED: Final = MappingProxyType({1: 8, 5: 4})
# Types of a TensorProto whose raw bytes are an array's.
TYPES: Final = MappingProxyType(
    {
        kind: np.dtype(dtype)
        for kind, dtype in {1: "<f4", 2: "u1", 3: "i1", 6: "<i4", 7: "<i8", 11: "<f8"}.items()
    }
)


class UnknownFormatError(PolysciError):
    """A file whose fields are not those that writers of models make."""


class ModelReader:
    """A model file, read once from its beginning; ``large``: bytes of initialisers by number."""

    def __init__(self, file: BufferedReader) -> None:
        self.file, self.place = file, 0
        self.large, self._initialisers = dict[int, Array](), -1

    def message(self, size: int, depth: int = 0) -> bytes:
        """Return a message of so many bytes without what is large, which fields it may have."""
        parts, end, seen = list[bytes](), self.place + size, set[int]()
        while self.place < end:
            tag = self._varint()
            field, kind = tag >> 3, tag & 7
            if kind != LENGTH:
                parts += self._encode(tag), self._scalar(kind)
                continue
            length = self._varint()
            if length > end - self.place:
                raise UnknownFormatError("a field ends behind its message")
            on_path = field == PATH[depth]
            self._initialisers += on_path and depth == 1
            if on_path and depth != 1 and field in seen:  # the parser would merge both
                raise UnknownFormatError("a field occurs twice")
            seen.add(field)
            if on_path and length >= LEAST and depth == len(PATH) - 1:
                self.large[self._initialisers] = self._array(length)
                continue
            nested = on_path and length >= LEAST
            body = self.message(length, depth + 1) if nested else self._bytes(length)
            parts += self._encode(tag), self._encode(len(body)), body
        if self.place != end:
            raise UnknownFormatError("a field ends behind its message")
        return b"".join(parts)

    def _bytes(self, size: int) -> bytes:
        read = self.file.read(size)
        self.place += size
        if len(read) < size:
            raise UnknownFormatError("the file ends within a field")
        return read

    def _array(self, size: int) -> Array:
        array = aligned.empty((size,), dtype=BYTE)
        self.place += size
        if self.file.readinto(array.data) < size:
            raise UnknownFormatError("the file ends within a tensor")
        return array

    def _varint(self) -> int:
        number = 0
        for at in range(LONGEST):
            (byte,) = self._bytes(1)
            number |= (byte & 0x7F) << 7 * at
            if byte < 0x80:
                return number
        raise UnknownFormatError("a number has too many bytes")

    def _scalar(self, kind: int) -> bytes:
        if kind == VARINT:
            return self._encode(self._varint())
        if kind not in FIXED:
            raise UnknownFormatError(f"no field is of kind {kind}")
        return self._bytes(FIXED[kind])

    @staticmethod
    def _encode(number: int) -> bytes:
        encoded = bytearray()
        while number > 0x7F:
            encoded.append(number & 0x7F | 0x80)
            number >>= 7
        return bytes((*encoded, number))


def split_file(file: BufferedReader, limit: int) -> tuple[bytes, Mapping[int, Array]] | None:
    """Return a model file's bytes without those of large initialisers, and these by number.

    None of a pipe, of a small file, of one of more than ``limit`` bytes, and of one in an unknown
    format; of these nothing is read then.
    """
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or not LEAST < status.st_size <= limit:
        return None
    reader = ModelReader(file)
    try:
        return reader.message(status.st_size), reader.large
    except UnknownFormatError:
        file.seek(0)
        return None


def take_array(tensor: Any, raw: Array, arrays: dict[str, Array]) -> bool:
    """Note the bytes of an initialiser as its array; return whether they are one.

    Else who reads the tensor converts them, or says what is wrong with them.
    """
    dtype, shape = TYPES.get(tensor.data_type), tuple(tensor.dims)
    if dtype is None or tensor.data_location or tensor.HasField("segment"):
        return False
    if min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != raw.nbytes:
        return False
    arrays[tensor.name] = raw.view(dtype).reshape(shape)
    return True
