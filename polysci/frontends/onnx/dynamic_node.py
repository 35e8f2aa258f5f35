"""A node around tensors of which data decides the length, and what its expansion builds with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.onnx.data_sizes import Entry, limit_count
from polysci.frontends.onnx.reader import Call, ExpansionError
from polysci.graph.graph import Node
from polysci.program.stages import DynamicDim


@dataclass(frozen=True, slots=True)
class DynamicNode(Call):
    """A node around tensors with counts, and what its expansion builds with."""

    node: Node

    def dtype(self, name: str) -> str:
        return self.reader.table.tensor(name).dtype

    def dynamic_dim(self, name: str) -> DynamicDim | None:
        return self.reader.dynamic_dims.get(name)

    @property
    def rank_read(self) -> int:
        """Return the rank of the first input."""
        return len(self.shape(self.node.inputs[0]))

    def axis(self, default: int) -> int:
        """Return the attribute ``axis``, counted from the front."""
        return int(self.node.attributes.get("axis", default)) % max(1, self.rank_read)

    def axes(self, position: int) -> list[int]:
        """Return the axes that an input lists; all where it is not known."""
        known = self.reader.table.values.get(self.node.input(position))
        axes = [] if known is None else known.reshape(-1).tolist()
        if known is None or not (axes or self.node.attributes.get("noop_with_empty_axes")):
            return list(range(self.rank_read))
        return [int(axis) % max(1, self.rank_read) for axis in axes]

    # Nodes of the graph, of shapes that are known without inference

    def add(
        self, op: str, inputs: Sequence[str], dtype: str, shape: Sequence[int], **attributes: Any
    ) -> str:
        """Add a node; return its only result."""
        name = self.reader.fresh(f"{self.title}/{op}")
        self.reader.append(Node(op, tuple(inputs), (name,), MappingProxyType(attributes), name),
                           {name: (dtype, shape)})  # fmt: skip
        return name

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        return self.add("reshape", (name, self.integers("shape", shape)), self.dtype(name), shape)

    def count(self, op: str, left: str, right: str | int) -> str:
        """Add an operation of two whole numbers."""
        other = right if isinstance(right, str) else self.integers("number", right)
        return self.add(op, (left, other), "int64", ())

    def count_from(self, first: str, length: int) -> str:
        """Return so many places from one on."""
        return self.add("add", (self.integers("places", range(length)), first), "int64", (length,))

    def mask(self, length: int, count: str, shape: Sequence[int]) -> str:
        """Return a mask of ``shape``: which places along an axis are used."""
        places = self.constant("places", np.arange(length, dtype=np.int64).reshape(shape))
        return self.add("less", (places, count), "bool", shape)

    def replace_rest(self, name: str, neutral: float | str) -> str:
        """Replace what is behind the count by a number, or ``least`` or ``most`` of the type."""
        mark = self.dynamic_dim(name)
        if mark is None:
            return name
        shape, dtype = self.shape(name), np.dtype(self.dtype(name))
        wide = [1] * len(shape)
        wide[mark.axis] = shape[mark.axis]
        if isinstance(neutral, str):
            whole = dtype.kind in "iu"
            ends = (np.iinfo(dtype).min, np.iinfo(dtype).max) if whole else (-np.inf, np.inf)
            neutral = ends[neutral == "most"]
        other = self.constant("other", np.array(neutral, dtype))
        mask = self.mask(shape[mark.axis], mark.count, wide)
        return self.add("select", (mask, name, other), dtype.name, shape)

    def scalar(self, entry: Entry) -> str:
        """Return a whole number as a scalar, int64."""
        if isinstance(entry, int):
            return self.integers("size", entry)
        if self.dtype(entry) != "int64":
            entry = self.add("cast", (entry,), "int64", self.shape(entry))
        return self.reshape(entry, []) if self.shape(entry) else entry

    def is_count(self, entry: Entry) -> bool:
        """Tell whether it is how many elements of a tensor there are."""
        return any(mark.count == entry for mark in self.reader.dynamic_dims.values())

    def limit(
        self, size: Entry, output: str, most: int | None = None, needs: Sequence[str] = ()
    ) -> tuple[str, int]:
        """Return how many elements a result has, and the most there may be.

        That is the same number for all results as long as one tensor says.
        """
        reader, count = self.reader, self.scalar(size)
        key = str(size)
        if key in reader.limits and output not in reader.most:
            return reader.limits[key]
        if not self.is_count(count):
            count = self.count("max", count, 0)
        reader.limits[key] = limited = limit_count(reader, output, count, most, needs)
        return limited

    def give(self, name: str, output: str, mark: DynamicDim | None = None) -> None:
        """Give a result of the node its own name, and no more elements than were asked for."""
        if output and mark and output in self.reader.most:
            name, mark = self._cut(name, output, mark)
        if output:
            kind = (self.dtype(name), self.shape(name))
            self.reader.append(
                Node("identity", (name,), (output,), name=self.title), {output: kind}
            )
            if mark:
                self.reader.dynamic_dims[output] = mark

    def _cut(self, name: str, output: str, mark: DynamicDim) -> tuple[str, DynamicDim]:
        """Return the first elements of a tensor along an axis, as many as there may be."""
        shape = list(self.shape(name))
        count, most = limit_count(self.reader, output, mark.count, shape[mark.axis])
        if most < shape[mark.axis]:
            shape[mark.axis] = most
            places = self.integers("places", range(most))
            name = self.add("gather", (name, places), self.dtype(name), shape, axis=mark.axis)
        return name, DynamicDim(mark.axis, count)

    def cast_count(self, mark: DynamicDim, like: str) -> str:
        """Convert a count to the type of another tensor."""
        return self.add("cast", (mark.count,), self.dtype(like), ())

    def again(self, inputs: Sequence[str]) -> list[str]:
        """Add the node again with other inputs; return the names of its results."""
        copy = type(self.proto)()
        copy.CopyFrom(self.proto)
        copy.input[:] = inputs
        copy.output[:] = [
            self.reader.fresh(f"{self.title}/{name}") if name else "" for name in copy.output
        ]
        self.reader.add(copy)
        if any(name and name not in self.reader.table.types for name in copy.output):
            raise ExpansionError("its result has no known shape")
        return list(copy.output)
