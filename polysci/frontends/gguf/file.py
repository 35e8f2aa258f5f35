"""GGUF files: their metadata, and tensors whose bytes stay in the file until they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.gguf.blocks import FORMATS, BlockFormat
from polysci.frontends.gguf.head import FormatError, TensorEntry, read_head
from polysci.numerics.arrays import Array
from polysci.numerics.dtypes import from_bf16
from polysci.ops.matmul import Matmul

BF16: Final = "bf16"
# Formats without blocks: how to view the bytes, and the type of weights.
PLAIN: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {"F32": ("<f4", "f32"), "F16": ("<f2", "f32"), "BF16": ("<u2", BF16)}
)


@dataclass(frozen=True, slots=True, eq=False)
class GgufTensor:
    """A tensor of a file: its format by ggml's name, its shape, and its rows of bytes.

    The last axis of ``shape`` is the one along which blocks lie: weights are N x K.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: Array

    @property
    def dtype(self) -> str:
        """The precision of a product by these weights: ``f32:s4x32:f32``."""
        return f"f32:{self._blocks.weights}:f32"

    @property
    def blocks(self) -> Array:
        """The weights as a product packs them, N x (K / block) blocks."""
        n, _ = self._matrix
        return self._blocks.blocks(self._bytes.reshape(n, -1))

    def product(self, rows: int) -> Matmul:
        """Return the product of so many rows of f32 by these weights, transposed."""
        n, k = self._matrix
        return Matmul(rows, k, n, transposed="b", constant="b", dtype=self.dtype, name=self.name)

    @property
    def weights(self) -> str:
        """The type of the weights of a product: of blocks, ``bf16``, or ``f32``, also of f16.

        Raises UnsupportedError for a format that is none of these.
        """
        return self._blocks.weights if self.format in FORMATS else self._plain[1]

    @property
    def array(self) -> Array:
        """These weights: of blocks bytes, N x bytes of a row, of bf16 its bits, else f32."""
        if self.format in FORMATS:
            n, _ = self._matrix
            return self.blocks.view(np.uint8).reshape(n, -1)
        kind, weights = self._plain
        own = self._bytes.view(kind).reshape(self.shape)
        return own.copy() if weights == BF16 else own.astype(np.float32)

    def values(self) -> Array:
        """Return the elements of a tensor without blocks as f32."""
        if self.format in FORMATS:
            raise self._refusal([*PLAIN])
        return from_bf16(self.array) if self.weights == BF16 else self.array

    @property
    def _bytes(self) -> Array:
        return np.ascontiguousarray(self.data).view(np.uint8).reshape(-1)

    @property
    def _blocks(self) -> BlockFormat:
        if self.format not in FORMATS:
            raise self._refusal([*FORMATS])
        return FORMATS[self.format]

    @property
    def _plain(self) -> tuple[str, str]:
        if self.format not in PLAIN:
            raise self._refusal([*PLAIN, *FORMATS])
        kind, weights = PLAIN[self.format]
        self._check(prod(self.shape) * np.dtype(kind).itemsize)
        return kind, weights

    def _refusal(self, known: list[str]) -> UnsupportedError:
        return UnsupportedError(
            f"tensor {self.name!r:.200}: {self.format} is none of {', '.join(known)}"
        )

    @property
    def _matrix(self) -> tuple[int, int]:
        row = self._blocks
        if len(self.shape) != 2 or not all(self.shape) or self.shape[1] % row.numbers:
            raise UnsupportedError(
                f"tensor {self.name!r:.200}: shape {self.shape}: expected N x K, K a multiple of "
                f"{row.numbers}"
            )
        self._check(prod(self.shape) // row.numbers * row.bytes)
        return self.shape[0], self.shape[1]

    def _check(self, size: int) -> None:
        if self.data.nbytes != size:
            raise SpecError(f"tensor {self.name!r:.200}: {self.data.nbytes} bytes, expected {size}")


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """A file: its tensors by name, and its metadata but for long lists, as those of tokens.

    ``made`` holds arrays that were made of tensors, as long as somebody uses them: graphs of
    several sizes share them.
    """

    path: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    made: WeakValueDictionary[object, Array] = field(default_factory=WeakValueDictionary)


def read_gguf(path: str | PathLike[str]) -> dict[str, GgufTensor]:
    """Return the tensors of a file, by name; their bytes stay in the file until they are read.

    Raises SpecError for a file that is no GGUF file, or ends too early.
    """
    return dict(open_gguf(path).tensors)


def open_gguf(path: str | PathLike[str]) -> GgufFile:
    """Return a file; the same object as long as the last one that was opened did not change.

    Raises as ``read_gguf`` does.
    """
    try:
        status = Path(path).stat()
    except OSError as error:
        raise SpecError(f"{str(path)!r:.200}: cannot be read: {error.strerror}") from None
    return _open(str(Path(path).resolve()), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1)
def _open(path: str, changed: int, size: int) -> GgufFile:
    try:
        data = np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)
        head = read_head(data)
    except FormatError as error:
        raise SpecError(f"{path!r:.200}: no GGUF file, or a part of one: {error}") from None
    except OSError as error:
        raise SpecError(f"{path!r:.200}: cannot be read: {error.strerror}") from None
    tensors = {
        name: GgufTensor(name, entry.format, entry.shape, _data_of(data, entry))
        for name, entry in head.tensors.items()
    }
    return GgufFile(path, head.metadata, tensors)


def _data_of(data: Array, entry: TensorEntry) -> Array:
    """Return the bytes of a tensor; of one in a format that nothing here reads none."""
    size = 0
    if entry.format in FORMATS:
        row = FORMATS[entry.format]
        size = prod(entry.shape) // row.numbers * row.bytes
    elif entry.format in PLAIN:
        size = prod(entry.shape) * np.dtype(PLAIN[entry.format][0]).itemsize
    return data[entry.first : entry.first + size]
