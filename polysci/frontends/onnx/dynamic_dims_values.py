"""What expansions of nodes around tensors with counts are built with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.onnx.reader import ExpansionError, Reader
from polysci.graph.graph import Node
from polysci.program.stages import CountedAxis

# Operators that need the count of whatever they read.
_COUNTING = ("Shape", "Size", "NonZero", "Compress", "NonMaxSuppression")


@dataclass(frozen=True, slots=True)
class Counting:
    """A node around tensors with counts, and what its expansion builds with."""

    reader: Reader
    proto: Any
    node: Node

    @property
    def title(self) -> str:
        return str(self.proto.name or self.proto.output[0])

    def shape(self, name: str) -> tuple[int, ...]:
        return self.reader.table.shape(name)

    def dtype(self, name: str) -> str:
        return self.reader.table.tensor(name).dtype

    def counted_axis(self, name: str) -> CountedAxis | None:
        return self.reader.counted.get(name)

    @property
    def axes(self) -> list[int]:
        """The axes along which the node reads its first input as a whole."""
        rank = len(self.shape(self.node.inputs[0]))
        if self.node.op in ("Gather", "TopK", "ArgMax", "ArgMin", "Concat"):
            default = {"TopK": -1}.get(self.node.op, 0)
            return [int(self.node.attributes.get("axis", default)) % max(1, rank)]
        axes, told = self.node.attributes.get("axes"), 3 if self.node.op == "Slice" else 1
        if axes is None and self.node.input(told):
            known = self.reader.table.values.get(self.node.input(told))
            axes = None if known is None else known.reshape(-1).tolist()
        if axes is None or (not len(axes) and not self.node.attributes.get("noop_with_empty_axes")):
            return list(range(rank))
        return [int(axis) % max(1, rank) for axis in axes]

    @property
    def mixes(self) -> bool:
        """Whether the node needs the count of what it reads, and not only hands it on."""
        if self.node.op in _COUNTING:
            return True
        if self.node.op == "Concat":
            return any(
                mark.axis == self.axes[0]
                for name in self.node.inputs
                if (mark := self.counted_axis(name))
            )
        mark = self.counted_axis(self.node.inputs[0])
        return mark is not None and mark.axis in self.axes

    # Nodes of the graph, of shapes that are known without inference

    def make(
        self, op: str, inputs: Sequence[str], dtype: str, shape: Sequence[int], **attributes: Any
    ) -> str:
        """The only result of a new node."""
        name = self.reader.fresh(f"{self.title}/{op}")
        self.reader.append(Node(op, tuple(inputs), (name,), MappingProxyType(attributes), name),
                           {name: (dtype, shape)})  # fmt: skip
        return name

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        sizes = self.reader.constant(f"{self.title}/shape", np.array(shape, np.int64))
        return self.make("Reshape", (name, sizes), self.dtype(name), shape)

    def number(self, value: int) -> str:
        return self.reader.constant(f"{self.title}/number", np.array(value, np.int64))

    def count(self, op: str, left: str, right: str | int) -> str:
        """A whole number out of two."""
        other = right if isinstance(right, str) else self.number(right)
        return self.make(op, (left, other), "int64", ())

    def mask(self, length: int, count: str, shape: Sequence[int]) -> str:
        """Which places along an axis are counted; ``shape`` is that of the mask."""
        places = np.arange(length, dtype=np.int64).reshape(shape)
        here = self.reader.constant(f"{self.title}/places", places)
        return self.make("Less", (here, count), "bool", shape)

    def replace_rest(self, name: str, neutral: float | str) -> str:
        """A tensor with another number (``least`` or ``most`` of its type) behind the count."""
        mark = self.counted_axis(name)
        if mark is None:
            return name
        shape, dtype = self.shape(name), np.dtype(self.dtype(name))
        wide = [1] * len(shape)
        wide[mark.axis] = shape[mark.axis]
        if isinstance(neutral, str):
            ends: Any = np.iinfo(dtype) if dtype.kind in "iu" else None
            limits = (
                {"least": -np.inf, "most": np.inf}
                if ends is None
                else {"least": ends.min, "most": ends.max}
            )
            neutral = limits[neutral]
        other = self.reader.constant(f"{self.title}/other", np.array(neutral, dtype))
        mask = self.mask(shape[mark.axis], mark.count, wide)
        return self.make("Where", (mask, name, other), dtype.name, shape)

    def give(self, name: str, output: str, mark: CountedAxis | None = None) -> None:
        """A result of the node under its own name."""
        if output:
            kind = (self.dtype(name), self.shape(name))
            self.reader.append(
                Node("Identity", (name,), (output,), name=self.title), {output: kind}
            )
            if mark:
                self.reader.counted[output] = mark

    def again(self, inputs: Sequence[str], **changes: Any) -> list[str]:
        """The same node of other inputs; the names of its results."""
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
