"""Code of a device with a queue, loaded: functions that launch kernels, networks with their memory.

What a language has of its own is its ``DeviceQueue``.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from polysci.border.files import replace_file
from polysci.errors import BuildError, PolysciError, UnsupportedError
from polysci.loop_ir.kernels import Launch, LaunchedFunction, Mark
from polysci.loop_ir.nodes import EMPTY, LoopModule
from polysci.numerics.arrays import Array
from polysci.numerics.quantization import Scales
from polysci.printers.launches import NetworkMemory, holds_network, read_launches, read_network
from polysci.runtime.build.folder import cache_dir

MESSAGE: Final = 2000  # letters of a log or an error that a message shows
Launches = Iterable[tuple[Launch | Mark, list[Any]]]


class DeviceQueue(Protocol):
    """A device's memory, and its queue of launches; ``seconds`` are those that they took.

    ``addressed``: kernels take numbers as addresses in that memory.
    """

    seconds: float

    @property
    def addressed(self) -> bool: ...

    def on(self, stream: int) -> DeviceQueue:
        """Return another queue of the device, the caller's of this handle, that runs wait not for.

        Raises UnsupportedError where handles name no queues.
        """

    def buffer(self, size: int) -> Any:
        """Reserve bytes of the device's memory. Raises MemoryError."""

    def copy_in(self, array: Array) -> Any:
        """Copy an array to the device."""

    def write(self, buffer: Any, array: Array) -> None:
        """Copy an array to a buffer of its size."""

    def copy_out(self, buffer: Any, array: Array) -> None:
        """Copy a result to its array, when all launches before have ended."""

    def part(self, buffer: Any, start: int, size: int) -> Any:
        """Return so many bytes of a buffer; ``start`` is a multiple of 4096."""

    def run(self, kernels: Mapping[str, Any], launches: Launches) -> list[float]:
        """Launch kernels and wait; return the seconds before each mark."""

    def replay(
        self, kernels: Mapping[str, Any], function: LaunchedFunction, arguments: Sequence[Any],
        recording: Any,
    ) -> Any:  # fmt: skip
        """Run a function without marks and wait; return what makes its next run cheaper.

        ``recording`` is what the run before returned, None at first.
        """


@dataclass(slots=True)
class NoDevice:
    """Stands for the queue of code that is compiled alone: what needs a device is refused."""

    refusal: str
    seconds: float = 0.0
    addressed: bool = False

    def _refuse(self, *_: Any) -> Any:
        raise UnsupportedError(self.refusal)

    on = buffer = copy_in = write = copy_out = part = run = replay = _refuse


@dataclass(frozen=True, slots=True)
class QueuedLibrary:
    """Kernels that a device has loaded, and the functions that launch them."""

    path: Path
    queue: DeviceQueue
    functions: Mapping[str, LaunchedFunction]
    kernels: Mapping[str, Any]
    null: None = None

    def __str__(self) -> str:
        return str(self.path)

    def function(self, name: str) -> Callable[..., Any]:
        """Return what launches a function's kernels and waits. BuildError where it lacks."""
        if name not in self.functions:
            raise BuildError(f"{self}: no function {name}")

        def launch(*arguments: Any) -> int:
            self.launch(name, arguments)
            return self.functions[name].result

        return launch

    def launch(self, name: str, arguments: Sequence[Any]) -> list[float]:
        """Launch a function's kernels and wait; return the seconds before each mark."""
        return self.queue.run(self.kernels, self.functions[name].launches(arguments))

    def copy_in(self, c_type: str) -> Callable[[Array], Any]:
        """Return what copies arrays to the device, whatever their elements are."""
        return self.queue.copy_in

    def allocator(
        self, shape: tuple[int, ...], dtype: Any, c_type: str
    ) -> Callable[[Any], tuple[Array, Any]]:
        """Return what makes arrays for results, and buffers of their size."""

        def allocate(_: object) -> tuple[Array, Any]:
            array: Array = np.empty(shape, dtype)
            return array, self.queue.buffer(array.nbytes)

        return allocate

    def copy_out(self, buffer: Any, array: Array) -> None:
        """Copy a result to its array."""
        self.queue.copy_out(buffer, array)

    def write(self, buffer: Any, array: Array) -> None:
        """Copy an array to a buffer."""
        self.queue.write(buffer, array)

    def part(self, buffer: Any, start: int, size: int) -> Any:
        """Return bytes of a buffer as a buffer."""
        return self.queue.part(buffer, start, size)

    def scales(self, scales: Scales, by_channel: Array) -> Any:
        """Return a buffer of an integer result's scales, as ``polysci_scales`` of devices is."""
        words = np.array([scales.residual_scale, 0, 0, *by_channel], np.float32)
        words[1:3].view(np.int32)[:] = scales.residual_zero, scales.y_zero
        return self.queue.copy_in(words)


@dataclass(slots=True)
class QueuedContext:
    """The tensors of one run at a time, the marks of the last one, recordings by function."""

    arena: Any
    marks: list[float] = field(default_factory=list)
    recordings: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class QueuedNetwork:
    """A network that a device has loaded: constants and packed weights in one buffer each.

    ``symbol`` is that of the program that it runs.
    """

    library: QueuedLibrary
    symbol: str
    memory: NetworkMemory
    constants: Any
    packed: Any
    literals: Any

    @classmethod
    def load(cls, library: QueuedLibrary, name: str, weights: Sequence[Array]) -> QueuedNetwork:
        """Copy weights to the device and pack them. Raises PolysciError where it has no room."""
        memory = read_network(library.path.read_text(encoding="utf-8"))
        queue, count = library.queue, len(memory.constants)
        if len(weights) != count + len(memory.packed_by):
            raise PolysciError(f"{name}: {len(weights)} weights, which the code has no room for")
        image = np.zeros(memory.constants_size, np.uint8)
        for (at, size), array in zip(memory.constants, weights, strict=False):
            image[at : at + size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        constants, packed = queue.copy_in(image), queue.buffer(memory.packed_size)
        for function, array in zip(memory.packed_by, weights[count:], strict=True):
            library.function(function)(queue.copy_in(array), packed)
        literals = queue.copy_in(words_of(memory.literals))
        return cls(library, name, memory, constants, packed, literals)

    @classmethod
    def without_device(cls, path: Path, name: str, refusal: str) -> QueuedNetwork:
        """Return a network without a device; what runs it raises UnsupportedError."""
        text = path.read_text(encoding="utf-8")
        library = QueuedLibrary(path, NoDevice(refusal), read_launches(text), {})
        return cls(library, name, read_network(text), None, None, None)

    @property
    def model_bytes(self) -> int:
        """Bytes of constants and packed weights."""
        return self.memory.constants_size + self.memory.packed_size

    @property
    def context_bytes(self) -> int:
        """Bytes of the tensors of a run."""
        return self.memory.arena

    @property
    def run_at(self) -> Callable[..., Any] | None:
        """Return ``run``, which takes addresses as well; None where the device has none."""
        return self.run if self.library.queue.addressed else None

    def entry(self, symbol: str, sizes: Sequence[int] = ()) -> QueuedNetwork:
        """Return the network with the runs of a program of the library."""
        return replace(self, symbol=symbol)

    def on(self, stream: int) -> QueuedNetwork:
        """Return the network with its runs on a queue of the caller's."""
        return replace(self, library=replace(self.library, queue=self.library.queue.on(stream)))

    def context(self) -> QueuedContext:
        """Return the memory of stages but for inputs and outputs. Raises MemoryError."""
        return QueuedContext(self.library.queue.buffer(self.memory.arena))

    def run(self, context: QueuedContext, *arguments: Any) -> None:
        """Launch all stages on inputs and outputs, and wait for their end."""
        buffers = (context.arena, self.constants, self.packed, self.literals, *arguments)
        library, name = self.library, f"{self.symbol}_run"
        function = library.functions[name]
        if any(isinstance(step, Mark) for step in function.steps):
            context.marks = library.launch(name, buffers)
            return
        context.recordings[name] = library.queue.replay(
            library.kernels, function, buffers, context.recordings.get(name)
        )

    def reset(self, context: Any) -> None:
        """Raise UnsupportedError: contexts keep no state."""
        raise UnsupportedError("a device keeps no state")

    def state(self, context: Any, size: int) -> Array:
        """Raise UnsupportedError: contexts keep no state."""
        raise UnsupportedError("a device keeps no state")

    def packed_weights(self) -> memoryview:
        """Return a copy of constants and packed weights."""
        sizes = (self.memory.constants_size, self.memory.packed_size)
        parts = [np.empty(size, np.uint8) for size in sizes]
        for buffer, part in zip((self.constants, self.packed), parts, strict=True):
            self.library.queue.copy_out(buffer, part)
        return memoryview(np.concatenate(parts).tobytes())

    def tensors(self, context: QueuedContext, size: int) -> Array | None:
        """Return a copy of a context's tensors; None where they share memory."""
        if not self.memory.apart:
            return None
        copy = np.empty(size, np.uint8)
        self.library.queue.copy_out(context.arena, copy)
        return copy

    def stage_times(self, context: QueuedContext, stages: int) -> list[float]:
        """Return the marks of the context's last run, in seconds of its kernels."""
        assert len(context.marks) == stages + 1
        return context.marks


def words_of(numbers: Sequence[float | int]) -> Array:
    """Return floats and integers as words of 32 bits."""
    words = np.array(numbers, np.float32)
    for at, number in enumerate(numbers):
        if isinstance(number, int):
            words[at : at + 1].view(np.int32)[0] = number
    return words


def errors_in(log: str) -> str:
    """Return in one line what the log of a compiler says of errors, or all of it."""
    lines = [" ".join(line.split()) for line in re.split(r"[\n\0]", log) if line.strip("\0 ")]
    errors = [line for line in lines if re.search(r"\berror\b", line)]
    return "; ".join(errors or lines)[:MESSAGE]


class QueuedBackend(ABC):
    """A backend of devices with a queue, as far as they are alike: the cache, networks, times.

    Its files have the name ``code`` and an ending: ``suffix`` that of texts, others those of what
    a compiler makes of them.
    """

    __slots__ = ()
    suffix: ClassVar[str]

    @property
    @abstractmethod
    def name(self) -> str:
        """Its row among the backends."""

    @property
    @abstractmethod
    def compiler(self) -> str:
        """The compiler, as records name it."""

    @property
    def refusal(self) -> str:
        """Return why it compiles code and runs none; empty where it runs some."""
        return ""

    @property
    @abstractmethod
    def queue(self) -> DeviceQueue:
        """The device. Raises UnsupportedError where there is none."""

    @abstractmethod
    def words(self, flags: Sequence[str] | None) -> Sequence[str]:
        """Return what compiles and the options of a build."""

    @abstractmethod
    def compile(self, source: str, flags: Sequence[str] | None) -> dict[str, bytes]:
        """Return what a text compiles to by the ending of its file, code first. BuildError."""

    @abstractmethod
    def load(self, path: Path, declarations: str) -> QueuedLibrary:
        """Return the kernels of a built file. Raises BuildError."""

    def build(
        self, text: str | Sequence[str], *, flags: Sequence[str] | None = None,
        symbols: Sequence[str] = (), timeout: float | None = None, module: LoopModule = EMPTY,
    ) -> Path:  # fmt: skip
        """Return the file of the text, beside which lies what it compiles to."""
        source = text if isinstance(text, str) else "\n".join(text)
        key = hashlib.sha256("\0".join([*self.words(flags), source]).encode()).hexdigest()
        path = cache_dir() / self.name.partition(":")[0] / key / f"code{self.suffix}"
        if not path.exists():
            self.keep(path, source, self.compile(source, flags))
        known = read_launches(source).keys()
        if lacking := set() if holds_network(source) else set(symbols) - known:
            raise BuildError(f"{path}: no function {', '.join(sorted(lacking))}")
        return path

    def keep(self, path: Path, source: str, compiled: Mapping[str, bytes]) -> None:
        """Write a text and what it compiled to; the text last: who finds it finds the others."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        digest = hashlib.sha256(next(iter(compiled.values()))).hexdigest()
        entry = {"sha256": digest, "compiler": self.compiler}
        contents = {path.with_suffix(suffix): content for suffix, content in compiled.items()}
        contents[path.with_name("entry.json")] = json.dumps(entry).encode()
        for file, content in {**contents, path: source.encode()}.items():
            with replace_file(file) as writer:
                writer.write(content)

    def build_many(
        self, texts: Sequence[str], *, jobs: int = 2, symbols: Sequence[Sequence[str]] = (),
        meanwhile: Callable[[], None] = lambda: None, modules: Sequence[LoopModule] = (),
    ) -> list[Path]:  # fmt: skip
        """Build texts one after the other: compilers of devices keep all cores busy with one."""
        meanwhile()
        return [
            self.build(text, symbols=its)
            for text, its in zip(texts, symbols or [()] * len(texts), strict=True)
        ]

    def load_network(
        self, path: Path, name: str, declarations: str, weights: Sequence[Array] | Path
    ) -> QueuedNetwork:
        """Return a network of a built file. Raises BuildError, or PolysciError for weights."""
        if isinstance(weights, Path):
            raise PolysciError(f"{weights}: a device reads no files")
        if self.refusal:
            return QueuedNetwork.without_device(path, name, self.refusal)
        return QueuedNetwork.load(self.load(path, declarations), name, weights)

    def restore(self, array: Array) -> Any:
        """Copy packed weights to the device."""
        return self.queue.copy_in(array)

    def time(self, run: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> float:
        """Return the mean seconds of a call's kernels, as the device's events say."""
        queue = self.queue
        before = queue.seconds
        for own in arguments:
            run(*own)
        return (queue.seconds - before) / len(arguments)
