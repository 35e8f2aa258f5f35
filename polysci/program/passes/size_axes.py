"""Axes whose extents differ between programs of a network for other sizes, and their sizes.

An axis that grows by one element with a size is that size, or so many elements more or less; one
along which a stage goes by steps is a quotient of that. Both are sizes that others make.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product, zip_longest
from typing import Final

from polysci.loop_ir.expressions import loads
from polysci.numerics.affine import Affine
from polysci.ops.model import model_of
from polysci.program.passes.variation import VaryingSizeError
from polysci.program.sizes import DerivedSize
from polysci.program.stages import (
    LayerStage,
    LoopStage,
    Program,
    RepeatStage,
    Stage,
    ViewStage,
    fresh_name,
)


@dataclass(frozen=True, slots=True)
class OtherSize:
    """A program of the same network for another size of a dimension, which else has ``most``."""

    name: str
    most: int
    size: int
    program: Program

    def value(self, program: Program, size: str) -> int:
        """Return a size here, which may be one that sizes of ``program`` make."""
        told = {name: span[-1] for name, span in program.spans.items()}
        return program.all_sizes({**told, self.name: self.size})[size]


def names_of(stage: Stage) -> tuple[str, ...]:
    """Return the tensors of a stage, those of its steps included."""
    names = (*stage.outputs, *stage.inputs)
    if isinstance(stage, RepeatStage):
        inner = [name for member in stage.members for name in names_of(member)]
        names = (*names, *stage.internal, *inner)
    return tuple(dict.fromkeys(names))


class UnclearSizeError(VaryingSizeError):
    """Programs of other sizes leave open how an axis depends on one; ``size`` of it would tell."""

    def __init__(self, name: str, stage: str, size: int) -> None:
        super().__init__(name, stage, "how many elements an axis of it has is not clear")
        self.name, self.size = name, size


SAMPLES: Final = 5  # of a size at least, where numbers may depend on a part of it


@dataclass(slots=True)
class SizeAxes:
    """The axes of a program that vary: ``varying`` as a program has them, with ``derived`` sizes.

    ``scaled``, by the name of a size that runs are told and by tensor: axes that differ otherwise,
    as merged ones do.
    """

    program: Program
    spans: Mapping[str, range]
    others: Sequence[OtherSize]
    varying: dict[str, dict[int, str]] = field(default_factory=dict)
    derived: dict[str, DerivedSize] = field(default_factory=dict)
    scaled: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    samples: dict[str, list[int]] = field(default_factory=dict)  # of sizes: the largest, others
    shapes: dict[str, list[Mapping[str, tuple[int, ...]]]] = field(default_factory=dict)

    def learn(self) -> None:
        """Compare tensors with those of other sizes. Raises VaryingSizeError."""
        axes = dict[str, dict[int, list[str]]]()  # by tensor: the sizes with which an axis grows
        for name in dict.fromkeys(other.name for other in self.others):
            others = [own for own in self.others if own.name == name]
            self.samples[name] = [others[0].most, *(own.size for own in others)]
            self.shapes[name] = [*map(self._extents, others)]
            scaled = self.scaled.setdefault(name, {})
            for tensor in self.shapes[name][0]:
                for at in range(len(self.program.values[tensor].shape)):
                    extents = self._samples(name, tensor, at)
                    if len({*extents}) == 1:
                        continue
                    if _differ_alike(extents, self.samples[name]):
                        axes.setdefault(tensor, {}).setdefault(at, []).append(name)
                    else:
                        scaled.setdefault(tensor, []).append(at)
        for tensor, found in axes.items():
            shape = self.program.values[tensor].shape
            self.varying[tensor] = {at: self._sum(names, shape[at]) for at, names in found.items()}
        for stage in self.program.stages:
            for tensor, (name, scaled) in product(stage.outputs, self.scaled.items()):
                for at in [*scaled.get(tensor, ())]:
                    self._learn_steps(stage, tensor, at, name)
        for name in {
            name: 0 for own in self.derived.values() if own.divisor > 1 for name in own.names
        }:
            span = self.spans[name]
            more = [span[at * (len(span) - 1) // (SAMPLES - 1)] for at in range(SAMPLES)]
            left = [size for size in (*more, *span) if size not in self.samples[name]]
            if left and len(self.samples[name]) < SAMPLES:
                raise UnclearSizeError(name, self.program.name, left[0])

    def _samples(self, name: str, tensor: str, at: int) -> list[int]:
        """Return the extents of an axis for the samples of a size."""
        most = self.program.values[tensor].shape[at]
        return [most, *(table[tensor][at] for table in self.shapes[name])]

    def _sum(self, names: Sequence[str], extent: int) -> str:
        """Return the size that is some sizes together, and ``extent`` where these are largest."""
        rest = extent - sum(self.spans[name][-1] for name in names)
        return self._name(DerivedSize(Affine(tuple([(name, 1) for name in names]), rest)))

    def _name(self, size: DerivedSize) -> str:
        """Return the name of a size, which is that of one that is always as large, if there is."""
        table = {**{name: self._form(name) for name in size.names[:1]}, **self.derived}
        known = [name for name, own in table.items() if own.names == size.names]
        equal = [name for name in known if table[name] == size]
        if len(size.names) == 1 and not equal:
            every = [{size.names[0]: own} for own in self.spans[size.names[0]]]
            equal = [
                name for name in known
                if all(table[name].value(it) == size.value(it) for it in every)
            ]  # fmt: skip
        if equal:
            return equal[0]
        name = fresh_name(str(size), self.spans)
        self.derived[name] = size
        return name

    def _form(self, name: str) -> DerivedSize:
        return self.derived.get(name) or DerivedSize(Affine(((name, 1),)))

    def _learn_steps(self, stage: Stage, tensor: str, at: int, name: str) -> None:
        """Learn an axis along which a stage goes by steps, or that of what it reads, or beside it.

        Raises UnclearSizeError where a sample of another size would tell its extent.
        """
        extents, size = self._samples(name, tensor, at), ""
        for known in dict.fromkeys(it for x in stage.inputs for it in self._own(x, name).values()):
            form = self._form(known)
            if _differ_alike(extents, values := self._values(form, name)):
                more = form.form.const + (extents[0] - values[0]) * form.divisor
                size = self._name(replace(form, form=replace(form.form, const=more)))
                break
        for source, axis, step in () if size else steps_of(stage, at):
            if own := self._own(source, name).get(axis):
                size = size or self._divide(stage, self._form(own), step, extents, name)
        if size and at not in self.varying.get(tensor, {}):
            self.varying.setdefault(tensor, {})[at] = size
            self.scaled[name][tensor].remove(at)

    def _own(self, tensor: str, name: str) -> dict[int, str]:
        """Return the axes of a tensor that depend on one size alone."""
        axes = self.varying.get(tensor, {})
        return {at: size for at, size in axes.items() if self._form(size).names == (name,)}

    def _values(self, size: DerivedSize, name: str) -> list[int]:
        return [size.value({name: sample}) for sample in self.samples[name]]

    def _divide(
        self, stage: Stage, size: DerivedSize, step: int, extents: Sequence[int], name: str
    ) -> str:
        """Return the size of an axis by steps along one of a size; empty where none fits."""
        values, first = self._values(size, name), extents[0] * step
        ways = [
            DerivedSize(
                replace(size.form, const=size.form.const + size.divisor * more), size.divisor * step
            )
            for more in range(first - values[0], first - values[0] + step)
        ]
        fits = [way for way in ways if self._values(way, name) == [*extents]]
        for sample in reversed(self.spans[name]):
            if len({way.value({name: sample}) for way in fits}) > 1:
                raise UnclearSizeError(name, stage.name, sample)
        return self._name(fits[0]) if fits else ""

    def _extents(self, other: OtherSize) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a program of another size. Raises VaryingSizeError."""
        mine, theirs = self.program, other.program
        shapes = dict[str, tuple[int, ...]]()

        def learn(stage: str, name: str) -> None:
            own, there = mine.values[name], theirs.values[name]
            if len(own.shape) != len(there.shape) or own.dtype != there.dtype:
                raise VaryingSizeError(other.name, stage, f"{name} is {own} or {there}")
            shapes[name] = there.shape

        for stage, there in zip_longest(mine.stages, theirs.stages):
            same = stage and there and type(stage) is type(there)
            if not same or names_of(stage) != names_of(there):
                rule = f"for {other.size} other stages compute it than for {other.most}"
                raise VaryingSizeError(other.name, (stage or there).name, rule)
            for name in names_of(stage):
                learn(stage.name, name)
        for name in (*mine.inputs, *mine.outputs):
            learn(name, name)
        return shapes


def _differ_alike(extents: Sequence[int], values: Sequence[int]) -> bool:
    """Return whether extents are sizes, or all as much more or less."""
    return len({extent - value for extent, value in zip(extents, values, strict=True)}) == 1


def steps_of(stage: Stage, at: int) -> Iterator[tuple[str, int, int]]:
    """Yield tensors and axes along which a stage goes by steps for places along its axis ``at``.

    And how long these are.
    """
    reads = []
    if isinstance(stage, LoopStage):
        reads = [(load.tensor, load.index) for load in loads(stage.expr)]
    elif isinstance(stage, ViewStage) and stage.index is not None:
        reads = [(stage.source, stage.index)]
    for tensor, index in reads:
        for axis, place in enumerate(index):
            if isinstance(place, Affine) and place.coef(f"i{at}") > 1:
                yield tensor, axis, place.coef(f"i{at}")
    if isinstance(stage, LayerStage):
        _, roles, _ = model_of(stage.problem)
        for axes, place in zip(stage.y.axes, roles.out.index, strict=False):
            if axes != (at,) or len(place.terms) != 1:
                continue
            for own, read in zip(stage.x.axes, roles.a.index, strict=False):
                if len(own) == 1 and read.coef(place.terms[0][0]) > 1:
                    yield stage.x.tensor, own[0], read.coef(place.terms[0][0])
