"""Elements whose places are data: Gather and its kin, Compress, one-hot vectors, reversals."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from polysci.graph import shapes
from polysci.graph.graph import Node
from polysci.graph.operators.builder import FLOATS, Builder, attribute_axes
from polysci.graph.operators.table import Operator
from polysci.graph.reference import indexing
from polysci.loop_ir.expressions import (
    Computed,
    Index,
    Load,
    Lookup,
    Position,
    apply,
    axis,
    combine,
    constant,
)
from polysci.numerics.arrays import Array
from polysci.polyhedral.affine import Affine
from polysci.program.stages import ViewStage

INDICES = ("int32", "int64")


def gather(build: Builder, node: Node) -> None:
    """Slices along an axis; constant places that are evenly spaced are another name for them."""
    x, indices = node.inputs[:2]
    shape, rank = build.shape(x), len(build.shape(indices))
    (along,) = attribute_axes([node.attributes.get("axis", 0)], len(shape))
    check_places(build, node, [shape[along]])
    index: list[Index] = [axis(at + (rank - 1) * (at > along)) for at in range(len(shape))]
    known = build.constant(indices)
    if known is None:
        places = Load(indices, tuple(axis(along + at) for at in range(rank)))
        index[along] = Computed(places, shape[along])
    else:
        index[along] = _table(known % max(1, shape[along]), along)
    _select(build, node, tuple(index))


def _select(build: Builder, node: Node, index: tuple[Index, ...]) -> None:
    """Elements of x as a view where that is possible."""
    forms = tuple(subscript for subscript in index if isinstance(subscript, Affine))
    if len(forms) == len(index):
        build.stages.append(ViewStage(str(node), node.outputs[0], node.inputs[0], forms))
    else:
        build.define(node, Load(node.inputs[0], index))


def _table(places: Array, first: int) -> Affine | Lookup:
    """Constants by the axes from ``first`` on: an affine form if they are evenly spaced."""
    names = [f"i{first + at}" for at in range(places.ndim)]
    if not places.size:
        return constant(0)
    start = int(places.reshape(-1)[0])
    steps = [
        int(places[(0,) * at + (1,) + (0,) * (places.ndim - at - 1)]) - start if size > 1 else 0
        for at, size in enumerate(places.shape)
    ]
    grid = np.indices(places.shape)
    even = start + sum(step * grid[at] for at, step in enumerate(steps))
    repeats = any(not step and size > 1 for step, size in zip(steps, places.shape, strict=True))
    if np.array_equal(places, even) and not repeats:
        return combine(dict(zip(names, steps, strict=True)), start)
    strides = [prod(places.shape[at + 1 :]) for at in range(places.ndim)]
    table = tuple(int(place) for place in places.reshape(-1))
    return Lookup(table, combine(dict(zip(names, strides, strict=True))))


def check_places(build: Builder, node: Node, extents: Sequence[int], position: int = 1) -> None:
    """Refuses indices of another type, constant ones outside, and places in nothing.

    ``extents`` are those of the axes that the last axis of the indices names, or of the only one.
    """
    name = node.inputs[position]
    build.check_numbers(node, node.inputs[0])
    if build.dtype(name) not in INDICES:
        build.refuse(f"indices of {build.dtype(name)}")
    known = build.constant(name)
    if not build.values[name].size:
        return
    if not all(extents):
        build.refuse("places in an axis without elements")
    if known is None:
        return
    limits = np.array(extents) if len(extents) > 1 else extents[0]
    if np.any(known < -limits) or np.any(known >= limits):
        build.refuse(f"indices outside of axes of {list(extents)} elements")


def gather_elements(build: Builder, node: Node) -> None:
    x, indices = node.inputs[:2]
    shape, wanted = build.shape(x), build.shape(indices)
    (along,) = attribute_axes([node.attributes.get("axis", 0)], len(shape))
    check_shapes(build, wanted, shape, along)
    check_places(build, node, [shape[along]])
    index: list[Index] = [axis(at) for at in range(len(shape))]
    index[along] = Computed(Load(indices, tuple(map(axis, range(len(shape))))), shape[along])
    build.define(node, Load(x, tuple(index)))


def check_shapes(build: Builder, wanted: Sequence[int], shape: Sequence[int], along: int) -> None:
    """Refuses indices that reach beyond x along another axis than ``along``."""
    pairs = enumerate(zip(wanted, shape, strict=False))
    if len(wanted) != len(shape) or any(a > b for at, (a, b) in pairs if at != along):
        build.refuse(f"indices {list(wanted)} for a tensor {list(shape)} along axis {along}")


def gather_nd(build: Builder, node: Node) -> None:
    """Slices whose first axes, behind ``batch_dims`` shared ones, are named by vectors."""
    x, indices = node.inputs[:2]
    shape, wanted = build.shape(x), build.shape(indices)
    batch, outer = int(node.attributes.get("batch_dims", 0)), len(wanted) - 1
    extents = shape[batch : batch + wanted[-1]]
    if not 0 <= batch <= outer or shape[:batch] != wanted[:batch] or len(extents) != wanted[-1]:
        build.refuse(f"indices {list(wanted)} for x {list(shape)} with batch_dims {batch}")
    check_places(build, node, extents)
    index: list[Index] = [axis(at) for at in range(batch)]
    index += vector_places(indices, outer, extents)
    index += [axis(outer + at) for at in range(len(shape) - len(index))]
    build.define(node, Load(x, tuple(index)))


def vector_places(indices: str, outer: int, extents: Sequence[int]) -> list[Computed]:
    """The subscripts that vectors, one at every place of ``outer`` axes, name."""
    place = tuple(axis(at) for at in range(outer))
    return [
        Computed(Load(indices, (*place, constant(at))), extent) for at, extent in enumerate(extents)
    ]


def compress(build: Builder, node: Node) -> None:
    """The slices, or elements, where a constant condition holds."""
    x, rank = node.inputs[0], len(build.shape(node.inputs[0]))
    build.check_numbers(node, x)
    condition = build.known(node, 1, "condition")
    assert condition is not None
    kept = np.flatnonzero(condition)
    if "axis" in node.attributes:
        (along,) = attribute_axes([node.attributes["axis"]], rank)
        index: list[Index] = [axis(at) for at in range(rank)]
        index[along] = _table(kept, along)
        _select(build, node, tuple(index))
        return
    flat = build.fresh(f"{x}.flat", (build.values[x].size,), build.dtype(x))
    build.stages.append(ViewStage(str(node), flat, x))
    build.define(node, Load(flat, (_table(kept, 0),)))


def one_hot(build: Builder, node: Node) -> None:
    """``on`` where an index is the position along a new axis; none outside of it is."""
    indices, _, values = node.inputs[:3]
    y, rank = node.outputs[0], len(build.shape(indices))
    build.check_numbers(node, indices, values)
    build.known(node, 1, "depth")
    (along,) = attribute_axes([node.attributes.get("axis", -1)], rank + 1)
    size = build.shape(y)[along]
    place = Load(indices, tuple(axis(at + (at >= along)) for at in range(rank)))
    here = apply("to_long", place) if build.dtype(indices) in FLOATS else place
    back = apply("add", here, Position(Affine((), size)))
    wrapped = apply("select", apply("less", here, Position(constant(0))), back, here)
    off, on = (Load(values, (constant(at),)) for at in range(2))
    same = apply("equal", wrapped, Position(axis(along)))
    build.define(node, apply("select", same, on, off))


def reverse_sequence(build: Builder, node: Node) -> None:
    """The first elements along the axis of time, as many as a length says, in reverse."""
    x, lengths = node.inputs[:2]
    shape = build.shape(x)
    build.check_numbers(node, x)
    listed = [node.attributes.get(name, at) for name, at in (("time_axis", 0), ("batch_axis", 1))]
    time, batch = attribute_axes([int(number) for number in listed], len(shape))
    if time == batch or build.shape(lengths) != (shape[batch],):
        build.refuse(f"lengths {list(build.shape(lengths))} along axes {time} and {batch} of x")
    length, here = Load(lengths, (axis(batch),)), Position(axis(time))
    mirrored = apply("sub", length, Position(combine({f"i{time}": 1}, 1)))
    place = apply("select", apply("less", here, length), mirrored, here)
    index: list[Index] = [axis(at) for at in range(len(shape))]
    index[time] = Computed(place, shape[time])
    build.define(node, Load(x, tuple(index)))


ROWS = (
    Operator("gather", "Gather", gather, dims="gathered"),
    Operator("gather_elements", "GatherElements", gather_elements,
             reference=indexing.gather_elements),
    Operator("gather_nd", "GatherND", gather_nd, dims="gathered_slices"),
    Operator("compress", "Compress", compress, shapes.compress),
    Operator("one_hot", "OneHot", one_hot),
    Operator("reverse_sequence", "ReverseSequence", reverse_sequence),
)  # fmt: skip
