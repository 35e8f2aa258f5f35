"""A simplified graph -> a program: every node as stages, or a list of what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, inf
from types import MappingProxyType
from typing import Final

from polysci.errors import SpecError, UnsupportedError
from polysci.graph.graph import Graph
from polysci.graph.operators import OPERATORS
from polysci.graph.operators.builder import STORED, Builder
from polysci.graph.refusals import NodeRefusal, Refusal, RefusedNodesError
from polysci.loop_ir.expressions import (
    Apply,
    Computed,
    Expr,
    Load,
    Number,
    Position,
    Reduce,
    Where,
    walk,
)
from polysci.numerics.affine import Affine
from polysci.program.control import STEP, BranchStage, ChoiceStage
from polysci.program.stages import (
    GUESSED,
    NEEDED,
    WANTED,
    ConcatStage,
    JointLoops,
    LoopStage,
    Program,
    RepeatStage,
    Stage,
    UpdateStage,
    ValueRange,
    ViewStage,
    truth,
)

SUPPORTED = OPERATORS.keys()


def lower(graph: Graph) -> Program:
    """The stages of a graph, one operator after the other.

    Raises RefusedNodesError, which groups the nodes that cannot be computed by their reasons.
    """
    build, refusals = Builder(graph), list[NodeRefusal]()
    for node in graph.nodes:
        row = OPERATORS.get(node.op)
        try:
            if row is None:
                raise Refusal("polysci has no such operator")
            if row.stages is None:
                raise Refusal("its inputs are not all constant", *node.inputs)
            row.stages(build, node)
        except (Refusal, UnsupportedError, SpecError) as error:
            needs = error.needs if isinstance(error, Refusal) else ()
            inputs = graph.small_sources(needs)
            refusals.append(NodeRefusal(node.op, str(node), str(error), inputs))
    refusals += [
        NodeRefusal("", tensor.name, f"elements of {tensor.dtype}")
        for tensor in (*graph.inputs, *graph.outputs)
        if tensor.dtype not in STORED
    ]
    if refusals:
        raise RefusedNodesError(graph.name or "model", refusals)
    names = tuple(tensor.name for tensor in graph.inputs)
    titles = tuple(tensor.name for tensor in graph.outputs)
    outputs = _output_names(build, titles)
    stages = _used_stages(build.stages, outputs)
    in_place = {
        name: graph.in_place[title]
        for name, title in zip(outputs, titles, strict=True)
        if title in graph.in_place
    }
    program = Program(
        graph.name, names, outputs, titles, stages, build.values, build.constants,
        graph.dynamic_dims, in_place, graph.state, graph.counter, data_sizes=graph.data_sizes,
    )  # fmt: skip
    whole = program.with_stages(stages)
    return replace(whole, ranges=input_ranges(whole))


def _used_stages(stages: Sequence[Stage], outputs: Sequence[str]) -> tuple[Stage, ...]:
    """The stages without those whose results nothing reads."""
    names, kept = {*outputs}, list[Stage]()
    for stage in reversed(stages):
        if names & {*stage.outputs}:
            names |= {*stage.inputs}
            kept.append(stage)
    return tuple(reversed(kept))


def _output_names(build: Builder, titles: tuple[str, ...]) -> tuple[str, ...]:
    """The tensors of the outputs: copies of those that no stage makes, or that are asked twice."""
    produced = {name for stage in build.stages for name in stage.outputs}
    names: list[str] = []
    for title in titles:
        name = title
        if title not in produced or title in names:
            value = build.values[title]
            name = build.fresh(f"{title}.output", value.shape, value.dtype)
            build.stages.append(LoopStage(f"copy {title}", name, build.load(title, name)))
        names.append(name)
    return tuple(names)


HUGE: Final = 1e3  # a number below its negative leaves an element out of what follows
MOST_STEPS: Final = 4  # of a loop whose number of steps is an input
LEAST: Final = (
    0.5  # of a real number that something is divided by, or of which a logarithm is taken
)
_SAME: Final = frozenset(  # functions whose result is their argument, or nearly so
    (
        *("real", "exact", "whole", "long", "unsigned", "to_whole", "to_long", "to_unsigned"),
        *("half", "floor", "ceil", "rint", "relu", "max", "min"),
    )
)
_DIVIDES: Final = frozenset(("div", "mod", "remainder"))
_DOMAINS: Mapping[str, ValueRange] = MappingProxyType(
    {
        "log": ValueRange(LEAST, weight=WANTED),
        "reciprocal": ValueRange(LEAST, weight=WANTED),
        "sqrt": ValueRange(0, weight=WANTED),
        "acosh": ValueRange(1, weight=WANTED),
        **dict.fromkeys(("asin", "acos", "atanh"), ValueRange(-0.9, 0.9, weight=WANTED)),
    }
)
_MIRRORED: Mapping[str, str] = MappingProxyType(  # comparisons with their sides exchanged
    {
        "equal": "equal", "not_equal": "not_equal", "less": "greater", "greater": "less",
        "less_equal": "greater_equal", "greater_equal": "less_equal",
    }
)  # fmt: skip
_DENIED: Mapping[str, str] = MappingProxyType(  # comparisons that hold where the others do not
    {
        "equal": "not_equal", "not_equal": "equal", "less": "greater_equal",
        "greater_equal": "less", "greater": "less_equal", "less_equal": "greater",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Known:
    """The least and the greatest of numbers that are known; ``several``: they differ."""

    low: float
    high: float
    step: bool = False  # the number of a loop's step

    @property
    def several(self) -> bool:
        return self.low < self.high


def input_ranges(program: Program) -> dict[str, ValueRange]:
    """The ranges of inputs of which the program's stages need one, by name."""
    search = _RangeSearch(program)
    search.visit(program.stages)
    return {name: search.ranges[name] for name in program.inputs if name in search.ranges}


@dataclass(slots=True)
class _RangeSearch:
    """Tensors with what is needed of them so far; stages are visited from the last to the first."""

    program: Program
    ranges: dict[str, ValueRange] = field(default_factory=dict)
    extents: dict[str, int] = field(default_factory=dict)  # of the iterators of the stage
    bounds: dict[str, _Known] = field(default_factory=dict)  # of constants, once they are asked

    def note(self, tensor: str, wanted: ValueRange | None) -> None:
        if wanted is not None and tensor not in self.program.constants:
            known = self.ranges.get(tensor)
            self.ranges[tensor] = known.join(wanted) if known else wanted

    def visit(self, stages: Sequence[Stage]) -> None:
        for stage in reversed(stages):
            self.extents |= self._axes(stage)
            match stage:
                case JointLoops():
                    self.visit(stage.members)
                case LoopStage() | UpdateStage():
                    self._visit_expression(stage)
                case ViewStage():
                    self.note(stage.source, self.ranges.get(stage.output))
                case ConcatStage():
                    for part in stage.parts:
                        self.note(part, self.ranges.get(stage.output))
                case RepeatStage():
                    self._visit_steps(stage)
                case ChoiceStage():
                    self._visit_choice(stage)
                case BranchStage():
                    self.note(stage.condition, truth(True, GUESSED))
                case _:
                    pass  # a layer or a routine: any numbers will do

    def _axes(self, stage: Stage) -> dict[str, int]:
        """The iterators of a stage's elements."""
        if isinstance(stage, UpdateStage):
            return {f"i{at}": size for at, size in enumerate(stage.extents)}
        if not stage.outputs:
            return {}
        shape = self.program.values[stage.outputs[0]].shape
        return {f"i{at}": size for at, size in enumerate(shape)}

    def _visit_expression(self, stage: LoopStage | UpdateStage) -> None:
        whole: tuple[Expr, ...] = (stage.expr,)
        if isinstance(stage, UpdateStage):
            whole = (Load(stage.output, stage.index), stage.expr)
        for expr in whole:
            for part in walk(expr):
                if isinstance(part, Reduce):
                    self.extents |= dict(part.over)
            for part in walk(expr):
                for inner, wanted in self._needs(part):
                    self._push(inner, wanted)
            if (own := self.ranges.get(stage.output)) and not isinstance(stage, UpdateStage):
                self._push(expr, own)

    def _visit_steps(self, stage: RepeatStage) -> None:
        """The last step's needs, then those of what it began with."""
        for view in stage.writes:
            self.note(view.inner, self.ranges.get(view.outer))
        self.extents[STEP] = stage.count
        for _ in range(2 if stage.carried else 1):  # what a step needs, the one before it makes
            self.visit(stage.members)
            for held in stage.carried:
                self.note(held.following, self.ranges.get(held.inner))
        for view in stage.reads:
            self.note(view.outer, self.ranges.get(view.inner))
        for held in stage.carried:
            self.note(held.state, self.ranges.get(held.inner))

    def _visit_choice(self, stage: ChoiceStage) -> None:
        for name, then, otherwise in zip(stage.outputs, stage.then, stage.otherwise, strict=True):
            self.note(then, self.ranges.get(name))
            self.note(otherwise, self.ranges.get(name))

    def _needs(self, expr: Expr) -> Iterator[tuple[Expr, ValueRange]]:
        """Yield what an expression by itself needs of those inside it."""
        match expr:
            case Load(_, index):
                for at in index:
                    if isinstance(at, Computed):
                        yield at.at, ValueRange(0, at.extent - 1, whole=True)
            case Apply(function, (_, divisor)) if function in _DIVIDES:
                yield divisor, ValueRange(LEAST, weight=WANTED)
            case Apply("pow", (base, exponent)) if self._bounds(exponent) is None:
                yield base, ValueRange(0, weight=WANTED)
            case Apply("shift_left" | "shift_right", (_, bits)):
                yield bits, ValueRange(0, 7, whole=True)
            case Apply(function, (argument,)) if function in _DOMAINS:
                yield argument, _DOMAINS[function]
            case Apply("select", (condition, then, otherwise)):
                out = [self._leaves_out(side) for side in (then, otherwise)]
                weight = WANTED if out[0] != out[1] else GUESSED
                yield condition, truth(not out[0], weight)
            case Apply("add", (Apply("mul", (factor, scale)), shift)):
                slope, offset = self._bounds(scale), self._bounds(shift)
                if slope and offset and slope.low >= HUGE and offset.high == -slope.low:
                    yield factor, truth(True, WANTED)  # 0 for what counts, else hugely negative
            case Apply("mul", (left, right)):
                for factor, number in ((left, right), (right, left)):
                    if self._leaves_out(number):
                        yield factor, truth(False, WANTED)
            case Apply("and" | "or", arguments):
                for argument in arguments:
                    yield argument, truth(True, GUESSED)
            case Apply(function, (left, right)) if function in _MIRRORED:
                yield from self._compares(function, left, right)
                yield from self._compares(function, right, left)

    def _compares(
        self, function: str, expr: Expr, other: Expr
    ) -> Iterator[tuple[Expr, ValueRange]]:
        """Guess numbers for what is compared, where nothing says how it is to turn out."""
        known = self._bounds(other)
        if known is None or self._bounds(expr) is not None:
            return
        if known.step:
            yield expr, ValueRange(1, min(known.high + 1, MOST_STEPS), (), WANTED)
        elif known.several and function == "equal":  # one of these positions
            yield expr, ValueRange(known.low, known.high, (), WANTED, whole=True)
        elif known.several:  # positions, as of the elements before the end of a sequence
            yield expr, ValueRange(known.high + 1, known.high + 1, (), GUESSED)
        elif 0 <= known.low <= 1:
            yield expr, truth(True, GUESSED)

    def _leaves_out(self, side: Expr) -> bool:
        """Return whether an element is so low that nothing that follows counts it."""
        known = self._bounds(side)
        return known is not None and known.high <= -HUGE

    def _push(self, expr: Expr, wanted: ValueRange) -> None:
        """Take what is needed of an expression to the tensors in it."""
        match expr:
            case Load(tensor, _):
                self.note(tensor, wanted)
            case Where(_, body, otherwise):
                self._push(body, wanted)
                self._push(otherwise, wanted)
            case Reduce("max" | "min", _, body, _):
                self._push(body, wanted)
            case Apply("select", (_, *values)):
                for value in reversed(values):  # the first of two places counts from the end
                    self._push(value, wanted)
            case Apply("and" | "or", arguments) if wanted.single:
                for argument in arguments:
                    self._push(argument, wanted)
            case Apply("not", (argument,)) if wanted.single:
                self._push(argument, truth(not wanted.low, wanted.weight))
            case Apply(function, (left, right)) if function in _MIRRORED:
                if wanted.single and wanted.weight > GUESSED:
                    own = function if wanted.low else _DENIED[function]
                    self._compare(own, left, right, wanted.weight)
                    self._compare(_MIRRORED[own], right, left, wanted.weight)
            case Apply(function, arguments) if function in _SAME:
                for argument in arguments:
                    self._push(argument, wanted)
            case Apply("neg", (argument,)):
                self._push(argument, replace(wanted, low=-wanted.high, high=-wanted.low))
            case Apply("add" | "sub" | "mul" | "div" as function, (left, right)):
                self._push_arithmetic(function, left, right, wanted)

    def _compare(self, function: str, expr: Expr, other: Expr, weight: int) -> None:
        """``function(expr, other)`` is to hold."""
        known = self._bounds(other)
        if known is None or self._bounds(expr) is not None or known.step:
            return
        low, high, without = -inf, inf, tuple[float, ...]()
        match function:
            case "equal":
                low, high = known.low, known.high
            case "not_equal" if not known.several:
                without = (known.low,)
            case "greater":
                low = floor(known.high) + 1
            case "greater_equal":
                low = ceil(known.high)
            case "less":
                high = ceil(known.low) - 1
            case "less_equal":
                high = floor(known.low)
        if known.several and function in ("greater", "greater_equal"):
            high = low  # a length that reaches the last position
        if (low, high, without) != (-inf, inf, ()):
            self._push(expr, ValueRange(low, high, without, weight))

    def _push_arithmetic(self, function: str, left: Expr, right: Expr, wanted: ValueRange) -> None:
        first, second = self._bounds(left), self._bounds(right)
        if first is None and second is None:
            if function == "add" and wanted.weight == NEEDED:  # a place by two parts
                for part in (left, right):
                    self._push(part, replace(wanted, high=wanted.high // 2))
            return
        if first is not None and second is not None:
            return
        known = second if first is None else first
        assert known is not None
        invert = _INVERSES[function, second is not None]
        if function in ("mul", "div") and (known.several or known.low == 0):
            return
        low, high = invert(wanted.low, wanted.high, known)
        if function in ("mul", "div") and known.low < 0:
            low, high = high, low
        without = tuple(
            min(invert(value, value, known)) for value in wanted.without if not known.several
        )
        changed = replace(wanted, low=low, high=max(low, high), without=without)
        self._push(left if second is not None else right, changed)

    def _bounds(self, expr: Expr) -> _Known | None:
        """The least and the greatest number that an expression can be, if that is known."""
        match expr:
            case Number(value):
                return _Known(value, value)
            case Position(at):
                return self._reach(at)
            case Load(tensor, _) if tensor in self.program.constants:
                if tensor not in self.bounds:
                    array = self.program.constants[tensor]
                    if not array.size or array.dtype.kind not in "biuf":
                        return None
                    self.bounds[tensor] = _Known(float(array.min()), float(array.max()))
                return self.bounds[tensor]
            case Apply(function, (argument,)) if function in _SAME:
                return self._bounds(argument)
            case _:
                return None

    def _reach(self, at: Affine) -> _Known | None:
        """The least and the greatest value of a form in iterators."""
        if any(name not in self.extents for name, _ in at.terms):
            return None
        ends = [coef * (self.extents[name] - 1) for name, coef in at.terms]
        low = at.const + sum(end for end in ends if end < 0)
        high = at.const + sum(end for end in ends if end > 0)
        return _Known(low, high, any(name == STEP for name, _ in at.terms))


_Invert = Callable[[float, float, _Known], tuple[float, float]]
# (function, whether its second argument is known) -> the range of the other argument, whatever the
# known one is.
_INVERSES: Mapping[tuple[str, bool], _Invert] = MappingProxyType(
    {
        **dict.fromkeys(
            (("add", True), ("add", False)),
            lambda low, high, known: (low - known.low, high - known.high),
        ),
        ("sub", True): lambda low, high, known: (low + known.high, high + known.low),
        ("sub", False): lambda low, high, known: (known.high - high, known.low - low),
        **dict.fromkeys(
            (("mul", True), ("mul", False)),
            lambda low, high, known: (low / known.low, high / known.low),
        ),
        ("div", True): lambda low, high, known: (low * known.low, high * known.low),
        ("div", False): lambda low, high, known: (-inf, inf),
    }
)
