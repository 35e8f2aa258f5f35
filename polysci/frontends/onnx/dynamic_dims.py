"""Tensors whose length data decides: the axes of nodes' results, and nodes that need a count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.onnx.data_shapes import slice_by_data
from polysci.frontends.onnx.dynamic_node import DynamicNode
from polysci.frontends.onnx.reader import (
    Expansion,
    ExpansionError,
    Reader,
    operator_name,
)
from polysci.graph.graph import Node
from polysci.graph.operators import OPERATORS, operator_of_onnx
from polysci.graph.operators.table import DynamicDims
from polysci.program.stages import DynamicDim

_MIXED = "it mixes elements along an axis of which data decides the length"
_TWO = "its inputs have axes of which data decides the length in two ways"

Shapes = Mapping[str, Sequence[int]]
_Rule = Callable[[Reader, Node, Shapes], DynamicDim]


def dynamic_dims_of(reader: Reader, node: Node, shapes: Shapes) -> dict[str, DynamicDim]:
    """Return such axes by result of a node with inputs that have one; ``shapes`` are the results'.

    Raises ExpansionError for a node that does not keep places along it apart.
    """
    row = OPERATORS.get(node.op)
    if row is None or not row.dims:
        raise ExpansionError(_MIXED)
    rule = _RULES[row.dims]
    mark = rule(reader, node, shapes)
    return {name: mark for name in node.outputs if name}


def _first(reader: Reader, node: Node, shapes: Shapes | None = None) -> DynamicDim:
    """Return the axis of the first input, the only one that may have any."""
    if any(name in reader.dynamic_dims for name in node.inputs[1:]):
        raise ExpansionError(_MIXED)
    return reader.dynamic_dims[node.inputs[0]]


def _shape(reader: Reader, node: Node) -> Sequence[int]:
    """Return the shape of the first input."""
    return reader.table.shape(node.inputs[0])


def _alike(reader: Reader, node: Node, shapes: Shapes, *, repeats: bool = False) -> DynamicDim:
    """Return the axis that all inputs with one share; others have one element there.

    ``repeats``: the number of elements there is that of the result.
    """
    rank, marks = len(shapes[node.outputs[0]]), dict[DynamicDim, None]()
    for name in filter(None, node.inputs):
        if mark := reader.dynamic_dims.get(name):
            place = mark.axis + rank - len(reader.table.shape(name))
            marks[DynamicDim(place, mark.count)] = None
    if len(marks) > 1:
        raise ExpansionError(_TWO)
    (mark,) = marks
    for name in filter(None, node.inputs):
        shape = reader.table.shape(name)
        place = mark.axis - rank + len(shape)
        if name not in reader.dynamic_dims and place >= 0 and shape[place] > 1 and not repeats:
            raise ExpansionError(f"{shape[place]} elements beside as many as data decides")
    return mark


def _images(reader: Reader, node: Node, shapes: Shapes) -> DynamicDim:
    mark = _first(reader, node)
    if mark.axis:
        raise ExpansionError(_MIXED)
    return mark


def _along(reader: Reader, node: Node, shapes: Shapes) -> DynamicDim:
    """Mix elements along one axis."""
    mark, rank = _first(reader, node), len(shapes[node.outputs[0]])
    if mark.axis == int(node.attributes.get("axis", -1)) % rank:
        raise ExpansionError(_MIXED)
    return mark


def _onward(reader: Reader, node: Node, shapes: Shapes) -> DynamicDim:
    """Mix elements along all axes from one on."""
    mark, rank = _first(reader, node), len(shapes[node.outputs[0]])
    if mark.axis >= int(node.attributes.get("axis", -1)) % rank:
        raise ExpansionError(_MIXED)
    return mark


def _scanned(reader: Reader, node: Node, shapes: Shapes) -> DynamicDim:
    """Sum what is before, or behind."""
    mark, rank = _first(reader, node), len(shapes[node.outputs[0]])
    known = reader.table.values.get(node.input(1))
    axis = -1 if known is None else int(known.reshape(-1)[0])
    if node.attributes.get("reverse") and mark.axis == axis % rank:
        raise ExpansionError(_MIXED)
    return mark


def _reduced(reader: Reader, node: Node, shapes: Shapes) -> DynamicDim:
    known = reader.table.values.get(node.input(1))
    axes = [] if known is None else known.reshape(-1).tolist()
    every = range(0 if node.attributes.get("noop_with_empty_axes") else len(_shape(reader, node)))
    return _drop(reader, node, axes or every)


def _reduced_to_place(reader: Reader, node: Node, shapes: Shapes) -> DynamicDim:
    return _drop(reader, node, [node.attributes.get("axis", 0)])


def _drop(reader: Reader, node: Node, axes: Sequence[int]) -> DynamicDim:
    """Return the axis of the first input without others, which are gone unless they are kept."""
    mark, rank = _first(reader, node), len(_shape(reader, node))
    gone = {int(axis) % rank for axis in axes}
    if mark.axis in gone:
        raise ExpansionError(_MIXED)
    if node.attributes.get("keepdims", 1):
        return mark
    return DynamicDim(mark.axis - sum(axis < mark.axis for axis in gone), mark.count)


def _transposed(reader: Reader, node: Node, shapes: Shapes) -> DynamicDim:
    mark, rank = _first(reader, node), len(shapes[node.outputs[0]])
    order = node.attributes.get("perm", range(rank)[::-1])
    return DynamicDim(list(order).index(mark.axis), mark.count)


def _reshaped(reader: Reader, node: Node, shapes: Shapes) -> DynamicDim:
    """Return an axis of as many elements, behind as many places."""
    mark, shape = _first(reader, node), reader.table.shape(node.inputs[0])
    before, new = prod(shape[: mark.axis]), shapes[node.outputs[0]]
    for at, size in enumerate(new):
        if size == shape[mark.axis] and prod(new[:at]) == before:
            return DynamicDim(at, mark.count)
    raise ExpansionError(_MIXED)


def _gathered(reader: Reader, node: Node, shapes: Shapes) -> DynamicDim:
    x, indices = node.inputs[:2]
    rank, inner = len(reader.table.shape(x)), len(reader.table.shape(indices))
    along, mark = int(node.attributes.get("axis", 0)) % rank, reader.dynamic_dims.get(indices)
    if x not in reader.dynamic_dims:
        assert mark
        return DynamicDim(along + mark.axis, mark.count)
    if mark:
        raise ExpansionError(_TWO)
    own = reader.dynamic_dims[x]
    return DynamicDim(own.axis + (inner - 1) * (own.axis > along), own.count)


def _gathered_slices(reader: Reader, node: Node, shapes: Shapes) -> DynamicDim:
    """GatherND: vectors of indices, any number of them."""
    x, indices = node.inputs[:2]
    mark, shape = reader.dynamic_dims.get(indices), reader.table.shape(indices)
    if mark is None or x in reader.dynamic_dims or mark.axis == len(shape) - 1:
        raise ExpansionError(_MIXED)
    return mark


def _sliced(reader: Reader, node: Node, shapes: Shapes) -> DynamicDim:
    """Slice other axes, or all of this one."""
    mark, x = _first(reader, node), reader.table.shape(node.inputs[0])
    if shapes[node.outputs[0]][mark.axis] != x[mark.axis]:
        raise ExpansionError("a part of an axis of which data decides the length")
    return mark


def _joined(reader: Reader, node: Node, shapes: Shapes) -> DynamicDim:
    """Concatenate tensors of one length along another axis."""
    marks = {reader.dynamic_dims.get(name) for name in node.inputs}
    if len(marks) > 1:
        raise ExpansionError(_TWO)
    (mark,) = marks
    assert mark
    return mark


def _product(reader: Reader, node: Node, shapes: Shapes) -> DynamicDim:
    """Rows of the first factor, of one matrix or many, or columns of the second one."""
    factors, result = node.inputs[:2], len(shapes[node.outputs[0]])
    own, rank = reader.dynamic_dims.get(factors[1]), len(reader.table.shape(factors[1]))
    if own and factors[0] not in reader.dynamic_dims and node.op == "matmul":
        if own.axis != rank - 1 or rank < 2:
            raise ExpansionError(_MIXED)
        return DynamicDim(result - 1, own.count)
    mark, rank = _first(reader, node), len(reader.table.shape(node.inputs[0]))
    if mark.axis == rank - 1 or node.attributes.get("transpose_a") or rank < 2:
        raise ExpansionError(_MIXED)
    return DynamicDim(mark.axis + len(shapes[node.outputs[0]]) - rank, mark.count)


def _regions(reader: Reader, node: Node, shapes: Shapes) -> DynamicDim:
    """RoiAlign: any number of regions."""
    if node.inputs[0] in reader.dynamic_dims:
        raise ExpansionError(_MIXED)
    return next(
        reader.dynamic_dims[name] for name in node.inputs[1:] if name in reader.dynamic_dims
    )


_RULES: Mapping[DynamicDims, _Rule] = MappingProxyType(
    {
        "alike": _alike, "expanded": partial(_alike, repeats=True), "images": _images,
        "along": _along, "onward": _onward, "scanned": _scanned, "reduced": _reduced,
        "reduced_to_place": _reduced_to_place, "reshaped": _reshaped, "transposed": _transposed,
        "joined": _joined, "sliced": _sliced, "gathered": _gathered,
        "gathered_slices": _gathered_slices, "product": _product, "regions": _regions,
        "first": _first,
    }
)  # fmt: skip


def expansion_of_counts(reader: Reader, proto: Any) -> Expansion | None:
    """Return the expansion to a tensor of bounded length and its count, where data decides it."""
    op = operator_of_onnx(operator_name(proto))
    expand = _MAKERS.get(op)
    if expand is None or (op == "compress" and proto.input[1] in reader.table.values):
        return None
    return lambda reader, proto: expand(DynamicNode(reader, proto, reader.node(proto)))


def expansion_of_dynamic(reader: Reader, proto: Any) -> Expansion | None:
    """Return the expansion of a node that mixes elements inside and behind the count."""
    if not any(name in reader.dynamic_dims for name in proto.input):
        return None
    call = DynamicNode(reader, proto, reader.node(proto))
    mixer = _MIXERS.get(call.node.op)
    if mixer is None:
        return None
    marks = [call.dynamic_dim(name) for name in call.node.inputs[: mixer.count]]
    mixes = {mark.axis for mark in marks if mark} & {*mixer.axes(call)}
    return (lambda reader, proto: mixer.expand(call)) if mixes else None


def _places_of(call: DynamicNode, name: str) -> tuple[str, str]:
    """Return the places of what is not 0, one a column, and how many there are."""
    reader, shape = call.reader, call.shape(name)
    places, count = (reader.fresh(f"{call.title}/{word}") for word in ("places", "count"))
    reader.append(Node("non_zero", (name,), (places, count), name=call.title), {
        places: ("int64", (max(1, len(shape)), prod(shape))), count: ("int64", ())
    })  # fmt: skip
    return places, count


def _non_zero(call: DynamicNode) -> None:
    places, count = _places_of(call, call.replace_rest(call.node.inputs[0], 0))
    call.give(places, call.node.outputs[0], DynamicDim(1, count))


def _compress(call: DynamicNode) -> None:
    """Gather the places where the condition holds."""
    x, condition = call.node.inputs
    axis = call.node.attributes.get("axis")
    if axis is None:
        if call.dynamic_dim(x):
            raise ExpansionError("all elements of a tensor of which data decides the length")
        x, axis = call.reshape(x, [prod(call.shape(x))]), 0
    rank, length = len(call.shape(x)), call.shape(condition)[0]
    if not -rank <= axis < rank or length > call.shape(x)[axis]:
        raise ExpansionError(f"axis {axis} and a condition of {length} for {call.shape(x)}")
    places, count = _places_of(call, call.replace_rest(condition, 0))
    flat = call.reshape(places, [length])
    shape = list(call.shape(x))
    shape[axis] = length
    if (mark := call.dynamic_dim(x)) and mark.axis != axis % rank:
        raise ExpansionError("two axes of which data decides the length")
    taken = call.add("gather", (x, flat), call.dtype(x), shape, axis=axis)
    call.give(taken, call.node.outputs[0], DynamicDim(axis % rank, count))


def _suppress(call: DynamicNode) -> None:
    """Expand NonMaxSuppression: rows (image, class, box), and how many."""
    reader, node = call.reader, call.node
    boxes, scores = node.inputs[:2]
    shape = call.shape(scores)
    if len(shape) != 3 or call.shape(boxes) != (shape[0], shape[2], 4):
        raise ExpansionError(f"boxes {list(call.shape(boxes))}, scores {list(shape)}")
    limit = np.array(0) if not node.input(2) else reader.table.values.get(node.input(2))
    most = shape[2] if limit is None else min(max(int(limit.reshape(-1)[0]), 0), shape[2])
    marks = [mark for name in (boxes, scores) if (mark := call.dynamic_dim(name))]
    if any(mark.count != marks[0].count for mark in marks) or any(
        mark.axis != at
        for at, name in ((1, boxes), (2, scores))
        if (mark := call.dynamic_dim(name))
    ):
        raise ExpansionError("data decides of how many images or classes")
    inputs = [node.input(at) for at in range(5)] + [mark.count for mark in marks[:1]]
    selected, count = (reader.fresh(f"{call.title}/{word}") for word in ("rows", "count"))
    attributes = MappingProxyType({**node.attributes, "most": most})
    reader.append(
        Node("non_max_suppression", tuple(inputs), (selected, count), attributes, node.name),
        {selected: ("int64", (shape[0] * shape[1] * most, 3)), count: ("int64", ())},
    )
    call.give(selected, node.outputs[0], DynamicDim(0, count))


def _shape_of(call: DynamicNode) -> None:
    """Concatenate constants, and the count among them."""
    (x,), attributes = call.node.inputs, call.node.attributes
    shape, mark = call.shape(x), call.dynamic_dim(x)
    assert mark
    places = range(len(shape))[attributes.get("start", 0) : attributes.get("end", len(shape))]
    parts = [
        call.reshape(mark.count, [1]) if at == mark.axis
        else call.integers("extent", [shape[at]])
        for at in places
    ]  # fmt: skip
    joined = call.integers("extents", [])
    if parts:
        joined = call.add("concat", parts, "int64", (len(parts),), axis=0)
    call.give(joined, call.node.outputs[0])


def _size_of(call: DynamicNode) -> None:
    (x,) = call.node.inputs
    mark, shape = call.dynamic_dim(x), call.shape(x)
    assert mark
    others = prod(size for at, size in enumerate(shape) if at != mark.axis)
    call.give(call.count("mul", mark.count, others), call.node.outputs[0])


def _reduce(call: DynamicNode, neutral: float | str) -> None:
    """Reduce a tensor whose elements behind the count are ``neutral``."""
    x, *others = call.node.inputs
    if call.dtype(x) == "bool":
        raise ExpansionError("truth values along an axis of which data decides the length")
    (result,) = call.again([call.replace_rest(x, neutral), *others])
    call.give(result, call.node.outputs[0])


def _mean(call: DynamicNode) -> None:
    """Divide the sum by how many there are."""
    x, *others = call.node.inputs
    mark, dtype = call.dynamic_dim(x), call.dtype(x)
    assert mark
    if not dtype.startswith("float"):
        raise ExpansionError(f"elements of {dtype} along an axis of which data decides the length")
    bound = call.shape(x)[mark.axis]
    (mean,) = call.again([call.replace_rest(x, 0), *others])
    count = call.cast_count(mark, x)
    length = call.constant("bound", np.array(bound, dtype))
    share = call.add("div", (length, count), dtype, ())
    y = call.add("mul", (mean, share), dtype, call.shape(mean))
    call.give(y, call.node.outputs[0])


def _softmax(call: DynamicNode) -> None:
    """Compute shares of what is there: what lies behind the count has none."""
    (x,) = call.node.inputs
    (result,) = call.again([call.replace_rest(x, "least")])
    call.give(result, call.node.outputs[0], call.dynamic_dim(x))


def _matmul(call: DynamicNode) -> None:
    """Sum the products of as many elements of both factors as there are."""
    x, w = call.node.inputs
    marks, rank = [call.dynamic_dim(name) for name in (x, w)], len(call.shape(w))
    if not (marks[0] and marks[1]) or (marks[1].count, marks[1].axis) != (
        marks[0].count, max(0, rank - 2)
    ):  # fmt: skip
        raise ExpansionError(_TWO)
    (result,) = call.again([call.replace_rest(name, 0) for name in (x, w)])
    call.give(result, call.node.outputs[0])


def _top_k(call: DynamicNode) -> None:
    """Take the first of those that are counted; k may be data too, if it is no more than these."""
    x, k = call.node.inputs
    mark = call.dynamic_dim(x)
    assert mark
    largest = call.node.attributes.get("largest", 1)
    known = call.reader.table.values.get(k)
    bound = call.shape(x)[mark.axis]
    most = bound if known is None else min(bound, int(known.reshape(-1)[0]))
    count = call.reshape(k, []) if known is None else call.integers("number", most)
    count = call.count("min", count, mark.count)
    neutral = "least" if largest else "most"
    results = call.again([call.replace_rest(x, neutral), call.integers("k", [most])])
    for name, output in zip(results, call.node.outputs, strict=True):
        call.give(name, output, DynamicDim(mark.axis, count))


def _gather(call: DynamicNode) -> None:
    """Gather; places that count from the end count from the last one there is."""
    x, indices = call.node.inputs
    mark = call.dynamic_dim(x)
    known = call.reader.table.values.get(indices)
    assert mark
    if known is None or np.any(known < 0):
        shape, dtype = call.shape(indices), call.dtype(indices)
        zero = call.constant("zero", np.array(0, dtype))
        count = call.cast_count(mark, indices)
        behind = call.add("add", (indices, count), dtype, shape)
        back = call.add("less", (indices, zero), "bool", shape)
        moved = call.add("select", (back, behind, indices), dtype, shape)
        if inner := call.dynamic_dim(indices):
            call.reader.dynamic_dims[moved] = inner
        indices = moved
    plain = call.add("identity", (x,), call.dtype(x), call.shape(x))
    (taken,) = call.again([plain, indices])
    call.give(taken, call.node.outputs[0], call.dynamic_dim(taken))


def _slice(call: DynamicNode) -> None:
    """Slice what is there: ends below 0 count from its last element."""
    x, *names = call.node.inputs
    mark, shape = call.dynamic_dim(x), list(call.shape(x))
    assert mark
    known = [call.reader.table.values.get(name) for name in names]
    if len(known) < 2 or any(value is None for value in known):
        slice_by_data(call)
        return
    starts, ends, axes, steps = (
        value.reshape(-1).tolist() if value is not None else default
        for value, default in zip(
            [*known, None, None][:4], ([], [], [*range(len(shape))], []), strict=True
        )
    )
    at = [axis % len(shape) for axis in axes].index(mark.axis)
    if steps and steps[at] != 1:
        raise ExpansionError(f"every {steps[at]}th along an axis of which data decides the length")
    start, end, length = starts[at], ends[at], shape[mark.axis]
    first, last = (_clip(call, mark.count, place) for place in (start, end))
    count = call.count("max", call.count("sub", last, first), 0)
    most = (end if end >= 0 else end + length * (start >= 0)) - start
    most = min(end, -start) if start < 0 <= end else most
    most = max(0, min(most, length - max(start, 0)))
    places = call.integers("places", range(max(start, 0), max(start, 0) + most))
    if start < 0:
        places = call.add("add", (places, first), "int64", (most,))
    shape[mark.axis] = most
    part = call.add("gather", (x, places), call.dtype(x), shape, axis=mark.axis)
    starts[at], ends[at] = 0, most
    rows = (starts, ends, axes, steps) if steps else (starts, ends, axes)
    (result,) = call.again([part, *(call.integers("ends", row) for row in rows)])
    call.give(result, call.node.outputs[0], DynamicDim(mark.axis, count))


def _clip(call: DynamicNode, count: str, place: int) -> str:
    """Return a place as Slice counts it, among ``count`` elements."""
    if place >= 0:
        return call.count("min", count, place)
    return call.count("max", call.count("add", count, place), 0)


def _concat(call: DynamicNode) -> None:
    """Concatenate parts, without what lies behind the count of each."""
    names, axis = call.node.inputs, call.axis(0)
    marks = [call.dynamic_dim(name) for name in names]
    if any(mark and mark.axis != axis for mark in marks):
        raise ExpansionError("two axes of which data decides the length")
    lengths, dtype = [call.shape(name)[axis] for name in names], call.dtype(names[0])
    total, shape = sum(lengths), list(call.shape(names[0]))
    shape[axis] = total
    whole = call.add("concat", names, dtype, shape, axis=axis)
    masks = [
        call.mask(length, mark.count if mark else call.integers("number", length), [length])
        for length, mark in zip(lengths, marks, strict=True)
    ]
    mask = call.add("concat", masks, "bool", (total,), axis=0)
    places, count = _places_of(call, mask)
    flat = call.reshape(places, [total])
    taken = call.add("gather", (whole, flat), dtype, shape, axis=axis)
    call.give(taken, call.node.outputs[0], DynamicDim(axis, count))


_Maker = Callable[[DynamicNode], None]
_MAKERS: Mapping[str, _Maker] = MappingProxyType(
    {"non_zero": _non_zero, "compress": _compress, "non_max_suppression": _suppress}
)


@dataclass(frozen=True, slots=True)
class _Mixer:
    """The expansion of an operator that mixes elements of its inputs along ``axes``.

    ``count`` is how many of its inputs these are, from the first on; None: all.
    """

    expand: _Maker
    axes: Callable[[DynamicNode], Sequence[int]]
    count: int | None = 1


def _reduction(neutral: float | str) -> _Mixer:
    return _Mixer(partial(_reduce, neutral=neutral), lambda call: call.axes(1))


def _reduction_to_place(neutral: str) -> _Mixer:
    return _Mixer(partial(_reduce, neutral=neutral), lambda call: [call.axis(0)])


_MIXERS: Mapping[str, _Mixer] = MappingProxyType(
    {
        "shape": _Mixer(_shape_of, lambda call: range(call.rank_read)),
        "size": _Mixer(_size_of, lambda call: range(call.rank_read)),
        **dict.fromkeys(
            ("reduce_sum", "reduce_l1", "reduce_l2", "reduce_sum_square"), _reduction(0)
        ),
        "reduce_prod": _reduction(1),
        "reduce_max": _reduction("least"),
        "reduce_min": _reduction("most"),
        "argmax": _reduction_to_place("least"),
        "argmin": _reduction_to_place("most"),
        "reduce_mean": _Mixer(_mean, lambda call: call.axes(1)),
        **dict.fromkeys(("softmax", "log_softmax"), _Mixer(_softmax, lambda call: [call.axis(-1)])),
        "matmul": _Mixer(_matmul, lambda call: [call.rank_read - 1]),
        "top_k": _Mixer(_top_k, lambda call: [call.axis(-1)]),
        "gather": _Mixer(_gather, lambda call: [call.axis(0)]),
        "slice": _Mixer(_slice, lambda call: call.axes(3)),
        "concat": _Mixer(_concat, lambda call: [call.axis(0)], None),
    }
)
