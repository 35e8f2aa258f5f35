"""Axes of a program that vary with a size, found by comparing it with programs of other sizes.

All of them have the same stages; what differs must be extents that are the size, or constants of
which a smaller size has the beginning. Anything else is refused by the name of its stage.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import isclose, isnan, prod
from typing import Final

import numpy as np

from polysci.loop_ir.expressions import (
    Apply,
    Computed,
    Expr,
    Index,
    Load,
    Number,
    Position,
    Reduce,
    Where,
    rewrite,
)
from polysci.numerics.affine import Affine
from polysci.ops.model import model_of
from polysci.polyhedral.contraction import Contraction
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.variation import VaryingSizeError, single, size_name
from polysci.program.stages import (
    ConcatStage,
    LayerStage,
    LoopStage,
    MergedAxis,
    Program,
    Stage,
    Value,
    ViewStage,
    fresh_name,
)

CLOSE: Final = 1e-6  # numbers of f32 that are equal but for their rounding


@dataclass(frozen=True, slots=True)
class OtherSize:
    """A program of the same network for another size of a dimension, which else has ``most``."""

    name: str
    most: int
    size: int
    program: Program


def with_spans(
    program: Program, spans: Mapping[str, range], others: Sequence[OtherSize]
) -> Program:
    """Return a program for the last sizes of ``spans`` as one for all of them.

    Raises VaryingSizeError for what depends on a size in a way that has no code.
    """
    varying: dict[str, dict[int, str]] = {}
    merged: dict[str, dict[int, MergedAxis]] = {}
    stages, known = [*program.stages], replace(program, spans=dict(spans))
    for other in others:
        variable = size_name(known, other.name)
        comparison = _Comparison(program, other, spans[other.name].start, variable)
        comparison.run()
        for tensor, axes in comparison.axes.items():
            for at in axes:
                varying.setdefault(tensor, {})[at] = other.name
        for tensor, rows in comparison.merged.items():
            if rows.keys() & merged.get(tensor, {}).keys() & varying.get(tensor, {}).keys():
                rule = "an axis of it depends on several sizes"
                raise VaryingSizeError(other.name, tensor, rule)
            merged.setdefault(tensor, {}).update(rows)
        for place, stage in comparison.changed.items():
            if stages[place] not in (program.stages[place], stage):
                raise VaryingSizeError(other.name, stage.name, "it depends on it in several ways")
            stages[place] = stage
    return replace(known, stages=tuple(stages), varying=varying, merged=merged)


@dataclass(slots=True)
class _Comparison:
    """A program beside that of another size: ``axes`` are those that differ, by tensor.

    ``least`` is the smallest size, ``variable`` its name in expressions. ``changed``, by place: the
    stages with expressions of the size in the place of numbers that differ.
    """

    program: Program
    other: OtherSize
    least: int
    variable: str
    axes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    merged: dict[str, dict[int, MergedAxis]] = field(default_factory=dict)
    scaled: dict[str, list[int]] = field(default_factory=dict)  # axes that may be merged ones
    changed: dict[int, Stage] = field(default_factory=dict)
    stage: str = ""
    place: int = 0

    def refuse(self, rule: str) -> VaryingSizeError:
        return VaryingSizeError(self.other.name, self.stage, rule)

    @property
    def sizes(self) -> tuple[int, int]:
        """The size here, and there."""
        return self.other.most, self.other.size

    def run(self) -> None:
        """Compare all tensors, constants and stages. Raises VaryingSizeError."""
        mine, theirs = self.program, self.other.program
        for stage, other in zip_longest(mine.stages, theirs.stages):
            self.stage = (stage or other).name
            same = stage and other and type(stage) is type(other)
            if not same or (stage.outputs, stage.inputs) != (other.outputs, other.inputs):
                own, size = self.sizes
                raise self.refuse(f"for {size} other stages compute it than for {own}")
            for name in (*stage.outputs, *stage.inputs):
                self.tensor(name)
        for name in (*mine.inputs, *mine.outputs):
            self.stage = name
            self.tensor(name)
            if self.scaled.get(name):
                raise self.refuse(f"axis {self.scaled[name][0]} of it is the size with others")
        for place, pair in enumerate(zip(mine.stages, theirs.stages, strict=True)):
            self.place, self.stage = place, pair[0].name
            self.compare(*pair)

    def tensor(self, name: str) -> None:
        """Learn which axes of a tensor differ."""
        if name in self.axes:
            return
        own, other = self.program.values[name], self.other.program.values[name]
        if len(own.shape) != len(other.shape) or own.dtype != other.dtype:
            raise self.refuse(f"{name} is {own} or {other}")
        differ = [at for at, pair in enumerate(zip(own.shape, other.shape, strict=True))
                  if pair[0] != pair[1]]  # fmt: skip
        for at in differ:
            if own.shape[at] * self.sizes[1] != other.shape[at] * self.sizes[0]:
                raise self.refuse(
                    f"axis {at} of {name} has {own.shape[at]} elements for {self.sizes[0]}, "
                    f"{other.shape[at]} for {self.sizes[1]}"
                )
        self.axes[name] = tuple([at for at in differ if own.shape[at] == self.sizes[0]])
        self.scaled[name] = [at for at in differ if own.shape[at] != self.sizes[0]]
        if name in self.program.constants:
            self.constant(name)

    def constant(self, name: str) -> None:
        """Check that a constant is the beginning of one of more elements."""
        own, other = self.program.constants[name], self.other.program.constants[name]
        if own is other:
            return
        part = own[tuple(slice(extent) for extent in other.shape)]
        if not np.array_equal(part, other, equal_nan=own.dtype.kind in "fc"):
            raise self.refuse(f"it reads numbers that depend on it ({name})")

    def compare(self, stage: Stage, other: Stage) -> None:
        """Check that stages differ in extents alone."""
        for name in stage.outputs:
            self.merge(stage, name)
        match stage, other:
            case LoopStage(), LoopStage():
                expr = self.expression(stage.expr, other.expr, self.program.values[stage.output])
                if expr != stage.expr:
                    self.changed[self.place] = replace(stage, expr=expr)
            case LayerStage(), LayerStage():
                self.layers(stage, other)
            case ViewStage(), ViewStage():
                self.views(stage, other)
            case ConcatStage(), ConcatStage():
                if stage.axis in self.axes[stage.output]:
                    raise self.refuse(f"it joins tensors along axis {stage.axis}")
            case _ if stage != other or any(
                self.axes[name] or self.scaled[name] for name in (*stage.outputs, *stage.inputs)
            ):
                raise self.refuse("its code is of one size")

    def expression(self, mine: Expr, theirs: Expr, made: Value) -> Expr:
        """Return an expression of both sizes, for elements of ``made``."""
        match mine, theirs:
            case Number(own), Number(other):
                return self.number(own, other, made)
            case Load(), Load() if (mine.tensor, len(mine.index)) == (
                theirs.tensor, len(theirs.index)
            ):  # fmt: skip
                places = zip(mine.index, theirs.index, strict=True)
                return replace(
                    mine, index=tuple([self.subscript(*place, made) for place in places])
                )
            case Position(own), Position(other):
                return Position(self.form(own, other))
            case Apply(function, arguments), Apply(name, others) if (function, len(arguments)) == (
                name, len(others)
            ):  # fmt: skip
                pairs = zip(arguments, others, strict=True)
                return Apply(function, tuple([self.expression(*pair, made) for pair in pairs]))
            case Where(), Where() if mine.guards == theirs.guards:
                body = self.expression(mine.body, theirs.body, made)
                return replace(
                    mine, body=body,
                    otherwise=self.expression(mine.otherwise, theirs.otherwise, made),
                )  # fmt: skip
            case Reduce(), Reduce() if (
                mine.function == theirs.function and mine.guards == theirs.guards
            ):
                for one, two in zip(mine.over, theirs.over, strict=True):
                    if one != two and (one[1], two[1]) != self.sizes:
                        raise self.refuse(f"it reduces over {one[1]} or {two[1]} elements")
                return replace(mine, body=self.expression(mine.body, theirs.body, made))
        raise self.refuse("its expression depends on it")

    def number(self, own: float, other: float, made: Value) -> Expr:
        """Return what a number is: the same, a multiple of the size, or a number over it."""
        if own == other or (isnan(own) and isnan(other)):
            return Number(own)
        size, smaller = self.sizes
        kind = "exact" if made.dtype == "float64" else "real"
        position = Apply(kind, (Position(Affine(((self.variable, 1),))),))
        for function, factor, there in (
            ("div", own * size, other * smaller), ("mul", own / size, other / smaller)
        ):  # fmt: skip
            if isclose(factor, there, rel_tol=CLOSE):
                whole = round(factor) if isclose(factor, round(factor), rel_tol=CLOSE) else factor
                return Apply(function, (Number(float(whole)), position))
        raise self.refuse(f"the number {own:.9g} for {size} is {other:.9g} for {smaller}")

    def subscript(self, own: Index, other: Index, made: Value) -> Index:
        """Return a subscript of both sizes."""
        if isinstance(own, Affine) and isinstance(other, Affine):
            return self.form(own, other)
        if isinstance(own, Computed) and isinstance(other, Computed) and own.extent == other.extent:
            return replace(own, at=self.expression(own.at, other.at, made))
        if own != other:
            raise self.refuse("its subscripts depend on it")
        return own

    def form(self, own: Affine, other: Affine) -> Affine:
        """Return an affine form of both sizes: the same, or some places from the size."""
        if own == other:
            return own
        size, smaller = self.sizes
        factor, rest = divmod(own.const - other.const, size - smaller)
        if own.terms != other.terms or rest:
            raise self.refuse(f"{own} for {size} is {other} for {smaller}")
        return Affine((*own.terms, (self.variable, factor)), own.const - factor * size)

    def layers(self, stage: LayerStage, other: LayerStage) -> None:
        roles = [_shapeless(model_of(its.problem)[1]) for its in (stage, other)]
        rest = [replace(its, problem=stage.problem, w=(), stack=()) for its in (stage, other)]
        begun = stage.stack[: len(other.stack)] == other.stack
        if roles[0] != roles[1] or rest[0] != rest[1] or not begun:
            raise self.refuse("a number in it depends on it")

    def views(self, stage: ViewStage, other: ViewStage) -> None:
        """Check that a view moves no axis that varies, but as a whole."""
        mine, source = self.axes[stage.output], self.axes[stage.source]
        if stage.index is not None and other.index is not None:
            if stage.index != other.index:  # whose place in memory depends on it
                pairs = zip(stage.index, other.index, strict=True)
                load = Load(stage.source, tuple([self.form(*pair) for pair in pairs]))
                self.changed[self.place] = LoopStage(stage.name, stage.output, load)
                return
            shape = self.program.values[stage.output].shape
            extents = {f"i{at}": size for at, size in enumerate(shape)}
            for at in source:
                index, name = stage.index[at], single(stage.index[at])
                whole = name and int(name[1:]) in mine
                fixed = not any(int(term[1:]) in mine for term, _ in index.terms)
                if not whole and not (fixed and index.reach(extents)[1] < self.least):
                    raise self.refuse(f"it takes a part of {stage.source} along axis {at}")
            return
        shapes = [self.program.values[name].shape for name in (stage.output, stage.source)]
        around = [
            [(prod(shape[:at]), prod(shape[at + 1 :])) for at in axes]
            for shape, axes in zip(shapes, (mine, source), strict=True)
        ]
        rows = self.merged.get(stage.output, {})
        if not rows and not self.scaled[stage.source] and around[0] != around[1]:
            raise self.refuse(f"it puts elements of {stage.source} into other rows")

    def merge(self, stage: Stage, name: str) -> None:
        """Learn how a stage makes axes of a size and others. Raises VaryingSizeError."""
        if isinstance(stage, ViewStage) and stage.index is None:
            self.reshape(stage)
        merged = self.merged.setdefault(name, {})
        for source in stage.inputs:
            for at, own in self.merged.get(source, {}).items() if not merged else ():
                extent = self.program.values[source].shape[at]
                places = [
                    place for place in self.scaled[name]
                    if self.program.values[name].shape[place] == extent
                ]  # fmt: skip
                if len(places) == 1:  # which the rules of stages confirm, or refuse
                    merged[places[0]] = own
        if isinstance(stage, ViewStage) and stage.index is not None:
            for at, own in self.merged.get(stage.source, {}).items():
                moved = single(stage.index[at])
                if not moved or merged.get(int(moved[1:])) != own:
                    raise self.refuse(f"it takes a part of {stage.source} along axis {at}")
        if missing := [at for at in self.scaled[name] if at not in merged]:
            raise self.refuse(f"axis {missing[0]} of {name} is the size with others")

    def reshape(self, stage: ViewStage) -> None:
        """Learn what axes a reshape makes: elements around a size are the same on both sides."""
        places = [
            sorted({*self.axes[name], *self.scaled[name]}) for name in (stage.source, stage.output)
        ]
        shapes = [self.program.values[name].shape for name in (stage.source, stage.output)]
        if len(places[0]) != len(places[1]):
            raise self.refuse(f"it puts elements of {stage.source} into other rows")
        for before, at in zip(*places, strict=True):
            own = self.merged.get(stage.source, {}).get(before, MergedAxis(1, self.other.name, 1))
            outer = prod(shapes[0][:before]) * own.outer
            inner = prod(shapes[0][before + 1 :]) * own.inner
            left, right = prod(shapes[1][:at]), prod(shapes[1][at + 1 :])
            if outer % left or inner % right or (
                shapes[1][at] != outer // left * self.sizes[0] * (inner // right)
            ):  # fmt: skip
                raise self.refuse(f"it puts elements of {stage.source} into other rows")
            if at in self.scaled[stage.output]:
                made = MergedAxis(outer // left, self.other.name, inner // right)
                self.merged.setdefault(stage.output, {})[at] = made


def _shapeless(roles: Contraction) -> Contraction:
    """Return a contraction without its extents."""
    out, a, b = (replace(operand, shape=()) for operand in (roles.out, roles.a, roles.b))
    dims = tuple(replace(dim, extent=1) for dim in roles.dims)
    return replace(roles, dims=dims, out=out, a=a, b=b)


# Arguments.


def runs_on(program: Program, name: str) -> bool:
    """Return whether a caller's tensor lies as the beginning of one of the largest size."""
    axes, shape = program.varying.get(name, {}), program.values[name].shape
    return not axes or (len(axes) == 1 and prod(shape[: next(iter(axes))]) == 1)


def copy_arguments(program: Program, names: Container[str]) -> Program:
    """Return the program with copies of these arguments, which stages use in their place.

    Callers' tensors have no elements behind the end of an axis, where layers write and read.
    """
    arguments = [name for name in (*program.inputs, *program.outputs) if name in names]
    values, varying = dict(program.values), dict(program.varying)
    whole = dict[str, str]()
    for name in dict.fromkeys(arguments):
        whole[name] = own = fresh_name(name, values, "whole")
        values[own] = replace(values[name], name=own)
        varying[own] = varying[name]
    copies = [(f"copy {name}", whole[name], name) for name in program.inputs if name in whole]
    results = [(f"copy {name}", name, whole[name]) for name in program.outputs if name in whole]
    stages: tuple[Stage, ...] = tuple(_rename(stage, whole) for stage in program.stages)
    ahead, behind = (
        tuple(LoopStage(title, made, values[read].elements) for title, made, read in its)
        for its in (copies, results)
    )
    return replace(program, values=values, varying=varying, stages=(*ahead, *stages, *behind))


def whole_tensors(program: Program) -> set[str]:
    """Return the copies that ``copy_arguments`` made, which no loop has in their place."""
    copies = set[str]()
    for stage in program.stages:
        if isinstance(stage, LoopStage) and isinstance(stage.expr, Load):
            read = stage.expr.tensor
            if read in program.inputs and read in program.varying:
                copies.add(stage.output)
            if stage.output in program.outputs and read in program.varying:
                copies.add(read)
    return copies


def arguments_of_layers(placed: PlacedProgram) -> set[str]:
    """Return the arguments with axes that vary which layers read or write."""
    program, places = placed.program, placed.places
    own = {name for name in (*program.inputs, *program.outputs) if name in program.varying}
    return {
        places[name].buffer
        for layer in program.layers()
        for name in (*layer.inputs, *layer.outputs)
        if name in places and places[name].buffer in own
    }


def _rename(stage: Stage, names: Mapping[str, str]) -> Stage:
    """Return a stage with other names for some tensors."""

    def of(name: str) -> str:
        return names.get(name, name)

    match stage:
        case LoopStage():
            return replace(stage, output=of(stage.output), expr=rewrite(
                stage.expr,
                lambda part: replace(part, tensor=of(part.tensor)) if isinstance(part, Load)
                else part,
            ))  # fmt: skip
        case LayerStage():
            return replace(
                stage, x=replace(stage.x, tensor=of(stage.x.tensor)),
                y=replace(stage.y, tensor=of(stage.y.tensor)), weights=of(stage.weights),
                bias=of(stage.bias), residual=of(stage.residual),
            )  # fmt: skip
        case ViewStage():
            return replace(stage, output=of(stage.output), source=of(stage.source))
        case ConcatStage():
            return replace(stage, output=of(stage.output), parts=tuple(map(of, stage.parts)))
        case _:
            return stage
