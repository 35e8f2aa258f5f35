"""Operators of ONNX Runtime's own domain, ``com.microsoft``, as ONNX's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.onnx import quantised
from polysci.frontends.onnx.attention import attention, multi_head_attention
from polysci.frontends.onnx.call import Call
from polysci.frontends.onnx.reader import (
    Expansion,
    ExpansionError,
    Reader,
    operator_name,
)

DOMAIN = "com.microsoft"


def _activate(call: Call, x: str) -> None:
    """Add the activation that a fused operator ends with."""
    op = call.attribute("activation", "")
    values = [float(value) for value in call.attribute("activation_params", [])]
    if op in ("", "Relu", "Tanh", "Sigmoid"):
        call.make(op or "Identity", [x], call.output(0))
    elif op == "LeakyRelu":
        alpha = values[0] if values else call.attribute("activation_alpha", 0.01)
        call.make(op, [x], call.output(0), alpha=alpha)
    elif op == "HardSigmoid" and len(values) == 2:
        call.make(op, [x], call.output(0), alpha=values[0], beta=values[1])
    elif op == "Clip" and len(values) == 2 and call.reader.table.opset < 11:
        call.make(op, [x], call.output(0), min=values[0], max=values[1])
    elif op == "Clip" and len(values) == 2:
        call.make(op, [x, *(call.number(value, x) for value in values)], call.output(0))
    else:
        raise ExpansionError(f"activation {op}")


_FUSED = ("activation", "activation_params", "activation_alpha", "activation_beta",
          "activation_gamma")  # fmt: skip


def _fused_conv(call: Call) -> None:
    """Expand to ``activation(Conv(x, w, b) + z)``."""
    inputs = [call.input(at) for at in range(3 if call.input(2) else 2)]
    y = call.make("Conv", inputs, **call.others(*_FUSED))
    _activate(call, call.make("Add", [y, call.input(3)]) if call.input(3) else y)


def _fused_gemm(call: Call) -> None:
    _activate(call, call.make("Gemm", [*call.proto.input], **call.others(*_FUSED)))


def _fused_matmul(call: Call) -> None:
    """Expand to ``alpha * A @ B``, either transposed in its last two axes."""
    call.refuse("transBatchA", "transBatchB")
    factors = []
    for at, name in enumerate(("transA", "transB")):
        factor = call.input(at)
        if call.attribute(name, 0) and (rank := call.rank(factor)) > 1:
            order = [*range(rank - 2), rank - 1, rank - 2]
            factor = call.make("Transpose", [factor], perm=order)
        factors.append(factor)
    alpha = float(call.attribute("alpha", 1.0))
    if alpha == 1:
        call.make("MatMul", factors, call.output(0))
        return
    product = call.make("MatMul", factors)
    call.make("Mul", [product, call.number(alpha, product)], call.output(0))


def _gelu(call: Call, approximate: str) -> None:
    """Expand Gelu of x, or of x and a bias."""
    x = call.input(0)
    x = call.make("Add", [x, call.input(1)]) if call.input(1) else x
    call.make("Gelu", [x], call.output(0), approximate=approximate)


def _split_gelu(call: Call) -> None:
    """Multiply half of the last axis of ``x + bias`` with Gelu of the other half."""
    total = call.make("Add", [call.input(0), call.input(1)])
    size, at = call.shape(total)[-1], call.rank(total) - 1
    halves = []
    for first in (0, size // 2):
        ends = [[first], [first + size // 2], [at]]
        places = [call.reader.constant(f"{call.title}/place", np.array(end)) for end in ends]
        halves.append(call.make("Slice", [total, *places]))
    call.make("Mul", [halves[0], call.make("Gelu", [halves[1]])], call.output(0))


def _quick_gelu(call: Call) -> None:
    """Expand to ``x * sigmoid(alpha * x)``."""
    x = call.input(0)
    scaled = call.make("Mul", [x, call.number(call.attribute("alpha", 1.702), x)])
    call.make("Mul", [x, call.make("Sigmoid", [scaled])], call.output(0))


def _layer_norm(call: Call, x: str, gamma: str, beta: str, epsilon: float) -> None:
    """Normalise the last axis; without ``beta`` none is added."""
    inputs = [x, gamma, beta] if beta else [x, gamma]
    call.make("LayerNormalization", inputs, call.output(0), axis=-1, epsilon=epsilon)


def _skip_layer_norm(call: Call) -> None:
    """Normalise ``x + skip + bias``, which is the fourth output."""
    total = _skipped(call, 4)
    _layer_norm(call, total, call.input(2), call.input(3), call.attribute("epsilon", 1e-12))


def _skip_rms_norm(call: Call) -> None:
    total = _skipped(call, 3)
    call.make("RMSNormalization", [total, call.input(2)], call.output(0), axis=-1,
              epsilon=call.attribute("epsilon", 1e-12))  # fmt: skip


def _skipped(call: Call, bias: int) -> str:
    """Add ``x + skip + bias``, under the name of the fourth output if there is one."""
    if call.output(1) or call.output(2):
        raise ExpansionError("the outputs mean and inv_std_var")
    parts = [name for name in (call.input(0), call.input(1), call.input(bias)) if name]
    total = parts[0]
    for at, part in enumerate(parts[1:], 1):
        last = call.output(3) if at == len(parts) - 1 else ""
        total = call.make("Add", [total, part], last)
    return total


def _rms_norm(call: Call) -> None:
    if call.output(1):
        raise ExpansionError("the output inv_std_var")
    call.make("RMSNormalization", [call.input(0), call.input(1)], call.output(0),
              axis=call.attribute("axis", -1), epsilon=call.attribute("epsilon", 1e-5))  # fmt: skip


def _embed(call: Call) -> None:
    """Add and normalise words, places and segments of a text."""
    if call.output(1) and call.input(7):
        raise ExpansionError("the output mask_index")
    words, segments, table, places = (call.input(at) for at in (0, 1, 2, 3))
    total = call.make("Gather", [table, words])
    if call.input(8):
        total = call.make("Add", [total, call.make("Gather", [places, call.input(8)])])
    else:
        length = call.reader.constant(
            f"{call.title}/places", np.arange(call.shape(words)[1], dtype=np.int64)
        )
        total = call.make("Add", [total, call.make("Gather", [places, length])])
    if segments:
        total = call.make("Add", [total, call.make("Gather", [call.input(4), segments])])
    if call.output(2):
        call.make("Identity", [total], call.output(2))
    if call.output(1):
        call.reader.learn(call.output(1), np.zeros(call.shape(words)[0], np.int32))
    _layer_norm(call, total, call.input(5), call.input(6), call.attribute("epsilon", 1e-12))


_EXPANSIONS: Mapping[str, Callable[[Call], None]] = MappingProxyType(
    {
        "FusedConv": _fused_conv,
        "FusedGemm": _fused_gemm,
        "FusedMatMul": _fused_matmul,
        "TransposeMatMul": _fused_matmul,
        "Gelu": partial(_gelu, approximate="none"),
        "BiasGelu": partial(_gelu, approximate="none"),
        "FastGelu": partial(_gelu, approximate="tanh"),
        "QuickGelu": _quick_gelu,
        "BiasSplitGelu": _split_gelu,
        "SkipLayerNormalization": _skip_layer_norm,
        "SkipSimplifiedLayerNormalization": _skip_rms_norm,
        "EmbedLayerNormalization": _embed,
        "Attention": attention,
        "MultiHeadAttention": multi_head_attention,
        **quantised.EXPANSIONS,
    }
)


def expansion_of_microsoft(reader: Reader, proto: Any) -> Expansion | None:
    """Return the expansion of an operator of ONNX Runtime's own domain."""
    if operator_name(proto) == "SimplifiedLayerNormalization":  # which it has without a domain
        expand: Callable[[Call], None] | None = _rms_norm
    else:
        expand = _EXPANSIONS.get(proto.op_type) if proto.domain == DOMAIN else None
    return None if expand is None else lambda reader, proto: expand(Call(reader, proto))
