"""Operators whose results are as long as data says: Range, Slice, Expand, Reshape and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from polysci.frontends.onnx.data_sizes import Entry, entries_of, most_of
from polysci.frontends.onnx.dynamic_node import DynamicNode
from polysci.frontends.onnx.reader import Expansion, ExpansionError, Reader, operator_name
from polysci.graph.operators import operator_of_onnx
from polysci.program.stages import DynamicDim

_WHOLE: Final = ("int16", "int32", "int64")
_FAR: Final = float(1 << 62)  # as many elements as no memory has
_TWO: Final = "data decides the length of its result along two axes"


def expansion_of_sizes(reader: Reader, proto: Any) -> Expansion | None:
    """Return the expansion of a node whose inputs of sizes or places are data."""
    row = _SIZED.get(operator_of_onnx(operator_name(proto)))
    if row is None:
        return None
    places, expand = row
    names = [proto.input[at] for at in places if at < len(proto.input) and proto.input[at]]
    if all(name in reader.table.values for name in names):
        return None
    return lambda reader, proto: expand(DynamicNode(reader, proto, reader.node(proto)))


def _range(call: DynamicNode) -> None:
    """Count from a start on by steps."""
    start, limit, step = call.node.inputs
    dtype, output, known = call.dtype(start), call.node.outputs[0], call.reader.table.values
    from_zero = start in known and step in known and known[start] == 0 and known[step] == 1
    if dtype in _WHOLE and from_zero:
        size = entries_of(call.reader, limit)[0]
    elif dtype in _WHOLE:
        ends = (call.scalar(entries_of(call.reader, name)[0]) for name in (start, limit, step))
        size = _whole_steps(call, *ends)
    else:
        size = _real_steps(call, start, limit, step)
    count, most = call.limit(size, output, needs=(start, limit, step))
    numbers = call.constant("places", np.arange(most, dtype=np.dtype(dtype)))
    first, width = (call.reshape(name, []) for name in (start, step))
    far = call.add("mul", (numbers, width), dtype, (most,))
    values = call.add("add", (far, first), dtype, (most,))
    call.give(values, output, DynamicDim(0, count))


def _whole_steps(call: DynamicNode, start: str, limit: str, step: str) -> str:
    """Return how many steps of whole numbers there are; of steps of 0 too many."""
    zero, one = call.integers("zero", 0), call.integers("one", 1)
    still = call.add("equal", (step, zero), "bool", ())
    step = call.add("select", (still, one, step), "int64", ())
    gap = call.count("sub", limit, start)
    sign = call.add("sign", (step,), "int64", ())
    count = call.count("div", call.count("sub", call.count("add", gap, step), sign), step)
    ends = [call.add("cast", (name,), "float64", ()) for name in (limit, start)]
    wide = call.add("abs", (call.add("sub", ends, "float64", ()),), "float64", ())
    far = call.constant("far", np.array(_FAR))
    over = call.add("greater", (wide, far), "bool", ())  # the difference is no number of 64 bits
    wrong = call.add("or", (still, over), "bool", ())
    return call.add("select", (wrong, call.integers("far", int(_FAR)), count), "int64", ())


def _real_steps(call: DynamicNode, start: str, limit: str, step: str) -> str:
    """Return how many steps of real numbers there are; where that is no number, too many."""
    first, last, width = (
        call.add("cast", (call.reshape(name, []),), "float64", ()) for name in (start, limit, step)
    )
    gap = call.add("sub", (last, first), "float64", ())
    steps = call.add("div", (gap, width), "float64", ())
    wide = call.add("ceil", (steps,), "float64", ())
    far = call.constant("far", np.array(_FAR))
    none = call.constant("none", np.array(0.0))
    near = call.add("less", (wide, far), "bool", ())  # not true of what is no number
    bound = call.add("select", (near, wide, far), "float64", ())
    below = call.add("less", (bound, none), "bool", ())
    bound = call.add("select", (below, none, bound), "float64", ())
    return call.add("cast", (bound,), "int64", ())


def _one_of(entries: Sequence[Entry], shape: str) -> int | None:
    """Return the place of the only entry of a shape that is data; None where all are known."""
    places = [at for at, entry in enumerate(entries) if isinstance(entry, str)]
    if len(places) > 1:
        raise ExpansionError(_TWO, shape)
    return places[0] if places else None


def _constant_of_shape(call: DynamicNode) -> None:
    (shape,), (output,) = call.node.inputs, call.node.outputs
    _fill_shape(call, entries_of(call.reader, shape), [], shape, output)


def _expand(call: DynamicNode) -> None:
    (x, shape), (output,) = call.node.inputs, call.node.outputs
    entries, extents = entries_of(call.reader, shape), list(call.shape(x))
    mark, rank = call.dynamic_dim(x), max(len(entries), len(extents))
    if mark:
        extents[mark.axis] = 0  # neither is what the other has
    extents = [*[1] * (rank - len(extents)), *extents]
    entries = [*[1] * (rank - len(entries)), *entries]
    own = mark and mark.axis + rank - len(call.shape(x))
    for at, (entry, extent) in enumerate(zip(entries, extents, strict=True)):
        if isinstance(entry, str) and (extent > 1 or (mark and at == own and entry == mark.count)):
            entries[at] = 1  # as wide as x is
    _fill_shape(call, entries, [x], shape, output)


def _fill_shape(
    call: DynamicNode, entries: list[Entry], before: Sequence[str], shape: str, output: str
) -> None:
    """Add the node again for the most elements along the axis of which data decides."""
    at, count, mark = _one_of(entries, shape), "", None
    if at is not None:
        count, most = call.limit(entries[at], output, needs=(shape,))
        entries[at], mark = most, DynamicDim(at, count)
    (result,) = call.again([*before, call.integers("shape", [int(own) for own in entries])])
    if mark and call.dynamic_dim(result):
        raise ExpansionError(_TWO, shape)
    call.give(result, output, mark or call.dynamic_dim(result))


def _reshape(call: DynamicNode) -> None:
    """Reshape: the size that is data is what the others leave."""
    (x, shape), (output,) = call.node.inputs, call.node.outputs
    entries, mark = entries_of(call.reader, shape), call.dynamic_dim(x)
    for at, entry in enumerate(entries):
        if mark and entry == mark.count:
            entries[at] = call.shape(x)[mark.axis]
    place = _one_of(entries, shape)
    if place is not None and -1 in entries:
        raise ExpansionError(_TWO, shape)
    if place is not None:
        entries[place] = -1
    (result,) = call.again([x, call.integers("shape", [int(own) for own in entries])])
    call.give(result, output, call.dynamic_dim(result))


def top_by_data(call: DynamicNode) -> None:
    """Expand TopK of as many elements as data says, which are no more than there are."""
    x, k = call.node.inputs
    axis = call.axis(-1)
    most = call.shape(x)[axis]
    if call.dynamic_dim(x):
        raise ExpansionError(_TWO, k)
    k = call.scalar(entries_of(call.reader, k)[0])
    count, _ = call.limit(call.count("min", k, most), call.node.outputs[0], most)
    results = call.again([x, call.integers("k", [most])])
    for name, output in zip(results, call.node.outputs, strict=True):
        call.give(name, output, DynamicDim(axis, count))


def slice_by_data(call: DynamicNode) -> None:
    """Expand Slice whose ends along one axis are data."""
    x, known = call.node.inputs[0], call.reader.table.values
    shape, mark = list(call.shape(x)), call.dynamic_dim(x)
    starts, ends = (entries_of(call.reader, call.node.input(at)) for at in (1, 2))
    defaults = [*range(len(starts))], [1] * len(starts)
    axes, steps = (
        known[name].reshape(-1).tolist() if (name := call.node.input(at)) in known
        else [] if name else default
        for at, default in zip((3, 4), defaults, strict=True)
    )  # fmt: skip
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ExpansionError("its axes or steps are data", *call.inputs(3, 4))
    data = [at for at in range(len(starts)) if isinstance(starts[at], str) or
            isinstance(ends[at], str)]  # fmt: skip
    if len(data) > 1 or (mark and mark.axis != axes[data[0]] % len(shape)):
        raise ExpansionError(_TWO, *call.inputs(1, 2))
    (at,) = data
    axis = axes[at] % len(shape)
    if steps[at] != 1:
        raise ExpansionError(f"every {steps[at]}th along an axis of which data decides the length")
    length: Entry = mark.count if mark else shape[axis]
    first, last = (_clip(call, end, length) for end in (starts[at], ends[at]))
    most = _most_between(starts[at], ends[at], shape[axis])
    count = last if first == 0 else call.count("sub", call.scalar(last), call.scalar(first))
    bound = None if isinstance(count, int) else most_of(call.reader, count)
    most = most if bound is None else min(most, bound)
    count, most = call.limit(count, call.node.outputs[0], most)
    places = call.count_from(call.scalar(first), most)
    shape[axis] = most
    part = call.add("gather", (x, places), call.dtype(x), shape, axis=axis)
    starts[at], ends[at] = 0, most
    rows = [call.integers("ends", [int(own) for own in row]) for row in (starts, ends, axes, steps)]
    (result,) = call.again([part, *rows])
    call.give(result, call.node.outputs[0], DynamicDim(axis, count))


def _most_between(start: Entry, end: Entry, length: int) -> int:
    """Return how many elements there may be from a start to an end, as far as these are known."""
    first = max(0, start + length * (start < 0)) if isinstance(start, int) else 0
    last = min(end + length * (end < 0), length) if isinstance(end, int) else length
    return max(0, last - first)


def _clip(call: DynamicNode, place: Entry, length: Entry) -> Entry:
    """Return a place as Slice counts it, among so many elements."""
    if isinstance(place, int) and isinstance(length, int):
        return min(max(place + length * (place < 0), 0), length)
    if isinstance(length, int) and call.is_count(place):
        most = most_of(call.reader, str(place))
        if most is not None and most <= length:
            return place
    place, length = call.scalar(place), call.scalar(length)
    behind = call.count("add", place, length)
    back = call.add("less", (place, call.integers("zero", 0)), "bool", ())
    moved = call.add("select", (back, behind, place), "int64", ())
    return call.count("min", call.count("max", moved, 0), length)


_Row = tuple[Sequence[int], Callable[[DynamicNode], None]]
# By operator: the inputs that say sizes or places, and the expansion where one of them is data.
_SIZED: Mapping[str, _Row] = MappingProxyType(
    {
        "range": ((0, 1, 2), _range), "slice": ((1, 2), slice_by_data), "expand": ((1,), _expand),
        "reshape": ((1,), _reshape), "constant_of_shape": ((0,), _constant_of_shape),
        "top_k": ((1,), top_by_data),
    }
)  # fmt: skip
