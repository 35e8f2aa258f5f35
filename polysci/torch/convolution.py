"""Convolutions and both their gradients as PyTorch's operators, for its own arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from polysci.errors import SpecError
from polysci.ops.convolution_gradients import GRADIENTS, BackwardData, BackwardWeights
from polysci.ops.convolutions import Convolution
from polysci.ops.problem import Problem
from polysci.torch import settings
from polysci.torch.kernels import (
    CallResult,
    Calls,
    Kernel,
    check_operands,
    compile_kernel,
    find_call,
    is_stored,
    keep_call,
    layout_of,
    new_images,
    new_strided,
    precision,
    store,
    strides_in,
)
from polysci.torch.library import check_tensors, define, is_direct, register

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

    def spread(self, argument: str, value: Any) -> Numbers:
        """Return a number for each axis. Raises TypeError or ValueError for anything else."""
        numbers = (value,) * self.axes if isinstance(value, int) else tuple(value)
        numbers = numbers * self.axes if len(numbers) == 1 else numbers
        if len(numbers) != self.axes:
            raise ValueError(f"{self.name}: {argument}: expected {self.axes} numbers, got {value}")
        return numbers

    def convolution(
        self, images: Sequence[int], filters: Sequence[int], outs: Sequence[int],
        arguments: Sequence[Any], layout: str, x: Tensor,
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
        stride, pad, dilation = map(self.spread, ("stride", "padding", "dilation"), arguments)
        build: Any = self.problem
        try:
            conv: Convolution = build(
                **fields, stride=stride, pad=pad, dilation=dilation, groups=arguments[3],
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
        """Return the result; ``key`` decides all of it but the weights."""
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


def plan_forward(family: ConvolutionSet, x: Tensor, w: Tensor, *arguments: Any) -> ImageCall:
    """Plan the convolution of x."""
    check_operands(family.name, x, weight=w)
    conv = family.convolution(x.shape, w.shape, (), arguments, layout_of(x), x)
    return _image_call(conv, conv, x, (conv.N, conv.K, *conv.pixels))


def plan_input(family: ConvolutionSet, dy: Tensor, w: Tensor, *arguments: Any) -> ImageCall:
    """Plan the gradient of the input, whose extents are the last argument."""
    check_operands(family.name, dy, weight=w)
    *shared, size = arguments
    shape = (dy.shape[0], w.shape[1] * arguments[3], *size)
    conv = family.convolution(shape, w.shape, dy.shape[2:], shared, layout_of(dy), dy)
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


def plan_weight(family: ConvolutionSet, x: Tensor, dy: Tensor, *arguments: Any) -> WeightsCall:
    """Plan the gradient of the filters, whose extents are the last argument."""
    check_operands(family.name, x, gradient=dy)
    *shared, taps = arguments
    shape = (dy.shape[1], x.shape[1] // arguments[3], *taps)
    conv = family.convolution(x.shape, shape, dy.shape[2:], shared, layout_of(x), x)
    kernel = compile_kernel(family.weights(conv)) if conv.N else None
    return WeightsCall(kernel, conv.layout, shape, x.dtype)


_ARGUMENTS: Final = "int[] stride, int[] padding, int[] dilation, int groups"


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

    def __call__(self, a: Tensor, b: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
        """Compute on any device; past the dispatcher where that has nothing to do."""
        if not is_dynamo_compiling() and is_direct(a, b, bias):
            key = self, a.shape, a.stride(), a.dtype, arguments, settings.key()
            call = find_call(b, key)
            return self.run(a, b, bias, key, arguments) if call is None else call(a, bias)
        spread = map(self.family.spread, ("stride", "padding", "dilation"), arguments)
        return getattr(torch.ops.polysci, self.name).default(a, b, bias, *spread, *arguments[3:])

    def run(self, a: Tensor, b: Tensor, bias: Tensor | None, key: Any, arguments: Any) -> Tensor:
        """Compute by a call of these shapes; ``key`` decides all of it but b."""
        call_key = key, b.shape, b.stride(), b.dtype, b.device
        plan = _DIRECTIONS[self.direction].plan
        call = _calls.get(call_key) or _calls.add(
            call_key, lambda: plan(self.family, a, b, *arguments)
        )
        return call(a, b, bias, key)

    def declare(self) -> None:
        """Register the operator in PyTorch's dispatcher."""
        row = _DIRECTIONS[self.direction]

        def kernel(a: Tensor, b: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
            arguments = tuple(map(hashable, arguments))
            key = self, a.shape, a.stride(), a.dtype, arguments, settings.key()
            call = find_call(b, key)
            return self.run(a, b, bias, key, arguments) if call is None else call(a, bias)

        def fake(a: Tensor, b: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
            check_operands(self.name, a, weight=b)
            return row.fake(a, b, *arguments)

        def setup(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs[:2])
            ctx.arguments = tuple(map(hashable, inputs[3:7]))

        def backward(context: Any, dy: Tensor) -> tuple[Any, ...]:
            (a, b), wants = context.saved_tensors, context.needs_input_grad
            da, db = (
                gradient(self.family, a, b, dy, context.arguments) if wanted else None
                for gradient, wanted in zip(row.gradients, wants, strict=False)
            )
            dbias = dy.sum((0, *range(2, dy.dim()))) if wants[2] else None
            return da, db, dbias, *[None] * (4 + bool(row.suffix))

        extents = ", SymInt[] size" if row.suffix else ""
        schema = f"{self.name}(Tensor input, Tensor weight, Tensor? bias, {_ARGUMENTS}{extents})"
        register(f"{schema} -> Tensor", kernel, fake, setup, backward)


def hashable(value: Any) -> Any:
    """Return a number, or a list of them, as a part of keys. Raises TypeError for anything else."""
    if isinstance(value, int | tuple):
        return value
    if not isinstance(value, list):
        raise TypeError(
            "stride, padding, output_padding, dilation: expected a whole number or a list of them, "
            f"got {value!r:.40}"
        )
    return tuple(value)


def _fake_forward(x: Tensor, w: Tensor, *arguments: Any) -> Tensor:
    rows = zip(x.shape[2:], w.shape[2:], *arguments[:3], strict=True)
    sizes = [
        (n + 2 * pad - apart * (taps - 1) - 1) // step + 1 for n, taps, step, pad, apart in rows
    ]
    return new_images(x, (x.shape[0], w.shape[0], *sizes))


def _fake_input(dy: Tensor, w: Tensor, *arguments: Any) -> Tensor:
    return new_images(dy, (dy.shape[0], w.shape[1] * arguments[3], *arguments[4]))


def _fake_weight(x: Tensor, dy: Tensor, *arguments: Any) -> Tensor:
    return x.new_empty((dy.shape[1], x.shape[1] // arguments[3], *arguments[4]))


def _forward(family: ConvolutionSet, x: Tensor, w: Tensor, like: Tensor, arguments: Any) -> Tensor:
    """Convolve, as far as the images ``like`` go."""
    y = OPERATORS[family.axes, "forward"](x, w, None, *arguments)
    for axis in range(2, y.dim()):
        y = y.narrow(axis, 0, like.shape[axis])
    return y


def _input(family: ConvolutionSet, dy: Tensor, w: Tensor, like: Tensor, arguments: Any) -> Tensor:
    return OPERATORS[family.axes, "input"](dy, w, None, *arguments, tuple(like.shape[2:]))


def _weight(family: ConvolutionSet, x: Tensor, dy: Tensor, like: Tensor, arguments: Any) -> Tensor:
    return OPERATORS[family.axes, "weight"](x, dy, None, *arguments, tuple(like.shape[2:]))


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """The common part of a family's operators of one kind.

    ``gradients``: of a and of b, from (family, a, b, the result's gradient, arguments). Each
    operator is linear in a and in b, so these are the family's operators again.
    """

    suffix: str
    plan: Callable[..., Any]
    fake: Callable[..., Tensor]
    gradients: Sequence[Callable[[ConvolutionSet, Tensor, Tensor, Tensor, Any], Tensor]]


_DIRECTIONS: Mapping[str, OperatorKind] = MappingProxyType(
    {
        "forward": OperatorKind(
            "", plan_forward, _fake_forward,
            (lambda f, x, w, dy, arguments: _input(f, dy, w, x, arguments),
             lambda f, x, w, dy, arguments: _weight(f, x, dy, w, arguments)),
        ),
        "input": OperatorKind(
            "_input", plan_input, _fake_input,
            (lambda f, dy, w, dx, arguments: _forward(f, dx, w, dy, arguments),
             lambda f, dy, w, dx, arguments: _weight(f, dx, dy, w, arguments)),
        ),
        "weight": OperatorKind(
            "_weight", plan_weight, _fake_weight,
            (lambda f, x, dy, dw, arguments: _input(f, dy, dw, x, arguments),
             lambda f, x, dy, dw, arguments: _forward(f, x, dw, dy, arguments)),
        ),
    }
)  # fmt: skip
_calls = Calls()
OPERATORS: Final = {
    (family.axes, direction): ImageOperator(family, direction)
    for problem, pair in GRADIENTS.items()
    for family in [ConvolutionSet(problem.__name__.lower(), problem, *pair)]
    for direction in _DIRECTIONS
}
for _operator in OPERATORS.values():
    _operator.declare()


def transpose(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: Any, padding: Any, output_padding: Any,
    groups: int, dilation: Any,
) -> Tensor:  # fmt: skip
    """Convolve transposed: compute the gradient of an input whose extents follow from the rest."""
    operator, arguments = OPERATORS[2, "input"], (stride, padding, output_padding, groups, dilation)
    if is_dynamo_compiling() or not is_direct(x, w, bias):
        return operator(x, w, bias, *_gradient_arguments(x, w, *arguments))
    key = "transpose", x.shape, x.stride(), x.dtype, arguments, settings.key()
    call = find_call(w, key)
    if call is not None:
        return call(x, bias)
    return operator.run(x, w, bias, key, _gradient_arguments(x, w, *arguments))


def _gradient_arguments(
    x: Tensor, w: Tensor, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
) -> tuple[Any, ...]:
    """Return the arguments of an input's gradient. Raises TypeError or ValueError."""
    spread = OPERATORS[2, "input"].family.spread
    step, pad, apart, extra = map(
        spread, ("stride", "padding", "dilation", "output_padding"),
        (stride, padding, dilation, output_padding),
    )  # fmt: skip
    for more, limit in zip(extra, map(max, step, apart), strict=True):
        if not 0 <= more < limit:
            raise ValueError(
                f"conv_transpose2d: output_padding: expected 0 to {limit - 1}, below stride or "
                f"dilation, got {more}"
            )
    rows = zip(x.shape[2:], w.shape[2:], step, pad, apart, extra, strict=False)
    size = tuple((n - 1) * s - 2 * p + d * (r - 1) + more + 1 for n, r, s, p, d, more in rows)
    return step, pad, apart, groups, size


define(
    "conv_transpose2d(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
    "int[] output_padding, int groups, int[] dilation) -> Tensor",
    lambda x, w, bias, *arguments: transpose(x, w, bias, *map(hashable, arguments)),
)


class Convolve(Protocol):
    """The type of ``conv1d``, ``conv2d`` and ``conv3d``."""

    def __call__(
        self, input: Tensor, weight: Tensor, bias: Tensor | None = None,  # noqa: A002
        stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
    ) -> Tensor: ...  # fmt: skip


def _convolution(axes: int) -> Convolve:
    """Return the function of images over so many axes."""
    operator = OPERATORS[axes, "forward"]

    def convolve(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,  # noqa: A002
        padding: Any = 0, dilation: Any = 1, groups: int = 1,
    ) -> Tensor:  # fmt: skip
        """Compute the function of torch.nn.functional that has this name, with gradients.

        Of float32, bfloat16 or float16, summed in float32. Contiguous and channels_last inputs are
        read as they lie and give results in the same format; others are copied to the nearer of
        both. Weights are packed once and again after they change. The first call of a shape
        searches and compiles, as ``polysci.torch.options`` says. Raises UnsupportedError for other
        element types, TypeError or ValueError for arguments that do not fit each other.
        """
        x = input
        if not (isinstance(x, Tensor) and isinstance(weight, Tensor)):
            check_tensors(operator.name, {"input": x, "weight": weight})
        if x.dim() == axes + 2 and type(padding) is int and type(stride) is int is type(dilation):
            return operator(x, weight, bias, stride, padding, dilation, groups)
        if x.dim() == axes + 1:  # one image
            images = x.unsqueeze(0)
            return convolve(images, weight, bias, stride, padding, dilation, groups).squeeze(0)
        stride, dilation = hashable(stride), hashable(dilation)
        if isinstance(padding, str):
            x, padding = _pad(operator, x, weight, stride, padding, dilation)
        return operator(x, weight, bias, stride, hashable(padding), dilation, groups)

    convolve.__name__ = convolve.__qualname__ = operator.name
    return convolve


conv1d, conv2d, conv3d = map(_convolution, (1, 2, 3))


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,  # noqa: A002
    padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """Compute ``torch.nn.functional.conv_transpose2d``; all else as ``conv2d``."""
    check_tensors("conv_transpose2d", {"input": input, "weight": weight})
    stride, padding, output_padding = map(hashable, (stride, padding, output_padding))
    arguments = weight, bias, stride, padding, output_padding, groups, hashable(dilation)
    if input.dim() == 3:
        return transpose(input.unsqueeze(0), *arguments).squeeze(0)
    return transpose(input, *arguments)


def _pad(
    operator: ImageOperator, x: Tensor, w: Tensor, stride: Any, padding: str, dilation: Any
) -> tuple[Tensor, tuple[int, ...]]:
    """Return the input, padded where both sides differ, and the padding that they share."""
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
