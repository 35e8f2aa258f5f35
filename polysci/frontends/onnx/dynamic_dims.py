"""The axes of a node's results whose length data decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType

from polysci.frontends.onnx.reader import ExpansionError, Reader
from polysci.graph.graph import Node
from polysci.graph.operators import OPERATORS
from polysci.graph.operators.table import DynamicDims
from polysci.program.stages import CountedAxis

_MIXED = "it mixes elements along an axis of which data decides the length"
_TWO = "its inputs have axes of which data decides the length in two ways"

Shapes = Mapping[str, Sequence[int]]
_Rule = Callable[[Reader, Node, Shapes], CountedAxis]


def counted_axes(reader: Reader, node: Node, shapes: Shapes) -> dict[str, CountedAxis]:
    """Return such axes by result of a node with inputs that have one; ``shapes`` are the results'.

    Raises ExpansionError for a node that does not keep places along it apart.
    """
    row = OPERATORS.get(node.op)
    if row is None or not row.dims:
        raise ExpansionError(_MIXED)
    rule = _RULES[row.dims]
    mark = rule(reader, node, shapes)
    return {name: mark for name in node.outputs if name}


def _first(reader: Reader, node: Node) -> CountedAxis:
    """Return the axis of the first input, the only one that may have any."""
    if any(name in reader.counted for name in node.inputs[1:]):
        raise ExpansionError(_MIXED)
    return reader.counted[node.inputs[0]]


def _alike(reader: Reader, node: Node, shapes: Shapes) -> CountedAxis:
    rank, marks = len(shapes[node.outputs[0]]), dict[CountedAxis, None]()
    for name in filter(None, node.inputs):
        if mark := reader.counted.get(name):
            place = mark.axis + rank - len(reader.table.shape(name))
            marks[CountedAxis(place, mark.count)] = None
    if len(marks) > 1:
        raise ExpansionError(_TWO)
    (mark,) = marks
    for name in filter(None, node.inputs):
        shape = reader.table.shape(name)
        place = mark.axis - rank + len(shape)
        if name not in reader.counted and place >= 0 and shape[place] > 1 and node.op != "expand":
            raise ExpansionError(f"{shape[place]} elements beside as many as data decides")
    return mark


def _images(reader: Reader, node: Node, shapes: Shapes) -> CountedAxis:
    mark = _first(reader, node)
    if mark.axis:
        raise ExpansionError(_MIXED)
    return mark


def _along(reader: Reader, node: Node, shapes: Shapes) -> CountedAxis:
    mark, rank = _first(reader, node), len(shapes[node.outputs[0]])
    axis = int(node.attributes.get("axis", -1)) % rank
    known = reader.table.values.get(node.input(1)) if node.op == "cumsum" else None
    axis = axis if known is None else int(known.reshape(-1)[0]) % rank
    if node.op == "cumsum" and not node.attributes.get("reverse"):
        return mark  # sums of what is before
    many = node.op.endswith("_norm") and node.op != "lp_norm"
    many |= reader.table.opset < 13 and node.op.endswith("max")
    if mark.axis == axis or (many and mark.axis > axis):
        raise ExpansionError(_MIXED)
    return mark


def _reduced(reader: Reader, node: Node, shapes: Shapes) -> CountedAxis:
    """Reduce other axes: those before it may be gone."""
    mark, shape = _first(reader, node), reader.table.shape(node.inputs[0])
    if node.attributes.get("keepdims", 1):
        return mark
    axes = node.attributes.get("axes")
    if node.op.startswith("arg"):
        axes = [node.attributes.get("axis", 0)]
    elif axes is None:
        axes = reader.table.values[node.input(1)].reshape(-1).tolist()
    gone = {int(axis) % len(shape) for axis in axes}
    return CountedAxis(mark.axis - sum(axis < mark.axis for axis in gone), mark.count)


def _top(reader: Reader, node: Node, shapes: Shapes) -> CountedAxis:
    return _first(reader, node)  # along another axis, else it was replaced


def _transposed(reader: Reader, node: Node, shapes: Shapes) -> CountedAxis:
    mark, rank = _first(reader, node), len(shapes[node.outputs[0]])
    order = node.attributes.get("perm", range(rank)[::-1])
    return CountedAxis(list(order).index(mark.axis), mark.count)


def _reshaped(reader: Reader, node: Node, shapes: Shapes) -> CountedAxis:
    """Return an axis of as many elements, behind as many places."""
    mark, shape = _first(reader, node), reader.table.shape(node.inputs[0])
    before, new = prod(shape[: mark.axis]), shapes[node.outputs[0]]
    for at, size in enumerate(new):
        if size == shape[mark.axis] and prod(new[:at]) == before:
            return CountedAxis(at, mark.count)
    raise ExpansionError(_MIXED)


def _gathered(reader: Reader, node: Node, shapes: Shapes) -> CountedAxis:
    x, indices = node.inputs[:2]
    rank, inner = len(reader.table.shape(x)), len(reader.table.shape(indices))
    along, mark = int(node.attributes.get("axis", 0)) % rank, reader.counted.get(indices)
    if x not in reader.counted:
        assert mark
        return CountedAxis(along + mark.axis, mark.count)
    if mark:
        raise ExpansionError(_TWO)
    own = reader.counted[x]
    return CountedAxis(own.axis + (inner - 1) * (own.axis > along), own.count)


def _gathered_slices(reader: Reader, node: Node, shapes: Shapes) -> CountedAxis:
    """GatherND: vectors of indices, any number of them."""
    x, indices = node.inputs[:2]
    mark, shape = reader.counted.get(indices), reader.table.shape(indices)
    if mark is None or x in reader.counted or mark.axis == len(shape) - 1:
        raise ExpansionError(_MIXED)
    return mark


def _sliced(reader: Reader, node: Node, shapes: Shapes) -> CountedAxis:
    """Slice other axes, or all of this one."""
    mark, x = _first(reader, node), reader.table.shape(node.inputs[0])
    if shapes[node.outputs[0]][mark.axis] != x[mark.axis]:
        raise ExpansionError("a part of an axis of which data decides the length")
    return mark


def _joined(reader: Reader, node: Node, shapes: Shapes) -> CountedAxis:
    """Concatenate tensors of one length along another axis."""
    marks = {reader.counted.get(name) for name in node.inputs}
    if len(marks) > 1:
        raise ExpansionError(_TWO)
    (mark,) = marks
    assert mark
    return mark


def _product(reader: Reader, node: Node, shapes: Shapes) -> CountedAxis:
    """Rows of the first factor, of one matrix or many."""
    mark, rank = _first(reader, node), len(reader.table.shape(node.inputs[0]))
    if mark.axis == rank - 1 or node.attributes.get("transA") or rank < 2:
        raise ExpansionError(_MIXED)
    return CountedAxis(mark.axis + len(shapes[node.outputs[0]]) - rank, mark.count)


def _regions(reader: Reader, node: Node, shapes: Shapes) -> CountedAxis:
    """RoiAlign: any number of regions."""
    if node.inputs[0] in reader.counted:
        raise ExpansionError(_MIXED)
    return next(reader.counted[name] for name in node.inputs[1:] if name in reader.counted)


_RULES: Mapping[DynamicDims, _Rule] = MappingProxyType(
    {
        "alike": _alike, "images": _images, "along": _along, "reduced": _reduced,
        "reshaped": _reshaped, "transposed": _transposed, "joined": _joined, "sliced": _sliced,
        "gathered": _gathered, "gathered_slices": _gathered_slices, "product": _product,
        "regions": _regions, "first": _top,
    }
)  # fmt: skip
