"""A node of ONNX Runtime's own operators, and what others that replace it are built with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polysci.frontends.onnx.reader import ExpansionError, Reader
from polysci.numerics.arrays import Array


@dataclass(frozen=True, slots=True)
class Call:
    """A node that others replace: its attributes, and names for what lies between."""

    reader: Reader
    proto: Any

    @property
    def title(self) -> str:
        return str(self.proto.name or self.proto.output[0])

    def input(self, at: int) -> str:
        """Return the name of an input; empty where it is left out."""
        return str(self.proto.input[at]) if at < len(self.proto.input) else ""

    def output(self, at: int) -> str:
        return str(self.proto.output[at]) if at < len(self.proto.output) else ""

    def attribute(self, name: str, default: Any) -> Any:
        helper = self.reader.table.onnx.helper
        for attribute in self.proto.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def others(self, *names: str) -> dict[str, Any]:
        """Return the other attributes."""
        return {
            attribute.name: self.attribute(attribute.name, None)
            for attribute in self.proto.attribute
            if attribute.name not in names
        }

    def refuse(self, *attributes: str) -> None:
        """Raise where one of the attributes is not 0."""
        for name in attributes:
            if value := self.attribute(name, 0):
                raise ExpansionError(f"{name} {value}")

    def rank(self, name: str) -> int:
        return len(self.shape(name))

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self.reader.table.types:
            needs = self.reader.needs_of(name)
            raise ExpansionError(f"the shape of its input {name!r:.200} is not known", *needs)
        return self.reader.table.shape(name)

    def number(self, value: float, like: str) -> str:
        """Return a constant of the type of another tensor."""
        self.shape(like)
        dtype = self.reader.table.tensor(like).dtype
        return self.reader.constant(f"{self.title}/number", np.array(value, dtype))

    def constant(self, base: str, value: Array) -> str:
        """Return a constant of this node."""
        return self.reader.constant(f"{self.title}/{base}", value)

    def make(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node; return the name of its result."""
        name = output or self.reader.fresh(f"{self.title}/{op}")
        self.reader.emit(op, inputs, [name], **attributes)
        return name
