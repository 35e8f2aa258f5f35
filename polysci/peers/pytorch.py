"""oneDNN as PyTorch calls it at its best: weights packed ahead, no autograd, no dispatcher.

The calls are those that inductor's freezing makes. ``torch`` is imported with the first problem.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any, Final

import numpy as np

from polysci.errors import CheckError
from polysci.exact import Arrays
from polysci.ops import convolution, parse_problem
from polysci.ops.conv2d import Conv2d
from polysci.ops.conv2d.rules import AXES, extent, span
from polysci.worker import Timed

TOLERANCE: Final = 1e-4  # of the largest result; the inputs are small integers
_TRIALS: Final = 5  # samples that decide between the paths


class PyTorch:
    """One convolution at a time, by the fastest of its paths."""

    operations = ("prepare", "load", "sample")

    def __init__(self) -> None:
        self._paths: Mapping[str, Callable[[], Any]] = {}
        self._timed: tuple[Timed, int]

    def prepare(self, problem: str, layout: str, threads: int, seed: int) -> dict[str, Any]:
        """Make inputs, pack weights, and compare the result of every path with the reference.

        Raises CheckError where PyTorch is missing or computes something else.
        """
        torch = _torch(threads)
        conv = convolution(parse_problem(problem, layout))
        arrays = Arrays.of(conv, seed)
        with torch.inference_mode():
            self._paths = _paths(torch, conv, arrays)
            for name, run in self._paths.items():
                _verify(name, run(), arrays.plain, layout)
        return {"version": torch.__version__, "paths": list(self._paths)}

    def load(self, min_sample_s: float) -> dict[str, Any]:
        """Choose the fastest path and the calls of a sample."""
        timed = {name: Timed(run, repeat(()), ()) for name, run in self._paths.items()}
        calls = {name: self._inside(each.calls, min_sample_s) for name, each in timed.items()}
        least = dict.fromkeys(timed, float("inf"))
        for _ in range(_TRIALS if len(timed) > 1 else 0):
            for name, each in timed.items():
                least[name] = min(least[name], self._inside(each.seconds, calls[name]))
        best = min(least, key=lambda name: (least[name], name))
        self._timed = timed[best], calls[best]
        return {"path": best}

    def sample(self, warm_up_s: float) -> dict[str, Any]:
        """One sample, in seconds a call, after untimed calls of at least ``warm_up_s``."""
        timed, calls = self._timed
        self._inside(timed.warm_up, warm_up_s)
        return {"seconds": self._inside(timed.seconds, calls)}

    @staticmethod
    def _inside(measure: Callable[[Any], Any], argument: float) -> Any:
        import torch

        with torch.inference_mode():
            return measure(argument)


def _torch(threads: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        try:
            import torch
        except (ImportError, OSError) as error:
            raise CheckError(f"PyTorch cannot be imported: {error}") from error
    if not torch.backends.mkldnn.is_available():
        raise CheckError(f"PyTorch {torch.__version__} was built without oneDNN")
    torch.set_num_threads(threads)
    return torch


def _paths(torch: Any, conv: Conv2d, arrays: Arrays) -> Mapping[str, Callable[[], Any]]:
    """The ways to compute ``conv`` from a tensor in its layout to one in the same layout."""
    x, w, pad, suffix = _operands(torch, conv, arrays)
    stride, dilation = list(conv.stride), list(conv.dilation)
    last = torch.channels_last
    pack = torch.ops.mkldnn._reorder_convolution_weight
    packed = pack(w, pad, stride, dilation, conv.groups, list(x.shape))
    pointwise = torch.ops.mkldnn._convolution_pointwise.default
    fixed: tuple[Any, ...] = (packed, None, pad, stride, dilation, conv.groups, "none", [], "")
    name = "mkldnn._convolution_pointwise"
    if conv.layout == "nhwc":
        x = x.contiguous(memory_format=last)
        return {f"{name}, channels_last{suffix}": lambda: pointwise(x, *fixed)}
    eager = (w, None, stride, pad, dilation, conv.groups)
    return {
        f"{name}, layouts changed before and after{suffix}": lambda: pointwise(
            x.contiguous(memory_format=last), *fixed
        ).contiguous(),
        f"{name}, layout changed after{suffix}": lambda: pointwise(x, *fixed).contiguous(),
        f"eager conv2d{suffix}": lambda: torch.conv2d(x, *eager),
    }


def _operands(torch: Any, conv: Conv2d, arrays: Arrays) -> tuple[Any, Any, list[int], str]:
    """Input (logically NCHW), weights, padding, and what to add to the names of the paths.

    A padding that differs between both sides is put around the input ahead of all calls.
    """
    x = torch.from_numpy(arrays.inputs["x"])
    x = x.permute(0, 3, 1, 2) if conv.layout == "nhwc" else x
    w = torch.from_numpy(arrays.inputs["w"])
    if _symmetric(conv):
        return x, w, list(conv.pad), ""
    (top, left), (bottom, right) = conv.pad, conv.pad_end
    x = torch.nn.functional.pad(x, (left, right, top, bottom)).contiguous()
    return x, w, [0, 0], ", padded ahead"


def _symmetric(conv: Conv2d) -> bool:
    """Whether the leading padding, put on both sides, gives just this output."""
    for size, taps, out, axis in AXES:
        used = span(getattr(conv, taps), conv.dilation[axis])
        own = extent(getattr(conv, size), used, conv.stride[axis], conv.pad[axis])
        if own != getattr(conv, out):
            return False
    return True


def _verify(path: str, y: Any, expected: np.ndarray[Any, Any], layout: str) -> None:
    if layout == "nhwc":
        y = y.permute(0, 2, 3, 1)
    got = y.numpy()
    if got.shape != expected.shape or not y.is_contiguous():
        raise CheckError(f"{path}: result of shape {got.shape}, strides {y.stride()}")
    limit = TOLERANCE * max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    error = float(np.max(np.abs(got - expected), initial=0.0))
    if not error <= limit:
        raise CheckError(f"{path}: differs from the reference by {error:g}, more than {limit:g}")
