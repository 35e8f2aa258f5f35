"""The statements of loop IR: lowerings make them, printers and the interpreter take them.

Values are integers and conditions of ``index``, and the element values below. A buffer is named
where it is read or written; its ``Buffer`` is a parameter, a table or stands in a ``Declare``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from polysci.loop_ir.index import ZERO, Condition, Index, as_index

if TYPE_CHECKING:
    from polysci.loop_ir.microkernels import Unit

INTEGER: Final = "int64"  # the kind of indices
INDENT: Final = "    "
INFIX: Final = {"add": "+", "sub": "-", "mul": "*", "div": "/"}  # of functions in text
COLUMNS: Final = 96  # of a call or a head in text, from its first letter on
VALUES_SHOWN: Final = 8  # of an array of constants in text


class Scope(Enum):
    """The place where a buffer lives.

    ``LOCAL`` is for the lowering and the printer of a device with work-groups: C has none.
    """

    ARGUMENT = "argument"
    CONSTANT = "constant"
    ARENA = "arena"
    STACK = "stack"
    STATIC = "static"  # of the program, zeros at first
    LOCAL = "local"  # shared by the work-items of a group
    REGISTER = "register"


class Team(Enum):
    """The threads that share the work of a piece of code."""

    OWN = "those of a parallel region of its own"
    OPENMP = "those of the parallel region around its call"
    POOL = "those of a team, of which the caller tells"
    GROUP = "the work-items of a group of a device"


class LoopKind(Enum):
    """The way in which the turns of a loop are run."""

    SERIAL = "serial"
    PARALLEL = "parallel"  # threads share the turns, each an equal run of them
    THREADS = "threads"  # a turn for each thread number
    ITEMS = "items"  # a turn for each work-item of a group, whose items wait for each other


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory with ``extent`` elements of a type, or None where the caller decides.

    ``dtype`` is a type of tensors, as ``float32``, one that microkernels define, as ``ps_a``, a
    record, ``byte``, or ``opaque`` where only others know what it holds.
    ``restrict``: no other name reaches the same memory. ``shape``: extents of the axes, where
    elements are read and written by ``Subscripts``.
    """

    name: str
    dtype: str
    extent: Index | None = None
    scope: Scope = Scope.ARGUMENT
    const: bool = False
    restrict: bool = False
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        extent = " x ".join(map(str, self.shape or ([self.extent] if self.extent else [])))
        scope = "" if self.scope is Scope.ARGUMENT else f" @ {self.scope.value}"
        return f"{self.name}: {'const ' * self.const}{self.dtype}[{extent}]{scope}"


@dataclass(frozen=True, slots=True)
class ScalarParameter:
    """A number that a function takes; ``kind`` is its type: besides those of buffers ``int``.

    That is the type of statuses and truths.
    """

    name: str
    kind: str = INTEGER

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}"


# Values.


@dataclass(frozen=True, slots=True)
class Named:
    """A scalar variable, a record or a buffer as an operand, by its name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of a kind, as ``functions.number`` prints it."""

    value: float
    kind: str = "float32"

    def __str__(self) -> str:
        return f"{self.value:.9g}"


@dataclass(frozen=True, slots=True)
class Element:
    """The element of a buffer at an index, or an item of an array of records or buffers."""

    buffer: str | Member | Address
    at: Index

    def __str__(self) -> str:
        return f"{self.buffer}[{self.at}]"


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a record; ``pointed``: the name is that of a pointer to the record."""

    record: str | Element
    field: str
    pointed: bool = False

    def __str__(self) -> str:
        return f"{self.record}.{self.field}"


@dataclass(frozen=True, slots=True)
class Address:
    """A place in a buffer, as an operand; ``dtype`` reads the memory as elements of another type.

    ``at`` counts elements of that type.
    """

    buffer: Named | Member | Address | Element | Before
    at: Index = ZERO
    dtype: str = ""
    const: bool = False

    def __str__(self) -> str:
        kind = f" as {'const ' * self.const}{self.dtype}" if self.dtype else ""
        if not isinstance(self.buffer, Address):
            return f"&{self.buffer}[{self.at}]{kind}"
        if self.at == ZERO:
            return f"{self.buffer}{kind}"
        return f"&({self.buffer})[{self.at}]{kind}"


@dataclass(frozen=True, slots=True)
class Before:
    """The address ``count`` items of ``size`` bytes before a buffer's.

    It may lie outside of the memory, as long as nothing is read or written there.
    """

    buffer: Member
    count: Member
    size: int

    def __str__(self) -> str:
        return f"&{self.buffer} - {self.count} * {self.size}"


@dataclass(frozen=True, slots=True)
class Convert:
    """A number as one of another kind, as C converts it."""

    kind: str
    value: Value

    def __str__(self) -> str:
        return f"{self.kind}({self.value})"


@dataclass(frozen=True, slots=True)
class Compute:
    """A row of ``scalar_functions.FUNCTIONS``; ``kinds`` are those of its arguments."""

    function: str
    kind: str
    arguments: tuple[Value, ...]
    kinds: tuple[str, ...] = ()

    def __str__(self) -> str:
        arguments = [*map(str, self.arguments)]
        if self.function in INFIX and len(arguments) == 2:
            return f"({f' {INFIX[self.function]} '.join(arguments)})"
        return f"{self.function}({', '.join(arguments)})"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Two numbers combined by ``+``, ``-`` or ``*`` in the kind that C computes them in."""

    operator: str
    left: Value
    right: Value

    def __str__(self) -> str:
        return f"({self.left} {self.operator} {self.right})"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of two values, by a condition; the other one is not computed."""

    condition: Condition | Value
    then: Value
    otherwise: Value

    def __str__(self) -> str:
        return f"({self.condition} ? {self.then} : {self.otherwise})"


@dataclass(frozen=True, slots=True)
class RoutineResult:
    """The value that a routine returns, by the routine's name."""

    routine: str
    arguments: tuple[Value, ...]

    def __str__(self) -> str:
        return f"{self.routine}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Fields:
    """A record of some type: values by field, or several of them in order.

    ``array``: an array of constants of that type.
    """

    members: tuple[tuple[str, Value], ...]
    dtype: str = ""
    array: bool = False

    def __str__(self) -> str:
        return f"{{{', '.join(self.items)}}}"

    @property
    def items(self) -> list[str]:
        """The values as text, behind the names of their fields."""
        return [f"{name} = {value}" if name else str(value) for name, value in self.members]


@dataclass(frozen=True, slots=True)
class AddressOf:
    """The address of a scalar or a record, which a routine changes."""

    name: str

    def __str__(self) -> str:
        return f"&{self.name}"


@dataclass(frozen=True, slots=True)
class Mask:
    """Bits of an unsigned integer of so many bits."""

    value: int
    bits: int = 32

    def __str__(self) -> str:
        return f"{self.value:#x}"


@dataclass(frozen=True, slots=True)
class Subscript(Index):
    """An index out of data: a whole ``value`` of a kind; a negative one counts from the axis' end.

    What lies outside the ``extent`` elements of the axis is moved to its nearest end.
    """

    value: Value
    kind: str
    extent: int

    def __str__(self) -> str:
        return f"<{self.value} of {self.extent}>"


Value = (
    int | Index | Condition | Named | Constant | Element | Member | Address | Before | Convert
    | Compute | Arithmetic | Alternative | RoutineResult | Fields | Mask | AddressOf
)  # fmt: skip


# Statements.


@dataclass(frozen=True, slots=True)
class Block:
    """Statements in order."""

    body: tuple[LoopStatement, ...] = ()

    def __str__(self) -> str:
        return "\n".join(_lines(self, {}))


@dataclass(frozen=True, slots=True)
class For:
    """A loop from ``start`` on as far as the variable is below ``end``.

    Parallel loops whose body is nothing but another one share all turns of both. ``simd``: the
    turns are lanes of vectors, ``lanes`` of them if that is not 0. ``wait``: all threads wait
    behind a parallel loop. ``chunk``: how many turns in a row a thread takes, by default all of its
    share.
    """

    variable: str
    start: Index
    end: Index
    body: Block
    step: int = 1
    kind: LoopKind = LoopKind.SERIAL
    simd: bool = False
    lanes: int = 0
    wait: bool = False
    chunk: int | None = None

    def __str__(self) -> str:
        return "\n".join(_lines(self, {}))

    @property
    def head(self) -> str:
        """The line that its body stands below."""
        kind = "" if self.kind is LoopKind.SERIAL else f"{self.kind.value} "
        kind += "simd " * self.simd
        step = f" step {self.step}" if self.step != 1 else ""
        chunk = f" by {self.chunk}" if self.chunk else ""
        return f"{kind}for {self.variable} from {self.start} to {self.end}{step}{chunk}:"


@dataclass(frozen=True, slots=True)
class If:
    """Statements that run where a condition holds, and those that run where it does not."""

    condition: Condition | Value
    then: Block
    otherwise: Block = Block()

    def __str__(self) -> str:
        return "\n".join(_lines(self, {}))


@dataclass(frozen=True, slots=True)
class Let:
    """The definition of a scalar or a record; ``const`` ones keep their value.

    ``static``: the value is known when the code is compiled.
    """

    name: str
    value: Value
    kind: str = INTEGER
    const: bool = True
    static: bool = False

    def __str__(self) -> str:
        return f"{self.head}{self.value}"

    @property
    def head(self) -> str:
        """The text in front of its value."""
        return f"{'let' if self.const else 'var'} {self.name}: {self.kind} = "


@dataclass(frozen=True, slots=True)
class Point:
    """The definition of a buffer that is part of another one: a pointer into it."""

    buffer: Buffer
    address: Address | AddressOf | Named | Member | Alternative | Fields | int

    def __str__(self) -> str:
        buffer = self.buffer
        return f"let {buffer.name}: {'const ' * buffer.const}{buffer.dtype}[] = {self.address}"


@dataclass(frozen=True, slots=True)
class Assign:
    """A new value of a scalar, of a pointer or of a field of a record."""

    to: str | Member
    value: Value

    def __str__(self) -> str:
        return f"{self.to} = {self.value}"


@dataclass(frozen=True, slots=True)
class Declare:
    """Memory of a function's own, aligned to 64 bytes, without values unless ``values`` say so."""

    buffer: Buffer
    values: tuple[Value, ...] = ()

    def __str__(self) -> str:
        return f"declare {self.buffer}{_values_text(self.values)}"


@dataclass(frozen=True, slots=True)
class Store:
    """The write of one element."""

    buffer: str | Member | Address
    at: Index
    value: Value

    def __str__(self) -> str:
        return f"{self.buffer}[{self.at}] = {self.value}"


@dataclass(frozen=True, slots=True)
class Append:
    """The write of the element that a buffer's pointer stands at, which moves on by one."""

    buffer: str
    value: Value

    def __str__(self) -> str:
        return f"append {self.value} to {self.buffer}"


@dataclass(frozen=True, slots=True)
class Advance:
    """A move of a buffer's pointer by so many elements."""

    buffer: str
    count: Index

    def __str__(self) -> str:
        return f"advance {self.buffer} by {self.count}"


@dataclass(frozen=True, slots=True)
class Invoke:
    """The call of a microkernel, a routine or a function of the module."""

    function: str
    operands: tuple[Value, ...] = ()

    def __str__(self) -> str:
        return "\n".join(_lines(self, {}))


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A request for the cache line at an address, which is read later."""

    address: Address

    def __str__(self) -> str:
        return f"prefetch {self.address}"


@dataclass(frozen=True, slots=True)
class Unused:
    """Names that nothing reads, said so that compilers do not warn."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"unused {', '.join(self.names)}"


@dataclass(frozen=True, slots=True)
class Barrier:
    """A wait of all threads of the team for each other."""

    def __str__(self) -> str:
        return "barrier"


@dataclass(frozen=True, slots=True)
class Once:
    """Statements that one thread executes; ``wait``: the others wait for it.

    ``first``: it is the first thread, and no one waits.
    """

    body: Block
    wait: bool = False
    first: bool = False

    def __str__(self) -> str:
        return "\n".join(_lines(self, {}))


@dataclass(frozen=True, slots=True)
class Scoped:
    """Statements whose names end with them.

    With a ``unit`` they call microkernels of other element types than the function around them.
    """

    body: Block
    unit: Unit | None = None

    def __str__(self) -> str:
        return "\n".join(_lines(self, {}))


@dataclass(frozen=True, slots=True)
class Comment:
    """A remark for readers of generated code."""

    text: str

    def __str__(self) -> str:
        return f"# {self.text}"


@dataclass(frozen=True, slots=True)
class Return:
    """The end of a function, with its result if it has one."""

    value: Value | None = None

    def __str__(self) -> str:
        return "return" if self.value is None else f"return {self.value}"


@dataclass(frozen=True, slots=True)
class Opaque:
    """A point that compilers move no vector code across."""

    def __str__(self) -> str:
        return "opaque"


@dataclass(frozen=True, slots=True)
class Break:
    """The end of the innermost serial loop."""

    def __str__(self) -> str:
        return "break"


LoopStatement = (
    Block | For | If | Let | Point | Assign | Declare | Store | Append | Advance | Invoke
    | Prefetch | Unused | Barrier | Once | Scoped | Comment | Return | Opaque | Break
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoopFunction:
    """A function. ``attributes`` are words of its head: ``static``, ``PS_KERNEL``, ``PS_LOOP``.

    ``unit`` has the element types and vectors of the microkernels that it calls, if it calls some.
    """

    name: str
    parameters: tuple[Buffer | ScalarParameter, ...]
    body: Block
    result: str = ""
    attributes: tuple[str, ...] = ("static", "PS_KERNEL")
    comment: str = ""
    unit: Unit | None = None

    def __str__(self) -> str:
        return "\n".join(_function_lines(self, {}))


@dataclass(frozen=True, slots=True)
class Table:
    """Constants, by one or more dimensions."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: tuple[int | float, ...]

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        return f"table {self.name}: {self.dtype}[{shape}]{_values_text(self.values)}"


@dataclass(frozen=True, slots=True)
class LoopModule:
    """Functions, tables, constants and static memory in the order in which they are printed."""

    parts: tuple[LoopFunction | Table | Let | Declare, ...]

    def __str__(self) -> str:
        parameters = {
            name: [parameter.name for parameter in function.parameters]
            for name, function in self.functions.items()
        }
        parts = [
            _function_lines(part, parameters) if isinstance(part, LoopFunction)
            else (str(part),) if isinstance(part, Table) else _lines(part, parameters)
            for part in self.parts
        ]  # fmt: skip
        return "\n\n".join("\n".join(part) for part in parts)

    @property
    def functions(self) -> dict[str, LoopFunction]:
        """The functions by name."""
        return {part.name: part for part in self.parts if isinstance(part, LoopFunction)}


EMPTY: Final = LoopModule(())


def join(modules: Iterable[LoopModule]) -> LoopModule:
    """Return the parts of several modules as one."""
    return LoopModule(tuple(part for module in modules for part in module.parts))


def block(*statements: LoopStatement) -> Block:
    """Return a block of statements, those of blocks among them one by one."""
    return Block(tuple(_flat(statements)))


def loop(variable: str, end: int | Index, *body: LoopStatement, start: int | Index = 0,
         step: int = 1) -> For:  # fmt: skip
    """Return a serial loop."""
    return For(variable, as_index(start), as_index(end), block(*body), step)


def run_threads(threads: int, body: Sequence[LoopStatement], *, last: bool = False) -> For:
    """Return statements once a thread; nobody waits for others behind the ``last`` ones."""
    end = as_index(threads)
    return For("thread", ZERO, end, block(*body), kind=LoopKind.THREADS, wait=not last)


def names_in(node: object) -> set[str]:
    """Return the names that statements or values mention, and other words that they hold."""
    names, pending = set[str](), [node]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            names.add(part)
        elif isinstance(part, tuple | list):
            pending.extend(part)
        elif is_dataclass(part):
            pending.extend(getattr(part, item.name) for item in fields(part))
    return names


def map_words(node: Any, change: Callable[[str], str]) -> Any:
    """Return statements or values with other names, and other words that they hold."""
    if isinstance(node, str):
        return change(node)
    if isinstance(node, tuple):
        return tuple([map_words(part, change) for part in node])
    if not is_dataclass(node) or isinstance(node, type):
        return node
    parts = {item.name: getattr(node, item.name) for item in fields(node) if item.init}
    return replace(node, **{name: map_words(part, change) for name, part in parts.items()})


def walk_statements(statement: LoopStatement) -> Iterator[LoopStatement]:
    """Yield a statement and all inside it, each before its parts."""
    yield statement
    match statement:
        case Block(body):
            inner: tuple[Block | LoopStatement, ...] = body
        case For() | Once() | Scoped():
            inner = (statement.body,)
        case If(_, then, otherwise):
            inner = (then, otherwise)
        case _:
            inner = ()
    for part in inner:
        yield from walk_statements(part)


def map_statements(body: Block, change: Callable[[LoopStatement], LoopStatement | None]) -> Block:
    """Return statements as ``change`` makes them, which gets those inside changed already.

    A statement for which it returns None is left out.
    """
    changed = list[LoopStatement]()
    for statement in body.body:
        match statement:
            case Block():
                inner: LoopStatement = map_statements(statement, change)
            case For() | Once() | Scoped():
                inner = replace(statement, body=map_statements(statement.body, change))
            case If(condition, then, otherwise):
                inner = If(
                    condition, map_statements(then, change), map_statements(otherwise, change)
                )
            case _:
                inner = statement
        after = change(inner)
        changed += [] if after is None else [after]
    return Block(tuple(changed))


def _flat(statements: tuple[LoopStatement, ...]) -> list[LoopStatement]:
    flat = list[LoopStatement]()
    for statement in statements:
        if isinstance(statement, Block):
            flat += _flat(statement.body)
        else:
            flat.append(statement)
    return flat


def _lines(statement: LoopStatement, parameters: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the text of a statement; calls of functions in ``parameters`` name their arguments."""
    match statement:
        case Block(body):
            for part in body:
                yield from _lines(part, parameters)
        case For(body=body, wait=wait):
            yield statement.head
            yield from _inside(body, parameters)
            yield from ["barrier"] * wait
        case If(condition, then, otherwise):
            yield f"if {condition}:"
            yield from _inside(then, parameters)
            if otherwise.body:
                yield "else:"
                yield from _inside(otherwise, parameters)
        case Once(body, wait, first):
            yield "first thread:" if first else "once:"
            yield from _inside(body, parameters)
            yield from ["barrier"] * wait
        case Scoped(body):
            yield "block:"
            yield from _inside(body, parameters)
        case Invoke(function, operands):
            names = parameters.get(function, ())
            named = [f"{name}={value}" for name, value in zip(names, operands, strict=False)]
            yield from _wrap(f"{function}(", named or [*map(str, operands)], ")")
        case Let(value=Fields() as record):
            yield from _wrap(f"{statement.head}{{", record.items, "}")
        case _:
            yield str(statement)


def _inside(body: Block, parameters: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the text of statements below the line that they belong to."""
    for line in _lines(body, parameters) if body.body else ("pass",):
        yield f"{INDENT}{line}"


def _function_lines(
    function: LoopFunction, parameters: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield the text of a function, with its comment above it."""
    yield from (f"# {line}" for line in function.comment.splitlines())
    result = f" -> {function.result}" if function.result else ""
    items = [*map(str, function.parameters)]
    yield from _wrap(f"function {function.name}(", items, f"){result}:", 0)
    yield from _inside(function.body, parameters)


def _wrap(head: str, items: Sequence[str], end: str, width: int = COLUMNS) -> Iterator[str]:
    """Yield head, items and end in one line, or items in lines of ``width`` where that is long."""
    line = f"{head}{', '.join(items)}{end}"
    if len(line) <= COLUMNS:
        yield line
        return
    yield head
    line = ""
    for item in items:
        if line and len(line) + len(item) + 2 > width:
            yield f"{INDENT}{line}"
            line = ""
        line += f"{' ' * bool(line)}{item},"
    yield f"{INDENT}{line}"
    yield end


def _values_text(values: Sequence[object]) -> str:
    """Return the first values of an array behind an equals sign; nothing where there are none."""
    shown = [*map(str, values[:VALUES_SHOWN]), *["..."] * (len(values) > VALUES_SHOWN)]
    return f" = {{{', '.join(shown)}}}" if values else ""
