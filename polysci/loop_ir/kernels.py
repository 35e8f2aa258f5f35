"""Functions of loop IR as kernels of a device with a queue: which are launched, in which order.

A parallel loop becomes a kernel with a work-item for each of its turns. What stands between such
loops becomes a kernel of one work-item, but for definitions of scalars and records, which each
kernel behind them repeats; serial loops around parallel ones are run by whoever launches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import Index, Variable, number_in
from polysci.loop_ir.microkernels import Unit
from polysci.loop_ir.nodes import (
    Address,
    Alternative,
    Assign,
    Barrier,
    Block,
    Buffer,
    Comment,
    Declare,
    For,
    Invoke,
    Let,
    LoopFunction,
    LoopKind,
    LoopModule,
    LoopStatement,
    Member,
    Named,
    Once,
    Point,
    Return,
    RoutineResult,
    ScalarParameter,
    Scoped,
    Store,
    Table,
    Unused,
    Value,
    block,
    names_in,
    walk_statements,
)

KERNEL: Final = "__kernel"  # the attribute of functions that are launched
ITEM: Final = "item"  # the number of a work-item
CLOCK: Final = "ps_now"  # the routine that tells the time
ITEM_NUMBER: Final = "get_global_id"  # the routine that returns it
GROUP_NUMBER: Final = "get_group_id"
NUMBER_IN_GROUP: Final = "get_local_id"
SHARED: Final = (LoopKind.PARALLEL, LoopKind.THREADS)


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of ``items`` groups of ``group`` work-items each; arguments are by name."""

    kernel: str
    items: int
    arguments: tuple[str, ...]
    group: int = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """A note of the time at which all launches before it have ended, at a place in ``times``."""

    place: int


@dataclass(frozen=True, slots=True)
class LaunchLoop:
    """Steps that are repeated for each value of a variable."""

    variable: str
    values: range
    steps: tuple[Step, ...]


Step = Launch | Mark | LaunchLoop


@dataclass(frozen=True, slots=True)
class LaunchedFunction:
    """The launches of a function's call, or the number that it returns without any."""

    name: str
    parameters: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    result: int = 0

    def launches(self, arguments: Sequence[Any]) -> Iterator[tuple[Launch | Mark, list[Any]]]:
        """Yield the launches and marks of a call in their order, with the launches' arguments."""
        values = dict(zip(self.parameters, arguments, strict=True))
        yield from _launches(self.steps, values)

    def kernel_launches(self) -> Iterator[Launch]:
        """Yield the launches in the text of the function, each once."""
        yield from _kernel_launches(self.steps)


def _kernel_launches(steps: Sequence[Step]) -> Iterator[Launch]:
    for step in steps:
        if isinstance(step, LaunchLoop):
            yield from _kernel_launches(step.steps)
        elif isinstance(step, Launch):
            yield step


def _launches(
    steps: Sequence[Step], values: dict[str, Any]
) -> Iterator[tuple[Launch | Mark, list[Any]]]:
    for step in steps:
        if not isinstance(step, LaunchLoop):
            names = step.arguments if isinstance(step, Launch) else ()
            yield step, [values[name] for name in names]
            continue
        for value in step.values:
            yield from _launches(step.steps, {**values, step.variable: value})


def split(
    module: LoopModule, entries: Sequence[str]
) -> tuple[LoopModule, tuple[LaunchedFunction, ...]]:
    """Return a module of kernels and what they call, and the entry points as their launches.

    Functions whose work threads share become parts of those that call them. Raises UnsupportedError
    for code that needs threads which wait for each other.
    """
    shared = _shared_functions(module)
    parts, launched = list[LoopFunction | Table | Let | Declare](), list[LaunchedFunction]()
    for part in module.parts:
        if isinstance(part, LoopFunction) and part.name in entries:
            splitter = _Splitter(part, shared)
            launched.append(splitter.split())
            parts += splitter.kernels
        elif not (isinstance(part, LoopFunction) and part.name in shared):
            parts.append(part)
    return replace(module, parts=tuple(parts)), tuple(launched)


def _shared_functions(module: LoopModule) -> dict[str, LoopFunction]:
    """Return the functions whose work threads share, or that call such ones."""
    shared, count = dict[str, LoopFunction](), -1
    while len(shared) > count:
        count = len(shared)
        shared |= {
            name: part for name, part in module.functions.items() if _is_shared(part.body, shared)
        }
    return shared


def _is_shared(statement: LoopStatement, shared: Collection[str]) -> bool:
    """Return whether threads share some of the work, wait for each other, or call ``shared``."""
    return any(
        isinstance(part, Barrier | Once)
        or _place_of(part) is not None
        or (isinstance(part, For) and part.kind in SHARED)
        or (isinstance(part, Invoke) and part.function in shared)
        for part in walk_statements(statement)
    )


def _place_of(statement: LoopStatement) -> int | None:
    """Return the place of the time that a statement notes, and nothing else; None: of no such."""
    match statement:
        case Once(body=Block((inner,))):
            return _place_of(inner)
        case Store(at=at, value=RoutineResult(routine=routine)) if routine == CLOCK:
            return _constant(at)
        case _:
            return None


@dataclass(slots=True)
class _Splitter:
    """A function on its way to kernels; ``shared`` are the functions whose work threads share."""

    function: LoopFunction
    shared: Mapping[str, LoopFunction]
    kernels: list[LoopFunction] = field(default_factory=list)
    unit: Unit | None = field(init=False)  # of the code that becomes kernels now

    def __post_init__(self) -> None:
        self.unit = self.function.unit

    def split(self) -> LaunchedFunction:
        """Return the launches of the function, and keep its kernels."""
        function, (*_, last) = self.function, self.function.body.body
        names = tuple(parameter.name for parameter in function.parameters)
        result = _constant(last.value) if isinstance(last, Return) and last.value is not None else 0
        statements = [it for it in function.body.body if not isinstance(it, Return | Unused)]
        steps = list[Step]()
        if _is_shared(function.body, self.shared):
            steps = self.steps(statements, [], ())
        elif statements:
            steps = [self.launch(1, statements, ())]
        return LaunchedFunction(function.name, names, tuple(steps), result)

    def steps(
        self, statements: Sequence[LoopStatement], setup: Sequence[LoopStatement],
        variables: Sequence[str],
    ) -> list[Step]:  # fmt: skip
        """Return the launches of statements behind ``setup``, which each kernel repeats.

        ``variables`` are those of the loops around them.
        """
        steps, setup, alone = list[Step](), [*setup], list[LoopStatement]()
        for statement in statements:
            if isinstance(statement, Comment | Unused | Return):
                continue
            place = _place_of(statement)
            whole = isinstance(statement, Once) and _is_shared(statement.body, self.shared)
            if isinstance(statement, Once) and place is None and not whole:
                alone += statement.body.body
                continue
            defines = isinstance(statement, Let | Assign | Point)
            if not defines and not _is_shared(statement, self.shared):
                alone.append(statement)
                continue
            if alone:
                steps.append(self.launch(1, [*setup, *alone], variables))
                alone = []
            if place is not None:
                steps.append(Mark(place))
            elif defines:
                setup.append(statement)
            elif not isinstance(statement, Barrier):
                steps += self.share(statement, setup, variables)
        if alone:
            steps.append(self.launch(1, [*setup, *alone], variables))
        return steps

    def share(
        self, statement: LoopStatement, setup: Sequence[LoopStatement], variables: Sequence[str]
    ) -> list[Step]:
        """Return the launches of a statement whose work threads share."""
        match statement:
            case For(kind=kind) if kind in SHARED:
                items, body, group = self.items(statement)
                return [self.launch(items, [*setup, *body], variables, group)]
            case For(variable, start, end, body, step):
                values = range(_constant(start), _constant(end), step)
                inner = self.steps(body.body, setup, [*variables, variable])
                return [LaunchLoop(variable, values, tuple(inner))]
            case Scoped(body) | Once(body) | Block(body) if isinstance(body, Block):
                return self.steps(body.body, setup, variables)
            case Invoke(function, operands):
                callee = self.shared[function]
                bound = [*setup, *self.bind(callee.parameters, operands, setup)]
                outer, self.unit = self.unit, callee.unit
                steps = self.steps(callee.body.body, bound, variables)
                self.unit = outer
                return steps
            case _:
                text = type(statement).__name__
                raise UnsupportedError(f"{self.function.name}: {text} around parallel loops")

    def items(self, loop: For) -> tuple[int, list[LoopStatement], int]:
        """Return the turns of parallel loops, nested ones as one, and what a work-item does.

        The last number is that of the work-items that share a turn as a group.
        """
        loops = [loop]
        while loop.kind is LoopKind.PARALLEL and len(loops[-1].body.body) == 1:
            inner = loops[-1].body.body[0]
            if not (isinstance(inner, For) and inner.kind is LoopKind.PARALLEL):
                break
            loops.append(inner)
        values = [range(_constant(part.start), _constant(part.end), part.step) for part in loops]
        counts = [*map(len, values)]
        statements, group = _join_items(loops[-1].body.body)
        if group == 1 and _is_shared(loops[-1].body, self.shared):
            raise UnsupportedError(f"{self.function.name}: a parallel loop inside of another one")
        number = GROUP_NUMBER if group > 1 else ITEM_NUMBER
        origins = [Let(ITEM, RoutineResult(number, (0,)))]
        for at, (part, own) in enumerate(zip(loops, values, strict=True)):
            turn: Index = Variable(ITEM) // prod(counts[at + 1 :])
            turn = turn % counts[at] if at else turn
            origins.append(Let(part.variable, turn * own.step + own.start))
        return prod(counts), [*origins, *statements], group

    def bind(
        self, parameters: Sequence[Buffer | ScalarParameter], operands: Sequence[Value],
        setup: Sequence[LoopStatement],
    ) -> Iterator[Let | Point | Assign]:  # fmt: skip
        """Yield definitions of a function's parameters by the operands of its call.

        Those that a kernel has by the same name, or ``setup`` points at, get new values there.
        """
        known = {parameter.name for parameter in self.function.parameters}
        known |= {part.buffer.name for part in setup if isinstance(part, Point)}
        for parameter, operand in zip(parameters, operands, strict=True):
            if operand in (Named(parameter.name), Variable(parameter.name)):
                continue
            if isinstance(parameter, ScalarParameter):
                yield Let(parameter.name, operand, parameter.kind)
                continue
            if parameter.name in known:
                yield Assign(parameter.name, operand)
                continue
            assert isinstance(operand, int | Address | Named | Member | Alternative)
            yield Point(replace(parameter, restrict=False), operand)

    def launch(
        self, items: int, statements: Sequence[LoopStatement], variables: Sequence[str],
        group: int = 1,
    ) -> Launch:  # fmt: skip
        """Make a kernel of statements; return its launch."""
        body = block(*statements)
        used = names_in(body)
        own = [part for part in self.function.parameters if part.name in used]
        parameters = (  # numbers have 64 bits, whoever launches
            *(ScalarParameter(it.name) if isinstance(it, ScalarParameter) else it for it in own),
            *(ScalarParameter(name) for name in variables if name in used),
        )
        name = f"{self.function.name}_k{len(self.kernels)}"
        attributes = (KERNEL, *[f"PS_GROUP({group})"] * (group > 1))
        self.kernels.append(LoopFunction(name, parameters, body, "", attributes, unit=self.unit))
        return Launch(name, items, tuple(parameter.name for parameter in parameters), group)


def _join_items(
    statements: Sequence[LoopStatement],
) -> tuple[Sequence[LoopStatement], int]:
    """Return what each item of a group does in a turn that ends with a loop over them.

    The second value is their number: 1 where there is no such loop.
    """
    *first, last = statements
    if not (isinstance(last, For) and last.kind is LoopKind.ITEMS):
        return statements, 1
    item = Let(last.variable, RoutineResult(NUMBER_IN_GROUP, (0,)))
    return [*first, item, *last.body.body], _constant(last.end)


def _constant(value: object) -> int:
    """Return an integer that is known now. Raises UnsupportedError for another one."""
    number = value if isinstance(value, int) else number_in(value)  # type: ignore[arg-type]
    if number is None:
        raise UnsupportedError(f"{value}: a device must know how much work there is")
    return number
