"""Convolutions over one, two and three axes and both their gradients, as PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from polysci.ops import backward_data, backward_weights
from polysci.ops.conv1d import Conv1d
from polysci.ops.conv2d import Conv2d
from polysci.ops.conv3d import Conv3d
from polysci.torch import settings
from polysci.torch.convolution_calls import ConvolutionSet, plan_forward, plan_input, plan_weight
from polysci.torch.images import new_images
from polysci.torch.kernels import Calls, check_operands
from polysci.torch.library import compose, is_direct, register
from polysci.torch.packed_weights import find_call

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
    ConvolutionSet("conv1d", Conv1d, backward_data.Conv1dBackwardData,
           backward_weights.Conv1dBackwardWeights),
    ConvolutionSet("conv2d", Conv2d, backward_data.Conv2dBackwardData,
           backward_weights.Conv2dBackwardWeights),
    ConvolutionSet("conv3d", Conv3d, backward_data.Conv3dBackwardData,
           backward_weights.Conv3dBackwardWeights),
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
