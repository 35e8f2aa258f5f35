"""CUDA: kernels that NVRTC compiles, on a device through its driver, or for one that is not here.

``cuda:0`` is a device and needs NVIDIA's driver; ``cuda:sm_80`` is an architecture, for which code
is compiled alone. Code is CUDA C++ behind its launches, as ``printers.devices`` prints it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from polysci.border.files import replace_file
from polysci.errors import BuildError, PolysciError, UnsupportedError
from polysci.loop_ir.kernels import Launch, Mark
from polysci.loop_ir.nodes import EMPTY, LoopModule
from polysci.numerics.arrays import Array
from polysci.printers.interface import KEEP_FLAG
from polysci.printers.launches import holds_network, read_launches
from polysci.runtime.backends import nvrtc
from polysci.runtime.backends.nvrtc import FLUSH, OPTIONS, Resources, import_cuda
from polysci.runtime.backends.queued import Launches, QueuedLibrary, QueuedNetwork
from polysci.runtime.build import process
from polysci.runtime.build.folder import cache_dir
from polysci.target.isa import Isa
from polysci.target.isas import DEVICE_ISAS
from polysci.target.target import KIB, MIB, Memory, Target

PREFIX: Final = "cuda"
NO_DRIVER: Final = (
    "no driver: libcuda.so.1 is missing; NVIDIA's driver brings it (cuda:sm_80 compiles without)"
)
NO_DEVICE: Final = "the driver finds no GPU"
STATIC_SHARED: Final = 48 * KIB  # that a kernel may declare, on every architecture
_DISASSEMBLER: Final = "nvdisasm"
_DISASSEMBLY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Architecture:
    """A device that stands for its architecture; sizes are in KiB, those of ``memory`` in MiB."""

    model: str
    multiprocessors: int
    first_level: int
    second_level: int
    memory: int


# NVIDIA's data sheets and the CUDA C++ Programming Guide, technical specifications; the first level
# is what caches and shared memory of a multiprocessor have together.
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({
    "sm_75": Architecture("T4", 40, 96, 4096, 16384),
    "sm_80": Architecture("A100", 108, 192, 40960, 40960),
    "sm_86": Architecture("A10", 72, 128, 6144, 24576),
    "sm_89": Architecture("L4", 58, 128, 49152, 24576),
    "sm_90": Architecture("H100", 132, 256, 51200, 81920),
})  # fmt: skip


def _describe(
    place: str, architecture: str, title: str, units: int, sizes: tuple[int, int, int],
    shared: int = STATIC_SHARED,
) -> Target:  # fmt: skip
    """Return the description of a device by the sizes of its memories in bytes."""
    first, second, memory = sizes
    memories = (
        Memory("L1", first), Memory("L2", second, cores=0),
        Memory("local", shared, kind="local"), Memory("memory", memory, cores=0, kind="global"),
    )  # fmt: skip
    isa = _isa_of(architecture)
    return Target(isa, isa.features, memories, units, title, backend=f"{PREFIX}:{place}")


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
    sizes = (row.first_level * KIB, row.second_level * KIB, row.memory * MIB)
    title = f"{row.model} ({architecture})"
    return _describe(architecture, architecture, title, row.multiprocessors, sizes)


# The driver.


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of the driver returns. Raises PolysciError with its error."""
    status, *results = function(*arguments)
    if int(status):
        name, size = status.name, arguments[0] if arguments else ""
        if name == "CUDA_ERROR_OUT_OF_MEMORY":
            raise MemoryError(f"{size} bytes on a CUDA device: {name}")
        raise PolysciError(f"CUDA: {getattr(function, '__name__', 'the driver')}: {name}")
    return results[0] if results else None


@cache
def device_count() -> int:
    """Return the number of devices. Raises UnsupportedError where there is no driver."""
    driver = import_cuda("driver")
    try:
        _call(driver.cuInit, 0)
    except RuntimeError:  # the library is not found
        raise UnsupportedError(f"CUDA: {NO_DRIVER}") from None
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


@dataclass(slots=True)
class CudaStream:
    """A device with its context and a stream; ``seconds`` are those of its launches."""

    device: Any
    context: Any
    stream: Any
    seconds: float = 0.0
    lock: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, number: int) -> CudaStream:
        """Open a device. Raises UnsupportedError where there is none of that number."""
        driver, count = import_cuda("driver"), device_count()
        if not 0 <= number < count:
            raise UnsupportedError(f"no device {PREFIX}:{number}; there are {count}")
        device = _call(driver.cuDeviceGet, number)
        context = _call(driver.cuDevicePrimaryCtxRetain, device)
        _call(driver.cuCtxSetCurrent, context)
        return cls(device, context, _call(driver.cuStreamCreate, 0))

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

    def target(self, number: int) -> Target:
        """Return the description of the device."""
        driver = self.enter()
        name = _call(driver.cuDeviceGetName, 256, self.device).decode().rstrip("\0 ")
        sizes = (
            self.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            self.attribute("L2_CACHE_SIZE"), int(_call(driver.cuDeviceTotalMem, self.device)),
        )  # fmt: skip
        return _describe(
            str(number), self.architecture, f"{name} ({self.architecture})",
            self.attribute("MULTIPROCESSOR_COUNT"), sizes,
            self.attribute("MAX_SHARED_MEMORY_PER_BLOCK"),
        )  # fmt: skip

    def buffer(self, size: int) -> DeviceMemory:
        """Reserve bytes of the device's memory. Raises MemoryError."""
        return DeviceMemory.reserve(self.enter(), self.context, size)

    def part(self, buffer: DeviceMemory, start: int, size: int) -> DeviceMemory:
        """Return a place in a buffer."""
        return DeviceMemory(buffer.address + start, buffer)

    def copy_in(self, array: Array) -> DeviceMemory:
        """Copy an array to the device."""
        driver, buffer, data = self.enter(), self.buffer(array.nbytes), np.ascontiguousarray(array)
        if data.nbytes:
            _call(driver.cuMemcpyHtoD, buffer.address, data.ctypes.data, data.nbytes)
        return buffer

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
            events = [self.event(driver)]
            for step, values in launches:
                if isinstance(step, Mark):
                    events.append(self.event(driver))
                else:
                    self.launch(driver, kernels[step.kernel], step, values)
            events.append(self.event(driver))
            _call(driver.cuStreamSynchronize, self.stream)
            first, *rest = events
            taken = [_call(driver.cuEventElapsedTime, first, event) * 1e-3 for event in rest]
            self.seconds += taken[-1]
            for event in events:
                _call(driver.cuEventDestroy, event)
        return taken[:-1]

    def event(self, driver: Any) -> Any:
        """Return an event behind the launches so far."""
        event = _call(driver.cuEventCreate, 0)
        _call(driver.cuEventRecord, event, self.stream)
        return event

    def launch(self, driver: Any, kernel: Any, step: Launch, values: Sequence[Any]) -> None:
        """Launch a kernel: every parameter is an integer or an address, of 8 bytes."""
        numbers = [it.address if isinstance(it, DeviceMemory) else int(it or 0) for it in values]
        places = (ctypes.c_int64 * len(numbers))(*numbers)
        start = ctypes.addressof(places)
        pointers = (ctypes.c_void_p * len(numbers))(*(start + 8 * at for at in range(len(numbers))))
        _call(
            driver.cuLaunchKernel, kernel, step.items, 1, 1, step.group, 1, 1, 0, self.stream,
            ctypes.addressof(pointers), 0,
        )  # fmt: skip


@cache
def stream_of(number: int) -> CudaStream:
    """Open device ``number`` once. Raises UnsupportedError where there is none of that number."""
    return CudaStream.of(number)


@dataclass(frozen=True, slots=True)
class Cuda:
    """A device by its number, or an architecture, for which code is compiled and not run."""

    place: str = "0"

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
    def stream(self) -> CudaStream:
        """The device. Raises UnsupportedError where there is none."""
        if not self.place.isdecimal():
            raise UnsupportedError(f"{self.name}: compiles code, which runs on a device: cuda:0")
        return stream_of(int(self.place))

    @property
    def architecture(self) -> str:
        """The architecture that code is compiled for, as ``sm_80``."""
        return self.stream.architecture if self.place.isdecimal() else self.place

    def targets(self) -> tuple[Target, ...]:
        """Return the one device. Raises UnsupportedError where it is not there or not known."""
        if self.place.isdecimal():
            return (self.stream.target(int(self.place)),)
        nvrtc.version()
        return (target_of(self.place),)

    def build(
        self, text: str | Sequence[str], *, flags: Sequence[str] | None = None,
        symbols: Sequence[str] = (), timeout: float | None = None, module: LoopModule = EMPTY,
    ) -> Path:  # fmt: skip
        """Return the file of the text, beside which lie its binary and the log of the compiler."""
        source = text if isinstance(text, str) else "\n".join(text)
        architecture, options = self.architecture, _options(flags)
        words = [self.compiler, *options, source]
        key = hashlib.sha256("\0".join(words).encode()).hexdigest()
        path = cache_dir() / PREFIX / key / "code.cu"
        if not path.exists():
            binary, log = nvrtc.compile_text(source, architecture, options, path.name)
            entry = {"sha256": hashlib.sha256(binary).hexdigest(), "compiler": self.compiler}
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            contents = {
                _binary_of(path): binary, _log_of(path): log.encode(),
                path.with_name("entry.json"): json.dumps(entry).encode(), path: source.encode(),
            }  # fmt: skip
            for file, content in contents.items():  # the text last: who finds it finds the others
                with replace_file(file) as writer:
                    writer.write(content)
        known = read_launches(source).keys()
        if lacking := set() if holds_network(source) else set(symbols) - known:
            raise BuildError(f"{path}: no function {', '.join(sorted(lacking))}")
        return path

    def build_many(
        self, texts: Sequence[str], *, jobs: int = 2, symbols: Sequence[Sequence[str]] = (),
        meanwhile: Callable[[], None] = lambda: None, modules: Sequence[LoopModule] = (),
    ) -> list[Path]:  # fmt: skip
        """Build texts one after the other."""
        meanwhile()
        return [
            self.build(text, symbols=its)
            for text, its in zip(texts, symbols or [()] * len(texts), strict=True)
        ]

    def assemble(self, texts: Sequence[str], *, flags: Sequence[str] | None = None) -> list[str]:
        """Return the machine code of texts; PTX where no nvdisasm is installed."""
        program = find_disassembler()
        if program is None:
            virtual, options = self.architecture.replace("sm_", "compute_"), _options(flags)
            compiled = (nvrtc.compile_text(text, virtual, options, "kernels.cu") for text in texts)
            return [ptx.decode().rstrip("\0") for ptx, _ in compiled]
        paths = [self.build(text, flags=flags) for text in texts]
        return [_disassemble(program, _binary_of(path)) for path in paths]

    def load(self, path: Path, declarations: str) -> QueuedLibrary:
        """Return the kernels of a built file. Raises BuildError."""
        stream = self.stream
        driver = stream.enter()
        try:
            functions = read_launches(path.read_text(encoding="utf-8"))
            module = _call(driver.cuModuleLoadData, _binary_of(path).read_bytes())
            names = [row.kernel for row in resources(path)]
            kernels = {name: _call(driver.cuModuleGetFunction, module, name.encode())
                       for name in names}  # fmt: skip
        except (OSError, PolysciError) as error:
            raise BuildError(f"{path}: {error}") from None
        return QueuedLibrary(path, stream, functions, kernels)

    def load_network(
        self, path: Path, name: str, declarations: str, weights: Sequence[Array] | Path
    ) -> QueuedNetwork:
        """Return a network of a built file. Raises BuildError, or PolysciError for weights."""
        if isinstance(weights, Path):
            raise PolysciError(f"{weights}: a device reads no files")
        return QueuedNetwork.load(self.load(path, declarations), name, weights)

    def is_argument(self, argument: object) -> bool:
        """Return whether it is memory of a device."""
        return isinstance(argument, DeviceMemory)

    def restore(self, array: Array) -> DeviceMemory:
        """Copy packed weights to the device."""
        return self.stream.copy_in(array)

    def time(self, run: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> float:
        """Return the mean seconds of a call's kernels, as the device's events say."""
        stream = self.stream
        before = stream.seconds
        for own in arguments:
            run(*own)
        return (stream.seconds - before) / len(arguments)


def _options(flags: Sequence[str] | None) -> tuple[str, ...]:
    """Return the options of NVRTC by the flags of a build."""
    return OPTIONS if KEEP_FLAG in (flags or ()) else (*OPTIONS, FLUSH)


def _binary_of(path: Path) -> Path:
    return path.with_suffix(".cubin")


def _log_of(path: Path) -> Path:
    return path.with_suffix(".log")


def resources(path: Path) -> tuple[Resources, ...]:
    """Return what each kernel of a built file takes of a multiprocessor."""
    return nvrtc.parse_resources(_log_of(path).read_text(encoding="utf-8"))


def find_disassembler() -> str | None:
    """Return the program that shows machine code, of the package or of the PATH; None: neither."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        return shutil.which(_DISASSEMBLER)
    found: str | None = find_nvidia_binary_utility(_DISASSEMBLER)
    return found


def _disassemble(program: str, binary: Path) -> str:
    """Return the machine code of a binary. Raises BuildError."""
    ended = process.run([program, "-c", str(binary)], timeout=_DISASSEMBLY_S)
    if not ended.ok:
        raise BuildError(f"{ended.command}: {ended}: {ended.stderr[: nvrtc.MESSAGE]}")
    return ended.stdout
