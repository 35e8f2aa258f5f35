"""Sizes that data decides: what they are made of, the most there may be, what a run checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from shlex import quote
from types import MappingProxyType

import numpy as np

from polysci.frontends.onnx.reader import DataSize, ExpansionError, Reader
from polysci.graph.graph import Node
from polysci.program.stages import NO_SIZES, DataSizes

Entry = int | str  # an element that is known, or a tensor of one element
_SAME = ("identity", "cast", "reshape", "squeeze", "unsqueeze", "flatten")
_EXAMPLE = 1000


def advice(name: str) -> str:
    """Return the option that bounds what data decides about a tensor."""
    return f"give the most there may be, as in --most {quote(f'{name}={_EXAMPLE}')}"


def limit_count(
    reader: Reader, name: str, count: str, most: int | None = None, needs: Sequence[str] = ()
) -> tuple[str, int]:
    """Return the number of elements of tensor ``name`` and the most there may be.

    ``count`` is a scalar, int64, from 0 on, which is at most ``most`` if that is known; where less
    is asked for, a run checks it. Raises ExpansionError where nothing bounds it.
    """
    asked, known = reader.most.get(name), most_of(reader, count) if most is None else most
    if asked is not None:
        reader.bounded.add(name)
    if asked is None or (known is not None and known <= asked):
        if known is None:
            what = f"data decides the length of {name!r:.200}: {advice(name)}"
            raise ExpansionError(what, *needs)
        return count, max(known, 0)
    limited = _add(reader, "min", f"{name}/count", count, asked)
    reader.sizes.append(DataSize(name, asked, count, (name, limited)))
    return limited, asked


def _add(reader: Reader, op: str, base: str, left: str, right: int) -> str:
    """Add an operation of a scalar and a number."""
    name, number = reader.fresh(base), reader.constant(f"{base}/number", np.array(right, np.int64))
    reader.append(Node(op, (left, number), (name,), name=base), {name: ("int64", ())})
    return name


def add_sizes(reader: Reader, needed: set[str]) -> DataSizes:
    """Add the tensor of all sizes that runs check, of what is needed; return which these are."""
    rows = [row for row in reader.sizes if needed & {*row.tensors}]
    if not rows:
        return NO_SIZES
    parts = list[str]()
    for row in rows:
        part = reader.fresh(f"{row.count}/size")
        shape = reader.constant(f"{part}/shape", np.array([1], np.int64))
        node = Node("reshape", (row.count, shape), (part,), name=row.name)
        reader.append(node, {part: ("int64", (1,))})
        parts.append(part)
    output = reader.fresh("sizes")
    node = Node("concat", tuple(parts), (output,), MappingProxyType({"axis": 0}), output)
    reader.append(node, {output: ("int64", (len(rows),))})
    return DataSizes(output, tuple((row.name, row.most) for row in rows))


def entries_of(reader: Reader, name: str) -> list[Entry]:
    """Return the elements of whole numbers along one axis, or of a single one.

    Raises ExpansionError where it is not known how many there are.
    """
    if name not in reader.table.types:
        raise ExpansionError(f"the shape of its input {name!r:.200} is not known",
                             *reader.needs_of(name))  # fmt: skip
    entries = _entries(reader, name, _makers(reader))
    return [_element(reader, *entry) if isinstance(entry, tuple) else entry for entry in entries]


_Part = Entry | tuple[str, int]  # or an element of a tensor


def _makers(reader: Reader) -> dict[str, Node]:
    return {output: node for node in reader.nodes for output in node.outputs}


def _entries(reader: Reader, name: str, makers: Mapping[str, Node]) -> list[_Part]:
    table = reader.table
    if name in table.values:
        return [int(value) for value in table.values[name].reshape(-1)]
    size, node = prod(table.shape(name)), makers.get(name)
    if name in reader.dynamic_dims or len(table.shape(name)) > 1:
        raise ExpansionError("data decides how many sizes it has")
    if node and node.op in _SAME and _is_whole(reader, node.inputs[0]):
        return _entries(reader, node.inputs[0], makers)
    if node and node.op == "concat":
        return [part for own in node.inputs for part in _entries(reader, own, makers)]
    if node and node.op == "gather" and node.inputs[1] in table.values:
        source = node.inputs[0]
        if _is_whole(reader, source) and source not in reader.dynamic_dims:
            parts = _entries(reader, source, makers)
            return [parts[int(at)] for at in table.values[node.inputs[1]].reshape(-1)]
    return [name] if size == 1 else [(name, at) for at in range(size)]


def _is_whole(reader: Reader, name: str) -> bool:
    """Tell whether a tensor is a list of whole numbers."""
    tensor = reader.table.tensor(name)
    return "int" in tensor.dtype and len(tensor.shape) < 2


def _element(reader: Reader, name: str, at: int) -> str:
    element = reader.fresh(f"{name}/{at}")
    place = reader.constant(f"{element}/place", np.array(at, np.int64))
    attributes = MappingProxyType({"axis": 0})
    node = Node("gather", (name, place), (element,), attributes, element)
    reader.append(node, {element: (reader.table.tensor(name).dtype, ())})
    return element


def most_of(reader: Reader, name: str) -> int | None:
    """Return the most that a whole number can be, as far as how it is made tells."""
    return _most(reader, name, _makers(reader))


def _most(reader: Reader, name: str, makers: Mapping[str, Node]) -> int | None:
    table = reader.table
    if name in table.values:
        return int(table.values[name].max()) if table.values[name].size else None
    if name in reader.highest:
        return reader.highest[name]
    for tensor, mark in reader.dynamic_dims.items():
        if mark.count == name:
            return table.shape(tensor)[mark.axis]
    node = makers.get(name)
    if node is None or not _is_whole(reader, name):
        return None
    if node.op in _SAME:
        inside = node.inputs[0]
        return _most(reader, inside, makers) if _is_whole(reader, inside) else None
    if node.op not in ("min", "max", "add", "sub"):
        return None
    mosts = [_most(reader, own, makers) for own in node.inputs]
    known = [most for most in mosts if most is not None]
    if node.op == "min":
        return min(known, default=None)
    if len(known) < len(mosts):
        return None
    if node.op == "sub":
        right = table.values.get(node.inputs[1])
        return None if right is None or right.size != 1 else known[0] - int(right.reshape(-1)[0])
    return max(known) if node.op == "max" else sum(known)
