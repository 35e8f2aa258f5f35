"""PyTorch on a device, as the other side of a comparison: calls of cuDNN and cuBLAS, and its clock.

On ``cpu`` the same calls run by the clock of this process, so that they can be tried without a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from polysci.errors import UnsupportedError
from polysci.ops.convolutions import Conv2d
from polysci.ops.matmul import Matmul
from polysci.ops.problem import Problem

SAMPLE_S = 5e-3
WARM_UP = 3  # runs, of which cuDNN's first one tries its algorithms

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class TorchDevice:
    """A device of PyTorch's, with the convolution and product libraries that it has."""

    torch: Any
    name: str

    @classmethod
    def of(cls, name: str) -> TorchDevice:
        """Open it. Raises UnsupportedError where PyTorch is missing or has no such device."""
        try:
            import torch
        except ImportError as error:
            raise UnsupportedError(f"PyTorch: {error}: pip install torch") from None
        if name != "cpu" and not torch.cuda.is_available():
            raise UnsupportedError(f"PyTorch {torch.__version__} has no CUDA device")
        torch.backends.cudnn.benchmark = True
        return cls(torch, name)

    @property
    def title(self) -> str:
        """PyTorch, its libraries and the device."""
        torch = self.torch
        if self.name == "cpu":
            return f"PyTorch {torch.__version__} on the CPU"
        libraries = f"cuDNN {torch.backends.cudnn.version()}, CUDA {torch.version.cuda}"
        return f"PyTorch {torch.__version__}, {libraries}, {torch.cuda.get_device_name()}"

    def use_tf32(self, on: bool) -> None:
        """Let f32 be multiplied in TF32, or not."""
        self.torch.backends.cuda.matmul.allow_tf32 = on
        self.torch.backends.cudnn.allow_tf32 = on

    def tensor(self, array: Any, dtype: str) -> Any:
        """Return a copy on the device, of a type by its name in polysci."""
        types = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
        element = getattr(self.torch, types[dtype])
        return self.torch.from_numpy(np.ascontiguousarray(array)).to(self.name).to(element)

    def call(self, problem: Problem, x: Any, w: Any, dtype: str) -> Call:
        """Return the call that computes a layer. Raises UnsupportedError for other layers."""
        x, w = self.tensor(x, dtype), self.tensor(w, dtype)
        if isinstance(problem, Matmul):
            return lambda: self.torch.matmul(x, w)
        if not isinstance(problem, Conv2d):
            raise UnsupportedError(f"{problem}: compared are convolutions and products")
        if problem.layout == "nhwc":
            x, w = x.movedim(-1, 1), w.contiguous(memory_format=self.torch.channels_last)
        pad: Any = list(problem.pad)
        if problem.pad != problem.pad_end:
            sides = zip(reversed(problem.pad), reversed(problem.pad_end), strict=True)
            x, pad = self.torch.nn.functional.pad(x, [it for side in sides for it in side]), 0
        words = list(problem.stride), pad, list(problem.dilation), problem.groups
        return lambda: self.torch.nn.functional.conv2d(x, w, None, *words)

    def result(self, problem: Problem, call: Call) -> np.ndarray:
        """Return what a call computes, in the layout of the layer, as f32."""
        with self.torch.no_grad():
            y = call().float().cpu()
        if isinstance(problem, Conv2d) and problem.layout == "nhwc":
            y = y.movedim(1, -1)
        return np.ascontiguousarray(y.numpy())

    def timer(self, call: Call) -> Callable[[], float]:
        """Return what takes a sample: the mean seconds of a call, by the device's events."""
        for _ in range(WARM_UP):
            self.sample(call, 1)
        once = self.sample(call, 1)
        count = max(1, round(SAMPLE_S / once))
        return lambda: self.sample(call, count)

    def sample(self, call: Call, count: int) -> float:
        """Return the mean seconds of ``count`` calls."""
        with self.torch.no_grad():
            return (
                self._by_clock(call, count) if self.name == "cpu" else self._by_events(call, count)
            )

    def _by_clock(self, call: Call, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count

    def _by_events(self, call: Call, count: int) -> float:
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(count):
            call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e-3 / count


# Chains of operators, which one kernel or a few may compute.


def chains(torch: Any) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Return modules of chains and the shapes of their inputs."""
    nn = torch.nn
    torch.manual_seed(0)

    class Attention(nn.Module):
        """Attention of 12 heads of 64 over 128 rows, as of BERT-base."""

        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(768, 3 * 768)

        def forward(self, x: Any) -> Any:
            q, k, v = self.project(x).reshape(1, 128, 3, 12, 64).permute(2, 0, 3, 1, 4)
            weights = torch.softmax(q @ k.transpose(-1, -2) / 8.0, dim=-1)
            return (weights @ v).transpose(1, 2).reshape(1, 128, 768)

    convolution = nn.Sequential(
        nn.Conv2d(64, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 256, 1), nn.ReLU(),
    )  # fmt: skip
    mlp = nn.Sequential(nn.LayerNorm(768), nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768))
    return {
        "bottleneck 56x56": (convolution.eval(), (1, 64, 56, 56)),
        "MLP of BERT-base, 128 rows": (mlp.eval(), (128, 768)),
        "attention of BERT-base, 128 rows": (Attention().eval(), (1, 128, 768)),
    }
