"""A contraction by NumPy: strided views over the affine subscripts, then matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polysci.polyhedral.contraction import Contraction, Dim, Operand

BAND = 1 << 25  # bytes of A laid out for one matrix product


def contract(contraction: Contraction, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """The sums, in the dtype of ``a``: exact for integers as long as it holds every partial sum.

    ``b`` has that dtype too. What ``contraction`` reads outside ``a`` counts as zero.
    """
    batch, rows, columns = (_playing(contraction, role) for role in (("batch",), ("m",), ("n",)))
    depth = _playing(contraction, ("k", "br"))
    y = np.empty(contraction.out.shape, a.dtype)
    left = _view(contraction.a, a, (*batch, *rows, *depth))
    right = _view(contraction.b, b, (*batch, *depth, *columns))
    result = _view(contraction.out, y, (*batch, *rows, *columns))
    weights = right.reshape(*right.shape[: len(batch)], _size(depth), _size(columns))
    _multiply(left, weights, result, len(batch), len(rows))
    return y


def _playing(contraction: Contraction, roles: Sequence[str]) -> tuple[Dim, ...]:
    return tuple(dim for dim in contraction.dims if dim.role in roles)


def _size(dims: Sequence[Dim]) -> int:
    return int(np.prod([dim.extent for dim in dims], dtype=np.int64))


def _view(operand: Operand, array: NDArray[Any], dims: Sequence[Dim]) -> NDArray[Any]:
    """The elements that every point of the box of ``dims`` touches, without a copy of them."""
    extents, lows, pads = {dim.name: dim.extent for dim in dims}, [], []
    for index, size in zip(operand.index, array.shape, strict=True):
        ends = [coef * (extents[name] - 1) for name, coef in index.terms]
        low = index.const + sum(end for end in ends if end < 0)
        high = index.const + sum(end for end in ends if end > 0)
        pads.append((max(0, -low), max(0, high - size + 1)))
        lows.append(index.const)
    padded = np.pad(array, pads) if any(pad != (0, 0) for pad in pads) else array
    first = padded[tuple(slice(at + pad, None) for at, (pad, _) in zip(lows, pads, strict=True))]
    strides = [
        sum(
            index.coef(dim.name) * stride
            for index, stride in zip(operand.index, padded.strides, strict=True)
        )
        for dim in dims
    ]
    return as_strided(first, [dim.extent for dim in dims], strides)


def _multiply(
    left: NDArray[Any], weights: NDArray[Any], result: NDArray[Any], batch: int, rows: int
) -> None:
    """``result = left @ weights``, the longest rows halved until the copy of A is a band."""
    sizes = left.shape[batch : batch + rows]
    longest = batch + int(np.argmax(sizes)) if rows else -1
    if left.size * left.itemsize > BAND and rows and left.shape[longest] > 1:
        half = left.shape[longest] // 2
        for part in (slice(None, half), slice(half, None)):
            at = (*[slice(None)] * longest, part)
            _multiply(left[at], weights, result[at], batch, rows)
        return
    product = np.matmul(left.reshape(*left.shape[:batch], -1, weights.shape[-2]), weights)
    result[...] = product.reshape(result.shape)
