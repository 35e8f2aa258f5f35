"""The row of an operator: all that the package knows of it by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from polysci.graph.backward import Rule
from polysci.graph.graph import Node, Tensor
from polysci.graph.operators.builder import Builder
from polysci.graph.reference.evaluation import Reference
from polysci.graph.shapes import Inference

# How an axis of which data decides the length goes from inputs to results; see dynamic_dims of the
# front end. Empty: elements along it are mixed.
DynamicDims = Literal[
    "", "alike", "images", "along", "reduced", "reshaped", "transposed", "joined", "sliced",
    "gathered", "gathered_slices", "product", "regions", "first",
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
    """

    name: str
    onnx: str = ""
    stages: Callable[[Builder, Node], None] | None = None
    shapes: Callable[[Inference], Sequence[Tensor | None]] | None = None
    gradient: Rule | None = None
    reference: Reference | None = None
    dims: DynamicDims = ""
    torch: tuple[str, ...] = ()
