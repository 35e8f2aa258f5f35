"""OpenCL devices: kernels that the driver compiles, memory of the device, one queue in order.

Needs pyopencl and the driver of a device. Code is OpenCL C behind its launches, as
``printers.devices`` prints it; built when it is first needed, and kept as the driver's binary.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np

from polysci.errors import BuildError, PolysciError, UnsupportedError
from polysci.loop_ir.kernels import Mark
from polysci.loop_ir.nodes import EMPTY, LoopModule
from polysci.numerics.arrays import Array
from polysci.printers.interface import KEEP_FLAG
from polysci.printers.launches import holds_network, read_launches
from polysci.runtime.backends.queued import Launches, QueuedLibrary, QueuedNetwork
from polysci.runtime.build.folder import cache_dir
from polysci.target.host import detect
from polysci.target.isas import DEVICE_ISAS
from polysci.target.target import Memory, Target

PREFIX: Final = "opencl"
INSTALL: Final = (
    "pip install 'polysci[opencl]', and the driver of the device, such as pocl for CPUs"
)
FLUSH: Final = "-cl-denorms-are-zero"
OPTIONS: Final = ("-cl-std=CL1.2", "-w")
MESSAGE: Final = 2000  # letters of a driver's log that an error shows


def import_pyopencl() -> Any:
    """Return pyopencl. Raises UnsupportedError where it is not installed."""
    try:
        import pyopencl
    except ImportError as error:
        raise UnsupportedError(f"OpenCL: {error}: {INSTALL}") from None
    return pyopencl


@cache
def devices() -> tuple[Any, ...]:
    """Return all OpenCL devices, in the order of their platforms; none where no driver is."""
    cl = import_pyopencl()
    try:
        return tuple(device for platform in cl.get_platforms() for device in platform.get_devices())
    except cl.Error:  # no platform is an error of OpenCL's
        return ()


def target_of(device: Any, number: int) -> Target:
    """Return the description of a device; one that is this machine's CPU has its caches."""
    cl = import_pyopencl()
    is_cpu = bool(device.type & cl.device_type.CPU)
    lanes = max((4, min(16, device.native_vector_width_float or 4))) if is_cpu else 4
    cached = device.global_mem_cache_size or 1 << 20
    own = detect().caches if is_cpu else (Memory("L2", cached, cores=0),)
    apart = device.local_mem_type == cl.device_local_mem_type.LOCAL  # not a part of the ordinary
    memories = (
        *own,
        *([Memory("local", device.local_mem_size, kind="local")] if apart else []),
        Memory("memory", device.global_mem_size, cores=0, kind="global"),
    )
    features = tuple(f"opencl{width}" for width in (4, 8, 16) if width <= lanes)
    features += ("fp64",) * bool(device.double_fp_config)
    return Target(
        DEVICE_ISAS[f"opencl{lanes}"], features, memories, device.max_compute_units,
        f"{device.name.strip()} ({device.platform.name.strip()})", backend=f"{PREFIX}:{number}",
    )  # fmt: skip


@contextmanager
def _plain_errors(what: str) -> Iterator[None]:
    """Raise MemoryError or PolysciError, in one line, for what a driver reports of ``what``."""
    cl = import_pyopencl()
    try:
        yield
    except cl.MemoryError as error:
        raise MemoryError(f"{what}: {_one_line(error)}") from None
    except cl.Error as error:
        raise PolysciError(f"{what}: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:MESSAGE]


@dataclass(slots=True)
class Queue:
    """A device with the context and queue of this process; ``seconds`` are those of its kernels."""

    device: Any
    context: Any
    queue: Any
    seconds: float = 0.0
    lock: Lock = field(default_factory=Lock)  # of kernels, which keep the arguments that they get

    @classmethod
    def of(cls, device: Any) -> Queue:
        """Open a device."""
        cl = import_pyopencl()
        context = cl.Context([device])
        flags = cl.command_queue_properties.PROFILING_ENABLE
        return cls(device, context, cl.CommandQueue(context, properties=flags))

    def buffer(self, size: int) -> Any:
        """Reserve bytes of the device's memory. Raises MemoryError."""
        cl = import_pyopencl()
        try:
            return cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(size, 1))
        except cl.Error as error:
            free = self.device.global_mem_size
            raise MemoryError(
                f"{size} bytes on {self.device.name}, which has {free} in all: {error}"
            ) from None

    def copy_in(self, array: Array) -> Any:
        """Copy an array to the device."""
        buffer = self.buffer(array.nbytes)
        if array.nbytes:
            with _plain_errors(f"{array.nbytes} bytes to {self.device.name}"):
                import_pyopencl().enqueue_copy(self.queue, buffer, np.ascontiguousarray(array))
        return buffer

    def copy_out(self, buffer: Any, array: Array) -> None:
        """Copy a result to its array, when all launches before have ended."""
        with _plain_errors(f"{array.nbytes} bytes from {self.device.name}"):
            if array.nbytes:
                import_pyopencl().enqueue_copy(self.queue, array, buffer)
            self.queue.finish()

    def part(self, buffer: Any, start: int, size: int) -> Any:
        """Return so many bytes of a buffer; ``start`` is a multiple of 4096."""
        return buffer.get_sub_region(start, size)

    def run(self, kernels: Mapping[str, Any], launches: Launches) -> list[float]:
        """Launch kernels and wait; return the seconds of kernels before each mark."""
        enqueue, events, marks = import_pyopencl().enqueue_nd_range_kernel, list[Any](), list[int]()
        with self.lock:
            for step, values in launches:
                if isinstance(step, Mark):
                    marks.append(len(events))
                    continue
                kernel = kernels[step.kernel]
                with _plain_errors(f"kernel {step.kernel}, groups of {step.group} work-items"):
                    kernel.set_args(*(np.int64(it) if isinstance(it, int) else it for it in values))
                    sizes = (step.items * step.group,), (step.group,)
                    events.append(enqueue(self.queue, kernel, *sizes))
            with _plain_errors(f"kernels of {self.device.name}"):
                self.queue.finish()
                taken = [(it.profile.end - it.profile.start) * 1e-9 for it in events]
            self.seconds += sum(taken)
        return [sum(taken[:count]) for count in marks]


@cache
def queue_of(number: int) -> Queue:
    """Open device ``number`` once. Raises UnsupportedError where there is none of that number."""
    known = devices()
    if not 0 <= number < len(known):
        names = ", ".join(f"{PREFIX}:{at} {device.name}" for at, device in enumerate(known))
        raise UnsupportedError(
            f"no device {PREFIX}:{number}; there are: {names}" if known
            else f"no OpenCL device: {INSTALL}"
        )  # fmt: skip
    return Queue.of(known[number])


@dataclass(frozen=True, slots=True)
class OpenCL:
    """Device ``number`` of OpenCL."""

    number: int = 0
    measured: bool = True
    occupancy: None = None

    @property
    def name(self) -> str:
        """Its row among the backends."""
        return f"{PREFIX}:{self.number}"

    @property
    def compiler(self) -> str:
        """The driver of the device."""
        device = queue_of(self.number).device
        return f"{device.platform.name.strip()} {device.driver_version} on {device.name.strip()}"

    def targets(self) -> tuple[Target, ...]:
        """Return the one device. Raises UnsupportedError where it is not there."""
        return (target_of(queue_of(self.number).device, self.number),)

    def build(
        self, text: str | Sequence[str], *, flags: Sequence[str] | None = None,
        symbols: Sequence[str] = (), timeout: float | None = None, module: LoopModule = EMPTY,
    ) -> Path:  # fmt: skip
        """Return the file of the text, beside which lies what the driver makes of it."""
        source = text if isinstance(text, str) else "\n".join(text)
        queue, options = queue_of(self.number), [*OPTIONS]
        if KEEP_FLAG not in (flags or ()):
            options.append(FLUSH)
        device = queue.device
        words = [device.platform.version, device.name, device.driver_version, *options, source]
        key = hashlib.sha256("\0".join(words).encode()).hexdigest()
        path = cache_dir() / PREFIX / key / "code.cl"
        if not path.exists():
            binary = _compile(queue, source, options)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(path.with_suffix(".bin"), binary)
            entry = {"sha256": hashlib.sha256(binary).hexdigest(), "driver": self.compiler}
            _write(path.with_name("entry.json"), json.dumps(entry).encode())
            _write(path, source.encode())  # the last: who finds it finds the others
        known = read_launches(source).keys()
        if lacking := set() if holds_network(source) else set(symbols) - known:
            raise BuildError(f"{path}: no function {', '.join(sorted(lacking))}")
        return path

    def build_many(
        self, texts: Sequence[str], *, jobs: int = 2, symbols: Sequence[Sequence[str]] = (),
        meanwhile: Callable[[], None] = lambda: None, modules: Sequence[LoopModule] = (),
    ) -> list[Path]:  # fmt: skip
        """Build texts one after the other: drivers keep all cores busy with one."""
        meanwhile()
        return [
            self.build(text, symbols=its)
            for text, its in zip(texts, symbols or [()] * len(texts), strict=True)
        ]

    def assemble(self, texts: Sequence[str], *, flags: Sequence[str] | None = None) -> list[str]:
        """Raise UnsupportedError: drivers show no assembly."""
        raise UnsupportedError(f"{self.name}: drivers of OpenCL show no assembly")

    def load(self, path: Path, declarations: str) -> QueuedLibrary:
        """Return the kernels of a built file. Raises BuildError."""
        cl, queue = import_pyopencl(), queue_of(self.number)
        try:
            functions = read_launches(path.read_text(encoding="utf-8"))
            binary = path.with_suffix(".bin").read_bytes()
            program = cl.Program(queue.context, [queue.device], [binary]).build()
            kernels = {kernel.function_name: kernel for kernel in program.all_kernels()}
        except (OSError, cl.Error) as error:
            raise BuildError(f"{path}: {str(error)[:MESSAGE]}") from None
        return QueuedLibrary(path, queue, functions, kernels)

    def load_network(
        self, path: Path, name: str, declarations: str, weights: Sequence[Array] | Path
    ) -> QueuedNetwork:
        """Return a network of a built file. Raises BuildError, or PolysciError for weights."""
        if isinstance(weights, Path):
            raise PolysciError(f"{weights}: a device reads no files")
        return QueuedNetwork.load(self.load(path, declarations), name, weights)

    def is_argument(self, argument: object) -> bool:
        """Return whether it is a buffer of OpenCL's."""
        return isinstance(argument, import_pyopencl().Buffer)

    def restore(self, array: Array) -> Any:
        """Copy packed weights to the device."""
        return queue_of(self.number).copy_in(array)

    def time(self, run: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> float:
        """Return the mean seconds of a call's kernels, as the device's events say."""
        queue = queue_of(self.number)
        before = queue.seconds
        for own in arguments:
            run(*own)
        return (queue.seconds - before) / len(arguments)


def _compile(queue: Queue, source: str, options: Sequence[str]) -> bytes:
    """Return what a driver makes of a text. Raises BuildError with its log."""
    cl = import_pyopencl()
    program = cl.Program(queue.context, source)
    try:
        built = program.build(options=[*options], cache_dir=False)
    except cl.Error as error:
        log = re.sub(r"\n\s*\n", "\n", str(error))[:MESSAGE]
        raise BuildError(f"{queue.device.name}: the driver refuses the code: {log}") from None
    (binary,) = built.get_info(cl.program_info.BINARIES)
    return bytes(binary)


def _write(path: Path, content: bytes) -> None:
    """Write a file aside and move it into place."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    aside.write_bytes(content)
    aside.replace(path)
