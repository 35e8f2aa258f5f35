"""From a plan to C source: one primitive's functions, and whole files made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import prod

from polysci.errors import SpecError, UnsupportedError
from polysci.lower.direct import denormals
from polysci.lower.direct.activation_calls import activation_headers
from polysci.lower.direct.loops import declare_origins, nest, tile_schedule
from polysci.lower.direct.packing import box_function, box_origins, box_rows
from polysci.lower.direct.panel_parts import part_function, part_origins
from polysci.lower.direct.panels import (
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
from polysci.printers import ctree as c
from polysci.printers import interface
from polysci.printers.definitions import arrange
from polysci.printers.sharing import share_threads
from polysci.printers.team import Team
from polysci.space.directives import Hilbert, Stream
from polysci.space.resolve import Plan, resolve
from polysci.space.schedule import Schedule
from polysci.target import microkernels
from polysci.target.header_sets import HeaderSet, headers
from polysci.text.tables import shorten


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
    whole = emitter.workspace.shares_a or plan.packs_b or plan.private or schedule.has(Hilbert)
    if by_rows and (whole or not schedule.loops):
        raise UnsupportedError(f"schedule {schedule}: some of its work is of all rows")
    own = schedule.directives
    return Source(
        emitter.text(), symbol, plan.header_set, schedule, plan.precision,
        (*activation_headers(contraction.activation), *chain(*(d.headers for d in own))),
        workspace=emitter.workspace.bytes, packed=packed_bytes(plan), by_rows=by_rows,
        pool=team is Team.POOL,
        columns=columns_at_a_time(plan, strides[contraction.w.array], team),
        packing=c.text(weights_function("w", plan, strides[contraction.w.array])),
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

    def text(self) -> str:
        plan, x, w = self.plan, self.plan.contraction.x, self.plan.contraction.w
        parts: list[c.Generable] = [
            c.Collection([c.Line(f"/* {self.symbol}: {self.schedule} */"), self._entry()]),
            weights_function(self.symbol, plan, self.strides[w.array]),
            self._size("packed_size", packed_bytes(plan)),
            self._size("workspace_size", self.workspace.bytes),
            *(
                tile_function(f"{self.symbol}_t{index}", Tile(plan, pieces), adds=self.adds)
                for index, pieces in enumerate(plan.classes())
            ),
        ]
        if plan.box:
            parts.append(box_function(f"{self.symbol}_pack", plan, self.strides[x.array]))
        parts += columns_functions(self.symbol, plan, self.strides[w.array], self.team)
        if plan.packs_b:
            parts_of_b = plan.schedule.packs_parts_of_b
            function = part_function if parts_of_b else panels_function
            parts.append(function(self.symbol, plan, self.strides[w.array]))
        if plan.private:
            parts.append(sums_function(self.symbol, plan, plan.private))
        return (
            interface.declare(self.functions, self.symbol)
            + "\n"
            + "\n".join(f"{c.text(part)}\n" for part in parts)
        )

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

    def _size(self, name: str, value: int) -> c.Generable:
        return c.function(f"int64_t {self.symbol}_{name}(void)", [c.Statement(f"return {value}")])

    def _flush(self, body: list[c.Generable]) -> list[c.Generable]:
        """One thread's statements; a network flushes denormals itself."""
        own = self.team is Team.OWN and not self.plan.precision.integer
        return denormals.flush(body) if own else body

    def _entry(self) -> c.Generable:
        *_, run = self.functions
        body: list[c.Generable] = [
            c.when("!PS_CPU_OK()", c.Statement(f"return {interface.NO_ISA}")),
            c.Statement(
                "ps_args args = {.a = x, .packed = packed}"
                if self.plan.private
                else "ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, "
                f".residual = {'0' if self.adds else 'residual'}, .clamp = clamp}}"
            ),
            *([c.Statement("(void)residual")] if self.adds else []),
            *integer_arguments(self.plan),
        ]
        if self.plan.schedule.has(Stream):
            vector = 4 * self.plan.kernel.lanes
            body.append(c.Statement(f"args.aligned = (uintptr_t)y % {vector} == 0"))
        if self.plan.packs_b:
            body += [] if self.plan.schedule.packs_parts_of_b else self._pack_b()
        elif self.plan.box is None and not self.plan.private:
            body.append(c.Statement("(void)workspace"))
        if self.workspace.shares_a:
            body += self._pack_shared()
        if self.by_rows:
            body += self._band()
        else:
            body += self._parallel() if self.tasks else self._serial()
        if self.team is Team.POOL and not self.several:
            body.insert(0, c.Statement("(void)team"))
        body.append(c.Statement(f"return {interface.OK}"))
        return c.function(run.head(self.symbol), body)

    def _serial(self) -> list[c.Generable]:
        return self._flush([
            c.Statement("const ps_args *const g = &args"),
            *self._tiles("args"),
            *self._about(0),
            *c.items(self._nest(0, "0")),
            *self._fence(),
        ])  # fmt: skip

    def _nest(self, parameters: int, thread: str) -> c.Generable:
        """The loops inside the first ``parameters`` ones."""
        names = tile_schedule(self.plan).names
        comments = dict(zip(names, self.comments[1:], strict=False))
        pack = partial(self._pack, thread)
        call = partial(tile_call, self.symbol, self.plan)
        return nest(self.plan, parameters, call, pack, comments)

    def _about(self, loops: int) -> list[c.Generable]:
        """Comments of the whole nest and of its first loops."""
        return [c.remark(comment) for comment in self.comments[: loops + 1]]

    def _band(self) -> list[c.Generable]:
        """Some iterations of the outermost loop."""
        name, loop = tile_schedule(self.plan).names[0], self.plan.schedule.loops[0]
        inner = self._nest(1, "0")
        return [
            c.Statement("const ps_args *const g = &args"),
            *self._tiles("args"),
            *self._about(1),
            c.loop(
                f"int64_t {name} = first", f"{name} < last", f"{name} += {loop.step}",
                c.Block([*c.items(inner)]),
            ),
            *self._fence(),
        ]  # fmt: skip

    def _tiles(self, args: str) -> list[c.Generable]:
        """A thread has no tile registers configured yet."""
        registers = self.plan.kernel.tile_registers
        if registers is None:
            return []
        return [c.Statement(registers.declaration()), c.Statement(registers.attachment(args))]

    def _fence(self) -> list[c.Generable]:
        """Streamed stores become visible before the caller goes on; no tiles stay configured."""
        last: list[c.Generable] = []
        if self.plan.schedule.has(Stream):
            last.append(c.Statement("ps_fence()"))
        if registers := self.plan.kernel.tile_registers:
            last.append(c.Statement(registers.ending()))
        return last

    def _parallel(self) -> list[c.Generable]:
        plan, private = self.plan, self.plan.private
        loops, names = plan.schedule.loops[: self.parameters], tile_schedule(plan).names
        counts = [-(-plan.extent(loop.dim) // loop.step) for loop in loops]
        total, origin = prod(counts), origins_of_task(plan, counts)
        turn = [*c.items(self._nest(self.parameters, "thread" if self.several else "0"))]
        if private:
            of_dim = {loop.dim: name for name, loop in zip(names, loops, strict=False)}
            turn.insert(0, copy_of(private, of_dim, self.workspace.sums_at))
        turn = [*declare_origins(origin, c.Block(turn)), *turn]
        first, last = "0", f"{total}"
        if self.several:
            first, last = (f"{total} * {at} / {self.threads}" for at in ("thread", "(thread + 1)"))
        tasks = c.loop(f"int64_t task = {first}", f"task < {last}", "++task", c.Block(turn))
        body = self._flush([
            c.Statement("ps_args local = args, *const g = &local"),
            *self._tiles("local"),
            *self._about(self.parameters),
            tasks,
            *self._fence(),
        ])  # fmt: skip
        if not private:
            return share_threads(self.team, self.threads, c.Block(body), last=True)
        threads = self.threads if self.several else 1
        sums = self._flush(call_sums(self.symbol, plan, self.workspace.sums_at, threads))
        if not self.several:
            return [c.Block(body), c.Block(sums)]
        return [
            *share_threads(self.team, self.threads, c.Block(body)),
            *share_threads(self.team, self.threads, c.Block(sums), last=True),
        ]

    def _pack_shared(self) -> list[c.Generable]:
        rows, moved = box_rows(self.plan), c.Statement("args.a = workspace")
        call = f"{self.symbol}_pack(x, workspace, {self._zero}"
        if not self.several:
            return [c.Statement(f"{call}, 0, {rows})"), moved]
        first = f"{rows} * thread / {self.threads}"
        last = f"{rows} * (thread + 1) / {self.threads}"
        block = c.Block([c.Statement(f"{call}, {first}, {last})")])
        return [*share_threads(self.team, self.threads, block), moved]

    def _pack_b(self) -> list[c.Generable]:
        """Pack B, which changes from call to call, into panels behind the copies of A."""
        count, name = panel_count(self.plan), f"{self.symbol}_pack_b"
        panels = f"(ps_b *)((char *)workspace + {self.workspace.panels_at})"
        moved = c.Statement(f"args.packed = {panels}")
        if not self.several or count == 1:
            return [c.Statement(f"{name}(packed, {panels}, 0, {count})"), moved]
        ends = [f"{count} * {thread} / {self.threads}" for thread in ("thread", "(thread + 1)")]
        call = c.Statement(f"{name}(packed, {panels}, {', '.join(ends)})")
        return [*share_threads(self.team, self.threads, c.Block([call])), moved]

    @property
    def _zero(self) -> str:
        """What a packed copy holds in the padding."""
        return "(ps_a)args.x_zero" if self.plan.precision.integer else "0"

    def _pack(self, thread: str, operand: str, origin: Mapping[str, str]) -> list[c.Generable]:
        """Pack the tile of A or B that the loops inside read, and remember where it starts."""
        plan = self.plan
        target = "local" if self.tasks and not self.by_rows else "args"
        if operand == "B":
            at, step = self.workspace.panels_at, plan.compute.bytes * self.workspace.panel_elements
            panels = f"(ps_b *)((char *)workspace + {at}{f' + {step} * thread' * (thread != '0')})"
            origins = "".join(f", {origin[dim]}" for dim in part_origins(plan))
            return [
                c.Statement(f"{target}.packed = {panels}"),
                c.Statement(f"{self.symbol}_pack_b(packed, {panels}{origins})"),
            ]
        if plan.box is None:
            return []
        box = "(ps_a *)workspace"
        if thread != "0":
            box += f" + {plan.box.size} * {thread}"
        arguments = ["0", str(box_rows(plan)), *(origin[dim] for dim in box_origins(plan))]
        return [
            c.Statement(f"{target}.a = {box}"),
            c.Statement(f"{self.symbol}_pack(x, {box}, {self._zero}, {', '.join(arguments)})"),
        ]
