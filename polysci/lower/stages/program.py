"""The stages of a program as loop IR: a function a loop, a call a layer, barriers between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from polysci.loop_ir.expressions import reductions
from polysci.loop_ir.index import (
    TRUE,
    ZERO,
    Condition,
    Index,
    IndexLike,
    TableEntry,
    Variable,
    as_index,
    compare,
    divide,
)
from polysci.loop_ir.nodes import (
    Address,
    Assign,
    Barrier,
    Block,
    Break,
    Buffer,
    Comment,
    Constant,
    Element,
    Fields,
    For,
    If,
    Invoke,
    Let,
    LoopFunction,
    LoopKind,
    LoopStatement,
    Member,
    Named,
    Once,
    Point,
    RoutineResult,
    Store,
    Table,
    Unused,
    Value,
    block,
    loop,
)
from polysci.lower.layer_calls import LayerCall, Spot, packed_ahead
from polysci.lower.mapped.plan import kernels_of
from polysci.lower.stages.accumulators import Statements
from polysci.lower.stages.barriers import Barriers
from polysci.lower.stages.ends import clear_function, dense_strides
from polysci.lower.stages.group_fusion import GroupFusionLowering
from polysci.lower.stages.loops import LoopLowering, Pointer, size_of_run, sizes_of_run
from polysci.lower.stages.reduction_loops import lowering_of
from polysci.lower.stages.row_fusion import RowFusionLowering, ring_of
from polysci.numerics.arrays import round_up
from polysci.numerics.scalar_functions import REAL
from polysci.polyhedral.tile_schedule import end_name
from polysci.program.control import BREAK, ELSE, END, IF, STEP, BranchStage
from polysci.program.passes.arena import Arena, arrange
from polysci.program.passes.buffers import BufferPlace, PlacedProgram
from polysci.program.passes.thread_shares import SHARED, ThreadShares
from polysci.program.passes.variation import Variation
from polysci.program.stages import (
    JointLoops,
    LayerStage,
    LoopStage,
    RepeatStage,
    RoutineStage,
    RowFusion,
    Stage,
    UpdateStage,
)
from polysci.target.isa import Isa
from polysci.text.names import remark

ARENA = Member("m", "arena", pointed=True)
CONSTANTS = Member("m", "constants", pointed=True)


@dataclass(frozen=True, slots=True)
class BranchMark:
    """The start of a branch, of its other side, or its end: ``part`` is IF, ELSE or END."""

    part: str
    condition: Condition = TRUE


Lines = list[LoopStatement | BranchMark]


@dataclass(slots=True)
class StageLowering:
    """A placed program on its way to loop IR, with the memory of its stages."""

    placed: PlacedProgram
    name: str
    isa: Isa
    threads: int
    calls: Mapping[Spot, LayerCall]
    constants: Mapping[str, int]  # offsets of those that stages read as they are
    apart: bool
    timed: bool
    shares: ThreadShares = SHARED
    arena: Arena = field(init=False)
    pointers: dict[str, Pointer] = field(default_factory=dict)
    functions: list[LoopFunction | Table] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    conditions: int = 0  # that stages have read so far
    row_fusions: dict[int, RowFusionLowering] = field(default_factory=dict)
    group_fusions: dict[int, GroupFusionLowering] = field(default_factory=dict)
    scratch: dict[str, tuple[int, Spot]] = field(default_factory=dict)  # bytes, who uses them
    barriers: Barriers = field(init=False)
    variation: Variation = field(init=False)

    def __post_init__(self) -> None:
        program = self.placed.program
        self.variation = Variation(self.placed)
        for spot, call in self.calls.items():
            fused = isinstance(program.stages[spot[0]], RowFusion)
            user = (spot[0], 0) if fused else spot
            sizes = {"packed": call.source.packed} if call.packs else {}
            if not fused:
                sizes["workspace"] = call.source.workspace
            elif call.layer.copies:
                sizes = {}
            for use, size in sizes.items():
                own = round_up(size) * self.threads if spot[0] in self.shares.split else size
                self.scratch |= {scratch_name(spot, use): (own, user)} if size else {}
        for at, stage in enumerate(program.stages):
            if isinstance(stage, RowFusion):
                inner = {n: call for (spot, n), call in self.calls.items() if spot == at}
                symbol, threads = f"{self.name}_s{at}", self.threads
                if kernels_of(self.isa.name, "f32"):
                    group = GroupFusionLowering(stage, self.placed, inner, symbol)
                    self.group_fusions[at] = group
                    self.pointers |= {name: Named(its.memory) for name, its in group.held.items()}
                    continue
                threads = 1 if self.shares.serial(at) else threads
                fusion = RowFusionLowering(stage, self.placed, inner, threads, symbol)
                self.row_fusions[at] = fusion
                self.scratch |= {name: (size, (at, 0)) for name, size in fusion.memory().items()}
        extra = {name: (size, spot[0]) for name, (size, spot) in self.scratch.items()}
        self.arena = arrange(self.placed, extra, apart=self.apart, beside=self.shares.beside)
        for name, at in self.constants.items():
            self.pointers[name] = Address(CONSTANTS, as_index(at))
        for field_name, names in (("in", program.arguments), ("out", program.results.values())):
            buffers = Member("m", field_name, pointed=True)
            for position, name in enumerate(names):
                self.pointers[name] = Element(buffers, as_index(position))
        for name, at in self.arena.offsets.items():
            self.pointers[name] = Address(ARENA, as_index(at))
        self.barriers = Barriers(
            self.placed, self.arena, self.scratch, self.shared_loops(), self.shares.alone
        )

    def stages(self) -> Block:
        """Return all stages in order, with a barrier where one needs what another thread made."""
        lines, pending = Lines(self.size_definitions()), list[Spot]()
        if self.sizes:
            lines.append(Unused(tuple(map(str, self.sizes.values()))))
        if self.timed:
            lines.append(_clock(-1))
        for at, stage in enumerate(self.placed.program.stages):
            if self.shares.serial(at):
                lines += self.serial(at, pending)
            elif isinstance(stage, RepeatStage):
                lines += self.repeat(at, stage, pending)
            else:
                lines += self.waits([(at, 0)], pending)[0]
                lines += self.statements((at, 0), stage)
            if self.timed:
                several = self.threads > 1
                clock = _clock(at)
                lines += [Barrier(), Once(block(clock), first=True)] if several else [clock]
                pending.clear()
        return close_branches(lines)

    @property
    def sizes(self) -> dict[str, Variable]:
        """The variables of the sizes that a run is told."""
        program = self.placed.program
        spans = program.spans if program.resizes else ()
        return {name: size_of_run(at) for at, name in enumerate(spans)}

    @property
    def derived(self) -> dict[str, Index]:
        """The sizes that others make, by variable."""
        sizes, made = self.sizes, dict[str, Index]()
        for name, own in self.placed.program.derived.items():
            total: Index = as_index(own.form.const)
            for size, coef in own.form.terms:
                total += coef * sizes[size]
            made[str(sizes[name])] = divide(total, own.divisor)
        return made

    def size_definitions(self) -> list[Let]:
        """Return the definitions of all sizes."""
        return sizes_of_run([*self.sizes.values()], self.derived)

    def serial(self, at: int, pending: list[Spot]) -> Statements:
        """Return a stage that one thread computes, or with the first of neighbours all of them."""
        neighbours = self.shares.neighbours(at)
        if neighbours and at > neighbours.start:
            return []
        stages = neighbours or range(at, at + 1)
        spots = [spot for other in stages for spot in self.spots(other)]
        waits = any(self.barriers.conflicts(spot, other) for spot in spots for other in pending)
        if waits:
            pending.clear()
        pending.extend(spots)
        wait = Statements([Barrier()] * waits)
        if neighbours is None:
            return [*wait, Once(self.in_one_thread(at), first=True)]
        part = Variable("part")
        parts = [If(compare(part, "==", other - at), self.in_one_thread(other)) for other in stages]
        turns = loop("part", len(stages), *parts)
        return [*wait, replace(turns, kind=LoopKind.PARALLEL, chunk=1)]

    def in_one_thread(self, at: int) -> Block:
        """Return all of a stage by one thread, as in a network that has no more."""
        alone, stage = copy(self), self.placed.program.stages[at]
        alone.threads = 1
        if isinstance(stage, RepeatStage):
            return block(*alone.repeat(at, stage, []))
        return close_branches(alone.statements((at, 0), stage))

    def spots(self, at: int) -> list[Spot]:
        """Return a stage, or those that it repeats."""
        stage = self.placed.program.stages[at]
        count = len(stage.members) if isinstance(stage, RepeatStage) else 1
        return [(at, inside) for inside in range(count)]

    def statements(self, spot: Spot, stage: Stage) -> Sequence[LoopStatement | BranchMark]:
        """Return the statements of one stage; of branches, where they begin and end."""
        match stage:
            case LoopStage() | JointLoops() | UpdateStage():
                return self.call_loop(spot, stage)
            case RoutineStage():
                return self.call_routine(stage)
            case LayerStage():
                return self.call_layer(spot, stage)
            case RowFusion() if spot[0] in self.group_fusions:
                return self.group_fusion(spot[0], stage)
            case RowFusion():
                return self.row_fusion(spot[0], stage)
            case BranchStage():
                return self.branch(spot[0], stage)
            case _:
                return []

    def branch(self, at: int, stage: BranchStage) -> Lines:
        """Return where stages begin or end that a condition chooses, which all threads read."""
        if stage.part in (ELSE, END):
            return [BranchMark(stage.part)]
        place, lines = self.places(stage.condition), Lines()
        stages = self.placed.program.stages
        if self.timed and stages[at] is stage:  # those that do not run take no time
            end = next(n for n in range(at, len(stages)) if stages[n] == replace(stage, part=END))
            clocks = block(*map(_clock, range(at, end)))
            lines.append(Once(clocks, first=True) if self.threads > 1 else clocks)
        name, kind = f"condition{self.conditions}", place.dtype
        self.conditions += 1
        address = self.address(stage.condition, kind, place.first)
        lines.append(Point(Buffer(name, kind, const=True), address))
        condition = TableEntry(name, (ZERO,))
        if stage.part == BREAK:
            return [*lines, If(compare(condition, "==", 0), block(Break()))]
        return [*lines, Comment(remark(stage.name)), BranchMark(IF, compare(condition, "!=", 0))]

    def repeat(self, at: int, stage: RepeatStage, pending: list[Spot]) -> Statements:
        """Return a loop over steps, which all threads go through.

        ``pending`` are the stages that run before it without a barrier. Weights that are
        computed, but not by a step, are packed ahead of all steps.
        """
        packing, ahead = Statements(), packed_ahead(self.placed, at, self.calls)
        if ahead:
            packing += self.barrier
            pending.clear()
        for spot in ahead:
            packing += self.pack_weights(spot, self.calls[spot], ZERO)
        spots, before = self.spots(at), list(pending)
        self.waits(spots, pending)  # what is pending when the next step begins
        pending[:] = dict.fromkeys((*before, *pending))
        waits, body = self.waits(spots, pending), Lines()
        for spot, wait in zip(spots, waits, strict=True):
            member = stage.members[spot[1]]
            lines = self.call_packed(spot) if spot in ahead else self.statements(spot, member)
            body += [*wait, *lines]
        if stage.breaks:  # it may end with the first of them, whatever waits for the others
            pending[:] = dict.fromkeys((*before, *pending, *spots))
        count = self.sizes[stage.ends] if stage.ends else as_index(stage.count)
        start, end = (stage.count - count, stage.count) if stage.backwards else (ZERO, count)
        steps = loop(STEP, end, close_branches(body), start=start)
        return [Comment(remark(stage.name)), *packing, steps]

    def waits(self, spots: Sequence[Spot], pending: list[Spot]) -> list[Statements]:
        """Return what stands before each of some stages, run in order behind ``pending``."""
        if self.threads == 1:
            return [[] for _ in spots]
        return [[*self.barrier] * wait for wait in self.barriers.before(spots, pending)]

    def shared_loops(self) -> dict[Spot, tuple[tuple[str, int], ...]]:
        """Repeated loop stages without sums: their loops, the outermost first."""
        writers = {
            (at, inside): self.loop_lowering((at, inside), member)
            for at, stage in enumerate(self.placed.program.stages)
            if isinstance(stage, RepeatStage)
            for inside, member in enumerate(stage.members)
            if isinstance(member, LoopStage) and not reductions(member.expr)
        }
        return {spot: writer.order for spot, writer in writers.items() if not writer.in_blocks}

    def loop_lowering(
        self, spot: Spot, stage: LoopStage | JointLoops | UpdateStage
    ) -> LoopLowering:
        """Return the lowering of a loop, with its extents and places."""
        shape = self.placed.program.values[stage.outputs[0]].shape
        if isinstance(stage, UpdateStage):
            shape = stage.extents
        extents = {f"i{number}": size for number, size in enumerate(shape)}
        places = {name: self.placed.places[name] for name in (*stage.outputs, *stage.inputs)}
        pointers, threads, rows = self.pointers, self.threads, tuple[str, ...]()
        if isinstance(self.placed.program.stages[spot[0]], RowFusion):
            made, threads = self.placed.rows_of(stage.outputs[0]), 1
            rows = made.iterators if made else ()
        fusion = self.row_fusions.get(spot[0])
        inside = fusion.local(spot[1]) if fusion else {}
        pointers = {**pointers, **{name: Named(at) for name, at in inside.items()}}
        ends, dense = dict[str, Index](), dict[str, tuple[Index, ...]]()
        if self.placed.program.resizes:
            known = (
                self.variation.update(stage) if isinstance(stage, UpdateStage)
                else self.variation.loop(stage)
            )  # fmt: skip
            ends = {name: self.sizes[size] for name, size in known.items()}
            dense = dense_strides(self.placed.program, places, self.sizes)
        return lowering_of(stage)(
            stage, self.symbol(spot), places, pointers, threads, extents,
            rows=rows, inside=tuple(inside.values()),
            steps=isinstance(self.placed.program.stages[spot[0]], RepeatStage), ends=ends,
            dense=dense, derived=self.derived,
        )  # fmt: skip

    def add_functions(self, stage: Stage, lowering: LoopLowering) -> None:
        """Keep what a stage has outside of the function of all stages."""
        *tables, function = lowering.functions()
        self.functions += [*tables, replace(function, comment=remark(stage.name))]

    def symbol(self, spot: Spot) -> str:
        """Return the prefix of the names of a stage in C."""
        inside = isinstance(self.placed.program.stages[spot[0]], RepeatStage | RowFusion)
        return f"{self.name}_s{spot[0]}" + (f"_{spot[1]}" if inside else "")

    def call_loop(self, spot: Spot, stage: LoopStage | JointLoops | UpdateStage) -> Statements:
        """Return the call of a function made for it."""
        lowering = self.loop_lowering(spot, stage)
        if not all(lowering.extents.values()):
            return [Comment(f"{remark(stage.name)}: no elements")]
        self.add_functions(stage, lowering)
        steps = [Variable(STEP)] * lowering.steps
        return [Invoke(lowering.symbol, (Named("m"), *steps))]

    def call_routine(self, stage: RoutineStage) -> Statements:
        """Return a call an item; the threads share the items."""
        if not stage.items:
            return [Comment(f"{remark(stage.name)}: no elements")]
        operands: list[Value] = [Variable("item")]
        for name in (stage.output, *stage.inputs):
            place, const = self.places(name), name != stage.output
            operands.append(self.address(name, place.dtype, place.first, const=const))
        operands += [n if isinstance(n, int) else Constant(n, REAL) for n in stage.numbers]
        items = loop("item", stage.items, Invoke(stage.routine, tuple(operands)))
        return [Comment(remark(stage.name)), self.parallel(items)]

    def parallel(self, turns: For) -> For:
        """Return a loop whose turns the threads share, if there are several."""
        return replace(turns, kind=LoopKind.PARALLEL) if self.threads > 1 else turns

    def row_fusion(self, at: int, stage: RowFusion) -> Statements:
        """Return the call of a function that runs the members of a row fusion in turns.

        Weights that are computed are packed before it.
        """
        fusion, packing = self.row_fusions[at], Statements()
        self.pointers |= fusion.pointers()
        for inside, member in enumerate(stage.members):
            if isinstance(member, LoopStage):
                rows = self.loop_lowering((at, inside), member)
                self.add_functions(member, rows)
                operands = (
                    Named("m"), *fusion.operands(inside), Variable("first"), Variable("last")
                )  # fmt: skip
                fusion.calls_to[inside] = Invoke(rows.symbol, operands)
            else:
                ahead, call = self.call_member((at, inside), member)
                packing += ahead
                fusion.calls_to[inside] = call
        self.functions += fusion.functions(self.arena.offsets)
        return [*packing, Invoke(fusion.symbol, (Named("m"),))]

    def call_member(self, spot: Spot, member: LayerStage) -> tuple[Statements, LoopStatement]:
        """Return what packs weights before a row fusion, and the call that makes some rows.

        They are of one product of a stack, whose weights each thread packs with the first ones, or
        of one image of a batch.
        """
        call, fusion = self.calls[spot], self.row_fusions[spot[0]]
        if not call.layer.copies:
            return self.pack_weights(spot, call, ZERO), self.call_primitive(spot)
        moved, part = self.moved(spot, call.layer), fusion.part(spot[1])
        product, own = Variable("i"), Member(ring_of(spot[1]), "product")
        rows = [Variable(name) - part * product for name in ("first", "last")]
        turn: Statements = [Let("i", divide(Variable("first"), part))]
        if packing := self.pack_weights(spot, call, moved[1]):
            pack = block(*packing, Assign(own, product))
            turn += [Let("packed", own), If(compare(Variable("packed"), "!=", product), pack)]
        return [], block(*turn, self.call_primitive(spot, moved, rows))

    def moved(self, spot: Spot, stage: LayerStage) -> list[TableEntry]:
        """Return how far the operands of product ``i`` of a stack lie behind those of the first."""
        table, count = self.symbol(spot), len(stage.copies)
        values = tuple(value for copy in stage.copies for value in copy)
        self.tables.append(Table(table, "int64", (count, 3), values))
        return [TableEntry(table, (Variable("i"), as_index(operand))) for operand in range(3)]

    def group_fusion(self, at: int, stage: RowFusion) -> Statements:
        """Return the call of a function that launches a kernel of all members."""
        fusion, members = self.group_fusions[at], dict[int, Block]()
        for inside, member in enumerate(stage.members):
            if isinstance(member, LoopStage):
                lowering = self.loop_lowering((at, inside), member)
                members[inside] = fusion.loop(inside, lowering)
                self.functions += lowering.functions()[:-1]  # its tables
            else:
                members[inside] = fusion.layer(inside, self.operands((at, inside)))
        self.functions.append(replace(fusion.function(members), comment=remark(stage.name)))
        return [Invoke(fusion.symbol, (Named("m"),))]

    def call_layer(self, spot: Spot, stage: LayerStage) -> Statements:
        """Return the call of a primitive, once or once a copy."""
        call, parts = self.calls[spot], self.variation.layer(stage).parts
        lines: Statements = [Comment(remark(stage.name)), *self.clear_ends(spot, stage)]
        if not stage.copies:
            return [*lines, *self.pack_weights(spot, call, ZERO), *self.call_packed(spot)]
        moved, count = self.moved(spot, stage), as_index(len(stage.copies))
        if parts:
            count = self.sizes[parts[0]] * parts[1]
        body = self.pack_weights(spot, call, moved[1])
        product = self.call_primitive(spot, moved)
        if spot[0] in self.shares.split:
            return [*lines, self.share_copies(count, [*body, product])]
        body += [*self.call_once(call.shared, product), *self.barrier]
        return [*lines, loop("i", count, *body)]

    def clear_ends(self, spot: Spot, stage: LayerStage) -> Statements:
        """Return the calls that put zeros behind the ends of axes that a layer reduces over."""
        calls, cleared = Statements(), self.variation.layer(stage).cleared
        for number, (tensor, at) in enumerate(cleared):
            ends = {
                axis: self.sizes[name] for axis, name in self.variation.of(tensor).items()
                if axis == at or (tensor, axis) not in cleared
            }  # fmt: skip
            symbol = f"{self.symbol(spot)}_clear{number}"
            function = clear_function(
                symbol, self.placed, self.pointers, tensor, at, ends, self.derived
            )
            self.functions.append(function)
            calls += self.call_once(False, Invoke(function.name, (Named("m"),)), wait=True)
        return calls

    def share_copies(self, count: Index, body: Statements) -> For:
        """Return statements for each product of a stack, of which every thread has a run."""
        thread, threads = Variable("thread"), self.threads
        first, end = (divide(count * at, threads) for at in (thread, thread + 1))
        return self.parallel(loop("thread", threads, loop("i", end, *body, start=first)))

    def call_packed(self, spot: Spot) -> Statements:
        """Return the call of a primitive whose weights are packed."""
        return self.call_once(self.calls[spot].shared, self.call_primitive(spot))

    def pack_weights(self, spot: Spot, call: LayerCall, moved: Index) -> Statements:
        """Return the packing of weights that are computed."""
        if not call.packs:
            return []
        packed = Address(self.scratch_address(spot, "packed"), dtype="opaque")
        operands: dict[str, Value] = {
            "w": self.weights(call, moved),
            "packed": packed,
            "x_zero": call.layer.x_zero,
        }
        packing = call.invoke("pack_weights", operands)
        if spot[0] in self.shares.split or self.packs_inside(spot):
            return [packing]
        return self.call_once(False, packing, wait=True)

    def weights(self, call: LayerCall, moved: Index) -> Address:
        """Return the address of the first of a layer's weights, as they are stored."""
        name, kind = call.layer.weights, call.source.precision.w.stored
        return self.address(name, kind, self.places(name).first + moved)

    def call_once(self, shared: bool, call: LoopStatement, *, wait: bool = False) -> Statements:
        """Return a call that one thread makes, or each where they share its work."""
        if self.threads == 1 or shared:
            return [call]
        return [Once(block(call), wait=wait)]

    @property
    def barrier(self) -> Statements:
        """The barrier at which all threads wait for each other, if there are several."""
        return [Barrier()] if self.threads > 1 else []

    def packs_inside(self, spot: Spot) -> bool:
        """Return whether every thread packs the weights of a layer for itself, in a row fusion."""
        return spot[0] in self.row_fusions and bool(self.calls[spot].layer.copies)

    def scratch_address(self, spot: Spot, use: str) -> Address:
        """Return the address of memory of a layer's own, or of a thread's."""
        if self.packs_inside(spot):
            at = self.row_fusions[spot[0]].packed_at(spot[1]) if use == "packed" else 0
            return Address(Named("work"), as_index(at))
        name = scratch_name(spot, use)
        offset = as_index(self.arena.offsets[name])
        if spot[0] in self.shares.split:
            offset += self.scratch[name][0] // self.threads * Variable("thread")
        return Address(ARENA, offset)

    def call_primitive(
        self, spot: Spot, moved: Sequence[IndexLike] = (0, 0, 0),
        rows: Sequence[Index] = (Variable("first"), Variable("last")),
    ) -> Invoke:  # fmt: skip
        """Return a call of a primitive; x, w and y are so many elements behind the first ones.

        ``rows``: the first one that it makes in a row fusion, and their end.
        """
        operands = self.operands(spot, moved) | dict(zip(("first", "last"), rows, strict=True))
        return self.calls[spot].invoke("run", operands)

    def operands(self, spot: Spot, moved: Sequence[IndexLike] = (0, 0, 0)) -> dict[str, Value]:
        """Return the operands of a primitive's call by name, but for rows."""
        call, (x_moved, w_moved, y_moved) = self.calls[spot], moved
        layer, source = call.layer, call.source
        x_kind, y_kind = source.precision.x.stored, source.precision.y.stored
        x_place, y_place = self.places(layer.x.tensor), self.places(layer.y.tensor)
        x_first = x_place.first + layer.x.first(x_place.strides) + x_moved
        y_first = y_place.first + layer.y.first(y_place.strides) + y_moved
        packed = (
            self.scratch_address(spot, "packed") if call.packs
            else Address(Member("m", "packed", pointed=True), as_index(call.packed_at))
            if call.packed_at is not None
            else self.weights(call, as_index(w_moved))
        )  # fmt: skip
        ends = self.variation.layer(layer).ends
        operands: dict[str, Value] = {
            **{end_name(dim): self.sizes[size] * count for dim, (size, count) in ends.items()},
            "x": self.address(layer.x.tensor, x_kind, x_first),
            "packed": Address(packed, dtype="opaque", const=True),
            "y": self.address(layer.y.tensor, y_kind, y_first, const=False),
            **dict.fromkeys(("bias", "residual", "clamp", "workspace"), 0),
            "team": Member("m", "team", pointed=True),
        }
        if layer.bias:
            first = self.places(layer.bias).first
            operands["bias"] = self.address(layer.bias, source.precision.sum.stored, first)
        if layer.residual:
            place = self.places(layer.residual)
            own_first = place.first + layer.y.first(place.strides) + y_moved
            operands["residual"] = self.address(layer.residual, y_kind, own_first)
        if layer.clamp:
            bounds = tuple(("", Constant(bound, REAL)) for bound in layer.clamp)
            operands["clamp"] = Fields(bounds, REAL, array=True)
        if source.precision.scaled:
            operands["to"] = self.scales(spot, layer)
        if source.by_rows:
            operands["workspace"] = Named("work")
        elif source.workspace:
            operands["workspace"] = self.scratch_address(spot, "workspace")
        return operands

    def scales(self, spot: Spot, layer: LayerStage) -> Fields:
        """Return the scales of a layer's results, as an array of one record."""
        scales = layer.scales
        assert scales is not None
        values = scales.by_channel(layer.problem.y_shape[layer.problem.bias_axis])
        name = f"{self.name}_f{spot[0]}_{spot[1]}"
        self.tables.append(Table(name, REAL, (len(values),), tuple(map(float, values))))
        record = Fields((
            ("", Named(name)), ("", Constant(scales.residual_scale, REAL)),
            ("", as_index(scales.residual_zero)), ("", as_index(scales.y_zero)),
        ))  # fmt: skip
        return Fields((("", record),), "polysci_scales", array=True)

    def places(self, name: str) -> BufferPlace:
        return self.placed.places[name]

    def address(self, name: str, kind: str, first: IndexLike, *, const: bool = True) -> Address:
        """Return the address of an element of a tensor, and of the same one in every step."""
        place = self.placed.places[name]
        at = first + place.step * Variable(STEP)
        return Address(self.pointers[place.buffer], as_index(at), kind, const)


def close_branches(lines: Iterable[LoopStatement | BranchMark]) -> Block:
    """Return statements; those between marks of a branch become parts of one statement."""
    return _side(iter(lines))[0]


def _side(lines: Iterator[LoopStatement | BranchMark]) -> tuple[Block, str]:
    """Return the statements up to the end of a side of a branch, and the mark there."""
    body = Statements()
    for line in lines:
        if not isinstance(line, BranchMark):
            body.append(line)
            continue
        if line.part != IF:
            return block(*body), line.part
        then, mark = _side(lines)
        otherwise = _side(lines)[0] if mark == ELSE else block()
        body.append(If(line.condition, then, otherwise))
    return block(*body), ""


def _clock(at: int) -> Store:
    """Return the statement that keeps the time when a stage ended."""
    return Store(Member("m", "times", pointed=True), as_index(at), RoutineResult("ps_now", ()))


def scratch_name(spot: Spot, use: str) -> str:
    """The name in the arena of memory that one layer uses."""
    return f"{spot[0]} {spot[1]} {use}"
