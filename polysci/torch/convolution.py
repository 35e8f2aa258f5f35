"""Convolutions over one, two and three axes and both their gradients, as PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from polysci.errors import SpecError
from polysci.ops import convolution_gradients as gradients
from polysci.ops.convolution_gradients import BackwardData, BackwardWeights
from polysci.ops.convolutions import Conv1d, Conv2d, Conv3d, Convolution
from polysci.ops.problem import Problem
from polysci.torch import settings
from polysci.torch.images import is_stored, layout_of, new_images, store, strides_in
from polysci.torch.kernels import Calls, Kernel, check_operands, compile_kernel, precision
from polysci.torch.library import compose, is_direct, register
from polysci.torch.packed_weights import CallResult, find_call, keep_call, new_strided

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


_WORDS: Final = "int[] stride, int[] padding, int[] dilation, int groups"


@dataclass(frozen=True, slots=True, eq=False)
class ImageOperator:
    """One operator: (a, b, bias, stride, padding, dilation, groups[, extents]) -> result.

    A ``direction`` is an operator of a family; extents are those of the result, where a gradient
    has to be told.
    """

    family: ConvolutionSet
    direction: str

    @property
    def name(self) -> str:
        return self.family.name + _DIRECTIONS[self.direction].suffix

    def __call__(self, a: Tensor, b: Tensor, bias: Tensor | None, *words: Any) -> Tensor:
        """Compute on any device; past the dispatcher where that has nothing to do."""
        if not is_dynamo_compiling() and is_direct(a, b, bias):
            key = self, a.shape, a.stride(), a.dtype, words, settings.key()
            call = find_call(b, key)
            return self.run(a, b, bias, key, words) if call is None else call(a, bias)
        spread = map(self.family.spread, ("stride", "padding", "dilation"), words)
        arguments = (*spread, *words[3:])
        return getattr(torch.ops.polysci, self.name).default(a, b, bias, *arguments)

    def run(self, a: Tensor, b: Tensor, bias: Tensor | None, key: Any, words: Any) -> Tensor:
        """Compute on the CPU, without the dispatcher; ``key`` decides all but b."""
        whole = key, b.shape, b.stride(), b.dtype, b.device
        call = _calls.get(whole)
        if call is None:
            plan = _DIRECTIONS[self.direction].plan
            call = _calls.add(whole, lambda: plan(self.family, a, b, *words))
        return call(a, b, bias, key)

    def declare(self) -> None:
        """Tell PyTorch of it."""
        row = _DIRECTIONS[self.direction]

        def kernel(a: Tensor, b: Tensor, bias: Tensor | None, *words: Any) -> Tensor:
            words = tuple(map(hashable, words))
            key = self, a.shape, a.stride(), a.dtype, words, settings.key()
            call = find_call(b, key)
            return self.run(a, b, bias, key, words) if call is None else call(a, bias)

        def fake(a: Tensor, b: Tensor, bias: Tensor | None, *words: Any) -> Tensor:
            check_operands(self.name, a, weight=b)
            return row.fake(a, b, *words)

        def setup(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs[:2])
            ctx.words = tuple(map(hashable, inputs[3:7]))

        def backward(context: Any, dy: Tensor) -> tuple[Any, ...]:
            (a, b), wants = context.saved_tensors, context.needs_input_grad
            da, db = (
                gradient(self.family, a, b, dy, context.words) if wanted else None
                for gradient, wanted in zip(row.gradients, wants, strict=False)
            )
            dbias = dy.sum((0, *range(2, dy.dim()))) if wants[2] else None
            return da, db, dbias, *[None] * (4 + bool(row.suffix))

        extents = ", SymInt[] size" if row.suffix else ""
        schema = f"{self.name}(Tensor input, Tensor weight, Tensor? bias, {_WORDS}{extents})"
        register(f"{schema} -> Tensor", kernel, fake, setup, backward)


def hashable(word: Any) -> Any:
    """A number, or a list of them, as a part of keys. Raises TypeError for anything else."""
    if isinstance(word, int | tuple):
        return word
    if not isinstance(word, list):
        raise TypeError(
            "stride, padding, output_padding, dilation: expected a whole number or a list of them, "
            f"got {word!r:.40}"
        )
    return tuple(word)


def _extents(x: Tensor, w: Tensor, *words: Any) -> tuple[Any, ...]:
    """Return the extents of a convolution's result, axis by axis."""
    rows = zip(x.shape[2:], w.shape[2:], *words, strict=True)
    return tuple(
        (size + 2 * pad - apart * (taps - 1) - 1) // step + 1
        for size, taps, step, pad, apart in rows
    )


def _fake_forward(x: Tensor, w: Tensor, *words: Any) -> Tensor:
    return new_images(x, (x.shape[0], w.shape[0], *_extents(x, w, *words[:3])))


def _fake_input(dy: Tensor, w: Tensor, *words: Any) -> Tensor:
    return new_images(dy, (dy.shape[0], w.shape[1] * words[3], *words[4]))


def _fake_weight(x: Tensor, dy: Tensor, *words: Any) -> Tensor:
    return x.new_empty((dy.shape[1], x.shape[1] // words[3], *words[4]))


def _convolve(family: ConvolutionSet, x: Tensor, w: Tensor, like: Tensor, words: Any) -> Tensor:
    """The convolution, as far as the images ``like`` go."""
    y = OPERATORS[family.axes, "forward"](x, w, None, *words)
    for axis in range(2, y.dim()):
        y = y.narrow(axis, 0, like.shape[axis])
    return y


def _input(family: ConvolutionSet, dy: Tensor, w: Tensor, like: Tensor, words: Any) -> Tensor:
    return OPERATORS[family.axes, "input"](dy, w, None, *words, tuple(like.shape[2:]))


def _weight(family: ConvolutionSet, x: Tensor, dy: Tensor, like: Tensor, words: Any) -> Tensor:
    return OPERATORS[family.axes, "weight"](x, dy, None, *words, tuple(like.shape[2:]))


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """The common part of a family's operators of one kind.

    ``gradients``: of a and of b, from (family, a, b, the result's gradient, words). Each operator
    is linear in a and in b, so these are the family's operators again.
    """

    suffix: str
    plan: Callable[..., Any]
    fake: Callable[..., Tensor]
    gradients: Sequence[Callable[[ConvolutionSet, Tensor, Tensor, Tensor, Any], Tensor]]


_DIRECTIONS: Mapping[str, OperatorKind] = MappingProxyType(
    {
        "forward": OperatorKind(
            "", plan_forward, _fake_forward,
            (lambda f, x, w, dy, words: _input(f, dy, w, x, words),
             lambda f, x, w, dy, words: _weight(f, x, dy, w, words)),
        ),
        "input": OperatorKind(
            "_input", plan_input, _fake_input,
            (lambda f, dy, w, dx, words: _convolve(f, dx, w, dy, words),
             lambda f, dy, w, dx, words: _weight(f, dx, dy, w, words)),
        ),
        "weight": OperatorKind(
            "_weight", plan_weight, _fake_weight,
            (lambda f, x, dy, dw, words: _input(f, dy, dw, x, words),
             lambda f, x, dy, dw, words: _convolve(f, x, dw, dy, words)),
        ),
    }
)  # fmt: skip
_FAMILIES: Final = (
    ConvolutionSet("conv1d", Conv1d, gradients.Conv1dBackwardData,
           gradients.Conv1dBackwardWeights),
    ConvolutionSet("conv2d", Conv2d, gradients.Conv2dBackwardData,
           gradients.Conv2dBackwardWeights),
    ConvolutionSet("conv3d", Conv3d, gradients.Conv3dBackwardData,
           gradients.Conv3dBackwardWeights),
)  # fmt: skip
_calls = Calls()
OPERATORS: Final = {
    (family.axes, direction): ImageOperator(family, direction)
    for family in _FAMILIES
    for direction in _DIRECTIONS
}
for _operator in OPERATORS.values():
    _operator.declare()


def transpose(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: Any, padding: Any, output_padding: Any,
    groups: int, dilation: Any,
) -> Tensor:  # fmt: skip
    """A transposed convolution: the gradient of an input whose extents follow from the words."""
    operator, words = OPERATORS[2, "input"], (stride, padding, output_padding, groups, dilation)
    if is_dynamo_compiling() or not is_direct(x, w, bias):
        return operator(x, w, bias, *_transposed_words(x, w, *words))
    key = "transpose", x.shape, x.stride(), x.dtype, words, settings.key()
    call = find_call(w, key)
    if call is not None:
        result: Tensor = call(x, bias)
        return result
    return operator.run(x, w, bias, key, _transposed_words(x, w, *words))


def _transposed_words(
    x: Tensor, w: Tensor, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
) -> tuple[Any, ...]:
    """Return the arguments of an input's gradient. Raises TypeError or ValueError."""
    spread = OPERATORS[2, "input"].family.spread
    words = {"stride": stride, "padding": padding, "dilation": dilation}
    step, pad, apart = (spread(*word) for word in words.items())
    more = spread("output_padding", output_padding)
    for extra, limit in zip(more, map(max, step, apart), strict=True):
        if not 0 <= extra < limit:
            raise ValueError(
                f"conv_transpose2d: output_padding: expected 0 to {limit - 1}, below stride or "
                f"dilation, got {extra}"
            )
    rows = zip(x.shape[2:], w.shape[2:], step, pad, apart, more, strict=False)
    size = tuple((at - 1) * s - 2 * p + d * (r - 1) + extra + 1 for at, r, s, p, d, extra in rows)
    return step, pad, apart, groups, size


compose(
    "conv_transpose2d(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
    "int[] output_padding, int groups, int[] dilation) -> Tensor",
    lambda x, w, bias, *words: transpose(x, w, bias, *map(hashable, words)),
)
