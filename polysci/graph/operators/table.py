"""The row of an operator: all that the package knows of it by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np

from polysci.graph.builder import Rule
from polysci.graph.graph import Node, Tensor
from polysci.graph.operators.builder import Builder
from polysci.numerics.arrays import Array


class ShapeError(ValueError):
    """Inputs of a node that contradict each other."""


@dataclass(frozen=True, slots=True)
class Inference:
    """A node, its inputs, of which some have known values, and its results as far as known."""

    node: Node
    inputs: Sequence[Tensor | None]
    values: Sequence[Array | None]
    results: Sequence[Tensor | None]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first input."""
        return self.input(0).shape

    def input(self, position: int) -> Tensor:
        tensor = self.inputs[position]
        assert tensor is not None
        return tensor

    def value(self, position: int) -> Array | None:
        """The value of an input that is there and known ahead."""
        return self.values[position] if position < len(self.values) else None

    def first(self, shape: Sequence[int], dtype: str = "") -> Sequence[Tensor | None]:
        """The results, the first of a shape and, by default, of the first input's type."""
        kind = dtype or self.input(0).dtype
        tensor = Tensor(self.node.outputs[0], tuple(map(int, shape)), kind)
        return (tensor, *self.results[1:])

    def refuse(self, reason: str) -> NoReturn:
        raise ShapeError(reason)


def broadcast(of: Inference, dtype: str = "") -> Sequence[Tensor | None]:
    """The shape to which all inputs broadcast, where none is inferred."""
    tensors = [tensor for tensor in of.inputs if tensor is not None]
    if of.results[0] is not None:
        return of.results
    try:
        shape = np.broadcast_shapes(*(tensor.shape for tensor in tensors))
    except ValueError:  # the operator names them
        return of.results
    return of.first(shape, dtype)


def like_input(of: Inference) -> Sequence[Tensor | None]:
    """A result of the type of the first input, where ONNX infers none."""
    return of.first(of.shape) if of.results[0] is None else of.results


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A node to compute for values that are known by name.

    ``results`` are the tensors that it makes, empty where that is not known yet. A ``nudge`` moves
    what is rounded to 8 bits.
    """

    node: Node
    known: Mapping[str, Array]
    results: tuple[Tensor, ...] = ()
    nudge: Nudge | None = None

    @property
    def inputs(self) -> list[Array]:
        """The values of all inputs that are not left out."""
        return [self.known[name] for name in self.node.inputs if name]


# The results of a node; None: ONNX's reference has them.
Reference = Callable[[Evaluation], Sequence[Array] | None]
Nudge = Callable[[Sequence[int]], Any]  # shape -> what is added to each element, in steps
# How an axis of which data decides the length goes from inputs to results; see dynamic_dims of the
# front end. Empty: elements along it are mixed.
DynamicDims = Literal[
    "", "alike", "expanded", "images", "along", "onward", "scanned", "reduced", "reduced_to_place",
    "reshaped", "transposed", "joined", "sliced", "gathered", "gathered_slices", "product",
    "regions", "first",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of graphs.

    ``stages`` adds the stages of a node to a program; an operator without it is computed while a
    model is read, or replaced by ``simplify``. ``shapes`` corrects what ONNX's inference says of
    its results, or tells them where ONNX lacks the operator. ``gradient`` adds its backward pass to
    a graph. ``reference`` computes it in NumPy, where ONNX's reference lacks it or is wrong.
    ``onnx`` is its name in ONNX files, with a domain that is not ONNX's own (``example.Hypot``);
    empty where ONNX has no such operator. ``torch`` are calls of ATen that take its inputs in their
    order; calls with other arguments have rules in the front end.
    ``shape_inputs`` are the inputs that say a shape, of whatever type; None: lists and single
    integers may. ``unsized`` is why data decides the shape of its results, for people. Results of a
    ``bounded`` one are no larger than what goes in; those of a ``shape_only`` one depend on the
    shapes of its inputs alone. The stages of a ``stepwise`` one are steps, one after the other.
    """

    name: str
    onnx: str = ""
    stages: Callable[[Builder, Node], None] | None = None
    shapes: Callable[[Inference], Sequence[Tensor | None]] | None = None
    gradient: Rule | None = None
    reference: Reference | None = None
    dims: DynamicDims = ""
    torch: tuple[str, ...] = ()
    shape_inputs: slice | None = None
    unsized: str = ""
    bounded: bool = False
    shape_only: bool = False
    stepwise: bool = False
