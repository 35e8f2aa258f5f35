"""Operators of ``ai.onnx.ml`` that are arithmetic, as ONNX's; trees and the like are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.onnx.call import Call
from polysci.frontends.onnx.reader import Expansion, ExpansionError, Reader

DOMAIN = "ai.onnx.ml"
REFUSED = (
    "an operator of classical machine learning, which polysci does not have; end the model before "
    "it, and compute it in the program that calls the network"
)


def _real(call: Call, name: str) -> str:
    """Return a tensor as f32."""
    call.shape(name)
    if call.reader.table.tensor(name).dtype == "float32":
        return name
    return call.make("Cast", [name], to=int(call.reader.table.onnx.TensorProto.FLOAT))


def _vector(call: Call, attribute: str, default: float) -> str:
    """Return a list of numbers, one for each column or for all."""
    values = call.attribute(attribute, None) or [default]
    return call.constant(attribute, np.array(values, np.float32))


def _scale(call: Call) -> None:
    """Expand to ``(x - offset) * scale``."""
    centred = call.make("Sub", [_real(call, call.input(0)), _vector(call, "offset", 0)])
    call.make("Mul", [centred, _vector(call, "scale", 1)], call.output(0))


def _regress(call: Call) -> None:
    """Expand to ``x @ coefficients' + intercepts``, a row of coefficients for each target."""
    if call.attribute("post_transform", "NONE") != "NONE":
        raise ExpansionError(f"post_transform {call.attribute('post_transform', '')}")
    targets = call.attribute("targets", 1)
    rows = np.array(call.attribute("coefficients", []), np.float32).reshape(targets, -1)
    columns = call.constant("coefficients", np.ascontiguousarray(rows.T))
    product = call.make("MatMul", [_real(call, call.input(0)), columns])
    call.make("Add", [product, _vector(call, "intercepts", 0)], call.output(0))


def _normalise(call: Call) -> None:
    """Divide rows by their largest size, the sum of sizes, or the root of the sum of squares."""
    kind, x = call.attribute("norm", "MAX"), _real(call, call.input(0))
    ops = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}
    if kind not in ops:
        raise ExpansionError(f"norm {kind}")
    axes = call.constant("axes", np.array([-1], np.int64))
    source = call.make("Abs", [x]) if kind == "MAX" else x
    newer = call.reader.table.opset >= 18
    norm = (
        call.make(ops[kind], [source, axes]) if newer else call.make(ops[kind], [source], axes=[-1])
    )
    zero, one = (call.number(value, norm) for value in (0.0, 1.0))
    divisor = call.make("Where", [call.make("Equal", [norm, zero]), one, norm])
    call.make("Div", [x, divisor], call.output(0))


def _pick(call: Call) -> None:
    """Pick columns by their numbers."""
    call.make("Gather", [call.input(0), call.input(1)], call.output(0), axis=-1)


_EXPANSIONS: Mapping[str, Callable[[Call], None]] = MappingProxyType(
    {
        "Scaler": _scale,
        "LinearRegressor": _regress,
        "Normalizer": _normalise,
        "ArrayFeatureExtractor": _pick,
    }
)


def expansion_of_classical(reader: Reader, proto: Any) -> Expansion | None:
    """Return the expansion of an operator of ``ai.onnx.ml``."""
    if proto.domain != DOMAIN:
        return None
    expand = _EXPANSIONS.get(proto.op_type, _refuse)
    return lambda reader, proto: expand(Call(reader, proto))


def _refuse(call: Call) -> None:
    raise ExpansionError(REFUSED)
