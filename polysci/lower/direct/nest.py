"""The functions of one primitive, out of its plan, and the loops of its entry point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from polysci.errors import SpecError, UnsupportedError
from polysci.explain.comments import loop_comments
from polysci.loop_ir import interface
from polysci.loop_ir.index import ZERO, Index, IndexLike, Variable, ceil_divide, thread_share
from polysci.loop_ir.nodes import (
    AddressOf,
    Assign,
    Block,
    Buffer,
    Comment,
    Fields,
    Invoke,
    Let,
    LoopFunction,
    LoopModule,
    LoopStatement,
    Member,
    Named,
    Point,
    Return,
    RoutineResult,
    Scoped,
    Team,
    Unused,
    Value,
    block,
    loop,
    run_threads,
)
from polysci.lower.algorithm import EmitOptions
from polysci.lower.direct.loops import declare_origins, nest
from polysci.lower.direct.panels import (
    columns_at_a_time,
    columns_function,
    integer_arguments,
    panel_count,
    panels_function,
    weights_function,
)
from polysci.lower.direct.tile_functions import activation_headers, tile_function
from polysci.lower.lowering import LoweredPrimitive
from polysci.polyhedral.contraction import Contraction
from polysci.polyhedral.tile_schedule import Loop, end_name
from polysci.space.directives import Directive, EntryPoint
from polysci.space.plan import Plan, Tile, Workspace
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule


def flush_denormals(statements: Sequence[LoopStatement]) -> list[LoopStatement]:
    """Return statements between which numbers below the smallest normal one count as 0.

    The thread that executes them has its own mode again after.
    """
    return [
        Let("mode", RoutineResult("ps_flush_denormals", ()), "uint64"),
        *statements,
        Invoke("ps_restore_mode", (Named("mode"),)),
    ]


def lower_nest(
    contraction: Contraction,
    strides: Mapping[str, tuple[int, ...]],
    schedule: Schedule,
    threads: int,
    options: EmitOptions,
) -> LoweredPrimitive:
    """Return ``contraction`` under ``schedule`` for arrays with these storage strides.

    ``threads`` share the loops; of another team than its own every thread calls it, and none waits
    at its end. By rows its last two arguments say which iterations of the outermost loop to run,
    the first one and the end; one thread runs them. The strides of ``options`` are not read. Raises
    SpecError or UnsupportedError for a schedule that does not fit.
    """
    interface.check_symbol(options.symbol)
    if threads < 1:
        raise SpecError(f"threads={threads}: at least one thread is needed")
    plan = resolve(contraction, strides, schedule)
    factors = contraction.alpha, contraction.beta
    if options.adds and not (factors == (1, 1) and plan.precision.y == plan.precision.sum):
        raise UnsupportedError(f"schedule {schedule}: y holds no sums to add to")
    lowering = _NestLowering(contraction, plan, strides, schedule, threads, options)
    every = lowering.own_turns or lowering.workspace.shares_a or plan.packs_b
    if options.by_rows and (every or not schedule.loops):
        raise UnsupportedError(f"schedule {schedule}: some of its work is of all rows")
    module = lowering.module()
    packing = module.functions[interface.function_name("pack_weights", options.symbol)]
    packing = replace(packing, name=interface.function_name("pack_weights", "w"))
    return LoweredPrimitive(
        module, options.symbol, plan.header_set, schedule, plan.precision, options.team,
        activation_headers(contraction.activation),
        lowering.workspace.bytes, plan.packed_bytes, options.by_rows, lowering.columns,
        f"{plan.header_set.compute} {packing}", lowering.ends,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _NestLowering:
    contraction: Contraction
    plan: Plan
    strides: Mapping[str, tuple[int, ...]]
    schedule: Schedule
    threads: int
    options: EmitOptions

    def module(self) -> LoopModule:
        """Return all functions in the order in which they are printed: callers come first."""
        plan, of_w, symbol = self.plan, self.of_w, self.options.symbol
        functions = [
            self._run(),
            weights_function(symbol, plan, of_w),
            self._size("packed_size", plan.packed_bytes),
            self._size("workspace_size", self.workspace.bytes),
            *(
                tile_function(f"{symbol}_t{index}", Tile(plan, pieces), adds=self.options.adds)
                for index, pieces in enumerate(plan.classes())
            ),
        ]
        functions += (f for directive in self.directives for f in directive.functions(self.entry))
        if self.columns:
            functions.append(columns_function(symbol, plan, of_w))
        if self.packs_whole_b:
            functions.append(panels_function(symbol, plan, of_w))
        return LoopModule(tuple(functions))

    @property
    def comments(self) -> tuple[str, ...]:
        """The comments of the nest and of each of its loops, from the outermost inwards."""
        caches = self.options.caches
        return loop_comments(self.contraction, self.schedule, caches) if caches else ()

    @property
    def directives(self) -> tuple[Directive, ...]:
        return self.plan.schedule.directives

    @property
    def of_w(self) -> tuple[int, ...]:
        """The storage strides of the weights."""
        return self.strides[self.plan.contraction.w.array]

    @property
    def packs_whole_b(self) -> bool:
        """Return whether a call packs all of B before its loops."""
        return self.plan.packs_b and not self.plan.schedule.packs_parts_of_b

    @property
    def columns(self) -> tuple[int, int] | None:
        """The elements of a column and the columns that are packed at a time, of large weights."""
        return columns_at_a_time(self.plan, self.of_w, self.options.team)

    @property
    def parameters(self) -> int:
        """Loops whose iterators become variables around the rest: those that threads share."""
        if self.options.by_rows:
            return 1
        shares = self.threads > 1 or self.own_turns
        return len(self.plan.schedule.parallel) if shares else 0

    @property
    def ends(self) -> tuple[str, ...]:
        """The dimensions whose ends calls are told, among those with loops of their own."""
        looped = self.plan.tile_schedule.looped
        summed = {dim.name for dim in self.contraction.dims if dim.role in ("k", "br")}
        return tuple(dim for dim in self.options.ends if dim in looped and dim not in summed)

    @property
    def own_turns(self) -> bool:
        """Return whether a directive adds statements to turns of the parallel loops."""
        return any(directive.own_turns for directive in self.directives)

    @property
    def tasks(self) -> bool:
        """Return whether its loops are tasks, each with arguments of its own."""
        return self.parameters > 0 or self.own_turns

    @property
    def several(self) -> bool:
        """Return whether threads share its loops."""
        parallel = self.threads > 1 and bool(self.plan.schedule.parallel)
        return parallel and not self.options.by_rows

    @property
    def workspace(self) -> Workspace:
        alone = self.options.by_rows or not self.parameters
        return Workspace(self.plan, 1 if alone else self.threads)

    @property
    def entry(self) -> EntryPoint:
        """The entry point, as directives know it."""
        threads = self.threads if self.several else 1
        args = "local" if self.tasks and not self.options.by_rows else "args"
        symbol, plan = self.options.symbol, self.plan
        return EntryPoint(symbol, plan, self.strides, threads, self.workspace, args)

    def _size(self, name: str, value: int) -> LoopFunction:
        body = block(Return(value))
        return LoopFunction(f"{self.options.symbol}_{name}", (), body, "int64", ())

    def _flush(self, body: Sequence[LoopStatement]) -> list[LoopStatement]:
        """Return one thread's statements; a network flushes denormals itself."""
        own = self.options.team is Team.OWN and not self.plan.precision.integer
        return flush_denormals(body) if own else [*body]

    def _run(self) -> LoopFunction:
        symbol, team, adds = self.options.symbol, self.options.team, self.options.adds
        fields: dict[str, Value] = {"a": Named("x"), "packed": Named("packed")}
        if not self.plan.private:
            residual: Value = 0 if adds else Named("residual")
            fields |= {"y": Named("y"), "bias": Named("bias"), "residual": residual}
            fields["clamp"] = Named("clamp")
        body: list[LoopStatement] = [
            *[Unused(("team",))] * (team is Team.POOL and not self.several),
            Let("args", Fields(tuple(fields.items())), "ps_args", const=False),
            *[Unused(("residual",))] * adds,
            *integer_arguments(self.plan),
            *(self._pack_b() if self.packs_whole_b else ()),
            *(part for directive in self.directives for part in directive.enter(self.entry)),
            *[Unused(("workspace",))] * (not self.workspace.bytes),
        ]
        if self.options.by_rows:
            body += self._some_rows()
        else:
            body += self._tasks() if self.tasks else self._serial()
        body.append(Return(interface.OK))
        *_, run = interface.functions(
            self.plan.precision, by_rows=self.options.by_rows, team=team is Team.POOL,
            ends=tuple(map(end_name, self.ends)),
        )  # fmt: skip
        return replace(run.define(symbol, block(*body)), comment=f"{symbol}: {self.schedule}")

    def _arguments(self, name: str) -> Point:
        """Return the definition of ``g``, which tiles take."""
        return Point(Buffer("g", "ps_args", const=True), AddressOf(name))

    def _serial(self) -> list[LoopStatement]:
        return self._flush([
            self._arguments("args"),
            *self._tiles("args"),
            *self._about(0),
            self._nest(0),
            *self._leave(),
        ])  # fmt: skip

    def _nest(self, parameters: int) -> Block:
        """Return the loops inside the first ``parameters`` ones."""
        names = self.plan.tile_schedule.names
        comments = dict(zip(names, self.comments[1:], strict=False))
        return nest(self.entry, parameters, comments, self.ends)

    def _about(self, loops: int) -> list[Comment]:
        """Return the comments of the whole nest and of its first loops."""
        return [Comment(comment) for comment in self.comments[: loops + 1]]

    def _some_rows(self) -> list[LoopStatement]:
        """Return some iterations of the outermost loop."""
        name, outermost = self.plan.tile_schedule.names[0], self.plan.schedule.loops[0]
        inner, last = self._nest(1), Variable("last")
        return [
            self._arguments("args"),
            *self._tiles("args"),
            *self._about(1),
            loop(name, last, inner, start=Variable("first"), step=outermost.step),
            *self._leave(),
        ]

    def _tiles(self, args: str) -> list[LoopStatement]:
        """Return statements that say that no tile registers of a thread are configured yet."""
        registers = self.plan.kernel.tile_registers
        if registers is None:
            return []
        return [
            Let(registers.state, 0, "int", const=False),
            Assign(Member(args, registers.state), AddressOf(registers.state)),
        ]

    def _leave(self) -> list[LoopStatement]:
        """Return what a thread does behind its loops; no tile registers stay configured."""
        last = [part for directive in self.directives for part in directive.leave(self.entry)]
        if registers := self.plan.kernel.tile_registers:
            last.append(Invoke(registers.release, (AddressOf(registers.state),)))
        return last

    def _tasks(self) -> list[LoopStatement]:
        """Return the turns of the outermost loops, of which each thread takes its share."""
        loops = self.plan.schedule.loops[: self.parameters]
        counts = [self._count(loop) for loop in loops]
        origin = self._origins(counts)
        by_dim = {loop.dim: Variable(name) for name, loop in zip(origin, loops, strict=True)}
        begin = (d.begin_turn(self.entry, by_dim) for d in self.directives)
        inner = self._nest(self.parameters)
        turn = block(*chain(*begin), inner)
        turns: IndexLike = 1
        for count in counts:
            turns = turns * count
        first, last = thread_share(turns, self.entry.threads)
        body = self._flush([
            Let("local", Named("args"), "ps_args", const=False),
            self._arguments("local"),
            *self._tiles("local"),
            *self._about(self.parameters),
            loop("task", last, *declare_origins(origin, turn), turn, start=first),
            *self._leave(),
        ])  # fmt: skip
        finish = [part for d in self.directives for part in d.finish(self.entry)]
        parts = [body, self._flush(finish)] if finish else [body]
        if self.several:
            return [run_threads(self.threads, part, last=part is parts[-1]) for part in parts]
        return [Scoped(block(*part)) for part in parts]

    def _count(self, loop: Loop) -> IndexLike:
        """Return how many turns a loop has that is inside no other over its dimension."""
        if loop.dim in self.ends:
            return ceil_divide(Variable(end_name(loop.dim)), loop.step)
        return -(-self.plan.extent(loop.dim) // loop.step)

    def _origins(self, counts: Sequence[IndexLike]) -> dict[str, Index]:
        """Return the iterators of the outermost loops, which have ``counts``, for turn ``task``.

        Loops turn like the digits of ``task``.
        """
        turn = Variable("task")
        loops, names = self.plan.schedule.loops, self.plan.tile_schedule.names
        inner: IndexLike = 1
        places = dict[str, Index]()
        for at in reversed(range(len(counts))):
            places[names[at]] = turn // inner % counts[at] * loops[at].step
            inner = inner * counts[at]
        return dict(reversed(places.items()))

    def _pack_b(self) -> list[LoopStatement]:
        """Return the packing of B, which changes with every call, behind the copies of A."""
        count, panels = panel_count(self.plan), self.entry.panels(ZERO)
        several = self.several and (count > 1 or self.options.team is not Team.OWN)
        share = thread_share(count, self.threads if several else 1)
        call = Invoke(f"{self.options.symbol}_pack_b", (Named("packed"), panels, *share))
        moved = Assign(Member("args", "packed"), panels)
        return [run_threads(self.threads, [call]) if several else call, moved]
