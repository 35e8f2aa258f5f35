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
    """What makes the zero of x constant: ``sum((x - z) w) = sum(x w) - z sum(w)``.

    So quantisation at run time (DynamicQuantizeLinear) gets layers of 8 bits.
    """
    expand, types, values = _EXPANSIONS.get(proto.op_type), reader.table.types, reader.table.values
    if expand is None or len(proto.input) < 3 or not all(name in types for name in proto.input[:3]):
        return None
    zero, needs = proto.input[2], [proto.input[1], *proto.input[3:]]
    changes = zero and zero not in values and reader.table.tensor(zero).size == 1
    auto = any(value.name == "auto_pad" and value.s != b"NOTSET" for value in proto.attribute)
    if (
        not changes
        or auto
        or reader.table.opset < 11
        or not all(name in values for name in needs if name)
    ):
        return None
    return lambda reader, proto: expand(Call(reader, proto))


def _weights(call: Call, zero_shape: tuple[int, ...]) -> Array:
    """The constant factor less its zero."""
    values = call.reader.table.values
    weights = values[call.input(1)].astype(np.int64)
    if not call.input(3):
        return weights
    zero = values[call.input(3)].astype(np.int64)
    return weights - (zero.reshape(zero_shape) if zero.size > 1 else zero.reshape(-1)[0])


def _correct(call: Call, product: str, sums: Array) -> None:
    """Subtract the zero times the sums of weights."""
    kind = call.reader.table.onnx.TensorProto.INT32
    shape = call.reader.constant(f"{call.title}/scalar", np.zeros(0, np.int64))
    zero = call.make("Cast", [call.make("Reshape", [call.input(2), shape])], to=kind)
    name = call.reader.constant(f"{call.title}/sums", sums.astype(np.int32))
    call.make("Sub", [product, call.make("Mul", [name, zero])], call.output(0))


def _conv(call: Call) -> None:
    """Padding is filled with the zero ahead, so that every window has all its taps."""
    x, rank = call.input(0), call.rank(call.input(0))
    sums = _weights(call, (-1, *[1] * (rank - 1))).sum(tuple(range(1, rank)))
    pads = list(call.attribute("pads", [0] * 2 * (rank - 2)))
    if any(pads):
        half = rank - 2
        around = np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64)
        empty = call.reader.constant(f"{call.title}/scalar", np.zeros(0, np.int64))
        fill = call.make("Reshape", [call.input(2), empty])
        x = call.make("Pad", [x, call.reader.constant(f"{call.title}/pads", around), fill])
    inputs = [x, call.input(1), *(["", call.input(3)] if call.input(3) else [])]
    product = call.make("ConvInteger", inputs, **call.others("pads"))
    _correct(call, product, sums.reshape(1, -1, *[1] * (rank - 2)))


def _matmul(call: Call) -> None:
    inputs = [call.input(0), call.input(1), *(["", call.input(3)] if call.input(3) else [])]
    sums = _weights(call, (-1,)).sum(-2, keepdims=True)
    _correct(call, call.make("MatMulInteger", inputs), sums)


_EXPANSIONS: Mapping[str, Callable[[Call], None]] = MappingProxyType(
    {"ConvInteger": _conv, "MatMulInteger": _matmul}
)
