"""Weights that torchao quantised: whole numbers in groups, with scales and zero points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from polysci.frontends.pytorch.call import AtenCall, AtenRules
from polysci.graph.formulas import derive
from polysci.graph.graph import QuantisedConstant
from polysci.numerics.arrays import Array

DEQUANTISE: Final = "torchao::dequantize_affine"
INT4_PRODUCT: Final = "_weight_int4pack_mm_for_cpu"
_MIDDLE: Final = 8  # of the numbers of 4 bits, which stands for the zero of such a product
_ROWS: Final = 64  # of a matrix, that PyTorch packs by themselves, or two or four parts of them


def dequantise(
    call: AtenCall, x: str, block_size: Sequence[int], scale: str, zero_point: str | None = None,
    **_: Any,
) -> str:  # fmt: skip
    """Add ``(x - zero) * scale``, of numbers in boxes that share a scale and a zero."""
    counts = [size // box for size, box in zip(call.shape, block_size, strict=True)]
    wide = [part for pair in zip(counts, block_size, strict=True) for part in pair]
    beside = [part for count in counts for part in (count, 1)]
    graph = call.graph
    own = graph.reshape(call.cast(x), wide)
    factor = graph.reshape(call.cast(scale), beside)
    if zero_point is None:
        value = derive(graph, "x * scale", x=own, scale=factor)
    else:
        zero = graph.reshape(call.cast(zero_point), beside)
        value = derive(graph, "(x - zero) * scale", x=own, scale=factor, zero=zero)
    return call.reshape(value)


def grouped_numbers(
    x: Array, block_size: Sequence[int], scale: Array, zero_point: Array | None = None, **_: Any
) -> QuantisedConstant | None:
    """Return the numbers that are dequantised; None where scales lie along several axes."""
    counts = [size // box for size, box in zip(x.shape, block_size, strict=True)]
    zero = np.zeros(scale.shape, x.dtype) if zero_point is None else zero_point
    scale = scale.astype(np.float32)
    several = [at for at, count in enumerate(counts) if count > 1]
    if not several:
        return QuantisedConstant(x, scale.reshape(-1), zero.reshape(-1))
    if len(several) == 1 and block_size[several[0]] == 1:
        return QuantisedConstant(x, scale.reshape(-1), zero.reshape(-1), several[0])
    shared = [at for at, box in enumerate(block_size) if box > 1]
    if len(shared) != 1:
        return None
    (axis,) = shared
    scale, zero = scale.reshape(counts), zero.reshape(counts)
    return QuantisedConstant(x, scale, zero, axis, block_size[axis])


def cast_numbers(x: Array, **_: Any) -> QuantisedConstant | None:
    """Return the numbers that a cast takes as they are; None of others than 8 bits."""
    if x.dtype not in (np.int8, np.uint8):
        return None
    return QuantisedConstant(x, np.ones(1, np.float32), np.zeros(1, x.dtype))


def int4_product(
    call: AtenCall, x: str, mat2: str, qGroupSize: int, qScaleAndZeros: str,
) -> str:  # fmt: skip
    """Add a product by packed numbers of 4 bits: ``(number - 8) * scale + zero`` of each group."""
    graph = call.graph
    packed, parameters = (graph.constant_value(name) for name in (mat2, qScaleAndZeros))
    if packed is None or parameters is None or call.dtype != "float32":
        call.refuse("weights of 4 bits that are not known ahead, or elements of another type")
    numbers = _unpack(packed, parameters.shape[1], graph.shape(x)[1])
    if numbers is None:
        call.refuse("weights of 4 bits that another CPU packed")
    scale, zero = (np.ascontiguousarray(part.T) for part in np.moveaxis(parameters, -1, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = np.where(scale == 0, 0, zero.astype(np.float64) / scale)
    known = QuantisedConstant(
        numbers, scale, (_MIDDLE - shift).astype(np.float32), 1, qGroupSize
    )  # fmt: skip
    spread = [np.repeat(part, qGroupSize, axis=1) for part in (scale, zero)]
    values = (numbers.astype(np.float32) - _MIDDLE) * spread[0] + spread[1]
    weights = graph.constant(values)
    if not (scale == 0).any():
        graph.dequantised[weights] = known
    return call.add("gemm", x, weights, transpose_b=1)


def integer_product(call: AtenCall, x: str, mat2: str) -> str:
    """Add sums of products of two matrices of 8 bits."""
    return call.add("integer_matmul", x, mat2)


def _unpack(packed: Array, n: int, k: int) -> Array | None:
    """Return numbers of 4 bits (N, K) that PyTorch packed; None where it would pack others so.

    How they lie depends on the CPU, and is known to PyTorch alone: rows by so many, the rest apart.
    """
    rest = n % _ROWS
    numbers = np.concatenate([
        _unpack_rows(packed[: n - rest], _ROWS, k), _unpack_rows(packed[n - rest :], rest, k)
    ])  # fmt: skip
    return numbers if np.array_equal(_pack(numbers), packed) else None


def _unpack_rows(packed: Array, rows: int, k: int) -> Array:
    """Return the numbers of groups of so many rows."""
    if not packed.size:
        return np.empty((0, k), np.uint8)
    return _halves(packed).reshape(-1, rows * k)[:, _order(rows, k)].reshape(-1, k)


@lru_cache(maxsize=16)
def _order(rows: int, k: int) -> Array:
    """Return which half of which byte holds each number of a matrix (rows, K).

    Matrices are packed that hold the digits of each number's place, to the base of 16.
    """
    places = np.arange(rows * k)
    sources = np.zeros(rows * k, np.int64)
    for shift in range(0, (rows * k).bit_length(), 4):
        digits = (places >> shift & 15).astype(np.uint8).reshape(rows, k)
        sources |= _halves(_pack(digits)).astype(np.int64) << shift
    order = np.empty(rows * k, np.int32)
    order[sources] = places
    return order


def _pack(numbers: Array) -> Array:
    torch = import_module("torch")
    whole = torch.from_numpy(numbers.astype(np.int32))
    packed: Array = torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole, 1).numpy()
    return packed


def _halves(packed: Array) -> Array:
    """Return the numbers of 4 bits in bytes, the low half first."""
    flat = packed.reshape(-1)
    return np.stack((flat & 15, flat >> 4), -1).reshape(-1)


# What makes constants of numbers -> the numbers, of the call's arguments; None where of no use.
NUMBERS: Mapping[str, Any] = MappingProxyType(
    {DEQUANTISE: grouped_numbers, "_to_copy": cast_numbers, "to": cast_numbers}
)
RULES: AtenRules = MappingProxyType(
    {DEQUANTISE: dequantise, INT4_PRODUCT: int4_product, "_int_mm": integer_product}
)
