"""Convolutions and pools whose padding is a rule, as those whose padding is numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polysci.frontends.onnx.reader import Call, Expansion, ExpansionError, Reader, expansion_by
from polysci.frontends.onnx.tensors import infer

_RULES = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def expansion_of_auto_pad(reader: Reader, proto: Any) -> Expansion | None:
    """Return the expansion of a node with ``auto_pad``, or with the shape of its output."""
    call = Call(reader, proto)
    sized = proto.op_type == "ConvTranspose" and call.attribute("output_shape", None)
    known = all(name in reader.table.types for name in proto.input if name)
    if not known or (call.attribute("auto_pad", "NOTSET") == "NOTSET" and not sized):
        return None
    return expansion_by(_pad_by_rule)


def _pad_by_rule(call: Call) -> None:
    rule, asked = call.attribute("auto_pad", "NOTSET"), call.attribute("output_shape", None)
    if rule not in _RULES:
        raise ExpansionError(f"auto_pad {rule}: expected one of {', '.join(_RULES)}")
    table, proto = call.reader.table, call.proto
    kinds, (y, *_) = infer(table, proto, call.reader.node(proto)), proto.output
    if y not in kinds:
        raise ExpansionError("the shape of its output is not known")
    shape = call.shape(call.input(0))
    x, out = shape[2:], table.tensor_of(y, kinds[y]).shape[2:]
    if asked and len(out) != len(x):  # what inference gives for a shape that it does not accept
        sizes = f"expected {len(x)} sizes, none below x's {list(x)}"
        raise ExpansionError(f"output_shape {asked}: {sizes}")
    ones, weights = [1] * len(x), call.input(3 if proto.op_type == "QLinearConv" else 1)
    taps = call.attribute("kernel_shape", None) or call.shape(weights)[2:]
    strides, dilations = (call.attribute(name, None) or ones for name in ("strides", "dilations"))
    if {len(taps), len(strides), len(dilations)} != {len(x)}:
        raise ExpansionError(f"windows {list(taps)} for x {list(shape)}")
    reaches = [(n - 1) * gap + 1 for n, gap in zip(taps, dilations, strict=True)]
    attributes = call.others("auto_pad", "output_shape", "pads")
    if proto.op_type == "ConvTranspose":
        extra = call.attribute("output_padding", None) or [0] * len(x)
        rows = zip(x, out, strides, extra, reaches, strict=True)
        missing = [
            stride * (size - 1) + more + reach - wanted
            for size, wanted, stride, more, reach in rows
        ]
        attributes["output_padding"] = [
            more + max(0, -size) for more, size in zip(extra, missing, strict=True)
        ]
    else:
        missing = [
            (-(-size // stride) - 1) * stride + reach - size
            for size, stride, reach in zip(x, strides, reaches, strict=True)
        ]
    pads = [0] * 2 * len(x) if rule == "VALID" and not asked else _share(missing, rule)
    call.reader.emit(proto.op_type, proto.input, proto.output, proto.name, pads=pads, **attributes)


def _share(missing: Sequence[int], rule: str) -> list[int]:
    """Share the padding of each axis between its ends; the larger half follows the rule."""
    totals = [max(0, size) for size in missing]
    before = [total // 2 if rule == "SAME_UPPER" else total - total // 2 for total in totals]
    return [*before, *(total - half for total, half in zip(totals, before, strict=True))]
