"""If, Loop, Scan and sequences: as nodes without subgraphs, or as steps that are repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.errors import SpecError
from polysci.frontends.onnx.data_loops import (
    add_counters,
    check_trips,
    unroll_by_data,
    where_taken,
)
from polysci.frontends.onnx.data_sizes import advice, most_of
from polysci.frontends.onnx.model_file import Body, body_of_graph
from polysci.frontends.onnx.reader import (
    Call,
    Expansion,
    ExpansionError,
    Reader,
    expansion_by,
)
from polysci.frontends.onnx.repeated_body import (
    MOST_TRIPS,
    RepeatedBody,
    check_alike,
    inline_iteration,
    reshape,
    scalar,
    stack,
)
from polysci.graph.graph import LOOP_BEGIN, LOOP_END, Node
from polysci.graph.operators import OPERATORS
from polysci.program.stages import DynamicDim


def expand_if(reader: Reader, proto: Any) -> None:
    """Add the branch of a condition that is known; else both, with a choice between results."""
    branches = {
        attribute.name: body_of_graph(attribute.g)
        for attribute in proto.attribute
        if attribute.HasField("g")
    }
    title = proto.name or proto.output[0]
    if len(proto.input) != 1 or branches.keys() != {"then_branch", "else_branch"}:
        raise SpecError(f"{reader.table.where}: If {title!r:.200}: expected two branches")
    if any(len(body.results) != len(proto.output) for body in branches.values()):
        raise SpecError(
            f"{reader.table.where}: If {title!r:.200}: expected {len(proto.output)} results of "
            "each branch"
        )
    condition = reader.table.values.get(proto.input[0])
    if condition is None:
        _choose(reader, proto, branches, title)
    elif condition.size != 1:
        raise SpecError(f"{reader.table.where}: If {title!r:.200}: {condition.size} conditions")
    else:
        body = branches["then_branch" if condition.reshape(-1)[0] else "else_branch"]
        reader.inline(body, {}, proto.output, title)


def _choose(reader: Reader, proto: Any, branches: dict[str, Body], title: str) -> None:
    """Add both branches, and a node that says which one is needed."""
    (condition,) = proto.input
    results: dict[str, list[str]] = {}
    for part, body in sorted(branches.items(), reverse=True):  # "then_branch" comes first
        results[part] = [reader.fresh(f"{title}/{part}/{name}") for name in body.results]
        sizes = len(reader.sizes)
        try:
            _inline_part(reader, body, {}, results[part], f"{title}/{part}")
        except SpecError as error:  # as where sizes fit one branch alone
            raise ExpansionError(f"its condition is not constant, and {error}", condition) from None
        taken = part == "then_branch"
        inside = [where_taken(reader, its, condition, taken) for its in reader.sizes[sizes:]]
        reader.sizes[sizes:] = inside
    chosen = [at for at, output in enumerate(proto.output) if output]
    then, otherwise = ([names[at] for at in chosen] for names in results.values())
    outputs = [proto.output[at] for at in chosen]
    kinds = reader.table.types
    pairs = [
        (left, right)
        for left, right in zip(then, otherwise, strict=True)
        if left in kinds and right in kinds
    ]
    if any(kinds[left] != kinds[right] for left, right in pairs):
        reason = "its condition is not constant, and its branches differ in shape"
        raise ExpansionError(reason, condition)
    if condition in kinds and reader.table.tensor(condition).size != 1:
        raise ExpansionError(f"a condition of shape {list(reader.table.shape(condition))}")
    for left, right, output in zip(list(then), list(otherwise), list(outputs), strict=True):
        if mark := _count(reader, left, right, f"{title}/count"):
            then.append(mark[0].count)
            otherwise.append(mark[1].count)
            outputs.append(reader.fresh(f"{title}/count"))
            reader.dynamic_dims[output] = DynamicDim(mark[0].axis, outputs[-1])
    tensors = [reader.table.tensor(name) if name in kinds else None for name in then]
    typed = condition in kinds and len(pairs) == len(chosen)
    reader.append(
        Node("if", (condition, *then, *otherwise), tuple(outputs), name=proto.name),
        {
            output: (tensor.dtype, tensor.shape)
            for output, tensor in zip(outputs, tensors, strict=True)
            if tensor and typed
        },
    )


def _inline_part(
    reader: Reader, body: Body, names: Mapping[str, str], results: Sequence[str], title: str
) -> None:
    """Add nodes that do not run always; what they bound is not bounded behind them."""
    limits = dict(reader.limits)
    reader.inline(body, names, results, title)
    reader.limits = limits


def _count(
    reader: Reader, left: str, right: str, title: str
) -> tuple[DynamicDim, DynamicDim] | None:
    """Return the counts of two tensors of one shape; None where data decides neither length."""
    marks = [reader.dynamic_dims.get(name) for name in (left, right)]
    axes = {mark.axis for mark in marks if mark}
    if len(axes) > 1:
        raise ExpansionError("its branches differ in the axis of which data decides the length")
    if not axes:
        return None
    (axis,) = axes
    first, second = (
        mark or DynamicDim(axis, reader.constant(title, np.array(reader.table.shape(name)[axis])))
        for mark, name in zip(marks, (left, right), strict=True)
    )
    return first, second


_ENDLESS = int(np.iinfo(np.int64).max)


def _repeat(reader: Reader, loop: RepeatedBody) -> None:
    """Add the nodes of a step. Raises ExpansionError where steps differ in more than numbers."""
    try:
        _add_step(reader, loop)
    except SpecError as error:
        raise ExpansionError(str(error)) from None


def _add_step(reader: Reader, loop: RepeatedBody) -> None:
    names = [*loop.states, *(name for name, _, _ in loop.slices)]
    _check_fixed(reader, names)
    number = reader.fresh(f"{loop.title}/iteration")
    if loop.trips is not None:
        reader.highest[number] = loop.trips - 1
    inner = [reader.fresh(f"{loop.title}/{name}") for name in loop.formals[loop.begins :]]
    going = loop.going and scalar(reader, loop.going)
    begin, nodes, sizes = _begin(reader, loop, number, inner), len(reader.nodes), len(reader.sizes)
    begins = [number, reader.constant(f"{loop.title}/condition", np.array(True))][: loop.begins]
    results = [reader.fresh(f"{loop.title}/{name}") for name in loop.body.results]
    formals = dict(zip(loop.formals, [*begins, *inner], strict=True))
    _inline_part(reader, loop.body, formals, results, loop.title)
    _check_nodes(reader, reader.nodes[nodes:])
    _check_fixed(reader, results)
    again, results = (results[0], results[1:]) if loop.begins else ("", results)
    for state, name in zip(inner, results, strict=False):
        check_alike(reader, state, name)
    known = reader.table.values.get(again)
    if known is not None and not known.all():
        raise ExpansionError("it ends after its first iteration")
    stops = bool(loop.going) or (bool(again) and known is None)
    breaks = stops or loop.trips is None or bool(loop.trips_of)
    if loop.most and stops:
        loop, begin, results = add_counters(reader, loop, begin, again, results)
    if breaks:
        again = scalar(reader, again)
        first = going or reader.constant(f"{loop.title}/true", np.array(True))
        begin = Node(LOOP_BEGIN, (begin.inputs[0], first, *begin.inputs[2:]), begin.outputs,
                     begin.attributes, begin.name)  # fmt: skip
    reader.nodes.insert(nodes, begin)
    if len(reader.sizes) > sizes:
        raise ExpansionError("data decides sizes inside its steps")
    _end(reader, loop, [number, again if breaks else "", *results])
    if loop.most:
        check_trips(reader, loop, stops)


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
    trips = loop.trips_of and scalar(reader, loop.trips_of)
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
            raise ExpansionError(
                "its number of iterations is not constant, and it stacks results: "
                + advice(next(filter(None, loop.outputs[count:]), name)),
                *filter(None, [loop.trips_of]),
            )
        dtype, shape = results[name]
        axes.append(axis + (len(shape) + 1) * (axis < 0))
        shape = (*shape[: axes[-1]], loop.trips, *shape[axes[-1] :])
        table.check(name, shape, np.dtype(dtype))
        results[name] = (dtype, shape)
        if steps:
            reader.dynamic_dims[name] = DynamicDim(axes[-1], steps)
    if steps:
        results[steps] = ("int64", ())
    stacked = tuple((axis, back) for axis, (_, back) in zip(axes, loop.stacked, strict=True))
    node = Node(LOOP_END, tuple(inputs), (*outputs, *([steps] if steps else [])),
                MappingProxyType({"stacked": stacked}), loop.title)  # fmt: skip
    reader.append(node, results)


def _check_fixed(reader: Reader, names: Sequence[str]) -> None:
    """Raise for what has no known type, or a length that data decides."""
    if any(name not in reader.table.types for name in names):
        raise ExpansionError("what its steps hand on has no known shape")
    if any(name in reader.dynamic_dims for name in names):
        raise ExpansionError("data decides the length of what its steps hand on")


def _check_nodes(reader: Reader, nodes: Sequence[Node]) -> None:
    for node in nodes:
        if id(node) in reader.refusals:
            reason, needs = reader.refusals[id(node)]
            raise ExpansionError(f"{str(node)!r:.100}: {reason}", *needs)
        if node.op in OPERATORS and OPERATORS[node.op].stepwise:
            raise ExpansionError("its steps are loops over steps themselves")


FEW_TRIPS = 4  # written out, if possible: constants then differ from iteration to iteration


def expand_loop(reader: Reader, proto: Any) -> None:
    """Expand ``Loop``: states go from one iteration to the next, other results are stacked."""
    graph, (trips, going) = _body(proto), proto.input[:2]
    known = reader.table.values
    most = most_of(reader, trips) if trips else None
    if going in known and not known[going].all():
        most, trips = 0, ""
    name = next((name for name in proto.output if name in reader.most), "")
    reader.bounded |= {name} - {""}
    checked = name and (most is None or reader.most[name] < most)
    if checked:
        most = reader.most[name]
    elif trips in known:
        trips = ""
    states = list(proto.input[2:])
    formals = [value.name for value in graph.input]
    stacked = [(0, False)] * (len(graph.output) - 1 - len(states))
    loop = RepeatedBody(
        proto.name or proto.output[0], body_of_graph(graph), formals, 2,
        None if most is None else max(most, 0), trips, "" if going in known else going, states, (),
        stacked, _outputs(proto, len(states) + len(stacked)), name if checked else "",
    )  # fmt: skip
    _expand(reader, loop)


def _outputs(proto: Any, count: int) -> list[str]:
    """Return the names of all results, empty where there is none."""
    return [*proto.output, *[""] * (count - len(proto.output))]


def _expand(reader: Reader, loop: RepeatedBody) -> None:
    """Try both ways, writing out or repeating, in an order by how many iterations there are.

    Last, iterations are written out of which data says whether they count.
    """
    trips, ways = loop.trips, [_repeat]
    if trips is not None and not loop.trips_of:
        ways.insert(trips > FEW_TRIPS, _unroll)
    if trips is not None and loop.begins:
        ways.append(unroll_by_data)
    errors, before = list[ExpansionError](), reader.snapshot()
    for way in ways:
        try:
            way(reader, loop)
        except ExpansionError as error:
            errors.append(error)
            reader.restore(before)
            before = reader.snapshot()
        else:
            return
    needs = [] if trips is not None and not loop.trips_of else [loop.trips_of, loop.going]
    raise ExpansionError(str(errors[0]), *errors[0].needs, *filter(None, needs))


def expand_scan(reader: Reader, proto: Any) -> None:
    """Expand ``Scan``: iterations read slices of inputs, one after the other."""
    if reader.follows < 9:
        raise ExpansionError("Scan before opset 9")
    graph = _body(proto)
    attributes = {value.name: list(value.ints) for value in proto.attribute if value.ints}
    count = next(value.i for value in proto.attribute if value.name == "num_scan_inputs")
    states, scanned = list(proto.input[:-count]), list(proto.input[-count:])
    if any(name not in reader.table.types for name in scanned):
        raise ExpansionError("what it reads has no known shape")
    axes = _axes(reader, scanned, attributes.get("scan_input_axes") or [0] * count)
    lengths = {reader.table.shape(name)[at] for name, at in zip(scanned, axes, strict=True)}
    if len(lengths) != 1:
        raise ExpansionError(f"inputs of {sorted(lengths)} slices")
    (length,) = lengths
    backward = attributes.get("scan_input_directions") or [0] * count
    results = len(graph.output) - len(states)
    directions = attributes.get("scan_output_directions") or [0] * results
    ends = attributes.get("scan_output_axes") or [0] * results
    loop = RepeatedBody(
        proto.name or proto.output[0], body_of_graph(graph), [value.name for value in graph.input],
        0, length, "", "", states,
        [(name, at, bool(back)) for name, at, back in zip(scanned, axes, backward, strict=True)],
        [(at, bool(back)) for at, back in zip(ends, directions, strict=True)],
        _outputs(proto, len(graph.output)),
    )  # fmt: skip
    _expand(reader, loop)


def _unroll(reader: Reader, loop: RepeatedBody) -> None:
    """Write the body out for each iteration, as far as constants tell how many there are."""
    states, length, iteration = list(loop.states), loop.trips or 0, 0
    going = not loop.going or bool(_first_of(reader, loop.going, "whether it begins is"))
    parts: list[list[str]] = [[] for _ in loop.stacked]
    while going and iteration < length:
        if (iteration if loop.begins else length - 1) >= MOST_TRIPS:  # Loop may end before
            raise ExpansionError(f"more than {MOST_TRIPS} iterations")
        results = inline_iteration(reader, loop, states, iteration)
        if loop.begins:
            going = bool(_first_of(reader, results.pop(0), "whether it goes on is"))
        states, stacked = results[: len(states)], results[len(states) :]
        for part, name in zip(parts, stacked, strict=True):
            part.append(name)
        iteration += 1
    for state, output in zip(states, loop.outputs, strict=False):
        if output:
            reader.emit("Identity", [state], [output])
    rows = zip(parts, loop.outputs[len(states) :], loop.stacked, strict=True)
    for part, output, (axis, back) in rows:
        if output:
            stack(reader, part[::-1] if back else part, output, axis)


def _body(proto: Any) -> Any:
    return next(value.g for value in proto.attribute if value.name == "body")


def _first_of(reader: Reader, name: str, what: str) -> Any:
    """Return the first element of a constant."""
    return reader.value(name, what).reshape(-1)[0]


def _axes(reader: Reader, names: list[str], axes: list[int]) -> list[int]:
    ranks = [len(reader.table.shape(name)) for name in names]
    if any(not -rank <= at < rank for at, rank in zip(axes, ranks, strict=True)):
        raise ExpansionError(f"scan_input_axes {axes} of tensors of {ranks} axes")
    return [at % rank for at, rank in zip(axes, ranks, strict=True)]


def expansion_of_sequence(reader: Reader, proto: Any) -> Expansion | None:
    """Return the expansion of an operator on sequences."""
    if proto.op_type == "Identity" and proto.input[0] in reader.sequences:
        return expansion_by(_copy)
    return expansion_by(_SEQUENCES.get(proto.op_type))


def _parts_of(call: Call, least: int = 0) -> list[str]:
    """Return the tensors of a sequence. Raises ExpansionError where they are unknown or too few."""
    if (parts := call.reader.sequences.get(call.input(0))) is None:
        raise ExpansionError("the parts of its sequence are not known")
    if len(parts) < least:
        raise ExpansionError("its sequence is empty")
    return list(parts)


def _position(call: Call, index: int, default: int, count: int) -> int:
    """Return an index into a sequence of ``count`` parts, counted from the front."""
    at = default
    if name := call.input(index):
        at = int(_first_of(call.reader, name, "its position is"))
    at += count * (at < 0)
    if not 0 <= at < max(count, 1):
        raise ExpansionError(f"position {at} in a sequence of {count}")
    return at


def _copy(call: Call, parts: Sequence[str] | None = None) -> None:
    """Note the parts of the result, by default those of the input."""
    call.reader.sequences[call.output(0)] = tuple(_parts_of(call) if parts is None else parts)


def _construct(call: Call) -> None:
    _copy(call, call.proto.input)


def _at(call: Call) -> None:
    parts = _parts_of(call, 1)
    call.make("Identity", [parts[_position(call, 1, 0, len(parts))]], call.output(0))


def _length(call: Call) -> None:
    call.reader.learn(call.output(0), np.array(len(_parts_of(call)), np.int64))


def _insert(call: Call) -> None:
    parts = _parts_of(call)
    parts.insert(_position(call, 2, len(parts), len(parts) + 1), call.input(1))
    _copy(call, parts)


def _erase(call: Call) -> None:
    parts = _parts_of(call, 1)
    del parts[_position(call, 1, len(parts) - 1, len(parts))]
    _copy(call, parts)


def _optional(call: Call) -> None:
    """Copy an optional value, whose content is another name for it."""
    if call.input(0) in call.reader.sequences:
        _copy(call)
    elif call.input(0):
        call.make("Identity", [call.input(0)], call.output(0))
    else:
        raise ExpansionError("it holds no value")


def _has_value(call: Call) -> None:
    call.reader.learn(call.output(0), np.array(bool(call.input(0))))


def _concat(call: Call) -> None:
    stacks, axis = call.attribute("new_axis", 0), call.attribute("axis", 0)
    parts = _parts_of(call, 0 if stacks else 1)
    if stacks:
        stack(call.reader, parts, call.output(0), axis)
    else:
        call.make("Concat", parts, call.output(0), axis=axis)


def _split(call: Call) -> None:
    """Expand ``SplitToSequence``: by sizes, by one size, or into parts of one element."""
    reader, x, axis = call.reader, call.input(0), call.attribute("axis", 0)
    if x not in reader.table.types:
        raise ExpansionError("the shape of its input is not known")
    shape = list(reader.table.shape(x))
    if not -len(shape) <= axis < len(shape):
        raise ExpansionError(f"axis {axis} of a tensor of {len(shape)} axes")
    axis %= len(shape)
    sizes, single = _sizes(call, shape[axis]), len(call.proto.input) < 2
    parts = [reader.fresh(f"{call.title}/{at}") for at in range(len(sizes))]
    reader.emit("Split", [x, call.integers("sizes", sizes)], parts, axis=axis)
    if single and not call.attribute("keepdims", 1):
        parts = [reshape(reader, name, shape[:axis] + shape[axis + 1 :]) for name in parts]
    _copy(call, parts)


def _sizes(call: Call, length: int) -> list[int]:
    if not call.input(1):
        return [1] * length
    value = call.reader.value(call.input(1), "its sizes are")
    if value.ndim:
        sizes = [int(size) for size in value]
    else:
        step = max(1, int(value))
        sizes = [min(step, length - first) for first in range(0, length, step)]
    if sum(sizes) != length or min(sizes, default=0) < 0:
        raise ExpansionError(f"sizes {sizes} of an axis of {length}")
    return sizes


_SEQUENCES: Mapping[str, Callable[[Call], None]] = MappingProxyType(
    {
        **dict.fromkeys(("Optional", "OptionalGetElement"), _optional),
        "OptionalHasElement": _has_value,
        **dict.fromkeys(("SequenceConstruct", "SequenceEmpty"), _construct),
        "SequenceAt": _at, "SequenceLength": _length, "SequenceInsert": _insert,
        "SequenceErase": _erase, "ConcatFromSequence": _concat, "SplitToSequence": _split,
    }
)  # fmt: skip
