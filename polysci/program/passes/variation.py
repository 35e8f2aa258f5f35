"""Rules of sizes that a run is told: where loops end, and what layers clear.

A program with ``spans`` is that of their last sizes, and tensors are stored so. Of an axis that
varies the first elements count, as many as the size; what lies behind them is anything. So every
element that counts must be made of such elements alone:

* a loop reads an axis that varies along an iterator of its own, which ends at the size, or at
  places that all sizes have;
* a layer may compute whole tiles behind the end. Where it reduces over such an axis, zeros stand
  behind the end of both factors.

What breaks a rule is refused by the name of its stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from polysci.errors import UnsupportedError
from polysci.loop_ir.expressions import Load, Reduce, loads, walk
from polysci.loop_ir.functions import PLACES
from polysci.numerics.affine import Affine
from polysci.ops.model import model_of
from polysci.polyhedral.contraction import Operand
from polysci.program.control import SIZE
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.stages import (
    JointLoops,
    LayerStage,
    LoopStage,
    MergedAxis,
    Program,
    Stage,
    members_of,
)

Axes = tuple[tuple[int, ...], ...]  # of a tensor, for each axis of an operand


class VaryingSizeError(UnsupportedError):
    """A stage whose code depends on a size in another way than loops and layers can be told.

    ``reason`` is the message without its advice.
    """

    def __init__(self, size: str, stage: str, rule: str) -> None:
        self.reason = f"dimension {size} cannot vary: {stage}: {rule}"
        super().__init__(f"{self.reason}; list its sizes, as in {size}=64,128")


@dataclass(frozen=True, slots=True)
class LayerEnds:
    """Ends of a layer's dimensions that sizes say, and what is cleared ahead.

    ``ends``, by dimension: a size, and how many iterations each one of it counts for. ``cleared``:
    tensors, and an axis of each, behind whose end zeros stand. ``parts``: of a stack, a size and
    how many of its products each one of it counts for.
    """

    ends: Mapping[str, tuple[str, int]]
    cleared: tuple[tuple[str, int], ...] = ()
    parts: tuple[str, int] | None = None


@dataclass(slots=True)
class Variation:
    """The axes that vary of all tensors of a program, those included that passes made."""

    placed: PlacedProgram
    program: Program = field(init=False)
    axes: dict[str, Mapping[int, str]] = field(init=False)
    merged: dict[str, Mapping[int, MergedAxis]] = field(init=False)
    made: set[str] = field(default_factory=set)  # by passes: of no axis is known that it is fixed

    def __post_init__(self) -> None:
        self.program = self.placed.program
        self.axes = dict(self.program.varying)
        self.merged = dict(self.program.merged)
        if self.program.resizes:
            known = {*self.axes, *self.merged, *self.program.constants}
            for stage in self.program.stages:
                for member in members_of(stage):
                    self.visit(member, known)

    def of(self, tensor: str) -> Mapping[int, str]:
        """Return the axes of a tensor that vary, and their sizes."""
        return self.axes.get(tensor, {})

    def visit(self, stage: Stage, known: set[str]) -> None:
        """Learn the axes of what a stage makes. Raises VaryingSizeError."""
        if isinstance(stage, LoopStage):
            if stage.output not in known:
                self.made.add(stage.output)
                ends = self.iterators(stage)
                rank = len(self.program.values[stage.output].shape)
                own = {at: ends[f"i{at}"] for at in range(rank) if f"i{at}" in ends}
                if own:
                    self.axes[stage.output] = own
                if rows := self.merged_axes(stage):
                    self.merged[stage.output] = rows
            self.loop(stage)
        elif isinstance(stage, LayerStage):
            self.layer(stage)
        else:
            names = (*stage.outputs, *stage.inputs)
            sizes = [size for name in names for size in self.of(name).values()]
            sizes += [own.size for name in names for own in self.merged.get(name, {}).values()]
            if sizes and not isinstance(stage, JointLoops):
                raise VaryingSizeError(sizes[0], stage.name, "its code is of one size")

    # Loops.

    def iterators(self, stage: LoopStage) -> dict[str, str]:
        """Return the iterators that run along axes that vary, and their sizes."""
        ends = {f"i{at}": size for at, size in self.of(stage.output).items()}
        for load in loads(stage.expr):
            for at, size in self.of(load.tensor).items():
                name = single(load.index[at])
                if name and name != self.variable(size) and ends.setdefault(name, size) != size:
                    raise VaryingSizeError(size, stage.name, f"it also runs along {ends[name]}")
        return ends

    def merged_axes(self, stage: LoopStage) -> dict[int, MergedAxis]:
        """Return the axes that a loop makes of merged ones. Raises VaryingSizeError."""
        axes: dict[int, MergedAxis] = {}
        for load in loads(stage.expr):
            for at, own in self.merged.get(load.tensor, {}).items():
                name = single(load.index[at])
                if not name.startswith("i") or axes.setdefault(int(name[1:]), own) != own:
                    rule = f"it reads {load.tensor} at {load.index[at]} along {own}"
                    raise VaryingSizeError(own.size, stage.name, rule)
        return axes

    def variable(self, size: str) -> str:
        """Return the name of a size in the expressions of stages."""
        return size_name(self.program, size)

    def loop(self, stage: LoopStage | JointLoops) -> dict[str, str]:
        """Return the iterators of a loop that end at a size, and their sizes."""
        ends: dict[str, str] = {}
        for member in members_of(stage):
            assert isinstance(member, LoopStage)
            ends |= self._loop(member)
        return ends

    def _loop(self, stage: LoopStage) -> dict[str, str]:
        ends = self.iterators(stage)
        extents = self.extents(stage)
        made = self.merged.get(stage.output, {})
        for at, own in self.merged_axes(stage).items():
            if made.get(at) != own:
                raise VaryingSizeError(own.size, stage.name, f"axis {at} of it is no {own}")
        for load in loads(stage.expr):
            for at, size in self.of(load.tensor).items():
                self.check_place(stage, load, at, size, ends, extents)
        for part in walk(stage.expr):
            if isinstance(part, Reduce):
                self.check_reduction(stage, part, ends)
        return ends

    def extents(self, stage: LoopStage) -> dict[str, int]:
        shape = self.program.values[stage.output].shape
        extents = {f"i{at}": extent for at, extent in enumerate(shape)}
        for part in walk(stage.expr):
            if isinstance(part, Reduce):
                extents |= dict(part.over)
        return extents

    def check_place(
        self, stage: LoopStage, load: Load, at: int, size: str,
        ends: Mapping[str, str], extents: Mapping[str, int],
    ) -> None:  # fmt: skip
        """Raise VaryingSizeError for a subscript that may be behind an axis' end."""
        index, least = load.index[at], self.program.spans[size].start
        if ends.get(single(index)) == size:
            return
        if isinstance(index, Affine):
            fixed = tuple(term for term in index.terms if term != (self.variable(size), 1))
            if {name for name, _ in fixed} <= extents.keys() - ends.keys():
                low, high = Affine(fixed, index.const).reach(extents)
                if len(fixed) == len(index.terms) and low >= 0 and high < least:
                    return
                if len(fixed) < len(index.terms) and -least <= low and high < 0:
                    return
        rule = f"it reads {load.tensor} at {index} of {size} elements"
        raise VaryingSizeError(size, stage.name, rule)

    def check_reduction(self, stage: LoopStage, part: Reduce, ends: Mapping[str, str]) -> None:
        """Raise VaryingSizeError where nothing says whether what is reduced ends at a size."""
        spans = {span[-1]: size for size, span in self.program.spans.items() if len(span) > 1}
        fixed = {
            single(index)
            for load in loads(part.body)
            if load.tensor not in self.made
            for at, index in enumerate(load.index)
            if at not in self.of(load.tensor)
        }
        for name, extent in part.over:
            if extent in spans and name not in ends and name not in fixed:
                size = spans[extent]
                raise VaryingSizeError(size, stage.name, "it reduces over what no tensor has")
            if part.function in PLACES and len(part.over) > 1 and name in ends:
                raise VaryingSizeError(ends[name], stage.name, "it looks for a place in two axes")

    # Layers.

    def layer(self, stage: LayerStage) -> LayerEnds:
        """Return what a layer must know of sizes. Raises VaryingSizeError."""
        if not self.program.resizes:
            return LayerEnds({})
        names = (stage.x.tensor, stage.weights, stage.y.tensor)
        if not any(self.of(name) or self.merged.get(name) for name in names):
            return LayerEnds({})
        _, roles, _ = model_of(stage.problem)
        windows = [
            (stage.x.tensor, stage.x.axes, roles.a),
            (stage.weights, self.weights_axes(stage), roles.b),
            (stage.y.tensor, stage.y.axes, roles.out),
        ]
        for window in (stage.x, stage.y):
            for at, size in self.of(window.tensor).items():
                if at in window.start or at in window.step:
                    raise VaryingSizeError(size, stage.name, f"it takes a part of {window.tensor}")
        groups = [dict(self.groups(stage, *window)) for window in windows]
        made = {name for index in roles.out.index for name, _ in index.terms}
        ends, cleared = dict[str, tuple[str, int]](), list[tuple[str, int]]()
        for dim in dict.fromkeys(name for own in groups for name in own):
            operands = [its for its, (*_, operand) in enumerate(windows) if operand.uses(dim)]
            kinds = {tuple((extent, size) for _, extent, size in groups[at].get(dim, ()))
                     for at in operands}  # fmt: skip
            axes = next(own[dim] for own in groups if dim in own)
            size = next(size for _, _, size in axes if size)
            if len(kinds) > 1:
                raise VaryingSizeError(size, stage.name, f"its operands share {dim}, not its size")
            pure = [size for _, _, size in axes if size in self.program.spans]
            if axes[0][2] and pure and not any(inner for _, _, inner in axes[1:]):
                ends[dim] = (size, prod(extent for _, extent, _ in axes[1:]))
            if dim in made:
                continue
            if len(axes) > 1 or not pure:
                size = pure[0] if pure else size.split(" x ")[1]
                raise VaryingSizeError(size, stage.name, f"it reduces over {dim} of several axes")
            cleared += [(windows[at][0], groups[at][dim][0][0]) for at in operands]
        return LayerEnds(ends, tuple(cleared), self.parts(stage))

    def parts(self, stage: LayerStage) -> tuple[str, int] | None:
        """Return the size that ends the products of a stack; None where their number is fixed."""
        axes = {at for own in stage.y.axes for at in own}
        for at, merged in self.merged.get(stage.output, {}).items():
            if at not in axes:
                raise VaryingSizeError(merged.size, stage.name, f"it runs for each of {merged}")
        outer = {at: size for at, size in self.of(stage.output).items() if at not in axes}
        if not outer:
            return None
        shape = self.program.values[stage.output].shape
        (at, size), *others = outer.items()
        if others or not stage.stack or prod(shape[:at]) > 1:
            raise VaryingSizeError(size, stage.name, f"axis {at} of {stage.output} is no outermost")
        return size, len(stage.stack) // shape[at]

    def weights_axes(self, stage: LayerStage) -> Axes:
        """Return the axes of weights that vary, for each of the operand; of others none."""
        if not (own := self.of(stage.weights)):
            return ()
        if stage.w_axes:
            return stage.w_axes
        *_, row, column = self.placed.places[stage.weights].strides
        last = len(self.program.values[stage.weights].shape) - 1
        if not stage.stack or row == column:
            size = next(iter(own.values()))
            raise VaryingSizeError(size, stage.name, f"its weights {stage.weights} vary")
        axes = ((last - 1,), (last,)) if stage.w[0] == row else ((last,), (last - 1,))
        return (*axes, (), ())

    def groups(
        self, stage: LayerStage, tensor: str, axes: Axes, operand: Operand
    ) -> Iterator[tuple[str, Sequence[tuple[int, int, str]]]]:
        """Yield the dimensions that run along axes that vary.

        And those axes that are more than an element long: number, extent, size or an empty text.
        """
        merged = {at: str(own) for at, own in self.merged.get(tensor, {}).items()}
        varying, shape = {**self.of(tensor), **merged}, self.program.values[tensor].shape
        for own, index in zip(axes, operand.index, strict=False):
            sizes = [varying[at] for at in own if at in varying]
            if not sizes:
                continue
            dims = [name for name, _ in index.terms if self.extent(stage, name) > 1]
            if len(dims) != 1 or index.coef(dims[0]) != 1 or index.const:
                rule = f"it reads windows of {tensor} along {sizes[0]}"
                raise VaryingSizeError(sizes[0], stage.name, rule)
            real = [(at, shape[at], varying.get(at, "")) for at in own if shape[at] > 1]
            yield dims[0], real

    def extent(self, stage: LayerStage, dim: str) -> int:
        return next(its.extent for its in model_of(stage.problem)[1].dims if its.name == dim)


def size_name(program: Program, size: str) -> str:
    """Return the name of a size in the expressions of a program's stages."""
    return f"{SIZE}{[*program.spans].index(size)}"


def single(index: object) -> str:
    """Return the iterator that a subscript is; empty where it is something else."""
    if isinstance(index, Affine) and not index.const and len(index.terms) == 1:
        ((name, coef),) = index.terms
        return name if coef == 1 else ""
    return ""
