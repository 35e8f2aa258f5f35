"""Operators of ``com.microsoft`` on numbers of 8 bits, as ONNX's operators between conversions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.onnx.call import Call
from polysci.frontends.onnx.reader import ExpansionError
from polysci.graph.graph import QUANTISED_LSTM

SINGLE = 1  # ONNX's number of float32


def _quantised(call: Call, op: str, factors: int) -> None:
    """Expand an operator on 8-bit numbers: ``(x, scale, zero)`` each, then those of the result."""
    inputs = [_real(call, 3 * at) for at in range(factors)]
    y = call.make(op, inputs, **call.others("channels_last"))
    call.refuse("channels_last")
    _narrow(call, y, 3 * factors)


def _softmax(call: Call) -> None:
    """Expand Softmax of version ``opset``: before 13 all axes from ``axis`` on are one."""
    x, axis, old = call.input(0), int(call.attribute("axis", -1)), call.attribute("opset", 13) < 13
    rank = call.rank(x)
    if old != (call.reader.table.opset < 13) and axis % rank != rank - 1:
        raise ExpansionError(f"opset {call.attribute('opset', 13)} and axis {axis}")
    _narrow(call, call.make("Softmax", [_real(call, 0)], axis=axis), 3)


def _mean(call: Call) -> None:
    """Expand ReduceMean, whose axes are an input since version 18."""
    axes, words = call.attribute("axes", None), {"keepdims": call.attribute("keepdims", 1)}
    inputs = [_real(call, 0)]
    if axes is not None and call.reader.table.opset < 18:
        words["axes"] = axes
    elif axes is not None:
        inputs.append(call.constant("axes", np.array(axes, np.int64)))
    _narrow(call, call.make("ReduceMean", inputs, **words), 3)


def _where(call: Call) -> None:
    """Expand Where: a condition, then two times ``(x, scale, zero)``."""
    _narrow(call, call.make("Where", [call.input(0), _real(call, 1), _real(call, 4)]), 7)


def _gemm(call: Call) -> None:
    """Expand ``alpha * (A @ B + C)``, C in steps of both scales; with y's scale to 8 bits.

    A scale of B is one, or one a column of the product.
    """
    names = [call.input(at) for at in range(3) if call.input(at)]
    step, alpha, turned = names[1], float(call.attribute("alpha", 1.0)), call.attribute("transB", 0)
    if alpha != 1:
        step = names[1] = call.make("Mul", [step, call.number(alpha, step)])
    a = call.make("DequantizeLinear", names)
    if call.attribute("transA", 0):
        a = call.make("Transpose", [a], perm=[1, 0])
    factor = [call.input(at) for at in range(3, 6) if call.input(at)]
    b = call.make("DequantizeLinear", factor, **_axis(call, factor, 1 - bool(turned)))
    inputs = [a, b]
    if call.input(6):
        whole = call.make("Cast", [call.input(6)], to=SINGLE)
        inputs.append(call.make("Mul", [whole, call.make("Mul", [step, call.input(4)])]))
    if not call.input(7):
        call.make("Gemm", inputs, call.output(0), transB=turned)
        return
    _narrow(call, call.make("Gemm", inputs, transB=turned), 7)


def _axis(call: Call, factor: list[str], axis: int) -> dict[str, Any]:
    """Return the axis along which a factor has a scale for each place; none where it has one."""
    return {"axis": axis} if any(call.rank(name) for name in factor[1:]) else {}


def _dynamic_product(call: Call) -> None:
    """Expand ``DynamicQuantizeMatMul``: A is rounded to 8 bits by its own range."""
    parts = [call.reader.fresh(f"{call.title}/{word}") for word in ("a", "scale", "zero")]
    call.reader.emit("DynamicQuantizeLinear", [call.input(0)], parts)
    names = [call.input(at) for at in (1, 2, 3) if call.input(at)]
    a = call.make("DequantizeLinear", parts)
    b = call.make("DequantizeLinear", names, **_axis(call, names, -1))
    _product(call, a, b, call.input(4))


def _product(call: Call, a: str, b: str, bias: str) -> None:
    if bias:
        call.make("Add", [call.make("MatMul", [a, b]), bias], call.output(0))
    else:
        call.make("MatMul", [a, b], call.output(0))


def _quantised_concat(call: Call) -> None:
    """Expand Concat; the scale and zero of the result come first."""
    parts = [_real(call, at) for at in range(2, len(call.proto.input), 3)]
    _narrow(call, call.make("Concat", parts, **call.others()), 0)


def _real(call: Call, at: int) -> str:
    inputs = [call.input(at + part) for part in range(3)]
    return call.make("DequantizeLinear", [name for name in inputs if name])


def _narrow(call: Call, y: str, at: int) -> None:
    names = [y, call.input(at), call.input(at + 1)]
    call.make("QuantizeLinear", [name for name in names if name], call.output(0))


def _integers_to_real(call: Call) -> None:
    """Expand ``MatMulIntegerToFloat``: products of 8-bit numbers, scaled, and a bias."""
    places = ((0, 2, 4), (1, 3, 5))  # of a factor, its scale and its zero
    names = [[call.input(at) for at in factor if call.input(at)] for factor in places]
    a = call.make("DequantizeLinear", names[0])
    b = call.make("DequantizeLinear", names[1], **_axis(call, names[1], -1))
    _product(call, a, b, call.input(6))


def _quantised_lstm(call: Call) -> None:
    """Expand ``DynamicQuantizeLSTM``, whose weights are constant and fit 8 bits less their zero.

    Others are converted to f32, and then nothing is rounded.
    """
    reader, parts = call.reader, [_narrow_weights(call, 1, 8), _narrow_weights(call, 2, 10)]
    others = [call.input(at) for at in range(3, 8)]
    if None in parts:
        call.reader.emit(
            "LSTM", [call.input(0), _real_weights(call, 1, 8), _real_weights(call, 2, 10), *others],
            [*call.proto.output], **call.others(),
        )  # fmt: skip
        return
    (w, w_scale), (r, r_scale) = (part for part in parts if part)
    node = reader.node(call.proto)
    inputs = (call.input(0), w, r, *others, w_scale, r_scale)
    steps, batch, _ = call.shape(call.input(0))
    count, hidden = call.shape(r)[0], call.shape(r)[2]
    last = (count, batch, hidden)
    shapes = ((steps, count, batch, hidden), last, last)
    reader.keep(replace(node, op=QUANTISED_LSTM, inputs=inputs), shapes)


def _narrow_weights(call: Call, weights: int, scale: int) -> tuple[str, str] | None:
    """Return transposed weights less their zero, and scales; None if 8 bits lack any."""
    values = call.reader.table.values
    names = [call.input(at) for at in (weights, scale, scale + 1) if call.input(at)]
    if not all(name in values for name in names):
        return None
    whole, scales, *zeros = (values[name] for name in names)
    rows = [zero.astype(np.int64).reshape(len(zero), 1, -1) for zero in zeros]
    moved = whole.astype(np.int64) - (rows[0] if rows else 0)
    if not moved.size or moved.min() < -128 or moved.max() > 127:
        return None
    narrow = np.ascontiguousarray(moved.astype(np.int8).transpose(0, 2, 1))
    factors = scales.astype(np.float32).reshape(len(scales), -1)
    return call.constant("weights", narrow), call.constant("scales", factors)


def _real_weights(call: Call, weights: int, scale: int) -> str:
    names = [call.input(weights), call.input(scale), call.input(scale + 1)]
    real = call.make("DequantizeLinear", [name for name in names if name], axis=0)
    return call.make("Transpose", [real], perm=[0, 2, 1])


EXPANSIONS: Mapping[str, Callable[[Call], None]] = MappingProxyType(
    {
        "QLinearAdd": partial(_quantised, op="Add", factors=2),
        "QLinearMul": partial(_quantised, op="Mul", factors=2),
        "QLinearSigmoid": partial(_quantised, op="Sigmoid", factors=1),
        "QLinearLeakyRelu": partial(_quantised, op="LeakyRelu", factors=1),
        "QLinearGlobalAveragePool": partial(_quantised, op="GlobalAveragePool", factors=1),
        "QLinearAveragePool": partial(_quantised, op="AveragePool", factors=1),
        "QLinearSoftmax": _softmax,
        "QLinearReduceMean": _mean,
        "QLinearWhere": _where,
        "QLinearConcat": _quantised_concat,
        "QGemm": _gemm,
        "MatMulIntegerToFloat": _integers_to_real,
        "DynamicQuantizeMatMul": _dynamic_product,
        "DynamicQuantizeLSTM": _quantised_lstm,
    }
)
