"""OpenCL devices: kernels that the driver compiles, memory of the device, one queue in order.

Needs pyopencl and the driver of a device. Code is OpenCL C behind its launches, as
``printers.devices`` prints it; built when it is first needed, and kept as the driver's binary.
Drivers compile in a process of their own: some abort on what they cannot compile.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Final

import numpy as np

from polysci.errors import BuildError, CheckError, PolysciError, UnsupportedError
from polysci.loop_ir.kernels import LaunchedFunction, Mark
from polysci.numerics.arrays import Array
from polysci.printers.interface import KEEP_FLAG
from polysci.printers.launches import read_launches
from polysci.runtime.backends.queued import (
    MESSAGE,
    Launches,
    QueuedBackend,
    QueuedLibrary,
    errors_in,
)
from polysci.runtime.worker_process import WorkerProcess
from polysci.target.host import detect
from polysci.target.isas import DEVICE_ISAS, DOT_PRODUCT
from polysci.target.target import Memory, Target

PREFIX: Final = "opencl"
DRIVERS: Final = "install the driver of the device, such as pocl-opencl-icd for CPUs"
INSTALL: Final = f"pip install 'polysci[opencl]', and {DRIVERS}"
FLUSH: Final = "-cl-denorms-are-zero"
OPTIONS: Final = ("-cl-std=CL1.2", "-w")
COMPILE_S: Final = 600.0  # that a driver may take to compile a text
OPTIONS_OF_DOT: Final = ("-cl-std=CL3.0", "-w")  # the extension is of OpenCL C 3.0


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
    isa = DEVICE_ISAS[f"opencl{lanes}"]
    if not is_cpu and DOT_PRODUCT in device.extensions.split():
        isa, features = DEVICE_ISAS["opencl4dot"], (*features, DOT_PRODUCT)
    return Target(
        isa, features, memories, device.max_compute_units,
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
    addressed: ClassVar[bool] = False

    @classmethod
    def of(cls, device: Any) -> Queue:
        """Open a device."""
        cl = import_pyopencl()
        context = cl.Context([device])
        flags = cl.command_queue_properties.PROFILING_ENABLE
        return cls(device, context, cl.CommandQueue(context, properties=flags))

    def on(self, stream: int) -> Queue:
        """Raise UnsupportedError: handles name no queues."""
        raise UnsupportedError(f"{self.device.name}: a handle names no queue of OpenCL's")

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
        self.write(buffer, array)
        return buffer

    def write(self, buffer: Any, array: Array) -> None:
        """Copy an array to a buffer."""
        if array.nbytes:
            with _plain_errors(f"{array.nbytes} bytes to {self.device.name}"):
                import_pyopencl().enqueue_copy(self.queue, buffer, np.ascontiguousarray(array))

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

    def replay(
        self, kernels: Mapping[str, Any], function: LaunchedFunction, arguments: Sequence[Any],
        recording: None,
    ) -> None:  # fmt: skip
        """Run a function; OpenCL keeps no launches."""
        self.run(kernels, function.launches(arguments))


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
class OpenCL(QueuedBackend):
    """Device ``number`` of OpenCL."""

    number: int = 0
    measured: bool = True
    suffix: ClassVar[str] = ".cl"
    occupancy: None = None

    @property
    def name(self) -> str:
        """Its row among the backends."""
        return f"{PREFIX}:{self.number}"

    @property
    def queue(self) -> Queue:
        """The device. Raises UnsupportedError where there is none."""
        return queue_of(self.number)

    @property
    def compiler(self) -> str:
        """The driver of the device."""
        device = queue_of(self.number).device
        return f"{device.platform.name.strip()} {device.driver_version} on {device.name.strip()}"

    def targets(self) -> tuple[Target, ...]:
        """Return the one device. Raises UnsupportedError where it is not there."""
        return (target_of(queue_of(self.number).device, self.number),)

    def words(self, flags: Sequence[str] | None) -> list[str]:
        """Return what compiles and what decides its options beside the text."""
        device = queue_of(self.number).device
        return [device.platform.version, device.name, device.driver_version, str(_flushes(flags))]

    def compile(self, source: str, flags: Sequence[str] | None) -> dict[str, bytes]:
        """Return what the driver makes of a text. Raises BuildError with its log."""
        options = options_of(source, flush=_flushes(flags))
        return {".bin": _compile_apart(self.number, source, options)}

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
        _check_local(queue.device, kernels)
        return QueuedLibrary(path, queue, functions, kernels)

    def is_argument(self, argument: object) -> bool:
        """Return whether it is a buffer of OpenCL's."""
        return isinstance(argument, import_pyopencl().Buffer)


def options_of(source: str, *, flush: bool) -> list[str]:
    """Return the driver's options for a text; ``flush``: denormal numbers count as 0."""
    options = OPTIONS_OF_DOT if DOT_PRODUCT in source else OPTIONS
    return [*options, *[FLUSH] * flush]


def _flushes(flags: Sequence[str] | None) -> bool:
    """Return whether the flags of a build have denormal numbers count as 0."""
    return KEEP_FLAG not in (flags or ())


def _check_local(device: Any, kernels: Mapping[str, Any]) -> None:
    """Raise BuildError where a group needs more local memory than there is: drivers may abort."""
    kind = import_pyopencl().kernel_work_group_info.LOCAL_MEM_SIZE
    for name, kernel in kernels.items():
        size = kernel.get_work_group_info(kind, device)
        if size > device.local_mem_size:
            raise BuildError(
                f"kernel {name}: {size} bytes of local memory; {device.name} has "
                f"{device.local_mem_size} for a group"
            )


@cache
def _driver_of(number: int) -> WorkerProcess:
    """Return the process in which the driver of device ``number`` compiles; one is kept."""
    module = "polysci.runtime.backends.opencl_service"
    return WorkerProcess(module, threads=1, env={}, timeout=COMPILE_S)


os.register_at_fork(after_in_child=_driver_of.cache_clear)  # the process is the parent's


def _compile_apart(number: int, source: str, options: Sequence[str]) -> bytes:
    """Return what a driver makes of a text. Raises BuildError, also where the driver crashes."""
    name = queue_of(number).device.name
    with tempfile.TemporaryDirectory(prefix="polysci-") as folder:
        text, binary = Path(folder, "code.cl"), Path(folder, "code.bin")
        text.write_text(source, encoding="utf-8")
        files = {"text": str(text), "binary": str(binary)}
        question = {"op": "compile", "number": number, "options": [*options], **files}
        try:
            driver = _driver_of(number)
            driver.start()
            answer = driver.ask(question)
        except CheckError as error:
            raise BuildError(f"{name}: the driver's compiler: {_one_line(error)}") from None
        if "refusal" in answer:
            raise BuildError(str(answer["refusal"]))
        return binary.read_bytes()


def compile_here(number: int, source: str, options: Sequence[str]) -> bytes:
    """Return what a driver makes of a text, in this process. Raises BuildError with its log."""
    cl, device = import_pyopencl(), devices()[number]
    program = cl.Program(cl.Context([device]), source)
    try:
        built = program.build(options=[*options], cache_dir=False)
    except cl.Error as error:
        log = errors_in(str(error))
        raise BuildError(f"{device.name}: the driver refuses the code: {log}") from None
    (binary,) = built.get_info(cl.program_info.BINARIES)
    return bytes(binary)
