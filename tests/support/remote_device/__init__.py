"""A device that is the interpreter of loop IR: memory of its own, launches, events.

It stands for any device: nothing outside this folder knows it but the row that a test adds to
``runtime.backends.BACKENDS``. Its language is loop IR itself, so that it compiles nothing; what it
runs is checked for races, reads of memory without values and places outside of it.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from polysci.errors import BuildError, PolysciError, UnsupportedError
from polysci.loop_ir.interpreter import Interpreter
from polysci.loop_ir.memory import InterpretedMemory, MemoryUser, Pointer
from polysci.loop_ir.nodes import EMPTY, LoopModule, Member, Store, walk_statements
from polysci.loop_ir.routines import ROUTINES
from polysci.numerics.arrays import Array, round_up
from polysci.numerics.quantization import Scales
from polysci.target.isas import ISAS
from polysci.target.target import KIB, MIB, Memory, Target

NAME: Final = "remote"
ISA: Final = ISAS["portable"]
MEMORIES: Final = (
    Memory("L1", 32 * KIB),
    Memory("L2", 2 * MIB, cores=0),
    Memory("memory", 256 * MIB, cores=0, kind="global", bandwidth=1.0),
)
BYTE: Final = np.dtype(np.int8)
TIME: Final = np.dtype(np.float64)


@dataclass(eq=False, slots=True)
class Buffer:
    """Bytes of the device's memory, which the host cannot address."""

    memory: InterpretedMemory

    @classmethod
    def empty(cls, size: int) -> Buffer:
        """Reserve bytes without values."""
        return cls(InterpretedMemory.empty("buffer", size))

    @classmethod
    def of(cls, array: Array) -> Buffer:
        """Copy an array to the device."""
        return cls(InterpretedMemory.of("buffer", np.array(array, order="C", copy=True)))

    def place(self) -> Pointer:
        """Return where the buffer begins."""
        return Pointer(self.memory, 0, BYTE)


@dataclass(eq=False, slots=True)
class Event:
    """The end of a launch: its result, and the seconds that the device took."""

    run: Callable[[], Any]
    done: bool = False
    result: Any = None
    seconds: float = 0.0

    def finish(self) -> None:
        """Do the work of the launch."""
        start = time.perf_counter()
        self.result = self.run()
        self.seconds, self.done = time.perf_counter() - start, True


@dataclass(slots=True)
class RemoteDevice:
    """A queue of launches, and the loop IR of files that were built for it.

    ``seconds`` are those of all launches until now.
    """

    files: dict[Path, LoopModule] = field(default_factory=dict)
    queue: deque[Event] = field(default_factory=deque)
    launches: int = 0
    seconds: float = 0.0

    def launch(self, run: Callable[[], Any]) -> Event:
        """Put work at the end of the queue; return its event."""
        self.launches += 1
        self.queue.append(Event(run))
        return self.queue[-1]

    def wait(self, event: Event | None = None) -> Any:
        """Work on the queue until an event has happened, or on all of it; return its result."""
        while self.queue and not (event and event.done):
            first = self.queue.popleft()
            first.finish()
            self.seconds += first.seconds
        return event and event.result


@dataclass(frozen=True, slots=True)
class RemoteLibrary:
    """Loop IR that the device has loaded."""

    path: Path
    device: RemoteDevice
    interpreter: Interpreter
    null: None = None

    def run(self, name: str, arguments: Sequence[Any]) -> Any:
        """Run a function; a buffer stands for its place, None for the null pointer."""
        function = self.interpreter.functions[name]
        places = (it.place() if isinstance(it, Buffer) else it or 0 for it in arguments)
        names = [parameter.name for parameter in function.parameters]
        return self.interpreter.run(function, dict(zip(names, places, strict=True)))

    def function(self, name: str) -> Callable[..., Any]:
        """Return what launches a function and waits for its end. BuildError where it lacks."""
        if name not in self.interpreter.functions:
            raise BuildError(f"{self.path}: no function {name}")

        def launch(*arguments: Any) -> Any:
            return self.device.wait(self.device.launch(lambda: self.run(name, arguments)))

        return launch

    def copy_in(self, kind: str) -> Callable[[Array], Buffer]:
        """Return what copies arrays to the device, whatever their elements are."""
        return Buffer.of

    def allocator(
        self, shape: tuple[int, ...], dtype: Any, kind: str
    ) -> Callable[[Any], tuple[Array, Buffer]]:
        """Return what makes arrays for results, and buffers of their size."""

        def allocate(_: object) -> tuple[Array, Buffer]:
            array: Array = np.empty(shape, dtype)
            return array, Buffer.empty(array.nbytes)

        return allocate

    def copy_out(self, buffer: Buffer, array: Array) -> None:
        """Copy a result to its array, when all launches before have ended."""
        self.device.wait()
        if not buffer.memory.written.all():
            raise PolysciError(f"{self.path}: a result has elements without values")
        array[...] = buffer.memory.data.view(array.dtype).reshape(array.shape)

    def write(self, buffer: Buffer, array: Array) -> None:
        """Copy an array to a buffer."""
        buffer.memory = Buffer.of(array).memory

    def part(self, buffer: Buffer, start: int, size: int) -> Any:
        """Raise UnsupportedError: only checks ask for it."""
        raise UnsupportedError("the remote device: no parts of buffers")

    def scales(self, scales: Scales, by_channel: Array) -> Any:
        """Raise UnsupportedError: the device has no integer results."""
        raise UnsupportedError("the remote device: no scales of integer results")


@dataclass(slots=True)
class WeightsSource:
    """Arrays in the memory of the device, from which packing takes bytes in order."""

    buffers: Sequence[Buffer]
    fields: dict[str, Any] = field(default_factory=lambda: {"more": 0})  # a column follows
    at: int = 0
    done: int = 0

    def take(self, size: int) -> Pointer:
        """Return the place of the next bytes."""
        place = self.buffers[self.at].place().move(self.done)
        self.done = self.done + size if self.fields["more"] else 0
        self.at += not self.fields["more"]
        return place

    def routines(self) -> Mapping[str, Callable[..., Any]]:
        """Return the routines that packing calls."""

        def take(user: MemoryUser, source: Any, size: int) -> Pointer:
            return self.take(int(size))

        def fill(user: MemoryUser, source: Any, to: Pointer, size: int) -> int:
            lines = np.zeros(round_up(int(size)), np.int8)
            lines[:size] = user.read(self.take(int(size)), np.arange(size))
            user.write(to, np.arange(len(lines)), lines)
            return 1

        return {"take": take, "fill": fill}


@dataclass(slots=True)
class RemoteNetwork:
    """A network that the device has loaded: constants and packed weights in one buffer each."""

    library: RemoteLibrary
    name: str
    inputs: int
    constants: Buffer
    packed: Buffer
    run_at: None = None

    @classmethod
    def load(
        cls, library: RemoteLibrary, name: str, declarations: str, weights: Sequence[Array]
    ) -> RemoteNetwork:
        """Copy weights to the device and pack them there."""
        run = re.search(rf"{name}_run\(([^)]*)\)", declarations)
        assert run
        sizes = library.interpreter.names
        constants, packed = (Buffer.empty(sizes[size]) for size in ("CONSTANTS", "PACKED"))
        source = WeightsSource([Buffer.of(array) for array in weights])
        library.interpreter.routines = {**ROUTINES, **source.routines()}
        if not library.run("pack_all", (source.fields, constants, packed)):
            raise PolysciError(f"{name}: the weights are cut short")
        library.interpreter.routines = ROUTINES
        return cls(library, name, run[1].count("const "), constants, packed)

    @property
    def model_bytes(self) -> int:
        """Bytes of constants and packed weights."""
        return len(self.constants.memory.data) + len(self.packed.memory.data)

    @property
    def context_bytes(self) -> int:
        """Bytes of the tensors of a run."""
        return int(self.library.interpreter.names["ARENA"])

    def context(self) -> dict[str, Any]:
        """Return what stages read and write but for inputs and outputs."""
        arena = Buffer.empty(self.context_bytes)
        buffers = {"arena": arena, "constants": self.constants, "packed": self.packed}
        return {name: buffer.place() for name, buffer in buffers.items()}

    @property
    def marks(self) -> int:
        """How many times a run notes: none unless the network is to be timed."""
        functions = self.library.interpreter.functions.values()
        statements = chain.from_iterable(walk_statements(part.body) for part in functions)
        buffers = [part.buffer for part in statements if isinstance(part, Store)]
        return sum(isinstance(buffer, Member) and buffer.field == "times" for buffer in buffers)

    def run(self, context: dict[str, Any], *arguments: Buffer) -> None:
        """Launch all stages and wait for their end."""
        places = [buffer.place() for buffer in arguments]
        context |= {"in": places[: self.inputs], "out": places[self.inputs :]}
        times = Buffer.empty(self.marks * TIME.itemsize)
        context["times"] = Pointer(times.memory, TIME.itemsize, TIME)  # the first one is the start
        device, stages = self.library.device, f"{self.name}_stages"
        device.wait(device.launch(lambda: self.library.run(stages, [context])))

    def packed_weights(self) -> memoryview:
        """Return a copy of constants and packed weights."""
        parts = (self.constants.memory.data, self.packed.memory.data)
        return memoryview(np.concatenate(parts).tobytes())

    def tensors(self, context: Any, size: int) -> Array | None:
        """Return nothing: tensors stay on the device."""
        return None

    def stage_times(self, context: dict[str, Any], stages: int) -> list[float]:
        """Return the marks of the context's last run."""
        times: list[float] = context["times"].memory.data.view(TIME).tolist()
        assert len(times) == stages + 1
        return times


@dataclass(frozen=True, slots=True)
class RemoteBackend:
    """One device, started with the backend; its code is not measured."""

    name: str = NAME
    measured: bool = False
    compiler: str = "none"
    occupancy: None = None
    device: RemoteDevice = field(default_factory=RemoteDevice)

    def targets(self) -> tuple[Target, ...]:
        """Return the one device."""
        return (Target(ISA, (), MEMORIES, 2, "a remote device", backend=NAME),)

    def build(
        self, text: str | Sequence[str], *, flags: Sequence[str] | None = None,
        symbols: Sequence[str] = (), timeout: float | None = None, module: LoopModule = EMPTY,
    ) -> Path:  # fmt: skip
        """Keep the loop IR of a text under a name."""
        texts = [text] if isinstance(text, str) else text
        path = Path("remote") / sha256("\n".join(texts).encode()).hexdigest()
        self.device.files[path] = module
        return path

    def build_many(
        self, texts: Sequence[str], *, jobs: int = 2, symbols: Sequence[Sequence[str]] = (),
        meanwhile: Callable[[], None] = lambda: None, modules: Sequence[LoopModule] = (),
    ) -> list[Path]:  # fmt: skip
        """Keep the loop IR of some texts."""
        meanwhile()
        return [self.build(text, module=own) for text, own in zip(texts, modules, strict=True)]

    def assemble(self, texts: Sequence[str], *, flags: Sequence[str] | None = None) -> list[str]:
        """Raise UnsupportedError: loop IR is the device's language."""
        raise UnsupportedError("the remote device: no assembly")

    def load(self, path: Path, declarations: str) -> RemoteLibrary:
        """Load what was built."""
        if path not in self.device.files:
            raise BuildError(f"{path}: nothing was built for the remote device")
        module = self.device.files[path]
        return RemoteLibrary(path, self.device, Interpreter(module))

    def load_network(
        self, path: Path, name: str, declarations: str, weights: Sequence[Array] | Path
    ) -> RemoteNetwork:
        """Load a network, with weights that are packed on the device."""
        if isinstance(weights, Path):
            raise PolysciError(f"{weights}: the remote device reads no files")
        return RemoteNetwork.load(self.load(path, declarations), name, declarations, weights)

    def is_argument(self, argument: object) -> bool:
        """Return whether it is a buffer."""
        return isinstance(argument, Buffer)

    def restore(self, array: Array) -> Buffer:
        """Copy packed weights to the device."""
        return Buffer.of(array)

    def time(self, run: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> float:
        """Return the mean seconds of a launch, as the events say."""
        before = self.device.seconds
        for own in arguments:
            run(*own)
        return (self.device.seconds - before) / len(arguments)
