"""A call of one of ATen's operators, and what the functions that replace it build with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import Tensor
from polysci.graph.operators.builder import NUMBERS

Scalar = bool | int | float
Operand = str | Scalar  # a tensor's name, or a number
Made = str | Sequence[str]  # what a call makes; an empty name: not computed


class AtenRefusal(Exception):  # noqa: N818 - becomes part of one UnsupportedError for all calls
    """Why a call cannot be expressed in the graph's operators."""


@dataclass(frozen=True, slots=True)
class AtenCall:
    """A graph to whose end a call is added, and the types of what it makes."""

    graph: GraphBuilder
    results: tuple[Tensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the first result."""
        return self.results[0].shape

    @property
    def dtype(self) -> str:
        return self.results[0].dtype

    def refuse(self, reason: str) -> NoReturn:
        raise AtenRefusal(reason)

    def add(
        self, op: str, *inputs: str | None, shape: Sequence[int] | None = None,
        dtype: str | None = None, **attributes: Any,
    ) -> str:  # fmt: skip
        """Add a node, by default of the first result's type."""
        names = [name or "" for name in inputs]
        while names and not names[-1]:
            names.pop()
        shape = self.shape if shape is None else shape
        return self.graph.add(op, names, shape, dtype or self.dtype, **attributes)

    def add_all(self, op: str, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        """Add a node that makes all results."""
        types = [(tensor.shape, tensor.dtype) for tensor in self.results]
        return self.graph.add_many(op, inputs, types, **attributes)

    def whole(self, numbers: Sequence[int]) -> str:
        """Return a constant list of whole numbers."""
        return self.graph.constant(np.array(numbers, np.int64))

    def cast(self, x: Operand, dtype: str | None = None) -> str:
        """Convert a tensor to an element type, by default the result's; a number to a constant."""
        dtype = dtype or self.dtype
        if not isinstance(x, str):
            return self.graph.number(x, dtype)
        if self.graph.dtype(x) == dtype:
            return x
        if dtype not in (*NUMBERS, "float16"):
            self.refuse(f"elements of {dtype}")
        return self.graph.add("cast", (x,), self.graph.shape(x), dtype)

    def common_dtype(self, *values: Operand | None) -> str:
        """Return the element type in which PyTorch computes with tensors and numbers.

        Kinds come before widths: a number, or a tensor without axes, decides only where it is of a
        higher kind than all tensors with axes.
        """
        ranks: list[tuple[int, int, str]] = []
        for value in values:
            if isinstance(value, str):
                dtype = self.graph.dtype(value)
                ranks.append((_kind(dtype), int(bool(self.graph.shape(value))), dtype))
            elif value is not None:
                dtype = {bool: "bool", int: "int64", float: "float32"}[type(value)]
                ranks.append((_kind(dtype), -1, dtype))
        kind = max(rank for rank, *_ in ranks)
        weight = max(weight for rank, weight, _ in ranks if rank == kind)
        same = [dtype for rank, at, dtype in ranks if (rank, at) == (kind, weight)]
        return np.result_type(*same).name

    def reshape(self, x: str) -> str:
        """Reshape x to the shape of the first result."""
        return self.graph.reshape(x, self.shape)

    def axis(self, dim: int, x: str | None = None) -> int:
        """Return an axis of x, by default of the first result, counted from the front."""
        rank = len(self.shape if x is None else self.graph.shape(x))
        return dim % max(1, rank)

    def axes(self, dim: int | Sequence[int] | None, x: str) -> list[int]:
        """Return axes of x; all where none is named."""
        rank = len(self.graph.shape(x))
        if dim is None or (not isinstance(dim, int) and not dim):
            return [*range(rank)]
        return sorted(self.axis(at, x) for at in ([dim] if isinstance(dim, int) else dim))


# A call and its arguments by the names of ATen's schema, ``self`` and ``input`` as ``x``.
AtenRule = Callable[..., Made]
AtenRules = Mapping[str, AtenRule]


def _kind(dtype: str) -> int:
    return 0 if dtype == "bool" else 1 if "int" in dtype else 2


def per_axis(value: int | Sequence[int], axes: int) -> list[int]:
    """Return a number for each axis, from one for all or a list."""
    values = [value] if isinstance(value, int) else [*value]
    return values * axes if len(values) == 1 else values
