"""Loops of which data decides the number of iterations, which an option bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from polysci.frontends.onnx.reader import DataSize, ExpansionError, Reader
from polysci.frontends.onnx.repeated_body import (
    MOST_TRIPS,
    RepeatedBody,
    add_scalar,
    check_alike,
    inline_iteration,
    scalar,
    stack,
)
from polysci.graph.graph import LOOP_BEGIN, Node
from polysci.program.stages import DynamicDim


def where_taken(reader: Reader, size: DataSize, condition: str, value: bool) -> DataSize:
    """Return a size that is 0 unless a condition has a value."""
    zero = reader.constant(f"{size.count}/zero", np.array(0, np.int64))
    inputs = (size.count, zero) if value else (zero, size.count)
    return replace(size, count=add_scalar(reader, "select", (scalar(reader, condition), *inputs)))


def add_counters(
    reader: Reader, loop: RepeatedBody, begin: Node, again: str, results: Sequence[str]
) -> tuple[RepeatedBody, Node, list[str]]:
    """Add two states: whether the loop goes on, and the number of its steps."""
    count, title = len(loop.states), loop.title
    first = loop.going and scalar(reader, loop.going)
    first = first or reader.constant(f"{title}/true", np.array(True))
    before = first, reader.constant(f"{title}/none", np.array(0, np.int64))
    words = f"{title}/goes_on", f"{title}/steps"
    inner, outer = ([*map(reader.fresh, words)] for _ in range(2))
    kinds: tuple[tuple[str, tuple[int, ...]], ...] = ("bool", ()), ("int64", ())
    reader.declare(dict(zip(inner, kinds, strict=True)))
    one = reader.constant(f"{title}/one", np.array(1, np.int64))
    following = scalar(reader, again), add_scalar(reader, "add", (begin.outputs[0], one))
    attributes = MappingProxyType({**begin.attributes, "states": count + 2})
    begin = Node(
        LOOP_BEGIN, (*begin.inputs, *before), (*begin.outputs, *inner), attributes, begin.name
    )
    outputs = [*loop.outputs[:count], *outer, *loop.outputs[count:]]
    loop = replace(loop, states=[*loop.states, *before], outputs=outputs)
    return loop, begin, [*results[:count], *following, *results[count:]]


def check_trips(reader: Reader, loop: RepeatedBody, stops: bool) -> None:
    """Have runs check how many iterations data asks for; one more than most if it would go on."""
    assert loop.trips is not None
    zero = reader.constant(f"{loop.title}/zero", np.array(0, np.int64))
    if stops:
        count = len(loop.states)
        more, steps = loop.outputs[count - 2 : count]
        if loop.trips_of:
            most = reader.constant(f"{loop.title}/most", np.array(loop.trips, np.int64))
            below = add_scalar(reader, "less", (most, scalar(reader, loop.trips_of)), "bool")
            more = add_scalar(reader, "and", (more, below), "bool")
        asked = add_scalar(reader, "add", (steps, add_scalar(reader, "cast", (more,))))
    else:
        asked = add_scalar(reader, "max", (scalar(reader, loop.trips_of), zero))
    tensors = tuple(filter(None, loop.outputs))
    reader.sizes.append(DataSize(loop.most, loop.trips, asked, tensors))


def unroll_by_data(reader: Reader, loop: RepeatedBody) -> None:
    """Write the body out for as many iterations as there may be; states stay behind the last one.

    A state may grow along an axis, of which data then decides the length.
    """
    if (loop.trips or 0) > MOST_TRIPS:
        raise ExpansionError(f"more than {MOST_TRIPS} iterations")
    states, sizes = list(loop.states), len(reader.sizes)
    active = loop.going and scalar(reader, loop.going)
    trips = loop.trips_of and scalar(reader, loop.trips_of)
    parts: list[list[str]] = [[] for _ in loop.stacked]
    steps = reader.constant(f"{loop.title}/none", np.array(0, np.int64))
    for iteration in range(loop.trips or 0):
        active = _and(reader, active, _is_below(reader, iteration, trips))
        again, *results = inline_iteration(reader, loop, states, iteration)
        _check_known(reader, [again, *results])
        states = [_after(reader, active, *pair) for pair in zip(states, results, strict=False)]
        for part, name in zip(parts, results[len(states) :], strict=True):
            part.append(name)
        one = add_scalar(reader, "cast", (active,)) if active else _one(reader, loop)
        steps = add_scalar(reader, "add", (steps, one))
        known = reader.table.values.get(again)
        if known is None or not known.all():
            active = _and(reader, active, scalar(reader, again))
    if len(reader.sizes) > sizes:
        raise ExpansionError("data decides sizes inside its steps")
    _give_results(reader, loop, states, parts, steps)
    if loop.most:
        more = _and(reader, active, _is_below(reader, loop.trips or 0, trips))
        more = add_scalar(reader, "cast", (more,)) if more else _one(reader, loop)
        asked = add_scalar(reader, "add", (steps, more))
        if trips and not loop.going and again in reader.table.values:
            asked = add_scalar(reader, "max", (trips, steps))
        tensors = tuple(filter(None, loop.outputs))
        reader.sizes.append(DataSize(loop.most, loop.trips or 0, asked, tensors))


def _one(reader: Reader, loop: RepeatedBody) -> str:
    return reader.constant(f"{loop.title}/one", np.array(1, np.int64))


def _and(reader: Reader, left: str, right: str) -> str:
    """Return whether both hold; an empty name always does."""
    return add_scalar(reader, "and", (left, right), "bool") if left and right else left or right


def _is_below(reader: Reader, iteration: int, trips: str) -> str:
    """Return whether there is an iteration, as far as a count says."""
    if not trips:
        return ""
    number = reader.constant(f"{trips}/{iteration}", np.array(iteration, np.int64))
    return add_scalar(reader, "less", (number, trips), "bool")


def _check_known(reader: Reader, names: Sequence[str]) -> None:
    if any(name not in reader.table.types for name in names):
        raise ExpansionError("what its steps hand on has no known shape")


def _after(reader: Reader, active: str, old: str, new: str) -> str:
    """Return a state behind an iteration: what that made of it where it counts, else the old one.

    Both have the same shape, but for one axis of which data may decide the length.
    """
    if not active:
        return new
    marks = [reader.dynamic_dims.get(name) for name in (old, new)]
    tensors = [reader.table.tensor(name) for name in (old, new)]
    (before, after), dtype = (list(tensor.shape) for tensor in tensors), tensors[0].dtype
    axes = {mark.axis for mark in marks if mark}
    if len(before) == len(after):
        axes |= {at for at, extents in enumerate(zip(before, after, strict=True))
                 if extents[0] != extents[1]}  # fmt: skip
    if dtype != tensors[1].dtype or len(before) != len(after) or len(axes) > 1:
        check_alike(reader, old, new)
        raise ExpansionError("data decides the length of a state along two axes")
    name, shape = reader.fresh(f"{new}/after"), [*map(max, before, after)]
    wide = [_pad(reader, own, shape) for own in (new, old)]
    reader.append(Node("select", (active, *wide), (name,), name=name), {name: (dtype, shape)})
    for axis in axes:
        counts = [
            mark.count if mark else reader.constant(f"{name}/length", np.array(extents[axis]))
            for mark, extents in zip(marks, (before, after), strict=True)
        ]
        count = add_scalar(reader, "select", (active, counts[1], counts[0]))
        reader.dynamic_dims[name] = DynamicDim(axis, count)
    return name


def _pad(reader: Reader, name: str, shape: Sequence[int]) -> str:
    """Return a tensor with zeros behind it along the axis that is shorter than in a shape."""
    tensor = reader.table.tensor(name)
    for axis, (extent, most) in enumerate(zip(tensor.shape, shape, strict=True)):
        if extent < most:
            rest = [*tensor.shape[:axis], most - extent, *tensor.shape[axis + 1 :]]
            padded = reader.fresh(f"{name}/padded")
            zeros = reader.constant(f"{padded}/zeros", np.zeros(rest, np.dtype(tensor.dtype)))
            node = Node(
                "concat", (name, zeros), (padded,), MappingProxyType({"axis": axis}), padded
            )
            reader.append(node, {padded: (tensor.dtype, shape)})
            return padded
    return name


def _give_results(
    reader: Reader, loop: RepeatedBody, states: Sequence[str], parts: Sequence[list[str]],
    steps: str,
) -> None:  # fmt: skip
    """Give states and stacked parts their names; there are as many parts as steps."""
    for state, output in zip(states, loop.outputs, strict=False):
        if output:
            reader.emit("Identity", [state], [output])
    rows = zip(parts, loop.outputs[len(states) :], loop.stacked, strict=True)
    for part, output, (axis, _) in rows:
        if output:
            if any(name in reader.dynamic_dims for name in part):
                raise ExpansionError("data decides the length of what it stacks")
            stack(reader, part, output, axis)
            rank = len(reader.table.shape(output))
            reader.dynamic_dims[output] = DynamicDim(axis % rank, steps)
