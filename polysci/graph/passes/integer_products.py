"""The pass that makes products of dequantised factors products of 8-bit numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.graph.builder import GraphBuilder, rewrite_nodes
from polysci.graph.formulas import derive
from polysci.graph.graph import Graph, Node, QuantisedConstant, rebuild
from polysci.graph.passes.fixed_shapes import RESHAPES
from polysci.numerics.arrays import Array

BYTES = ("uint8", "int8")
# Operator -> that of 8-bit numbers whose result has 8 bits, and that whose result has 32.
_OPERATORS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "conv": ("quantized_conv", "integer_conv"),
        "matmul": ("quantized_matmul", "integer_matmul"),
        "gemm": ("quantized_matmul", "integer_matmul"),
    }
)


@dataclass(frozen=True, slots=True)
class LinearScale:
    """The real numbers that 8-bit ones stand for: ``(number - zero) * scale``."""

    scale: Array
    zero: Array

    def is_idle(self, low: float, high: float) -> bool:
        """Return whether numbers of 8 bits are the same without these bounds of the real ones."""
        limits, scale, zero = np.iinfo(self.zero.dtype), float(self.scale), int(self.zero)
        least, most = (np.rint(bound / scale) + zero for bound in (low, high))
        return bool(least <= limits.min and most >= limits.max)


@dataclass(frozen=True, slots=True)
class _Product:
    """A node that is ``(x - zero) @ weights * scale * weight_scales + bias``.

    ``x`` and ``weights`` have 8 bits; the weights' scales and the bias are one, or one a channel.
    ``linear`` are scale and zero where they are known ahead.
    """

    node: Node
    x: str
    scale: str
    zero: str
    linear: LinearScale | None
    weights: Array
    weight_scales: Array
    bias: Array | None

    @property
    def channels(self) -> int:
        axis = 0 if self.node.op == "conv" else 1
        return int(self.weights.shape[axis])

    def reshape_x(self, graph: GraphBuilder) -> str:
        """x as the node reads it."""
        return graph.reshape(self.x, graph.shape(self.node.inputs[0]))

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(self.node.attributes) if self.node.op == "conv" else {}


def make_integer_products(graph: Graph) -> Graph:
    """Products of 8-bit numbers in place of those of real ones, where both factors are such."""
    for end in (_end_in_bytes, _end_in_reals):
        if not graph.dequantised:
            return graph
        graph = rewrite_nodes(graph, partial(end, _ProductFinder.of(graph)))
        graph = rebuild(graph, graph.nodes)
    return graph


@dataclass(frozen=True, slots=True)
class _ProductFinder:
    """Who makes the tensors of a graph, and those that one node alone reads."""

    graph: Graph
    makers: Mapping[str, Node]
    private: frozenset[str]

    @staticmethod
    def of(graph: Graph) -> _ProductFinder:
        kept = {tensor.name for tensor in graph.outputs}
        rows = graph.readers().items()
        private = (name for name, nodes in rows if len(nodes) == 1 and name not in kept)
        return _ProductFinder(graph, graph.makers(), frozenset(private))

    def product_before(self, name: str, y: LinearScale) -> _Product | None:
        """The product that is quantised as y, behind bounds that 8 bits have anyway, and a bias."""
        node = self._maker(name)
        while node and (node.op in RESHAPES or self._is_idle(node, y)):
            node = self._maker(node.inputs[0])
        if node is None or node.op != "add":
            return self.product(node)
        for left, right in (node.inputs, node.inputs[::-1]):
            product, bias = self.product(self._maker(left)), self.graph.constant_value(right)
            same = self.graph.tensors[left].shape == self.graph.tensors[node.outputs[0]].shape
            if product and bias is not None and product.bias is None and same:
                behind = product.weights.ndim - 2 if product.node.op == "conv" else 0
                own = _bias_of(bias, product.channels, behind)
                return None if own is None else replace(product, bias=own)
        return None

    def _maker(self, name: str) -> Node | None:
        return self.makers.get(name) if name in self.private else None

    def _is_idle(self, node: Node, y: LinearScale) -> bool:
        """Return whether a node bounds real numbers as 8 bits do."""
        if node.op != "clip":
            return node.op == "relu" and y.is_idle(0, inf)
        sides = zip((node.input(1), node.input(2)), (-inf, inf), strict=True)
        bounds = [
            self.graph.constant_value(name) if name else np.array(none) for name, none in sides
        ]
        return y.is_idle(*(np.nan if bound is None else float(bound.item()) for bound in bounds))

    def product(self, node: Node | None) -> _Product | None:
        """A product that 8 bits hold: x of one scale, weights of one for each channel of y."""
        if node is None or node.op not in _OPERATORS or not _is_plain(node):
            return None
        x, w = self.makers.get(node.inputs[0]), self.graph.dequantised.get(node.inputs[1])
        while x and x.op in RESHAPES:
            x = self.makers.get(x.inputs[0])
        if x is None or x.op != "dequantize" or w is None:
            return None
        weights, tensors = _whole_weights(node, w), self.graph.tensors
        scale, fits = tensors[x.inputs[1]], tensors[x.inputs[0]].dtype in BYTES
        if weights is None or not fits or len(tensors[node.inputs[0]].shape) < 2 or scale.size != 1:
            return None
        product = _Product(
            node, x.inputs[0], scale.name, x.input(2), linear_of(self.graph, x), weights,
            w.scale.reshape(-1), None,
        )  # fmt: skip
        if not node.input(2):
            return product
        bias = self.graph.constant_value(node.input(2))
        own = None if bias is None else _bias_of(bias, product.channels, 0)
        return None if own is None else replace(product, bias=own)


def linear_of(graph: Graph, node: Node) -> LinearScale | None:
    """Return the known scale and zero of a whole tensor of 8 bits that a node reads or makes."""
    numbers = node.inputs[0] if node.op == "dequantize" else node.outputs[0]
    dtype, scale = graph.tensors[numbers].dtype, graph.constant_value(node.inputs[1])
    zero = graph.constant_value(node.input(2)) if node.input(2) else np.zeros((), dtype)
    if scale is None or zero is None or dtype not in BYTES or scale.dtype != np.float32:
        return None
    whole = scale.size == zero.size == 1
    return LinearScale(scale.reshape(()), zero.reshape(())) if whole else None


def _is_plain(node: Node) -> bool:
    """Return whether a Gemm reads A as it lies, and adds its bias as it is."""
    defaults = {"alpha": 1.0, "beta": 1.0, "transpose_a": 0}
    return all(node.attributes.get(word, default) == default for word, default in defaults.items())


def _whole_weights(node: Node, w: QuantisedConstant) -> Array | None:
    """Weights less their zeros, if 8 bits hold them; a matrix has a column for each channel."""
    weights, turned = w.numbers, bool(node.attributes.get("transpose_b"))
    axis = 0 if node.op == "conv" or turned else 1
    ranks = (3, 4) if node.op == "conv" else (2,)
    if weights.dtype.name not in BYTES or weights.ndim not in ranks or not weights.size:
        return None
    if w.block:
        return None
    if w.scale.size > 1 and w.axis % weights.ndim != axis:
        return None
    around = [-1 if at == axis else 1 for at in range(weights.ndim)]
    moved = weights.astype(np.int64) - w.zero.astype(np.int64).reshape(around)
    if moved.min() < -128 or moved.max() > 127:
        return None
    return np.ascontiguousarray((moved.T if turned else moved).astype(np.int8))


def _bias_of(bias: Array, channels: int, behind: int) -> Array | None:
    """A number for each channel, of which ``behind`` axes follow; None for any other array."""
    if bias.size == 1:
        return np.full(channels, bias.item(), bias.dtype)
    along = bias.shape[max(0, bias.ndim - 1 - behind) :][:1]
    return bias.reshape(-1) if bias.size == channels and along == (channels,) else None


def _end_in_bytes(finder: _ProductFinder, graph: GraphBuilder, node: Node) -> str:
    """A product in place of a QuantizeLinear of a real one."""
    y = linear_of(finder.graph, node) if node.op == "quantize" else None
    product = finder.product_before(node.inputs[0], y) if y else None
    if y is None or product is None or product.linear is None:
        return ""
    x, scales = product.linear, product.weight_scales
    numbers = [x.scale, x.zero, product.weights, scales, np.zeros((), np.int8), y.scale, y.zero]
    if product.bias is not None:
        bias = np.rint(product.bias / (scales.astype(np.float64) * float(x.scale)))
        if np.abs(bias).max() > np.iinfo(np.int32).max:
            return ""
        numbers.append(bias.astype(np.int32))
    names, product_shape = map(graph.constant, numbers), graph.shape(product.node.outputs[0])
    result = graph.add(
        _OPERATORS[product.node.op][0], (product.reshape_x(graph), *names), product_shape,
        graph.dtype(node.outputs[0]), **product.attributes,
    )  # fmt: skip
    return graph.reshape(result, graph.shape(node.outputs[0]))


def _end_in_reals(finder: _ProductFinder, graph: GraphBuilder, node: Node) -> str:
    """Sums of whole numbers, scaled, in place of a product."""
    product = finder.product(node)
    if product is None:
        return ""
    shape = graph.shape(node.outputs[0])
    names = [product.reshape_x(graph), graph.constant(product.weights)]
    sums = graph.add(_OPERATORS[node.op][1], [*names, *[product.zero] * bool(product.zero)], shape,
                     "int32", **product.attributes)  # fmt: skip
    behind = [1] * (len(shape) - 2 if node.op == "conv" else 0)
    steps, text = product.weight_scales.astype(np.float64), "real * step * scale"
    if product.linear:
        steps, text = steps * float(product.linear.scale), "real * step"
    step, bias = (
        "" if part is None else graph.constant(part.astype(np.float32).reshape(-1, *behind))
        for part in (steps, product.bias)
    )
    real = graph.add("cast", (sums,), shape)
    scale = "" if product.linear else graph.reshape(product.scale, ())
    return derive(graph, f"{text} + bias" if bias else text, real=real, step=step, scale=scale,
                  bias=bias)  # fmt: skip
