"""Accesses to memory of the work-items of a group, as index expressions of loop IR.

An expression is in the item's number ``at``, in the iterators of the loops around the access, and
in what all items of a group have in common. Each access stands in an epoch: the number of barriers
that every item has passed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import (
    TRUE,
    Comparison,
    Condition,
    Every,
    Extreme,
    Index,
    Linear,
    Modulo,
    Product,
    Quotient,
    Select,
    TableEntry,
    Variable,
    Within,
    as_index,
    compare,
    every,
    inside,
    number_in,
)
from polysci.loop_ir.nodes import (
    Address,
    Alternative,
    Arithmetic,
    Assign,
    Barrier,
    Block,
    Compute,
    Convert,
    Element,
    Fields,
    For,
    If,
    Invoke,
    Let,
    LoopStatement,
    Named,
    RoutineResult,
    Scoped,
    Store,
    Value,
)

ITEM: Final = "at"  # the number of a work-item in its group
TOGETHER: Final = 4  # neighbouring elements that one instruction reads or writes
WORD: Final = 4  # 8-bit numbers


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of a loop; ``waits``: the items of a group pass barriers in each."""

    name: str
    values: range
    waits: bool = False


@dataclass(frozen=True, slots=True)
class ItemAccess:
    """A read or write of ``width`` elements from ``place`` on, for each turn of ``loops``."""

    buffer: str
    place: Index
    width: int
    writes: bool
    epoch: Index
    loops: tuple[Turns, ...]
    conditions: tuple[Condition, ...] = ()


def accesses_of(item: LoopStatement) -> tuple[ItemAccess, ...]:
    """Return the accesses of what a work-item does.

    Raises UnsupportedError for a barrier that some items may not come to.
    """
    walk = _Walk()
    walk.run(item)
    return tuple(walk.accesses)


@dataclass(slots=True)
class _Walk:
    """A walk over the statements of an item: what names mean here, and the accesses until now."""

    names: dict[str, Index] = field(default_factory=dict)
    arrays: dict[str, tuple[str, Index]] = field(default_factory=dict)  # iterator and elements
    loops: tuple[Turns, ...] = ()
    conditions: tuple[Condition, ...] = ()
    epoch: Index = field(default_factory=lambda: as_index(0))
    accesses: list[ItemAccess] = field(default_factory=list)
    count: int = 0  # of loops

    def run(self, statement: LoopStatement) -> None:
        """Note the accesses of a statement."""
        match statement:
            case Block(body):
                for part in body:
                    self.run(part)
            case Scoped(body):
                outer = (self.names, self.arrays)
                self.names, self.arrays = {**self.names}, {**self.arrays}
                self.run(body)
                self.names, self.arrays = outer
            case For():
                self.loop(statement)
            case If(condition, then, otherwise):
                if _barriers(statement):
                    raise UnsupportedError(f"a barrier where not all work-items come: {condition}")
                with self.under(condition):
                    self.run(then)
                self.run(otherwise)
            case Barrier():
                self.epoch = self.epoch + 1
            case Let(name, Fields(members)):
                self.names |= {f"{name}.{key}": as_index(value) for key, value in members
                               if isinstance(value, int)}  # fmt: skip
            case Let(name, value) if isinstance(value, int | Index):
                self.names[name] = self.index(as_index(value))
            case Store(str(buffer), at, value) if isinstance(value, int | Index):
                iterator = self.index(at)
                name = iterator.name if isinstance(iterator, Variable) else ""
                self.arrays[buffer] = (name, self.index(as_index(value)))
            case Store(str(buffer), at, value):
                self.read(value)
                self.note(buffer, self.index(at), writes=True)
            case Let(_, value) | Assign(_, value):
                self.read(value)
            case Invoke(function, operands) if function in ROUTINES:
                ROUTINES[function](self, operands)
            case _:
                pass

    def loop(self, loop: For) -> None:
        """Note the accesses of a loop, whose turns pass equally many barriers."""
        waits = _barriers(loop.body)
        values = _values(loop) if waits else _most_values(loop)
        ends = [*_parts(loop.start, "max", ">="), *_parts(loop.end, "min", "<")]
        bounds = [(operator, self.index(end)) for operator, end in ends]
        with self.turns(loop.variable, values, bool(waits)) as iterator:
            before = self.epoch
            if waits:
                self.epoch = before + (iterator - values.start) // loop.step * waits
            with self.under(every([compare(iterator, *bound) for bound in bounds])):
                self.run(loop.body)
        self.epoch = before + len(values) * waits

    @contextmanager
    def turns(self, name: str, values: range, waits: bool = False) -> Iterator[Index]:
        """Enter a loop; its iterator has a name of its own."""
        outer, self.count = (self.loops, self.names), self.count + 1
        iterator = Variable(f"{name}_{self.count}")
        self.loops = (*self.loops, Turns(iterator.name, values, waits))
        self.names = {**self.names, name: iterator}
        yield iterator
        self.loops, self.names = outer

    @contextmanager
    def under(self, condition: Condition | Value) -> Iterator[None]:
        """Enter what is done where a condition holds."""
        outer = self.conditions
        self.conditions = (*outer, *self.conjuncts(condition))
        yield
        self.conditions = outer

    def conjuncts(self, condition: Condition | Value) -> Iterator[Condition]:
        """Yield the comparisons of a condition; what else it says is left out."""
        match condition:
            case Every(parts):
                for part in parts:
                    yield from self.conjuncts(part)
            case Comparison(operator, left, right):
                yield Comparison(operator, self.index(left), self.index(right))
            case Within(at, extent):
                for part in inside(at, extent):
                    yield from self.conjuncts(part)
            case _:
                pass

    def read(self, value: Value) -> None:
        """Note the elements that a value is made of."""
        match value:
            case Element(str(buffer), at):
                self.note(buffer, self.index(at))
            case Alternative(condition, then, otherwise):
                self.read(condition)
                with self.under(condition):
                    self.read(then)
                self.read(otherwise)
            case Compute(arguments=parts) | RoutineResult(arguments=parts):
                for part in parts:
                    self.read(part)
            case Convert(value=part):
                self.read(part)
            case Arithmetic(left=left, right=right):
                self.read(left)
                self.read(right)
            case _:
                pass

    def note(self, buffer: str, place: Index, width: int = 1, *, writes: bool = False) -> None:
        """Keep an access."""
        own = ItemAccess(buffer, place, width, writes, self.epoch, self.loops, self.conditions)
        self.accesses.append(own)

    def at(self, address: Value) -> tuple[str, Index]:
        """Return the buffer and the place of an address."""
        assert isinstance(address, Address) and isinstance(address.buffer, Named)
        return address.buffer.name, self.index(address.at)

    def index(self, value: Index) -> Index:
        """Return an expression without names that the item defines."""
        match value:
            case Variable(name):
                return self.names.get(name, value)
            case Linear(terms, constant):
                parts = (self.index(term) * factor for term, factor in terms)
                return sum(parts, as_index(constant))
            case Quotient(left, right, "ceil") if (number := number_in(right)) is not None:
                return (self.index(left) + (number - 1)) // number
            case Quotient(left, right, _):
                return self.index(left) // self.index(right)
            case Modulo(left, right):
                return self.index(left) % self.index(right)
            case Product(left, right):
                return self.index(left) * self.index(right)
            case Select(condition, then, otherwise):
                real = every([*self.conjuncts(condition)])
                return Select(real, self.index(then), self.index(otherwise))
            case Extreme(function, left, right):
                return Extreme(function, self.index(left), self.index(right))
            case TableEntry(buffer, (place,)) if buffer in self.arrays:
                iterator, element = self.arrays[buffer]
                return _Walk({iterator: self.index(place)}).index(element)
            case _:
                return value


def _values(loop: For) -> range:
    """Return the turns of a loop."""
    start, end = number_in(loop.start), number_in(loop.end)
    if start is None or end is None:
        raise UnsupportedError(f"a loop over {loop.variable} whose turns vary")
    return range(start, end, loop.step)


def _most_values(loop: For) -> range:
    """Return the turns of a loop, or those that it has at most where its ends vary."""
    starts = [number_in(part) for _, part in _parts(loop.start, "max", ">=")]
    ends = [number_in(part) for _, part in _parts(loop.end, "min", "<")]
    first = max((part for part in starts if part is not None), default=None)
    last = min((part for part in ends if part is not None), default=None)
    if first is None or last is None:
        raise UnsupportedError(f"a loop over {loop.variable} whose turns vary")
    step = loop.step if loop.start == as_index(first) else 1
    return range(first, last, step)


def _parts(bound: Index, function: str, operator: str) -> list[tuple[str, Index]]:
    """Return the comparisons of an iterator that a bound, the most or the least of some, means."""
    if isinstance(bound, Extreme) and bound.function == function:
        parts = (bound.left, bound.right)
        return [own for part in parts for own in _parts(part, function, operator)]
    return [(operator, bound)]


def _barriers(statement: LoopStatement) -> int:
    """Return the barriers that an item passes in a statement."""
    match statement:
        case Barrier():
            return 1
        case Scoped(body):
            return _barriers(body)
        case Block(body):
            return sum(map(_barriers, body))
        case If(_, then, otherwise):
            return _barriers(then) + _barriers(otherwise)
        case For(body=body):
            inside = _barriers(body)
            return inside and inside * len(_values(statement))
        case _:
            return 0


# What the routines of microkernels/group.h and held.h read and write.


def _copy_across(walk: _Walk, operands: Sequence[Value]) -> None:
    to, line, source, real = operands
    lanes = walk.names["t.lanes"]
    count, apart = number_in(lanes), line
    assert count and isinstance(apart, int)
    with walk.under(real):
        walk.note(*walk.at(source), count)
    with walk.turns("lane", range(count)) as lane:
        buffer, place = walk.at(to)
        walk.note(buffer, place + lane * apart, writes=True)


def _copy_along(walk: _Walk, operands: Sequence[Value]) -> None:
    to, source = operands
    count = number_in(walk.names["t.lanes"])
    assert count
    walk.note(*walk.at(source), count)
    walk.note(*walk.at(to), count, writes=True)


def _copy_word(walk: _Walk, operands: Sequence[Value]) -> None:
    to, source, real, _ = operands
    with walk.under(real):
        walk.note(*walk.at(source), WORD)
    walk.note(*walk.at(to), WORD, writes=True)


def _copy_words(walk: _Walk, operands: Sequence[Value]) -> None:
    to, source = operands
    count = number_in(walk.names["t.lanes"])
    assert count
    walk.note(*walk.at(source), WORD * count)
    walk.note(*walk.at(to), WORD * count, writes=True)


def _run_lines(walk: _Walk, operands: Sequence[Value], word: int = 1) -> None:
    """Note what the sums read; elements of lines are words of so many neighbours."""
    _, _, rows, columns, depth, *lines = operands
    numbers = [number_in(walk.names[f"t.{name}"]) for name in ("rows", "vecs", "lanes")]
    assert isinstance(depth, int) and all(isinstance(it, int) for it in lines)
    height, vectors, lanes = (it or 0 for it in numbers)
    row_line, column_line, apart = (it for it in lines if isinstance(it, int))
    with walk.turns("line", range(depth)) as line:
        buffer, place = walk.at(rows)
        for first in range(0, height, TOGETHER):
            width = min(TOGETHER, height - first)
            walk.note(buffer, place + (line * row_line + first) * word, width * word)
        buffer, place = walk.at(columns)
        with walk.turns("vector", range(vectors)) as vector:
            own = line * column_line + vector * apart
            walk.note(buffer, place + own * word, lanes * word)


def _held_rows(walk: _Walk, operands: Sequence[Value]) -> None:
    _, _, x, places, along, *_, depth, _, _ = operands
    _held(walk, x, places, (along, depth), as_index(0))


def _held_words(walk: _Walk, operands: Sequence[Value]) -> None:
    _, _, x, places, along, *_, depth, _ = operands
    _held(walk, x, places, (along, depth), as_index(0))


def _held_channels(walk: _Walk, operands: Sequence[Value]) -> None:
    _, _, x, places, along, across, *_, depth, columns, apart = operands
    vectors, lanes = (number_in(walk.names[f"t.{name}"]) or 0 for name in ("vecs", "lanes"))
    step = number_in(across) if isinstance(across, Index) else None
    assert step is not None and isinstance(columns, Index) and isinstance(apart, int)
    with walk.turns("vector", range(vectors)) as vector, walk.turns("lane", range(lanes)) as lane:
        column = vector * apart + lane
        with walk.under(compare(column, "<", walk.index(columns))):
            _held(walk, x, places, (along, depth), column * step)


def _held(walk: _Walk, x: Value, places: Value, steps: tuple[Value, Value], moved: Index) -> None:
    """Note the reads of rows of x, ``moved`` behind the places that the item keeps."""
    height, (along, depth) = number_in(walk.names["t.rows"]) or 0, steps
    step = number_in(along) if isinstance(along, Index) else None
    assert isinstance(places, Named) and isinstance(depth, int) and step is not None
    buffer, place = walk.at(x)
    with walk.turns("row", range(height)) as row, walk.turns("step", range(depth)) as turn:
        own = walk.index(TableEntry(places.name, (row,)))
        real = own.condition if isinstance(own, Select) else TRUE
        own = own.then if isinstance(own, Select) else own
        with walk.under(real):
            walk.note(buffer, place + own + turn * step + moved)


def _keep_lines(walk: _Walk, operands: Sequence[Value], *, writes: bool = True) -> None:
    _, _, places, rows, columns, apart, y, _ = operands
    numbers = [number_in(walk.names[f"t.{name}"]) for name in ("rows", "vecs", "lanes", "c_col")]
    height, vectors, lanes, across = (it or 0 for it in numbers)
    assert isinstance(places, Named) and isinstance(apart, int)
    assert isinstance(rows, Index) and isinstance(columns, Index)
    count, last = walk.index(rows), walk.index(columns)
    buffer, first = walk.at(y)
    with (
        walk.turns("row", range(height)) as row,
        walk.turns("vector", range(vectors)) as vector,
        walk.turns("lane", range(lanes)) as lane,
    ):
        column = vector * apart + lane
        with walk.under(every([compare(row, "<", count), compare(column, "<", last)])):
            place = first + walk.index(TableEntry(places.name, (row,)))
            walk.note(buffer, place + column * across, writes=writes)


ROUTINES: Final[Mapping[str, Callable[[_Walk, Sequence[Value]], None]]] = {
    "ps_copy_across": _copy_across, "ps_copy_along": _copy_along, "ps_run_lines": _run_lines,
    "ps_held_rows": _held_rows, "ps_held_channels": _held_channels, "ps_held_words": _held_words,
    "ps_keep_lines": _keep_lines, "ps_keep_rest": _keep_lines,
    "ps_copy_word": _copy_word, "ps_copy_words": _copy_words,
    "ps_add_held": partial(_keep_lines, writes=False),
    "ps_run_words": partial(_run_lines, word=WORD),
}  # fmt: skip
