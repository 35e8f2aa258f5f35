"""The stages of a program as C: a function a loop, a call a layer, barriers between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from polysci.loop_ir.expressions import reductions
from polysci.loop_ir.functions import number
from polysci.loop_ir.index import Variable, as_index
from polysci.loop_ir.nodes import Address, Member
from polysci.lower.direct.sharing import nest, run_once, share_loops, wait_for_all
from polysci.lower.layer_calls import LayerCall, Spot, first_of, packed_ahead
from polysci.network.codegen.barriers import Barriers
from polysci.network.codegen.loops import MEMBER, LoopLowering, Pointer
from polysci.network.codegen.pools import OPENMP, team_of
from polysci.network.codegen.reduction_loops import lowering_of
from polysci.network.codegen.row_fusion_code import RowFusionWriter
from polysci.network.codegen.serial_stages import serial_stage
from polysci.network.codegen.updates import UpdateLowering
from polysci.numerics.arrays import round_up
from polysci.numerics.dtypes import C_TYPES
from polysci.numerics.scalar_functions import REAL
from polysci.printers import ctree as c
from polysci.printers import openmp
from polysci.printers.c import CPrinter
from polysci.printers.c_values import text
from polysci.printers.team import Team
from polysci.program.control import BREAK, ELSE, END, STEP, BranchStage
from polysci.program.passes.arena import Arena, arrange
from polysci.program.passes.buffers import BufferPlace, PlacedProgram
from polysci.program.passes.thread_shares import SHARED, ThreadShares
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
from polysci.program.windows import start_of
from polysci.target.isa import Isa
from polysci.text.names import remark


@dataclass(slots=True)
class StageCode:
    placed: PlacedProgram
    name: str
    isa: Isa
    threads: int
    calls: Mapping[Spot, LayerCall]
    constants: Mapping[str, int]  # offsets of those that stages read as they are
    apart: bool
    timed: bool
    pool: str = OPENMP
    shares: ThreadShares = SHARED
    arena: Arena = field(init=False)
    pointers: dict[str, Pointer] = field(default_factory=dict)
    loops: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    row_fusions: dict[int, RowFusionWriter] = field(default_factory=dict)
    extra: dict[str, tuple[int, int]] = field(default_factory=dict)  # scratch: bytes, stage
    users: dict[str, Spot] = field(default_factory=dict)  # of scratch
    barriers: Barriers = field(init=False)

    @property
    def team(self) -> Team:
        return team_of(self.pool)

    def __post_init__(self) -> None:
        program, extra = self.placed.program, self.extra
        for spot, call in self.calls.items():
            sizes = {"packed": call.source.packed} if call.packs else {}
            if not call.source.by_rows:
                sizes["workspace"] = call.source.workspace
            for use, size in sizes.items():
                own = round_up(size) * self.threads if spot[0] in self.shares.split else size
                extra[scratch_name(spot, use)] = (own, spot[0])
                self.users[scratch_name(spot, use)] = spot
        for at, stage in enumerate(program.stages):
            if isinstance(stage, RowFusion):
                inner = {n: call for (spot, n), call in self.calls.items() if spot == at}
                threads = 1 if self.shares.serial(at) else self.threads
                writer = RowFusionWriter(
                    stage, self.placed, inner, threads, f"{self.name}_s{at}",
                    self.team,
                )  # fmt: skip
                self.row_fusions[at] = writer
                extra |= {name: (size, at) for name, size in writer.memory().items()}
                self.users |= dict.fromkeys(writer.memory(), (at, 0))
        self.extra = {name: room for name, room in extra.items() if room[0]}
        beside, alone = self.shares.beside, self.shares.alone
        self.arena = arrange(self.placed, self.extra, apart=self.apart, beside=beside)
        for name, at in self.constants.items():
            self.pointers[name] = Address(Member("m", "constants", pointed=True), as_index(at))
        for position, name in enumerate(program.arguments):
            self.pointers[name] = Member("m", f"in[{position}]", pointed=True)
        for position, name in enumerate(program.outputs):
            self.pointers[name] = Member("m", f"out[{position}]", pointed=True)
        for name, at in self.arena.offsets.items():
            self.pointers[name] = Address(Member("m", "arena", pointed=True), as_index(at))
        sizes = {name: size for name, (size, _) in self.extra.items()}
        loops = self.shared_loops()
        self.barriers = Barriers(self.placed, self.arena, self.users, sizes, loops, alone)

    def stages(self) -> c.Body:
        """Statements in order, with a barrier wherever one needs what another thread made."""
        lines, pending = c.Body(), list[Spot]()
        for at, stage in enumerate(self.placed.program.stages):
            if self.shares.serial(at):
                lines += serial_stage(self, at, pending)
            elif isinstance(stage, RepeatStage):
                lines += self.repeat(at, stage, pending)
            else:
                lines += self.waits([(at, 0)], pending)[0]
                lines += self.statements((at, 0), stage)
            if self.timed:
                lines += self.clock(at)
                pending.clear()
        return lines

    def statements(self, spot: Spot, stage: Stage) -> c.Body:
        """The statements of one stage."""
        match stage:
            case LoopStage() | JointLoops() | UpdateStage():
                return [self.call_loop(spot, stage)]
            case RoutineStage():
                return self.call_routine(stage)
            case LayerStage():
                return self.call_layer(spot, stage)
            case RowFusion():
                return [self.row_fusion(spot[0], stage)]
            case BranchStage():
                return self.branch(spot[0], stage)
            case _:
                return []

    def branch(self, at: int, stage: BranchStage) -> c.Body:
        """Where stages begin or end that run only sometimes: all threads read the condition."""
        if stage.part in (ELSE, END):
            return [c.Line("} else {" if stage.part == ELSE else "}")]
        place, lines = self.places(stage.condition), c.Body()
        stages = self.placed.program.stages
        if self.timed and stages[at] is stage:  # those that do not run take no time
            end = next(n for n in range(at, len(stages)) if stages[n] == replace(stage, part=END))
            head = (f"int i = {at}", f"i < {end}", "++i")
            single = [c.Line(openmp.MASTER)] if self.threads > 1 else []
            lines += [*single, c.loop(*head, c.Statement("m->times[i] = ps_now()"))]
        condition = self.address(stage.condition, C_TYPES[place.dtype], place.first)
        if stage.part == BREAK:
            return [c.Line(f"if (!*({condition}))"), c.Statement("    break")]
        return [*lines, c.Line(f"if (*({condition})) {{ /* {remark(stage.name)} */")]

    def repeat(self, at: int, stage: RepeatStage, pending: list[Spot]) -> c.Body:
        """A loop over steps, which all threads go through; ``pending`` is what runs before it.

        Weights that are computed, but not by a step, are packed ahead of all steps.
        """
        packing, ahead = c.Body(), packed_ahead(self.placed, at, self.calls)
        if ahead:
            packing += self.barrier
            pending.clear()
        for spot in ahead:
            packing += self.pack_weights(spot, self.calls[spot], "")
        spots, before = [(at, inside) for inside in range(len(stage.members))], list(pending)
        self.waits(spots, pending)  # what is pending when the next step begins
        pending[:] = dict.fromkeys((*before, *pending))
        waits, block = self.waits(spots, pending), c.Body()
        for spot, wait in zip(spots, waits, strict=True):
            member = stage.members[spot[1]]
            lines = self.call_packed(spot) if spot in ahead else self.statements(spot, member)
            block += [*wait, *lines]
        if stage.breaks:  # it may end with the first of them, whatever waits for the others
            pending[:] = dict.fromkeys((*before, *pending, *spots))
        head = (f"int64_t {STEP} = 0", f"{STEP} < {stage.count}", f"++{STEP}")
        return [c.Line(f"/* {remark(stage.name)} */"), *packing, c.loop(*head, c.Block(block))]

    def waits(self, spots: Sequence[Spot], pending: list[Spot]) -> list[c.Body]:
        """What stands before each of some stages, run in order behind ``pending``."""
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
        """The function of a loop on its way to C."""
        shape = self.placed.program.values[stage.outputs[0]].shape
        if isinstance(stage, UpdateStage):
            shape = stage.extents
        extents = {f"i{number}": size for number, size in enumerate(shape)}
        places = {name: self.placed.places[name] for name in (*stage.outputs, *stage.inputs)}
        steps = isinstance(self.placed.program.stages[spot[0]], RepeatStage)
        kind = UpdateLowering if isinstance(stage, UpdateStage) else lowering_of(stage)
        words = stage, self.symbol(spot), places, self.pointers, self.threads, extents
        return kind(*words, steps=steps)

    def add_functions(self, stage: Stage, lowering: LoopLowering) -> None:
        """Print what a stage has outside of the function of all stages."""
        printer = CPrinter(self.team, member=MEMBER)
        parts = "\n".join(c.text(printer.part(part)) for part in lowering.functions())
        self.loops.append(f"/* {remark(stage.name)} */\n{parts}\n")

    def symbol(self, spot: Spot) -> str:
        """What the C names of a stage begin with."""
        repeated = isinstance(self.placed.program.stages[spot[0]], RepeatStage)
        return f"{self.name}_s{spot[0]}" + (f"_{spot[1]}" if repeated else "")

    def clock(self, at: int) -> c.Body:
        """The time when all threads have ended a stage."""
        pragmas = [openmp.BARRIER, openmp.MASTER] if self.threads > 1 else []
        return [*map(c.Line, pragmas), c.Statement(f"m->times[{at}] = ps_now()")]

    def call_loop(self, spot: Spot, stage: LoopStage | JointLoops | UpdateStage) -> c.Generable:
        """The call of a function made for it."""
        writer = self.loop_lowering(spot, stage)
        if not all(writer.extents.values()):
            return c.Line(f"/* {remark(stage.name)}: no elements */")
        self.add_functions(stage, writer)
        return c.Statement(f"{writer.symbol}(m, {STEP})" if writer.steps else f"{writer.symbol}(m)")

    def call_routine(self, stage: RoutineStage) -> c.Body:
        """A call an item; the threads share the items."""
        if not stage.items:
            return [c.Line(f"/* {remark(stage.name)}: no elements */")]
        words = ["item"]
        for name in (stage.output, *stage.inputs):
            place, const = self.places(name), "const " * (name != stage.output)
            words.append(self.address(name, C_TYPES[place.dtype], place.first, const))
        words += [str(n) if isinstance(n, int) else f"{n.hex()}f" for n in stage.numbers]
        call: c.Body = [c.Statement(f"{stage.routine}({', '.join(words)})")]
        items = [("item", stage.items, 1)]
        several = self.threads > 1
        loop = share_loops(self.team, items, call, member=MEMBER) if several else nest(items, call)
        return [c.Line(f"/* {remark(stage.name)} */"), *loop]

    def row_fusion(self, at: int, stage: RowFusion) -> c.Generable:
        """The call of a function that runs the members of a row fusion in turns."""
        writer = self.row_fusions[at]
        self.pointers |= writer.pointers()
        for inside, member in enumerate(stage.members):
            if isinstance(member, LoopStage):
                value = self.placed.program.values[member.output]
                extents = {f"i{number}": size for number, size in enumerate(value.shape)}
                places = {n: self.placed.places[n] for n in (member.output, *member.inputs)}
                symbol = f"{self.name}_s{at}_{inside}"
                pointers = {**self.pointers, **writer.local(inside)}
                made = lowering_of(member)(member, symbol, places, pointers, 1, extents, rows=True)
                self.add_functions(member, made)
                writer.calls_to[inside] = c.Statement(
                    f"{symbol}(m, {', '.join(writer.ends(inside))}, first, last)"
                )
            else:
                writer.calls_to[inside] = self.call_primitive((at, inside))
        self.loops.append(writer.text(self.arena.offsets))
        return c.Statement(f"{writer.symbol}(m)")

    def call_layer(self, spot: Spot, stage: LayerStage) -> c.Body:
        """The call of a primitive, once or once a copy."""
        call = self.calls[spot]
        lines: c.Body = [c.Line(f"/* {remark(stage.name)} */")]
        if not stage.copies:
            lines += self.pack_weights(spot, call, "")
            lines += self.call_packed(spot)
        else:
            table = self.symbol(spot)
            rows = ", ".join(f"{{{x}, {w}, {y}}}" for x, w, y in stage.copies)
            self.tables.append(
                f"static const int64_t {table}[{len(stage.copies)}][3] = {{{rows}}};"
            )
            moved = [f" + {table}[i][{operand}]" for operand in range(3)]
            body = self.pack_weights(spot, call, moved[1])
            product = self.call_primitive(spot, moved)
            if spot[0] in self.shares.split:
                return lines + self.share_copies(len(stage.copies), [*body, product])
            lines += [c.Line(f"for (int i = 0; i < {len(stage.copies)}; ++i) {{"), *body]
            lines += [*self.call_once(call.shared, product), *self.barrier, c.Line("}")]
        return lines

    def share_copies(self, count: int, body: c.Body) -> c.Body:
        """Statements for each of the products of a stack, of which every thread has a run."""
        threads = self.threads
        start = f"int64_t i = {count} * thread / {threads}"
        turns = c.loop(start, f"i < {count} * (thread + 1) / {threads}", "++i", c.Block(body))
        return share_loops(self.team, [("thread", threads, 1)], [turns], member=MEMBER)

    def call_packed(self, spot: Spot) -> c.Body:
        """The call of a primitive whose weights are packed."""
        return self.call_once(self.calls[spot].shared, self.call_primitive(spot))

    def pack_weights(self, spot: Spot, call: LayerCall, moved: str) -> c.Body:
        """Packing of weights that are computed."""
        if not call.packs:
            return []
        words = [self.weights(call, moved), f"(void *)({self.scratch(spot, 'packed')})"]
        words += [str(call.layer.x_zero)] * call.source.precision.integer
        packing = c.Statement(f"{call.source.symbol}_pack_weights({', '.join(words)})")
        if spot[0] in self.shares.split:
            return [packing]
        return self.call_once(False, packing, wait=True)

    def weights(self, call: LayerCall, moved: str) -> str:
        """C text of the first of a layer's weights, as they are stored."""
        name, kind = call.layer.weights, call.source.precision.w.c_type
        return self.address(name, kind, self.places(name).first) + moved

    def call_once(self, shared: bool, call: c.Generable, *, wait: bool = False) -> c.Body:
        """A call that one thread makes, or each where they share its work."""
        if self.threads == 1 or shared:
            return [call]
        return run_once(self.team, [call], wait=wait, member=MEMBER)

    @property
    def barrier(self) -> c.Body:
        """Where all threads wait for each other."""
        return wait_for_all(self.team, MEMBER) if self.threads > 1 else []

    def scratch(self, spot: Spot, use: str) -> str:
        """Where memory of a layer's own lies, or of a thread's."""
        name = scratch_name(spot, use)
        own = f" + thread * {self.extra[name][0] // self.threads}"
        return f"m->arena + {self.arena.offsets[name]}" + own * (spot[0] in self.shares.split)

    def call_primitive(self, spot: Spot, moved: Sequence[str] = ("", "", "")) -> c.Generable:
        """One call of a primitive; ``moved`` are C texts behind the addresses of x, w and y."""
        call, (x_moved, w_moved, y_moved) = self.calls[spot], moved
        layer, source = call.layer, call.source
        x_kind, y_kind = source.precision.x.c_type, source.precision.y.c_type
        x = self.address(layer.x.tensor, x_kind, first_of(layer.x, self.places(layer.x.tensor)))
        y_first = first_of(layer.y, self.places(layer.y.tensor))
        y = self.address(layer.y.tensor, y_kind, y_first, const="")
        packed = (
            self.scratch(spot, "packed") if call.packs
            else f"m->packed + {call.packed_at}" if call.packed_at is not None
            else self.weights(call, w_moved)
        )  # fmt: skip
        sums = source.precision.sum.c_type
        bias = residual = clamp = workspace = "0"
        if layer.bias:
            bias = self.address(layer.bias, sums, self.places(layer.bias).first)
        if layer.residual:
            place = self.places(layer.residual)
            first = place.first + start_of(layer.y, place.strides)
            residual = self.address(layer.residual, y_kind, first)
        if layer.clamp:
            bounds = ", ".join(number(bound, REAL) for bound in layer.clamp)
            clamp = f"(const float[]){{{bounds}}}"
        if source.by_rows:
            workspace = "work"
        elif source.workspace:
            workspace = self.scratch(spot, "workspace")
        x, y, packed = f"{x}{x_moved}", f"{y}{y_moved}", f"(const void *)({packed})"
        words = [x, packed, y, bias, residual, clamp]
        words += [self.scales(spot, layer)] if source.precision.scaled else []
        rows = ["first", "last"] if source.by_rows else [MEMBER] * source.pool
        return c.Statement(f"{source.symbol}({', '.join([*words, workspace, *rows])})")

    def scales(self, spot: Spot, layer: LayerStage) -> str:
        assert layer.scales is not None
        values = layer.scales.by_channel(layer.problem.y_shape[layer.problem.bias_axis])
        name = f"{self.name}_f{spot[0]}_{spot[1]}"
        numbers = ", ".join(f"{float(value).hex()}f" for value in values)
        self.tables.append(f"static const float {name}[] = {{{numbers}}};")
        scales = layer.scales
        return (
            f"&(const polysci_scales){{{name}, {float(scales.residual_scale).hex()}f, "
            f"{scales.residual_zero}, {scales.y_zero}}}"
        )

    def places(self, name: str) -> BufferPlace:
        return self.placed.places[name]

    def address(self, name: str, kind: str, first: int, const: str = "const ") -> str:
        """C text of an element of a tensor, and of the same one in every step."""
        place = self.placed.places[name]
        at = first + place.step * Variable(STEP)
        return text(Address(self.pointers[place.buffer], at, kind, const=bool(const)))


def scratch_name(spot: Spot, use: str) -> str:
    """The name in the arena of memory that one layer uses."""
    return f"{spot[0]} {spot[1]} {use}"
