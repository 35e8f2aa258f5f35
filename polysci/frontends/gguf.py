"""Tensors of GGUF files, whose blocks become weights of products without being unpacked to f32.

The block formats are those of ggml (ggml-quants.h): Q4_0 and Q8_0, 32 signed numbers with a scale
of f16, and Q4_K, 256 unsigned ones of 4 bits, of which each 32 have a scale and a minimum of 6
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from os import PathLike
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from polysci.errors import SpecError, UnsupportedError
from polysci.numerics.arrays import Array
from polysci.numerics.blocks import make_blocks
from polysci.numerics.dtypes import BLOCK_TYPES
from polysci.ops.matmul import Matmul

INSTALL: Final = "pip install 'polysci[gguf]'"
GROUP: Final = 32  # numbers of a scale, in all formats here
SUPER: Final = 256  # numbers of a block of Q4_K


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format of blocks: numbers and bytes of one, the type of weights, and how to decode it."""

    numbers: int
    bytes: int
    weights: str
    decode: Callable[[Array], Array]


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
        """The weights as a product packs them, N x (K / 32) blocks."""
        n, _ = self._matrix
        return self._blocks.decode(np.ascontiguousarray(self.data).view(np.uint8).reshape(n, -1))

    def product(self, rows: int) -> Matmul:
        """Return the product of so many rows of f32 by these weights, transposed."""
        n, k = self._matrix
        return Matmul(rows, k, n, transposed="b", constant="b", dtype=self.dtype, name=self.name)

    @property
    def _blocks(self) -> BlockFormat:
        if self.format not in FORMATS:
            raise UnsupportedError(
                f"tensor {self.name!r:.200}: {self.format} is none of {', '.join(FORMATS)}"
            )
        return FORMATS[self.format]

    @property
    def _matrix(self) -> tuple[int, int]:
        row = self._blocks
        if len(self.shape) != 2 or self.shape[1] % row.numbers:
            raise UnsupportedError(
                f"tensor {self.name!r:.200}: shape {self.shape}: expected N x K, K a multiple of "
                f"{row.numbers}"
            )
        size = prod(self.shape) // row.numbers * row.bytes
        if self.data.nbytes != size:
            raise SpecError(f"tensor {self.name!r:.200}: {self.data.nbytes} bytes, expected {size}")
        return self.shape[0], self.shape[1]


def read_gguf(path: str | PathLike[str]) -> dict[str, GgufTensor]:
    """Return the tensors of a file, by name; their bytes stay in the file until they are read.

    Raises SpecError for a file that is no GGUF file, UnsupportedError without the package gguf.
    """
    try:
        import gguf
    except ImportError as error:
        raise UnsupportedError(f"reading GGUF files needs gguf ({error}): {INSTALL}") from None
    try:
        reader: Any = gguf.GGUFReader(path)
    except Exception as error:  # of NumPy and the package, for whatever the bytes say
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise SpecError(f"{str(path)!r:.200}: no GGUF file, or a part of one: {reason}") from None
    return {
        part.name: GgufTensor(
            str(part.name),
            part.tensor_type.name,
            tuple(int(n) for n in part.shape[::-1]),
            part.data,
        )
        for part in reader.tensors
    }


def _halves(rows: Array, first: int, last: int) -> Array:
    """Return bytes of blocks as numbers of f16, in f32."""
    return np.ascontiguousarray(rows[..., first:last]).view(np.float16).astype(np.float32)


def _nibbles(packed: Array) -> Array:
    """Return numbers of 4 bits: the low halves of all bytes of a group, then the high ones."""
    return np.concatenate((packed & 15, packed >> 4), -1)


def _decode_q4_0(rows: Array) -> Array:
    """Decode (scale: f16, 16 bytes): ``(number - 8) * scale``."""
    parts = rows.reshape(len(rows), -1, 18)
    numbers = _nibbles(parts[..., 2:]).astype(np.int16) - 8
    return make_blocks(BLOCK_TYPES["s4x32"].numpy, numbers, _halves(parts, 0, 2)[..., 0])


def _decode_q8_0(rows: Array) -> Array:
    """Decode (scale: f16, 32 bytes): ``number * scale``."""
    parts = rows.reshape(len(rows), -1, 34)
    numbers = np.ascontiguousarray(parts[..., 2:]).view(np.int8)
    return make_blocks(BLOCK_TYPES["s8x32"].numpy, numbers, _halves(parts, 0, 2)[..., 0])


def _decode_q4_k(rows: Array) -> Array:
    """Decode (d: f16, m: f16, 12 bytes of scales and minima, 128 bytes).

    ``number * d * scale - m * minimum``: the zero point is the ratio of both. Where a scale is 0
    all numbers are -m * minimum.
    """
    parts = rows.reshape(len(rows), -1, 144)
    scale, minimum = _six_bits(parts[..., 4:16])
    scale = scale * _halves(parts, 0, 2)
    offset = minimum * _halves(parts, 2, 4)
    packed = parts[..., 16:].reshape(*parts.shape[:2], 4, 32)
    numbers = _nibbles(packed).reshape(*parts.shape[:2], 8, GROUP)
    empty = scale == 0
    numbers = np.where(empty[..., None], 0, numbers)
    scale = np.where(empty, offset, scale)
    zero = np.where(empty, 1, offset / np.where(scale == 0, 1, scale)).astype(np.float32)
    flat = (len(rows), -1)
    return make_blocks(
        BLOCK_TYPES["u4x32"].numpy, numbers.reshape(flat), scale.reshape(flat), zero.reshape(flat)
    )


def _six_bits(packed: Array) -> tuple[Array, Array]:
    """Return eight scales and eight minima of 6 bits from 12 bytes.

    The first four of each are the low 6 bits of bytes 0 to 3 and 4 to 7; of the others bytes 8 to
    11 hold the low 4 bits, and the top 2 bits of the bytes before them the rest.
    """
    low, middle, high = (packed[..., at : at + 4] for at in (0, 4, 8))
    scale = np.concatenate((low & 63, high & 15 | low >> 6 << 4), -1)
    minimum = np.concatenate((middle & 63, high >> 4 | middle >> 6 << 4), -1)
    return scale.astype(np.float32), minimum.astype(np.float32)


FORMATS: Final[Mapping[str, BlockFormat]] = MappingProxyType(
    {
        "Q4_0": BlockFormat(GROUP, 18, "s4x32", _decode_q4_0),
        "Q8_0": BlockFormat(GROUP, 34, "s8x32", _decode_q8_0),
        "Q4_K": BlockFormat(SUPER, 144, "u4x32", _decode_q4_k),
    }
)
