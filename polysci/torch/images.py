"""Images in memory: which of both layouts a tensor has, and results in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def layout_of(x: Tensor) -> str:
    """Channels first (nchw) or last (nhwc): that of the tensor, or the nearest."""
    if is_stored(x, "nchw"):
        return "nchw"
    last = is_stored(x, "nhwc") or (x.shape[1] > 1 and x.stride(1) == 1)
    return "nhwc" if last else "nchw"


def is_stored(x: Tensor, layout: str) -> bool:
    """Whether the tensor lies in this layout without gaps."""
    return bool((x if layout == "nchw" else x.movedim(1, -1)).is_contiguous())


def store(x: Tensor, layout: str) -> Tensor:
    """The tensor in a layout: itself, or a copy."""
    if layout == "nchw":
        return x.resolve_neg().contiguous()
    return x.resolve_neg().movedim(1, -1).contiguous().movedim(-1, 1)


def strides_in(layout: str, shape: Sequence[Any]) -> tuple[Any, ...]:
    """Return the strides in elements, of (N, C, sizes)."""
    order = [*range(len(shape))] if layout == "nchw" else [0, *range(2, len(shape)), 1]
    strides, step = [1] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * shape[axis]
    return tuple(strides)


def new_images(x: Tensor, shape: Sequence[Any]) -> Tensor:
    """Return images in the layout of x, of its type, on its device, with undefined elements."""
    strides = strides_in(layout_of(x), shape)
    return torch.empty_strided(tuple(shape), strides, dtype=x.dtype, device=x.device)
