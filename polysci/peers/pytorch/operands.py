"""A problem's arrays as tensors, the ways to compute with them, and results as numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from polysci.errors import CheckError, UnsupportedError
from polysci.ops import (
    BackwardData,
    BackwardWeights,
    Matmul,
    convolution,
)
from polysci.ops.convolution_gradients import ConvolutionGradient
from polysci.ops.convolution_rules import extent, span
from polysci.ops.convolutions import Convolution
from polysci.ops.problem import Problem
from polysci.peers.example_inputs import ExampleInputs, fault

Step = Callable[[Any], Any]
Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Way:
    """A call, whether it takes and leaves NHWC alone, and whether TorchScript compiles it.

    ``call`` takes w in the type that is computed in. ``once``: it takes seconds to make. ``fused``:
    it computes the activation.
    """

    name: str
    call: Callable[[Operands, Any], Step]
    before: bool = False
    after: bool = False
    script: bool = False
    once: bool = False
    fused: bool = False


@dataclass(frozen=True, slots=True)
class Path:
    """A way to compute: ``make`` packs weights and answers the function that returns y.

    Results were rounded to ``element`` and lie ``above`` those asked for. ``make`` and its function
    raise RuntimeError for what PyTorch does not have on this CPU. ``once``: ``make`` takes too long
    for copies of the weights.
    """

    name: str
    make: Callable[[], Run]
    element: str
    above: int = 0
    once: bool = False


@dataclass(frozen=True, slots=True)
class Operands:
    """x and w in memory of PyTorch's, 64-byte aligned; images are logically NCHW.

    ``pad`` is that before each axis; a padding that differs between both sides is put around x
    ahead of all calls, and ``note`` says so.
    """

    torch: Any
    problem: Problem
    inputs: ExampleInputs
    x: Any
    w: Any
    pad: list[int]
    note: str

    @classmethod
    def of(cls, torch: Any, problem: Problem, inputs: ExampleInputs) -> Self:
        """The tensors of a problem. Raises UnsupportedError for a gradient padded unevenly."""
        x = _tensor(torch, inputs.x, inputs.elements[0])
        w = _tensor(torch, inputs.w, inputs.elements[1])
        own = cls(torch, problem, inputs, x, w, [0, 0], "")
        if isinstance(problem, Matmul):
            return own
        conv = own.conv
        if len(conv.taps) == 1:
            raise UnsupportedError(f"{problem}: PyTorch is timed over two axes: ih1kh1, no conv1d")
        if conv.layout == "nhwc":
            x = x.movedim(-1, 1)
            w = w.movedim(-1, 1) if isinstance(problem, BackwardWeights) else w
        if _symmetric(conv):
            return cls(torch, problem, inputs, x, w, list(conv.pad), "")
        if isinstance(problem, BackwardData):
            raise UnsupportedError("PyTorch pads gradients of inputs alike on both sides")
        sides = zip(reversed(conv.pad), reversed(conv.pad_end), strict=True)
        x = torch.nn.functional.pad(x, [size for side in sides for size in side])
        x = own.channels_last(x) if conv.layout == "nhwc" else x.contiguous()
        return cls(torch, problem, inputs, x, w, [0] * len(conv.pad), ", padded ahead")

    @property
    def conv(self) -> Convolution:
        """The convolution, of a gradient the forward one. Raises UnsupportedError for neither."""
        if isinstance(self.problem, Convolution):
            return self.problem
        if isinstance(self.problem, ConvolutionGradient):
            return self.problem.forward
        return convolution(self.problem)

    @property
    def geometry(self) -> tuple[list[int], list[int], list[int], int]:
        """Stride, padding, dilation and groups."""
        return list(self.conv.stride), self.pad, list(self.conv.dilation), self.conv.groups

    def channels_last(self, tensor: Any) -> Any:
        """The tensor stored as NHWC."""
        torch = self.torch
        last = torch.channels_last if tensor.ndim == 4 else torch.channels_last_3d
        return tensor.contiguous(memory_format=last)

    def plain(self, tensor: Any) -> Any:
        """The tensor stored as NCHW."""
        return tensor.contiguous()

    def verify(self, path: Path, y: Any) -> None:
        """Raise CheckError unless ``y`` is in the layout and holds the expected results."""
        y = y.int_repr() if y.is_quantized else y
        images = not isinstance(self.problem, Matmul | BackwardWeights)
        y = y.movedim(1, -1) if images and self.conv.layout == "nhwc" else y
        expected = self.inputs.expected
        if tuple(y.shape) != expected.shape or not y.is_contiguous():
            shape = tuple(y.shape)
            raise CheckError(f"{path.name}: result of shape {shape}, strides {y.stride()}")
        wrong = fault(y.float().numpy() - path.above, expected, path.element)
        if wrong:
            raise CheckError(f"{path.name}: {wrong}")


# Of activations: the function, and what oneDNN's calls of PyTorch take to compute it.
_ACTIVATIONS: Final[Mapping[str, tuple[str, Mapping[str, Any], tuple[Any, ...] | None]]] = (
    MappingProxyType(
        {
            "": ("", {}, ("none", [], "")),
            "relu": ("relu", {}, ("relu", [], "")),
            "gelu": ("gelu", {}, ("gelu", [], "none")),
            "gelu_tanh": ("gelu", {"approximate": "tanh"}, ("gelu", [], "tanh")),
            "sigmoid": ("sigmoid", {}, ("sigmoid", [], "")),
            "tanh": ("tanh", {}, ("tanh", [], "")),
            "silu": ("silu", {}, ("swish", [], "")),
            "hard_swish": ("hardswish", {}, ("hardswish", [], "")),
            "softplus": ("softplus", {}, None),
            "mish": ("mish", {}, None),
        }
    )
)


def attribute_of(operands: Operands) -> tuple[Any, ...]:
    """The last arguments of oneDNN's fused calls. Raises RuntimeError where they have none."""
    attribute = _ACTIVATIONS[operands.problem.activation][2]
    if attribute is None:
        raise RuntimeError(f"it has no {operands.problem.activation}")
    return attribute


def activate(operands: Operands) -> list[Step]:
    """The activation by PyTorch's function; nothing where there is none."""
    name, kwargs, _ = _ACTIVATIONS[operands.problem.activation]
    return [partial(getattr(operands.torch.nn.functional, name), **kwargs)] if name else []


def compose(steps: Sequence[Step]) -> Step:
    """A function that takes a tensor through all steps."""

    def run(value: Any) -> Any:
        for step in steps:
            value = step(value)
        return value

    return run


def chain(x: Any, steps: Sequence[Step]) -> Run:
    """A function without arguments that takes x through all steps."""
    return partial(steps[0] if len(steps) == 1 else compose(steps), x)


def _tensor(torch: Any, array: NDArray[Any], element: str) -> Any:
    """A copy in PyTorch's own memory: NumPy's may start at 16 bytes, which costs oneDNN 15 %."""
    if element == "bf16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).clone()
    return torch.from_numpy(array).clone()


def _symmetric(conv: Convolution) -> bool:
    """Return whether the leading padding, put on both sides, gives just this output."""
    for size, taps, out, axis in conv.FAMILY.axes:
        used = span(getattr(conv, taps), conv.dilation[axis])
        own = extent(getattr(conv, size), used, conv.stride[axis], conv.pad[axis])
        if own != getattr(conv, out):
            return False
    return True
