"""Operators of other domains as ONNX's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.onnx.attention import (
    attention,
    constant_input,
    group_query_attention,
    multi_head_attention,
    number_of,
    rotary_embedding,
)
from polysci.frontends.onnx.opset_upgrade import along_rows
from polysci.frontends.onnx.reader import (
    Call,
    Expansion,
    ExpansionError,
    Reader,
    expansion_by,
    operator_name,
)
from polysci.graph.graph import NARROW_MATMUL, QUANTISED_LSTM, Node
from polysci.numerics.arrays import Array
from polysci.numerics.blocks import block_dtype, blocks_of_bytes, decode_blocks
from polysci.numerics.dtypes import BLOCKS

SINGLE = 1  # ONNX's number of float32


def _on_8_bits(call: Call, op: str, factors: int) -> None:
    """Expand an operator on 8-bit numbers: ``(x, scale, zero)`` each, then those of the result."""
    inputs = [_dequantise_next(call, 3 * at) for at in range(factors)]
    y = call.make(op, inputs, **call.others("channels_last"))
    call.refuse("channels_last")
    _quantise(call, y, 3 * factors)


def _softmax(call: Call) -> None:
    """Expand Softmax of version ``opset``: before 13 all axes from ``axis`` on are one."""
    x, axis = _dequantise_next(call, 0), int(call.attribute("axis", -1))
    old = call.attribute("opset", 13) < 13
    y = along_rows(call, "Softmax", x, axis) if old else call.make("Softmax", [x], axis=axis)
    _quantise(call, y, 3)


def _mean(call: Call) -> None:
    inputs, axes = [_dequantise_next(call, 0)], call.attribute("axes", None)
    if axes is not None:
        inputs.append(call.integers("list", axes))
    _quantise(call, call.make("ReduceMean", inputs, **call.others("axes")), 3)


def _where(call: Call) -> None:
    """Expand Where: a condition, then two times ``(x, scale, zero)``."""
    sides = [_dequantise_next(call, at) for at in (1, 4)]
    _quantise(call, call.make("Where", [call.input(0), *sides]), 7)


def _gemm(call: Call) -> None:
    """Expand ``alpha * (A @ B + C)``, C in steps of both scales; with y's scale to 8 bits.

    A scale of B is one, or one a column of the product.
    """
    names = call.inputs(0, 1, 2)
    step, alpha, turned = names[1], float(call.attribute("alpha", 1.0)), call.attribute("transB", 0)
    if alpha != 1:
        step = names[1] = call.make("Mul", [step, call.number(alpha, step)])
    a = call.make("DequantizeLinear", names)
    if call.attribute("transA", 0):
        a = call.make("Transpose", [a], perm=[1, 0])
    inputs = [a, _dequantise(call, 3, 4, 5, axis=1 - bool(turned))]
    if call.input(6):
        whole = call.make("Cast", [call.input(6)], to=SINGLE)
        inputs.append(call.make("Mul", [whole, call.make("Mul", [step, call.input(4)])]))
    if not call.input(7):
        call.make("Gemm", inputs, call.output(0), transB=turned)
        return
    _quantise(call, call.make("Gemm", inputs, transB=turned), 7)


def _dynamic_product(call: Call) -> None:
    """Expand ``DynamicQuantizeMatMul``: A is rounded to 8 bits by its own range."""
    parts = [call.reader.fresh(f"{call.title}/{word}") for word in ("a", "scale", "zero")]
    call.reader.emit("DynamicQuantizeLinear", [call.input(0)], parts)
    a = call.make("DequantizeLinear", parts)
    _product(call, [a, _dequantise(call, 1, 2, 3, axis=-1)], call.input(4))


def _product(call: Call, factors: Sequence[str], bias: str) -> None:
    product = call.make("MatMul", factors, "" if bias else call.output(0))
    if bias:
        call.make("Add", [product, bias], call.output(0))


def _quantised_concat(call: Call) -> None:
    """Expand Concat; the scale and zero of the result come first."""
    parts = [_dequantise_next(call, at) for at in range(2, len(call.proto.input), 3)]
    _quantise(call, call.make("Concat", parts, **call.others()), 0)


def _dequantise(call: Call, *places: int, axis: int | None = None) -> str:
    """Convert the input at the first place, by a scale and a zero, or by several along an axis."""
    names = call.inputs(*places)
    several = axis is not None and any(call.rank(name) for name in names[1:])
    attributes: dict[str, Any] = {"axis": axis} if several else {}
    return call.make("DequantizeLinear", names, **attributes)


def _dequantise_next(call: Call, at: int) -> str:
    return _dequantise(call, at, at + 1, at + 2)


def _quantise(call: Call, y: str, at: int) -> None:
    call.make("QuantizeLinear", [y, *call.inputs(at, at + 1)], call.output(0))


def _integers_to_real(call: Call) -> None:
    """Expand ``MatMulIntegerToFloat``: products of 8-bit numbers, scaled, and a bias."""
    factors = [_dequantise(call, 0, 2, 4), _dequantise(call, 1, 3, 5, axis=-1)]
    _product(call, factors, call.input(6))


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
    shapes = zip(node.outputs, ((steps, count, batch, hidden), last, last), strict=False)
    results = {name: ("float32", shape) for name, shape in shapes if name}
    reader.append(replace(node, op=QUANTISED_LSTM, inputs=inputs), results)


def _narrow_weights(call: Call, weights: int, scale: int) -> tuple[str, str] | None:
    """Return transposed weights less their zero, and scales; None if 8 bits lack any."""
    values = call.reader.table.values
    names = call.inputs(weights, scale, scale + 1)
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
    real = _dequantise(call, weights, scale, scale + 1, axis=0)
    return call.make("Transpose", [real], perm=[0, 2, 1])


MICROSOFT = "com.microsoft"


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
    elif op == "Clip" and len(values) == 2:
        call.make(op, [x, *(call.number(value, x) for value in values)], call.output(0))
    else:
        raise ExpansionError(f"activation {op}")


_FUSED = ("activation", "activation_params", "activation_alpha", "activation_beta",
          "activation_gamma")  # fmt: skip


def _fused_conv(call: Call) -> None:
    """Expand to ``activation(Conv(x, w, b) + z)``."""
    y = call.make("Conv", call.inputs(0, 1, 2), **call.others(*_FUSED))
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
    product = call.make("MatMul", factors, call.output(0) if alpha == 1 else "")
    if alpha != 1:
        call.make("Mul", [product, call.number(alpha, product)], call.output(0))


def _gelu(call: Call, approximate: str) -> None:
    """Expand Gelu of x, or of x and a bias."""
    x = call.make("Add", call.inputs(0, 1)) if call.input(1) else call.input(0)
    call.make("Gelu", [x], call.output(0), approximate=approximate)


def _split_gelu(call: Call) -> None:
    """Multiply half of the last axis of ``x + bias`` with Gelu of the other half."""
    total = call.make("Add", [call.input(0), call.input(1)])
    size, at = call.shape(total)[-1], call.rank(total) - 1
    halves = []
    for first in (0, size // 2):
        ends = [[first], [first + size // 2], [at]]
        halves.append(call.make("Slice", [total, *(call.integers("list", end) for end in ends)]))
    call.make("Mul", [halves[0], call.make("Gelu", [halves[1]])], call.output(0))


def _quick_gelu(call: Call) -> None:
    """Expand to ``x * sigmoid(alpha * x)``."""
    x = call.input(0)
    scaled = call.make("Mul", [x, call.number(call.attribute("alpha", 1.702), x)])
    call.make("Mul", [x, call.make("Sigmoid", [scaled])], call.output(0))


def _layer_norm(call: Call, x: str, gamma: str, beta: str, epsilon: float) -> None:
    """Normalise the last axis; without ``beta`` none is added."""
    inputs = filter(None, (x, gamma, beta))
    call.make("LayerNormalization", [*inputs], call.output(0), axis=-1, epsilon=epsilon)


def _skip_layer_norm(call: Call) -> None:
    """Normalise ``x + skip + bias``, which is the fourth output."""
    total = _add_skip(call, 4)
    _layer_norm(call, total, call.input(2), call.input(3), call.attribute("epsilon", 1e-12))


def _skip_rms_norm(call: Call) -> None:
    total = _add_skip(call, 3)
    call.make("RMSNormalization", [total, call.input(2)], call.output(0), axis=-1,
              epsilon=call.attribute("epsilon", 1e-12))  # fmt: skip


def _add_skip(call: Call, bias: int) -> str:
    """Add ``x + skip + bias``, under the name of the fourth output if there is one."""
    if call.output(1) or call.output(2):
        raise ExpansionError("the outputs mean and inv_std_var")
    total, *others = call.inputs(0, 1, bias)
    for at, part in enumerate(others, 1):
        total = call.make("Add", [total, part], call.output(3) if at == len(others) else "")
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
    token_ids, segments, table, places = (call.input(at) for at in (0, 1, 2, 3))
    order = call.input(8) or call.integers("list", range(call.shape(token_ids)[1]))
    total = call.make("Gather", [table, token_ids])
    total = call.make("Add", [total, call.make("Gather", [places, order])])
    if segments:
        total = call.make("Add", [total, call.make("Gather", [call.input(4), segments])])
    if call.output(2):
        call.make("Identity", [total], call.output(2))
    if call.output(1):
        call.reader.learn(call.output(1), np.zeros(call.shape(token_ids)[0], np.int32))
    _layer_norm(call, total, call.input(5), call.input(6), call.attribute("epsilon", 1e-12))


def _narrow_product(call: Call) -> None:
    """Expand ``MatMulNBits``: f32 rows by weights of 4 or 8 bits in blocks of K, and a bias.

    ``accuracy_level`` allows other arithmetic, which this has no use for. Where K is no whole
    number of blocks, or blocks have another size than ``BLOCKS``, weights are unpacked.
    """
    if call.input(4):
        raise ExpansionError("the input g_idx: an order of K")
    bits, block = (int(call.attribute(name, default)) for name, default in
                   (("bits", 4), ("block_size", 0)))  # fmt: skip
    k, n = (int(call.attribute(name, 0)) for name in "KN")
    if bits not in (4, 8) or block < 1:
        raise ExpansionError(f"weights of {bits} bits in blocks of {block}: expected 4 or 8 bits")
    parts = -(-k // block)
    packed, scale = constant_input(call, 1), constant_input(call, 2).astype(np.float32)
    sizes = packed.size * 8, scale.size
    if packed.dtype != np.uint8 or sizes != (n * parts * block * bits, n * parts):
        raise ExpansionError(
            f"weights {list(packed.shape)} of {packed.dtype} and {scale.size} scales for "
            f"{n} x {k} of {bits} bits in blocks of {block}"
        )
    zero = None if not call.input(3) else _zeros(constant_input(call, 3), bits, n, parts)
    whole = k % block == 0 and block in BLOCKS
    dtype = block_dtype(bits, block, signed=zero is None)
    heads = scale.reshape(n, parts), zero
    blocks = blocks_of_bytes(dtype, packed.reshape(n, parts, -1), *heads)
    x = _as_f32(call, call.input(0))
    kind = call.reader.table.tensor(call.input(0)).dtype
    bias = _as_f32(call, call.input(5)) if call.input(5) else ""
    y = call.output(0) if kind == "float32" else call.reader.fresh(f"{call.title}/product")
    if whole:
        array = call.constant("weights", blocks.view(np.uint8).reshape(n, -1))
        name = f"{'us'[zero is None]}{bits}x{block}"
        names = (x, array, *[bias] * bool(bias))
        node = Node(NARROW_MATMUL, names, (y,), {"weights": name}, call.title)
        call.reader.append(node, {y: ("float32", (*call.shape(x)[:-1], n))})
    else:
        dense = np.ascontiguousarray(decode_blocks(blocks)[:, :k].T.astype(np.float32))
        product = call.make("MatMul", [x, number_of(call, dense)], "" if bias else y)
        if bias:
            call.make("Add", [product, bias], y)
    if y != call.output(0):
        to = call.reader.table.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        call.make("Cast", [y], call.output(0), to=to)


def _zeros(zero: Array, bits: int, n: int, parts: int) -> Array:
    """Return the zero point of each block; whole ones of 4 bits share bytes, row by row."""
    if zero.dtype != np.uint8:
        return zero.astype(np.float32).reshape(n, parts)
    if bits == 4:
        rows = zero.reshape(n, -1)
        zero = np.stack((rows & 15, rows >> 4), -1).reshape(n, -1)[:, :parts]
    return zero.reshape(n, parts).astype(np.float32)


_MICROSOFT: Mapping[str, Callable[[Call], None]] = MappingProxyType(
    {
        "MatMulNBits": _narrow_product,
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
        "GroupQueryAttention": group_query_attention,
        "RotaryEmbedding": rotary_embedding,
        "QLinearAdd": partial(_on_8_bits, op="Add", factors=2),
        "QLinearMul": partial(_on_8_bits, op="Mul", factors=2),
        "QLinearSigmoid": partial(_on_8_bits, op="Sigmoid", factors=1),
        "QLinearLeakyRelu": partial(_on_8_bits, op="LeakyRelu", factors=1),
        "QLinearGlobalAveragePool": partial(_on_8_bits, op="GlobalAveragePool", factors=1),
        "QLinearAveragePool": partial(_on_8_bits, op="AveragePool", factors=1),
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


def expansion_of_microsoft(reader: Reader, proto: Any) -> Expansion | None:
    """Return the expansion of an operator of ONNX Runtime's own domain."""
    if operator_name(proto) == "SimplifiedLayerNormalization":  # which it has without a domain
        expand: Callable[[Call], None] | None = _rms_norm
    else:
        expand = _MICROSOFT.get(proto.op_type) if proto.domain == MICROSOFT else None
    return expansion_by(expand)


CLASSICAL = "ai.onnx.ml"
REFUSED = (
    "an operator of classical machine learning, which polysci does not have; end the model before "
    "it, and compute it in the program that calls the network"
)


def _as_f32(call: Call, name: str) -> str:
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
    centred = call.make("Sub", [_as_f32(call, call.input(0)), _vector(call, "offset", 0)])
    call.make("Mul", [centred, _vector(call, "scale", 1)], call.output(0))


def _regress(call: Call) -> None:
    """Expand to ``x @ coefficients' + intercepts``, a row of coefficients for each target."""
    if call.attribute("post_transform", "NONE") != "NONE":
        raise ExpansionError(f"post_transform {call.attribute('post_transform', '')}")
    targets = call.attribute("targets", 1)
    rows = np.array(call.attribute("coefficients", []), np.float32).reshape(targets, -1)
    columns = call.constant("coefficients", np.ascontiguousarray(rows.T))
    product = call.make("MatMul", [_as_f32(call, call.input(0)), columns])
    call.make("Add", [product, _vector(call, "intercepts", 0)], call.output(0))


def _normalise(call: Call) -> None:
    """Divide rows by their largest size, the sum of sizes, or the root of the sum of squares."""
    kind, x = call.attribute("norm", "MAX"), _as_f32(call, call.input(0))
    ops = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}
    if kind not in ops:
        raise ExpansionError(f"norm {kind}")
    axes = call.constant("axes", np.array([-1], np.int64))
    source = call.make("Abs", [x]) if kind == "MAX" else x
    norm = call.make(ops[kind], [source, axes])
    zero, one = (call.number(value, norm) for value in (0.0, 1.0))
    divisor = call.make("Where", [call.make("Equal", [norm, zero]), one, norm])
    call.make("Div", [x, divisor], call.output(0))


def _pick(call: Call) -> None:
    """Pick columns by their numbers."""
    call.make("Gather", [call.input(0), call.input(1)], call.output(0), axis=-1)


_CLASSICAL: Mapping[str, Callable[[Call], None]] = MappingProxyType(
    {
        "Scaler": _scale,
        "LinearRegressor": _regress,
        "Normalizer": _normalise,
        "ArrayFeatureExtractor": _pick,
    }
)


def expansion_of_classical(reader: Reader, proto: Any) -> Expansion | None:
    """Return the expansion of an operator of ``ai.onnx.ml``."""
    if proto.domain != CLASSICAL:
        return None
    return expansion_by(_CLASSICAL.get(proto.op_type, _refuse_classical))


def _refuse_classical(call: Call) -> None:
    raise ExpansionError(REFUSED)
