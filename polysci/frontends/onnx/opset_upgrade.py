"""Nodes of older opsets as those of opset KNOWN, which graphs follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.onnx.model_file import KNOWN, NEWEST
from polysci.frontends.onnx.reader import Call, Expansion, ExpansionError, Reader, expansion_by

# Attributes that said how memory was shared, what a result was for, or what shapes say.
_IDLE = ("consumed_inputs", "is_test", "output_sequence", "broadcast")
_OLDEST = 7  # the first opset without them
# Attributes that had other values where nothing was said, before _OLDEST.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"Concat": {"axis": 1}, "Selu": {"alpha": 1.6732, "gamma": 1.0507}}
)
# Operators that others took the place of.
_RENAMED: Mapping[str, str] = MappingProxyType({"Scatter": "ScatterElements", "Upsample": "Resize"})
Attributes = dict[str, Any]
# Changes the attributes of a node, and returns its inputs, where they change as well.
Conversion = Callable[[Call, list[str], Attributes], list[str] | None]


def opset_upgrade(reader: Reader, proto: Any) -> Expansion | None:
    """Return the expansion of a node that opset KNOWN writes otherwise."""
    op, old = proto.op_type, reader.follows < _OLDEST
    if reader.follows >= KNOWN and op not in _RENAMED:
        return None
    if any(name not in reader.table.types for name in proto.input if name):
        return None
    if op in _BY_ROWS and reader.follows < 13:
        return expansion_by(_softmax)
    conversions = [
        convert for before, convert in _CONVERSIONS.get(op, ()) if reader.follows < before
    ]
    idle = old and (op in _DEFAULTS or any(value.name in _IDLE for value in proto.attribute))
    if not conversions and not idle and op not in _RENAMED:
        return None

    def expand(reader: Reader, proto: Any) -> None:
        call, inputs = Call(reader, proto), [*proto.input]
        defaults = _DEFAULTS.get(op, {}) if old else {}
        attributes = {**defaults, **call.others(*_IDLE * old)}
        for convert in conversions:
            inputs = convert(call, inputs, attributes) or inputs
        # the others of a BatchNormalization are for training
        outputs = [*proto.output][: 1 if op == "BatchNormalization" else None]
        reader.emit(_RENAMED.get(op, op), inputs, outputs, proto.name, **attributes)

    return expand


def _softmax(call: Call) -> None:
    axis, op = int(call.attribute("axis", 1)), call.proto.op_type
    along_rows(call, op, call.input(0), axis, call.output(0), call.proto.name)


def along_rows(
    call: Call, op: str, x: str, axis: int, output: str = "", title: str | None = None
) -> str:
    """Add a Softmax as it was before opset 13, along all axes from one on; return its result."""
    shape, rank = call.shape(x), call.rank(x)
    if not -rank <= axis < rank:
        raise ExpansionError(f"axis {axis} of a tensor of {rank} axes")
    axis %= rank
    rows, columns = prod(shape[:axis]), prod(shape[axis:])
    y = output or call.reader.fresh(f"{call.title}/{op}")
    if columns == shape[axis]:
        call.reader.emit(op, [x], [y], title, axis=axis)
        return y
    flat = call.make("Reshape", [x, call.integers("rows", (rows, columns))], allowzero=1)
    result = call.reader.fresh(f"{call.title}/rows")
    call.reader.emit(op, [flat], [result], title, axis=1)
    return call.make("Reshape", [result, call.integers("shape", shape)], y, allowzero=1)


def _to_inputs(*names: str) -> Conversion:
    """Return the conversion of attributes, lists of integers, to inputs behind those there are."""

    def convert(call: Call, inputs: list[str], attributes: Attributes) -> list[str]:
        values = [attributes.pop(name, None) for name in names]
        added = ["" if value is None else call.integers("list", value) for value in values]
        return _strip([*inputs, *added])

    return convert


def _strip(inputs: list[str]) -> list[str]:
    """Leave out the inputs at the end that are left out."""
    while inputs and not inputs[-1]:
        inputs.pop()
    return inputs


def _along_axis(call: Call, inputs: list[str], attributes: Attributes) -> list[str] | None:
    """Reshape a second operand that lies along axes of the first from ``axis`` on."""
    axis = attributes.pop("axis", None)
    if axis is None:
        return None
    rank, shape = call.rank(inputs[0]), call.shape(inputs[1])
    behind = rank - axis % rank - len(shape)
    return [inputs[0], _reshape_to(call, inputs[1], (*shape, *[1] * behind))]


def _slopes(call: Call, inputs: list[str], attributes: Attributes) -> list[str] | None:
    """Reshape the slopes of PRelu: one a channel, which is axis 1."""
    rank, shape = call.rank(inputs[0]), call.shape(inputs[1])
    if len(shape) != 1 or shape[0] == 1 or rank < 3:
        return None
    return [inputs[0], _reshape_to(call, inputs[1], (*shape, *[1] * (rank - 2)))]


def _reshape_to(call: Call, name: str, shape: Sequence[int]) -> str:
    same = call.shape(name) == shape
    return name if same else call.make("Reshape", [name, call.integers("shape", shape)])


def _cast(call: Call, inputs: list[str], attributes: Attributes) -> None:
    """Convert the type, which was a word."""
    if isinstance(attributes.get("to"), str):
        kinds = call.reader.table.onnx.TensorProto.DataType
        attributes["to"] = kinds.Value(attributes["to"].upper())


def _pad(call: Call, inputs: list[str], attributes: Attributes) -> list[str]:
    """Convert the attributes ``pads``, first ``paddings``, and ``value`` to inputs."""
    pads = attributes.pop("pads", None) or attributes.pop("paddings", ())
    value = attributes.pop("value", None)
    added = [] if value is None else [call.number(value, inputs[0])]
    return [*inputs, call.integers("pads", pads), *added]


def _power(call: Call, inputs: list[str], attributes: Attributes) -> None:
    """Convert p of LpPool from a real number."""
    if "p" in attributes:
        attributes["p"] = int(attributes["p"])


def _reshape(call: Call, inputs: list[str], attributes: Attributes) -> list[str] | None:
    shape = attributes.pop("shape", None)
    return None if shape is None else [*inputs, call.integers("shape", shape)]


def _sizes_of_parts(call: Call, inputs: list[str], attributes: Attributes) -> list[str]:
    """Read the sizes of Split, which were numbers of any type."""
    if len(inputs) == 2:
        attributes["split"] = _read_integers(call, inputs[1])
    return inputs[:1]


def _equal_parts(call: Call, inputs: list[str], attributes: Attributes) -> None:
    """Tell Split how many parts it makes, where no sizes do."""
    if len(inputs) < 2:
        attributes["num_outputs"] = len(call.proto.output)


def _tile(call: Call, inputs: list[str], attributes: Attributes) -> list[str] | None:
    """Convert a number of tiles along one axis to repeats."""
    if len(inputs) < 3:
        return None
    (tiles,), (axis,) = (_read_integers(call, name) for name in inputs[1:])
    repeats = [1] * call.rank(inputs[0])
    repeats[axis] = tiles
    return [inputs[0], call.integers("repeats", repeats)]


def _read_integers(call: Call, name: str) -> list[int]:
    return [int(number) for number in call.reader.value(name, f"{name!r:.200} is").reshape(-1)]


def _clip(call: Call, inputs: list[str], attributes: Attributes) -> list[str]:
    bounds = [attributes.pop(name, None) for name in ("min", "max")]
    added = ["" if bound is None else call.number(bound, inputs[0]) for bound in bounds]
    return _strip([*inputs, *added])


def _without_ratio(call: Call, inputs: list[str], attributes: Attributes) -> None:
    attributes.pop("ratio", None)


def _top_k(call: Call, inputs: list[str], attributes: Attributes) -> list[str]:
    return [*inputs, call.integers("k", [attributes.pop("k")])]


def _per_channel(call: Call, inputs: list[str], attributes: Attributes) -> None:
    """Refuse statistics of every pixel."""
    if not attributes.pop("spatial", 1):
        raise ExpansionError("spatial 0")


def _scales(call: Call, inputs: list[str], attributes: Attributes) -> list[str]:
    """Convert Upsample, and Resize before opset 11, to Resize with scales."""
    if "height_scale" in attributes:
        sides = [attributes.pop(f"{side}_scale") for side in ("height", "width")]
        attributes["scales"] = [1.0, 1.0, *sides]
    scales = attributes.pop("scales", None)
    name = inputs[1] if scales is None else call.constant("scales", np.array(scales, np.float32))
    attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return [inputs[0], "", name]


def _without_empty(call: Call, inputs: list[str], attributes: Attributes) -> list[str]:
    """Leave out inputs of Resize that have no elements."""
    return _strip([name if name and all(call.shape(name)) else "" for name in inputs])


def _region_corners(call: Call, inputs: list[str], attributes: Attributes) -> None:
    attributes.setdefault("coordinate_transformation_mode", "output_half_pixel")


def _transformed_axis(call: Call, inputs: list[str], attributes: Attributes) -> list[str]:
    """Convert the axis of DFT to its third input."""
    axis = call.integers("axis", attributes.pop("axis", 1))
    return [inputs[0], inputs[1] if len(inputs) > 1 else "", axis]


def _interpolation(call: Call, inputs: list[str], attributes: Attributes) -> None:
    """Rename the modes of GridSample."""
    modes = {"bilinear": "linear", "bicubic": "cubic"}
    if "mode" in attributes:
        attributes["mode"] = modes.get(attributes["mode"], attributes["mode"])


def _by_channel(call: Call, inputs: list[str], attributes: Attributes) -> list[str]:
    """Repeat the scale and bias of a group for its channels."""
    x, *vectors = inputs
    groups, channels = int(attributes["num_groups"]), call.shape(x)[1]
    if groups < 1 or channels % groups or any(call.shape(name) != (groups,) for name in vectors):
        shapes = [list(call.shape(name)) for name in vectors]
        raise ExpansionError(f"{groups} groups of {channels} channels, scale and bias {shapes}")
    wide = call.integers("wide", (groups, channels // groups))
    columns = [call.make("Expand", [_reshape_to(call, v, (groups, 1)), wide]) for v in vectors]
    return [x, *(_reshape_to(call, name, (channels,)) for name in columns)]


_BY_ROWS = ("Softmax", "LogSoftmax", "Hardmax")
_ARITHMETIC = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
# Operator -> its conversions, in order, each of nodes before an opset.
_CONVERSIONS: Mapping[str, Sequence[tuple[int, Conversion]]] = MappingProxyType(
    {
        **{name: [(7, _along_axis)] for name in _ARITHMETIC},
        **{name: [(7, _power)] for name in ("GlobalLpPool", "LpPool")},
        **{f"Reduce{name}": [(18, _to_inputs("axes"))] for name in _REDUCTIONS},
        **{name: [(13, _to_inputs("axes"))] for name in ("ReduceSum", "Squeeze", "Unsqueeze")},
        "BatchNormalization": [(14, _per_channel)],
        "Cast": [(7, _cast)],
        "Clip": [(11, _clip)],
        "DFT": [(20, _transformed_axis)],
        "Dropout": [(12, _without_ratio)],
        "GridSample": [(20, _interpolation)],
        "GroupNormalization": [(21, _by_channel)],
        "PRelu": [(7, _slopes)],
        "Pad": [(11, _pad)],
        "Reshape": [(7, _reshape)],
        "Resize": [(11, _scales), (13, _without_empty)],
        "RoiAlign": [(16, _region_corners)],
        "Slice": [(10, _to_inputs("starts", "ends", "axes"))],
        "Split": [(7, _sizes_of_parts), (13, _to_inputs("split")), (18, _equal_parts)],
        "Tile": [(7, _tile)],
        "TopK": [(10, _top_k)],
        "Upsample": [(NEWEST + 1, _scales)],
    }
)  # fmt: skip
