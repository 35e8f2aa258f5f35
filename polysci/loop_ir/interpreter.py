"""Loop IR run in Python: the oracle of lowerings, which needs no compiler.

Threads run one after the other from barrier to barrier, in an order that a seed draws, as are the
turns of vector loops. It reports what no order may show: races between threads, reads of memory
that nothing has written, and elements outside of their memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from random import Random
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.errors import PolysciError
from polysci.loop_ir.index import (
    Choice,
    Comparison,
    Either,
    Entry,
    Every,
    Extreme,
    Flag,
    Index,
    Linear,
    Modulo,
    Negation,
    Product,
    Quotient,
    Variable,
    Within,
)
from polysci.loop_ir.nodes import (
    Address,
    Alternative,
    Assign,
    Barrier,
    Block,
    Break,
    Buffer,
    Comment,
    Compute,
    Constant,
    Convert,
    Declare,
    Element,
    Fields,
    For,
    If,
    Invoke,
    Let,
    LoopFunction,
    LoopKind,
    LoopModule,
    LoopStatement,
    Member,
    Named,
    Once,
    Opaque,
    Point,
    Result,
    Scoped,
    Store,
    Subscript,
    Table,
    Unused,
    Value,
)
from polysci.numerics.dtypes import from_bf16, to_bf16
from polysci.numerics.scalar_functions import FUNCTIONS, apply_numpy

Array = NDArray[Any]
Turns = Generator[None, None, None]  # a thread, which stops at barriers
_TYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "float": np.dtype("float32"), "double": np.dtype("float64"), "char": np.dtype("int8"),
    "void": np.dtype("int8"), "size_t": np.dtype("uint64"),
    **{f"{s}int{bits}_t": np.dtype(f"{s}int{bits}") for s in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_NOBODY: Final = -1
_SEVERAL: Final = -2
_COMPARE: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__, "==": int.__eq__,
    "!=": int.__ne__,
}  # fmt: skip


class MemoryFaultError(PolysciError):
    """A race, a read of memory without values, or an element outside of its memory."""


class _LeaveLoop(Exception):  # noqa: N818 - no error
    """The end of the innermost serial loop."""


@dataclass(slots=True)
class Memory:
    """Bytes under a name, and which of them have values.

    Who read and wrote them last, and in which span between barriers, is kept of those that threads
    share.
    """

    name: str
    data: NDArray[np.uint8]
    written: NDArray[np.bool_]
    shared: bool = True
    spans: NDArray[np.int64] = field(init=False)
    users: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.spans = np.full((2, len(self.data)), -1)
        self.users = np.full((2, len(self.data)), _NOBODY)

    @classmethod
    def of(cls, name: str, array: Array) -> Memory:
        """Take the memory of a contiguous array, all of which has values."""
        data = array.reshape(-1).view(np.uint8)
        return cls(name, data, np.ones(len(data), bool))

    @classmethod
    def empty(cls, name: str, size: int, *, shared: bool = True) -> Memory:
        """Return memory without values."""
        return cls(name, np.zeros(size, np.uint8), np.zeros(size, bool), shared)


@dataclass(frozen=True, slots=True)
class Pointer:
    """A place in memory, read as elements of a type."""

    memory: Memory
    offset: int
    dtype: np.dtype[Any]


@dataclass(slots=True)
class Interpreter:
    """Functions, tables and routines of the microkernels by name, and the threads that run them."""

    module: LoopModule
    threads: int = 1
    seed: int = 0
    routines: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    span: int = 0  # barriers until now
    tables: dict[str, Pointer] = field(default_factory=dict)
    chosen: dict[int, int] = field(default_factory=dict)  # who runs which statement once
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        for part in self.module.parts:
            if isinstance(part, Table):
                dtype = _TYPES[part.dtype]
                memory = Memory.of(part.name, np.array(part.values, dtype))
                self.tables[part.name] = Pointer(memory, 0, dtype)

    def run(self, function: LoopFunction, arguments: Mapping[str, Any]) -> None:
        """Run a function in all threads. Raises MemoryFaultError."""
        members = [
            Thread(self, number, {**self.tables, **arguments}) for number in range(self.threads)
        ]
        running = [thread.body(function.body) for thread in members]
        while running:
            self.random.shuffle(running)
            still = []
            for thread in running:
                try:
                    next(thread)
                    still.append(thread)
                except StopIteration:
                    pass
            if still and len(still) < self.threads:
                raise MemoryFaultError(f"{function.name}: a barrier that not all threads come to")
            running = still
            self.span += 1

    def chooses(self, encounter: int, first: bool) -> int:
        """Return the number of the thread that runs a statement once."""
        if first:
            return 0
        return self.chosen.setdefault(encounter, self.random.randrange(self.threads))


@dataclass(slots=True)
class Thread:
    """One thread, and what names mean to it."""

    program: Interpreter
    number: int
    names: dict[str, Any]
    encounters: int = 0

    def body(self, block: Block) -> Turns:
        """Run statements."""
        for node in block.body:
            yield from self.statement(node)

    def statement(self, node: LoopStatement) -> Turns:
        match node:
            case For():
                yield from self.loop(node)
            case If(condition, then, otherwise):
                yield from self.body(then if self.value(condition) else otherwise)
            case Block():
                yield from self.body(node)
            case Scoped(body):
                yield from self.body(body)
            case Once(body, wait, first):
                self.encounters += 1
                if self.program.chooses(self.encounters, first) == self.number:
                    yield from self.body(body)
                if wait:
                    yield
            case Barrier():
                yield
            case Invoke(function, operands):
                yield from self.call(function, [self.value(value) for value in operands])
            case Break():
                raise _LeaveLoop
            case _:
                self.simple(node)

    def simple(self, node: LoopStatement) -> None:
        """Run a statement that holds no others."""
        match node:
            case Let(name, value, kind):
                self.names[name] = _of_kind(self.value(value), kind)
            case Point(buffer, address):
                pointer = self.value(address)
                self.names[buffer.name] = Pointer(
                    pointer.memory, pointer.offset, _TYPES[buffer.dtype]
                )
            case Declare(buffer, values):
                self.names[buffer.name] = self.declare(buffer, values)
            case Assign(str() as name, value):
                dtype = np.asarray(self.names[name]).dtype
                self.names[name] = np.asarray(self.value(value)).astype(dtype)[()]
            case Assign(Member(record, name), value):
                self.record(record)[name] = self.value(value)
            case Store(buffer, at, value):
                self.write(self.buffer(buffer), self.index(at), self.value(value))
            case Comment() | Unused() | Opaque():
                pass
            case _:
                raise TypeError(f"{type(node).__name__}: the interpreter has no such statement")

    def declare(self, buffer: Buffer, values: Sequence[Value]) -> Any:
        """Return memory of the thread's own, or records."""
        if values:
            return [self.value(value) for value in values]
        assert buffer.extent is not None
        dtype = _TYPES[buffer.dtype]
        size = self.index(buffer.extent) * dtype.itemsize
        return Pointer(Memory.empty(buffer.name, size, shared=False), 0, dtype)

    def call(self, function: str, operands: Sequence[Any]) -> Turns:
        """Run a function of the module, or a routine; nobody sees prefetches."""
        callee = self.program.module.functions.get(function)
        if callee is None:
            if function != "__builtin_prefetch":
                self.program.routines[function](self, *operands)
            return
        parameters = [parameter.name for parameter in callee.parameters]
        names = {**self.program.tables, **dict(zip(parameters, operands, strict=True))}
        inner = Thread(self.program, self.number, names, self.encounters)
        yield from inner.body(callee.body)
        self.encounters = inner.encounters

    def loop(self, node: For) -> Turns:
        """Run the turns of a loop that are this thread's."""
        if node.kind is LoopKind.PARALLEL:
            yield from self.share(node)
            return
        turns = [*range(self.index(node.start), self.index(node.end), node.step)]
        if node.simd:
            self.program.random.shuffle(turns)
        for turn in turns:
            self.names[node.variable] = turn
            try:
                yield from self.body(node.body)
            except _LeaveLoop:
                return

    def share(self, node: For) -> Turns:
        """Run this thread's equal run of the turns of parallel loops, nested ones as one."""
        loops, inner = [node], node
        while len(inner.body.body) == 1:
            first = inner.body.body[0]
            if not (isinstance(first, For) and first.kind is LoopKind.PARALLEL):
                break
            loops.append(first)
            inner = first
        ranges = [range(0, self.index(part.end), part.step) for part in loops]
        turns, threads = [*product(*ranges)], self.program.threads
        if node.chunk:
            own = [turn for at, turn in enumerate(turns)
                   if at // node.chunk % threads == self.number]  # fmt: skip
        else:
            ends = (len(turns) * number // threads for number in (self.number, self.number + 1))
            own = turns[slice(*ends)]
        self.program.random.shuffle(own)
        for turn in own:
            self.names.update(zip((part.variable for part in loops), turn, strict=True))
            yield from self.body(inner.body)
        if node.wait:
            yield

    def value(self, value: Value) -> Any:
        """Return a number of its kind, a pointer, a record or a truth."""
        match value:
            case int():
                return value
            case Index():
                return self.index(value)
            case Named(name):
                return self.names[name]
            case Constant(number, kind):
                return np.asarray(number).astype(_TYPES[kind])[()]
            case Element(buffer, at):
                return self.read(self.buffer(buffer), self.index(at))
            case Member(record, name):
                return self.record(record)[name]
            case Address():
                return self.address(value)
            case Convert(kind, inner):
                return _of_kind(self.value(inner), kind)
            case Compute(function, kind, arguments):
                return self.compute(function, kind, arguments)
            case Alternative(condition, then, otherwise):
                return self.value(then if self.value(condition) else otherwise)
            case Result(routine, arguments):
                return _ROUTINES[routine](*(self.value(part) for part in arguments))
            case Fields(members):
                return {name: self.value(part) for name, part in members}
            case Comparison() | Within() | Flag() | Every() | Either() | Negation():
                return self.holds(value)
            case _:
                raise TypeError(f"{type(value).__name__}: the interpreter has no such value")

    def buffer(self, buffer: str | Member | Address) -> Pointer:
        """Return the pointer to a buffer."""
        pointer = self.names[buffer] if isinstance(buffer, str) else self.value(buffer)
        assert isinstance(pointer, Pointer)
        return pointer

    def compute(self, function: str, kind: str, arguments: Sequence[Value]) -> Any:
        values = [_widened(self.value(part)) for part in arguments]
        with np.errstate(all="ignore"):
            result = apply_numpy(function, *values)
        return _of_kind(result[()], FUNCTIONS[function].result or kind)

    def address(self, value: Address) -> Pointer:
        """Return a pointer to an element of another one's memory."""
        base = self.value(value.buffer)
        dtype = _TYPES[value.dtype] if value.dtype else base.dtype
        return Pointer(base.memory, base.offset + self.index(value.at) * dtype.itemsize, dtype)

    def index(self, index: Index) -> int:
        """Return the value of an integer expression."""
        match index:
            case Variable(name):
                return int(self.names[name])
            case Linear(terms, constant):
                return constant + sum(factor * self.index(term) for term, factor in terms)
            case Product(left, right):
                return self.index(left) * self.index(right)
            case Quotient(left, right, rounding):
                whole, parts = self.index(left), self.index(right)
                return -(-whole // parts) if rounding == "ceil" else whole // parts
            case Modulo(left, right):
                return self.index(left) % self.index(right)
            case Extreme(function, left, right):
                choose = min if function == "min" else max
                return choose(self.index(left), self.index(right))
            case Choice(condition, then, otherwise):
                return self.index(then if self.value(condition) else otherwise)
            case Entry(buffer, places):
                pointer, at = self.names[buffer], 0
                for place in places:
                    at = at * (3 if len(places) > 1 else 1) + self.index(place)
                return int(self.read(pointer, at))
            case Subscript(value, _, extent):
                at = int(self.value(value))
                return min(max(at + extent if at < 0 else at, 0), extent - 1)
            case _:
                raise TypeError(f"{type(index).__name__}: the interpreter has no such index")

    def holds(self, condition: Any) -> bool:
        """Return whether a condition holds."""
        match condition:
            case Comparison(operator, left, right):
                return _COMPARE[operator](self.index(left), self.index(right))
            case Within(at, extent):
                return 0 <= self.index(at) < extent
            case Flag(name):
                return bool(int(name)) if name.isdigit() else bool(self.names[name])
            case Every(parts):
                return all(map(self.holds, parts))
            case Either(parts):
                return any(map(self.holds, parts))
            case Negation(part):
                return not self.holds(part)
        raise TypeError(f"{type(condition).__name__}: the interpreter has no such condition")

    def record(self, name: str) -> dict[str, Any]:
        """Return a record by its name, or one of several: ``r[2]``."""
        match = re.fullmatch(r"(\w+)\[(\d+)\]", name)
        found: dict[str, Any] = self.names[match[1]][int(match[2])] if match else self.names[name]
        return found

    def read(self, pointer: Pointer, at: int) -> Any:
        """Return an element. Raises MemoryFaultError."""
        memory, place = pointer.memory, self.place(pointer, at)
        if not memory.written[place].all():
            raise MemoryFaultError(f"{memory.name}: element {at} is read before anything wrote it")
        if memory.shared:
            self.note(memory, place, writes=False)
        return memory.data[place].view(pointer.dtype)[0]

    def write(self, pointer: Pointer, at: int, value: Any) -> None:
        """Change an element. Raises MemoryFaultError."""
        memory, place = pointer.memory, self.place(pointer, at)
        if memory.shared:
            self.note(memory, place, writes=True)
        stored = np.asarray(value)
        memory.data[place] = stored.astype(pointer.dtype).reshape(1).view(np.uint8)
        memory.written[place] = True

    def place(self, pointer: Pointer, at: int) -> slice:
        """Return the bytes of an element."""
        size = pointer.dtype.itemsize
        start = pointer.offset + at * size
        if not 0 <= start <= len(pointer.memory.data) - size:
            raise MemoryFaultError(f"{pointer.memory.name}: element {at} lies outside")
        return slice(start, start + size)

    def note(self, memory: Memory, place: slice, *, writes: bool) -> None:
        """Keep who uses bytes; another thread's use since the last barrier is a race."""
        span = self.program.span
        for kind in (0, 1) if writes else (1,):  # reads, writes
            users = memory.users[kind, place][memory.spans[kind, place] == span]
            if (users != self.number).any():
                raise MemoryFaultError(f"{memory.name}: byte {place.start} is used by two threads")
        own = 1 if writes else 0
        fresh = memory.spans[own, place] != span
        same = memory.users[own, place] == self.number
        memory.users[own, place] = np.where(fresh | same, self.number, _SEVERAL)
        memory.spans[own, place] = span


def _of_kind(value: Any, kind: str) -> Any:
    """A number of a kind; pointers and records stay."""
    if kind not in _TYPES or isinstance(value, Pointer | dict | list):
        return value
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(_TYPES[kind])[()]


def _widened(value: Any) -> Array:
    """As NumPy's side of the table of scalar functions takes numbers."""
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    return array.astype(np.uint64 if array.dtype == np.uint64 else np.int64)


_ROUTINES: Final[Mapping[str, Callable[..., Any]]] = {
    "ps_bf16_value": lambda bits: from_bf16(np.asarray(bits))[()],
    "ps_bf16_of": lambda value: to_bf16(np.asarray(value))[()],
    "ps_f16_value": lambda bits: np.uint16(bits).view(np.float16).astype(np.float32),
    "ps_f16_of": lambda value: np.float16(value).view(np.uint16),
    "ps_now": partial(float, 0),
}
