"""Compiled convolutions, and gradients of them, on tensors of fixed shapes and strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polysci.errors import SpecError
from polysci.ops.backward_data import BackwardData
from polysci.ops.backward_weights import BackwardWeights
from polysci.ops.conv2d.convolution import Convolution
from polysci.ops.problem import Problem
from polysci.torch.images import is_stored, layout_of, store, strides_in
from polysci.torch.kernels import Kernel, check_operands, compile_kernel, precision
from polysci.torch.packed_weights import CallResult, keep_call, new_strided

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ConvolutionSet:
    """The convolutions over some axes, and their gradients."""

    name: str
    problem: type[Convolution]
    data: type[BackwardData]
    weights: type[BackwardWeights]

    @property
    def axes(self) -> int:
        return len(self.problem.FAMILY.axes)

    def spread(self, word: str, value: Any) -> Numbers:
        """A number for each axis. Raises TypeError or ValueError for anything else."""
        numbers = (value,) * self.axes if isinstance(value, int) else tuple(value)
        numbers = numbers * self.axes if len(numbers) == 1 else numbers
        if len(numbers) != self.axes:
            raise ValueError(f"{self.name}: {word}: expected {self.axes} numbers, got {value}")
        return numbers

    def convolution(
        self, images: Sequence[int], filters: Sequence[int], outs: Sequence[int],
        words: Sequence[Any], layout: str, x: Tensor,
    ) -> Convolution:  # fmt: skip
        """Return the convolution of (N, C, sizes) and (K, C/groups, taps); ``outs`` may be empty.

        Raises SpecError or ValueError for a broken rule.
        """
        for what, shape in (("input", images), ("weight", filters)):
            if len(shape) != self.axes + 2:
                raise ValueError(
                    f"{self.name}: {what}: expected {self.axes + 2} axes, got shape {tuple(shape)}"
                )
        fields: dict[str, int] = {"N": images[0], "C": images[1], "K": filters[0]}
        for at, (size, taps, out, _) in enumerate(self.problem.FAMILY.axes):
            fields |= {size: images[2 + at], taps: filters[2 + at]}
            fields |= {out: outs[at]} if outs else {}
        stride, pad, dilation = map(self.spread, ("stride", "padding", "dilation"), words)
        build: Any = self.problem
        try:
            conv: Convolution = build(
                **fields, stride=stride, pad=pad, dilation=dilation, groups=words[3],
                layout=layout, dtype=precision(self.name, x),
            )  # fmt: skip
        except SpecError as error:
            raise SpecError(f"polysci.torch.{error}") from None
        if tuple(filters) != conv.w_shape:
            raise ValueError(
                f"{self.name}: weight: expected shape {conv.w_shape} for images of shape "
                f"{tuple(images)} and groups={conv.groups}, got {tuple(filters)}"
            )
        return conv


@dataclass(frozen=True, slots=True, eq=False)
class ImageCall:
    """A convolution, or the gradient of its input: images from images and filters.

    ``copies``: x lies otherwise than in ``layout``. For no images there is no kernel.
    """

    kernel: Kernel | None
    layout: str
    copies: bool
    shape: Numbers
    dtype: torch.dtype

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None, key: Any) -> Tensor:
        """The result; ``key`` decides all of it but the weights."""
        if self.kernel is None:
            return new_strided(self.shape, strides_in(self.layout, self.shape), self.dtype)
        prepare = partial(store, layout=self.layout) if self.copies else None
        result = self.shape, strides_in(self.layout, self.shape), self.dtype
        return keep_call(self.kernel, w, key, CallResult(prepare, *result, self.shape[1]))(x, bias)


@dataclass(frozen=True, slots=True, eq=False)
class WeightsCall:
    """The gradient of the filters, from both images."""

    kernel: Kernel | None
    layout: str
    shape: Numbers
    dtype: torch.dtype

    def __call__(self, x: Tensor, dy: Tensor, _bias: None, _key: Any) -> Tensor:
        dw = torch.zeros(self.shape, dtype=self.dtype, device="cpu")
        if self.kernel is not None:
            x, dy = (store(images, self.layout) for images in (x, dy))
            self.kernel(x.data_ptr(), dy.data_ptr(), dw.data_ptr())
        return dw


def plan_forward(family: ConvolutionSet, x: Tensor, w: Tensor, *words: Any) -> ImageCall:
    """The convolution of x."""
    check_operands(family.name, x, weight=w)
    layout = layout_of(x)
    conv = family.convolution(x.shape, w.shape, (), words, layout, x)
    return _image_call(conv, conv, x, (conv.N, conv.K, *conv.pixels))


def plan_input(family: ConvolutionSet, dy: Tensor, w: Tensor, *words: Any) -> ImageCall:
    """The gradient of the input, whose extents are the last of the words."""
    check_operands(family.name, dy, weight=w)
    *words_of_conv, size = words
    shape = (dy.shape[0], w.shape[1] * words[3], *size)
    layout = layout_of(dy)
    conv = family.convolution(shape, w.shape, dy.shape[2:], words_of_conv, layout, dy)
    if dy.shape[1] != conv.K:
        raise ValueError(
            f"{family.name}: input: expected {conv.K} channels for weights of shape "
            f"{tuple(w.shape)}, got shape {tuple(dy.shape)}"
        )
    return _image_call(conv, family.data(conv), dy, shape)


def _image_call(conv: Convolution, problem: Problem, x: Tensor, shape: Numbers) -> ImageCall:
    copies = x.numel() < 2 or not is_stored(x, conv.layout)
    kernel = compile_kernel(problem) if conv.N else None
    return ImageCall(kernel, conv.layout, copies, shape, x.dtype)


def plan_weight(family: ConvolutionSet, x: Tensor, dy: Tensor, *words: Any) -> WeightsCall:
    """The gradient of the filters, whose extents are the last of the words."""
    check_operands(family.name, x, gradient=dy)
    *words_of_conv, taps = words
    shape = (dy.shape[1], x.shape[1] // words[3], *taps)
    layout = layout_of(x)
    conv = family.convolution(x.shape, shape, dy.shape[2:], words_of_conv, layout, x)
    kernel = compile_kernel(family.weights(conv)) if conv.N else None
    return WeightsCall(kernel, layout, shape, x.dtype)
