"""The places of tensors: buffers, views of them, parts of concatenations written in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from polysci.loop_ir.expressions import Load
from polysci.numerics.affine import Affine
from polysci.numerics.dtypes import precision_named
from polysci.ops.problem import Problem
from polysci.program.control import ELSE, END, IF, STEP, BranchStage
from polysci.program.passes.concat import ConcatPart, hosts
from polysci.program.passes.in_place import replaces_in_place
from polysci.program.passes.operands import Rows, operands_of
from polysci.program.stages import (
    ConcatStage,
    LayerStage,
    LoopStage,
    MergedAxis,
    Program,
    RepeatStage,
    RoutineStage,
    Stage,
    UpdateStage,
    Value,
    ViewStage,
    Window,
    fresh_name,
)

_WIDE = {"bf16": "float32"}  # element types that routines do not take, and what they take instead


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """Elements of a buffer, which has the name of a tensor: the first one, and strides by axis.

    ``step`` is how many elements further on the next step of a RepeatStage finds them.
    """

    buffer: str
    first: int
    strides: tuple[int, ...]
    dtype: str
    step: int = 0


@dataclass(frozen=True, slots=True)
class PlacedProgram:
    """A program of layers, loops and row fusions, and where every tensor lies.

    ``row_counts``, by buffer: as how many rows it counts in row fusions, if not as those of its
    slowest axis.
    """

    program: Program
    places: Mapping[str, BufferPlace]
    row_counts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def buffers_of(self, names: Iterable[str]) -> set[str]:
        """The buffers that hold tensors by these names; constants lie in none."""
        return {self.places[name].buffer for name in names if name in self.places}

    def must_keep_order(self, first: Stage, second: Stage) -> bool:
        """Return whether one of two stages writes what the other one uses."""
        written, read = self.buffers_of(first.outputs), self.buffers_of(first.inputs)
        own = self.buffers_of(second.outputs)
        return bool(written & self.buffers_of(second.inputs) or (written | read) & own)

    def rows_of(self, name: str) -> Rows | None:
        """Return a tensor as rows where it lies; None where it has no such rows."""
        place = self.places[name]
        count = self.row_counts.get(place.buffer, 0)
        return Rows.of(self.program.values[name].shape, place.strides, count)

    def lines(self) -> Iterator[str]:
        """Return the lines of the program, and where tensors lie that are part of others."""
        yield from self.program.lines()
        for name, place in self.places.items():
            if place.buffer != name:
                yield f"  {name} lies in {place.buffer}, from element {place.first} on"


def place_buffers(program: Program) -> PlacedProgram:
    """Return every tensor's place, with copies where a view, a concat or an operand needs one."""
    placer = _Placer(program, hosts(program))
    for stage in program.stages:
        placer.add(stage)
    done = replace(
        program, values=placer.values, stages=tuple(placer.stages), varying=placer.varying,
        merged=placer.merged,
    )  # fmt: skip
    used = done.with_stages(done.stages)
    buffers = PlacedProgram(used, placer.places).buffers_of(used.values)
    known = {*used.values, *buffers}  # what only views of it name is memory as well
    values = {name: value for name, value in done.values.items() if name in known}
    constants = {name: value for name, value in done.constants.items() if name in known}
    return PlacedProgram(replace(used, values=values, constants=constants), placer.places)


@dataclass(slots=True)
class _Placer:
    program: Program
    parts: dict[str, ConcatPart]
    stages: list[Stage] = field(default_factory=list)
    places: dict[str, BufferPlace] = field(default_factory=dict)
    values: dict[str, Value] = field(init=False)
    varying: dict[str, Mapping[int, str]] = field(init=False)
    merged: dict[str, Mapping[int, MergedAxis]] = field(init=False)
    copies: dict[tuple[str, tuple[int, ...], str], str] = field(default_factory=dict)
    outside: list[dict[tuple[str, tuple[int, ...], str], str]] = field(default_factory=list)
    written: set[str] = field(init=False)  # outputs, of the program and of steps

    def __post_init__(self) -> None:
        self.values = dict(self.program.values)
        self.varying = dict(self.program.varying)
        self.merged = dict(self.program.merged)
        self.written = {*self.program.outputs}
        for name, replaced in self.program.in_place.items():
            self.places[replaced] = self.place_of(name)

    def place_of(self, name: str) -> BufferPlace:
        """The place of a tensor: inside another one, or a buffer of its own."""
        if name not in self.places:
            part, value = self.parts.get(name), self.values[name]
            if part:
                whole = self.place_of(part.whole)
                first = whole.first + part.first * whole.strides[part.axis]
                self.places[name] = replace(whole, first=first)
            else:
                self.places[name] = BufferPlace(name, 0, value.strides, value.dtype)
        return self.places[name]

    def add(self, stage: Stage) -> None:
        match stage:
            case LayerStage():
                self.layer(stage)
            case LoopStage() | UpdateStage():
                self.stages.append(stage)
                for name in (stage.output, *stage.inputs):
                    self.place_of(name)
            case ViewStage():
                self.view(stage)
            case ConcatStage():
                self.concat(stage)
            case RoutineStage():
                self.routine(stage)
            case RepeatStage():
                self.repeat(stage)
            case BranchStage():
                self.branch(stage)

    def branch(self, stage: BranchStage) -> None:
        """Copies that are made on one side are there on that side alone."""
        if stage.part == IF:
            self.outside.append(dict(self.copies))
        elif stage.part in (ELSE, END):
            self.copies = dict(self.outside[-1])
        if stage.part == END:
            self.outside.pop()
        self.place_of(stage.condition)
        self.stages.append(stage)

    def repeat(self, stage: RepeatStage) -> None:
        """Place what a step reads and writes in the tensors around it."""
        for view in (*stage.reads, *stage.writes):
            rank = len(self.values[view.inner].shape)
            self.places[view.inner] = resolve_view(view.index, self.place_of(view.outer), rank)
        copied = list[LoopStage]()
        for held in stage.carried:
            place = self.places[held.inner] = self.place_of(held.state)
            if replaces_in_place(stage, held, self.program):
                self.places[held.following] = place
            else:
                duplicate = self.fresh(held.inner, self.values[held.inner])
                self.places[duplicate] = place
                copied.append(self.move(f"carry {held.inner}", duplicate, held.following))
        self.written |= {*stage.results}
        outside = dict(self.copies)
        around, self.stages = self.stages, list[Stage]()
        for member in stage.members:
            self.add(member)
        members = (*self.stages, *copied)
        for copy in copied:
            self.place_of(copy.inputs[0])
        self.stages = [*around, replace(stage, members=members)]
        if stage.breaks:
            self.copies = outside

    def fresh(self, base: str, like: Value, **changes: object) -> str:
        name = fresh_name(base, self.values, "copy")
        self.values[name] = replace(like, name=name, **changes)  # type: ignore[arg-type]
        if like.shape == self.values[base].shape:
            if base in self.varying:
                self.varying[name] = self.varying[base]
            if base in self.merged:
                self.merged[name] = self.merged[base]
        return name

    def move(self, title: str, output: str, source: str) -> LoopStage:
        """Return the loop that moves every element of a tensor to another one."""
        return LoopStage(title, output, self.values[source].elements)

    def copy(self, name: str, order: tuple[int, ...], dtype: str) -> str:
        """A copy of a tensor in a buffer of its own, made once."""
        key = (name, order, dtype)
        if key not in self.copies:
            duplicate = self.fresh(name, self.values[name], order=order, dtype=dtype)
            self.stages.append(self.move(f"copy {name}", duplicate, name))
            self.place_of(duplicate)
            self.copies[key] = duplicate
        return self.copies[key]

    def view(self, stage: ViewStage) -> None:
        source, shape = self.place_of(stage.source), self.values[stage.output].shape
        if stage.output in self.written:  # it must be written for the caller
            self.materialise(stage)
            return
        if stage.index is None:
            strides = reshape(self.values[stage.source].shape, source.strides, shape)
            if strides is None:
                plain = tuple(range(len(self.values[stage.source].shape)))
                copy = self.copy(stage.source, plain, source.dtype)
                source = self.place_of(copy)
                strides = reshape(self.values[copy].shape, source.strides, shape)
            assert strides is not None
            self.places[stage.output] = replace(source, strides=strides)
        else:
            self.places[stage.output] = resolve_view(stage.index, source, len(shape))
        value = self.values[stage.output]
        self.values[stage.output] = replace(value, dtype=source.dtype)

    def materialise(self, stage: ViewStage) -> None:
        """A view that is an output: its elements are moved."""
        if stage.index is None:
            inner = self.fresh(stage.output, self.values[stage.output])
            self.view(ViewStage(stage.name, inner, stage.source))
            self.stages.append(self.move(stage.name, stage.output, inner))
        else:
            self.stages.append(LoopStage(stage.name, stage.output, Load(stage.source, stage.index)))
        self.place_of(stage.output)

    def concat(self, stage: ConcatStage) -> None:
        """Copy the parts that are not there already."""
        place, first = self.place_of(stage.output), 0
        for name in stage.parts:
            part = self.parts.get(name)
            if part is None or part != ConcatPart(stage.output, stage.axis, first):
                duplicate = self.fresh(name, self.values[name], dtype=place.dtype)
                start = place.first + first * place.strides[stage.axis]
                self.places[duplicate] = replace(place, first=start)
                self.place_of(name)
                self.stages.append(self.move(f"{stage.name}: {name}", duplicate, name))
            first += self.values[name].shape[stage.axis]

    def routine(self, stage: RoutineStage) -> None:
        """Inputs in row-major order and of no narrower type; such an output, or a copy of one."""
        inputs = tuple(
            self.plain(name, _WIDE.get(self.values[name].dtype, self.values[name].dtype))
            for name in stage.inputs
        )
        place, value = self.place_of(stage.output), self.values[stage.output]
        plain = replace(value, order=(), dtype=_WIDE.get(value.dtype, value.dtype))
        duplicate = stage.output
        if place.dtype != plain.dtype or place.strides != plain.strides:
            duplicate = self.fresh(stage.output, plain)
            self.place_of(duplicate)
        self.stages.append(replace(stage, output=duplicate, inputs=inputs))
        if duplicate != stage.output:
            self.stages.append(self.move(f"copy {duplicate}", stage.output, duplicate))

    def layer(self, stage: LayerStage) -> None:
        """Channels of x must be neighbours, and what counts as one axis must run on."""
        x, weights, bias = self.operand(stage.x, stage), stage.weights, stage.bias
        steps: tuple[int, ...] | None = stage.w
        if stage.w_axes:
            window = self.operand(Window(weights, stage.w_axes), stage, 1)
            weights = window.tensor
            steps = window.strides(self.values[weights].shape, self.place_of(weights).strides)
        elif stage.stack:
            if self.place_of(weights).dtype != self.kind(stage):
                weights = self.plain(weights, self.kind(stage))
            row, column = self.place_of(weights).strides[-2:]
            steps = (column, row, 1, 1) if stage.w else (row, column, 1, 1)
        elif weights not in self.program.constants:
            weights = self.plain(weights, self.kind(stage))
        if bias:
            bias = self.plain(
                bias, "int32" if precision_named(stage.problem.dtype).integer else "float32"
            )
        target, residual = self.result(stage.y, stage.problem), stage.residual
        y = self.place_of(target.tensor)
        if residual:
            own = self.place_of(residual)
            if own.dtype != y.dtype or not alike(own, y, self.values[residual].shape):
                residual = self.copy_like(residual, y)
        self.place_of(weights)
        names = (x.tensor, weights, target.tensor)
        offset = self.matrix_offset
        copies = tuple(
            (offset(names[0], at), offset(names[1], at), offset(names[2], at)) for at in stage.stack
        )
        self.stages.append(replace(
            stage, x=x, y=target, weights=weights, bias=bias, residual=residual, copies=copies,
            w=steps or (),
        ))  # fmt: skip
        if target.tensor != stage.y.tensor:
            name = stage.y.tensor
            self.stages.append(self.move(f"copy {name}", name, target.tensor))

    def plain(self, name: str, dtype: str) -> str:
        """A tensor in row-major order: itself, or a copy."""
        place, value = self.place_of(name), self.values[name]
        own = replace(value, order=(), dtype=dtype)
        whole = BufferPlace(name, 0, own.strides, dtype)
        if place.dtype == dtype and alike(place, whole, value.shape):
            return name
        return self.copy(name, tuple(range(len(value.shape))), dtype)

    def result(self, window: Window, problem: Problem) -> Window:
        """Return where a layer writes: elsewhere, if merged axes do not run on there."""
        value = self.values[window.tensor]
        if window.strides(value.shape, self.place_of(window.tensor).strides) is not None:
            return window
        _, _, y = operands_of(problem)
        order = tuple(at for axis in y.order for at in window.axes[axis])
        missing = tuple(at for at in range(len(value.shape)) if at not in order)
        duplicate = self.fresh(window.tensor, value, order=(*missing, *order))
        self.place_of(duplicate)
        return replace(window, tensor=duplicate)

    def matrix_offset(self, name: str, at: Sequence[int]) -> int:
        """Elements before the matrix of a stack that broadcasts to a place in the whole stack."""
        outer, strides = self.values[name].shape[:-2], self.place_of(name).strides
        inner = at[len(at) - len(outer) :]
        triples = zip(outer, inner, strides, strict=False)
        return sum(position * step for size, position, step in triples if size > 1)

    def copy_like(self, name: str, y: BufferPlace) -> str:
        """A copy whose elements lie as far apart as those of another place."""
        value = self.values[name]
        order = tuple(int(at) for at in np.argsort([-step for step in y.strides], kind="stable"))
        own = BufferPlace(name, 0, replace(value, order=order).strides, y.dtype)
        if alike(own, y, value.shape):
            return self.copy(name, order, y.dtype)
        key = (name, y.strides, f"{y.dtype} beside")
        if key not in self.copies:  # as wide as the whole that y is part of
            reach = sum((n - 1) * s for n, s in zip(value.shape, y.strides, strict=True)) + 1
            room = self.fresh(name, Value("", (reach,), y.dtype))
            duplicate = self.copies[key] = self.fresh(name, value, dtype=y.dtype)
            self.places[duplicate] = replace(y, buffer=room, first=0, step=0)
            self.stages.append(self.move(f"copy {name}", duplicate, name))
        return self.copies[key]

    def kind(self, stage: LayerStage) -> str:
        """The element type that a layer reads."""
        narrow = "bf16" if stage.problem.dtype.startswith("bf16") else None
        own = self.values[stage.x.tensor].dtype
        return narrow or ("float32" if stage.problem.dtype == "f32" else own)

    def operand(self, window: Window, stage: LayerStage, number: int = 0) -> Window:
        """A factor of a layer: where it lies, or a copy with the problem's neighbours."""
        place, value = self.place_of(window.tensor), self.values[window.tensor]
        kind = self.kind(stage)
        strides = window.strides(value.shape, place.strides)
        x = operands_of(stage.problem)[number]
        neighbours = strides is not None and (strides[x.fastest] == 1 or x.shape[x.fastest] == 1)
        if neighbours and place.dtype == kind:
            return window
        order = tuple(at for axis in x.order for at in window.axes[axis])
        missing = tuple(at for at in range(len(value.shape)) if at not in order)
        if stage.stack:
            missing, order = (), tuple(range(len(value.shape)))
        return replace(window, tensor=self.copy(window.tensor, (*missing, *order), kind))


def alike(place: BufferPlace, other: BufferPlace, shape: Sequence[int]) -> bool:
    """Return whether elements lie equally far apart in both."""
    pairs = zip(place.strides, other.strides, shape, strict=True)
    return all(a == b for a, b, size in pairs if size > 1)


def reshape(
    shape: Sequence[int], strides: Sequence[int], new: Sequence[int]
) -> tuple[int, ...] | None:
    """Strides of the same elements under another shape; None where they must be moved."""
    if 0 in shape:
        return tuple(0 for _ in new)
    runs: list[tuple[int, int]] = []  # extent and stride of what runs on, outer first
    for size, step in zip(shape, strides, strict=True):
        if size == 1:
            continue
        outer = runs.pop()[0] if runs and runs[-1][1] == size * step else 1
        runs.append((outer * size, step))
    steps: list[int] = []
    for size in reversed(new):
        if size == 1:
            steps.append(runs[-1][1] if runs else 1)
            continue
        extent, step = runs.pop()
        if extent % size:
            return None
        steps.append(step)
        if extent > size:
            runs.append((extent // size, step * size))
    return tuple(reversed(steps))


def resolve_view(index: Sequence[Affine], source: BufferPlace, rank: int) -> BufferPlace:
    """Return where the elements ``source[index(i..)]`` lie."""
    first, strides, step = source.first, [0] * rank, source.step
    for at, subscript in enumerate(index):
        first += subscript.const * source.strides[at]
        for name, coef in subscript.terms:
            if name == STEP:
                step += coef * source.strides[at]
            else:
                strides[int(name[1:])] += coef * source.strides[at]
    return replace(source, first=first, strides=tuple(strides), step=step)
