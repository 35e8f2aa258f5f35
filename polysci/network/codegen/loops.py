"""Loops as C: one function a stage, its innermost loop for the vectoriser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

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
    reductions,
    walk,
)
from polysci.loop_ir.functions import argument_kinds, call, cast, kind_of, kind_of_type, number
from polysci.lower.direct.sharing import Loop, run_once, share_loops
from polysci.network.codegen.access import MemoryAccess, affine_text
from polysci.network.codegen.accumulators import Accumulator
from polysci.network.codegen.invariants import unchanged_parts
from polysci.network.codegen.rows_ahead import rows_ahead
from polysci.network.codegen.transpositions import block_size, turn_iterator
from polysci.numerics.dtypes import C_TYPES
from polysci.numerics.scalar_functions import EXACT, LONG, REAL, WHOLE
from polysci.polyhedral.affine import Affine
from polysci.printers import ctree as c
from polysci.printers import openmp
from polysci.printers.team import Team
from polysci.program.control import STEP
from polysci.program.passes.buffers import BufferPlace
from polysci.program.stages import ROW_AXIS, JointLoops, LoopStage, UpdateStage, members_of

ROW = f"i{ROW_AXIS}"
MEMBER = "m->team"  # in stages, of a team that is no region of OpenMP's
ROW_PARAMETERS = "const void *in, void *out, int64_t first, int64_t last"
NARROW = {"bf16": "bf16", "float16": "f16"}  # element type -> what its conversions are named by
MOST_PLACES = 2**31 - 1  # that a subscript of 32 bits tells apart


@dataclass(slots=True)
class LoopWriter:
    """One stage on its way to C: iterators with extents, accesses."""

    stage: LoopStage | JointLoops | UpdateStage
    symbol: str
    places: Mapping[str, BufferPlace]
    pointers: Mapping[str, str]  # buffer -> C text of its address
    threads: int
    extents: dict[str, int]
    rows: bool = False  # only those from `first` to `last` of axis 2
    steps: bool = False  # of one step of a loop around it
    team: Team = Team.OPENMP
    dtypes: Mapping[str, str] = field(init=False)
    tables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)  # buffer -> pointer's name
    accesses: dict[Load, MemoryAccess] = field(default_factory=dict)
    outs: list[MemoryAccess] = field(default_factory=list)
    hoisted: dict[Expr, str] = field(default_factory=dict)  # C name of what a loop leaves alone

    def __post_init__(self) -> None:
        self.dtypes = {name: place.dtype for name, place in self.places.items()}
        for at, member in enumerate(self.members):
            self.buffers[self.places[member.output].buffer] = f"y{at or ''}"
        reduced = {name for reduction in self.reductions for name, _ in reduction.over}
        self.idle = {n for n, size in self.extents.items() if size == 1}
        self.outs = [self.access(self.target(member)) for member in self.members]
        for load in dict.fromkeys(self.reads()):
            self.accesses[load] = self.access(load)
        self.merge(reduced)

    idle: set[str] = field(default_factory=set)

    @property
    def members(self) -> tuple[LoopStage | UpdateStage, ...]:
        """What is defined, by element in this order."""
        parts = members_of(self.stage)
        return tuple(part for part in parts if isinstance(part, LoopStage | UpdateStage))

    @property
    def out(self) -> MemoryAccess:
        """Where the first of them is written; the others are as far apart."""
        return self.outs[0]

    @property
    def reductions(self) -> list[Reduce]:
        return [part for member in self.members for part in reductions(member.expr)[:1]]

    def target(self, member: LoopStage | UpdateStage) -> Load:
        """The element that is written."""
        rank = len(self.places[member.output].strides)
        return Load(member.output, tuple(axis(at) for at in range(rank)))

    def pointer(self, load: Load) -> str:
        """What C calls the buffer of an element."""
        return self.buffers[self.places[load.tensor].buffer]

    def reads(self) -> list[Load]:
        """All elements that are read."""
        return [load for member in self.members for load in loads(member.expr)]

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
                    for name, coef in self.busy(index).terms:
                        terms[name] = terms.get(name, 0) + coef * stride
        terms = {name: coef for name, coef in terms.items() if coef}
        return MemoryAccess(terms, const, tuple(tables), tuple(computed))

    def busy(self, form: Affine) -> Affine:
        """Without iterators that are always 0."""
        return Affine(tuple(t for t in form.terms if t[0] not in self.idle), form.const)

    def table(self, values: tuple[int, ...]) -> str:
        names = (name for name, known in self.tables.items() if known == values)
        name = next(names, f"{self.symbol}_i{len(self.tables)}")
        self.tables[name] = values
        return name

    def merge(self, reduced: set[str]) -> None:
        """Neighbouring loops that walk all tensors as one."""
        fixed = set(reduced) | ({ROW} if self.rows else set())
        for form in self.forms():
            fixed |= {name for name, _ in form.terms}
        order = self.outer_first([n for n in self.extents if n not in self.idle and n not in fixed])
        every = [*self.outs, *self.accesses.values()]
        for outer, inner in pairwise(order):
            size = self.extents[inner]
            if all(a.terms.get(outer, 0) == size * a.terms.get(inner, 0) for a in every):
                self.extents[inner] = size * self.extents[outer]
                self.idle.add(outer)
                for access in every:
                    access.terms.pop(outer, None)  # type: ignore[attr-defined]

    def forms(self) -> list[Affine]:
        """What guards, tables and positions say of iterators: these loops stay as they are."""
        forms = [at for access in self.accesses.values() for _, at, _ in access.tables]
        for part in (part for member in self.members for part in walk(member.expr)):
            if isinstance(part, Where | Reduce):
                forms += [self.busy(guard.at) for guard in part.guards]
            elif isinstance(part, Position):
                forms.append(self.busy(part.at))
        return forms

    def outer_first(self, names: Sequence[str]) -> list[str]:
        return sorted(names, key=lambda name: (-abs(self.out.terms.get(name, 0)), name))

    def loop(
        self, name: str, extent: int | str, body: c.Body, first: int | str = 0, step: int = 1
    ) -> c.Generable:
        if self.rows and name == ROW:
            first, extent = "first", "last"
        update = f"++{name}" if step == 1 else f"{name} += {step}"
        head = (f"int64_t {name} = {first}", f"{name} < {extent}", update)
        return c.loop(*head, c.Block(body))

    def nest(self, names: Sequence[str], body: c.Body) -> c.Body:
        """Loops over iterators, the first one outermost."""
        for name in reversed(names):
            body = [self.loop(name, self.extents[name], body)]
        return body

    def share(
        self, names: Sequence[str], body: c.Body, chunks: Sequence[Loop] = (), *, simd: bool = False
    ) -> c.Body:
        """Loops over iterators, and inside them ``chunks``, whose turns the threads share."""
        loops = [*((name, self.extents[name], 1) for name in names), *chunks]
        if self.threads > 1 and not self.rows:
            return share_loops(self.team, loops, body, simd=simd, member=MEMBER)
        for name, extent, step in reversed(loops):
            body = [self.loop(name, extent, body, step=step)]
        return [*[c.Line(openmp.SIMD)] * simd, *body]

    @property
    def order(self) -> tuple[tuple[str, int], ...]:
        """The loops over elements and their extents, the outermost first."""
        names = self.outer_first([name for name in self.extents if name not in self.idle])
        return tuple((name, self.extents[name]) for name in names)

    def function(self) -> str:
        """The whole C function, and its tables before it."""
        body = self.body([name for name, _ in self.order])
        own = [*[ROW_PARAMETERS] * self.rows, *[f"int64_t {STEP}"] * self.steps]
        parameters = ", ".join(["const ps_memory *m", *own])
        head = f"static PS_LOOP void {self.symbol}({parameters})"
        whole = c.function(head, [*self.pointer_definitions(), *body])
        return c.text(c.Collection([*self.table_definitions(), whole]))

    def body(self, names: Sequence[str]) -> c.Body:
        """The loops over iterators: every element by itself."""
        if not names:
            return self.alone([*map(c.Statement, self.stores({}))])
        *outer, last = names
        turned = self.turn_iterator(outer, last)
        row = ("0", self.extents[last])
        ahead = rows_ahead(self, self.extents, (outer[-1], last), row) if outer else []
        before: c.Body = [] if turned else [*map(c.Statement, [*ahead, *self.hoist(last)])]
        store: c.Body = [*map(c.Statement, self.stores({}))]
        if turned:
            return self.by_blocks([name for name in outer if name != turned], turned, last, store)
        few = prod(self.extents[name] for name in outer) < 2 * self.threads
        if few or not outer:
            return self.nest(outer, [*before, *self.share([last], store, simd=True)])
        return self.share(outer, [*before, c.Line(openmp.SIMD), *self.nest([last], store)])

    def hoist(self, name: str) -> list[str]:
        """Definitions of what is the same along a loop.

        Compilers, which cannot tell that y overlaps none of it, would compute it in every turn.
        """
        results = {self.places[member.output].buffer for member in self.members}
        written = {tensor for tensor, place in self.places.items() if place.buffer in results}
        lines = list[str]()
        for part in unchanged_parts([m.expr for m in self.members], name, self.accesses, written):
            kind = kind_of(part, self.dtypes) or EXACT  # of numbers alone: any
            variable = f"v{len(self.hoisted)}"
            lines.append(f"const {kind} {variable} = {self.text(part, kind, {})}")
            self.hoisted[part] = variable
        return lines

    def turn_iterator(self, outer: Sequence[str], last: str) -> str:
        """The iterator of a transposition that goes by blocks; or empty."""
        if self.rows:
            return ""
        return turn_iterator(self.accesses.values(), self.extents, outer, last)

    @property
    def in_blocks(self) -> bool:
        """Whether it is a transposition whose blocks threads share."""
        *outer, last = [name for name, _ in self.order] or [""]
        return bool(last and self.turn_iterator(outer, last))

    def by_blocks(self, outer: Sequence[str], turned: str, last: str, body: c.Body) -> c.Body:
        """Both loops a block at a time, so that lines are used while they are in the cache."""
        size = block_size(self.accesses.values(), turned, last)
        for name in (last, turned):
            end = f"ps_least({name}_block + {size}, {self.extents[name]})"
            body = [self.loop(name, end, body, f"{name}_block")]
        blocks = [(f"{name}_block", self.extents[name], size) for name in (turned, last)]
        return self.share(outer, body, blocks)

    def table_definitions(self) -> c.Body:
        """Constants that accesses look up."""
        lines = []
        for name, values in self.tables.items():
            numbers = ", ".join(map(str, values))
            lines.append(f"static const int32_t {name}[{len(values)}] = {{{numbers}}}")
        return [*map(c.Statement, lines)]

    def pointer_definitions(self) -> c.Body:
        """Pointers to the tensors."""
        lines = ["(void)m, (void)in, (void)out"] * self.rows + [f"(void){STEP}"] * self.steps
        kinds = {place.buffer: place.dtype for place in self.places.values()}
        for buffer, name in self.buffers.items():
            const = "" if name.startswith("y") else "const "
            kind = f"{const}{C_TYPES[kinds[buffer]]}"
            lines.append(f"{kind} *restrict {name} = ({kind} *){self.pointers[buffer]}")
        return [*map(c.Statement, lines)]

    def alone(self, body: c.Body) -> c.Body:
        """Statements that one thread executes."""
        block: c.Body = [c.Block(body)]
        return run_once(self.team, block, member=MEMBER) if self.threads > 1 else block

    def conditions(self, guards: Sequence[Guard], names: Mapping[str, str]) -> str:
        places = [affine_text(self.busy(guard.at), names) for guard in guards]
        pairs = zip(places, guards, strict=True)
        return "(" + " && ".join(f"(uint64_t)({at}) < {it.extent}" for at, it in pairs) + ")"

    def kind(self, member: LoopStage | UpdateStage) -> str:
        """The numbers that results are computed in, before they are stored."""
        kind = kind_of(member.expr, self.dtypes)
        return kind or kind_of_type(self.dtypes[member.output])

    def stores(self, names: Mapping[str, str], gathered: Sequence[Accumulator] = ()) -> list[str]:
        """Statements that write an element of every member."""
        accumulators = [*gathered, *[None] * (len(self.members) - len(gathered))]
        statements = list[str]()
        for member, out, sums in zip(self.members, self.outs, accumulators, strict=True):
            pointer = self.pointer(self.target(member))
            value = self.result(member, names, sums)
            statements.append(f"{pointer}[{self.subscript(out, names)}] = {value}")
        return statements

    def result(
        self, member: LoopStage | UpdateStage, names: Mapping[str, str],
        gathered: Accumulator | None,
    ) -> str:  # fmt: skip
        """What an element of a member is, as it is stored."""
        return self.convert(member, self.text(member.expr, self.kind(member), names, gathered))

    def convert(self, member: LoopStage | UpdateStage, value: str) -> str:
        """A number as the output's elements hold it."""
        dtype = self.dtypes[member.output]
        if dtype in NARROW:
            return f"ps_{NARROW[dtype]}_of({value})"
        if dtype == "bool":
            return f"({value}) != 0"
        wanted = C_TYPES[dtype]
        return value if wanted == self.kind(member) else f"({wanted})({value})"

    def text(
        self, expr: Expr, kind: str, names: Mapping[str, str], gathered: Accumulator | None = None
    ) -> str:
        """C text of an expression as a number of a kind."""
        if expr in self.hoisted:
            return cast(self.hoisted[expr], kind_of(expr, self.dtypes), kind)
        match expr:
            case Number(value):
                return number(value, kind)
            case Position(at):
                return cast(f"({affine_text(self.busy(at), names)})", LONG, kind)
            case Load():
                return self.element(expr, kind, names, gathered)
            case Reduce():
                assert gathered is not None
                return cast(gathered.result, gathered.result_kind, kind)
            case Where(guards, body, otherwise):
                inside = self.text(body, kind, names, gathered)
                other = self.text(otherwise, kind, names, gathered)
                return f"({self.conditions(guards, names)} ? {inside} : {other})"
            case Apply(function, arguments):
                own = kind_of(expr, self.dtypes) or kind
                kinds = argument_kinds(expr, own, self.dtypes)
                pairs = zip(arguments, kinds, strict=True)
                texts = [self.text(argument, inner, names, gathered) for argument, inner in pairs]
                return cast(call(function, own, kinds, texts), own, kind)

    def element(
        self, load: Load, kind: str, names: Mapping[str, str], gathered: Accumulator | None
    ) -> str:
        place = self.places[load.tensor]
        value = f"{self.pointer(load)}[{self.subscript(self.accesses[load], names, gathered)}]"
        if place.dtype in NARROW:
            value = f"ps_{NARROW[place.dtype]}_value({value})"
            return value if kind == REAL else f"(({kind}){value})"
        return value if C_TYPES[place.dtype] == kind else f"(({kind}){value})"

    def subscript(
        self, access: MemoryAccess, names: Mapping[str, str], gathered: Accumulator | None = None
    ) -> str:
        """C text of where an element lies, subscripts out of data included.

        These are of 32 bits where that is enough: vectors gather twice as many elements then.
        """
        reach = sum(abs(stride) * index.extent for index, stride in access.computed)
        kinds = {kind_of(index.at, self.dtypes) for index, _ in access.computed}
        kind = WHOLE if reach <= MOST_PLACES and kinds <= {WHOLE} else LONG
        places = []
        for index, stride in access.computed:
            place = call("place", kind, (kind, kind), [
                self.text(index.at, kind, names, gathered), str(index.extent)
            ])  # fmt: skip
            places.append(place if stride == 1 else f"{stride} * {place}")
        parts = [f"({' + '.join(places)})" if len(places) > 1 else places[0]] if places else []
        return " + ".join([access.text(names), *parts])
