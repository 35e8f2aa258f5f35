"""The residue classes of a scattering nest, each a dense contraction of its own, classes by isl.

A nest that writes ``step * p + apart * r + start`` on an axis of its result adds to pixel h only
where that is h. Of the pixels with ``h % step == first`` it is always the same taps r, every
``step / gcd(step, apart)``-th one, and p follows from h and r: seen from these pixels alone the
nest gathers, without gaps. Pixels that no tap reaches are a class without products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Self

import islpy as isl

from polysci.numerics.dtypes import DTYPES, Precision
from polysci.polyhedral.contraction import Contraction, contraction
from polysci.polyhedral.scop import Scop, Statement, bound_operations

Strides = Mapping[str, tuple[int, ...]]
# Loops over pixels of dY -> of a class of dX.
_PIXELS: Mapping[str, str] = MappingProxyType({"z": "d", "p": "h", "q": "w"})


@dataclass(frozen=True, slots=True)
class ScatterAxis:
    """An axis of the result that a row of x and a tap index, neighbouring rows ``step`` apart."""

    axis: int
    row: str
    tap: str
    step: int


@dataclass(frozen=True, slots=True)
class ResidueClass:
    """The pixels of the result that are ``first`` modulo ``steps``, axis by axis, as one nest.

    Its result is an array of these pixels alone: ``strides`` and ``start`` say where they lie.
    """

    scop: Scop
    contraction: Contraction
    first: tuple[int, ...]
    steps: tuple[int, ...]
    taps: int

    def strides(self, strides: Strides) -> Strides:
        """Strides of the class's arrays, where the nest's arrays have ``strides``."""
        name = self.contraction.out.array
        moved = (stride * step for stride, step in zip(strides[name], self.steps, strict=True))
        return {**strides, name: tuple(moved)}

    def start(self, strides: Strides) -> int:
        """Return elements from the result's first pixel to that of the class."""
        result = strides[self.contraction.out.array]
        return sum(stride * at for stride, at in zip(result, self.first, strict=True))


def scatter_axes(roles: Contraction) -> tuple[ScatterAxis, ...]:
    """Return the axes of the result that both rows and taps index."""
    rows = {dim.name for dim in roles.by_role("m")}
    axes = []
    for axis, index in enumerate(roles.out.index):
        names = dict(index.terms)
        row = next((name for name in names if name in rows), None)
        tap = next((name for name in names if not roles.a.uses(name)), None)
        if row and tap and row != tap:
            axes.append(ScatterAxis(axis, row, tap, names[row]))
    return tuple(axes)


def residue_classes(scop: Scop, roles: Contraction) -> tuple[ResidueClass, ...]:
    """Return all residue classes that have pixels; those with most products first.

    Raises UnsupportedError where isl cannot separate them.
    """
    axes, shape, classes = scatter_axes(roles), roles.out.shape, list[ResidueClass]()
    types = Precision(*(DTYPES[operand.dtype] for operand in (roles.a, roles.b, roles.out)))
    with bound_operations(f"residue classes of {scop.name}"):
        for first in product(*(range(min(at.step, shape[at.axis])) for at in axes)):
            part = _Pixels.of(scop, roles, axes, first)
            taps, nest = prod(map(len, part.taps)), part.scop()
            dense = contraction(nest).with_precision(types)
            classes.append(ResidueClass(nest, dense, part.first, part.steps, taps))
    return tuple(sorted(classes, key=lambda part: (-part.taps, part.first)))


@dataclass(frozen=True, slots=True)
class _Pixels:
    """The pixels that are ``first`` modulo ``steps``, and the ``taps`` of each scattered axis.

    Without taps, every tap is empty.
    """

    statement: Statement
    nest: Scop
    roles: Contraction
    axes: tuple[ScatterAxis, ...]
    first: tuple[int, ...]
    steps: tuple[int, ...]
    taps: tuple[range, ...] = ()

    @classmethod
    def of(
        cls, nest: Scop, roles: Contraction, axes: tuple[ScatterAxis, ...], first: tuple[int, ...]
    ) -> Self:
        steps, firsts = ([least] * len(roles.out.shape) for least in (1, 0))
        for at, residue in zip(axes, first, strict=True):
            steps[at.axis], firsts[at.axis] = at.step, residue
        (statement,) = nest.statements
        part = cls(statement, nest, roles, axes, tuple(firsts), tuple(steps))
        reaching = statement.write.map.apply_range(part._element_map()).domain()
        reaching = reaching.intersect(statement.domain)
        return replace(part, taps=tuple(_taps(reaching, statement, at) for at in axes))

    @property
    def shape(self) -> tuple[int, ...]:
        """Pixels of the class along each axis."""
        rows = zip(self.roles.out.shape, self.first, self.steps, strict=True)
        return tuple(-(-(size - first) // step) for size, first, step in rows)

    @property
    def reached(self) -> bool:
        return all(self.taps)

    @property
    def extents(self) -> dict[str, int]:
        """The loops over the class, outer first: its pixels, then what is summed."""
        taps = {at.tap: len(own) for at, own in zip(self.axes, self.taps, strict=True)}
        rows = {at.row: (_PIXELS[at.row], self.shape[at.axis]) for at in self.axes}
        own = {dim.name: dim.extent for dim in self.roles.dims if dim.name not in taps}
        pixels = [n for index in self.roles.out.index for n, _ in index.terms if n in own]
        around = dict(rows.get(name, (name, own[name])) for name in pixels)
        summed = {name: extent for name, extent in own.items() if name not in pixels}
        if self.reached:
            return around | summed | taps
        # Two products, with what lies outside x: roles are those of other classes.
        few = {name: min(extent, 2) for name, extent in summed.items()}
        return around | few | dict.fromkeys(taps, 1)

    def scop(self) -> Scop:
        """Return the statement over the pixels of the class and the taps that reach them."""
        statement, change, result = self.statement, self._change(), self.roles.out.array
        accesses = tuple(
            replace(
                access,
                map=self._write_map() if access.array == result else change.apply_range(access.map),
            )
            for access in statement.accesses
        )
        reads = {access.array: access for access in accesses if access.kind == "read"}
        bounds = " and ".join(f"0 <= {name} < {size}" for name, size in self.extents.items())
        box = isl.Set(f"{{ {self._iteration} : {bounds} }}")
        dense = replace(
            statement,
            domain=change.intersect_range(statement.domain).domain().intersect(box),
            accesses=accesses,
            schedule=change.apply_range(statement.schedule),
            box=box,
            factors=tuple(reads[factor.array] for factor in statement.factors),
        )
        arrays = tuple(
            replace(array, shape=self.shape) if array.name == result else array
            for array in self.nest.arrays
        )
        return replace(self.nest, arrays=arrays, statements=(dense,))

    @property
    def _iteration(self) -> str:
        return f"{self.statement.name}[{', '.join(self.extents)}]"

    def _element_map(self) -> isl.Map:
        """Return the map from the result's elements to those of the class."""
        name, axes = self.roles.out.array, range(len(self.steps))
        source, target = (", ".join(f"{letter}{axis}" for axis in axes) for letter in "ab")
        where = " and ".join(
            f"a{axis} = {step} * b{axis} + {first}"
            for axis, step, first in zip(axes, self.steps, self.first, strict=True)
        )
        return isl.Map(f"{{ {name}[{source}] -> {name}[{target}] : {where} }}")

    def _write_map(self) -> isl.Map:
        """Return the map from the loops over the class to the pixel that they add to."""
        rows = {at.axis: _PIXELS[at.row] for at in self.axes}
        index = (rows.get(axis, str(own)) for axis, own in enumerate(self.roles.out.index))
        return isl.Map(f"{{ {self._iteration} -> {self.roles.out.array}[{', '.join(index)}] }}")

    def _change(self) -> isl.Map:
        """Return the map from the loops over the class to the nest's iterations; taps are mirrored.

        The last tap that reaches a pixel is the first one, so that x is read forwards. Of a class
        without taps all iterations are outside x.
        """
        names = self.statement.iterators
        values = {name: name for name in names}
        for at, taps in zip(self.axes, self.taps, strict=True):
            values[at.row] = f"{_PIXELS[at.row]} + {at.tap} + {self.roles.extent(at.row)}"
            if self.reached:
                values[at.tap] = f"{taps[-1]} - {taps.step} * {at.tap}"
                del values[at.row]
        target = ", ".join(f"{name}_" for name in names)
        equal = " and ".join(f"{name}_ = {value}" for name, value in values.items())
        change = isl.Map(f"{{ {self._iteration} -> {self.statement.name}[{target}] : {equal} }}")
        if not self.reached:
            return change
        meeting = self.statement.write.map.apply_range(self._element_map()).reverse()
        return change.intersect(self._write_map().apply_range(meeting))


def _taps(reaching: isl.Set, statement: Statement, at: ScatterAxis) -> range:
    """Return the taps along an axis of the iterations that reach a class: one every few."""
    position, dims = statement.iterators.index(at.tap), reaching.dim(isl.dim_type.set)
    taps = reaching.project_out(isl.dim_type.set, position + 1, dims - position - 1)
    taps = taps.project_out(isl.dim_type.set, 0, position)
    if taps.is_empty():
        return range(0)
    low, high = taps.dim_min_val(0).to_python(), taps.dim_max_val(0).to_python()
    between = taps.count_val().to_python() - 1
    return range(low, high + 1, (high - low) // between if between else at.step)
