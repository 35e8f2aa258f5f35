"""Loop and Scan as the nodes of one step, between one that begins a step and one that ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from polysci.errors import SpecError
from polysci.frontends.onnx.reader import ExpansionError, Reader
from polysci.frontends.onnx.renaming import Body
from polysci.graph.graph import LOOP_BEGIN, LOOP_END, QUANTISED_LSTM, Node
from polysci.program.stages import CountedAxis

_REPEATED = ("lstm", "gru", "rnn", QUANTISED_LSTM, LOOP_BEGIN)  # what is a loop over steps itself
NO_BOUND = "; its first input, the most there may be, is left out: the model needs a constant there"
_ENDLESS = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class RepeatedBody:
    """A Loop or Scan. ``trips`` is how many there are at most, None if that is data.

    ``trips_of`` and ``going`` name what decides about that (empty: nothing does); ``begins``: the
    formal inputs of the body before those of states and slices. Slices and results that are stacked
    have an axis, and whether they run backwards.
    """

    title: str
    body: Body
    formals: Sequence[str]
    begins: int
    trips: int | None
    trips_of: str
    going: str
    states: Sequence[str]
    slices: Sequence[tuple[str, int, bool]]
    stacked: Sequence[tuple[int, bool]]
    outputs: Sequence[str]


def repeat(reader: Reader, loop: RepeatedBody) -> None:
    """Add the nodes of a step. Raises ExpansionError where steps differ in more than numbers."""
    before = reader.snapshot()
    try:
        _repeat(reader, loop)
    except SpecError as error:
        reader.restore(before)
        raise ExpansionError(str(error)) from None
    except ExpansionError:
        reader.restore(before)
        raise


def _repeat(reader: Reader, loop: RepeatedBody) -> None:
    names = [*loop.states, *(name for name, _, _ in loop.slices)]
    _check_fixed(reader, names)
    number = reader.fresh(f"{loop.title}/iteration")
    inner = [reader.fresh(f"{loop.title}/{name}") for name in loop.formals[loop.begins :]]
    going = loop.going and _scalar(reader, loop.going)
    begin, nodes = _begin(reader, loop, number, inner), len(reader.nodes)
    told = [number, reader.constant(f"{loop.title}/condition", np.array(True))][: loop.begins]
    results = [reader.fresh(f"{loop.title}/{name}") for name in loop.body.results]
    formals = dict(zip(loop.formals, [*told, *inner], strict=True))
    reader.inline(loop.body, formals, results, loop.title)
    _check_nodes(reader, reader.nodes[nodes:])
    _check_fixed(reader, results)
    again, results = (results[0], results[1:]) if loop.begins else ("", results)
    for state, name in zip(inner, results, strict=False):
        _check_alike(reader, state, name)
    known = reader.table.values.get(again)
    if known is not None and not known.all():
        raise ExpansionError("it ends after its first iteration")
    breaks = bool(loop.going) or loop.trips is None or (bool(again) and known is None)
    if breaks:
        again = _scalar(reader, again)
        first = going or reader.constant(f"{loop.title}/true", np.array(True))
        begin = Node(LOOP_BEGIN, (begin.inputs[0], first, *begin.inputs[2:]), begin.outputs,
                     begin.attributes, begin.name)  # fmt: skip
    reader.nodes.insert(nodes, begin)
    _end(reader, loop, [number, again if breaks else "", *results])


def _begin(reader: Reader, loop: RepeatedBody, number: str, inner: Sequence[str]) -> Node:
    """Return the node that begins a step, which is not among the reader's yet."""
    table = reader.table
    results: dict[str, tuple[str, tuple[int, ...]]] = {number: ("int64", ())}
    for name, source in zip(inner, loop.states, strict=False):
        results[name] = (table.tensor(source).dtype, table.shape(source))
    for name, (source, axis, _) in zip(inner[len(loop.states) :], loop.slices, strict=True):
        shape = list(table.shape(source))
        del shape[axis]
        results[name] = (table.tensor(source).dtype, tuple(shape))
    reader.declare(results)
    trips = _scalar(reader, loop.trips_of) if loop.trips is None and loop.trips_of else ""
    attributes = {
        "count": _ENDLESS if loop.trips is None else loop.trips, "states": len(loop.states),
        "slices": tuple((axis, back) for _, axis, back in loop.slices),
    }  # fmt: skip
    inputs = (trips, "", *loop.states, *(name for name, _, _ in loop.slices))
    return Node(LOOP_BEGIN, inputs, (number, *inner), MappingProxyType(attributes), loop.title)


def _end(reader: Reader, loop: RepeatedBody, inputs: Sequence[str]) -> None:
    """Add the node that ends a step: states and stacked results, and how many steps there were."""
    table, count = reader.table, len(loop.states)
    outputs = [name or reader.fresh(f"{loop.title}/result") for name in loop.outputs]
    results = dict[str, tuple[str, tuple[int, ...]]]()
    for name, source in zip(outputs, inputs[2:], strict=True):
        results[name] = (table.tensor(source).dtype, table.shape(source))
    steps = reader.fresh(f"{loop.title}/count") if inputs[1] and loop.stacked else ""
    axes = list[int]()
    for name, (axis, _) in zip(outputs[count:], loop.stacked, strict=True):
        if loop.trips is None:
            bound = "" if loop.trips_of else NO_BOUND
            raise ExpansionError(
                f"its number of iterations is not constant, and it stacks results{bound}",
                loop.trips_of,
            )
        dtype, shape = results[name]
        axes.append(axis + (len(shape) + 1) * (axis < 0))
        shape = (*shape[: axes[-1]], loop.trips, *shape[axes[-1] :])
        table.check(name, shape, np.dtype(dtype))
        results[name] = (dtype, shape)
        if steps:
            reader.counted[name] = CountedAxis(axes[-1], steps)
    if steps:
        results[steps] = ("int64", ())
    stacked = tuple((axis, back) for axis, (_, back) in zip(axes, loop.stacked, strict=True))
    node = Node(LOOP_END, tuple(inputs), (*outputs, *([steps] if steps else [])),
                MappingProxyType({"stacked": stacked}), loop.title)  # fmt: skip
    reader.append(node, results)


def _scalar(reader: Reader, name: str) -> str:
    """Return a tensor of one element without axes."""
    if not reader.table.shape(name):
        return name
    scalar = reader.fresh(f"{name}/scalar")
    shape = reader.constant(f"{name}/shape", np.zeros(0, np.int64))
    reader.emit("Reshape", [name, shape], [scalar])
    return scalar


def _check_fixed(reader: Reader, names: Sequence[str]) -> None:
    """Raise for what has no known type, or a length that data decides."""
    if any(name not in reader.table.types for name in names):
        raise ExpansionError("what its steps hand on has no known shape")
    if any(name in reader.counted for name in names):
        raise ExpansionError("data decides the length of what its steps hand on")


def _check_nodes(reader: Reader, nodes: Sequence[Node]) -> None:
    for node in nodes:
        if id(node) in reader.refusals:
            reason, needs = reader.refusals[id(node)]
            raise ExpansionError(f"{str(node)!r:.100}: {reason}", *needs)
        if node.op in _REPEATED:
            raise ExpansionError("its steps are loops over steps themselves")


def _check_alike(reader: Reader, before: str, after: str) -> None:
    """Raise for a state that changes its type."""
    old, new = reader.table.tensor(before), reader.table.tensor(after)
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        raise ExpansionError(
            f"a state of {old.dtype}{list(old.shape)} becomes {new.dtype}{list(new.shape)}"
        )
