"""Loop and Scan: the body once for each of few iterations, else as steps that are repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from polysci.frontends.onnx.reader import ExpansionError, Reader
from polysci.frontends.onnx.renaming import body_of_graph
from polysci.frontends.onnx.repeated import RepeatedBody, repeat

MOST_TRIPS = 1000  # of a body that is written out
FEW_TRIPS = 4  # written out, if possible: constants then differ from iteration to iteration


def expand_loop(reader: Reader, proto: Any) -> None:
    """Expand ``Loop``: states go from one iteration to the next, other results are stacked."""
    graph, (trips, going) = _body(proto), proto.input[:2]
    known = reader.table.values
    most = int(known[trips].reshape(-1)[0]) if trips in known else None
    if going in known and not known[going].all():
        most = 0
    states = list(proto.input[2:])
    formals = [value.name for value in graph.input]
    stacked = [(0, False)] * (len(graph.output) - 1 - len(states))
    loop = RepeatedBody(
        proto.name or proto.output[0], body_of_graph(graph), formals, 2,
        None if most is None else max(most, 0), trips, "" if going in known else going, states, (),
        stacked, _outputs(proto, len(states) + len(stacked)),
    )  # fmt: skip
    _expand(reader, loop, lambda: _unroll_loop(reader, proto))


def _outputs(proto: Any, count: int) -> list[str]:
    """Return the names of all results, empty where there is none."""
    return [*proto.output, *[""] * (count - len(proto.output))]


def _expand(reader: Reader, loop: RepeatedBody, unroll: Callable[[], None]) -> None:
    """Try both ways, writing out or repeating, in an order by how many iterations there are."""
    trips = loop.trips
    ways: list[Callable[[], None]] = [lambda: repeat(reader, loop)]
    if trips is not None:
        ways.insert(trips > FEW_TRIPS, unroll)
    errors, before = list[ExpansionError](), reader.snapshot()
    for way in ways:
        try:
            way()
        except ExpansionError as error:
            errors.append(error)
            reader.restore(before)
            before = reader.snapshot()
        else:
            return
    needs = [] if trips is not None else [loop.trips_of, loop.going]
    raise ExpansionError(str(errors[0]), *errors[0].needs, *filter(None, needs))


def _unroll_loop(reader: Reader, proto: Any) -> None:
    graph, title = _body(proto), proto.name or proto.output[0]
    body, formals = body_of_graph(graph), [value.name for value in graph.input]
    trips = _trips(reader, proto.input[0])
    going = _known(reader, proto.input[1], "whether it begins") if proto.input[1] else True
    states = list(proto.input[2:])
    parts: list[list[str]] = [[] for _ in body.results[1 + len(states) :]]
    iteration = 0
    while going and (trips is None or iteration < trips):
        _check_trips(iteration)
        place = f"{title}/{iteration}"
        number = reader.constant(f"{place}/iteration", np.array(iteration, np.int64))
        again = reader.constant(f"{place}/condition", np.array(True))
        names = dict(zip(formals, [number, again, *states], strict=True))
        results = [reader.fresh(f"{place}/{name}") for name in body.results]
        reader.inline(body, names, results, place)
        going = _known(reader, results[0], "whether it goes on")
        states = results[1 : 1 + len(states)]
        for part, name in zip(parts, results[1 + len(states) :], strict=True):
            part.append(name)
        iteration += 1
    _finish(reader, proto, states, parts, [0] * len(parts))


def expand_scan(reader: Reader, proto: Any) -> None:
    """Expand ``Scan``: iterations read slices of inputs, one after the other."""
    if reader.table.opset < 9:
        raise ExpansionError("Scan before opset 9")
    graph = _body(proto)
    words = {value.name: list(value.ints) for value in proto.attribute if value.ints}
    count = next(value.i for value in proto.attribute if value.name == "num_scan_inputs")
    states, scanned = list(proto.input[:-count]), list(proto.input[-count:])
    if any(name not in reader.table.types for name in scanned):
        raise ExpansionError("what it reads has no known shape")
    axes = _axes(reader, scanned, words.get("scan_input_axes") or [0] * count)
    lengths = {reader.table.shape(name)[at] for name, at in zip(scanned, axes, strict=True)}
    if len(lengths) != 1:
        raise ExpansionError(f"inputs of {sorted(lengths)} slices")
    (length,) = lengths
    backward = words.get("scan_input_directions") or [0] * count
    results = len(graph.output) - len(states)
    directions = words.get("scan_output_directions") or [0] * results
    ends = words.get("scan_output_axes") or [0] * results
    loop = RepeatedBody(
        proto.name or proto.output[0], body_of_graph(graph), [value.name for value in graph.input],
        0, length, "", "", states,
        [(name, at, bool(back)) for name, at, back in zip(scanned, axes, backward, strict=True)],
        [(at, bool(back)) for at, back in zip(ends, directions, strict=True)],
        _outputs(proto, len(graph.output)),
    )  # fmt: skip
    _expand(reader, loop, lambda: _unroll_scan(reader, proto, loop))


def _unroll_scan(reader: Reader, proto: Any, loop: RepeatedBody) -> None:
    title, states, length = loop.title, list(loop.states), loop.trips
    assert length is not None
    _check_trips(length - 1)
    parts: list[list[str]] = [[] for _ in loop.stacked]
    for iteration in range(length):
        place = f"{title}/{iteration}"
        slices = [
            _slice(reader, name, at, length - 1 - iteration if back else iteration, place)
            for name, at, back in loop.slices
        ]
        names = dict(zip(loop.formals, [*states, *slices], strict=True))
        results = [reader.fresh(f"{place}/{name}") for name in loop.body.results]
        reader.inline(loop.body, names, results, place)
        for part, name in zip(parts, results[len(states) :], strict=True):
            part.append(name)
        states = results[: len(states)]
    parts = [
        part[::-1] if back else part for part, (_, back) in zip(parts, loop.stacked, strict=True)
    ]
    _finish(reader, proto, states, parts, [axis for axis, _ in loop.stacked])


def _body(proto: Any) -> Any:
    return next(value.g for value in proto.attribute if value.name == "body")


def _trips(reader: Reader, name: str) -> int | None:
    """Return the most iterations; None where there is no such input."""
    if not name:
        return None
    value = reader.table.values.get(name)
    if value is None:
        raise ExpansionError("the number of its iterations is not constant", name)
    return int(value.reshape(-1)[0])


def _known(reader: Reader, name: str, what: str) -> bool:
    value = reader.table.values.get(name)
    if value is None:
        raise ExpansionError(f"{what} is not constant", name)
    return bool(value.reshape(-1)[0])


def _check_trips(iteration: int) -> None:
    if iteration >= MOST_TRIPS:
        raise ExpansionError(f"more than {MOST_TRIPS} iterations")


def _axes(reader: Reader, names: list[str], axes: list[int]) -> list[int]:
    ranks = [len(reader.table.shape(name)) for name in names]
    if any(not -rank <= at < rank for at, rank in zip(axes, ranks, strict=True)):
        raise ExpansionError(f"scan_input_axes {axes} of tensors of {ranks} axes")
    return [at % rank for at, rank in zip(axes, ranks, strict=True)]


def _slice(reader: Reader, name: str, axis: int, at: int, place: str) -> str:
    """Return the part of a tensor at one place of an axis, without that axis."""
    part = reader.fresh(f"{place}/{name}")
    index = reader.constant(f"{part}/index", np.array(at, np.int64))
    reader.emit("Gather", [name, index], [part], axis=axis)
    return part


def _finish(
    reader: Reader, proto: Any, states: list[str], parts: list[list[str]], axes: list[int]
) -> None:
    """Give the last states and the stacked results their names outside."""
    for state, output in zip(states, proto.output, strict=False):
        if output:
            reader.emit("Identity", [state], [output])
    for part, output, axis in zip(parts, proto.output[len(states) :], axes, strict=False):
        if output:
            stack(reader, part, output, axis)


def stack(reader: Reader, parts: list[str], output: str, axis: int) -> None:
    """Join tensors of one shape along a new axis."""
    if not parts or any(name not in reader.table.types for name in parts):
        raise ExpansionError("the shape of what it stacks is not known")
    wide = []
    for name in parts:
        shape = list(reader.table.shape(name))
        shape.insert(axis + (len(shape) + 1) * (axis < 0), 1)
        wide.append(reshape(reader, name, shape))
    reader.emit("Concat", wide, [output], axis=axis)


def reshape(reader: Reader, name: str, shape: list[int]) -> str:
    """Reshape a tensor."""
    target = reader.fresh(f"{name}/reshaped")
    sizes = reader.constant(f"{target}/shape", np.array(shape, np.int64))
    exact = {"allowzero": 1} if reader.table.opset >= 14 else {}
    reader.emit("Reshape", [name, sizes], [target], **exact)
    return target
