"""CUDA: kernels that NVRTC compiles, on a device through its driver, or for one that is not here.

``cuda:0`` is a device and needs NVIDIA's driver; ``cuda:sm_80`` is an architecture, for which code
is compiled alone. Code is CUDA C++ behind its launches, as ``printers.devices`` prints it.
"""

from __future__ import annotations

import ctypes
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy as np

from polysci.errors import BuildError, PolysciError, UnsupportedError
from polysci.loop_ir.kernels import Launch, LaunchedFunction, Mark
from polysci.loop_ir.nodes import LoopModule
from polysci.numerics.arrays import Array
from polysci.printers.interface import KEEP_FLAG
from polysci.printers.launches import read_launches
from polysci.runtime.backend import Occupancy
from polysci.runtime.backends import nvrtc
from polysci.runtime.backends.nvrtc import FLUSH, OPTIONS, Resources, import_cuda
from polysci.runtime.backends.occupancy import limits_of
from polysci.runtime.backends.queued import MESSAGE, Launches, QueuedBackend, QueuedLibrary
from polysci.runtime.build import process
from polysci.target.isa import Isa
from polysci.target.isas import DEVICE_ISAS
from polysci.target.target import KIB, MIB, ComputeUnit, Memory, Target

PREFIX: Final = "cuda"
NO_DRIVER: Final = "no driver: libcuda.so.1 is missing"
DRIVER: Final = "NVIDIA's driver brings libcuda.so.1 (cuda:sm_80 compiles without)"
STATIC_SHARED: Final = 48 * KIB  # that a kernel may declare, on every architecture
NON_BLOCKING: Final = 1  # a stream for which copies do not wait
RELAXED: Final = 2  # a capture during which other calls may do anything
# Errors of kernels, after which every call of the process fails.
_LOST: Final = frozenset({f"CUDA_ERROR_{word}" for word in (
    "ILLEGAL_ADDRESS", "ILLEGAL_INSTRUCTION", "INVALID_ADDRESS_SPACE", "INVALID_PC",
    "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "MISALIGNED_ADDRESS", "HARDWARE_STACK_ERROR",
    "ECC_UNCORRECTABLE", "DEVICE_UNAVAILABLE",
)})  # fmt: skip
_BINARY: Final = ".cubin"
_LOG: Final = ".log"
_DISASSEMBLER: Final = "nvdisasm"
_DISASSEMBLY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Architecture:
    """A device that stands for its architecture; sizes are in KiB, those of ``memory`` in MiB.

    ``clock`` in GHz is that of its published peak, ``bandwidth`` the GB/s of its memory.
    """

    model: str
    multiprocessors: int
    first_level: int
    second_level: int
    memory: int
    clock: float
    bandwidth: float


# NVIDIA's data sheets and the CUDA C++ Programming Guide, technical specifications; the first level
# is what caches and shared memory of a multiprocessor have together.
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({
    "sm_75": Architecture("T4", 40, 96, 4096, 16384, 1.59, 320.0),
    "sm_80": Architecture("A100", 108, 192, 40960, 40960, 1.41, 1555.0),
    "sm_86": Architecture("A10", 72, 128, 6144, 24576, 1.695, 600.0),
    "sm_89": Architecture("L4", 58, 128, 49152, 24576, 2.04, 300.0),
    "sm_90": Architecture("H100", 132, 256, 51200, 81920, 1.98, 3352.0),
})  # fmt: skip


def _describe(
    place: str, architecture: str, title: str, units: int, memories: tuple[Memory, ...],
) -> Target:  # fmt: skip
    isa, limits, backend = _isa_of(architecture), limits_of(architecture), f"{PREFIX}:{place}"
    unit = ComputeUnit(lanes=limits.lanes, most=limits.warps)
    return Target(isa, isa.features, memories, units, title, backend=backend, unit=unit)


def _memories(
    first: int, second: int, shared: int, memory: int, near: float = 0.0, far: float = 0.0
) -> tuple[Memory, ...]:
    """Return the memories of sizes in bytes; GB/s of the groups' memory and of the device's."""
    return (
        Memory("L1", first), Memory("L2", second, cores=0),
        Memory("local", shared, bandwidth=near, kind="local"),
        Memory("memory", memory, cores=0, bandwidth=far, kind="global"),
    )  # fmt: skip


def _isa_of(architecture: str) -> Isa:
    """Return the row of the newest architecture that is no newer than this one."""
    number = int(architecture.removeprefix("sm_"))
    known = {80: "cuda80", 75: "cuda75"}
    return DEVICE_ISAS[next((name for least, name in known.items() if number >= least), "cuda4")]


def target_of(architecture: str) -> Target:
    """Return the description of a device of an architecture. Raises UnsupportedError."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedError(f"{PREFIX}:{architecture}: no such architecture; known: {known}")
    row = ARCHITECTURES[architecture]
    memories = _memories(
        row.first_level * KIB, row.second_level * KIB, STATIC_SHARED, row.memory * MIB,
        row.clock * ComputeUnit().front, row.bandwidth / row.multiprocessors,
    )  # fmt: skip
    title = f"{row.model} ({architecture})"
    return _describe(architecture, architecture, title, row.multiprocessors, memories)


# The driver.


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of the driver returns. Raises PolysciError or MemoryError."""
    status, *results = function(*arguments)
    if int(status):
        what = f"CUDA: {getattr(function, '__name__', 'the driver')}: {status.name}"
        if status.name == "CUDA_ERROR_OUT_OF_MEMORY":
            raise MemoryError(what)
        lost = "; this process has lost the device" * (status.name in _LOST)
        raise PolysciError(f"{what}{lost}")
    return results[0] if results else None


@cache
def device_count() -> int:
    """Return the number of devices. Raises UnsupportedError where there is no driver."""
    driver = import_cuda("driver")
    try:
        _call(driver.cuInit, 0)
    except RuntimeError:  # the library is not found
        raise UnsupportedError(f"CUDA: {NO_DRIVER}; {DRIVER}") from None
    except PolysciError as error:
        raise UnsupportedError(f"CUDA: no device: {error}") from None
    return int(_call(driver.cuDeviceGetCount))


@dataclass(frozen=True, slots=True, weakref_slot=True)
class DeviceMemory:
    """A place in a device's memory, given back with the object where it is no part of another."""

    address: int
    whole: DeviceMemory | None = None

    @classmethod
    def reserve(cls, driver: Any, context: Any, size: int) -> DeviceMemory:
        """Reserve bytes. Raises MemoryError."""
        memory = cls(int(_call(driver.cuMemAlloc, max(size, 1))))
        weakref.finalize(memory, _free, driver, context, memory.address)
        return memory


def _free(driver: Any, context: Any, address: int) -> None:
    driver.cuCtxSetCurrent(context)
    driver.cuMemFree(address)


@dataclass(slots=True, weakref_slot=True)
class CudaGraph:
    """Launches that are given to the device as one; the arguments are in ``numbers``."""

    numbers: tuple[int, ...]
    runnable: Any

    @classmethod
    def of(cls, driver: Any, context: Any, numbers: tuple[int, ...], graph: Any) -> CudaGraph:
        """Make a captured graph ready to run."""
        recording = cls(numbers, _call(driver.cuGraphInstantiate, graph, 0))
        weakref.finalize(recording, _destroy, driver, context, recording.runnable)
        return recording


def _destroy(driver: Any, context: Any, runnable: Any) -> None:
    driver.cuCtxSetCurrent(context)
    driver.cuGraphExecDestroy(runnable)


@dataclass(slots=True)
class CudaStream:
    """A device with its context and a stream; ``seconds`` are those of its launches.

    ``recorder`` is a stream that captures graphs and runs nothing. Where the stream is a caller's,
    nothing ``waits`` for launches.
    """

    device: Any
    context: Any
    stream: Any
    recorder: Any
    seconds: float = 0.0
    lock: Lock = field(default_factory=Lock)
    waits: bool = True
    addressed: ClassVar[bool] = True

    @classmethod
    def of(cls, number: int) -> CudaStream:
        """Open a device. Raises UnsupportedError where there is none of that number."""
        driver, count = import_cuda("driver"), device_count()
        if not 0 <= number < count:
            raise UnsupportedError(f"no device {PREFIX}:{number}; there are {count}")
        device = _call(driver.cuDeviceGet, number)
        context = _call(driver.cuDevicePrimaryCtxRetain, device)
        _call(driver.cuCtxSetCurrent, context)
        streams = [_call(driver.cuStreamCreate, flags) for flags in (0, NON_BLOCKING)]
        return cls(device, context, *streams)

    def on(self, stream: int) -> CudaStream:
        """Return the device with a stream of the caller's."""
        return replace(self, stream=stream, waits=False)

    def enter(self) -> Any:
        """Make the context that of this thread; return the driver's functions."""
        driver = import_cuda("driver")
        _call(driver.cuCtxSetCurrent, self.context)
        return driver

    def attribute(self, name: str) -> int:
        """Return an attribute of the device by the end of its name."""
        driver = import_cuda("driver")
        kind = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_call(driver.cuDeviceGetAttribute, kind, self.device))

    @property
    def architecture(self) -> str:
        """Its architecture, as ``sm_80``."""
        major, minor = (self.attribute(f"COMPUTE_CAPABILITY_{word}") for word in ("MAJOR", "MINOR"))
        return f"sm_{major}{minor}"

    @property
    def model(self) -> str:
        """Its name and architecture."""
        name = _call(import_cuda("driver").cuDeviceGetName, 256, self.device).decode()
        return f"{name.partition(chr(0))[0].strip()} ({self.architecture})"

    @property
    def memory(self) -> int:
        """Bytes of its memory."""
        return int(_call(import_cuda("driver").cuDeviceTotalMem, self.device))

    def target(self, number: int) -> Target:
        """Return the description of the device."""
        memories = _memories(
            self.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            self.attribute("L2_CACHE_SIZE"), self.attribute("MAX_SHARED_MEMORY_PER_BLOCK"),
            self.memory,
        )  # fmt: skip
        count = self.attribute("MULTIPROCESSOR_COUNT")
        return _describe(str(number), self.architecture, self.model, count, memories)

    def buffer(self, size: int) -> DeviceMemory:
        """Reserve bytes of the device's memory. Raises MemoryError."""
        try:
            return DeviceMemory.reserve(self.enter(), self.context, size)
        except MemoryError as error:
            raise MemoryError(
                f"{size} bytes on {self.model}, which has {self.memory} in all: {error}"
            ) from None

    def part(self, buffer: DeviceMemory, start: int, size: int) -> DeviceMemory:
        """Return a place in a buffer."""
        return DeviceMemory(buffer.address + start, buffer)

    def copy_in(self, array: Array) -> DeviceMemory:
        """Copy an array to the device."""
        buffer = self.buffer(array.nbytes)
        self.write(buffer, array)
        return buffer

    def write(self, buffer: DeviceMemory, array: Array) -> None:
        """Copy an array to a buffer."""
        driver, data = self.enter(), np.ascontiguousarray(array)
        if data.nbytes:
            _call(driver.cuMemcpyHtoD, buffer.address, data.ctypes.data, data.nbytes)

    def copy_out(self, buffer: DeviceMemory, array: Array) -> None:
        """Copy a result to its array, when all launches before have ended."""
        driver = self.enter()
        _call(driver.cuStreamSynchronize, self.stream)
        if array.nbytes:
            data = np.empty(array.shape, array.dtype)
            _call(driver.cuMemcpyDtoH, data.ctypes.data, buffer.address, array.nbytes)
            array[...] = data

    def run(self, kernels: Mapping[str, Any], launches: Launches) -> list[float]:
        """Launch kernels and wait; return the seconds from the first one to each mark."""
        driver = self.enter()
        with self.lock:
            events = self.events(driver)
            for step, values in launches:
                if isinstance(step, Mark):
                    events += self.events(driver)
                else:
                    self.launch(driver, kernels[step.kernel], step, values, self.stream)
            return self.wait(driver, events)

    def replay(
        self, kernels: Mapping[str, Any], function: LaunchedFunction, arguments: Sequence[Any],
        recording: CudaGraph | None,
    ) -> CudaGraph:  # fmt: skip
        """Run a function as one graph, with which it is captured where arguments are other ones."""
        driver, numbers = self.enter(), tuple(map(_number, arguments))
        with self.lock:
            if recording is None or recording.numbers != numbers:
                graph = self.capture(driver, kernels, function.launches(arguments))
                recording = self.renew(driver, recording, numbers, graph)
                _call(driver.cuGraphDestroy, graph)
            events = self.events(driver)
            _call(driver.cuGraphLaunch, recording.runnable, self.stream)
            self.wait(driver, events)
        return recording

    def capture(self, driver: Any, kernels: Mapping[str, Any], launches: Launches) -> Any:
        """Return the graph of launches, which do not run."""
        _call(driver.cuStreamBeginCapture, self.recorder, driver.CUstreamCaptureMode(RELAXED))
        try:
            for step, values in launches:
                if isinstance(step, Launch):
                    self.launch(driver, kernels[step.kernel], step, values, self.recorder)
        finally:
            graph = _call(driver.cuStreamEndCapture, self.recorder)
        return graph

    def renew(
        self, driver: Any, recording: CudaGraph | None, numbers: tuple[int, ...], graph: Any
    ) -> CudaGraph:
        """Return what runs a graph: an earlier one with its arguments, where the driver can."""
        if recording is not None:
            status, _ = driver.cuGraphExecUpdate(recording.runnable, graph)
            if not int(status):
                recording.numbers = numbers
                return recording
        return CudaGraph.of(driver, self.context, numbers, graph)

    def wait(self, driver: Any, events: list[Any]) -> list[float]:
        """Wait for all launches; return the seconds from the first event to each other one."""
        events += self.events(driver)
        if not events:
            return []
        _call(driver.cuStreamSynchronize, self.stream)
        first, *rest = events
        taken = [_call(driver.cuEventElapsedTime, first, event) * 1e-3 for event in rest]
        self.seconds += taken[-1]
        for event in events:
            _call(driver.cuEventDestroy, event)
        return taken[:-1]

    def events(self, driver: Any) -> list[Any]:
        """Return an event behind the launches so far; none where nothing waits for them."""
        if not self.waits:
            return []
        event = _call(driver.cuEventCreate, 0)
        _call(driver.cuEventRecord, event, self.stream)
        return [event]

    def launch(
        self, driver: Any, kernel: Any, step: Launch, values: Sequence[Any], stream: Any
    ) -> None:
        """Launch a kernel: every parameter is an integer or an address, of 8 bytes."""
        places = (ctypes.c_int64 * len(values))(*map(_number, values))
        start = ctypes.addressof(places)
        pointers = (ctypes.c_void_p * len(values))(*(start + 8 * at for at in range(len(values))))
        try:
            _call(
                driver.cuLaunchKernel, kernel, step.items, 1, 1, step.group, 1, 1, 0, stream,
                ctypes.addressof(pointers), 0,
            )  # fmt: skip
        except PolysciError as error:
            what = f"kernel {step.kernel}, groups of {step.group} work-items"
            raise PolysciError(f"{what}: {error}") from None


def _number(argument: Any) -> int:
    """Return an argument as a kernel takes it."""
    return argument.address if isinstance(argument, DeviceMemory) else int(argument or 0)


@cache
def stream_of(number: int) -> CudaStream:
    """Open device ``number`` once. Raises UnsupportedError where there is none of that number."""
    return CudaStream.of(number)


@dataclass(frozen=True, slots=True)
class Cuda(QueuedBackend):
    """A device by its number, or an architecture, for which code is compiled and not run."""

    place: str = "0"
    suffix: ClassVar[str] = ".cu"

    @property
    def name(self) -> str:
        """Its row among the backends."""
        return f"{PREFIX}:{self.place}"

    @property
    def measured(self) -> bool:
        """Return whether it runs code: an architecture does not."""
        return self.place.isdecimal()

    @property
    def compiler(self) -> str:
        """NVRTC. Raises UnsupportedError where it is not installed."""
        major, minor = nvrtc.version()
        return f"NVRTC {major}.{minor} for {self.architecture}"

    @property
    def refusal(self) -> str:
        """Why an architecture runs nothing; empty for a device."""
        text = f"{self.name}: compiles code, which runs on a device: cuda:0"
        return "" if self.place.isdecimal() else text

    @property
    def queue(self) -> CudaStream:
        """The device. Raises UnsupportedError where there is none."""
        if self.refusal:
            raise UnsupportedError(self.refusal)
        return stream_of(int(self.place))

    @property
    def architecture(self) -> str:
        """The architecture that code is compiled for, as ``sm_80``."""
        return self.queue.architecture if self.place.isdecimal() else self.place

    def targets(self) -> tuple[Target, ...]:
        """Return the one device. Raises UnsupportedError where it is not there or not known."""
        if self.place.isdecimal():
            return (self.queue.target(int(self.place)),)
        nvrtc.version()
        return (target_of(self.place),)

    def words(self, flags: Sequence[str] | None) -> list[str]:
        """Return what compiles and the options of a build."""
        return [self.compiler, *_options(flags)]

    def compile(self, source: str, flags: Sequence[str] | None) -> dict[str, bytes]:
        """Return the binary of a text and the log of the compiler. Raises BuildError."""
        name = f"code{self.suffix}"
        binary, log = nvrtc.compile_text(source, self.architecture, _options(flags), name)
        return {_BINARY: binary, _LOG: log.encode()}

    def binary(self, source: str, flags: Sequence[str] | None = None) -> bytes:
        """Return the machine code of a text. Raises BuildError."""
        return self.compile(source, flags)[_BINARY]

    def ptx(self, source: str, flags: Sequence[str] | None = None) -> str:
        """Return the PTX of a text, for devices of the architecture and newer ones. BuildError."""
        virtual = self.architecture.replace("sm_", "compute_")
        ptx, _ = nvrtc.compile_text(source, virtual, _options(flags), f"code{self.suffix}")
        return ptx.decode().rstrip("\0")

    def build_many(
        self, texts: Sequence[str], *, jobs: int = 2, symbols: Sequence[Sequence[str]] = (),
        meanwhile: Callable[[], None] = lambda: None, modules: Sequence[LoopModule] = (),
    ) -> list[Path]:  # fmt: skip
        """Build texts, ``jobs`` at a time: NVRTC lets other threads run."""
        with ThreadPoolExecutor(jobs) as pool:
            built = [
                pool.submit(self.build, text, symbols=its)
                for text, its in zip(texts, symbols or [()] * len(texts), strict=True)
            ]
            meanwhile()
            return [future.result() for future in built]

    @property
    def occupancy(self) -> Callable[[Path], Occupancy] | None:
        """Return what tells how many blocks of a built file a multiprocessor holds."""
        return self._occupancy

    def _occupancy(self, path: Path) -> Occupancy:
        launches = read_launches(path.read_text(encoding="utf-8")).values()
        threads = {step.kernel: step.group for function in launches
                   for step in function.kernel_launches() if step.group > 1}  # fmt: skip
        rows, limits = resources(path), limits_of(self.architecture)
        own = [row for row in rows if row.kernel in threads]
        return Occupancy(
            min(limits.blocks_at_a_time(threads[row.kernel], row.registers, row.shared)
                for row in own),
            max(row.registers for row in own), max(row.spilled for row in own),
            max(row.shared for row in own),
        )  # fmt: skip

    def assemble(self, texts: Sequence[str], *, flags: Sequence[str] | None = None) -> list[str]:
        """Return the machine code of texts; PTX where no nvdisasm is installed."""
        program = find_disassembler()
        if program is None:
            return [self.ptx(text, flags) for text in texts]
        paths = [self.build(text, flags=flags) for text in texts]
        return [_disassemble(program, path.with_suffix(_BINARY)) for path in paths]

    def load(self, path: Path, declarations: str) -> QueuedLibrary:
        """Return the kernels of a built file. Raises BuildError."""
        stream = self.queue
        driver = stream.enter()
        try:
            functions = read_launches(path.read_text(encoding="utf-8"))
            module = _call(driver.cuModuleLoadData, path.with_suffix(_BINARY).read_bytes())
            names = [row.kernel for row in resources(path)]
            kernels = {name: _call(driver.cuModuleGetFunction, module, name.encode())
                       for name in names}  # fmt: skip
        except (OSError, PolysciError) as error:
            raise BuildError(f"{path}: {error}") from None
        return QueuedLibrary(path, stream, functions, kernels)

    def is_argument(self, argument: object) -> bool:
        """Return whether it is memory of a device."""
        return isinstance(argument, DeviceMemory)


def _options(flags: Sequence[str] | None) -> tuple[str, ...]:
    """Return the options of NVRTC by the flags of a build."""
    return OPTIONS if KEEP_FLAG in (flags or ()) else (*OPTIONS, FLUSH)


def resources(path: Path) -> tuple[Resources, ...]:
    """Return what each kernel of a built file takes of a multiprocessor."""
    return nvrtc.parse_resources(path.with_suffix(_LOG).read_text(encoding="utf-8"))


def find_disassembler() -> str | None:
    """Return the program that shows machine code, of the package or of the PATH; None: neither."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        return shutil.which(_DISASSEMBLER)
    path: str | None = find_nvidia_binary_utility(_DISASSEMBLER)
    return path


def _disassemble(program: str, binary: Path) -> str:
    """Return the machine code of a binary. Raises BuildError."""
    ended = process.run([program, "-c", str(binary)], timeout=_DISASSEMBLY_S)
    if not ended.ok:
        raise BuildError(f"{ended.command}: {ended}: {ended.stderr[:MESSAGE]}")
    return ended.stdout
