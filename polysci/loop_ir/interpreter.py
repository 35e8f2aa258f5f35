"""Loop IR run in Python: the oracle of lowerings, which needs no compiler.

Threads run one after the other from barrier to barrier, in an order that a seed draws, as are the
turns of vector loops. It reports what no order may show: races between threads, reads of memory
that nothing has written, and elements outside of their memory. What the C headers define is in
``routines``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from operator import add, mul, sub
from random import Random
from typing import Any, Final

import numpy as np

from polysci.loop_ir.index import (
    Bits,
    Comparison,
    Either,
    Every,
    Extreme,
    Flag,
    Linear,
    Mapped,
    Modulo,
    Negation,
    Product,
    Quotient,
    Select,
    Subscripts,
    Supported,
    TableEntry,
    Variable,
    Within,
)
from polysci.loop_ir.memory import (
    STORED,
    Array,
    At,
    InterpretedMemory,
    MemoryFaultError,
    MemoryUser,
    Pointer,
)
from polysci.loop_ir.microkernels import Accumulators, Unit
from polysci.loop_ir.nodes import (
    INTEGER,
    Address,
    AddressOf,
    Advance,
    Alternative,
    Append,
    Arithmetic,
    Assign,
    Barrier,
    Before,
    Block,
    Break,
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
    Mask,
    Member,
    Named,
    Once,
    Opaque,
    Point,
    Prefetch,
    Return,
    RoutineResult,
    ScalarParameter,
    Scope,
    Scoped,
    Store,
    Subscript,
    Table,
    Unused,
    Value,
)
from polysci.loop_ir.routines import ROUTINES
from polysci.numerics.scalar_functions import FUNCTIONS, apply_numpy

Turns = Generator[None, None, Any]  # a thread, which stops at barriers
_COMPARE: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__, "==": int.__eq__,
    "!=": int.__ne__,
}  # fmt: skip
_ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {"+": add, "-": sub, "*": mul}
_BITS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "^": int.__xor__, "&": int.__and__, "|": int.__or__,
}  # fmt: skip
# Records: the fields in order of those that are written without names, and those that hold
# pointers of another type than what they are given.
_FIELDS: Final = {"polysci_scales": ("scale", "residual_scale", "residual_zero", "y_zero")}
_POINTERS: Final = {
    "ps_args": {
        "packed": "ps_b", "y": "ps_y", "bias": "ps_bias", "residual": "ps_y", "clamp": "float32",
        "offset": "int32",
    },
}  # fmt: skip


class _LeaveLoop(Exception):  # noqa: N818 - no error
    """The end of the innermost serial loop."""


class _LeaveFunction(Exception):  # noqa: N818 - no error
    """The end of a function, with its result."""


class Structure(dict[str, Any]):
    """A structure of C, whose fields are 0 where nothing else is said."""

    def __init__(self, kind: str, fields: Iterable[tuple[str, Any]]) -> None:
        super().__init__(fields)
        self.kind = kind

    def __missing__(self, name: str) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class ScalarAddress:
    """The address of a scalar that a routine changes."""

    names: dict[str, Any]
    name: str

    @property
    def value(self) -> Any:
        """The value of the scalar."""
        return self.names[self.name]

    def set(self, value: Any) -> None:
        """Change the scalar."""
        self.names[self.name] = value


@dataclass(slots=True)
class Interpreter:
    """The functions and tables of a module, and the threads that run them.

    ``routines`` are called by name where the module has no such function. A run by one thread
    starts the threads of loops over thread numbers; several threads share them. ``watch`` is told
    of every access to memory: the thread, the place, the elements behind it, whether it writes.
    """

    module: LoopModule
    threads: int = 1
    seed: int = 0
    routines: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: ROUTINES)
    watch: Callable[[MemoryUser, Pointer, At, bool], None] | None = None
    span: int = 0  # barriers until now
    names: dict[str, Any] = field(default_factory=dict)  # that all functions know
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of tables
    types: dict[str, np.dtype[Any]] = field(default_factory=dict)
    functions: dict[str, LoopFunction] = field(default_factory=dict)
    chosen: dict[int, int] = field(default_factory=dict)  # who runs which statement once
    waiting: dict[int, bool] = field(default_factory=dict)  # statements by id
    grouped: bool = False  # work-items of a group run now
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.functions = self.module.functions
        self.types = {**STORED}
        for part in self.module.parts:
            if isinstance(part, Table):
                dtype = self.types[part.dtype]
                memory = InterpretedMemory.of(part.name, np.array(part.values, dtype))
                self.names[part.name] = Pointer(memory, 0, dtype)
                self.shapes[part.name] = part.shape
            elif isinstance(part, Let | Declare):
                Thread(0, True, self, self.names, self.types).execute(part)

    def run(self, function: LoopFunction | str, arguments: Mapping[str, Any]) -> Any:
        """Run a function in all threads and return its result. Raises MemoryFaultError."""
        if isinstance(function, str):
            function = self.functions[function]
        alone = self.threads == 1
        members = [
            Thread(number, alone, self, dict(self.names), self.types)
            for number in range(self.threads)
        ]
        results = list[Any]()

        def result_of(thread: Thread) -> Turns:
            results.append((yield from thread.call_steps(function, arguments)))
            thread.check_end()

        running = [result_of(thread) for thread in members]
        while running:
            self.random.shuffle(running)
            running = [turns for turns in running if _goes_on(turns)]
            if running and len(running) < self.threads:
                raise MemoryFaultError(f"{function.name}: a barrier that not all threads come to")
            self.span += 1
        return results[0]

    def chooses(self, encounter: int, first: bool) -> int:
        """Return the number of the thread that runs a statement once."""
        if first:
            return 0
        return self.chosen.setdefault(encounter, self.random.randrange(self.threads))

    def waits(self, node: LoopStatement) -> bool:
        """Return whether other threads matter to a statement: it waits, or shares work."""
        if self.threads == 1 and not self.grouped:
            return False
        known = self.waiting.get(id(node))
        if known is None:
            known = self.waiting[id(node)] = self._waits(node)
        return known

    def _waits(self, node: LoopStatement) -> bool:
        match node:
            case Block(body):
                return any(map(self.waits, body))
            case For() | Scoped():
                shared = isinstance(node, For) and node.kind in (
                    LoopKind.PARALLEL,
                    LoopKind.THREADS,
                )
                return shared or self.waits(node.body)
            case If(_, then, otherwise):
                return self.waits(then) or self.waits(otherwise)
            case Invoke(name, _) if name in self.functions:
                return self.waits(self.functions[name].body)
            case _:
                return isinstance(node, Barrier | Once)


@dataclass(slots=True)
class Thread(MemoryUser):
    """One thread, and what names mean to it."""

    program: Interpreter
    names: dict[str, Any]
    types: Mapping[str, np.dtype[Any]]
    kernels: Unit | None = None  # those of the function that it is in
    encounters: int = 0
    tiles: list[int] = field(default_factory=lambda: [0])  # the shape of its tile registers
    copies: list[list[Any]] = field(default_factory=lambda: [[]])  # that have not ended

    @property
    def span(self) -> int:
        return self.program.span

    @property
    def unit(self) -> Unit:
        """The element types and vectors of the microkernels that the function calls."""
        assert self.kernels
        return self.kernels

    def read(self, pointer: Pointer, at: At) -> Any:
        """Return elements of memory, and tell who watches."""
        if self.program.watch:
            self.program.watch(self, pointer, at, False)
        return MemoryUser.read(self, pointer, at)

    def write(self, pointer: Pointer, at: At, value: Any) -> None:
        """Change elements of memory, and tell who watches."""
        if self.program.watch:
            self.program.watch(self, pointer, at, True)
        MemoryUser.write(self, pointer, at, value)

    # Statements.

    def execute(self, node: LoopStatement) -> None:
        """Run a statement to its end."""
        _STATEMENTS[type(node)](self, node)

    def steps(self, node: LoopStatement) -> Turns:
        """Run a statement; it stops where it waits for other threads."""
        if not self.program.waits(node):
            self.execute(node)
            return
        match node:
            case Block(body):
                for part in body:
                    yield from self.steps(part)
            case For(kind=LoopKind.PARALLEL):
                yield from self.share(node)
            case For(kind=LoopKind.THREADS):
                yield from self.take_turns(node)
            case For(kind=LoopKind.ITEMS):
                self.group(node)
            case For():
                for _ in self.turns(node):
                    try:
                        yield from self.steps(node.body)
                    except _LeaveLoop:
                        return
            case If(condition, then, otherwise):
                yield from self.steps(then if self.value(condition) else otherwise)
            case Scoped(body, unit):
                with self.using(unit):
                    yield from self.steps(body)
            case Once(body, wait, first):
                self.encounters += 1
                if self.program.chooses(self.encounters, first) == self.number:
                    yield from self.steps(body)
                if wait:
                    yield
            case Barrier():
                yield
            case Invoke(name, operands):
                function = self.program.functions[name]
                values = map(self.value, operands)
                yield from self.call_steps(function, _bind(function, values))

    def call_steps(self, function: LoopFunction, arguments: Mapping[str, Any]) -> Turns:
        """Run a function; it stops where it waits. The last value is its result."""
        inner = self.enter(function, arguments)
        try:
            yield from inner.steps(function.body)
        except _LeaveFunction as end:
            return end.args[0]
        finally:
            self.encounters = inner.encounters

    def call(self, function: LoopFunction, arguments: Mapping[str, Any]) -> Any:
        """Run a function to its end and return its result."""
        try:
            self.enter(function, arguments).execute(function.body)
        except _LeaveFunction as end:
            return end.args[0]
        return None

    def enter(self, function: LoopFunction, arguments: Mapping[str, Any]) -> Thread:
        """Return this thread inside a function: pointers have the types of its parameters."""
        names, types, unit = self.program.names, self.program.types, function.unit
        if unit:
            names, types = {**names, **unit.names}, {**types, **unit.types}
        names = {**names, **arguments}
        for parameter in function.parameters:
            value = names.get(parameter.name)
            if isinstance(value, Pointer) and not isinstance(parameter, ScalarParameter):
                names[parameter.name] = value.cast(types[parameter.dtype])
        return Thread(
            self.number,
            self.alone,
            self.program,
            names,
            types,
            unit,
            self.encounters,
            self.tiles,
            self.copies,
        )

    def check_end(self) -> None:
        """Raise MemoryFaultError if the thread leaves its tile registers configured."""
        if self.tiles[0]:
            raise MemoryFaultError("tile registers stay configured at the end of a thread")

    def block(self, node: Block) -> None:
        for part in node.body:
            _STATEMENTS[type(part)](self, part)

    def branch(self, node: If) -> None:
        self.block(node.then if self.value(node.condition) else node.otherwise)

    def inside(self, node: Scoped | Once) -> None:
        with self.using(node.unit if isinstance(node, Scoped) else None):
            self.block(node.body)

    @contextmanager
    def using(self, unit: Unit | None) -> Iterator[None]:
        """Call microkernels of other element types, if there are any, until the end."""
        outer = self.names, self.types, self.kernels
        if unit:
            self.names = {**self.names, **unit.names}
            self.types, self.kernels = {**self.types, **unit.types}, unit
        yield
        self.names, self.types, self.kernels = outer

    def loop(self, node: For) -> None:
        """Run a loop; of one over thread numbers the turns are threads of their own."""
        if node.kind in (LoopKind.THREADS, LoopKind.ITEMS):
            (self.fork if node.kind is LoopKind.THREADS else self.group)(node)
            return
        for _ in self.turns(node):
            try:
                self.block(node.body)
            except _LeaveLoop:
                return

    def fork(self, node: For) -> None:
        """Run the turns of a loop as threads; this one goes on when all have ended."""
        numbers = [*range(self.index(node.start), self.index(node.end))]
        members = [
            Thread(
                at,
                len(numbers) == 1,
                self.program,
                {**self.names, node.variable: at},
                self.types,
                self.kernels,
            )
            for at in numbers
        ]
        self.program.random.shuffle(members)
        self.program.span += 1
        for member in members:
            member.block(node.body)
            member.check_end()
        self.program.span += 1

    def group(self, node: For) -> None:
        """Run the turns of a loop as work-items of a group, from barrier to barrier."""
        count = self.index(node.end)
        members = [
            Thread(
                self.number * count + at, False, self.program, {**self.names, node.variable: at},
                self.types, self.kernels,
            )
            for at in range(count)
        ]  # fmt: skip
        outer, self.program.grouped = self.program.grouped, True
        running = [member.steps(node.body) for member in members]
        while running:
            self.program.random.shuffle(running)
            running = [turns for turns in running if _goes_on(turns)]
            if running and len(running) < count:
                raise MemoryFaultError("a barrier that not all work-items of a group come to")
            self.program.span += 1
        self.program.grouped = outer

    def turns(self, node: For) -> Iterable[int]:
        """Yield the turns of a loop, those of vectors in any order; the variable has each."""
        turns: Sequence[int] = range(self.index(node.start), self.index(node.end), node.step)
        if node.simd or node.kind is LoopKind.PARALLEL:
            turns = self.program.random.sample(turns, len(turns))
        names, variable = self.names, node.variable
        for turn in turns:
            names[variable] = turn
            yield turn

    def take_turns(self, node: For) -> Turns:
        """Run this thread's turns of a loop over thread numbers."""
        first, end = self.index(node.start), self.index(node.end)
        for turn in range(first + self.number, end, self.program.threads):
            self.names[node.variable] = turn
            yield from self.steps(node.body)
        if node.wait:
            yield

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
            yield from self.steps(inner.body)
        if node.wait:
            yield

    def let(self, node: Let) -> None:
        value = self.value(node.value)
        if isinstance(value, dict) and not isinstance(node.value, AddressOf):
            casts = _POINTERS.get(node.kind, {})
            value = Structure(node.kind, (
                (name, self.cast(part, casts.get(name))) for name, part in value.items()
            ))  # fmt: skip
        self.names[node.name] = self.of_kind(value, node.kind)

    def point(self, node: Point) -> None:
        self.names[node.buffer.name] = self.cast(self.value(node.address), node.buffer.dtype)

    def declare(self, node: Declare) -> None:
        """Make memory of the thread's own, records or accumulators."""
        buffer = node.buffer
        if node.values:
            self.names[buffer.name] = [self.value(value) for value in node.values]
            return
        assert buffer.extent is not None
        extent = self.index(buffer.extent)
        if buffer.scope is Scope.REGISTER and buffer.dtype in ("ps_acc", "ps_vec"):
            self.names[buffer.name] = Accumulators(extent)
            return
        dtype = self.types[buffer.dtype]
        shared = buffer.scope is Scope.LOCAL
        memory = InterpretedMemory.empty(buffer.name, extent * dtype.itemsize, shared=shared)
        if buffer.scope is Scope.STATIC:
            memory = InterpretedMemory.of(buffer.name, np.zeros(extent, dtype))
        self.names[buffer.name] = Pointer(memory, 0, dtype)

    def assign(self, node: Assign) -> None:
        value = self.value(node.value)
        if isinstance(node.to, Member):
            record = self.record(node.to.record)
            casts = _POINTERS.get(record.kind, {}) if isinstance(record, Structure) else {}
            record[node.to.field] = self.cast(value, casts.get(node.to.field))
        elif isinstance(value, Pointer):
            known = self.names[node.to]
            self.names[node.to] = value.cast(known.dtype) if known else value
        else:
            dtype = np.asarray(self.names[node.to]).dtype
            with np.errstate(all="ignore"):
                self.names[node.to] = np.asarray(value).astype(dtype)[()]

    def store(self, node: Store) -> None:
        self.write(self.buffer(node.buffer), self.index(node.at), self.value(node.value))

    def append(self, node: Append) -> None:
        pointer = self.names[node.buffer]
        self.write(pointer, 0, self.value(node.value))
        self.names[node.buffer] = pointer.move(1)

    def advance(self, node: Advance) -> None:
        self.names[node.buffer] = self.names[node.buffer].move(self.index(node.count))

    def invoke(self, node: Invoke) -> None:
        """Run a function of the module, or a routine."""
        values, function = map(self.value, node.operands), self.program.functions.get(node.function)
        if function is None:
            self.program.routines[node.function](self, *values)
        else:
            self.call(function, _bind(function, values))

    def leave_loop(self, node: Break) -> None:
        raise _LeaveLoop

    def leave(self, node: Return) -> None:
        raise _LeaveFunction(None if node.value is None else self.value(node.value))

    def skip(self, node: LoopStatement) -> None:
        """Run what changes nothing."""

    # Values.

    def value(self, value: Value) -> Any:
        """Return a number of its kind, a pointer, a record or a truth."""
        return _VALUES[type(value)](self, value)

    index = value

    def buffer(self, buffer: str | Member | Address) -> Pointer:
        """Return the pointer to a buffer."""
        pointer = self.names[buffer] if isinstance(buffer, str) else self.value(buffer)
        assert isinstance(pointer, Pointer), f"{buffer} is no buffer"
        return pointer

    def cast(self, value: Any, dtype: str | None) -> Any:
        """Return a pointer to elements of a type; other values as they are."""
        return value.cast(self.types[dtype]) if dtype and isinstance(value, Pointer) else value

    def of_kind(self, value: Any, kind: str) -> Any:
        """Return a number of a kind; pointers and records stay."""
        dtype = self.types.get(kind)
        if dtype is None or isinstance(value, Pointer | dict | list):
            return value
        if type(value) is int and kind == INTEGER:
            return value
        with np.errstate(all="ignore"):
            return np.asarray(value).astype(dtype)[()]

    def record(self, record: str | Element) -> Any:
        """Return a record, or one of several."""
        return self.names[record] if isinstance(record, str) else self.value(record)

    def element(self, value: Element) -> Any:
        """Return an element of memory, or an item of an array of records or buffers."""
        buffer, at = value.buffer, self.index(value.at)
        items = self.names[buffer] if isinstance(buffer, str) else self.value(buffer)
        return items[at] if isinstance(items, list) else self.read(items, at)

    def fields(self, value: Fields) -> Any:
        """Return a record, or a pointer to constants."""
        values = [self.value(part) for _, part in value.members]
        kind = value.dtype
        if kind in self.types:
            array = np.array(values, self.types[kind])
            return Pointer(InterpretedMemory.of("constants", array), 0, array.dtype)
        if kind in _FIELDS:
            return Structure(kind, zip(_FIELDS[kind], values[0], strict=True))
        names = [name for name, _ in value.members]
        return Structure(kind, zip(names, values, strict=True)) if any(names) else tuple(values)

    def address(self, value: Address) -> Any:
        """Return a pointer to an element of another one's memory; none stays none."""
        base = self.cast(self.value(value.buffer), value.dtype)
        return base.move(self.index(value.at)) if isinstance(base, Pointer) else base

    def reference(self, value: AddressOf) -> Any:
        """Return what a routine changes a variable by: a record itself stands for its address."""
        known = self.names[value.name]
        return known if isinstance(known, dict) else ScalarAddress(self.names, value.name)

    def compute(self, value: Compute) -> Any:
        """Return the value of a scalar function."""
        values = [_widen_number(self.value(part)) for part in value.arguments]
        with np.errstate(all="ignore"):
            result = apply_numpy(value.function, *values)
        return self.of_kind(result[()], FUNCTIONS[value.function].result or value.kind)

    def arithmetic(self, value: Arithmetic) -> Any:
        """Return a sum, difference or product, which wraps around."""
        with np.errstate(all="ignore"):
            return _ARITHMETIC[value.operator](self.value(value.left), self.value(value.right))

    def choose(self, value: Alternative | Select) -> Any:
        """Return one of two values."""
        return self.value(value.then if self.value(value.condition) else value.otherwise)

    def result(self, value: RoutineResult | Mapped) -> Any:
        """Return the result of a routine."""
        name = value.routine if isinstance(value, RoutineResult) else value.function
        return self.program.routines[name](self, *map(self.value, value.arguments))

    def variable(self, value: Variable) -> int:
        """Return the integer of a name."""
        return int(self.names[value.name])

    def linear(self, index: Linear) -> int:
        """Return a sum of terms."""
        total = index.constant
        for term, factor in index.terms:
            total += factor * _VALUES[type(term)](self, term)
        return total

    def quotient(self, index: Quotient) -> int:
        """Return a rounded quotient."""
        whole: int = self.index(index.left)
        parts: int = self.index(index.right)
        return -(-whole // parts) if index.rounding == "ceil" else whole // parts

    def extreme(self, index: Extreme) -> int:
        """Return the smaller or larger one of two integers."""
        left: int = self.index(index.left)
        right: int = self.index(index.right)
        return min(left, right) if index.function == "min" else max(left, right)

    def entry(self, index: TableEntry) -> int:
        """Return an integer of a table."""
        at = 0
        for size, place in zip(
            self.program.shapes.get(index.buffer, (0,)), index.places, strict=True
        ):
            at = at * size + self.index(place)
        return int(self.read(self.names[index.buffer], at))

    def subscripts(self, index: Subscripts) -> int:
        """Return the place of an element of an array. Raises MemoryFaultError."""
        places, at = [self.index(place) for place in index.places], 0
        for place, extent in zip(places, index.shape, strict=True):
            if not 0 <= place < extent:
                raise MemoryFaultError(f"subscripts {places} lie outside an array of {index.shape}")
            at = at * extent + place
        return at

    def subscript(self, index: Subscript) -> int:
        """Return an index out of data, inside of its axis."""
        at = int(self.value(index.value))
        return min(max(at + index.extent if at < 0 else at, 0), index.extent - 1)

    def flag(self, condition: Flag) -> bool:
        """Return a known truth, or that of a variable."""
        name = condition.name
        return bool(int(name)) if name.isdigit() else bool(self.names[name])


def _goes_on(turns: Turns) -> bool:
    """Run a thread up to its next barrier; return whether it came to one."""
    try:
        next(turns)
    except StopIteration:
        return False
    return True


def _bind(function: LoopFunction, values: Iterable[Any]) -> dict[str, Any]:
    """Return values by the names of a function's parameters."""
    return dict(zip((part.name for part in function.parameters), values, strict=True))


def _widen_number(value: Any) -> Array:
    """Return a number as NumPy's side of the table of scalar functions takes it."""
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    return array.astype(np.uint64 if array.dtype == np.uint64 else np.int64)


_STATEMENTS: Final[Mapping[type, Callable[[Thread, Any], None]]] = {
    **{Block: Thread.block, If: Thread.branch, For: Thread.loop, Scoped: Thread.inside},
    **{Once: Thread.inside, Let: Thread.let, Point: Thread.point, Declare: Thread.declare},
    **{Assign: Thread.assign, Store: Thread.store, Append: Thread.append, Advance: Thread.advance},
    **{Invoke: Thread.invoke, Break: Thread.leave_loop, Return: Thread.leave},
    **dict.fromkeys((Barrier, Comment, Unused, Opaque, Prefetch), Thread.skip),
}
_VALUES: Final[Mapping[type, Callable[[Thread, Any], Any]]] = {
    int: lambda _, value: value,
    Mask: lambda _, value: value.value,
    Named: lambda thread, value: thread.names[value.name],
    Constant: lambda thread, value: thread.of_kind(value.value, value.kind),
    Element: Thread.element,
    Member: lambda thread, value: thread.record(value.record)[value.field],
    Convert: lambda thread, value: thread.of_kind(thread.value(value.value), value.kind),
    Before: lambda thread, value: thread.value(value.buffer).move_bytes(
        -value.size * int(thread.value(value.count))
    ),
    **{Address: Thread.address, AddressOf: Thread.reference, Fields: Thread.fields},
    **{Compute: Thread.compute, Arithmetic: Thread.arithmetic, Alternative: Thread.choose},
    **{RoutineResult: Thread.result, Mapped: Thread.result, Select: Thread.choose},
    **{Variable: Thread.variable, Linear: Thread.linear, Quotient: Thread.quotient},
    **{Extreme: Thread.extreme, TableEntry: Thread.entry, Subscript: Thread.subscript},
    Subscripts: Thread.subscripts,
    Product: lambda thread, value: thread.index(value.left) * thread.index(value.right),
    Modulo: lambda thread, value: thread.index(value.left) % thread.index(value.right),
    Bits: lambda thread, value: _BITS[value.operator](
        thread.index(value.left), thread.index(value.right)
    ),
    Comparison: lambda thread, value: _COMPARE[value.operator](
        thread.index(value.left), thread.index(value.right)
    ),
    Within: lambda thread, value: 0 <= thread.index(value.at) < value.extent,
    Flag: Thread.flag,
    Supported: lambda *_: True,
    Every: lambda thread, value: all(map(thread.value, value.parts)),
    Either: lambda thread, value: any(map(thread.value, value.parts)),
    Negation: lambda thread, value: not thread.value(value.part),
}
