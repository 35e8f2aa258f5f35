"""Weights of 4 and 8 bits in blocks: numbers with one scale, unsigned ones with a zero point.

An element of such an array, of a type of ``BLOCK_TYPES``, is a block: ``(number - zero) * scale``
are its values. Two numbers of 4 bits share a byte, the first one in its low half.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Block = np.dtype[Any]  # a structure: scale, perhaps zero, and numbers, or nibbles
LEAST_ROUNDED = 2.0**-100  # of a block of inputs, that kernels round
WIDEST = 127 * (2**16 + 2**8 + 1)  # steps that three bytes of a number hold


def block_dtype(bits: int, block: int, *, signed: bool) -> Block:
    """Return the structure of a block of so many numbers; unsigned ones have a zero point."""
    fields: list[Any] = [(head, "<f4") for head in (("scale",) if signed else ("scale", "zero"))]
    kind = ("nibbles", "u1") if bits == 4 else ("numbers", "i1" if signed else "u1")
    return np.dtype([*fields, (*kind, (block * bits // 8,))])


def _names(dtype: Block) -> tuple[str, ...]:
    return dtype.names or ()


def make_blocks(dtype: Block, numbers: Array, scale: Array, zero: Array | None = None) -> Array:
    """Return blocks of whole numbers (..., K), with a scale (..., K / block) each.

    ``zero`` is shaped like ``scale``; signed numbers have none. Numbers must fit the type.
    """
    blocks = np.empty(scale.shape, dtype)
    blocks["scale"] = scale
    if zero is not None:
        blocks["zero"] = zero
    grouped = numbers.reshape(*scale.shape, -1)
    if "nibbles" in _names(dtype):
        low, high = (grouped[..., at::2].astype(np.uint8) & 15 for at in (0, 1))
        blocks["nibbles"] = low | high << 4
    else:
        blocks["numbers"] = grouped
    return blocks


def blocks_of_bytes(dtype: Block, numbers: Array, scale: Array, zero: Array | None) -> Array:
    """Return blocks of unsigned numbers (..., bytes), as they lie in memory.

    Without zeros these are the middle of their range: numbers become signed.
    """
    blocks = np.empty(scale.shape, dtype)
    blocks["scale"] = scale
    if zero is not None:
        blocks["zero"] = zero
    name = _names(dtype)[-1]
    flip = 0 if zero is not None else 0x88 if name == "nibbles" else 0x80
    blocks[name] = (numbers ^ np.uint8(flip)).view(blocks[name].dtype)
    return blocks


def decode_blocks(blocks: Array) -> NDArray[np.float64]:
    """Return the values of blocks (..., count), exact: (..., count * block)."""
    names = _names(blocks.dtype)
    if "nibbles" in names:
        bytes_ = blocks["nibbles"]
        numbers = np.stack((bytes_ & 15, bytes_ >> 4), -1).reshape(*bytes_.shape[:-1], -1)
        numbers = numbers.astype(np.float64)
        if "zero" not in names:
            numbers -= 16 * (numbers > 7)
    else:
        numbers = blocks["numbers"].astype(np.float64)
    if "zero" in names:
        numbers -= blocks["zero"][..., None].astype(np.float64)
    numbers *= blocks["scale"][..., None]
    return numbers.reshape(*blocks.shape[:-1], -1)


def round_blocks(x: Array, block: int, count: int = 1) -> NDArray[np.float64]:
    """Return the values of f32 numbers (..., K) that are rounded to bytes by blocks along K.

    By one byte a number the largest of a block becomes 127 or -127 steps. By three (``count``) a
    step is a power of two, and the largest has ``WIDEST`` steps or up to a half less. Blocks below
    2^-100 become 0.
    """
    grouped = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, block)
    most = abs(grouped).max(-1, keepdims=True)
    if count == 3:
        return _round_wide(grouped.astype(np.float64), most).reshape(x.shape)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.where(most > np.float32(LEAST_ROUNDED), np.float32(127) / most, np.float32(0))
        numbers = np.rint(grouped * inverse).astype(np.float64)
    values: NDArray[np.float64] = (numbers * (most * np.float32(1 / 127))).reshape(x.shape)
    return values


def largest_of_blocks(x: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    """Return the largest size in each block of numbers (..., K), in place of all of its numbers."""
    most: NDArray[np.float64] = abs(x.reshape(*x.shape[:-1], -1, block)).max(-1)
    return np.repeat(most, block, axis=-1)


def _round_wide(grouped: Array, most: Array) -> NDArray[np.float64]:
    """Return blocks (..., block) in steps by which their largest numbers reach 23 bits."""
    share, exponent = np.frexp(most.astype(np.float64))
    exponent += 2**23 * share > WIDEST
    with np.errstate(invalid="ignore", over="ignore"):
        step = np.where(most < LEAST_ROUNDED, 0, np.ldexp(1.0, exponent - 23))
        inverse = np.divide(1, step, out=np.zeros_like(step), where=step != 0)
        values: NDArray[np.float64] = np.rint(grouped * inverse) * step
    return np.where(np.isfinite(most), values, np.nan)


def encode_blocks(values: Array, dtype: Block) -> Array:
    """Return the blocks nearest to values (..., K), whose scales are powers of two.

    Integers that the numbers of a type can hold are exact.
    """
    names = _names(dtype)
    bits, signed = 4 if "nibbles" in names else 8, "zero" not in names
    block = dtype[names[-1]].shape[0] * 8 // bits
    grouped = np.asarray(values, np.float64).reshape(*values.shape[:-1], -1, block)
    high, low = np.maximum(grouped.max(-1), 0), np.minimum(grouped.min(-1), 0)
    most = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    reach = (np.maximum(high, -low) if signed else high - low) / most
    scale = 2.0 ** np.ceil(np.log2(np.maximum(reach, 2.0**-100)))
    zero = None if signed else np.minimum(np.rint(-low / scale), most)
    numbers = np.rint(grouped / scale[..., None]) + (0 if zero is None else zero[..., None])
    numbers = np.clip(numbers, -most - 1 if signed else 0, most)
    return make_blocks(dtype, numbers.astype(np.int64), scale, zero)
