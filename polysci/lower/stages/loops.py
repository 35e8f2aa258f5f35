"""Loop stages as loop IR: one function a stage, its innermost loop for the vectoriser."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Final

from polysci.loop_ir.expressions import (
    Apply,
    Computed,
    Expr,
    Guard,
    Load,
    Lookup,
    Number,
    Position,
    Reduce,
    Where,
    axis,
    loads,
    walk,
)
from polysci.loop_ir.functions import argument_kinds, kind_of, kind_of_type
from polysci.loop_ir.index import (
    Condition,
    Index,
    IndexLike,
    Variable,
    Within,
    as_index,
    ceil_divide,
    divide,
    every,
    least,
    most,
)
from polysci.loop_ir.nodes import (
    Address,
    Before,
    Buffer,
    Compute,
    Constant,
    Convert,
    Element,
    For,
    Let,
    LoopFunction,
    LoopKind,
    LoopStatement,
    Member,
    Named,
    Once,
    Point,
    Prefetch,
    RoutineResult,
    ScalarParameter,
    Scoped,
    Store,
    Subscript,
    Table,
    Unused,
    Value,
    block,
    names_in,
)
from polysci.lower.stages.access import (
    MemoryAccess,
    Places,
    affine_index,
    block_size,
    turn_iterator,
    unchanged_parts,
)
from polysci.lower.stages.accumulators import Accumulator, Statements, choose
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import LINE
from polysci.numerics.dtypes import array_type
from polysci.numerics.scalar_functions import EXACT, LONG, REAL, WHOLE, template
from polysci.program.control import SIZE, STEP
from polysci.program.passes.buffers import BufferPlace
from polysci.program.stages import JointLoops, LoopStage, UpdateStage, members_of
from polysci.target.coefficients import prior_of

NARROW = {"bf16": "bf16", "float16": "f16"}  # element type -> what its conversions are named by
MOST_PLACES = 2**31 - 1  # that a subscript of 32 bits tells apart
ATTRIBUTES: Final = ("static", "PS_LOOP")
MEMORY: Final = Buffer("m", "ps_memory", const=True)
_ROW_PARAMETERS: Final = (ScalarParameter("first"), ScalarParameter("last"))
Pointer = Address | Before | Element | Member | Named  # where a buffer of the program begins
Chunk = tuple[str, IndexLike, int]  # iterator, end, step
_SIZE_NAME: Final = re.compile(rf"{SIZE}\d+")
MOST_TURNS: Final = 16  # between what is asked for and what is read: a policy for short rows


@dataclass(frozen=True, slots=True)
class LaterAccess(MemoryAccess):
    """An element as a later turn reads it, or the last one that any turn reads."""

    last: IndexLike = 0

    def index(self, places: Places) -> Index:
        return least(MemoryAccess.index(self, places), self.last)


@dataclass(frozen=True, slots=True)
class DenseAccess(MemoryAccess):
    """An element of a caller's tensor, which has no more elements than the sizes of a run."""

    forms: tuple[Affine, ...] = ()
    strides: tuple[Index, ...] = ()

    def index(self, places: Places) -> Index:
        at: Index = as_index(0)
        for form, stride in zip(self.forms, self.strides, strict=True):
            at += affine_index(form, places) * stride
        return at


@dataclass(slots=True)
class LoopLowering:
    """One stage on its way to loop IR: iterators with extents, accesses."""

    stage: LoopStage | JointLoops | UpdateStage
    symbol: str
    places: Mapping[str, BufferPlace]
    pointers: Mapping[str, Pointer]  # by buffer
    threads: int
    extents: dict[str, int]
    rows: tuple[str, ...] = ()  # iterators that count rows, of which it makes `first` to `last`
    inside: tuple[str, ...] = ()  # pointers to tensors of a row fusion, which it gets
    steps: bool = False  # of one step of a loop around it
    ends: dict[str, Index] = field(default_factory=dict)  # iterators that end at sizes of a run
    dense: Mapping[str, tuple[Index, ...]] = field(default_factory=dict)  # strides that do so
    derived: Mapping[str, Index] = field(default_factory=dict)  # sizes that others make
    dtypes: Mapping[str, str] = field(init=False)
    members: tuple[LoopStage | UpdateStage, ...] = field(init=False)  # in order for each element
    exprs: list[Expr] = field(init=False)  # all parts of definitions
    reductions: list[Reduce] = field(init=False)
    fixed: set[str] = field(init=False)  # iterators in guards, tables and positions
    idle: set[str] = field(init=False)  # iterators that are always 0
    tables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)  # buffer -> pointer's name
    accesses: dict[Load, MemoryAccess] = field(default_factory=dict)
    targets: list[Load] = field(init=False)  # the elements that members write
    outs: list[MemoryAccess] = field(init=False)
    kinds: dict[int, str] = field(default_factory=dict)  # of expressions, by identity
    hoisted: dict[Expr, str] = field(default_factory=dict)  # name of what a loop leaves alone

    def __post_init__(self) -> None:
        self.dtypes = {name: place.dtype for name, place in self.places.items()}
        members = members_of(self.stage)
        self.members = tuple([it for it in members if isinstance(it, LoopStage | UpdateStage)])
        walked = [[*walk(member.expr)] for member in self.members]
        self.exprs = [part for parts in walked for part in parts]
        self.reductions = [
            it for parts in walked for it in [it for it in parts if isinstance(it, Reduce)][:1]
        ]
        for at, member in enumerate(self.members):
            self.buffers[self.places[member.output].buffer] = f"y{at or ''}"
        self.idle = {n for n, size in self.extents.items() if size == 1}
        self.targets = [self.target(member) for member in self.members]
        self.outs = [self.access(target) for target in self.targets]
        for load in dict.fromkeys(self.reads()):
            self.accesses[load] = self.access(load)
        reduced = {name for part in self.reductions for name, _ in part.over}
        self.fixed = {*self.extents, *reduced} if self.dense else self.fixed_iterators()
        self.merge()

    @property
    def out(self) -> MemoryAccess:
        """The access of the first one's results; those of the others are as far apart."""
        return self.outs[0]

    def target(self, member: LoopStage | UpdateStage) -> Load:
        """The element that is written."""
        rank = len(self.places[member.output].strides)
        return Load(member.output, tuple(axis(at) for at in range(rank)))

    def pointer(self, load: Load) -> str:
        """Return the name of the buffer of an element."""
        return self.buffers[self.places[load.tensor].buffer]

    def is_inside(self, tensor: str) -> bool:
        """Return whether other members of a row fusion have just made the rows that it reads."""
        pointer = self.pointers[self.places[tensor].buffer]
        return isinstance(pointer, Named) and pointer.name in self.inside

    def item_bytes(self, tensor: str) -> int:
        return array_type(self.dtypes[tensor]).itemsize

    def reads(self) -> list[Load]:
        """Return all elements that are read."""
        return [part for part in self.exprs if isinstance(part, Load)]

    def access(self, load: Load) -> MemoryAccess:
        place = self.places[load.tensor]
        if place.buffer not in self.buffers:
            self.buffers[place.buffer] = f"x{len(self.buffers)}"
        terms = {STEP: place.step} if place.step else {}  # the step of a loop around it
        const, tables = place.first, list[tuple[str, Affine, int]]()
        computed: list[tuple[Computed, int]] = []
        for index, stride in zip(load.index, place.strides, strict=True):
            match index:
                case Lookup(table, at):
                    tables.append((self.table(table), self.busy(at), stride))
                case Computed():
                    computed.append((index, stride))
                case _:
                    const += index.const * stride
                    for name, coef in index.terms:
                        if name not in self.idle:
                            terms[name] = terms.get(name, 0) + coef * stride
        terms = {name: coef for name, coef in terms.items() if coef}
        if load.tensor in self.dense:
            forms = tuple([self.busy(it) for it in load.index if isinstance(it, Affine)])
            return DenseAccess(terms, const, forms=forms, strides=self.dense[load.tensor])
        return MemoryAccess(terms, const, tuple(tables), tuple(computed))

    def busy(self, form: Affine) -> Affine:
        """Return a form without iterators that are always 0."""
        if not self.idle:
            return form
        kept = tuple([term for term in form.terms if term[0] not in self.idle])
        return form if len(kept) == len(form.terms) else Affine(kept, form.const)

    def table(self, values: tuple[int, ...]) -> str:
        names = (name for name, known in self.tables.items() if known == values)
        name = next(names, f"{self.symbol}_i{len(self.tables)}")
        self.tables[name] = values
        return name

    def merge(self) -> None:
        """Merge neighbouring loops that walk all tensors as one; those over rows by themselves."""
        others = [name for name in self.extents if name not in self.rows]
        for names in (self.rows, others):
            self.merge_loops([name for name in names if name not in self.fixed | self.idle])
        self.rows = tuple(name for name in self.rows if name not in self.idle)

    def merge_loops(self, names: Sequence[str]) -> None:
        """Merge neighbours among some loops that walk all tensors as one."""
        accesses = [*self.outs, *self.accesses.values()]
        for outer, inner in pairwise(self.outer_first(names)):
            size = self.extents[inner]
            if inner in self.ends:
                continue
            if all(a.terms.get(outer, 0) == size * a.terms.get(inner, 0) for a in accesses):
                self.extents[inner] = size * self.extents[outer]
                self.idle.add(outer)
                if outer in self.ends:
                    self.ends[inner] = size * self.ends.pop(outer)
                for access in accesses:
                    access.terms.pop(outer, None)  # type: ignore[attr-defined]

    def fixed_iterators(self) -> set[str]:
        """Return the iterators of guards, tables and positions, whose loops stay as they are."""
        forms = [at for access in self.accesses.values() for _, at, _ in access.tables]
        for part in self.exprs:
            if isinstance(part, Where | Reduce):
                forms += [guard.at for guard in part.guards]
            elif isinstance(part, Position):
                forms.append(part.at)
        return {name for form in forms for name, _ in form.terms}

    def outer_first(self, names: Sequence[str]) -> list[str]:
        return sorted(names, key=lambda name: (-abs(self.out.terms.get(name, 0)), name))

    def end(self, name: str) -> IndexLike:
        """Return where a loop over an iterator ends."""
        return self.ends.get(name, self.extents[name])

    def loop(
        self, name: str, end: IndexLike, body: Statements, start: IndexLike = 0, step: int = 1,
        kind: LoopKind = LoopKind.SERIAL, *, simd: bool = False,
    ) -> LoopStatement:  # fmt: skip
        if name in self.rows:
            start, end = self.row_bounds(name)
        return For(name, as_index(start), as_index(end), block(*body), step, kind, simd)

    def row_bounds(self, name: str) -> tuple[Index, Index]:
        """Return where a loop over rows begins and ends, inside those around it."""
        at = self.rows.index(name)
        inner = prod(self.extents[other] for other in self.rows[at + 1 :])
        start, end = divide(Variable("first"), inner), ceil_divide(Variable("last"), inner)
        if not at:
            return start, end
        before = as_index(0)
        for outer, following in pairwise(self.rows[: at + 1]):
            before = (before + Variable(outer)) * self.extents[following]
        return most(0, start - before), least(self.extents[name], end - before)

    def nest(self, names: Sequence[str], body: Statements, *, simd: bool = False) -> Statements:
        """Return loops over iterators, the first one outermost; ``simd``: the last a vector's."""
        for name in reversed(names):
            body, simd = [self.loop(name, self.end(name), body, simd=simd)], False
        return body

    def share(
        self, names: Sequence[str], body: Statements, chunks: Sequence[Chunk] = (),
        *, simd: bool = False,
    ) -> Statements:  # fmt: skip
        """Return loops over iterators, and inside them ``chunks``, whose turns threads share."""
        kind = LoopKind.PARALLEL if self.threads > 1 and not self.rows else LoopKind.SERIAL
        loops = [*((name, self.end(name), 1) for name in names), *chunks]
        for name, extent, step in reversed(loops):
            body, simd = [self.loop(name, extent, body, 0, step, kind, simd=simd)], False
        return body

    @property
    def order(self) -> tuple[tuple[str, int], ...]:
        """The loops over elements and their extents, the outermost first."""
        names = self.outer_first([name for name in self.extents if name not in self.idle])
        return tuple((name, self.extents[name]) for name in names)

    def functions(self) -> tuple[*tuple[Table, ...], LoopFunction]:
        """Return the tables and the function of the stage."""
        body = self.body([name for name, _ in self.order])
        inside = (Buffer(name, "opaque") for name in self.inside)
        rows = _ROW_PARAMETERS if self.rows else ()
        steps = (ScalarParameter(STEP),) if self.steps else ()
        parameters = (MEMORY, *inside, *rows, *steps)
        tables = [
            Table(name, "int32", (len(values),), values) for name, values in self.tables.items()
        ]
        sizes = sizes_of_run(body, self.derived)
        whole = block(*self.pointer_definitions(), *sizes, *body)
        return *tables, LoopFunction(self.symbol, parameters, whole, attributes=ATTRIBUTES)

    def body(self, names: Sequence[str]) -> Statements:
        """Return the loops over iterators: every element by itself."""
        if not names:
            return self.alone(self.stores({}))
        *outer, last = names
        turned = self.turn_iterator(outer, last)
        row = (0, self.extents[last])
        ahead = rows_ahead(self, self.extents, (outer[-1], last), row) if outer else []
        before = [] if turned else [*ahead, *self.hoist(last)]
        store = self.stores({})
        if turned:
            return self.by_blocks([name for name in outer if name != turned], turned, last, store)
        few = prod(self.extents[name] for name in outer) < 2 * self.threads
        if few or not outer:
            return self.nest(outer, [*before, *self.share([last], store, simd=True)])
        return self.share(outer, [*before, *self.nest([last], store, simd=True)])

    def hoist(self, name: str) -> Statements:
        """Define what is the same along a loop.

        Compilers, which cannot tell that y overlaps none of it, would compute it in every turn.
        """
        results = {self.places[member.output].buffer for member in self.members}
        written = {tensor for tensor, place in self.places.items() if place.buffer in results}
        lines = Statements()
        for part in unchanged_parts([m.expr for m in self.members], name, self.accesses, written):
            kind = self.kind_of(part) or EXACT
            variable = f"v{len(self.hoisted)}"
            lines.append(Let(variable, self.value(part, kind, {}), kind))
            self.hoisted[part] = variable
        return lines

    def turn_iterator(self, outer: Sequence[str], last: str) -> str:
        """Return the iterator of a transposition that goes by blocks; or an empty name."""
        if self.rows:
            return ""
        return turn_iterator(self.accesses.values(), self.extents, outer, last)

    @property
    def in_blocks(self) -> bool:
        """Return whether it is a transposition whose blocks threads share."""
        *outer, last = [name for name, _ in self.order] or [""]
        return bool(last and self.turn_iterator(outer, last))

    def by_blocks(
        self, outer: Sequence[str], turned: str, last: str, body: Statements
    ) -> Statements:
        """Return both loops a block at a time, so that cached lines are used while they last."""
        size = block_size(self.accesses.values(), turned, last)
        for name in (last, turned):
            start = Variable(f"{name}_block")
            body = [self.loop(name, least(start + size, self.end(name)), body, start)]
        blocks = [(f"{name}_block", self.end(name), size) for name in (turned, last)]
        return self.share(outer, body, blocks)

    def pointer_definitions(self) -> Statements:
        """Return the definitions of pointers to the tensors."""
        lines = Statements()
        if self.rows:
            lines.append(Unused(("m", *self.inside)))
        if self.steps:
            lines.append(Unused((STEP,)))
        kinds = {place.buffer: place.dtype for place in self.places.values()}
        for buffer, name in self.buffers.items():
            const, kind = not name.startswith("y"), kinds[buffer]
            whole = Buffer(name, kind, const=const, restrict=True)
            address = Address(self.pointers[buffer], dtype=kind, const=const)
            lines.append(Point(whole, address))
        return lines

    def alone(self, body: Statements) -> Statements:
        """Return statements that one thread executes."""
        inner = block(*body)
        return [Once(inner) if self.threads > 1 else Scoped(inner)]

    def condition(self, guards: Sequence[Guard], places: Places) -> Condition:
        """Return the condition that all guards hold."""
        return every([
            Within(affine_index(self.busy(guard.at), places), guard.extent) for guard in guards
        ])  # fmt: skip

    def kind(self, member: LoopStage | UpdateStage) -> str:
        """Return the kind of number in which results are computed, before they are stored."""
        return self.kind_of(member.expr) or kind_of_type(self.dtypes[member.output])

    def kind_of(self, expr: Expr) -> str:
        """Return the kind of number that an expression is; empty for numbers alone."""
        return kind_of(expr, self.dtypes, self.kinds)

    def stores(self, places: Places, gathered: Sequence[Accumulator] = ()) -> Statements:
        """Return the statements that write an element of every member."""
        accumulators = [*gathered, *[None] * (len(self.members) - len(gathered))]
        statements = Statements()
        rows = zip(self.members, self.targets, self.outs, accumulators, strict=True)
        for member, target, out, sums in rows:
            value = self.value(member.expr, self.kind(member), places, sums)
            at, stored = self.subscript(out, places), self.stored(member, value)
            statements.append(Store(self.pointer(target), at, stored))
        return statements

    def stored(self, member: LoopStage | UpdateStage, value: Value) -> Value:
        """Return a number as the output's elements hold it."""
        dtype, kind = self.dtypes[member.output], self.kind(member)
        if dtype in NARROW:
            return RoutineResult(f"ps_{NARROW[dtype]}_of", (value,))
        if dtype == "bool":
            return Compute("not_equal", WHOLE, (value, Constant(0, kind)), (kind, kind))
        return convert(value, kind, dtype)

    def value(
        self, expr: Expr, kind: str, places: Places, gathered: Accumulator | None = None
    ) -> Value:
        """Return the value of an expression as a number of a kind."""
        if self.hoisted and expr in self.hoisted:  # hashing is slow
            return convert(Named(self.hoisted[expr]), self.kind_of(expr), kind)
        match expr:
            case Number(value):
                return Constant(value, kind)
            case Position(at):
                return convert(affine_index(self.busy(at), places), LONG, kind)
            case Load():
                return self.element(expr, kind, places, gathered)
            case Reduce():
                assert gathered is not None
                return convert(gathered.result, gathered.result_kind, kind)
            case Where(guards, body, otherwise):
                inside = self.value(body, kind, places, gathered)
                other = self.value(otherwise, kind, places, gathered)
                return choose(self.condition(guards, places), inside, other)
            case Apply(function, arguments):
                own = self.kind_of(expr) or kind
                kinds = argument_kinds(expr, own, self.dtypes, self.kinds)
                pairs = zip(arguments, kinds, strict=True)
                values = [
                    self.value(argument, inner, places, gathered) for argument, inner in pairs
                ]
                if template(function, kinds[-1]) is None:  # a conversion
                    return convert(convert(values[0], kinds[0], own), own, kind)
                return convert(Compute(function, own, tuple(values), kinds), own, kind)

    def element(self, load: Load, kind: str, places: Places, gathered: Accumulator | None) -> Value:
        """Return an element that is read, as a number of a kind."""
        dtype = self.places[load.tensor].dtype
        at = self.subscript(self.accesses[load], places, gathered)
        value: Value = Element(self.pointer(load), at)
        if dtype in NARROW:
            return convert(RoutineResult(f"ps_{NARROW[dtype]}_value", (value,)), REAL, kind)
        return convert(value, dtype, kind)

    def subscript(
        self, access: MemoryAccess, places: Places, gathered: Accumulator | None = None
    ) -> Index:
        """Return where an element lies, subscripts out of data included.

        These are of 32 bits where that is enough: vectors gather twice as many elements then.
        """
        at = access.index(places)
        if not access.computed:
            return at
        reach = sum(abs(stride) * index.extent for index, stride in access.computed)
        kinds = {self.kind_of(index.at) for index, _ in access.computed}
        kind = WHOLE if reach <= MOST_PLACES and kinds <= {WHOLE} else LONG
        for index, stride in access.computed:
            value = self.value(index.at, kind, places, gathered)
            at += stride * Subscript(value, kind, index.extent)
        return at


@dataclass(slots=True)
class UpdateLowering(LoopLowering):
    """An update on its way to loop IR."""

    def target(self, member: LoopStage | UpdateStage) -> Load:
        assert isinstance(member, UpdateStage)
        return Load(member.output, member.index)

    def reads(self) -> list[Load]:
        assert isinstance(self.stage, UpdateStage)
        return self.stage.reads

    def body(self, names: Sequence[str]) -> Statements:
        """Return loops in whose turns different elements change, and in order those that may meet.

        The last one of the former is the innermost: threads share it the same way in every turn of
        the loops around it, so that each element is one thread's.
        """
        apart = [name for name in names if self.out.terms.get(name)]
        ordered = sorted(set(names) - set(apart), key=lambda name: int(name[1:]))
        store = self.stores({})
        if not apart:
            return self.alone(self.nest(ordered, store))
        *outer, last = apart
        if not outer:
            return self.nest(ordered, self.share([last], store, simd=True))
        inner = self.nest([last], store, simd=True)
        return self.share(outer, self.nest(ordered, inner))


def size_of_run(at: int) -> Variable:
    """Return the variable of a size that a run is told."""
    return Variable(f"{SIZE}{at}")


def sizes_of_run(code: object, derived: Mapping[str, Index]) -> list[Let]:
    """Return the definitions of the sizes that statements or expressions read.

    ``derived``, by variable: those that others make, which have lower numbers.
    """
    read = {*filter(_SIZE_NAME.fullmatch, names_in(code))}
    made_of = names_in([derived[name] for name in read & derived.keys()])
    read |= {*filter(_SIZE_NAME.fullmatch, made_of)}
    numbers = sorted(int(name.removeprefix(SIZE)) for name in read)
    sizes = Member("m", "sizes", pointed=True)
    return [
        Let(name, derived.get(name) or Element(sizes, as_index(at)))
        for at, name in ((at, f"{SIZE}{at}") for at in numbers)
    ]


def vector_loop(name: str, end: IndexLike, body: Statements, lanes: int) -> LoopStatement:
    """Return a loop from 0 on whose turns are lanes of vectors."""
    return For(name, as_index(0), as_index(end), block(*body), simd=True, lanes=lanes)


def convert(value: Value, own: str, kind: str) -> Value:
    """Return a number of one kind as one of another kind."""
    return value if own == kind else Convert(kind, value)


def rows_ahead(
    lowering: LoopLowering, extents: Mapping[str, int], loops: tuple[str, str],
    row: tuple[IndexLike, int],
) -> Statements:  # fmt: skip
    """Return statements that ask for rows of tables that later turns of a loop read.

    No hardware foresees rows of large tables that data chooses, and memory answers many questions
    at a time. What a turn reads so many turns later, its subscripts say now.

    ``loops`` are that one and the one inside, which runs along ``row``: its value at the first
    element, and how many these are.
    """
    lines, known = Statements(), lowering.accesses
    for load, access in known.items():
        if not access.computed:
            continue
        dtype, item = lowering.dtypes[load.tensor], lowering.item_bytes(load.tensor)
        if later := _later(lowering, access, item, extents, loops):
            (turn, inner), distance = loops, int(prior_of("table_ahead")) // (row[1] * item)
            places = {turn: Variable(turn) + max(1, min(MOST_TURNS, distance)), inner: row[0]}
            lowering.accesses = {**known, **later}
            at = lowering.subscript(access, places)
            lowering.accesses = known
            address = Address(Named(lowering.pointer(load)), at)
            lines += _asks(f"ahead{len(lines)}", dtype, address, row[1], item)
    return lines


def _later(
    lowering: LoopLowering, access: MemoryAccess, item: int, extents: Mapping[str, int],
    loops: tuple[str, str],
) -> Mapping[Load, MemoryAccess]:  # fmt: skip
    """Return the loads inside subscripts out of data, as later turns of a loop read them.

    ``loops`` are that one and the one inside. Empty where the latter does not read a row of a
    large table of elements of ``item`` bytes that the former chooses.
    """
    turn, inner = loops
    sizes = (it.extent * abs(step) * item for it, step in access.computed)
    if max(sizes, default=0) < prior_of("large_table"):
        return {}
    inside = [load for index, _ in access.computed for load in loads(index.at)]
    accesses = lowering.accesses
    ends: dict[str, IndexLike] = {**extents, **lowering.ends}
    forms = [accesses[load] for load in inside]
    simple = all(
        not form.computed and not form.tables and inner not in form.terms
        and all(name in extents and coef > 0 for name, coef in form.terms.items())
        for form in forms
    )  # fmt: skip
    if not simple or access.terms.get(inner) != 1 or not any(turn in it.terms for it in forms):
        return {}
    later = dict[Load, MemoryAccess]()
    for load, form in zip(inside, forms, strict=True):
        last: IndexLike = form.const
        for name, coef in form.terms.items():
            last = coef * (ends[name] - 1) + last
        later[load] = LaterAccess(form.terms, form.const, last=last)
    return later


def _asks(name: str, kind: str, address: Address, count: int, item: int) -> Statements:
    """Return statements that ask for elements of a kind, which may begin anywhere in a line.

    ``name`` is that of the address.
    """
    most = int(prior_of("row_lines"))
    starts = [*range(0, count, LINE // item)][:most]
    if len(starts) < most:
        starts.append(count - 1)
    return [
        Point(Buffer(name, kind, const=True), address),
        *(Prefetch(Address(Named(name), as_index(start))) for start in starts),
    ]
