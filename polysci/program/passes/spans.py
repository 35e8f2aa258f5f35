"""Axes of a program that vary with a size, found by comparing it with programs of other sizes.

All of them have the same stages; what differs must be extents that are the size or made of it,
numbers and subscripts that a size explains in all programs alike, or constants of which a smaller
size has the beginning. Anything else is refused by the name of its stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

import numpy as np

from polysci.loop_ir.expressions import (
    Expr,
    Guard,
    Load,
    Where,
    axis,
    combine,
    constant,
    substitute,
    walk,
)
from polysci.numerics.affine import Affine
from polysci.ops.model import model_of
from polysci.polyhedral.contraction import Contraction
from polysci.program.control import STEP, StepView
from polysci.program.passes.relations import iterators_in
from polysci.program.passes.size_axes import OtherSize, SizeAxes, names_of
from polysci.program.passes.size_exprs import SizeSamples, join_changes
from polysci.program.passes.variation import VaryingSizeError, single, size_name
from polysci.program.stages import (
    ConcatStage,
    LayerStage,
    LoopStage,
    MergedAxis,
    Program,
    RepeatStage,
    Stage,
    UpdateStage,
    ViewStage,
)

CLOSE: Final = 1e-6  # numbers of f32 that are equal but for their rounding


def with_spans(
    program: Program, spans: Mapping[str, range], others: Sequence[OtherSize]
) -> Program:
    """Return a program for the last sizes of ``spans`` as one for all of them.

    Raises VaryingSizeError for what depends on a size in a way that has no code.
    """
    axes = SizeAxes(program, spans, others)
    axes.learn()
    for name in (*program.state, *program.in_place.values()):
        if sizes := [*axes.varying.get(name, {}).values()]:
            own = axes.derived.get(sizes[0])
            told = own.names[0] if own else sizes[0]
            raise VaryingSizeError(told, name, "what lasts from run to run has one size")
    known = replace(
        program, varying=axes.varying, derived=axes.derived,
        spans={**spans, **{name: own.span(spans) for name, own in axes.derived.items()}},
    )  # fmt: skip
    merged: dict[str, dict[int, MergedAxis]] = {}
    stages = [*program.stages]
    for name in dict.fromkeys(other.name for other in others):
        samples = [other for other in others if other.name == name]
        comparison = _Comparison(known, name, samples, axes.scaled[name])
        comparison.run()
        for tensor, rows in comparison.merged.items():
            if rows.keys() & axes.varying.get(tensor, {}).keys():
                raise VaryingSizeError(name, tensor, "an axis of it depends on several sizes")
            merged.setdefault(tensor, {}).update(rows)
        for place, stage in comparison.changed.items():
            joined = join_changes(program.stages[place], stages[place], stage)
            if joined is None:
                raise VaryingSizeError(name, stage.name, "it depends on it in several ways")
            stages[place] = joined
    whole = replace(known, merged=merged)
    return replace(whole, stages=tuple([_joined_by_loop(whole, stage) for stage in stages]))


def _joined_by_loop(program: Program, stage: Stage) -> Stage:
    """Return a concatenation along an axis that varies as a loop, which knows where parts begin."""
    if not isinstance(stage, ConcatStage):
        return stage
    along, rank = stage.axis, len(program.values[stage.output].shape)
    if along not in program.varying.get(stage.output, {}):
        return stage
    place = axis(along)
    expr: Expr | None = None
    for part in stage.parts:
        index = tuple([place if at == along else axis(at) for at in range(rank)])
        extent, load = program.values[part].shape[along], Load(part, index)
        expr = Where((Guard(place, extent),), load, expr) if expr else load
        size = program.varying.get(part, {}).get(along)
        length = combine({size_name(program, size): -1}) if size else constant(-extent)
        place = combine({"place": 1, "length": 1})
        place = substitute(place, {"place": index[along], "length": length})
    assert expr is not None
    return LoopStage(stage.name, stage.output, expr)


@dataclass(slots=True)
class _Comparison:
    """A program beside those of other sizes of one name; ``scaled`` axes may be merged ones.

    ``changed``, by place: the stages with expressions of the size in the place of numbers that
    differ.
    """

    program: Program
    name: str
    others: Sequence[OtherSize]
    scaled: Mapping[str, Sequence[int]]
    merged: dict[str, dict[int, MergedAxis]] = field(default_factory=dict)
    changed: dict[int, Stage] = field(default_factory=dict)
    stage: str = ""

    def refuse(self, rule: str) -> VaryingSizeError:
        return VaryingSizeError(self.name, self.stage, rule)

    @property
    def samples(self) -> SizeSamples:
        """All sizes that differ, here and there."""
        return SizeSamples.of(self.program, self.name, self.stage, self.others)

    def axes(self, name: str) -> dict[int, str]:
        """Return the axes of a tensor that differ as a size does."""
        own, varying = self.program.values[name].shape, self.program.varying.get(name, {})
        there = [other.program.values[name].shape for other in self.others]
        return {
            at: size for at, size in varying.items() if any(own[at] != it[at] for it in there)
        }  # fmt: skip

    def run(self) -> None:
        """Compare all constants and stages. Raises VaryingSizeError."""
        mine = self.program
        for stage in mine.stages:
            self.stage = stage.name
            for name in names_of(stage):
                self.constant(name)
        for name in (*mine.inputs, *mine.outputs):
            self.stage = name
            if self.scaled.get(name):
                raise self.refuse(f"axis {self.scaled[name][0]} of it is the size with others")
        theirs = [other.program.stages for other in self.others]
        for place, (stage, *others) in enumerate(zip(mine.stages, *theirs, strict=True)):
            if (both := self.compare(stage, others)) != stage:
                self.changed[place] = both

    def constant(self, name: str) -> None:
        """Check that a constant is the beginning of one of more elements."""
        if name not in self.program.constants:
            return
        own = self.program.constants[name]
        for other in (it.program.constants[name] for it in self.others):
            part = own[tuple(slice(extent) for extent in other.shape)]
            same = own is other
            if not same and not np.array_equal(part, other, equal_nan=own.dtype.kind in "fc"):
                raise self.refuse(f"it reads numbers that depend on it ({name})")

    def compare(self, stage: Stage, others: Sequence[Stage]) -> Stage:
        """Return the stage of all sizes, which differ in extents alone."""
        self.stage = stage.name
        for name in stage.outputs:
            self.merge(stage, name)
        match stage:
            case LoopStage():
                theirs = [it.expr for it in others if isinstance(it, LoopStage)]
                made = self.program.values[stage.output].dtype
                return replace(stage, expr=self.samples.expression(stage.expr, theirs, made))
            case LayerStage():
                self.layers(stage, [it for it in others if isinstance(it, LayerStage)])
            case ViewStage():
                return self.view(stage, [it for it in others if isinstance(it, ViewStage)])
            case ConcatStage():
                if stage.axis in self.scaled.get(stage.output, ()):
                    raise self.refuse(f"it joins tensors along axis {stage.axis}")
            case UpdateStage():
                return self.update(stage, [it for it in others if isinstance(it, UpdateStage)])
            case RepeatStage():
                return self.repeat(stage, [it for it in others if isinstance(it, RepeatStage)])
            case _ if any(stage != other for other in others) or any(
                self.axes(name) or self.scaled.get(name) for name in (*stage.outputs, *stage.inputs)
            ):
                raise self.refuse("its code is of one size")
        return stage

    def update(self, stage: UpdateStage, others: Sequence[UpdateStage]) -> UpdateStage:
        """Return an update whose box ends at sizes."""
        samples, dtype = self.samples, self.program.values[stage.output].dtype
        overs = [
            [(f"i{at}", size) for at, size in enumerate(it.extents)] for it in (stage, *others)
        ]
        written = samples.expression(
            Load(stage.output, stage.index), [Load(it.output, it.index) for it in others], dtype
        )
        assert isinstance(written, Load)
        expr = samples.expression(stage.expr, [it.expr for it in others], dtype)
        ends = samples.reduced(overs[0], overs[1:])
        return replace(stage, index=written.index, expr=expr, ends=ends)

    def repeat(self, stage: RepeatStage, others: Sequence[RepeatStage]) -> RepeatStage:
        """Return repeated stages whose steps are as many as a size."""
        alike = (stage, *others)
        shared = {replace(its, count=0, members=(), reads=(), writes=()) for its in alike}
        kinds = {
            (len(its.reads), len(its.writes), *(type(member) for member in its.members))
            for its in alike
        }  # fmt: skip
        counts, ends = [its.count for its in alike], ""
        if len({*counts}) > 1:
            ends = self.samples.named(counts)
        if len(shared) > 1 or len(kinds) > 1 or (len({*counts}) > 1 and not ends):
            raise self.refuse("its steps depend on it")
        rows = zip(*((*its.reads, *its.writes) for its in alike), strict=True)
        places = {place for own, *there in rows for place in self.step_places(own, there, ends)}
        members = zip(*(its.members for its in alike), strict=True)
        both = tuple([self.compare(own, there) for own, *there in members])
        self.stage = stage.name
        counted = any(
            STEP in iterators_in(part)
            for member in both if isinstance(member, LoopStage) for part in walk(member.expr)
        )  # fmt: skip
        if len(places) > 1 or (counted and True in places):
            raise self.refuse("it counts its steps from both ends")
        return replace(stage, members=both, ends=ends, backwards=True in places)

    def step_places(self, view: StepView, others: Sequence[StepView], ends: str) -> Iterator[bool]:
        """Yield of each subscript with the step whether it is counted from the end."""
        axes, inner = self.axes(view.outer), self.axes(view.inner)
        if any(replace(it, index=view.index) != view for it in others):
            raise self.refuse("its steps depend on it")
        most = self.program.spans[ends][-1] if ends else 0
        step, last = combine({STEP: 1}), combine({STEP: -1}, most - 1)
        for at, own in enumerate(view.index):
            same = all(it.index[at] == own for it in others)
            if own.coef(STEP):
                fits = same
                if at in axes:
                    fits = axes[at] == ends and own == (step if same else last)
                if ends:
                    yield not same
            else:
                fits = same and (at not in axes or _size_at(inner, own) == axes[at])
            if not fits:
                raise self.refuse(f"its steps take {own} along axis {at} of {view.outer}")

    def layers(self, stage: LayerStage, others: Sequence[LayerStage]) -> None:
        """Check that layers differ in extents alone."""
        for other in others:
            roles = [_shapeless(model_of(its.problem)[1]) for its in (stage, other)]
            rest = [replace(its, problem=stage.problem, w=(), stack=()) for its in (stage, other)]
            begun = stage.stack[: len(other.stack)] == other.stack
            if roles[0] != roles[1] or rest[0] != rest[1] or not begun:
                raise self.refuse("a number in it depends on it")

    def view(self, stage: ViewStage, others: Sequence[ViewStage]) -> Stage:
        """Return a view that moves no axis that varies, but as a whole; else a loop that copies."""
        mine, source = self.axes(stage.output), self.axes(stage.source)
        if stage.index is not None:
            if any(it.index is None for it in others):
                raise self.refuse("it moves elements otherwise for other sizes")
            places = zip(stage.index, *(it.index or () for it in others), strict=True)
            index = tuple([self.samples.form(own, there) for own, *there in places])
            if index != stage.index or not self.keeps_sizes(stage, mine):
                return LoopStage(stage.name, stage.output, Load(stage.source, index))
            return stage
        shapes = [self.program.values[name].shape for name in (stage.output, stage.source)]
        around = [
            [(prod(shape[:at]), prod(shape[at + 1 :])) for at in axes]
            for shape, axes in zip(shapes, (mine, source), strict=True)
        ]
        rows = self.merged.get(stage.output, {})
        if not rows and not self.scaled.get(stage.source) and around[0] != around[1]:
            raise self.refuse(f"it puts elements of {stage.source} into other rows")
        return stage

    def keeps_sizes(self, stage: ViewStage, mine: Mapping[int, str]) -> bool:
        """Return whether a view has whole axes that vary, or of others places that all sizes have.

        What is not is a tensor of its own: behind its end elements of its source would count.
        """
        assert stage.index is not None
        shape = self.program.values[stage.output].shape
        extents = {f"i{at}": size for at, size in enumerate(shape)}
        for at, size in self.axes(stage.source).items():
            index = stage.index[at]
            if _size_at(mine, index) == size:
                continue
            fixed = not any(int(term[1:]) in mine for term, _ in index.terms)
            if not fixed or index.reach(extents)[1] >= self.program.spans[size].start:
                return False
        return True

    def merge(self, stage: Stage, name: str) -> None:
        """Learn how a stage makes axes of a size and others. Raises VaryingSizeError."""
        if isinstance(stage, ViewStage) and stage.index is None:
            self.reshape(stage)
        merged = self.merged.setdefault(name, {})
        for source in stage.inputs:
            for at, own in self.merged.get(source, {}).items() if not merged else ():
                extent = self.program.values[source].shape[at]
                places = [
                    place for place in self.scaled.get(name, ())
                    if self.program.values[name].shape[place] == extent
                ]  # fmt: skip
                if len(places) == 1:  # which the rules of stages confirm, or refuse
                    merged[places[0]] = own
        if isinstance(stage, ViewStage) and stage.index is not None:
            for at, own in self.merged.get(stage.source, {}).items():
                moved = single(stage.index[at])
                if not moved or merged.get(int(moved[1:])) != own:
                    raise self.refuse(f"it takes a part of {stage.source} along axis {at}")
        if missing := [at for at in self.scaled.get(name, ()) if at not in merged]:
            raise self.refuse(f"axis {missing[0]} of {name} is the size with others")

    def reshape(self, stage: ViewStage) -> None:
        """Learn what axes a reshape makes: elements around a size are the same on both sides."""
        axes = [self.axes(name) for name in (stage.source, stage.output)]
        places = [
            sorted({*own, *self.scaled.get(name, ())})
            for own, name in zip(axes, (stage.source, stage.output), strict=True)
        ]
        shapes = [self.program.values[name].shape for name in (stage.source, stage.output)]
        if len(places[0]) != len(places[1]):
            raise self.refuse(f"it puts elements of {stage.source} into other rows")
        for before, at in zip(*places, strict=True):
            known = self.merged.get(stage.source, {}).get(before)
            own = known or MergedAxis(1, axes[0][before], 1)
            outer = prod(shapes[0][:before]) * own.outer
            inner = prod(shapes[0][before + 1 :]) * own.inner
            left, right = prod(shapes[1][:at]), prod(shapes[1][at + 1 :])
            size = self.program.spans[own.size][-1]
            if outer % left or inner % right or (
                shapes[1][at] != outer // left * size * (inner // right)
                or axes[1].get(at, own.size) != own.size
            ):  # fmt: skip
                raise self.refuse(f"it puts elements of {stage.source} into other rows")
            if at not in axes[1]:
                made = MergedAxis(outer // left, own.size, inner // right)
                self.merged.setdefault(stage.output, {})[at] = made


def _size_at(axes: Mapping[int, str], index: Affine) -> str:
    """Return the size of the axis whose iterator a subscript is; empty where it is none."""
    name = single(index)
    return axes.get(int(name[1:]), "") if name.startswith("i") else ""


def _shapeless(roles: Contraction) -> Contraction:
    """Return a contraction without its extents."""
    out, a, b = (replace(operand, shape=()) for operand in (roles.out, roles.a, roles.b))
    dims = tuple(replace(dim, extent=1) for dim in roles.dims)
    return replace(roles, dims=dims, out=out, a=a, b=b)
