"""Attention and MultiHeadAttention of ``com.microsoft`` as ONNX's operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from polysci.frontends.onnx.call import Call
from polysci.frontends.onnx.reader import ExpansionError
from polysci.numerics.arrays import Array

MASKED = -10000.0  # what is added where a mask is 0, if the node does not say


@dataclass(frozen=True, slots=True)
class Heads:
    """Queries, keys and values as (batch, heads, length, size), and what is added to scores."""

    query: str
    key: str
    value: str
    added: tuple[str, ...]


def attention(call: Call) -> None:
    """Expand attention of one tensor: a product with constant weights makes q, k and v."""
    call.refuse("do_rotary", "past_present_share_buffer")
    x, heads = call.input(0), int(call.attribute("num_heads", 0))
    weights = _constant(call, 1)
    sizes = call.attribute("qkv_hidden_sizes", None) or [weights.shape[1] // 3] * 3
    if sum(sizes) != weights.shape[1] or call.input(4) or call.output(1):
        raise ExpansionError("keys and values of the past, or sizes that do not fit the weights")
    ends = np.cumsum(sizes)[:-1]
    bias = _constant(call, 2) if call.input(2) else np.zeros(weights.shape[1], weights.dtype)
    parts = []
    for part, shift in zip(np.split(weights, ends, 1), np.split(bias, ends), strict=True):
        product = call.make("MatMul", [x, _number(call, part)])
        parts.append(_split(call, call.make("Add", [product, _number(call, shift)]), heads))
    added = [_mask(call, call.input(3)), call.input(5)]
    query, key, value = parts
    _attend(call, Heads(query, key, value, tuple(name for name in added if name)))


def multi_head_attention(call: Call) -> None:
    """Expand attention of queries, keys and values; keys and values may be split by heads."""
    query, key, value = (call.input(at) for at in range(3))
    heads = int(call.attribute("num_heads", 0))
    if not key or not value or call.rank(query) != 3 or call.rank(key) not in (3, 4):
        raise ExpansionError("queries, keys and values in one tensor")
    if any(map(call.output, (1, 2, 3))) or any(call.input(at) for at in range(6, 10)):
        raise ExpansionError("keys and values of the past")
    names = [query, key, value]
    if call.input(3):
        sizes = [call.shape(name)[-1] if call.rank(name) == 3 else 0 for name in names]
        if not all(sizes):
            raise ExpansionError("a bias for keys by heads")
        parts = np.split(_constant(call, 3), np.cumsum(sizes)[:-1])
        pairs = zip(names, parts, strict=True)
        names = [call.make("Add", [name, _number(call, part)]) for name, part in pairs]
    made = [_split(call, name, heads) if call.rank(name) == 3 else name for name in names]
    added = [_mask(call, call.input(4)), call.input(5)]
    _attend(call, Heads(made[0], made[1], made[2], tuple(name for name in added if name)))


def _constant(call: Call, at: int) -> Array:
    value = call.reader.table.values.get(call.input(at))
    if value is None:
        raise ExpansionError("weights or a bias that are not constant", call.input(at))
    return value


def _number(call: Call, value: Array) -> str:
    return call.reader.constant(f"{call.title}/number", np.ascontiguousarray(value))


def _list(call: Call, values: Sequence[int]) -> str:
    return _number(call, np.array(values, np.int64))


def _split(call: Call, name: str, heads: int) -> str:
    """Split (batch, length, size) by heads, with their axis behind the batch."""
    batch, length, size = call.shape(name)
    if heads < 1 or size % heads:
        raise ExpansionError(f"{heads} heads of {size}")
    shape = _list(call, (batch, length, heads, size // heads))
    return call.make("Transpose", [call.make("Reshape", [name, shape])], perm=[0, 2, 1, 3])


def _mask(call: Call, mask: str) -> str:
    """Return what to add to scores for a mask of 0 and 1 by key, by query and key, or lengths."""
    if not mask:
        return ""
    shape = call.shape(mask)
    if len(shape) == 1:
        batch, length = call.shape(call.input(0))[0], call.shape(call.input(1))[1]
        length = call.shape(call.input(0))[1] if call.proto.op_type == "Attention" else length
        if shape != (batch,):
            raise ExpansionError(f"a mask of shape {list(shape)}")
        ends = call.make("Reshape", [mask, _list(call, (batch, 1))])
        places = call.reader.constant(
            f"{call.title}/places",
            np.arange(length, dtype=call.reader.table.tensor(mask).dtype)[None],
        )
        mask, shape = call.make("Less", [places, ends]), (batch, length)
    elif len(shape) not in (2, 3):
        raise ExpansionError(f"a mask of shape {list(shape)}")
    wide = [shape[0], 1, *([1] if len(shape) == 2 else []), *shape[1:]]
    real = call.make("Cast", [mask], to=int(call.reader.table.onnx.TensorProto.FLOAT))
    real = call.make("Reshape", [real, _list(call, wide)])
    fill = float(call.attribute("mask_filter_value", MASKED))
    hidden = call.make("Sub", [call.number(1.0, real), real])
    return call.make("Mul", [hidden, call.number(fill, real)])


def _attend(call: Call, parts: Heads) -> None:
    """Add ``softmax(scale * Q K' + masks) V``, heads side by side again."""
    batch, heads, length, size = call.shape(parts.query)
    across = call.make("Transpose", [parts.key], perm=[0, 1, 3, 2])
    scores = call.make("MatMul", [parts.query, across])
    scale = float(call.attribute("scale", 0.0)) or 1 / sqrt(size)
    scores = call.make("Mul", [scores, call.number(scale, scores)])
    for name in parts.added:
        scores = call.make("Add", [scores, name])
    if call.attribute("unidirectional", 0):
        keys = call.shape(scores)[-1]
        later = np.triu(np.full((length, keys), -np.inf, np.float32), 1 + keys - length)
        scores = call.make("Add", [scores, _number(call, later)])
    shares = call.make("Softmax", [scores], axis=3)
    y = call.make("Transpose", [call.make("MatMul", [shares, parts.value])], perm=[0, 2, 1, 3])
    width = heads * call.shape(parts.value)[-1]
    call.make("Reshape", [y, _list(call, (batch, length, width))], call.output(0))
