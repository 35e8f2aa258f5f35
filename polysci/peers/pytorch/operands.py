"""A convolution's arrays as tensors, the ways to compute with them, and results as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polysci.errors import CheckError
from polysci.ops.conv2d import Conv2d
from polysci.ops.conv2d.rules import AXES, extent, span
from polysci.peers.example_inputs import ExampleInputs, fault

Step = Callable[[Any], Any]
Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Path:
    """A way to compute: ``make`` packs weights and answers the function that returns y.

    Results were rounded to ``element`` and lie ``above`` those asked for. ``make`` and its function
    raise RuntimeError for what PyTorch does not have on this CPU.
    """

    name: str
    make: Callable[[], Run]
    element: str
    above: int = 0


@dataclass(frozen=True, slots=True)
class Operands:
    """x (logically NCHW, stored in the layout) and w in memory of PyTorch's, 64-byte aligned.

    ``pad`` is (top, left); a padding that differs between both sides is put around x ahead of all
    calls, and ``note`` says so.
    """

    torch: Any
    conv: Conv2d
    inputs: ExampleInputs
    x: Any
    w: Any
    pad: list[int]
    note: str

    @classmethod
    def of(cls, torch: Any, conv: Conv2d, inputs: ExampleInputs) -> Self:
        """The tensors of a problem."""
        x = _tensor(torch, inputs.x, inputs.elements[0])
        w = _tensor(torch, inputs.w, inputs.elements[1])
        x = x.permute(0, 3, 1, 2) if conv.layout == "nhwc" else x
        if _symmetric(conv):
            return cls(torch, conv, inputs, x, w, list(conv.pad), "")
        (top, left), (bottom, right) = conv.pad, conv.pad_end
        zero = inputs.quant.x_zero if inputs.quant else 0
        x = torch.nn.functional.pad(x, (left, right, top, bottom), value=zero)
        last = torch.channels_last if conv.layout == "nhwc" else torch.contiguous_format
        x = x.contiguous(memory_format=last)
        return cls(torch, conv, inputs, x, w, [0, 0], ", padded ahead")

    @property
    def geometry(self) -> tuple[list[int], list[int], list[int], int]:
        """Stride, padding, dilation and groups."""
        return list(self.conv.stride), self.pad, list(self.conv.dilation), self.conv.groups

    def channels_last(self, tensor: Any) -> Any:
        """The tensor stored as NHWC."""
        return tensor.contiguous(memory_format=self.torch.channels_last)

    def plain(self, tensor: Any) -> Any:
        """The tensor stored as NCHW."""
        return tensor.contiguous()

    def verify(self, path: Path, y: Any) -> None:
        """Raise CheckError unless ``y`` is in the layout and holds the expected results."""
        y = y.int_repr() if y.is_quantized else y
        y = y.permute(0, 2, 3, 1) if self.conv.layout == "nhwc" else y
        expected = self.inputs.expected
        if tuple(y.shape) != expected.shape or not y.is_contiguous():
            shape = tuple(y.shape)
            raise CheckError(f"{path.name}: result of shape {shape}, strides {y.stride()}")
        wrong = fault(y.float().numpy() - path.above, expected, path.element)
        if wrong:
            raise CheckError(f"{path.name}: {wrong}")


def chain(x: Any, steps: Sequence[Step]) -> Run:
    """A function without arguments that takes x through all steps."""
    if len(steps) == 1:
        return partial(steps[0], x)

    def run() -> Any:
        value = x
        for step in steps:
            value = step(value)
        return value

    return run


def _tensor(torch: Any, array: NDArray[Any], element: str) -> Any:
    """A copy in PyTorch's own memory: NumPy's may start at 16 bytes, which costs oneDNN 15 %."""
    if element == "bf16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).clone()
    return torch.from_numpy(array).clone()


def _symmetric(conv: Conv2d) -> bool:
    """Whether the leading padding, put on both sides, gives just this output."""
    for size, taps, out, axis in AXES:
        used = span(getattr(conv, taps), conv.dilation[axis])
        own = extent(getattr(conv, size), used, conv.stride[axis], conv.pad[axis])
        if own != getattr(conv, out):
            return False
    return True
