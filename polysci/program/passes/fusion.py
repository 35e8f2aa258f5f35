"""Fewer passes over memory: loops inside loops, at the end of layers, or beside each other.

isl decides whether a fusion keeps every dependence (``relations``), the bytes that no longer move
whether it is of use. What was considered and why it was refused is kept for ``explain``.

Loops over the same elements that read the same tensors become one loop: each is read once. The
later one moves up, or the earlier one down, where no stage in between keeps it from that.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

from polysci.loop_ir.expressions import (
    Apply,
    Expr,
    Load,
    Number,
    Reduce,
    axis,
    children,
    loads,
    reductions,
    rewrite,
    shift,
    walk,
)
from polysci.loop_ir.functions import PLACES, is_truth, kind_of, kind_of_type
from polysci.numerics.affine import Affine
from polysci.numerics.scalar_functions import CONVERSIONS
from polysci.program.control import BranchStage
from polysci.program.passes.arena import MemoryUse
from polysci.program.passes.buffers import PlacedProgram, alike
from polysci.program.passes.operands import operands_of
from polysci.program.passes.relations import iterators, pointwise, reads_once, uses
from polysci.program.passes.row import Fusion
from polysci.program.passes.variation import Variation
from polysci.program.stages import (
    CLAMP,
    JointLoops,
    LayerStage,
    LoopStage,
    Program,
    RepeatStage,
    Stage,
    members_of,
)

NARROWED = "bf16:bf16:f32"  # products of bf16 whose results may be rounded to it as well
BEYOND = "a layer ends with a residual, limits or an activation, and nothing else"
LARGEST = 160  # parts of an expression: beyond that the compiler runs out of registers


@dataclass(slots=True)
class _Fuser:
    program: Program
    apart: Container[str]
    stages: list[Stage] = field(default_factory=list)
    tried: dict[tuple[str, str], Fusion] = field(default_factory=dict)
    by_output: dict[str, list[Stage]] = field(default_factory=dict)  # by what they write
    by_input: dict[str, list[Stage]] = field(default_factory=dict)  # by what they read
    dtypes: dict[str, str] = field(default_factory=dict)

    def run(self) -> Program:
        """Stages in order: each into the layer before it, else what it reads into itself."""
        self.stages = list(self.program.stages)
        self.dtypes = {name: value.dtype for name, value in self.program.values.items()}
        for stage in self.stages:
            self.learn(stage)
        position = 0
        while position < len(self.stages):
            stage = self.stages[position]
            if isinstance(stage, LoopStage):
                stage = replace(stage, expr=rewrite(stage.expr, _silu))
                self.put(position, stage)
                if self.absorb(stage, position) or self.inline(stage, position):
                    position -= 1  # a stage before this one is gone
                    continue
            elif isinstance(stage, RepeatStage):
                self.put(position, self.fuse_inside(stage))
            position += 1
        return self.program.with_stages(tuple(self.stages))

    def fuse_inside(self, stage: RepeatStage) -> RepeatStage:
        """Return a repeated stage with loops fused inside it."""
        fuser = _Fuser(stage.as_program(self.program), self.apart)
        fused = fuser.run()
        self.tried |= fuser.tried
        return replace(stage, members=fused.stages)

    def learn(self, stage: Stage) -> None:
        for name in stage.outputs:
            self.by_output.setdefault(name, []).append(stage)
        for name in stage.inputs:
            self.by_input.setdefault(name, []).append(stage)

    def put(self, position: int, stage: Stage, gone: Stage | None = None) -> None:
        """Another stage in a place, and one less before it."""
        old, self.stages[position] = self.stages[position], stage
        self.forget(old)
        if gone:
            del self.stages[next(at for at, other in enumerate(self.stages) if other is gone)]
            self.forget(gone)
        self.learn(stage)

    def forget(self, stage: Stage) -> None:
        uses = [(name, self.by_output) for name in stage.outputs]
        for name, where in (*uses, *((name, self.by_input) for name in stage.inputs)):
            where[name] = [other for other in where[name] if other is not stage]

    def makers(self, tensor: str) -> list[Stage]:
        return self.by_output.get(tensor, [])

    def readers(self, tensor: str) -> list[Stage]:
        return self.by_input.get(tensor, [])

    def alone(self, tensor: str, reader: Stage) -> str:
        """Return why a tensor must exist; empty where only ``reader`` needs it."""
        if tensor in self.program.outputs:
            return "it is an output"
        if tensor in self.apart:
            return "it shall stay"
        others = [stage for stage in self.readers(tensor) if stage is not reader]
        if others:
            return f"{others[0].name} reads it too"
        return "" if len(self.makers(tensor)) == 1 else "several stages write it"

    def note(self, first: Stage, second: LoopStage, tensor: str, refusal: str = "") -> bool:
        """Remember a decision; true where it is to fuse."""
        saved = 2 * self.program.values[tensor].bytes
        self.tried[tensor, second.output] = Fusion(first.name, second.name, tensor, saved, refusal)
        return not refusal

    def inline(self, reader: LoopStage, position: int) -> bool:
        """Replace the first tensor that can be by its definition."""
        for tensor in reader.inputs:
            makers = self.makers(tensor)
            if len(makers) != 1 or not isinstance(makers[0], LoopStage):
                continue
            maker = makers[0]
            refusal = self.alone(tensor, reader) or self.refuse_inline(maker, reader)
            if not self.note(maker, reader, tensor, refusal):
                continue
            typed = replace(maker, expr=self.with_kind(maker))
            expr = rewrite(reader.expr, lambda part, it=typed: _in_place(part, it))  # type: ignore[misc]
            self.put(position, replace(reader, expr=expr, name=_joint_name(maker, reader)), maker)
            return True
        return False

    def with_kind(self, maker: LoopStage) -> Expr:
        """A definition; one of numbers alone says what kind they are, as its tensor did."""
        if kind_of(maker.expr, self.dtypes):
            return maker.expr
        kind = kind_of_type(self.dtypes[maker.output])
        return Apply(CONVERSIONS[kind], (maker.expr,))

    def refuse_inline(self, maker: LoopStage, reader: LoopStage) -> str:
        """Return why a definition cannot stand where its tensor was read; empty if it can."""
        values, tensor = self.program.values, maker.output
        domain = iterators(values[reader.output].shape)
        reads = list(uses(reader.expr, tensor))
        inner, outer = _reduces(maker.expr), _reduces(reader.expr)
        if _alters(maker.expr, values[tensor].dtype, self.dtypes):
            return "its elements are of another type than the sums"
        size = sum(1 for _ in walk(maker.expr)) * len(reads) + sum(1 for _ in walk(reader.expr))
        if size > LARGEST:
            return f"{size} operations at once"
        if inner and (outer or len(reads) > 1):
            return "one reduction inside another"
        shape = values[tensor].shape
        if inner and not all(pointwise(load, domain, shape) for load, _ in reads):
            return "sums would be computed again"
        moves = isinstance(maker.expr, Load | Number) and not children(maker.expr)
        if not moves and not all(reads_once(load, domain, around) for load, around in reads):
            return "elements would be computed more than once"
        if any(not isinstance(subscript, Affine) for load, _ in reads for subscript in load.index):
            return "a table or data says which elements are read"
        return ""

    def absorb(self, reader: LoopStage, position: int) -> bool:
        """Let a layer do what ``reader`` does to its results."""
        values, expr = self.program.values, reader.expr
        narrows = values[reader.output].dtype == "bf16"
        while narrows and isinstance(expr, Apply) and expr.function == "real":
            expr = expr.arguments[0]
        epilogue = _epilogue(expr)
        if epilogue is None or reader.output in self.program.in_place:
            self.refuse_layers(reader, BEYOND if epilogue is None else "it replaces an input")
            return False
        domain = iterators(values[reader.output].shape)
        clamp, terms = epilogue
        for result in sorted(terms, key=lambda load: -self.place(load.tensor)):
            makers = self.makers(result.tensor)
            if len(makers) != 1 or not isinstance(makers[0], LayerStage):
                continue
            layer = makers[0]
            shape = values[result.tensor].shape
            others = [load for load in terms if load is not result]
            biases = [load for load in others if self.is_bias(layer, load)]
            others = [load for load in others if load not in biases]
            refusal = self.alone(result.tensor, reader)
            refusal = refusal or _cannot(layer, clamp, biases, others, narrows=narrows)
            own = all(pointwise(load, domain, shape) for load in (result, *others))
            if not refusal and not own:
                refusal = "it reads other elements than those of its own place"
            if not refusal and any(o.tensor == result.tensor for o in others):
                refusal = "it adds the result to itself"
            if not refusal and any(values[o.tensor].shape != shape for o in others):
                refusal = "what is added has another shape"
            if not self.note(layer, reader, result.tensor, refusal):
                continue
            narrow = layer.problem.dtype == NARROWED and narrows
            changed = replace(
                layer, name=_joint_name(layer, reader),
                problem=layer.problem.with_(dtype="bf16") if narrow else layer.problem,
                y=replace(layer.y, tensor=reader.output),
                bias=biases[0].tensor if biases else layer.bias,
                residual=others[0].tensor if others else layer.residual,
                clamp=clamp or layer.clamp,
            )  # fmt: skip
            self.put(position, changed, layer)
            return True
        return False

    def is_bias(self, layer: LayerStage, load: Load) -> bool:
        """Return whether a read tensor holds one number for each column of a layer's result."""
        problem, values = layer.problem, self.program.values
        _, _, y = operands_of(problem)
        shape, axes = values[layer.output].shape, layer.y.axes[y.order[problem.bias_axis]]
        columns = [axis(at) for at in axes if shape[at] > 1]
        own = zip(load.index, values[load.tensor].shape, strict=True)
        places = [index for index, size in own if size > 1]
        return (
            places == columns
            and values[load.tensor].size == prod(shape[at] for at in axes)
            and values[load.tensor].dtype == "float32"
        )

    def refuse_layers(self, reader: LoopStage, reason: str) -> None:
        """Note why no layer whose results are read does what ``reader`` does."""
        for tensor in dict.fromkeys(reader.inputs):
            makers = self.makers(tensor)
            if len(makers) == 1 and isinstance(makers[0], LayerStage):
                self.note(makers[0], reader, tensor, reason)

    def place(self, tensor: str) -> int:
        """Return where a tensor is made."""
        places = [at for at, stage in enumerate(self.stages) if tensor in stage.outputs]
        return places[-1] if places else -1


def fuse_loops(program: Program, apart: Container[str] = ()) -> tuple[Program, tuple[Fusion, ...]]:
    """The program with what can be fused, and everything that was considered.

    Tensors that are to stay ``apart`` are not computed inside what reads them.
    """
    fuser = _Fuser(program, apart)
    fused = fuser.run()
    return fused, tuple(fuser.tried.values())


def _joint_name(first: Stage, second: Stage) -> str:
    return f"{first.name} + {second.name}"


def _reduces(expr: Expr) -> bool:
    return any(isinstance(part, Reduce) for part in walk(expr))


def _alters(expr: Expr, dtype: str, dtypes: Mapping[str, str]) -> bool:
    """Return whether a tensor of a type holds other values than those of its definition."""
    if dtype == "bool":
        return not is_truth(expr, dtypes)
    kind = kind_of_type(dtype)
    return dtype != kind or kind_of(expr, dtypes) not in ("", kind)


def _in_place(part: Expr, maker: LoopStage) -> Expr:
    """The definition of a tensor instead of a read of it."""
    if not isinstance(part, Load) or part.tensor != maker.output:
        return part
    values = {f"i{number}": index for number, index in enumerate(part.index)}
    return shift(maker.expr, values)  # type: ignore[arg-type]


def _silu(part: Expr) -> Expr:
    """``x * sigmoid(x)``, also as a Swish, by its name."""
    match part:
        case Apply("mul", (left, Apply("sigmoid", (right,)))) if left == right:
            return Apply("silu", (left,))
        case Apply("mul", (Apply("sigmoid", (left,)), right)) if left == right:
            return Apply("silu", (left,))
        case Apply("swish", (left, Number(1.0))):
            return Apply("silu", (left,))
        case _:
            return part


def _epilogue(expr: Expr) -> tuple[CLAMP | None, list[Load]] | None:
    """``clamp(a)`` or ``clamp(a + b)``; None for any other expression.

    Functions that cost more stay loops: at the end of each register tile they wait for their own
    results, and a GELU, whose loop waits for no memory, took 1 to 6 % longer there.
    """
    low, high = -inf, inf
    while isinstance(expr, Apply):
        match expr:
            case Apply("relu", (inside,)):
                low = min(max(low, 0.0), high)
            case Apply("max", (inside, Number(value))):
                low = min(max(low, value), high)
            case Apply("min", (inside, Number(value))):
                high = max(min(high, value), low)
            case _:
                break
        expr = inside
    clamp = None if (low, high) == (-inf, inf) else (low, high)
    match expr:
        case Load():
            return clamp, [expr]
        case Apply("add", (Load() as left, Load() as right)):
            return clamp, [left, right]
        case _:
            return None


def _cannot(
    layer: LayerStage, clamp: CLAMP | None, biases: list[Load], others: list[Load], *,
    narrows: bool,
) -> str:  # fmt: skip
    """Return why a layer cannot do it as well; ``narrows``: and round results to bf16."""
    if layer.scales or layer.problem.dtype not in ("f32", NARROWED):
        return "its results are rounded before"
    if narrows and (others or layer.residual or layer.problem.dtype == "f32"):
        return "it sums f32, and what is added would be rounded before"
    if layer.y.step or layer.y.start or (layer.stack and (clamp or not narrows)):
        return "it writes part of the tensor"
    if (others and layer.residual) or (biases and layer.bias):
        return "it adds something already"
    if (others or biases) and layer.clamp:
        return "it clamps already"
    if clamp and layer.clamp:
        return "it clamps already"
    return ""


def join_loops(placed: PlacedProgram) -> tuple[PlacedProgram, tuple[Fusion, ...]]:
    """The program with loops that can share one, and what each of them saves.

    No loop moves past others where that takes more memory at a time, as much as reading it saves.
    """
    stages, fusions = list[Stage](), list[Fusion]()
    use, places, variation = MemoryUse.of(placed), list[int](), Variation(placed)
    for place, stage in enumerate(placed.program.stages):
        stages.append(stage)
        places.append(place)
        if not isinstance(stage, LoopStage):
            continue
        at, shared, rises = _partner(placed, stages, places, use, variation)
        if not shared:
            continue
        first = stages[at]
        bytes_read = sum(placed.program.values[name].bytes for name in shared)
        fusions.append(Fusion(stage.name, first.name, shared[0], bytes_read))
        joint = JointLoops((*_loops(first), stage))
        stages[at if rises else -1] = joint
        del stages[-1 if rises else at], places[-1 if rises else at]
    return replace(placed, program=replace(placed.program, stages=tuple(stages))), tuple(fusions)


def _loops(stage: Stage) -> tuple[LoopStage, ...]:
    """The loops that a stage consists of; none where it is something else."""
    if not isinstance(stage, LoopStage | JointLoops):
        return ()
    return tuple(part for part in members_of(stage) if isinstance(part, LoopStage))


def _partner(
    placed: PlacedProgram, stages: Sequence[Stage], places: Sequence[int], use: MemoryUse,
    variation: Variation,
) -> tuple[int, tuple[str, ...], bool]:  # fmt: skip
    """The last stage that the one behind all others can join, and the tensors that both use.

    Whether the latter moves up to it; else it moves down. ``places`` are those of the stages in the
    program whose memory is in ``use``.
    """
    stage = stages[-1]
    assert isinstance(stage, LoopStage)
    for at in reversed(range(len(stages) - 1)):
        first, between = stages[at], stages[at + 1 : -1]
        if isinstance(first, BranchStage):
            break
        members = _loops(first)
        if not members or not (shared := _shared_tensors(placed, members, stage)):
            continue
        if placed.program.resizes and variation.loop(members[0]) != variation.loop(stage):
            continue  # they end elsewhere
        way = range(places[at], places[-1] + 1)
        saved = sum(placed.program.values[name].bytes for name in shared)
        if not any(placed.must_keep_order(other, stage) for other in between):
            if not between or use.prolong(placed.buffers_of(stage.outputs), way, saved):
                return at, shared, True
        elif not any(placed.must_keep_order(first, other) for other in between):
            inputs = (name for member in members for name in member.inputs)
            if use.prolong(placed.buffers_of(inputs), way, saved):
                return at, shared, False
    return 0, (), False


def _shared_tensors(
    placed: PlacedProgram, members: Sequence[LoopStage], stage: LoopStage
) -> tuple[str, ...]:
    """The tensors that a loop uses as well as those that it could join; empty where it cannot."""
    first, values, places = members[0], placed.program.values, placed.places
    shape = values[first.output].shape
    if values[stage.output].shape != shape or not alike(
        places[stage.output], places[first.output], shape
    ):
        return ()
    sums = [reductions(part.expr) for part in (first, stage)]
    kinds = [[(part.over, part.guards) for part in parts] for parts in sums]
    functions = [part.function for it in (*members, stage) for part in reductions(it.expr)]
    if kinds[0] != kinds[1] or sum(name in PLACES for name in functions) > 1:
        return ()
    if sum(1 for part in (*members, stage) for _ in walk(part.expr)) > LARGEST:
        return ()
    if not all(_in_own_places(placed, member, stage) for member in members):
        return ()
    own = placed.buffers_of([name for part in members for name in (*part.outputs, *part.inputs)])
    return tuple(
        name for name in stage.inputs
        if places[name].buffer in own and values[name].size >= values[stage.output].size > 0
    )  # fmt: skip


def _in_own_places(placed: PlacedProgram, first: LoopStage, second: LoopStage) -> bool:
    """Return whether each reads only the element of its own place of the other's results."""
    if placed.places[first.output].buffer == placed.places[second.output].buffer:
        return False
    return all(_reads_own(placed, *pair) for pair in ((first, second), (second, first)))


def _reads_own(placed: PlacedProgram, writer: LoopStage, reader: LoopStage) -> bool:
    place, shape = placed.places[writer.output], placed.program.values[writer.output].shape
    inside = {load for part in reductions(reader.expr) for load in loads(part.body)}
    for load in loads(reader.expr):
        other = placed.places[load.tensor]
        if other.buffer != place.buffer:
            continue
        own = replace(other, dtype=place.dtype)
        here = (index == axis(at) or shape[at] == 1 for at, index in enumerate(load.index))
        if own != place or load in inside or len(load.index) != len(shape) or not all(here):
            return False
    return True
