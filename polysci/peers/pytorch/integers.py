"""The ways to convolve 8-bit integers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from polysci.errors import SpecError
from polysci.peers.example_inputs import Quant
from polysci.peers.pytorch.graph import script_call
from polysci.peers.pytorch.operands import Operands, Path, Run, Step, chain

ENGINES: Final = ("onednn", "fbgemm")  # of the eager call; "x86" picks one of them
_HALF: Final = 128  # from s8 to u8


def paths(operands: Operands) -> Iterator[Path]:
    """Yield what quantised inductor graphs call, and the eager call, which writes u8 alone.

    PyTorch reads u8 alone: s8 is offset to it ahead of all calls. Raises UnsupportedError for what
    is no convolution. The first packs weights for no
    zero point of x, and packs them again in each call if there is one; the eager call does not.
    """
    x, _, y = operands.inputs.elements
    note = ", x offset to u8 ahead" if x == "s8" else ""
    note += ", layouts changed within and after" if operands.conv.layout == "nchw" else ""
    note += operands.note
    sums = ", sums as f32" if y == "s32" else ""
    yield Path(f"onednn.qconv2d_pointwise{sums}{note}", partial(_pointwise, operands), y)
    if y == "s32":
        return
    above = _HALF if y == "s8" else 0
    note += ", y left offset to u8" if above else ""
    for engine in ENGINES:
        make = partial(_eager, operands, engine, above)
        yield Path(f"eager quantized.conv2d by {engine}{note}", make, y, above)


@dataclass(frozen=True, slots=True)
class _Unsigned:
    """x in u8, its zero point, and what else the calls take: the scale of x and of y is 1."""

    x: Any
    zero: int
    scale: Any
    w_zeros: Any


def _make_unsigned(operands: Operands, quant: Quant) -> _Unsigned:
    torch, x, zero = operands.torch, operands.x, quant.x_zero
    if operands.inputs.elements[0] == "s8":
        x, zero = x.view(torch.uint8).bitwise_xor(_HALF), zero + _HALF
    scale = torch.from_numpy(np.array(quant.scale, np.float32))
    return _Unsigned(x, zero, scale, torch.zeros(len(quant.scale), dtype=torch.int64))


def _quant(operands: Operands) -> Quant:
    if operands.inputs.quant is None:
        raise SpecError("a peer's 8-bit convolution: no scales are given")
    return operands.inputs.quant


def _pointwise(operands: Operands) -> Run:
    torch, geometry, quant = operands.torch, operands.geometry, _quant(operands)
    results = {"u8": torch.uint8, "s8": torch.int8, "s32": torch.float32}
    result = results[operands.inputs.elements[2]]
    own = _make_unsigned(operands, quant)
    pack, call = torch.ops.onednn.qconv_prepack, torch.ops.onednn.qconv2d_pointwise.default
    packed = pack(operands.w, own.scale, 1.0, own.zero, *geometry, list(own.x.shape))
    fixed = (1.0, own.zero, packed, own.scale, own.w_zeros, None, *geometry)
    output: tuple[Any, ...] = (1.0, quant.y_zero, result, "none", [], "")
    return chain(own.x, _last(operands, lambda x: call(x, *fixed, *output)))


def _eager(operands: Operands, engine: str, above: int) -> Run:
    torch, geometry, quant = operands.torch, operands.geometry, _quant(operands)
    if engine not in torch.backends.quantized.supported_engines:
        raise RuntimeError(f"this PyTorch has no engine {engine}")
    own = _make_unsigned(operands, quant)
    scales = own.scale.double()
    w = torch._make_per_channel_quantized_tensor(operands.w, scales, own.w_zeros, 0)
    torch.backends.quantized.engine = engine
    packed = torch.ops.quantized.conv2d_prepack(w, None, *geometry)
    zero = quant.y_zero + above
    call = script_call(torch, f"torch.ops.quantized.conv2d(x, self.packed, 1.0, {zero})", packed)
    x = torch._make_per_tensor_quantized_tensor(own.x, 1.0, own.zero)
    return chain(x, _last(operands, call))


def _last(operands: Operands, step: Step) -> Sequence[Step]:
    """The calls change x to channels_last themselves and leave y there."""
    return [step, operands.plain] if operands.conv.layout == "nchw" else [step]
