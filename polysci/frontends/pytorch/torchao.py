"""Weights that torchao quantised: whole numbers in groups, with scales and zero points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
_DIGITS: Final = 6  # numbers of 4 bits that f32 holds exactly


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
    numbers = _unpack(packed, parameters.shape[1], graph.shape(x)[1], qGroupSize)
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


def _unpack(packed: Array, columns: int, k: int, group: int) -> Array:
    """Return numbers of 4 bits (N, K), by products with powers of 16, whose sums are exact.

    How they are packed depends on the CPU, and is known to the operator alone.
    """
    torch = import_module("torch")
    places = torch.arange(k)
    rows = torch.zeros(-(-k // _DIGITS), k)
    rows[places // _DIGITS, places] = 16.0 ** (places % _DIGITS)
    unit = torch.tensor([1.0, _MIDDLE]).repeat(k // group, columns, 1)
    operator = getattr(torch.ops.aten, INT4_PRODUCT)
    sums = operator(rows, torch.from_numpy(packed), group, unit).numpy().astype(np.int64)
    own = np.arange(k)
    numbers = sums[own // _DIGITS] >> (4 * (own % _DIGITS))[:, None] & 15
    return np.ascontiguousarray(numbers.T.astype(np.uint8))


# What makes constants of numbers -> the numbers, of the call's arguments; None where of no use.
NUMBERS: Mapping[str, Any] = MappingProxyType(
    {DEQUANTISE: grouped_numbers, "_to_copy": cast_numbers, "to": cast_numbers}
)
RULES: AtenRules = MappingProxyType(
    {DEQUANTISE: dequantise, INT4_PRODUCT: int4_product, "_int_mm": integer_product}
)
