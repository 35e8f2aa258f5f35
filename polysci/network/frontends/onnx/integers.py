"""Products of 8-bit numbers whose zero is computed: those of the numbers, and a correction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.network.frontends.onnx.call import Call
from polysci.network.frontends.onnx.reader import Expansion, Reader
from polysci.network.ir.graph import Array


def expansion_of_zeros(reader: Reader, proto: Any) -> Expansion | None:
    """What layers of 8 bits can compute: no zero that is computed, weights that 8 bits hold.

    ``sum((x - z) w) = sum(x w) - z sum(w)``, and weights beyond 8 bits are a sum of two. So
    quantisation at run time (DynamicQuantizeLinear) gets such layers.
    """
    expand, types, values = _EXPANSIONS.get(proto.op_type), reader.table.types, reader.table.values
    if expand is None or not all(name in types for name in proto.input if name):
        return None
    call = Call(reader, proto)
    auto = call.attribute("auto_pad", "NOTSET") != "NOTSET"
    known = all(name in values for name in (call.input(1), call.input(3)) if name)
    if auto or reader.table.opset < 11 or not known:
        return None
    zero = call.input(2)
    computed = bool(zero) and zero not in values and reader.table.tensor(zero).size == 1
    return (lambda reader, proto: expand(call)) if computed or _is_wide(call) else None


def _is_wide(call: Call) -> bool:
    """Whether weights less their zero need more than 8 bits."""
    weights = _weights(call, _zero_shape(call))
    return bool(weights.size) and bool(weights.min() < -128 or weights.max() > 127)


def _zero_shape(call: Call) -> tuple[int, ...]:
    """How zeros lie beside weights: one for each filter, or column."""
    conv = call.proto.op_type == "ConvInteger"
    return (-1, *[1] * (call.rank(call.input(1)) - 1)) if conv else (-1,)


def _weights(call: Call, zero_shape: tuple[int, ...]) -> Array:
    """The constant factor less its zero."""
    values = call.reader.table.values
    weights = values[call.input(1)].astype(np.int64)
    if not call.input(3):
        return weights
    zero = values[call.input(3)].astype(np.int64)
    return weights - (zero.reshape(zero_shape) if zero.size > 1 else zero.reshape(-1)[0])


def _product(call: Call, x: str, weights: Array, zero: str, **attributes: Any) -> str:
    """The sums of products with weights of one or two parts of 8 bits."""
    low = np.clip(weights, -128, 127)
    parts = [part for part in (low, weights - low) if part is low or part.any()]
    made = [
        call.make(call.proto.op_type, [x, call.constant("weights", part.astype(np.int8)),
                                       *([zero] if zero else [])], **attributes)
        for part in parts
    ]  # fmt: skip
    return made[0] if len(made) == 1 else call.make("Add", made)


def _finish(call: Call, product: str, sums: Array) -> None:
    """Subtract the zero times the sums of weights, if the zero is computed."""
    if call.input(2) in ("", *call.reader.table.values):
        call.make("Identity", [product], call.output(0))
        return
    kind = call.reader.table.onnx.TensorProto.INT32
    zero = call.make("Cast", [_scalar(call)], to=kind)
    name = call.constant("sums", sums.astype(np.int32))
    call.make("Sub", [product, call.make("Mul", [name, zero])], call.output(0))


def _scalar(call: Call) -> str:
    """The zero of x without axes."""
    return call.make("Reshape", [call.input(2), call.constant("scalar", np.zeros(0, np.int64))])


def _conv(call: Call) -> None:
    """Padding is filled with a computed zero ahead, so that every window has all its taps."""
    x, rank, zero = call.input(0), call.rank(call.input(0)), call.input(2)
    weights = _weights(call, _zero_shape(call))
    words = call.others()
    if zero and zero not in call.reader.table.values:
        half, zero = rank - 2, ""
        if any(pads := list(words.pop("pads", []))):
            around = np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64)
            x = call.make("Pad", [x, call.constant("pads", around), _scalar(call)])
    sums = weights.sum(tuple(range(1, rank))).reshape(1, -1, *[1] * (rank - 2))
    _finish(call, _product(call, x, weights, zero, **words), sums)


def _matmul(call: Call) -> None:
    weights, zero = _weights(call, _zero_shape(call)), call.input(2)
    zero = zero if zero in call.reader.table.values else ""
    _finish(call, _product(call, call.input(0), weights, zero), weights.sum(-2, keepdims=True))


_EXPANSIONS: Mapping[str, Callable[[Call], None]] = MappingProxyType(
    {"ConvInteger": _conv, "MatMulInteger": _matmul}
)
