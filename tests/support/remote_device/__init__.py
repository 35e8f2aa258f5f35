"""A device in another process: memory that the host cannot address, copies, launches.

It stands for any device: nothing outside this folder knows it but the row that a test adds to
``runtime.backends.BACKENDS``. Its code is C for the portable instruction set.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polysci.errors import PolysciError, UnsupportedError
from polysci.numerics.arrays import Array
from polysci.numerics.quantization import Scales
from polysci.runtime.build import cache
from polysci.runtime.worker_process import WorkerProcess
from polysci.target.isas import ISAS
from polysci.target.target import KIB, MIB, Memory, Target

NAME = "remote"
MEMORIES = (
    Memory("L1", 32 * KIB),
    Memory("L2", 256 * KIB),
    Memory("L3", 2 * MIB, cores=0),
    Memory("memory", 256 * MIB, cores=0, kind="global", bandwidth=1.0),
)


class Buffer:
    """Bytes of the device's memory, freed with the last reference to it."""

    def __init__(self, device: RemoteDevice, size: int) -> None:
        self._device = device
        self.handle = int(device.ask("allocate", size=size)["handle"])

    def __del__(self) -> None:
        if self._device.alive:
            self._device.ask("free", handle=self.handle)


class RemoteDevice(WorkerProcess):
    """The process whose memory is that of the device."""

    def __init__(self) -> None:
        module = f"{__package__}.service"
        super().__init__(module, threads=1, env={}, timeout=60.0, name="the remote device")
        self.start()
        self.launches = 0

    def ask(self, op: str, **words: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the device's answer to an operation of ``service.Device``."""
        return super().ask({"op": op, **words})

    def copy_in(self, array: Array) -> Buffer:
        """Copy an array to a new buffer."""
        buffer = Buffer(self, array.nbytes)
        data = b64encode(np.ascontiguousarray(array).tobytes()).decode()
        self.ask("copy_in", handle=buffer.handle, data=data)
        return buffer

    def copy_out(self, buffer: Buffer, array: Array) -> None:
        """Copy a buffer to the array that it was made for."""
        data = b64decode(self.ask("copy_out", handle=buffer.handle)["data"])
        array[...] = np.frombuffer(data, array.dtype).reshape(array.shape)

    def launch(self, op: str, arguments: Sequence[Buffer | int | None], **words: Any) -> Any:
        """Run a function of the device and wait for its end; return its result."""
        self.launches += 1
        handles = [
            {"handle": argument.handle} if isinstance(argument, Buffer) else argument
            for argument in arguments
        ]
        return self.ask(op, arguments=handles, **words)["result"]


@dataclass(frozen=True, slots=True)
class RemoteLibrary:
    """Code that the device's process has loaded."""

    path: Path
    device: RemoteDevice
    number: int
    null: None = None

    def function(self, name: str) -> Callable[..., Any]:
        """Return what launches a function of the library."""

        def launch(*arguments: Buffer | int | None) -> Any:
            return self.device.launch("call", arguments, library=self.number, name=name)

        return launch

    def copy_in(self, c_type: str) -> Callable[[Array], Buffer]:
        """Return what copies arrays to the device, whatever their elements are."""
        return self.device.copy_in

    def allocator(
        self, shape: tuple[int, ...], dtype: Any, c_type: str
    ) -> Callable[[Any], tuple[Array, Buffer]]:
        """Return what makes arrays for results, and buffers of their size."""

        def allocate(_: object) -> tuple[Array, Buffer]:
            array: Array = np.empty(shape, dtype)
            return array, Buffer(self.device, array.nbytes)

        return allocate

    @property
    def copy_out(self) -> Callable[[Buffer, Array], None]:
        """Return what copies a result to its array."""
        return self.device.copy_out

    def scales(self, scales: Scales, by_channel: Array) -> Any:
        """Raise UnsupportedError: the device has no integer results."""
        raise UnsupportedError("the remote device: no scales of integer results")


@dataclass(slots=True)
class RemoteNetwork:
    """A network that the device's process has loaded."""

    library: RemoteLibrary
    number: int
    model_bytes: int
    context_bytes: int
    run_at: None = None

    def run(self, context: int, *arguments: Buffer) -> None:
        """Run the network in a context."""
        device = self.library.device
        device.launch("run", arguments, network=self.number, context=context)

    def context(self) -> int:
        """Return the number of a new context."""
        return int(self.library.device.ask("context", network=self.number)["context"])

    def packed_weights(self) -> memoryview:
        """Return a copy of constants and packed weights."""
        data = self.library.device.ask("packed_weights", network=self.number)["data"]
        return memoryview(b64decode(data))

    def tensors(self, context: int, size: int) -> Array | None:
        """Return nothing: tensors stay on the device."""
        return None

    def stage_times(self, context: int, stages: int) -> list[float]:
        """Return the marks of the context's last run."""
        words = {"network": self.number, "context": context, "stages": stages}
        return list(self.library.device.ask("stage_times", **words)["times"])


@dataclass(frozen=True, slots=True)
class RemoteBackend:
    """One device, started with the backend; it has no service that would time its code."""

    name: str = NAME
    service: str = ""
    device: RemoteDevice = field(default_factory=RemoteDevice)

    def targets(self) -> tuple[Target, ...]:
        """Return the one device."""
        return (Target(ISAS["portable"], (), MEMORIES, 1, "a remote device", backend=NAME),)

    def build(
        self, text: str | Sequence[str], *, flags: Sequence[str] | None = None,
        symbols: Sequence[str] = (), timeout: float | None = None,
    ) -> Path:  # fmt: skip
        """Return the shared object of a text."""
        return cache.build(text, flags=flags, symbols=symbols, timeout=timeout)

    def build_many(
        self, texts: Sequence[str], *, jobs: int = 2, symbols: Sequence[Sequence[str]] = (),
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[Path]:  # fmt: skip
        """Return the shared objects of some texts."""
        return cache.build_many(texts, jobs=jobs, symbols=symbols, meanwhile=meanwhile)

    def assemble(self, texts: Sequence[str], *, flags: Sequence[str] | None = None) -> list[str]:
        """Return the assembly of some texts."""
        return cache.assemble(texts, flags=flags)

    def load(self, path: Path, declarations: str) -> RemoteLibrary:
        """Load a shared object on the device."""
        answer = self.device.ask("load", path=str(path), declarations=declarations)
        return RemoteLibrary(path, self.device, int(answer["library"]))

    def load_network(
        self, path: Path, name: str, declarations: str, weights: Sequence[Array] | Path
    ) -> RemoteNetwork:
        """Load a network on the device, with weights that are copied there."""
        if isinstance(weights, Path):
            raise PolysciError(f"{weights}: the remote device reads no files")
        buffers = [self.device.copy_in(array) for array in weights]
        answer = self.device.ask(
            "load_network", path=str(path), name=name, declarations=declarations,
            weights=[buffer.handle for buffer in buffers],
        )  # fmt: skip
        library = RemoteLibrary(path, self.device, -1)
        return RemoteNetwork(library, **answer)

    def is_argument(self, argument: object) -> bool:
        """Return whether it is a buffer."""
        return isinstance(argument, Buffer)

    def restore(self, array: Array) -> Buffer:
        """Copy packed weights to the device."""
        return self.device.copy_in(array)

    def time(self, run: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> float:
        """Return the mean seconds of a launch, from the host's clock."""
        start = time.perf_counter()
        for each in map(partial(_apply, run), arguments):
            assert each is None or each == 0
        return (time.perf_counter() - start) / len(arguments)


def _apply(run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return run(*arguments)
