"""Devices of networks as PyTorch has them: where tensors must lie, and how networks read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import torch

from polysci.errors import SpecError, UnsupportedError
from polysci.network.runner import Runner
from polysci.runtime.backends import cuda, device_named
from polysci.target.target import HOST

CPU: Final = torch.device("cpu")
ALIGNMENT: Final = 16  # bytes: the widest load of CUDA's


@dataclass(frozen=True, slots=True)
class TensorDevice:
    """A device of networks by its ``name``, and ``place``, where PyTorch has their tensors.

    Networks of OpenCL take tensors on the CPU, which they copy; those of CUDA take tensors on the
    same device, and run on PyTorch's current stream.
    """

    name: str = HOST
    place: torch.device = CPU

    @staticmethod
    def of(backend: str) -> TensorDevice:
        """Return the device of a backend. Raises UnsupportedError for an architecture."""
        return TensorDevice(backend, place_of(backend))

    @property
    def is_cuda(self) -> bool:
        """Tell whether networks read tensors in the memory of a CUDA device."""
        return self.name.partition(":")[0] == cuda.PREFIX

    def is_here(self, x: Any) -> bool:
        """Tell whether a tensor lies where networks of the device read it."""
        return bool(x.device == self.place)

    @property
    def is_ready(self) -> Callable[[Any], bool]:
        """Return what tells, as quick as can be, whether a network may read a dense tensor."""
        return self._is_aligned if self.is_cuda else attrgetter("is_cpu")

    def _is_aligned(self, x: Any) -> bool:
        return self.is_here(x) and x.data_ptr() % ALIGNMENT == 0

    def align(self, x: Any) -> Any:
        """Return a tensor of the device that begins where its networks can read it, or a copy."""
        return x.clone() if self.is_cuda and x.data_ptr() % ALIGNMENT else x

    def check(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Raise SpecError that names the first tensor that lies elsewhere."""
        for name, x in tensors:
            if not self.is_here(x):
                raise SpecError(
                    f"{name}: on {x.device}, and device={self.name!r} computes with tensors on "
                    f"{self.place}: move the module and its inputs by .to({str(self.place)!r})"
                )

    def bind(self, runner: Runner) -> Callable[[Sequence[int]], None]:
        """Return what runs a network on the addresses of tensors, of inputs and then outputs."""
        if not self.is_cuda:
            return runner.run_at
        runners = dict[int, Runner]()

        def run(addresses: Sequence[int]) -> None:
            with torch.cuda.device(self.place):  # restores the caller's, which the driver changes
                stream = torch.cuda.current_stream(self.place).cuda_stream
                if stream not in runners:
                    runners[stream] = runner.on(stream)
                runners[stream].run_at(addresses)

        return run

    def wait(self) -> None:
        """Wait for all that was launched on the device."""
        if self.is_cuda:
            torch.cuda.synchronize(self.place)


ON_HOST: Final = TensorDevice()


def find_device(name: str | None) -> TensorDevice:
    """Return the device of a name, None the host. Raises UnsupportedError where it is not there."""
    target = device_named(name or HOST)
    return TensorDevice.of(target.backend) if target else ON_HOST


def place_of(backend: str) -> torch.device:
    """Return where tensors lie that networks of a backend take."""
    prefix, _, number = backend.partition(":")
    if prefix != cuda.PREFIX:
        return CPU
    if not number.isdecimal():
        raise UnsupportedError(f"device {backend}: compiles code, and modules run: cuda:0")
    return torch.device(prefix, int(number))
