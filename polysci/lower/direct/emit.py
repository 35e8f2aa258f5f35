"""From a plan to C source: one primitive's functions, and whole files made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import prod
from typing import Final

from polysci.errors import SpecError, UnsupportedError
from polysci.loop_ir.index import ZERO, Index, Variable, as_index, compare
from polysci.loop_ir.nodes import (
    Address,
    AddressOf,
    Assign,
    Block,
    Comment,
    Convert,
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
    Return,
    Scoped,
    Unused,
    Value,
    block,
    loop,
)
from polysci.lower.direct import denormals
from polysci.lower.direct.activation_calls import activation_headers
from polysci.lower.direct.loops import declare_origins, nest, tile_schedule
from polysci.lower.direct.packing import box_function, box_origins, box_rows
from polysci.lower.direct.panel_parts import part_function, part_origins
from polysci.lower.direct.panels import (
    CPU_LACKS,
    integer_arguments,
    packed_bytes,
    panel_count,
    panels_function,
    weights_function,
)
from polysci.lower.direct.private_sums import call_sums, copy_of, sums_function
from polysci.lower.direct.tasks import origins_of_task
from polysci.lower.direct.tile_calls import tile_call
from polysci.lower.direct.tile_functions import tile_function
from polysci.lower.direct.tiles import Tile
from polysci.lower.direct.weight_pieces import columns_at_a_time, columns_functions, declare_columns
from polysci.lower.direct.workspace import Workspace
from polysci.numerics.dtypes import Precision
from polysci.polyhedral.contraction import Contraction
from polysci.printers import interface
from polysci.printers.c import CPrinter
from polysci.printers.definitions import arrange
from polysci.printers.headers import headers
from polysci.printers.team import Team
from polysci.space.directives import Hilbert, Stream
from polysci.space.resolve import Plan, resolve
from polysci.space.schedule import Schedule
from polysci.target import microkernels
from polysci.target.header_sets import HeaderSet
from polysci.text.tables import shorten

THREAD: Final = Variable("thread")


@dataclass(frozen=True, slots=True)
class Source:
    """C text of one primitive (without the shared headers), its symbol and schedule.

    ``unit`` says which headers go before it; ``workspace`` and ``packed`` are bytes.
    """

    text: str
    symbol: str
    header_set: HeaderSet
    schedule: Schedule
    precision: Precision
    beside: tuple[str, ...] = ()  # headers that it needs beyond those of every file
    workspace: int = 0
    packed: int = 0
    by_rows: bool = False
    pool: bool = False  # its last argument is the team of threads that call it
    columns: tuple[int, int] | None = None  # of weights packed so many at a time, after their size
    packing: str = ""  # C text of what packs weights, whatever the symbol
    module: LoopModule = field(default=LoopModule(()), compare=False, repr=False)

    def __repr__(self) -> str:
        return (
            f"Source({shorten(self.symbol)!r}, {shorten(str(self.schedule), 120)!r}, "
            f"{self.header_set}, {len(self.text)} characters)"
        )

    @property
    def isa(self) -> str:
        return self.header_set.isa

    @property
    def key(self) -> str:
        """What sources of one C file have in common; a word."""
        return str(self.header_set)

    @property
    def functions(self) -> tuple[interface.Function, ...]:
        """Its entry points, whatever its symbol."""
        return interface.functions(self.precision, by_rows=self.by_rows, team=self.pool)

    @property
    def declarations(self) -> str:
        """The C declarations of the entry points."""
        own = interface.declare(self.functions, self.symbol)
        return own + declare_columns(self.symbol, self.precision.w.c_type) * bool(self.columns)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The C identifiers of the entry points."""
        return tuple(function.name(self.symbol) for function in self.functions)

    @property
    def file(self) -> str:
        """A complete C file that needs nothing but a C compiler."""
        return assemble([self])


def assemble(sources: Sequence[Source]) -> str:
    """One C file of several primitives that share a unit; line 1 is the first schedule."""
    units = list(dict.fromkeys(source.header_set for source in sources))
    if len(units) != 1:
        told = ", ".join(map(str, units))
        raise SpecError(f"one C file holds one ISA and one precision, not {told}")
    beside = dict.fromkeys(name for source in sources for name in source.beside)
    code = "\n".join(source.text for source in sources)
    texts = [headers(units[0]), *map(microkernels.header, beside)]
    return f"/* {sources[0].schedule} */\n{arrange(texts, code)}"


def emit(
    contraction: Contraction,
    strides: Mapping[str, tuple[int, ...]],
    schedule: Schedule,
    *,
    symbol: str,
    threads: int = 1,
    team: Team = Team.OWN,
    by_rows: bool = False,
    adds: bool = False,
    comments: Sequence[str] = (),
) -> Source:
    """C source of ``contraction`` under ``schedule`` for arrays with these storage strides.

    ``symbol`` is the C identifier of the entry point, ``threads`` the OpenMP threads written into
    the code. Of another ``team`` than its own every thread calls it, and none waits at its end.
    ``by_rows``: its last two arguments say which iterations of the outermost loop to run, the first
    one and the end; one thread runs them. ``adds``: the residual is y itself, to which sums are
    added. ``comments`` are of the nest and each of
    its loops, from the outermost inwards. Raises SpecError or UnsupportedError for a schedule that
    does not fit.
    """
    interface.check_symbol(symbol)
    if threads < 1:
        raise SpecError(f"threads={threads}: at least one thread is needed")
    plan = resolve(contraction, strides, schedule)
    factors = contraction.alpha, contraction.beta
    if adds and not (factors == (1, 1) and plan.precision.y == plan.precision.sum):
        raise UnsupportedError(f"schedule {schedule}: y holds no sums to add to")
    emitter = _Emitter(plan, strides, schedule, symbol, threads, team, by_rows, adds, comments)
    w = contraction.w
    whole = emitter.workspace.shares_a or plan.packs_b or plan.private or schedule.has(Hilbert)
    if by_rows and (whole or not schedule.loops):
        raise UnsupportedError(f"schedule {schedule}: some of its work is of all rows")
    own, module, printer = schedule.directives, emitter.module(), CPrinter(team)
    text = f"{interface.declare(emitter.functions, symbol)}\n{printer.module(module)}"
    packing = module.functions[interface.function_name("pack_weights", symbol)]
    return Source(
        text, symbol, plan.header_set, schedule, plan.precision,
        (*activation_headers(contraction.activation), *chain(*(d.headers for d in own))),
        workspace=emitter.workspace.bytes, packed=packed_bytes(plan), by_rows=by_rows,
        pool=team is Team.POOL,
        columns=columns_at_a_time(plan, strides[w.array], team),
        packing=printer.text(replace(packing, name=interface.function_name("pack_weights", "w"))),
        module=module,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Emitter:
    plan: Plan
    strides: Mapping[str, tuple[int, ...]]
    schedule: Schedule
    symbol: str
    threads: int
    team: Team
    by_rows: bool
    adds: bool
    comments: Sequence[str]

    def module(self) -> LoopModule:
        """All functions in the order in which they are printed: callers before what they call."""
        plan, x, w = self.plan, self.plan.contraction.x, self.plan.contraction.w
        of_x, of_w, symbol = self.strides[x.array], self.strides[w.array], self.symbol
        functions = [
            self._entry(),
            weights_function(symbol, plan, of_w),
            self._size("packed_size", packed_bytes(plan)),
            self._size("workspace_size", self.workspace.bytes),
            *(
                tile_function(f"{symbol}_t{index}", Tile(plan, pieces), adds=self.adds)
                for index, pieces in enumerate(plan.classes())
            ),
        ]
        if plan.box:
            functions.append(box_function(f"{symbol}_pack", plan, of_x))
        functions += columns_functions(symbol, plan, of_w, self.team)
        if plan.packs_b:
            parts_of_b = plan.schedule.packs_parts_of_b
            functions.append((part_function if parts_of_b else panels_function)(symbol, plan, of_w))
        if plan.private:
            functions.append(sums_function(symbol, plan, plan.private))
        return LoopModule(tuple(functions))

    @property
    def functions(self) -> tuple[interface.Function, ...]:
        pool = self.team is Team.POOL
        return interface.functions(self.plan.precision, by_rows=self.by_rows, team=pool)

    @property
    def parameters(self) -> int:
        """Loops whose iterators become variables around the rest: those that threads share."""
        if self.by_rows or self.schedule.has(Hilbert):
            return 2 - self.by_rows
        shares = self.threads > 1 or self.plan.private
        return len(self.plan.schedule.parallel) if shares else 0

    @property
    def tasks(self) -> bool:
        """Whether its loops are tasks, each with arguments of its own."""
        return self.parameters > 0 or self.plan.private is not None

    @property
    def several(self) -> bool:
        """Whether threads share its loops."""
        return self.threads > 1 and bool(self.plan.schedule.parallel) and not self.by_rows

    @property
    def workspace(self) -> Workspace:
        alone = self.by_rows or not self.parameters
        return Workspace(self.plan, 1 if alone else self.threads)

    def _size(self, name: str, value: int) -> LoopFunction:
        body = block(Return(value))
        return LoopFunction(f"{self.symbol}_{name}", (), body, "int64_t", ())

    def _flush(self, body: Sequence[LoopStatement]) -> list[LoopStatement]:
        """One thread's statements; a network flushes denormals itself."""
        own = self.team is Team.OWN and not self.plan.precision.integer
        return denormals.flush(body) if own else [*body]

    def _entry(self) -> LoopFunction:
        *_, run = self.functions
        fields: dict[str, Value] = {"a": Named("x"), "packed": Named("packed")}
        if not self.plan.private:
            residual: Value = 0 if self.adds else Named("residual")
            fields |= {"y": Named("y"), "bias": Named("bias"), "residual": residual}
            fields["clamp"] = Named("clamp")
        body: list[LoopStatement] = [
            If(CPU_LACKS, block(Return(interface.NO_ISA))),
            Let("args", Fields(tuple(fields.items())), "ps_args", const=False),
            *[Unused(("residual",))] * self.adds,
            *integer_arguments(self.plan),
        ]
        if self.plan.schedule.has(Stream):
            address = Variable("(uintptr_t)y")
            aligned = compare(address % (4 * self.plan.kernel.lanes), "==", 0)
            body.append(Assign(Member("args", "aligned"), aligned))
        if self.plan.packs_b:
            body += [] if self.plan.schedule.packs_parts_of_b else self._pack_b()
        elif self.plan.box is None and not self.plan.private:
            body.append(Unused(("workspace",)))
        if self.workspace.shares_a:
            body += self._pack_shared()
        if self.by_rows:
            body += self._band()
        else:
            body += self._parallel() if self.tasks else self._serial()
        if self.team is Team.POOL and not self.several:
            body.insert(0, Unused(("team",)))
        body.append(Return(interface.OK))
        comment = f"{self.symbol}: {self.schedule}"
        return replace(run.define(self.symbol, block(*body)), comment=comment)

    def _arguments(self, name: str) -> Let:
        """The definition of ``g``, which tiles take."""
        return Let("g", AddressOf(name), "const ps_args *", const=False)

    def _serial(self) -> list[LoopStatement]:
        return self._flush([
            self._arguments("args"),
            *self._tiles("args"),
            *self._about(0),
            self._nest(0, ZERO),
            *self._fence(),
        ])  # fmt: skip

    def _nest(self, parameters: int, thread: Index) -> Block:
        """The loops inside the first ``parameters`` ones."""
        names = tile_schedule(self.plan).names
        comments = dict(zip(names, self.comments[1:], strict=False))
        pack = partial(self._pack, thread)
        call = partial(tile_call, self.symbol, self.plan)
        return nest(self.plan, parameters, call, pack, comments)

    def _about(self, loops: int) -> list[Comment]:
        """Comments of the whole nest and of its first loops."""
        return [Comment(comment) for comment in self.comments[: loops + 1]]

    def _band(self) -> list[LoopStatement]:
        """Some iterations of the outermost loop."""
        name, outermost = tile_schedule(self.plan).names[0], self.plan.schedule.loops[0]
        inner, last = self._nest(1, ZERO), Variable("last")
        return [
            self._arguments("args"),
            *self._tiles("args"),
            *self._about(1),
            loop(name, last, inner, start=Variable("first"), step=outermost.step),
            *self._fence(),
        ]

    def _tiles(self, args: str) -> list[LoopStatement]:
        """A thread has no tile registers configured yet."""
        registers = self.plan.kernel.tile_registers
        if registers is None:
            return []
        state = registers.state
        return [
            Let(state, 0, "int", const=False),
            Assign(Member(args, state), AddressOf(state)),
        ]

    def _fence(self) -> list[LoopStatement]:
        """Streamed stores become visible before the caller goes on; no tiles stay configured."""
        last: list[LoopStatement] = []
        if self.plan.schedule.has(Stream):
            last.append(Invoke("ps_fence"))
        if registers := self.plan.kernel.tile_registers:
            last.append(Invoke(registers.release, (AddressOf(registers.state),)))
        return last

    def _share(self, body: Sequence[LoopStatement], *, last: bool = False) -> For:
        """Statements once a thread; nobody waits for the others behind the ``last`` ones."""
        threads = as_index(self.threads)
        return For("thread", ZERO, threads, block(*body), kind=LoopKind.THREADS, wait=not last)

    def _run_of(self, count: int) -> tuple[Index, Index]:
        """First and end of a thread's share of so many turns; of one thread all of them."""
        if not self.several:
            return ZERO, as_index(count)
        return count * THREAD // self.threads, count * (THREAD + 1) // self.threads

    def _parallel(self) -> list[LoopStatement]:
        plan, private = self.plan, self.plan.private
        loops, names = plan.schedule.loops[: self.parameters], tile_schedule(plan).names
        counts = [-(-plan.extent(loop.dim) // loop.step) for loop in loops]
        origin = origins_of_task(plan, counts)
        turn = self._nest(self.parameters, THREAD if self.several else ZERO)
        if private:
            of_dim = {d.dim: Variable(name) for name, d in zip(names, loops, strict=False)}
            turn = block(copy_of(private, of_dim, self.workspace.sums_at), turn)
        first, last = self._run_of(prod(counts))
        tasks = loop("task", last, *declare_origins(origin, turn), turn, start=first)
        body = self._flush([
            Let("local", Named("args"), "ps_args", const=False),
            self._arguments("local"),
            *self._tiles("local"),
            *self._about(self.parameters),
            tasks,
            *self._fence(),
        ])  # fmt: skip
        if not private:
            return [self._share(body, last=True)]
        threads = self.threads if self.several else 1
        sums = self._flush([call_sums(self.symbol, plan, self.workspace.sums_at, threads)])
        if not self.several:
            return [Scoped(block(*body)), Scoped(block(*sums))]
        return [self._share(body), self._share(sums, last=True)]

    def _pack_shared(self) -> list[LoopStatement]:
        """Pack all of A, before all loops."""
        operands = (Named("x"), Named("workspace"), self._zero, *self._run_of(box_rows(self.plan)))
        call = Invoke(f"{self.symbol}_pack", operands)
        moved = Assign(Member("args", "a"), Named("workspace"))
        return [self._share([call]) if self.several else call, moved]

    def _pack_b(self) -> list[LoopStatement]:
        """Pack B, which changes from call to call, into panels behind the copies of A."""
        count, panels = panel_count(self.plan), self._panels(ZERO)
        several = self.several and (count > 1 or self.team is not Team.OWN)
        ends = self._run_of(count) if several else (ZERO, as_index(count))
        call = Invoke(f"{self.symbol}_pack_b", (Named("packed"), panels, *ends))
        moved = Assign(Member("args", "packed"), panels)
        return [self._share([call]) if several else call, moved]

    def _panels(self, thread: Index) -> Address:
        """Where a thread's panels of B begin."""
        step = self.plan.compute.bytes * self.workspace.panel_elements
        at = as_index(self.workspace.panels_at) + step * thread
        return Address(Address(Named("workspace"), at, "char"), dtype="ps_b")

    @property
    def _zero(self) -> Value:
        """What a packed copy holds in the padding."""
        zero = Member("args", "x_zero")
        return Convert("ps_a", zero) if self.plan.precision.integer else 0

    def _pack(
        self, thread: Index, operand: str, origin: Mapping[str, Index]
    ) -> list[LoopStatement]:
        """Pack the tile of A or B that the loops inside read, and remember where it starts."""
        plan = self.plan
        target = "local" if self.tasks and not self.by_rows else "args"
        if operand == "B":
            panels = self._panels(thread)
            origins = (origin[dim] for dim in part_origins(plan))
            return [
                Assign(Member(target, "packed"), panels),
                Invoke(f"{self.symbol}_pack_b", (Named("packed"), panels, *origins)),
            ]
        if plan.box is None:
            return []
        box = Address(Named("workspace"), plan.box.size * thread, "ps_a")
        places = (origin[dim] for dim in box_origins(plan))
        operands = (Named("x"), box, self._zero, 0, box_rows(plan), *places)
        return [Assign(Member(target, "a"), box), Invoke(f"{self.symbol}_pack", operands)]
