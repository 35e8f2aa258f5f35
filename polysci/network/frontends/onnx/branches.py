"""If: one of its branches takes its place, or both and a choice between their results."""

from __future__ import annotations

from typing import Any

import numpy as np

from polysci.errors import SpecError
from polysci.network.frontends.onnx.reader import ExpansionError, Reader
from polysci.network.frontends.onnx.renaming import Body, body_of_graph


def expand_if(reader: Reader, proto: Any) -> None:
    """The branch of a condition that is known; else both, as ``Where`` of what they make."""
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
    """Compute both branches; operators have no effect besides their results."""
    (condition,) = proto.input
    made: dict[str, list[str]] = {}
    for part, body in sorted(branches.items(), reverse=True):  # "then_branch" comes first
        made[part] = [reader.fresh(f"{title}/{part}/{name}") for name in body.results]
        reader.inline(body, {}, made[part], f"{title}/{part}")
    pairs = list(zip(made["then_branch"], made["else_branch"], strict=True))
    kinds = reader.table.types
    known = [pair for pair in pairs if pair[0] in kinds and pair[1] in kinds]
    if any(kinds[left] != kinds[right] for left, right in known):
        reason = "its condition is not constant, and its branches differ in shape"
        raise ExpansionError(reason, condition)
    if condition in kinds and reader.table.tensor(condition).size != 1:
        raise ExpansionError(f"a condition of shape {list(reader.table.shape(condition))}")
    if condition in kinds and reader.table.shape(condition):
        shape = reader.constant(f"{title}/shape", np.zeros(0, np.int64))
        flat = reader.fresh(f"{title}/condition")
        reader.emit("Reshape", [condition, shape], [flat])
        condition = flat
    for (left, right), output in zip(pairs, proto.output, strict=True):
        if output:
            reader.emit("Where", [condition, left, right], [output])
