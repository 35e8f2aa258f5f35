"""If: one of its branches takes its place, or both and a choice between their results."""

from __future__ import annotations

from typing import Any

import numpy as np

from polysci.errors import SpecError
from polysci.frontends.onnx.reader import ExpansionError, Reader
from polysci.frontends.onnx.renaming import Body, body_of_graph
from polysci.graph.graph import Node
from polysci.program.stages import CountedAxis


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
        try:
            reader.inline(body, {}, results[part], f"{title}/{part}")
        except SpecError as error:  # as where sizes fit one branch alone
            raise ExpansionError(f"its condition is not constant, and {error}", condition) from None
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
            reader.counted[output] = CountedAxis(mark[0].axis, outputs[-1])
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


def _count(
    reader: Reader, left: str, right: str, title: str
) -> tuple[CountedAxis, CountedAxis] | None:
    """Return the counts of two tensors of one shape; None where data decides neither length."""
    marks = [reader.counted.get(name) for name in (left, right)]
    axes = {mark.axis for mark in marks if mark}
    if len(axes) > 1:
        raise ExpansionError("its branches differ in the axis of which data decides the length")
    if not axes:
        return None
    (axis,) = axes
    first, second = (
        mark or CountedAxis(axis, reader.constant(title, np.array(reader.table.shape(name)[axis])))
        for mark, name in zip(marks, (left, right), strict=True)
    )
    return first, second
