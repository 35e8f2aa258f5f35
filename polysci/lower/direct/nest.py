"""The functions of one primitive, out of its plan, and the loops of its entry point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import prod
from typing import Final

from polysci.errors import SpecError, UnsupportedError
from polysci.explain.comments import loop_comments
from polysci.loop_ir import interface
from polysci.loop_ir.index import (
    ZERO,
    Condition,
    Index,
    Variable,
    as_index,
    every,
    inside,
    least,
    linear,
)
from polysci.loop_ir.nodes import (
    Address,
    AddressOf,
    Alternative,
    Assign,
    Block,
    Buffer,
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
    Point,
    Return,
    RoutineResult,
    ScalarParameter,
    Scoped,
    Team,
    Unused,
    Value,
    block,
    loop,
)
from polysci.lower.algorithm import EmitOptions
from polysci.lower.direct.loops import declare_origins, nest, tile_call
from polysci.lower.direct.panels import (
    columns_at_a_time,
    columns_function,
    integer_arguments,
    panel_count,
    panels_function,
    part_function,
    part_origins,
    weights_function,
)
from polysci.lower.direct.tile_functions import activation_headers, tile_function
from polysci.lower.lowering import LoweredPrimitive
from polysci.polyhedral.contraction import Contraction
from polysci.space.directives import Directive, EntryPoint
from polysci.space.plan import Plan, Tile, Workspace, iterator
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule

THREAD: Final = Variable("thread")


def flush_denormals(statements: Sequence[LoopStatement]) -> list[LoopStatement]:
    """Return statements between which numbers below the smallest normal one count as 0.

    The thread that executes them has its own mode again after.
    """
    return [
        Let("mode", RoutineResult("ps_flush_denormals", ()), "uint64_t"),
        *statements,
        Invoke("ps_restore_mode", (Named("mode"),)),
    ]


def thread_share(count: int, threads: int) -> tuple[Index, Index]:
    """Return first and end of a thread's share of so many turns; one thread takes all of them."""
    if threads == 1:
        return ZERO, as_index(count)
    return count * THREAD // threads, count * (THREAD + 1) // threads


def run_threads(threads: int, body: Sequence[LoopStatement], *, last: bool = False) -> For:
    """Return statements once a thread; nobody waits for others behind the ``last`` ones."""
    end = as_index(threads)
    return For("thread", ZERO, end, block(*body), kind=LoopKind.THREADS, wait=not last)


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
    return LoweredPrimitive(
        module, options.symbol, plan.header_set, schedule, plan.precision, options.team,
        (
            *activation_headers(contraction.activation),
            *chain(*(directive.headers for directive in schedule.directives)),
        ),
        lowering.workspace.bytes, plan.packed_bytes, options.by_rows, lowering.columns,
        str(replace(packing, name=interface.function_name("pack_weights", "w"))),
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
        plan, x, symbol = self.plan, self.plan.contraction.x, self.options.symbol
        of_x, of_w = self.strides[x.array], self.of_w
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
        if plan.box:
            functions.append(box_function(f"{symbol}_pack", plan, of_x))
        if self.columns:
            functions.append(columns_function(symbol, plan, of_w))
        if plan.packs_b:
            parts_of_b = plan.schedule.packs_parts_of_b
            functions.append((part_function if parts_of_b else panels_function)(symbol, plan, of_w))
        functions += (f for directive in self.directives for f in directive.functions(self.entry))
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
        return EntryPoint(self.options.symbol, self.plan, threads, self.workspace.sums_at)

    def _size(self, name: str, value: int) -> LoopFunction:
        body = block(Return(value))
        return LoopFunction(f"{self.options.symbol}_{name}", (), body, "int64_t", ())

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
            *(part for directive in self.directives for part in directive.enter(self.plan)),
        ]
        if self.plan.packs_b:
            body += [] if self.plan.schedule.packs_parts_of_b else self._pack_b()
        elif self.plan.box is None and not self.plan.private:
            body.append(Unused(("workspace",)))
        if self.workspace.shares_a:
            body += self._pack_shared()
        if self.options.by_rows:
            body += self._some_rows()
        else:
            body += self._tasks() if self.tasks else self._serial()
        body.append(Return(interface.OK))
        *_, run = interface.functions(
            self.plan.precision, by_rows=self.options.by_rows, team=team is Team.POOL
        )
        return replace(run.define(symbol, block(*body)), comment=f"{symbol}: {self.schedule}")

    def _arguments(self, name: str) -> Let:
        """Return the definition of ``g``, which tiles take."""
        return Let("g", AddressOf(name), "const ps_args *", const=False)

    def _serial(self) -> list[LoopStatement]:
        return self._flush([
            self._arguments("args"),
            *self._tiles("args"),
            *self._about(0),
            self._nest(0, ZERO),
            *self._leave(),
        ])  # fmt: skip

    def _nest(self, parameters: int, thread: Index) -> Block:
        """Return the loops inside the first ``parameters`` ones."""
        names = self.plan.tile_schedule.names
        comments = dict(zip(names, self.comments[1:], strict=False))
        pack = partial(self._pack, thread)
        call = partial(tile_call, self.options.symbol, self.plan)
        return nest(self.plan, parameters, call, pack, comments)

    def _about(self, loops: int) -> list[Comment]:
        """Return the comments of the whole nest and of its first loops."""
        return [Comment(comment) for comment in self.comments[: loops + 1]]

    def _some_rows(self) -> list[LoopStatement]:
        """Return some iterations of the outermost loop."""
        name, outermost = self.plan.tile_schedule.names[0], self.plan.schedule.loops[0]
        inner, last = self._nest(1, ZERO), Variable("last")
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
        last = [part for directive in self.directives for part in directive.leave(self.plan)]
        if registers := self.plan.kernel.tile_registers:
            last.append(Invoke(registers.release, (AddressOf(registers.state),)))
        return last

    def _tasks(self) -> list[LoopStatement]:
        """Return the turns of the outermost loops, of which each thread takes its share."""
        plan, loops = self.plan, self.plan.schedule.loops[: self.parameters]
        counts = [-(-plan.extent(loop.dim) // loop.step) for loop in loops]
        origin = self._origins(counts)
        by_dim = {loop.dim: Variable(name) for name, loop in zip(origin, loops, strict=True)}
        begin = (d.begin_turn(self.entry, by_dim) for d in self.directives)
        inner = self._nest(self.parameters, THREAD if self.several else ZERO)
        turn = block(*chain(*begin), inner)
        first, last = thread_share(prod(counts), self.entry.threads)
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

    def _origins(self, counts: Sequence[int]) -> dict[str, Index]:
        """Return the iterators of the outermost loops, which have ``counts``, for turn ``task``.

        Loops turn like the digits of ``task``.
        """
        turn = Variable("task")
        loops, names = self.plan.schedule.loops, self.plan.tile_schedule.names
        return {
            names[at]: turn // prod(counts[at + 1 :]) % count * loops[at].step
            for at, count in enumerate(counts)
        }

    def _pack_shared(self) -> list[LoopStatement]:
        """Return the packing of all of A, before all loops."""
        rows = thread_share(box_rows(self.plan), self.entry.threads)
        operands = (Named("x"), Named("workspace"), self._zero, *rows)
        call = Invoke(f"{self.options.symbol}_pack", operands)
        moved = Assign(Member("args", "a"), Named("workspace"))
        return [run_threads(self.threads, [call]) if self.several else call, moved]

    def _pack_b(self) -> list[LoopStatement]:
        """Return the packing of B, which changes with every call, behind the copies of A."""
        count, panels = panel_count(self.plan), self._panels(ZERO)
        several = self.several and (count > 1 or self.options.team is not Team.OWN)
        share = thread_share(count, self.threads if several else 1)
        call = Invoke(f"{self.options.symbol}_pack_b", (Named("packed"), panels, *share))
        moved = Assign(Member("args", "packed"), panels)
        return [run_threads(self.threads, [call]) if several else call, moved]

    def _panels(self, thread: Index) -> Address:
        """Return where a thread's panels of B begin."""
        step = self.plan.compute.bytes * self.workspace.panel_elements
        at = as_index(self.workspace.panels_at) + step * thread
        return Address(Address(Named("workspace"), at, "char"), dtype="ps_b")

    @property
    def _zero(self) -> Value:
        """The value that a packed copy holds in the padding."""
        zero = Member("args", "x_zero")
        return Convert("ps_a", zero) if self.plan.precision.integer else 0

    def _pack(
        self, thread: Index, operand: str, origin: Mapping[str, Index]
    ) -> list[LoopStatement]:
        """Return the packing of the tile of A or B that the loops inside read."""
        plan = self.plan
        target = "local" if self.tasks and not self.options.by_rows else "args"
        if operand == "B":
            panels = self._panels(thread)
            origins = (origin[dim] for dim in part_origins(plan))
            return [
                Assign(Member(target, "packed"), panels),
                Invoke(f"{self.options.symbol}_pack_b", (Named("packed"), panels, *origins)),
            ]
        if plan.box is None:
            return []
        box = Address(Named("workspace"), plan.box.size * thread, "ps_a")
        places = (origin[dim] for dim in box_origins(plan))
        operands = (Named("x"), box, self._zero, 0, box_rows(plan), *places)
        return [Assign(Member(target, "a"), box), Invoke(f"{self.options.symbol}_pack", operands)]


def box_rows(plan: Plan) -> int:
    """Rows of the box, the unit in which threads share copying: all but the two fastest axes.

    With all taps of an image in a row of positions, all but the fastest.
    """
    if plan.box is None:
        return 0
    inner = 1 if plan.contraction.image else 2
    return prod(plan.box.extents[axis] for axis in plan.box.order[:-inner])


def box_origins(plan: Plan) -> list[str]:
    """Dimensions whose tile origin the packing function takes."""
    loops = plan.schedule.loops[: plan.schedule.pack_depth]
    dims = dict.fromkeys(loop.dim for loop in loops)
    return [dim for dim in dims if plan.copied.uses(dim)]


def box_function(name: str, plan: Plan, strides: tuple[int, ...]) -> LoopFunction:
    """Return ``name(x, box, zero, first, last, origins...)``, which copies rows first..last-1."""
    if plan.box is None:
        raise UnsupportedError(f"{plan.schedule} packs nothing")
    image = plan.contraction.image
    shape, copy = _image_copy(plan, strides) if image else _row_copy(plan, strides)
    parameters: tuple[Buffer | ScalarParameter, ...] = (
        Buffer("x", "ps_x", const=True, restrict=True),
        Buffer("box", "ps_a", restrict=True),
        ScalarParameter("zero", "ps_a"),
        ScalarParameter("first"),
        ScalarParameter("last"),
        *(ScalarParameter(iterator(dim).name) for dim in box_origins(plan)),
    )
    unused = [Unused(("zero",))] if plan.contraction.swapped or plan.box.word > 1 else []
    rows = loop("row", Variable("last"), *copy, start=Variable("first"))
    return LoopFunction(name, parameters, block(shape, *unused, rows))


def _source_row(
    plan: Plan, strides: tuple[int, ...], outer: Sequence[int]
) -> tuple[list[LoopStatement], Condition, Index]:
    """Return where row ``row`` of the box lies on the axes ``outer``.

    That is statements, the condition that x has it, and its offset in x.
    """
    box, a = plan.box, plan.copied
    assert box
    lines: list[LoopStatement] = []
    rest: Index = Variable("row")
    for axis in reversed(outer):
        extent, step = box.extents[axis], box.steps[axis]
        lines.append(Let(f"at{axis}_", _low(plan, axis) + rest % extent * step))
        rest = rest // extent
    places = {str(axis): Variable(f"at{axis}_") for axis in outer}
    real = every([part for axis in outer for part in inside(places[str(axis)], a.shape[axis])])
    return lines, real, linear({str(axis): strides[axis] for axis in outer}, places)


def _shape(kind: str, fields: dict[str, int]) -> Let:
    """The definition of ``shape``, a constant that copies take."""
    return Let("shape", Fields(tuple(fields.items())), kind, static=True)


def _row_copy(plan: Plan, strides: tuple[int, ...]) -> tuple[Let, list[LoopStatement]]:
    """The shape of a row of pixels, and what copies it or gathers a whole image."""
    box, a = plan.box, plan.copied
    assert box
    *outer, middle, fast = box.order
    low = {axis: _low(plan, axis) for axis in (middle, fast)}
    lines, real, source = _source_row(plan, strides, outer)
    source = source + strides[fast] * low[fast]
    fields = {
        "pixels": box.extents[middle],
        "channels": box.extents[fast],
        "step": box.steps[middle],
        "limit": a.shape[middle],
        "box_pixel": box.strides[middle],
        "x_pixel": strides[middle],
        "x_channel": strides[fast] * box.steps[fast],
    }
    if box.panel or box.word > 1:
        panel = box.panel or box.extents[fast]
        fields |= {"panel": panel, "panel_size": box.panel_size}
    pitch = box.strides[outer[-1]] if outer else 0
    count = least(box.extents[fast], a.shape[fast] - low[fast])
    to = Address(Named("box"), Variable("row") * pitch)
    function = "ps_pack_row"
    padding: tuple[Index | Named, ...] = (low[middle], count, Named("zero"))
    if plan.contraction.swapped:
        function, padding = "ps_gather_image", ()
    if box.word > 1:
        function, padding = "ps_pack_pairs", (low[middle], count)
    start = Alternative(real, Address(Named("x"), source), 0)
    lines += [
        Point(Buffer("from", "ps_x", const=True), start),
        Invoke(function, (to, Named("from"), Named("shape"), *padding)),
    ]
    return _shape("ps_row", fields), lines


def _image_copy(plan: Plan, strides: tuple[int, ...]) -> tuple[Let, list[LoopStatement]]:
    """The shape of an image, and what copies some of its positions, zeros between its rows."""
    box, image = plan.box, plan.contraction.image
    assert box and image
    *outer, along = box.order
    lines, real, source = _source_row(plan, strides, outer)
    fields = {
        "height": image.height,
        "width": image.width,
        "top": image.top,
        "left": image.left,
        "pitch": image.pitch,
        "x_row": strides[-2],
    }
    to = Address(Named("box"), Variable("row") * box.strides[outer[-1]])
    place = (_low(plan, along), box.extents[along])
    copy = Invoke("ps_copy_image", (to, Address(Named("x"), source), Named("shape"), *place))
    lines.append(If(real, block(copy)))
    return _shape("ps_image", fields), lines


def _low(plan: Plan, axis: int) -> Index:
    """Smallest source index of an axis that the tile at the given origins reads."""
    affine = plan.copied.index[axis]
    origins = {dim: iterator(dim) for dim in box_origins(plan)}
    return linear({dim: affine.coef(dim) for dim in origins}, origins, affine.const)
