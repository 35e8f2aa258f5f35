"""The order of every tensor's axes in memory, for the whole program at once.

A tensor is stored plain, as ONNX orders its axes, or with its channels last, as layers read and
write. Each choice has a cost, in bytes that are gathered element by element: what a layer packs,
what a loop reads whose operands differ, what a reshape must move. On a chain of stages the cheapest
choice is a shortest path; where it branches and joins it is a minimum cut between "plain" and
"last", which is found exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from polysci.loop_ir.expressions import reductions
from polysci.ops.convolution_gradients import BackwardData
from polysci.ops.convolutions import Convolution
from polysci.ops.problem import row_strides
from polysci.program.passes.buffers import PlacedProgram, place_buffers
from polysci.program.passes.concat import hosts
from polysci.program.passes.operands import operands_of
from polysci.program.stages import (
    LayerStage,
    LoopStage,
    Program,
    RepeatStage,
    RoutineStage,
    Stage,
    UpdateStage,
    Value,
    ViewStage,
    Window,
    channels_last,
)

NEVER = 1 << 28  # units that no cost reaches
UNIT = 8  # bytes: the sums of costs are 32-bit integers
FEW = 8  # elements for one of a statistic, at least


@dataclass(slots=True)
class _GatheredBytes:
    """Bytes gathered for choices: for a buffer that is plain, or last, and for two that differ."""

    program: Program
    root: Mapping[str, str]
    plain: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    apart: dict[tuple[str, str], float] = field(default_factory=dict)

    def bytes(self, name: str) -> int:
        """Return the bytes to bring into the other order."""
        return self.program.values[name].bytes

    def choice(self, name: str) -> bool:
        """Return whether there are two orders."""
        value = self.program.values[name]
        return len(value.shape) > 2 and not value.order and name not in self.program.constants

    def add(self, table: dict[str, float], name: str, cost: float) -> None:
        root = self.root[name]
        table[root] = table.get(root, 0.0) + cost

    def count(self) -> None:
        """Sum up all costs of the program."""
        for name in self.program.border():
            self.add(self.last, name, float("inf"))
        for stage in self.program.stages:
            match stage:
                case LayerStage():
                    self.layer(stage)
                case LoopStage() | UpdateStage():
                    self.loops(stage)
                case RoutineStage():
                    for name in filter(self.choice, (stage.output, *stage.inputs)):
                        self.add(self.last, name, self.bytes(name))
                case ViewStage(_, _, source, None) if self.choice(source):
                    shape = self.program.values[source].shape
                    if any(size > 1 for size in shape[2:]) and shape[1] > 1:
                        self.add(self.last, source, self.bytes(source))

    def layer(self, stage: LayerStage) -> None:
        """Channels are neighbours, or they are packed; products of matrices know no channels."""
        x, w, y = operands_of(stage.problem)
        factors = [(Window(stage.weights, stage.w_axes), w)] * bool(stage.w_axes)
        for window, operand in ((stage.x, x), (stage.y, y), *factors):
            if self.choice(window.tensor):
                table = self.plain if window.axes[operand.fastest] == (1,) else self.last
                self.add(table, window.tensor, self.bytes(window.tensor))

    def loops(self, stage: LoopStage | UpdateStage) -> None:
        rank = len(self.program.values[stage.output].shape)
        for name in stage.inputs:
            if self.choice(name) and len(self.program.values[name].shape) == rank:
                pair = (self.root[name], self.root[stage.output])
                self.apart[pair] = self.apart.get(pair, 0.0) + self.bytes(name)


def free_orders(program: Program) -> list[str]:
    """The tensors whose order ``with_orders`` chooses, one of those that share a buffer."""
    root = _roots(program)
    free = _GatheredBytes(program, root).choice
    edges = {root[name] for name in program.border()}
    return sorted({root[n] for n in program.values if free(n) and root[n] not in edges})


def with_orders(program: Program, turned: Collection[str] = ()) -> Program:
    """The program with an order for every tensor; inputs and outputs stay plain.

    Those of ``free_orders`` that are ``turned`` have the other order than the one that costs least.

    Tensors that share a buffer share an order. Convolutions between plain tensors are problems of
    that layout.
    """
    root = _roots(program)
    costs = _GatheredBytes(program, root)
    costs.count()
    last = _last(costs) ^ {*turned}
    edges = {root[name] for name in program.border()}  # however large the costs
    values = {
        name: replace(value, order=channels_last(len(value.shape)))
        if costs.choice(name) and root[name] in last and root[name] not in edges else value
        for name, value in program.values.items()
    }  # fmt: skip
    return _with_layouts(replace(program, values=values))


def _with_layouts(program: Program) -> Program:
    """The program with layers in the layout of their tensors, unless the rows of these have gaps.

    Windows of larger tensors have some, and so do parts of a concatenation along the columns.
    """
    stages = tuple(
        _in_layout(stage, program.values) if isinstance(stage, LayerStage) else stage
        for stage in program.stages
    )
    placed = place_buffers(replace(program, stages=stages))
    layers = iter([stage for stage in placed.program.stages if isinstance(stage, LayerStage)])
    kept = tuple(
        own if isinstance(own, LayerStage) and not _run_on(next(layers), placed) else stage
        for own, stage in zip(program.stages, stages, strict=True)
    )
    return replace(program, stages=kept)


def _run_on(layer: LayerStage, placed: PlacedProgram) -> bool:
    """Return whether pixels and rows are neighbours in the tensors of a layer."""
    if not isinstance(layer.problem, Convolution | BackwardData):
        return True
    x, _, y = operands_of(layer.problem)
    for window, operand in ((layer.x, x), (layer.y, y)):
        shape, place = placed.program.values[window.tensor].shape, placed.places[window.tensor]
        steps = window.strides(shape, place.strides)
        dense = row_strides(operand.shape)  # elements from a row to the next, and from a pixel
        pairs = zip(steps[2:], dense[2:], operand.shape[2:], strict=True) if steps else ()
        if not steps or any(step != by for step, by, extent in pairs if extent > 1):
            return False
    return True


def _in_layout(stage: LayerStage, values: Mapping[str, Value]) -> LayerStage:
    """A layer whose problem has the layout of its tensors, where both hold pixels side by side."""
    if not isinstance(stage.problem, Convolution | BackwardData):
        return stage
    problem = stage.problem.with_(layout="nchw")
    x, _, y = operands_of(problem)
    for window, operand in ((stage.x, x), (stage.y, y)):
        value = values[window.tensor]
        last = len(value.shape) - 1
        if last < 2 or value.order or window.axes[operand.fastest] != (last,):
            return stage
    return replace(stage, problem=problem)


def _last(costs: _GatheredBytes) -> set[str]:
    """The buffers on the side of "last" of a minimum cut."""
    names = list(dict.fromkeys(costs.root.values()))
    at = {name: 2 + number for number, name in enumerate(names)}
    edges: dict[tuple[int, int], int] = {}

    def edge(source: int, target: int, cost: float) -> None:
        scaled = NEVER if cost == float("inf") else min(NEVER - 1, round(cost / UNIT))
        edges[source, target] = min(NEVER, edges.get((source, target), 0) + scaled)

    for name in names:  # from 0, "last", to 1, "plain": who is cut from a side pays its cost
        edge(0, at[name], costs.plain.get(name, 0.0))
        edge(at[name], 1, costs.last.get(name, 0.0))
    for (source, target), cost in costs.apart.items():
        if source != target:
            edge(at[source], at[target], cost)
            edge(at[target], at[source], cost)
    size = len(names) + 2
    rows, columns = zip(*edges, strict=True) if edges else ((), ())
    data = np.array(list(edges.values()), np.int32)
    from scipy.sparse import csr_array  # a third of a second to import, and only this needs it
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    graph = csr_array((data, (rows, columns)), shape=(size, size))
    flow = maximum_flow(graph, 0, 1).flow
    left = csr_array(graph - flow)
    left.data = np.where(left.data > 0, 1, 0)
    left.eliminate_zeros()
    reached = set(breadth_first_order(left, 0, return_predecessors=False).tolist())
    return {name for name in names if at[name] in reached}


def _roots(program: Program) -> dict[str, str]:
    """Tensor -> the one whose buffer it shares: a concatenation around it, or what it views."""
    parts = hosts(program)
    views = {
        stage.output: stage.source
        for stage in program.stages
        if isinstance(stage, ViewStage) and _keeps_axes(stage)
    }

    def root(name: str) -> str:
        seen = name
        while seen in parts or seen in views:
            seen = parts[seen].whole if seen in parts else views[seen]
        return seen

    return {name: root(name) for name in program.values}


def _keeps_axes(view: ViewStage) -> bool:
    """Return whether every axis of a view runs along the same axis of its source."""
    return view.index is not None and all(
        {name for name, _ in index.terms} <= {f"i{at}"} for at, index in enumerate(view.index)
    )


def with_dtype(program: Program, dtype: str) -> Program:
    """Layers and what lies between them in ``bf16``; inputs, outputs and vectors stay f32."""
    if dtype == "f32":
        return program
    kept = {*program.border(), *program.constants, *_statistics(program), *_places(program)}
    layers = [layer for layer in program.layers() if layer.problem.dtype == "f32"]
    narrow = {layer.x.tensor for layer in layers}
    values = {
        name: replace(value, dtype="bf16")
        if value.dtype == "float32" and name not in kept
        and (name in narrow or len(value.shape) > 2) else value
        for name, value in program.values.items()
    }  # fmt: skip
    stages = tuple(_in_bf16(stage, values) for stage in program.stages)
    return replace(program, values=values, stages=stages)


def _statistics(program: Program) -> list[str]:
    """Reductions of many elements to one: few bytes, on whose digits all others depend."""
    sizes = {name: value.size for name, value in program.values.items()}
    return [
        stage.output
        for stage in program.stages
        if isinstance(stage, LoopStage)
        and reductions(stage.expr)
        and any(FEW * sizes[stage.output] <= sizes[name] for name in stage.inputs)
    ]


def _places(program: Program) -> set[str]:
    """Return the tensors out of which loops make places, which 8 bits do not tell apart."""
    sources = {name for name, value in program.values.items() if value.dtype in ("int32", "int64")}
    for stage in reversed(program.stages):
        if isinstance(stage, LoopStage) and stage.output in sources:
            sources |= {*stage.inputs}
    return sources


def _in_bf16(stage: Stage, values: Mapping[str, Value]) -> Stage:
    """A layer, or those of a stage that is repeated."""
    if isinstance(stage, RepeatStage):
        return replace(stage, members=tuple(_in_bf16(part, values) for part in stage.members))
    if not isinstance(stage, LayerStage) or stage.problem.dtype != "f32":
        return stage
    kind = "bf16" if values[stage.y.tensor].dtype == "bf16" else "bf16:bf16:f32"
    return replace(stage, problem=stage.problem.with_(dtype=kind))
