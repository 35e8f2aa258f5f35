"""Sequences of tensors whose parts are known, and optional values: other names for tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.onnx.loops import reshape, stack
from polysci.frontends.onnx.reader import Expansion, ExpansionError, Reader


def expansion_of_sequence(reader: Reader, proto: Any) -> Expansion | None:
    """Return the expansion of an operator on sequences."""
    if proto.op_type == "Identity" and proto.input[0] in reader.sequences:
        return _copy
    return _OPERATORS.get(proto.op_type)


def _parts(reader: Reader, proto: Any) -> tuple[str, ...]:
    if (parts := reader.sequences.get(proto.input[0])) is None:
        raise ExpansionError("the parts of its sequence are not known")
    return parts


def _position(reader: Reader, proto: Any, index: int, default: int, count: int) -> int:
    """Return an index into a sequence of ``count`` parts, counted from the front."""
    at = default
    if len(proto.input) > index and proto.input[index]:
        value = reader.table.values.get(proto.input[index])
        if value is None:
            raise ExpansionError("its position is not constant", proto.input[index])
        at = int(value.reshape(-1)[0])
    at += count * (at < 0)
    if not 0 <= at < max(count, 1):
        raise ExpansionError(f"position {at} in a sequence of {count}")
    return at


def _attribute(proto: Any, name: str, default: int) -> int:
    return next((int(value.i) for value in proto.attribute if value.name == name), default)


def _copy(reader: Reader, proto: Any) -> None:
    reader.sequences[proto.output[0]] = _parts(reader, proto)


def _construct(reader: Reader, proto: Any) -> None:
    reader.sequences[proto.output[0]] = tuple(proto.input)


def _at(reader: Reader, proto: Any) -> None:
    parts = _parts(reader, proto)
    if not parts:
        raise ExpansionError("its sequence is empty")
    at = _position(reader, proto, 1, 0, len(parts))
    reader.emit("Identity", [parts[at]], [proto.output[0]])


def _length(reader: Reader, proto: Any) -> None:
    reader.learn(proto.output[0], np.array(len(_parts(reader, proto)), np.int64))


def _insert(reader: Reader, proto: Any) -> None:
    parts = list(_parts(reader, proto))
    at = _position(reader, proto, 2, len(parts), len(parts) + 1)
    parts.insert(at, proto.input[1])
    reader.sequences[proto.output[0]] = tuple(parts)


def _erase(reader: Reader, proto: Any) -> None:
    parts = list(_parts(reader, proto))
    if not parts:
        raise ExpansionError("its sequence is empty")
    del parts[_position(reader, proto, 1, len(parts) - 1, len(parts))]
    reader.sequences[proto.output[0]] = tuple(parts)


def _optional(reader: Reader, proto: Any) -> None:
    """Copy an optional value, whose content is another name for it."""
    if proto.input and proto.input[0] in reader.sequences:
        _copy(reader, proto)
    elif proto.input and proto.input[0]:
        reader.emit("Identity", [proto.input[0]], [proto.output[0]])
    else:
        raise ExpansionError("it holds no value")


def _is_given(reader: Reader, proto: Any) -> None:
    holds = bool(proto.input and proto.input[0])
    reader.learn(proto.output[0], np.array(holds))


def _concat(reader: Reader, proto: Any) -> None:
    parts, axis = list(_parts(reader, proto)), _attribute(proto, "axis", 0)
    if _attribute(proto, "new_axis", 0):
        stack(reader, parts, proto.output[0], axis)
        return
    if not parts:
        raise ExpansionError("its sequence is empty")
    reader.emit("Concat", parts, [proto.output[0]], axis=axis)


def _split(reader: Reader, proto: Any) -> None:
    """Expand ``SplitToSequence``: by sizes, by one size, or into parts of one element."""
    x = proto.input[0]
    if x not in reader.table.types:
        raise ExpansionError("the shape of its input is not known")
    shape = list(reader.table.shape(x))
    axis = _attribute(proto, "axis", 0)
    if not -len(shape) <= axis < len(shape):
        raise ExpansionError(f"axis {axis} of a tensor of {len(shape)} axes")
    axis %= len(shape)
    sizes, single = _sizes(reader, proto, shape[axis]), len(proto.input) < 2
    title = proto.name or proto.output[0]
    parts = [reader.fresh(f"{title}/{at}") for at in range(len(sizes))]
    if reader.table.opset < 13:
        reader.emit("Split", [x], parts, axis=axis, split=sizes)
    else:
        told = reader.constant(f"{title}/sizes", np.array(sizes, np.int64))
        reader.emit("Split", [x, told], parts, axis=axis)
    if single and not _attribute(proto, "keepdims", 1):
        parts = [reshape(reader, name, shape[:axis] + shape[axis + 1 :]) for name in parts]
    reader.sequences[proto.output[0]] = tuple(parts)


def _sizes(reader: Reader, proto: Any, length: int) -> list[int]:
    if len(proto.input) < 2 or not proto.input[1]:
        return [1] * length
    value = reader.table.values.get(proto.input[1])
    if value is None:
        raise ExpansionError("its sizes are not constant", proto.input[1])
    if value.ndim:
        sizes = [int(size) for size in value]
    else:
        step = max(1, int(value))
        sizes = [min(step, length - first) for first in range(0, length, step)]
    if sum(sizes) != length or min(sizes, default=0) < 0:
        raise ExpansionError(f"sizes {sizes} of an axis of {length}")
    return sizes


_OPERATORS: Mapping[str, Callable[[Reader, Any], None]] = MappingProxyType(
    {
        "Optional": _optional,
        "OptionalGetElement": _optional,
        "OptionalHasElement": _is_given,
        "SequenceConstruct": _construct,
        "SequenceEmpty": _construct,
        "SequenceAt": _at,
        "SequenceLength": _length,
        "SequenceInsert": _insert,
        "SequenceErase": _erase,
        "ConcatFromSequence": _concat,
        "SplitToSequence": _split,
    }
)
