"""Array references: the arrays a nest may use, their access relations, and their bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import islpy as isl
from pycparser import c_ast

from polysci.errors import SpecError
from polysci.polyhedral.extract.affine import LARGEST, LoopLevel, affine
from polysci.polyhedral.extract.declarations import ArrayDeclaration
from polysci.polyhedral.extract.parse import place_of
from polysci.polyhedral.extract.source import KEYWORDS, RESERVED, SourceText, integer
from polysci.polyhedral.scop import Access, Array

RULE = "Arrays are declared with constant extents: float A[64][56], or #define N 64 and A[N][N]."


@dataclass(frozen=True, slots=True)
class ArrayTable:
    """The arrays of a nest: declared in the text, or with ``shapes`` from the caller.

    The walk adds the arrays that the nest touches to ``used``, and its loops to ``iterators``.
    """

    source: SourceText
    declared: Mapping[str, Sequence[ArrayDeclaration]]
    shapes: Mapping[str, tuple[int, ...]]
    used: dict[str, Array] = field(default_factory=dict)
    iterators: set[str] = field(default_factory=set)

    def find(self, name: str, node: c_ast.Node) -> Array:
        """The array ``name`` that ``node`` refers to. Raises SpecError."""
        if name not in self.used:
            self.used[name] = self._resolve(name, node)
        return self.used[name]

    def declare(self, array: Array, node: c_ast.Node, iterators: Sequence[str]) -> None:
        """Add a scalar declared in the region; two with the same name and type are one array."""
        name = array.name
        taken = name in iterators or name in self.shapes or name in RESERVED
        if taken or name in self.source.constants or self.used.get(name, array) != array:
            self.source.fail(place_of(node), f"the name {name} is taken; rename this one")
        self.used[name] = array

    def _resolve(self, name: str, node: c_ast.Node) -> Array:
        place = place_of(node)
        if name in self.source.constants or name in RESERVED:
            what = "a macro" if name in self.source.constants else "a word of isl's notation"
            self.source.fail(place, f"{name} is {what}; rename the array")
        if name in self.iterators:
            what = f"{name} is the iterator of a loop that does not enclose this"
            self.source.fail(place, what, RULE)
        candidates = self.declared.get(name, ())
        shapes = {d.sizes: d for d in candidates}
        if not candidates and name not in self.shapes:
            self.source.fail(place, f"{name} is not declared", RULE)
        if len(shapes) > 1 or any(declared.pointer for declared in candidates):
            what = f"{name} is declared as {' and as '.join(map(str, shapes.values()))}"
            self.source.fail(place, what, RULE)
        dtype = candidates[0].dtype_c if candidates else "float"
        shape = self._shape(candidates[0]) if candidates else self.shapes[name]
        if self.shapes.get(name, shape) != shape:
            what = f"{name} is declared with the extents {shape}, but given {self.shapes[name]}"
            self.source.fail(place, what)
        return Array(name, shape, dtype)

    def _shape(self, declared: ArrayDeclaration) -> tuple[int, ...]:
        place = self.source.place(declared.offset)
        values = [integer(size, self.source.constants) for size in declared.sizes]
        for size, value in zip(declared.sizes, values, strict=True):
            if value is None or value < 1:
                what = f"the extent {size[:24]!r} of {declared.name} is not a positive integer"
                self.source.fail(place, what, RULE)
        shape = tuple(value for value in values if value is not None)
        if prod(shape) > LARGEST:
            self.source.fail(place, f"{declared.name} has more than 2^63 elements")
        return shape


def shapes_of_arguments(arrays: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """The caller's ``arrays``, checked. Raises SpecError."""
    shapes = {}
    for name, extents in (arrays or {}).items():
        shape = tuple(extents)
        if not name.isascii() or not name.isidentifier() or name in KEYWORDS:
            raise SpecError(f"arrays: {name!r} is not a C identifier")
        if any(type(extent) is not int or extent < 1 for extent in shape):
            raise SpecError(f"arrays: expected positive integers as extents of {name}, got {shape}")
        if prod(shape) > LARGEST:
            raise SpecError(f"arrays: {name} has more than 2^63 elements")
        shapes[name] = shape
    return shapes


def access(
    node: c_ast.Node,
    kind: str,
    level: LoopLevel,
    domain: isl.Set,
    where: isl.Set | None,
    arrays: ArrayTable,
) -> Access:
    """One reference, in bounds for all of ``domain`` (and ``where``). Raises SpecError."""
    base, subscripts = _subscripts(node)
    if not isinstance(base, c_ast.ID):
        arrays.source.fail(place_of(node), "only plain arrays can be subscripted", RULE)
    array = arrays.find(base.name, base)
    if len(subscripts) != len(array.shape):
        what = f"{array.name} has {len(array.shape)} dimensions, not {len(subscripts)}"
        arrays.source.fail(place_of(node), what, f"It is declared as {array}.")
    domain = domain if where is None else domain.intersect(where)
    relation = isl.Map.from_domain(isl.Set.universe(domain.get_space()))
    for axis, subscript in enumerate(subscripts):
        value = affine(subscript, level)
        _check_bounds(subscript, value, array, axis, level, domain)
        relation = relation.flat_range_product(isl.Map.from_pw_aff(value))
    relation = relation if where is None else relation.intersect_domain(where)
    return Access(array.name, kind, relation.set_tuple_name(isl.dim_type.out, array.name))


def _subscripts(node: c_ast.Node) -> tuple[c_ast.Node, list[c_ast.Node]]:
    subscripts = []
    while isinstance(node, c_ast.ArrayRef):
        subscripts.append(node.subscript)
        node = node.name
    return node, subscripts[::-1]


def _check_bounds(
    node: c_ast.Node, value: isl.PwAff, array: Array, axis: int, level: LoopLevel, domain: isl.Set
) -> None:
    extent = array.shape[axis]
    outside = value.lt_set(level.constant(0)).union(value.ge_set(level.constant(extent)))
    outside = outside.intersect(domain)
    if outside.is_empty():
        return
    point = outside.sample_point()
    values = [
        point.get_coordinate_val(isl.dim_type.set, dim).to_python() for dim in range(level.depth)
    ]
    reached = value.eval(point).to_python()
    at = ", ".join(f"{n} = {v}" for n, v in zip(level.iterators, values, strict=True))
    what = f"subscript {axis} of {array.name} is {reached} at {at or 'the only iteration'}"
    level.source.fail(place_of(node), what, f"Its range is 0 to {extent - 1}: {array}.")
