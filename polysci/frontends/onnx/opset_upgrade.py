"""Operators as they were before opset 7, as those of opset 7."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.onnx.call import Call
from polysci.frontends.onnx.model_file import OLDEST
from polysci.frontends.onnx.reader import Expansion, ExpansionError, Reader

# Attributes that said how memory was shared, or what a result was for.
_IDLE = ("consumed_inputs", "is_test", "output_sequence")
Words = dict[str, Any]
# Changes the attributes of a node, and gives its inputs.
Conversion = Callable[[Call, list[str], Words], list[str]]


def expansion_of_legacy(reader: Reader, proto: Any) -> Expansion | None:
    """Return the expansion of a node older than opset 7, where it was written otherwise."""
    known = all(name in reader.table.types for name in proto.input if name)
    if reader.table.file_opset >= OLDEST or not known:
        return None
    call = Call(reader, proto)
    words, inputs = call.others(*_IDLE), [*proto.input]
    if convert := _CONVERSIONS.get(proto.op_type):
        inputs = convert(call, inputs, words)
    if inputs == [*proto.input] and _typed(words) == _typed(call.others()):
        return None
    # the others of a BatchNormalization are for training
    outputs = [*proto.output][: 1 if proto.op_type == "BatchNormalization" else None]
    return lambda reader, _: reader.emit(proto.op_type, inputs, outputs, **words)


def _typed(words: Words) -> dict[str, tuple[type, Any]]:
    """Return attributes with their types: 3 and 3.0 are equal."""
    return {name: (type(value), value) for name, value in words.items()}


def _along_axis(call: Call, inputs: list[str], words: Words) -> list[str]:
    """Reshape a second operand that lies along axes of the first from ``axis`` on."""
    words.pop("broadcast", None)
    axis = words.pop("axis", None)
    if axis is None:
        return inputs
    rank, own = call.rank(inputs[0]), call.shape(inputs[1])
    behind = rank - axis % rank - len(own)
    return [inputs[0], _reshaped(call, inputs[1], (*own, *[1] * behind))]


def _slopes(call: Call, inputs: list[str], words: Words) -> list[str]:
    """Reshape the slopes of PRelu: one a channel, which is axis 1."""
    rank, own = call.rank(inputs[0]), call.shape(inputs[1])
    if len(own) != 1 or own[0] == 1 or rank < 3:
        return inputs
    return [inputs[0], _reshaped(call, inputs[1], (*own, *[1] * (rank - 2)))]


def _reshaped(call: Call, name: str, shape: tuple[int, ...]) -> str:
    if call.shape(name) == shape:
        return name
    return call.make("Reshape", [name, call.constant("shape", np.array(shape, np.int64))])


def _without_broadcast(call: Call, inputs: list[str], words: Words) -> list[str]:
    words.pop("broadcast", None)
    return inputs


def _cast(call: Call, inputs: list[str], words: Words) -> list[str]:
    """Convert the type, which was a word."""
    kinds = call.reader.table.onnx.TensorProto.DataType
    if isinstance(words.get("to"), str):
        words["to"] = kinds.Value(words["to"].upper())
    return inputs


def _concat(call: Call, inputs: list[str], words: Words) -> list[str]:
    words.setdefault("axis", 1)
    return inputs


def _pad(call: Call, inputs: list[str], words: Words) -> list[str]:
    if "paddings" in words:
        words["pads"] = words.pop("paddings")
    return inputs


def _power(call: Call, inputs: list[str], words: Words) -> list[str]:
    """Convert p of LpPool from a real number."""
    if "p" in words:
        words["p"] = int(words["p"])
    return inputs


def _reshape(call: Call, inputs: list[str], words: Words) -> list[str]:
    if "shape" not in words:
        return inputs
    return [inputs[0], call.constant("shape", np.array(words.pop("shape"), np.int64))]


def _selu(call: Call, inputs: list[str], words: Words) -> list[str]:
    words.setdefault("alpha", 1.6732)
    words.setdefault("gamma", 1.0507)
    return inputs


def _split(call: Call, inputs: list[str], words: Words) -> list[str]:
    if len(inputs) == 2:
        words["split"] = _known(call, inputs[1])
    return inputs[:1]


def _tile(call: Call, inputs: list[str], words: Words) -> list[str]:
    """Convert a number of tiles along one axis to repeats."""
    if len(inputs) < 3:
        return inputs
    (tiles,), (axis,) = (_known(call, name) for name in inputs[1:])
    repeats = np.ones(call.rank(inputs[0]), np.int64)
    repeats[axis] = tiles
    return [inputs[0], call.constant("repeats", repeats)]


def _known(call: Call, name: str) -> list[int]:
    values = call.reader.table.values
    if name not in values:
        raise ExpansionError(f"{name!r:.200} is not constant", name)
    return [int(value) for value in values[name].reshape(-1)]


def _upsample(call: Call, inputs: list[str], words: Words) -> list[str]:
    if "height_scale" in words:
        words["scales"] = [1.0, 1.0, words.pop("height_scale"), words.pop("width_scale")]
    return inputs


_ARITHMETIC = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
_CONVERSIONS: Mapping[str, Conversion] = MappingProxyType(
    {
        **dict.fromkeys(_ARITHMETIC, _along_axis),
        "Cast": _cast,
        "Concat": _concat,
        "Gemm": _without_broadcast,
        "GlobalLpPool": _power,
        "LpPool": _power,
        "PRelu": _slopes,
        "Pad": _pad,
        "Reshape": _reshape,
        "Selu": _selu,
        "Split": _split,
        "Tile": _tile,
        "Upsample": _upsample,
    }
)
