"""Convolutions with the arguments of torch.nn.functional."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polysci.torch.convolution import OPERATORS, ImageOperator, hashable, transpose
from polysci.torch.library import check_tensors

_CONV1D, _CONV2D, _CONV3D = (OPERATORS[axes, "forward"] for axes in (1, 2, 3))


def conv1d(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """``torch.nn.functional.conv1d``; as ``conv2d``, along one axis."""
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)):
        check_tensors("conv1d", {"input": input, "weight": weight})
    if input.dim() == 3 and type(padding) is int and type(stride) is int is type(dilation):
        return _CONV1D(input, weight, bias, stride, padding, dilation, groups)
    return _convolve(_CONV1D, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """``torch.nn.functional.conv2d``, with gradients.

    Of float32, bfloat16 or float16, summed in float32. Contiguous and channels_last inputs are read
    as they lie and give results in the same format; others are copied to the nearer of both.
    Weights are packed once and again after they change. The first call of a shape searches and
    compiles, as ``polysci.torch.options`` says. Raises UnsupportedError for other element types,
    TypeError or ValueError for arguments that do not fit each other.
    """
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)):
        check_tensors("conv2d", {"input": input, "weight": weight})
    if input.dim() == 4 and type(padding) is int and type(stride) is int is type(dilation):
        return _CONV2D(input, weight, bias, stride, padding, dilation, groups)
    return _convolve(_CONV2D, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """``torch.nn.functional.conv3d``; as ``conv2d``, along three axes."""
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)):
        check_tensors("conv3d", {"input": input, "weight": weight})
    if input.dim() == 5 and type(padding) is int and type(stride) is int is type(dilation):
        return _CONV3D(input, weight, bias, stride, padding, dilation, groups)
    return _convolve(_CONV3D, input, weight, bias, stride, padding, dilation, groups)


def conv_transpose2d(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """``torch.nn.functional.conv_transpose2d``; all else as ``conv2d``."""
    check_tensors("conv_transpose2d", {"input": input, "weight": weight})
    stride, padding = hashable(stride), hashable(padding)
    output_padding, dilation = hashable(output_padding), hashable(dilation)
    if input.dim() == 3:
        image = input.unsqueeze(0)
        y = transpose(image, weight, bias, stride, padding, output_padding, groups, dilation)
        return y.squeeze(0)
    return transpose(input, weight, bias, stride, padding, output_padding, groups, dilation)


def _convolve(
    operator: ImageOperator, x: Tensor, w: Tensor, bias: Tensor | None, stride: Any, padding: Any,
    dilation: Any, groups: int,
) -> Tensor:  # fmt: skip
    """Any padding, numbers as lists, and one image without an axis that counts them."""
    axes = operator.family.axes
    if x.dim() == axes + 1:
        y = _convolve(operator, x.unsqueeze(0), w, bias, stride, padding, dilation, groups)
        return y.squeeze(0)
    stride, dilation = hashable(stride), hashable(dilation)
    if isinstance(padding, str):
        x, padding = _pad(operator, x, w, stride, padding, dilation)
    return operator(x, w, bias, stride, hashable(padding), dilation, groups)


def _pad(
    operator: ImageOperator, x: Tensor, w: Tensor, stride: Any, padding: str, dilation: Any
) -> tuple[Tensor, tuple[int, ...]]:
    """The input and the padding on both its sides; what one side has more is copied around it."""
    family = operator.family
    steps, apart = family.spread("stride", stride), family.spread("dilation", dilation)
    if padding not in ("same", "valid"):
        raise ValueError(f"{family.name}: padding: expected 'same' or 'valid', got {padding!r}")
    if padding == "same" and set(steps) != {1}:
        raise ValueError(f"{family.name}: padding 'same' needs stride 1, got {steps}")
    taps = w.shape[2:] if padding == "same" else [1] * family.axes
    total = [d * (count - 1) for d, count in zip(apart, taps, strict=True)]
    if any(more % 2 for more in total):
        behind = [side for more in reversed(total) for side in (0, more % 2)]
        x = torch.nn.functional.pad(x, behind)
    return x, tuple(more // 2 for more in total)
