"""Elements read from, or written to, places that are data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.graph.builder import FLOATS, Backward
from polysci.graph.graph import Node, Tensor
from polysci.graph.operators.builder import Builder, attribute_axes
from polysci.graph.operators.table import (
    Evaluation,
    Inference,
    Operator,
)
from polysci.loop_ir.expressions import (
    Computed,
    Expr,
    Index,
    Load,
    Lookup,
    Number,
    Position,
    apply,
    axis,
    combine,
    constant,
)
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import Array
from polysci.program.stages import UpdateStage, ViewStage

INDICES = ("int32", "int64")


def gather(build: Builder, node: Node) -> None:
    """Slices along an axis; constant places that are evenly spaced are another name for them."""
    x, indices = node.inputs[:2]
    shape, rank = build.shape(x), len(build.shape(indices))
    (along,) = attribute_axes([node.attributes.get("axis", 0)], len(shape))
    check_places(build, node, [shape[along]])
    index: list[Index] = [axis(at + (rank - 1) * (at > along)) for at in range(len(shape))]
    known = build.constant_value(indices)
    if known is None:
        places = Load(indices, tuple(axis(along + at) for at in range(rank)))
        index[along] = Computed(places, shape[along])
    else:
        index[along] = _table(known % max(1, shape[along]), along)
    _select(build, node, tuple(index))


def gather_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Add each slice to the one that it was read from."""
    x, indices = node.inputs[:2]
    shape = back.shape(x)
    (along,) = attribute_axes([node.attributes.get("axis", 0)], len(shape))
    zeros = back.expand(back.number(0.0, back.dtype(x)), shape)
    places = back.reshape(indices, (*back.shape(indices), 1))
    names = (zeros, places, dys[0])
    dx = back.add("scatter_nd", names, shape, back.dtype(x), axis=along, reduction="add")
    return [dx, ""]


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
    known = build.constant_value(name)
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


def vector_places(
    indices: str, outer: int, extents: Sequence[int], first: int = 0
) -> list[Computed]:
    """The subscripts that vectors, one at every place of ``outer`` axes from ``first`` on, name."""
    place = tuple(axis(first + at) for at in range(outer))
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


# Reduction -> scalar function.
_REDUCTIONS = {"none": "", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def scatter_elements(build: Builder, node: Node) -> None:
    """``y[.., indices, ..] = updates``, else data."""
    data, indices, updates = node.inputs[:3]
    shape, wanted = build.shape(data), build.shape(indices)
    (along,) = attribute_axes([node.attributes.get("axis", 0)], len(shape))
    check_shapes(build, wanted, shape, along)
    check_places(build, node, [shape[along]])
    if build.shape(updates) != wanted:
        build.refuse(f"updates {list(build.shape(updates))} for indices {list(wanted)}")
    own = tuple(map(axis, range(len(shape))))
    index: list[Index] = list(own)
    index[along] = Computed(Load(indices, own), shape[along])
    _update(build, node, tuple(index), wanted, Load(updates, own))


def scatter_nd(build: Builder, node: Node) -> None:
    """Slices of y, whose first axes vectors name, become those of updates.

    Or axes from ``axis`` on, which ONNX does not have: those before them are alike in updates.
    """
    data, indices, updates = node.inputs[:3]
    shape, wanted = build.shape(data), build.shape(indices)
    first, outer = int(node.attributes.get("axis", 0)), len(wanted) - 1
    extents, behind = shape[first : first + wanted[-1]], shape[first + wanted[-1] :]
    box = build.shape(updates)
    if len(extents) != wanted[-1] or box != (*shape[:first], *wanted[:-1], *behind):
        shapes = f"indices {list(wanted)} and updates {list(box)}"
        build.refuse(f"{shapes} for data {list(shape)}")
    check_places(build, node, extents)
    index: list[Index] = [axis(at) for at in range(first)]
    index += vector_places(indices, outer, extents, first)
    index += [axis(first + outer + at) for at in range(len(behind))]
    _update(build, node, tuple(index), box, Load(updates, tuple(map(axis, range(len(box))))))


def _update(
    build: Builder, node: Node, index: tuple[Index, ...], box: Sequence[int], value: Expr
) -> None:
    """y, which holds data, with a value at every place of a box."""
    data, y = node.inputs[0], node.outputs[0]
    reduction = str(node.attributes.get("reduction", "none"))
    if reduction not in _REDUCTIONS:
        build.refuse(f"reduction {reduction}")
    if function := _REDUCTIONS[reduction]:
        value = apply(function, Load(y, index), value)
    build.define(node, build.load(data, y))
    if prod(box):
        build.stages.append(UpdateStage(str(node), y, tuple(box), index, value))


def tensor_scatter(build: Builder, node: Node) -> None:
    """A sequence written into a cache from an index a batch on, around its end where circular."""
    cache, update = node.inputs[:2]
    shape, box = build.shape(cache), build.shape(update)
    (along,) = attribute_axes([node.attributes.get("axis", -2)], len(shape))
    mode = str(node.attributes.get("mode", "linear"))
    build.check_numbers(node, cache)
    if mode not in ("linear", "circular") or along == 0:
        build.refuse(f"mode {mode} along axis {along}")
    check_shapes(build, box, shape, along)
    own = tuple(map(axis, range(len(shape))))
    index: list[Index] = list(own)
    if node.input(2):
        place: Expr = apply("add", Load(node.inputs[2], (axis(0),)), Position(own[along]))
        if mode == "circular":
            place = apply("mod", place, Position(constant(shape[along])))
        index[along] = Computed(place, shape[along])
    _update(build, node, tuple(index), box, Load(update, own))


def max_unpool(build: Builder, node: Node) -> None:
    """Elements back at the places, among all of y, that MaxPool took them from; 0 elsewhere."""
    x, indices, y = node.inputs[0], node.inputs[1], node.outputs[0]
    shape, size = build.shape(x), build.values[y].size
    build.check_numbers(node, x)
    if build.shape(indices) != shape:
        build.refuse(f"indices {list(build.shape(indices))} for x {list(shape)}")
    check_places(build, node, [size])
    flat = build.fresh(f"{y}.flat", (size,), build.dtype(x))
    build.define(node, Number(0.0), flat)
    own = tuple(map(axis, range(len(shape))))
    place = (Computed(Load(indices, own), size),)
    if prod(shape):
        build.stages.append(UpdateStage(str(node), flat, shape, place, Load(x, own)))
    build.stages.append(ViewStage(str(node), y, flat))


def infer_compress(of: Inference) -> Sequence[Tensor | None]:
    """Infer as many slices, or elements, as a constant condition has true entries."""
    condition, shape = of.value(1), list(of.shape)
    if condition is None:
        return of.results
    count, axis = int(np.count_nonzero(condition)), of.node.attributes.get("axis")
    if axis is None:
        shape = [count]
    elif -len(shape) <= axis < len(shape):
        shape[axis] = count
    return of.first(shape)


def infer_unpool(of: Inference) -> Sequence[Tensor | None]:
    """The shape that a constant third input has."""
    sizes = of.value(2)
    return of.results if sizes is None else of.first(sizes.reshape(-1).tolist())


ALONG_AXIS = ("gather", "gather_elements", "scatter_elements")


def with_places_inside(node: Node, known: Mapping[str, Array]) -> Mapping[str, Array]:
    """The tensors that a node reads, its indices from the first element of an axis to the last."""
    extents = _extents(node, known)
    if extents is None:
        return known
    position = 2 if node.op == "roi_align" else 1
    indices = known[node.inputs[position]]
    least = np.zeros_like(extents) if node.op == "roi_align" else -extents
    return {**known, node.inputs[position]: np.clip(indices, least, extents - 1)}


def _extents(node: Node, known: Mapping[str, Array]) -> NDArray[Any] | None:
    """Return the extents of the axes that the indices' last axis names, or of the only one."""
    if node.op not in (*ALONG_AXIS, "gather_nd", "scatter_nd", "roi_align"):
        return None
    shape, indices = known[node.inputs[0]].shape, known[node.inputs[1]]
    if node.op == "roi_align":
        return np.array(shape[0], np.int64)
    if node.op in ALONG_AXIS:
        return np.array(shape[node.attributes.get("axis", 0)], indices.dtype)
    first = int(node.attributes.get("batch_dims", 0) or node.attributes.get("axis", 0))
    return np.array(shape[first : first + indices.shape[-1]], indices.dtype)


_COMBINE: Mapping[str, np.ufunc] = MappingProxyType(
    {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
)


def scatter_nd_reference(of: Evaluation) -> list[Array] | None:
    """ScatterND of axes behind others, which ONNX does not have."""
    if "axis" not in of.node.attributes:
        return None
    first = int(of.node.attributes["axis"])
    data, indices, updates = of.inputs
    places = (slice(None),) * first + tuple(np.moveaxis(indices, -1, 0))
    y, function = data.copy(), _COMBINE.get(str(of.node.attributes.get("reduction", "none")))
    if function is None:
        y[places] = updates
    else:
        function.at(y, places, updates)
    return [y]


def gather_elements_reference(of: Evaluation) -> list[Array]:
    """GatherElements of any sizes: ONNX's reference takes few, and indices of the same shape."""
    x, indices = of.inputs
    places: list[Any] = [*np.indices(indices.shape, sparse=True)]
    places[of.node.attributes.get("axis", 0)] = indices
    return [x[tuple(places)]]


def max_unpool_reference(of: Evaluation) -> list[Array]:
    """MaxUnpool whose indices count in the shape of the result."""
    node, known = of.node, of.known
    x, indices = known[node.inputs[0]], known[node.inputs[1]]
    if node.input(2):
        shape = [int(size) for size in known[node.inputs[2]]]
    else:
        taps = node.attributes["kernel_shape"]
        strides = node.attributes.get("strides") or [1] * len(taps)
        pads = node.attributes.get("pads") or [0] * 2 * len(taps)
        padding = [pads[at] + pads[len(taps) + at] for at in range(len(taps))]
        sizes = zip(x.shape[2:], taps, strides, padding, strict=True)
        shape = [*x.shape[:2], *((n - 1) * stride - pad + tap for n, tap, stride, pad in sizes)]
    y = np.zeros(shape, x.dtype)
    y.reshape(-1)[indices.reshape(-1)] = x.reshape(-1)
    return [y]


ROWS = (
    Operator("gather", "Gather", gather, gradient=gather_gradient, dims="gathered"),
    Operator("gather_elements", "GatherElements", gather_elements,
             reference=gather_elements_reference),
    Operator("gather_nd", "GatherND", gather_nd, dims="gathered_slices"),
    Operator("compress", "Compress", compress, infer_compress, bounded=True,
             shape_inputs=slice(1, 2)),
    Operator("one_hot", "OneHot", one_hot, shape_inputs=slice(1, 2)),
    Operator("reverse_sequence", "ReverseSequence", reverse_sequence),
    Operator("scatter_elements", "ScatterElements", scatter_elements),
    Operator("scatter_nd", "ScatterND", scatter_nd, reference=scatter_nd_reference),
    Operator("tensor_scatter", "TensorScatter", tensor_scatter),
    Operator("max_unpool", "MaxUnpool", max_unpool, infer_unpool,
             reference=max_unpool_reference),
)  # fmt: skip
