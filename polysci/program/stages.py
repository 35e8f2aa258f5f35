"""The steps of a network: layers by primitives, loops, views, concatenations, repetitions."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, prod
from types import MappingProxyType

from polysci.loop_ir.expressions import Expr, Index, Load, axis, loads
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import Array
from polysci.numerics.dtypes import array_type
from polysci.numerics.quantization import Scales
from polysci.ops.problem import Problem
from polysci.program.control import BREAK, BranchStage, CarriedTensor, ChoiceStage, StepView
from polysci.program.sizes import DerivedSize

CLAMP = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: extents, element type (NumPy's name, or ``bf16``), axes, slowest first."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    order: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return array_type(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        return self.size * self.item

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides of a buffer of its own, in elements."""
        strides, step = [0] * len(self.shape), 1
        for at in reversed(self.order or range(len(self.shape))):
            strides[at], step = step, step * self.shape[at]
        return tuple(strides)

    @property
    def elements(self) -> Load:
        """The expression of every element, in its place."""
        return Load(self.name, tuple(axis(at) for at in range(len(self.shape))))

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


def fresh_name(base: str, taken: Container[str], word: str = "") -> str:
    """Return the first name of ``base.word``, ``base.word1``, ... that is not taken."""
    name, number = f"{base}.{word}" if word else base, 1
    while name in taken:
        name, number = f"{base}.{word}{number}", number + 1
    return name


def channels_last(rank: int) -> tuple[int, ...]:
    """Axis 1 behind all others."""
    return (0, *range(2, rank), 1) if rank > 2 else tuple(range(rank))


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a tensor as a problem sees it: for each of its axes those of the tensor.

    Axes of the tensor that run on together count as one; none is an extent of 1. ``start`` and
    ``step`` are by axis of the tensor.
    """

    tensor: str
    axes: tuple[tuple[int, ...], ...]
    start: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    step: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))

    def strides(self, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
        """Return the strides of a problem's axes in a tensor; None where merged axes do not run on.

        ``shape`` and ``strides`` are those of the tensor.
        """
        steps = []
        for axes in self.axes:
            real = [at for at in axes if shape[at] > 1]
            for outer, inner in pairwise(real):
                if strides[outer] != shape[inner] * strides[inner]:
                    return None
            last = real[-1] if real else (axes[-1] if axes else None)
            steps.append(strides[last] * self.step.get(last, 1) if last is not None else 0)
        return tuple(steps)

    def first(self, strides: Sequence[int]) -> int:
        """Return how many elements of a tensor with these strides lie before the first one."""
        return sum(first * strides[at] for at, first in self.start.items())


@dataclass(frozen=True, slots=True)
class LayerStage:
    """A problem by a primitive: ``y = clamp(problem(x, w) + bias + residual)``.

    ``weights`` names a constant of the problem's ``w_shape``, or a tensor that is packed on every
    run; ``w`` are its strides in elements where they are not row-major. ``w_axes`` are the axes
    of such a tensor, as a window has them, where it may lie in any order. It runs once for each
    position in ``stack``; ``copies`` says, once tensors have places, how many elements x, weights
    and y lie behind the first ones there.
    """

    name: str
    problem: Problem
    x: Window
    y: Window
    weights: str
    bias: str = ""
    residual: str = ""
    clamp: CLAMP | None = None
    scales: Scales | None = None
    x_zero: int = 0
    w: tuple[int, ...] = ()
    w_axes: tuple[tuple[int, ...], ...] = ()
    stack: tuple[tuple[int, ...], ...] = ()
    copies: tuple[tuple[int, int, int], ...] = ()

    @property
    def output(self) -> str:
        return self.y.tensor

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output,)

    @property
    def inputs(self) -> tuple[str, ...]:
        names = (self.x.tensor, self.weights, self.bias, self.residual)
        return tuple(dict.fromkeys(name for name in names if name))


@dataclass(frozen=True, slots=True)
class StageOfOne:
    """A stage that makes one tensor."""

    name: str
    output: str

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output,)


@dataclass(frozen=True, slots=True)
class LoopStage(StageOfOne):
    """A tensor defined element by element."""

    expr: Expr

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(load.tensor for load in loads(self.expr)))


@dataclass(frozen=True, slots=True)
class JointLoops:
    """Tensors of one shape, made element by element in one loop; all reduce alike, or none.

    Each reads of what those before it made no more than the element of its own place.
    """

    members: tuple[LoopStage, ...]

    @property
    def name(self) -> str:
        return " & ".join(member.name for member in self.members)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(member.output for member in self.members)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for member in self.members for name in member.inputs))


@dataclass(frozen=True, slots=True)
class UpdateStage(StageOfOne):
    """Elements of a tensor that has values already, changed one after the other.

    ``output[index] = expr`` at every place of a box of ``extents``, whose iterators are those of a
    loop; places in row-major order where they change the same element. ``ends``, by iterator: sizes
    of a run at which some of them end.
    """

    extents: tuple[int, ...]
    index: tuple[Index, ...]
    expr: Expr
    ends: tuple[tuple[str, str], ...] = ()

    @property
    def reads(self) -> list[Load]:
        """All elements that are read, those for subscripts included."""
        return [*loads(Load(self.output, self.index))[1:], *loads(self.expr)]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.output, *(load.tensor for load in self.reads))))


@dataclass(frozen=True, slots=True)
class RoutineStage(StageOfOne):
    """A tensor by a function of ``microkernels/routines.h``, called once for each of its items.

    It gets the item's number, the output, the inputs and ``numbers``; tensors in row-major order.
    Calls for different items write different elements.
    """

    inputs: tuple[str, ...]
    routine: str
    items: int
    numbers: tuple[int | float, ...]


@dataclass(frozen=True, slots=True)
class ViewStage(StageOfOne):
    """Another name for elements of a tensor: ``output[i..] = source[index(i..)]``.

    Without ``index`` the elements in row-major order (a reshape).
    """

    source: str
    index: tuple[Affine, ...] | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source,)


@dataclass(frozen=True, slots=True)
class ConcatStage(StageOfOne):
    """Tensors one behind the other along an axis."""

    parts: tuple[str, ...]
    axis: int

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.parts))


@dataclass(frozen=True, slots=True)
class RowFusion:
    """Layers and loops that run together, some rows at a time, each on what those before made.

    A layer makes ``height`` rows at a time, or as many as its registers hold. ``views`` are other
    names by which members read what they make.
    """

    members: tuple[LayerStage | LoopStage, ...]
    height: int
    views: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " > ".join(member.name for member in self.members)

    @property
    def output(self) -> str:
        return self.members[-1].output

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output,)

    @property
    def internal(self) -> tuple[str, ...]:
        """The tensors that stay between them: all results but the last."""
        return tuple(member.output for member in self.members[:-1])

    @property
    def inputs(self) -> tuple[str, ...]:
        names, inside = [its for member in self.members for its in member.inputs], self.internal
        return tuple(it for it in dict.fromkeys(names) if it not in (*inside, *self.views))


@dataclass(frozen=True, slots=True)
class RepeatStage:
    """Stages that run ``count`` times, one step after the other.

    ``ends`` is the size of a run that says how often instead, if there is one; ``backwards``: then
    the first steps are left out, and not the last ones.
    They read and write slices of tensors around them, and what the step before carried over;
    other tensors that they read are the same in all steps. Their own tensors last for a step.
    """

    name: str
    count: int
    members: tuple[Stage, ...]
    reads: tuple[StepView, ...]
    writes: tuple[StepView, ...]
    carried: tuple[CarriedTensor, ...]
    ends: str = ""
    backwards: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        names = (*(view.outer for view in self.writes), *(held.state for held in self.carried))
        return tuple(dict.fromkeys(names))

    @property
    def breaks(self) -> bool:
        """Return whether data may end it before ``count`` steps."""
        return any(isinstance(part, BranchStage) and part.part == BREAK for part in self.members)

    @property
    def results(self) -> tuple[str, ...]:
        """The tensors that a step makes for others."""
        tensors = (
            *(view.inner for view in self.writes),
            *(held.following for held in self.carried),
        )
        return tuple(dict.fromkeys(tensors))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The tensors that differ from step to step and that a step begins with."""
        return (*(view.inner for view in self.reads), *(held.inner for held in self.carried))

    @property
    def internal(self) -> tuple[str, ...]:
        """The tensors of a step."""
        outputs = [name for member in self.members for name in member.outputs]
        return tuple(dict.fromkeys((*self.arguments, *self.results, *outputs)))

    @property
    def inputs(self) -> tuple[str, ...]:
        inside = {*self.internal}
        names = [view.outer for view in self.reads] + [held.state for held in self.carried]
        names += [name for member in self.members for name in member.inputs if name not in inside]
        return tuple(dict.fromkeys(names))

    @property
    def border(self) -> tuple[str, ...]:
        """The tensors around a step and inside one that share memory."""
        return tuple(dict.fromkeys(
            (*self.arguments, *self.results, *self.outputs, *(view.outer for view in self.reads))
        ))  # fmt: skip

    def as_program(self, around: Program) -> Program:
        """Return one step as a program by itself, with the tensors of the one around it."""
        return replace(
            around, name=self.name, inputs=self.arguments, outputs=self.results,
            titles=self.results, stages=self.members,
        )  # fmt: skip


Stage = (
    LayerStage | LoopStage | JointLoops | UpdateStage | RoutineStage | ViewStage | ConcatStage
    | RowFusion | RepeatStage | ChoiceStage | BranchStage
)  # fmt: skip


def members_of(stage: Stage) -> tuple[Stage, ...]:
    """The stages inside a stage that is made of some, else itself."""
    return stage.members if isinstance(stage, JointLoops | RowFusion | RepeatStage) else (stage,)


@dataclass(frozen=True, slots=True)
class DynamicDim:
    """An axis of which data decides how much is used: its extent is the most that can be.

    ``count`` names a tensor, one whole number of 64 bits: how many elements along the axis there
    are. What lies behind them means nothing.
    """

    axis: int
    count: str


@dataclass(frozen=True, slots=True)
class DataSizes:
    """Sizes that data decides and of which a run has room for some at most.

    The output ``output`` holds those of a run, whole numbers of 64 bits, in the order of ``most``:
    a name for each, and the most there may be. Results of a run with a larger one mean nothing.
    """

    output: str = ""
    most: tuple[tuple[str, int], ...] = ()


NO_SIZES = DataSizes()


# How much a range binds: a mask is guessed where nothing says which of its values leaves most of a
# tensor in use, wanted where something does; a place in a table is needed.
GUESSED, WANTED, NEEDED = range(3)


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Numbers from ``low`` to ``high``, but for those of ``without``.

    ``weight`` is one of GUESSED, WANTED, NEEDED; ``whole``: real inputs hold whole numbers too.
    """

    low: float = -inf
    high: float = inf
    without: tuple[float, ...] = ()
    weight: int = NEEDED
    whole: bool = False

    @property
    def single(self) -> bool:
        """Return whether it holds one number."""
        return self.low == self.high

    def join(self, other: ValueRange) -> ValueRange:
        """Return what both hold; where that is nothing or one is a guess, the stricter one."""
        if self.weight < other.weight:
            return other.join(self)
        low, high = max(self.low, other.low), min(self.high, other.high)
        if low > high or (other.weight == GUESSED and self.weight > GUESSED):
            return self
        without = tuple(sorted({*self.without, *other.without}))
        return replace(self, low=low, high=high, without=without, whole=self.whole or other.whole)


def truth(value: bool, weight: int) -> ValueRange:
    """The range of 1 alone, or of 0."""
    return ValueRange(float(value), float(value), (), weight)


@dataclass(frozen=True, slots=True)
class MergedAxis:
    """An axis of ``outer`` times a size times ``inner`` elements, in row-major order."""

    outer: int
    size: str
    inner: int

    def __str__(self) -> str:
        return f"{self.outer} x {self.size} x {self.inner}"


@dataclass(frozen=True, slots=True)
class Program:
    """Stages in an order that runs, and the tensors that they make and read.

    ``titles`` are the names by which callers know the outputs; ``dynamic_dims``, by such a name,
    are those of which data decides the length, and ``data_sizes`` are such as are checked behind a
    run. ``in_place``, by output: the input whose memory it
    takes (one argument). ``state``: inputs that lie in a context, with the values that they begin
    with; neither they nor what replaces them are arguments. ``counter`` is that of
    tokens. ``ranges``: those of example inputs.
    ``spans`` are sizes that a run is told, by name: shapes are those of the last one; behind them
    are those that they make, which ``derived`` tells. ``varying``, by tensor: the axes that have as
    many elements as such a size; ``merged`` those that are such an axis with others around it.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    titles: tuple[str, ...]
    stages: tuple[Stage, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, Array]
    dynamic_dims: Mapping[str, DynamicDim] = field(default_factory=lambda: MappingProxyType({}))
    in_place: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    state: Mapping[str, Array] = field(default_factory=lambda: MappingProxyType({}))
    counter: str = ""
    ranges: Mapping[str, ValueRange] = field(default_factory=lambda: MappingProxyType({}))
    spans: Mapping[str, range] = field(default_factory=lambda: MappingProxyType({}))
    derived: Mapping[str, DerivedSize] = field(default_factory=lambda: MappingProxyType({}))
    varying: Mapping[str, Mapping[int, str]] = field(default_factory=lambda: MappingProxyType({}))
    merged: Mapping[str, Mapping[int, MergedAxis]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    data_sizes: DataSizes = NO_SIZES

    @property
    def resizes(self) -> bool:
        """Return whether runs are told sizes that differ."""
        return any(len(span) > 1 for span in self.spans.values())

    def all_sizes(self, told: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of a run, by name: those that it is told, and those that they make."""
        return {**told, **{name: own.value(told) for name, own in self.derived.items()}}

    @property
    def arguments(self) -> tuple[str, ...]:
        """The inputs that a caller gives and that are only read."""
        own = {*self.in_place.values(), *self.state}
        return tuple(name for name in self.inputs if name not in own)

    @property
    def results(self) -> dict[str, str]:
        """The outputs that a caller takes: title -> tensor."""
        return {
            title: name for title, name in zip(self.titles, self.outputs, strict=True)
            if self.in_place.get(name) not in self.state
        }  # fmt: skip

    @property
    def kept(self) -> dict[str, str]:
        """State -> the tensor that stands in its memory at the end of a run."""
        following = {state: output for output, state in self.in_place.items()}
        return {name: following.get(name, name) for name in self.state}

    def lines(self) -> Iterator[str]:
        """Return a line for each stage, for people; members of a stage are indented."""
        for stage in self.stages:
            yield self._line(stage)
            if isinstance(stage, RowFusion | RepeatStage | JointLoops):
                yield from (f"  {self._line(member)}" for member in stage.members)

    def _line(self, stage: Stage) -> str:
        kind = type(stage).__name__.removesuffix("Stage")
        makes = ", ".join(self._show_tensor(name) for name in stage.outputs)
        text = f"{kind} {stage.name}: {', '.join(stage.inputs)} -> {makes}"
        match stage:
            case LayerStage(problem=problem, clamp=clamp):
                return f"{text}; {problem}{f', clamp {clamp}' if clamp else ''}"
            case LoopStage(expr=expr):
                return f"{text}; {expr}"
            case _:
                return text

    def _show_tensor(self, name: str) -> str:
        """Return a tensor with the order of its axes, where that is not their own."""
        if name not in self.values:
            return name
        value = self.values[name]
        return f"{value}{f' by {list(value.order)}' if value.order else ''}"

    def readers(self) -> dict[str, list[Stage]]:
        """Tensor -> the stages that read it, in order."""
        readers: dict[str, list[Stage]] = {}
        for stage in self.stages:
            for name in stage.inputs:
                readers.setdefault(name, []).append(stage)
        return readers

    def makers(self) -> dict[str, list[Stage]]:
        """Tensor -> the stages that write it; several, where each writes a part."""
        makers: dict[str, list[Stage]] = {}
        for stage in self.stages:
            for name in stage.outputs:
                makers.setdefault(name, []).append(stage)
        return makers

    def layers(self) -> list[LayerStage]:
        """Return all layers, those inside row fusions and repeated stages included, in order."""
        parts = (part for stage in self.stages for part in members_of(stage))
        return [part for part in parts if isinstance(part, LayerStage)]

    def border(self) -> tuple[str, ...]:
        """Tensors whose memory is shared with what is around: callers, and steps."""
        inside = [name for it in self.stages if isinstance(it, RepeatStage) for name in it.border]
        return tuple(dict.fromkeys((*self.inputs, *self.outputs, *inside)))

    def with_stages(self, stages: tuple[Stage, ...]) -> Program:
        """The program of other stages, without tensors that none of them knows."""
        used = {*self.inputs, *self.outputs}
        for stage in stages:
            used |= {*stage.outputs, *stage.inputs}
            if isinstance(stage, RowFusion | RepeatStage):
                used.update(stage.internal, *(member.inputs for member in stage.members))
        values = {name: value for name, value in self.values.items() if name in used}
        constants = {name: value for name, value in self.constants.items() if name in used}
        return replace(self, stages=stages, values=values, constants=constants)


def problems(program: Program) -> dict[str, Problem]:
    """The distinct problems of a program, by key, in order."""
    return {layer.problem.key: layer.problem for layer in reversed(program.layers())}
