"""Products of dequantised 8-bit numbers that are quantised again, as products of whole numbers.

``QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w)))`` is QLinearConv, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.network.frontends.onnx.call import Call
from polysci.network.frontends.onnx.reader import Expansion, Reader
from polysci.network.ir.graph import Array, Node

BYTES = ("uint8", "int8")
_OPERATORS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {"Conv": ("QLinearConv", 0), "MatMul": ("QLinearMatMul", 1)}
)  # and the axis of the weights along which scales may differ


@dataclass(frozen=True, slots=True)
class _Number:
    """A tensor of 8 bits, its scales, and what stands for 0."""

    whole: str
    scale: str
    zero: Array


def expansion_of_quantised(reader: Reader, proto: Any) -> Expansion | None:
    """What replaces a QuantizeLinear of a product whose factors are 8-bit numbers."""
    if proto.op_type != "QuantizeLinear":
        return None
    call = Call(reader, proto)
    y = _parameters(reader, call.input(1), call.input(2), np.zeros((), np.uint8))
    product = _product(reader, call.input(0), y[1]) if y else None
    if y is None or product is None:
        return None
    x, w = (_dequantised(reader, product.inputs[at]) for at in (0, 1))
    if not (x and w and _fits(reader, product, x, w)):
        return None
    return partial(_expand, product=product, factors=(x, w), y=y)


def _product(reader: Reader, name: str, zero: Array) -> Node | None:
    """The product of which a tensor is the result; a Relu is idle where 0 is the least number."""
    maker = _maker(reader, name)
    if maker and maker.op == "Relu" and zero == np.iinfo(zero.dtype).min:
        maker = _maker(reader, maker.inputs[0])
    return maker if maker and maker.op in _OPERATORS else None


def _maker(reader: Reader, name: str) -> Node | None:
    return next((node for node in reversed(reader.nodes) if name in node.outputs), None)


def _parameters(reader: Reader, scale: str, zero: str, default: Array) -> tuple[str, Array] | None:
    """A known scale of a whole tensor, and its zero of 8 bits."""
    values = reader.table.values
    known = scale in values and (not zero or zero in values)
    if not known or values[scale].size != 1 or values[scale].dtype != np.float32:
        return None
    value = values[zero] if zero else default
    return (scale, value.reshape(())) if value.dtype.name in BYTES and value.size == 1 else None


def _dequantised(reader: Reader, name: str) -> _Number | None:
    """What a tensor is the real numbers of, if that has 8 bits."""
    node = reader.dequantised.get(name)
    if node is None or reader.table.tensor(node.inputs[0]).dtype not in BYTES:
        return None
    values, zero = reader.table.values, node.input(2)
    if node.inputs[1] not in values or (zero and zero not in values):
        return None
    dtype = reader.table.tensor(node.inputs[0]).dtype
    return _Number(node.inputs[0], node.inputs[1], values[zero] if zero else np.zeros((), dtype))


def _fits(reader: Reader, product: Node, x: _Number, w: _Number) -> bool:
    """Whether a layer of 8 bits can compute it: x of one scale, known weights of one for a row."""
    values, node = reader.table.values, reader.dequantised[product.inputs[1]]
    if w.whole not in values or values[x.scale].size != 1 or x.zero.size != 1:
        return False
    weights, along = values[w.whole], _OPERATORS[product.op][1]
    size, axis = values[w.scale].size, int(node.attributes.get("axis", 1)) % max(1, weights.ndim)
    if node.attributes.get("block_size") or (size != 1 and axis != along):
        return False
    if product.op == "MatMul" and (weights.ndim != 2 or len(reader.table.shape(x.whole)) < 2):
        return False
    if product.op == "Conv" and (weights.ndim > 4 or product.input(2) not in ("", *values)):
        return False
    moved = weights.astype(np.int64) - _beside(w.zero, along, weights.ndim).astype(np.int64)
    return bool(moved.size) and int(moved.min()) >= -128 and int(moved.max()) <= 127


def _beside(zero: Array, along: int, rank: int) -> Array:
    """Zeros as they lie beside the weights."""
    if zero.size == 1:
        return zero.reshape(())
    return zero.reshape([-1 if at == along else 1 for at in range(rank)])


def _expand(
    reader: Reader, proto: Any, product: Node, factors: tuple[_Number, _Number],
    y: tuple[str, Array],
) -> None:  # fmt: skip
    call, inputs = Call(reader, proto), list[str]()
    for factor in factors:
        inputs += [factor.whole, factor.scale, call.constant("zero", factor.zero)]
    inputs += [y[0], call.constant("zero", y[1])]
    if product.input(2):
        values, (x, w) = reader.table.values, factors
        steps = values[x.scale].astype(np.float64).reshape(()) * values[w.scale]
        bias = np.rint(values[product.input(2)] / steps)
        inputs.append(call.constant("bias", bias.astype(np.int32)))
    name = _OPERATORS[product.op][0]
    call.make(name, inputs, call.output(0), **dict(product.attributes))
