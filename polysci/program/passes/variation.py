"""Rules of sizes that a run is told: where loops end, and what layers clear.

A program with ``spans`` is that of their last sizes, and tensors are stored so. Of an axis that
varies the first elements count, as many as the size; what lies behind them is anything. So every
element that counts must be made of such elements alone:

* a loop reads an axis that varies along an iterator of its own, which ends at the size, or at
  places that lie before the end for all sizes, as isl proves with the guards around them;
* a layer may compute whole tiles behind the end. Where it reduces over such an axis, zeros stand
  behind the end of both factors; where windows move along it, behind the end of x.

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
from polysci.polyhedral.contraction import Contraction, Operand
from polysci.program.control import SIZE
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.relations import guarded_loads, is_within
from polysci.program.stages import (
    JointLoops,
    LayerStage,
    LoopStage,
    MergedAxis,
    Program,
    Stage,
    UpdateStage,
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

    def __post_init__(self) -> None:
        self.program = self.placed.program
        self.axes = dict(self.program.varying)
        self.merged = dict(self.program.merged)
        if self.program.resizes:
            known = {*self.axes, *self.merged, *self.program.constants}
            for stage in self.program.stages:
                for member in members_of(stage):
                    self.visit(member, known)

    def refuse(self, size: str, stage: str, rule: str) -> VaryingSizeError:
        """Return the error of a stage, which names a size that runs are told."""
        own = self.program.derived.get(size)
        return VaryingSizeError(own.names[0] if own else size, stage, rule)

    def of(self, tensor: str) -> Mapping[int, str]:
        """Return the axes of a tensor that vary, and their sizes."""
        return self.axes.get(tensor, {})

    def visit(self, stage: Stage, known: set[str]) -> None:
        """Learn the axes of what a stage makes. Raises VaryingSizeError."""
        if isinstance(stage, LoopStage):
            if stage.output not in known:
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
        elif isinstance(stage, UpdateStage):
            self.update(stage)
        else:
            names = (*stage.outputs, *stage.inputs)
            sizes = [size for name in names for size in self.of(name).values()]
            sizes += [own.size for name in names for own in self.merged.get(name, {}).values()]
            if sizes and not isinstance(stage, JointLoops):
                raise self.refuse(sizes[0], stage.name, "its code is of one size")

    # Loops.

    def iterators(self, stage: LoopStage) -> dict[str, str]:
        """Return the iterators that run along axes that vary, and their sizes.

        Those of tensors that passes made run along a whole axis which go as far as its size where
        that is largest.
        """
        ends = {f"i{at}": size for at, size in self.of(stage.output).items()}
        made, shape = {*ends}, self.program.values[stage.output].shape
        extents = {f"i{at}": extent for at, extent in enumerate(shape)}
        for load in loads(stage.expr):
            for at, size in self.of(load.tensor).items():
                name = single(load.index[at])
                if name in made or extents.get(name) != self.program.spans[size][-1]:
                    continue
                if ends.setdefault(name, size) != size:
                    raise self.refuse(size, stage.name, f"it also runs along {ends[name]}")
        for part in walk(stage.expr):
            if isinstance(part, Reduce):
                ends |= dict(part.ends)
        return ends

    def merged_axes(self, stage: LoopStage) -> dict[int, MergedAxis]:
        """Return the axes that a loop makes of merged ones. Raises VaryingSizeError."""
        axes: dict[int, MergedAxis] = {}
        for load in loads(stage.expr):
            for at, own in self.merged.get(load.tensor, {}).items():
                name = single(load.index[at])
                if not name.startswith("i") or axes.setdefault(int(name[1:]), own) != own:
                    rule = f"it reads {load.tensor} at {load.index[at]} along {own}"
                    raise self.refuse(own.size, stage.name, rule)
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
                raise self.refuse(own.size, stage.name, f"axis {at} of it is no {own}")
        for load, conditions in guarded_loads(stage.expr):
            for at, size in self.of(load.tensor).items():
                if ends.get(single(load.index[at])) != size:
                    self.check_place(stage, load, at, ends, extents, conditions)
        for part in walk(stage.expr):
            if isinstance(part, Reduce):
                self.check_reduction(stage, part, ends)
        return ends

    def known_sizes(self) -> tuple[str, ...]:
        """Return the variables of all sizes, each behind what is known of it, as isl has it."""
        program, texts = self.program, list[str]()
        told = {name: size_name(program, name) for name in program.spans}
        for name, span in program.spans.items():
            own = program.derived.get(name)
            known = f"= floor({own.text(told)})" if own else f">= {span[0]}"
            texts += [f"{told[name]} {known} and {told[name]} <= {span[-1]}", told[name]]
        return tuple(texts)

    def update(self, stage: UpdateStage) -> dict[str, str]:
        """Return the iterators of an update that end at a size, and their sizes."""
        ends = dict(stage.ends)
        extents = {f"i{at}": size for at, size in enumerate(stage.extents)}
        for part in (Load(stage.output, stage.index), stage.expr):
            for load, conditions in guarded_loads(part):
                for at in self.of(load.tensor):
                    self.check_place(stage, load, at, ends, extents, conditions)
                for own in self.merged.get(load.tensor, {}).values():
                    raise self.refuse(own.size, stage.name, f"it reads or writes along {own}")
        return ends

    def extents(self, stage: LoopStage) -> dict[str, int]:
        shape = self.program.values[stage.output].shape
        extents = {f"i{at}": extent for at, extent in enumerate(shape)}
        for part in walk(stage.expr):
            if isinstance(part, Reduce):
                extents |= dict(part.over)
        return extents

    def check_place(
        self, stage: LoopStage | UpdateStage, load: Load, at: int, ends: Mapping[str, str],
        extents: Mapping[str, int], conditions: tuple[str, ...],
    ) -> None:  # fmt: skip
        """Raise VaryingSizeError for a subscript that may be behind an axis' end."""
        index, size = load.index[at], self.of(load.tensor)[at]
        domain = tuple(
            (name, self.variable(ends[name]) if name in ends else str(extent))
            for name, extent in extents.items()
        )
        if isinstance(index, Affine) and is_within(
            index, self.variable(size), domain, conditions, self.known_sizes()
        ):
            return
        rule = f"it reads {load.tensor} at {index} of {size} elements"
        raise self.refuse(size, stage.name, rule)

    def check_reduction(self, stage: LoopStage, part: Reduce, ends: Mapping[str, str]) -> None:
        """Raise VaryingSizeError for places in two axes, one of which ends at a size."""
        for name, _ in part.over:
            if part.function in PLACES and len(part.over) > 1 and name in ends:
                raise self.refuse(ends[name], stage.name, "it looks for a place in two axes")

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
                    raise self.refuse(size, stage.name, f"it takes a part of {window.tensor}")
        moving = dict(self.windows(stage, roles))
        groups = [dict(self.groups(stage, *window, moving)) for window in windows]
        made = {name for index in roles.out.index for name, _ in index.terms}
        ends, cleared = dict[str, tuple[str, int]](), [*moving.values()]
        for dim in dict.fromkeys(name for own in groups for name in own):
            operands = [
                its for its, (*_, operand) in enumerate(windows)
                if operand.uses(dim) and (its or dim not in moving)
            ]  # fmt: skip
            kinds = {tuple((extent, size) for _, extent, size in groups[at].get(dim, ()))
                     for at in operands}  # fmt: skip
            axes = next(own[dim] for own in groups if dim in own)
            size = next(size for _, _, size in axes if size)
            if len(kinds) > 1:
                raise self.refuse(size, stage.name, f"its operands share {dim}, not its size")
            pure = [size for _, _, size in axes if size in self.program.spans]
            if axes[0][2] and pure and not any(inner for _, _, inner in axes[1:]):
                ends[dim] = (size, prod(extent for _, extent, _ in axes[1:]))
            if dim in made:
                continue
            if len(axes) > 1 or not pure:
                size = pure[0] if pure else size.split(" x ")[1]
                raise self.refuse(size, stage.name, f"it reduces over {dim} of several axes")
            cleared += [(windows[at][0], groups[at][dim][0][0]) for at in operands]
        return LayerEnds(ends, tuple(cleared), self.parts(stage))

    def windows(
        self, stage: LayerStage, roles: Contraction
    ) -> Iterator[tuple[str, tuple[str, int]]]:
        """Yield dimensions of y along which windows of x move, with x and its axis that varies.

        What a window reads behind the end of x counts as padding: zeros stand there.
        """
        varying = self.of(stage.x.tensor)
        made = {name for index in roles.out.index for name, _ in index.terms}
        for own, index in zip(stage.x.axes, roles.a.index, strict=False):
            sizes = [varying[at] for at in own if at in varying]
            moves = [name for name, _ in index.terms if name in made]
            dims = [name for name, _ in index.terms if self.extent(stage, name) > 1]
            pure = dims == moves and index.coef(moves[0]) == 1 and not index.const
            if not sizes or not moves or pure:
                continue
            if len(own) > 1 or len(moves) > 1 or stage.x_zero:
                rule = f"it reads windows of {stage.x.tensor} along {sizes[0]}"
                raise self.refuse(sizes[0], stage.name, rule)
            yield moves[0], (stage.x.tensor, own[0])

    def parts(self, stage: LayerStage) -> tuple[str, int] | None:
        """Return the size that ends the products of a stack; None where their number is fixed."""
        axes = {at for own in stage.y.axes for at in own}
        for at, merged in self.merged.get(stage.output, {}).items():
            if at not in axes:
                raise self.refuse(merged.size, stage.name, f"it runs for each of {merged}")
        outer = {at: size for at, size in self.of(stage.output).items() if at not in axes}
        if not outer:
            return None
        shape = self.program.values[stage.output].shape
        (at, size), *others = outer.items()
        if others or not stage.stack or prod(shape[:at]) > 1:
            raise self.refuse(size, stage.name, f"axis {at} of {stage.output} is no outermost")
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
            raise self.refuse(size, stage.name, f"its weights {stage.weights} vary")
        axes = ((last - 1,), (last,)) if stage.w[0] == row else ((last,), (last - 1,))
        return (*axes, (), ())

    def groups(
        self,
        stage: LayerStage,
        tensor: str,
        axes: Axes,
        operand: Operand,
        moving: Mapping[str, tuple[str, int]],
    ) -> Iterator[tuple[str, Sequence[tuple[int, int, str]]]]:
        """Yield the dimensions that run along axes that vary.

        And those axes that are more than an element long: number, extent, size or an empty text.
        """
        merged = {at: str(own) for at, own in self.merged.get(tensor, {}).items()}
        varying, shape = {**self.of(tensor), **merged}, self.program.values[tensor].shape
        for own, index in zip(axes, operand.index, strict=False):
            sizes = [varying[at] for at in own if at in varying]
            if not sizes or (tensor, own[0]) in moving.values():
                continue
            dims = [name for name, _ in index.terms if self.extent(stage, name) > 1]
            if len(dims) != 1 or index.coef(dims[0]) != 1 or index.const:
                rule = f"it reads windows of {tensor} along {sizes[0]}"
                raise self.refuse(sizes[0], stage.name, rule)
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
