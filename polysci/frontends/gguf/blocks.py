"""The block formats of GGUF files, whose numbers move into blocks of ours without becoming f32.

They are those of ggml (ggml-quants.h): 32 numbers with a scale of f16, or 256 of which each 16 or
32 have a scale of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from polysci.numerics.arrays import Array
from polysci.numerics.blocks import make_blocks
from polysci.numerics.dtypes import BLOCK_TYPES, DType

GROUP: Final = 32  # numbers of a scale; in Q2_K, Q3_K and Q6_K 16
SUPER: Final = 256  # numbers of a block of the formats with K
# The numbers of IQ4_NL and IQ4_XS by what 4 bits hold: kvalues_iq4nl of ggml-common.h.
LEVELS: Final = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8
)
CHUNK: Final = 1 << 24  # numbers that are decoded at a time


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format of blocks: numbers and bytes of one, the type of weights, and how to decode it."""

    numbers: int
    bytes: int
    weights: str
    decode: Callable[[Array, DType], Array]

    def blocks(self, rows: Array) -> Array:
        """Return rows of bytes (N, ...) as blocks of the type of weights, N x (K / its block)."""
        kind = BLOCK_TYPES[self.weights]
        parts = rows.reshape(len(rows), -1, self.bytes)
        count = parts.shape[1] * self.numbers // kind.block
        blocks, step = np.empty((len(rows), count), kind.numpy), max(1, CHUNK // (count * GROUP))
        for first in range(0, len(rows), step):
            part = parts[first : first + step]
            blocks[first : first + step] = self.decode(part, kind).reshape(len(part), -1)
        return blocks


def _halves(parts: Array, first: int) -> Array:
    """Return two bytes of each block as a number of f16, in f32, with an axis of one element."""
    two = np.ascontiguousarray(parts[..., first : first + 2])
    return two.view(np.float16).astype(np.float32)


def _nibbles(packed: Array) -> Array:
    """Return numbers of 4 bits: the low halves of all bytes of a group, then the high ones."""
    return np.concatenate((packed & 15, packed >> 4), -1)


def _fifth_bits(packed: Array) -> Array:
    """Return 16 for each bit that is set, else 0, of 32 numbers in order."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=-1, bitorder="little") << 4


def _shifted(kind: DType, numbers: Array, scale: Array, offset: Array) -> Array:
    """Return blocks of ``number * scale - offset``: the zero point is the ratio of both.

    Where a scale is 0 all numbers are -offset.
    """
    empty = scale == 0
    numbers = np.where(empty[..., None], 0, numbers)
    zero = np.where(empty, 1, offset / np.where(empty, 1, scale)).astype(np.float32)
    return make_blocks(kind.numpy, numbers, np.where(empty, offset, scale), zero)


def _decode_q4_0(parts: Array, kind: DType) -> Array:
    """Decode (scale: f16, 16 bytes): ``(number - 8) * scale``."""
    numbers = _nibbles(parts[..., 2:]).astype(np.int8) - np.int8(8)
    return make_blocks(kind.numpy, numbers, _halves(parts, 0)[..., 0])


def _decode_q4_1(parts: Array, kind: DType) -> Array:
    """Decode (scale: f16, least: f16, 16 bytes): ``number * scale + least``."""
    scale, least = (_halves(parts, at)[..., 0] for at in (0, 2))
    return _shifted(kind, _nibbles(parts[..., 4:]), scale, -least)


def _decode_q5_0(parts: Array, kind: DType) -> Array:
    """Decode (scale: f16, 4 bytes of fifth bits, 16 bytes): ``(number - 16) * scale``."""
    numbers = _nibbles(parts[..., 6:]) | _fifth_bits(parts[..., 2:6])
    return make_blocks(kind.numpy, numbers.astype(np.int8) - np.int8(16), _halves(parts, 0)[..., 0])


def _decode_q5_1(parts: Array, kind: DType) -> Array:
    """Decode (scale: f16, least: f16, 4 bytes of fifth bits, 16 bytes)."""
    numbers = _nibbles(parts[..., 8:]) | _fifth_bits(parts[..., 4:8])
    scale, least = (_halves(parts, at)[..., 0] for at in (0, 2))
    return _shifted(kind, numbers, scale, -least)


def _decode_q8_0(parts: Array, kind: DType) -> Array:
    """Decode (scale: f16, 32 bytes): ``number * scale``."""
    numbers = np.ascontiguousarray(parts[..., 2:]).view(np.int8)
    return make_blocks(kind.numpy, numbers, _halves(parts, 0)[..., 0])


def _decode_q4_k(parts: Array, kind: DType) -> Array:
    """Decode (d: f16, m: f16, 12 bytes of scales and minima, 128 bytes).

    Its values are ``number * d * scale - m * minimum``.
    """
    scale, minimum = _six_bits(parts[..., 4:16])
    numbers = _nibbles(parts[..., -128:].reshape(*parts.shape[:2], 4, GROUP))
    grouped = numbers.reshape(*scale.shape, GROUP)
    return _shifted(kind, grouped, scale * _halves(parts, 0), minimum * _halves(parts, 2))


def _decode_q5_k(parts: Array, kind: DType) -> Array:
    """Decode Q4_K with 32 bytes of fifth bits before the others: a bit for each group."""
    scale, minimum = _six_bits(parts[..., 4:16])
    numbers = _nibbles(parts[..., -128:].reshape(*parts.shape[:2], 4, GROUP))
    groups = np.arange(SUPER // GROUP, dtype=np.uint8)[:, None]
    fifth = (parts[..., None, 16:48] >> groups & 1) << 4
    grouped = numbers.reshape(*scale.shape, GROUP) | fifth
    return _shifted(kind, grouped, scale * _halves(parts, 0), minimum * _halves(parts, 2))


def _decode_q6_k(parts: Array, kind: DType) -> Array:
    """Decode (128 bytes of low bits, 64 of high ones, 16 scales of 8 bits, d: f16).

    Its values are ``(number - 32) * d * scale``, and a scale times d is exact in f32.
    """
    shape = parts.shape[:2]
    low = _nibbles(parts[..., :128].reshape(*shape, 2, 64))
    packed = parts[..., 128:192].reshape(*shape, 2, 32)
    high = np.concatenate([packed >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    numbers = (low | high << 4).astype(np.int8) - np.int8(32)
    scale = np.ascontiguousarray(parts[..., 192:208]).view(np.int8) * _halves(parts, 208)
    return make_blocks(kind.numpy, numbers, scale)


def _decode_q3_k(parts: Array, kind: DType) -> Array:
    """Decode (32 bytes of third bits, 64 of low ones, 12 of scales, d: f16).

    Its values are ``(number - 4) * d * (scale - 32)``, a scale for each 16.
    """
    low, third = _pairs_of_bits(parts[..., 32:96]), np.arange(8, dtype=np.uint8)[:, None]
    high = (parts[..., None, :32] >> third & 1) << 2
    numbers = (low | high.reshape(low.shape)).astype(np.int8) - np.int8(4)
    first, second, last = (parts[..., at : at + 4] for at in (96, 100, 104))
    nibbles = np.concatenate((first & 15, second & 15, first >> 4, second >> 4), -1)
    above = np.concatenate([last >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    scale = (nibbles | above << 4).astype(np.int8) - np.int8(32)
    return make_blocks(kind.numpy, numbers, scale * _halves(parts, 108))


def _decode_q2_k(parts: Array, kind: DType) -> Array:
    """Decode (16 bytes of scales and minima of 4 bits, 64 bytes, d: f16, m: f16)."""
    numbers = _pairs_of_bits(parts[..., 16:80])
    scale, minimum = parts[..., :16] & 15, parts[..., :16] >> 4
    grouped = numbers.reshape(*scale.shape, -1)
    return _shifted(kind, grouped, scale * _halves(parts, 80), minimum * _halves(parts, 82))


def _pairs_of_bits(packed: Array) -> Array:
    """Return numbers of 2 bits of 64 bytes: of each 32 bytes the lowest of all, then the next."""
    halves = packed.reshape(*packed.shape[:-1], 2, 1, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return (halves >> shifts & 3).reshape(*packed.shape[:-1], SUPER)


def _decode_iq4_nl(parts: Array, kind: DType) -> Array:
    """Decode (scale: f16, 16 bytes): a number is a place of LEVELS."""
    return make_blocks(kind.numpy, LEVELS[_nibbles(parts[..., 2:])], _halves(parts, 0)[..., 0])


def _decode_iq4_xs(parts: Array, kind: DType) -> Array:
    """Decode (d: f16, 2 bytes of high bits of scales, 4 of low ones, 128 bytes).

    Its values are ``level * d * (scale - 32)``, a scale for each 32.
    """
    groups = np.arange(8, dtype=np.uint8)
    low = parts[..., 4 + groups // 2] >> groups % 2 * 4 & 15
    high = parts[..., 2 + groups // 4] >> groups % 4 * 2 & 3
    scale = (low | high << 4).astype(np.int8) - np.int8(32)
    numbers = _nibbles(parts[..., 8:].reshape(*parts.shape[:2], 8, 16))
    return make_blocks(kind.numpy, LEVELS[numbers], scale * _halves(parts, 0))


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
        "Q4_1": BlockFormat(GROUP, 20, "u4x32", _decode_q4_1),
        "Q5_0": BlockFormat(GROUP, 22, "s8x32", _decode_q5_0),
        "Q5_1": BlockFormat(GROUP, 24, "u8x32", _decode_q5_1),
        "Q8_0": BlockFormat(GROUP, 34, "s8x32", _decode_q8_0),
        "Q2_K": BlockFormat(SUPER, 84, "u4x16", _decode_q2_k),
        "Q3_K": BlockFormat(SUPER, 110, "s4x16", _decode_q3_k),
        "Q4_K": BlockFormat(SUPER, 144, "u4x32", _decode_q4_k),
        "Q5_K": BlockFormat(SUPER, 176, "u8x32", _decode_q5_k),
        "Q6_K": BlockFormat(SUPER, 210, "s8x16", _decode_q6_k),
        "IQ4_NL": BlockFormat(GROUP, 18, "s8x32", _decode_iq4_nl),
        "IQ4_XS": BlockFormat(SUPER, 136, "s8x32", _decode_iq4_xs),
    }
)
