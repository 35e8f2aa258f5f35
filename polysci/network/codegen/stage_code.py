"""The stages of a program as C: a function a loop, a call a layer, barriers between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from polysci.codegen import ctree as c
from polysci.codegen import openmp
from polysci.export.names import remark
from polysci.network.codegen.loops import LoopWriter
from polysci.network.codegen.row_fusion_code import RowFusionWriter
from polysci.network.codegen.weights_file import WeightsFile, weights_file_of
from polysci.network.ir.stages import LayerStage, LoopStage, RowFusion
from polysci.network.passes.arena import Arena, arrange
from polysci.network.passes.buffers import BufferPlace, PlacedProgram, start_of
from polysci.network.passes.layer_calls import LayerCall, Spot, first_of
from polysci.target.isa import Isa

Space = tuple[str, int, int]  # a buffer of the caller's, or the arena; first byte and end


@dataclass(slots=True)
class StageCode:
    placed: PlacedProgram
    name: str
    isa: Isa
    threads: int
    calls: Mapping[Spot, LayerCall]
    apart: bool
    timed: bool
    arena: Arena = field(init=False)
    weights_file: WeightsFile = field(init=False)
    pointers: dict[str, str] = field(default_factory=dict)
    loops: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    row_fusions: dict[int, RowFusionWriter] = field(default_factory=dict)
    extra: dict[str, tuple[int, int]] = field(default_factory=dict)  # scratch: bytes, stage

    def __post_init__(self) -> None:
        program = self.placed.program
        extra = self.extra
        for (at, _), call in self.calls.items():
            if not call.source.by_rows:
                extra[f"{at} workspace"] = (call.source.workspace, at)
            if call.packed_at is None:
                extra[f"{at} packed"] = (call.source.packed, at)
        for at, stage in enumerate(program.stages):
            if isinstance(stage, RowFusion):
                inner = {n: call for (spot, n), call in self.calls.items() if spot == at}
                writer = RowFusionWriter(
                    stage, self.placed, inner, self.threads, f"{self.name}_s{at}"
                )
                self.row_fusions[at] = writer
                extra |= {name: (size, at) for name, size in writer.memory().items()}
        self.extra = {name: room for name, room in extra.items() if room[0]}
        self.arena = arrange(self.placed, self.extra, apart=self.apart)
        used = self.constants()
        self.weights_file = weights_file_of([*self.calls.values()], program.constants, used)
        for name, at in self.weights_file.constants.items():
            self.pointers[name] = f"(m->constants + {at})"
        for position, name in enumerate(program.inputs):
            self.pointers[name] = f"m->in[{position}]"
        for position, name in enumerate(program.outputs):
            self.pointers[name] = f"m->out[{position}]"
        for name, at in self.arena.offsets.items():
            self.pointers[name] = f"(m->arena + {at})"

    def constants(self) -> list[str]:
        """Constants that stages read as they are: all but weights that are packed on load."""
        buffers: dict[str, None] = {}
        for at, stage in enumerate(self.placed.program.stages):
            names = list(stage.inputs)
            members = stage.members if isinstance(stage, RowFusion) else (stage,)
            for inside, member in enumerate(members):
                call = self.calls.get((at, inside))
                if call and call.packed_at is not None and isinstance(member, LayerStage):
                    mine = (member.x.tensor, member.bias, member.residual)
                    names = [name for name in names if name != member.weights or name in mine]
            for name in names:
                buffer = self.placed.places[name].buffer if name else ""
                if buffer in self.placed.program.constants:
                    buffers[buffer] = None
        return list(buffers)

    def stages(self) -> c.Body:
        """Statements in order, with a barrier wherever one needs what another thread made."""
        lines, pending = c.Body(), list[int]()
        for at, stage in enumerate(self.placed.program.stages):
            if self.threads > 1 and any(self.conflicts(at, other) for other in pending):
                lines.append(c.Line(openmp.BARRIER))
                pending.clear()
            pending.append(at)
            if isinstance(stage, LoopStage):
                lines.append(self.call_loop(at, stage))
            elif isinstance(stage, LayerStage):
                lines += self.call_layer(at, stage)
            elif isinstance(stage, RowFusion):
                lines.append(self.row_fusion(at, stage))
            if self.timed:
                lines += self.clock(at)
                pending.clear()
        return lines

    def clock(self, at: int) -> c.Body:
        """The time when all threads have ended a stage."""
        pragmas = [openmp.BARRIER, openmp.MASTER] if self.threads > 1 else []
        return [*map(c.Line, pragmas), c.Statement(f"m->times[{at}] = ps_now()")]

    def conflicts(self, at: int, other: int) -> bool:
        """Whether one of two stages writes memory that the other one uses."""
        mine, others = self.memory(at), self.memory(other)
        if _touch(mine[0], others[1]) or _touch(others[0], mine[1]):
            return True
        stages, places = self.placed.program.stages, self.placed.places
        first, second = stages[at].output, stages[other].output
        parts = (
            places[first].buffer == places[second].buffer and first != second
        )  # of a joined tensor: apart
        return _touch(mine[0][parts:], others[0]) or _touch(mine[0], others[0][parts:])

    def memory(self, at: int) -> tuple[list[Space], list[Space]]:
        """What a stage writes, its result first, and what it reads."""
        spaces, stage = list[Space](), self.placed.program.stages[at]
        for name in (stage.output, *stage.inputs):
            buffer = self.placed.places[name].buffer
            if buffer in self.arena.offsets:
                first = self.arena.offsets[buffer]
                spaces.append(("", first, first + self.placed.program.values[buffer].bytes))
            else:
                spaces.append((buffer, 0, 1))
        own = [name for name, (_, user) in self.extra.items() if user == at]
        scratch = [
            ("", self.arena.offsets[n], self.arena.offsets[n] + self.extra[n][0]) for n in own
        ]
        return [spaces[0], *scratch], spaces[1:]

    def call_loop(self, at: int, stage: LoopStage) -> c.Generable:
        """The call of a function made for it."""
        value = self.placed.program.values[stage.output]
        extents = {f"i{number}": size for number, size in enumerate(value.shape)}
        symbol = f"{self.name}_s{at}"
        if not value.size:
            return c.Line(f"/* {remark(stage.name)}: no elements */")
        names = {stage.output, *stage.inputs}
        places = {name: self.placed.places[name] for name in names}
        writer = LoopWriter(stage, symbol, places, self.pointers, self.threads, extents)
        self.loops.append(f"/* {remark(stage.name)} */\n{writer.function()}\n")
        return c.Statement(f"{symbol}(m)")

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
                made = LoopWriter(member, symbol, places, pointers, 1, extents, rows=True)
                self.loops.append(f"/* {remark(member.name)} */\n{made.function()}\n")
                writer.calls_to[inside] = c.Statement(
                    f"{symbol}(m, {', '.join(writer.ends(inside))}, first, last)"
                )
            else:
                writer.calls_to[inside] = self.call_primitive((at, inside), "", "")
        self.loops.append(writer.text(self.arena.offsets))
        return c.Statement(f"{writer.symbol}(m)")

    def call_layer(self, at: int, stage: LayerStage) -> c.Body:
        """The call of a primitive, once or once a copy."""
        call = self.calls[at, 0]
        lines: c.Body = [c.Line(f"/* {remark(stage.name)} */")]
        alone = self.threads > 1 and not call.shared
        single: c.Body = [c.Line(openmp.single(wait=False))] if alone else []
        if not stage.copies:
            lines += self.pack_weights(at, call, "")
            lines += [*single, self.call_primitive((at, 0), "", "")]
        else:
            table = f"{self.name}_s{at}"
            rows = ", ".join(f"{{{x}, {w}, {y}}}" for x, w, y in stage.copies)
            self.tables.append(
                f"static const int64_t {table}[{len(stage.copies)}][3] = {{{rows}}};"
            )
            again: c.Body = [c.Line(openmp.BARRIER)] if self.threads > 1 else []
            lines.append(c.Line(f"for (int i = 0; i < {len(stage.copies)}; ++i) {{"))
            lines += self.pack_weights(at, call, f"{table}[i][1]")
            moved = (f" + {table}[i][0]", f" + {table}[i][2]")
            lines += [*single, self.call_primitive((at, 0), *moved), *again, c.Line("}")]
        return lines

    def pack_weights(self, at: int, call: LayerCall, moved: str) -> c.Body:
        """Packing of weights that are computed."""
        if call.packed_at is not None:
            return []
        layer = call.layer
        kind = call.source.precision.w.c_type
        place = self.placed.places[layer.weights]
        first = f" + {place.first}" if place.first else ""
        first += f" + {moved}" if moved else ""
        where = f"(const {kind} *){self.pointers[place.buffer]}{first}"
        to = f"(void *)(m->arena + {self.arena.offsets[f'{at} packed']})"
        zero = f", {layer.x_zero}" if call.source.precision.integer else ""
        single: c.Body = [c.Line(openmp.single())] if self.threads > 1 else []
        return [*single, c.Statement(f"{call.source.symbol}_pack_weights({where}, {to}{zero})")]

    def call_primitive(self, spot: Spot, x_moved: str, y_moved: str) -> c.Generable:
        """One call of a primitive."""
        call, at = self.calls[spot], spot[0]
        layer, source = call.layer, call.source
        x_kind, y_kind = source.precision.x.c_type, source.precision.y.c_type
        x = self.address(layer.x.tensor, x_kind, first_of(layer.x, self.places(layer.x.tensor)))
        y_first = first_of(layer.y, self.places(layer.y.tensor))
        y = self.address(layer.y.tensor, y_kind, y_first, const="")
        packed = (
            f"(const void *)(m->arena + {self.arena.offsets[f'{at} packed']})"
            if call.packed_at is None else f"(const void *)(m->packed + {call.packed_at})"
        )  # fmt: skip
        sums = source.precision.sum.c_type
        bias = residual = clamp = workspace = "0"
        if layer.bias:
            bias = self.address(layer.bias, sums, self.places(layer.bias).first)
        if layer.residual:
            moved = self.places(layer.residual).first + start_of_y(layer, self.placed)
            residual = self.address(layer.residual, y_kind, moved)
        if layer.clamp:
            bounds = ", ".join(map(_bound, layer.clamp))
            clamp = f"(const float[]){{{bounds}}}"
        if source.by_rows:
            workspace = "work"
        elif source.workspace:
            workspace = f"m->arena + {self.arena.offsets[f'{at} workspace']}"
        words = [f"{x}{x_moved}", packed, f"{y}{y_moved}", bias, residual, clamp]
        if source.precision.scaled:
            words.append(self.scales(spot, layer))
        rows = ["first", "last"] if source.by_rows else []
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
        buffer = self.pointers[self.placed.places[name].buffer]
        text = f"({const}{kind} *){buffer}"
        return f"{text} + {first}" if first else text


def start_of_y(layer: LayerStage, placed: PlacedProgram) -> int:
    """Elements before the window that a layer writes, in a residual that is as wide."""
    return start_of(layer.y, placed.places[layer.residual].strides)


def _touch(some: Sequence[Space], others: Sequence[Space]) -> bool:
    """Whether any two of them have bytes in common."""
    return any(
        space[0] == other[0] and space[1] < other[2] and other[1] < space[2]
        for space in some
        for other in others
    )


def _bound(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{value.hex()}f"
