"""ONNX Runtime's operators of attention, and of rotary positions, as ONNX's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

import numpy as np

from polysci.frontends.onnx.reader import Call, ExpansionError
from polysci.numerics.arrays import Array

MASKED = -10000.0  # what is added where a mask is 0, if the node does not say
PACKED_RANK = 5  # of queries, keys and values, or of the latter two, side by side in a head


def constant_input(call: Call, at: int) -> Array:
    """Return the value of an input that must be constant."""
    return call.reader.value(call.input(at), "weights or a bias that are")


def number_of(call: Call, value: Array) -> str:
    """Return the name of a constant."""
    return call.constant("number", np.ascontiguousarray(value))


def attention(call: Call) -> None:
    """Expand attention of one tensor: a product with constant weights makes q, k and v."""
    call.refuse("do_rotary", "past_present_share_buffer")
    x, heads = call.input(0), int(call.attribute("num_heads", 0))
    weights = constant_input(call, 1)
    sizes = call.attribute("qkv_hidden_sizes", None) or [weights.shape[1] // 3] * 3
    if sum(sizes) != weights.shape[1] or call.input(4) or call.output(1):
        raise ExpansionError("keys and values of the past, or sizes that do not fit the weights")
    ends = np.cumsum(sizes)[:-1]
    bias = constant_input(call, 2) if call.input(2) else np.zeros(weights.shape[1], weights.dtype)
    parts = []
    for part, shift in zip(np.split(weights, ends, 1), np.split(bias, ends), strict=True):
        product = call.make("MatMul", [x, number_of(call, part)])
        parts.append(_split_heads(call, call.make("Add", [product, number_of(call, shift)]), heads))
    mask = _mask(call, call.input(3), call.shape(x)[1])
    _attend(call, parts, [mask, call.input(5)])


def multi_head_attention(call: Call) -> None:
    """Expand attention of queries, keys and values; keys and values may be split by heads.

    Keys and values of the past stand before them.
    """
    heads = int(call.attribute("num_heads", 0))
    if call.output(3) or call.input(8) or call.input(9):
        raise ExpansionError("the output qk, or an input that only decoders of one token have")
    names = _queries_keys_values(call)
    if call.input(3):
        sizes = [call.shape(name)[-1] if call.rank(name) == 3 else 0 for name in names]
        if not all(sizes):
            raise ExpansionError("a bias for keys by heads")
        biases = np.split(constant_input(call, 3), np.cumsum(sizes)[:-1])
        pairs = zip(names, biases, strict=True)
        names = [call.make("Add", [name, number_of(call, bias)]) for name, bias in pairs]
    parts = [_split_heads(call, name, heads) if call.rank(name) == 3 else name for name in names]
    for at in (1, 2):
        if past := call.input(5 + at):
            parts[at] = call.make("Concat", [past, parts[at]], call.output(at), axis=2)
        elif call.output(at):
            call.make("Identity", [parts[at]], call.output(at))
    mask = _mask(call, call.input(4), call.shape(parts[1])[2])
    _attend(call, parts, [mask, call.input(5)])


def _queries_keys_values(call: Call) -> list[str]:
    """Return the three inputs; all of them, or keys and values, may be one of rank 5."""
    query, key, value = (call.input(at) for at in range(3))
    if not key and not value and call.rank(query) == PACKED_RANK:
        return _unpack(call, query)
    if key and not value and call.rank(query) == 3 and call.rank(key) == PACKED_RANK:
        return [query, *_unpack(call, key)]
    if not key or not value or call.rank(query) != 3 or call.rank(key) not in (3, 4):
        raise ExpansionError("queries, keys and values of other ranks than 3, 4 and 5")
    return [query, key, value]


def _unpack(call: Call, packed: str) -> list[str]:
    """Split (batch, length, heads, parts, size) into the parts, of (batch, length, hidden)."""
    batch, length, heads, count, size = call.shape(packed)
    shape = call.integers("list", (batch, length, heads * size))
    parts = (_slice(call, packed, 3, at, at + 1) for at in range(count))
    return [call.make("Reshape", [part, shape]) for part in parts]


def group_query_attention(call: Call) -> None:
    """Expand attention that sees no later keys, whose heads of queries share those of keys.

    ``seqlens_k + 1`` tokens of each text have keys behind the call. The past is a buffer of fixed
    length, into which those of the call are written, unless ``total_sequence_length`` is constant
    and greater: then they stand behind it.
    """
    call.refuse("smooth_softmax", "qk_output")
    if call.input(11) or call.output(3):
        raise ExpansionError("the input head_sink, or the output of the scores")
    parts = _grouped_parts(call)
    batch, heads, length, _ = call.shape(parts[0])
    ends = call.make("Reshape", [call.input(5), call.integers("list", (batch, 1))])
    ends = call.make("Cast", [ends], to=int(call.reader.table.onnx.TensorProto.INT64))
    past = call.make("Add", [ends, call.integers("number", 1 - length)])
    past = call.make("Max", [past, call.integers("number", 0)])
    places = call.make("Add", [past, number_of(call, np.arange(length)[None])])
    if call.attribute("do_rotary", 0):
        positions = call.input(9) or places
        parts[:2] = [_rotate(call, part, positions, call.input(7), call.input(8),
                             interleaved=bool(call.attribute("rotary_interleaved", 0)))
                     for part in parts[:2]]  # fmt: skip
    for at in (1, 2):
        parts[at] = _append(call, call.input(2 + at), parts[at], places, call.output(at))
        parts[at] = _share_heads(call, parts[at], heads)
    visible = _visible(call, places, call.shape(parts[1])[2])
    _attend(call, parts, [visible, call.input(10)])


def _grouped_parts(call: Call) -> list[str]:
    """Return queries, keys and values by heads, which may be one tensor, side by side."""
    heads, shared = (int(call.attribute(name, 0)) for name in ("num_heads", "kv_num_heads"))
    query, key, value = (call.input(at) for at in range(3))
    width = call.shape(query)[-1]
    if heads < 1 or shared < 1 or heads % shared:
        raise ExpansionError(f"{heads} heads of queries, {shared} of keys")
    if bool(key) != bool(value):
        raise ExpansionError("keys and values in one tensor, without queries")
    if not key:
        if width % (heads + 2 * shared):
            raise ExpansionError(f"{heads} + 2 x {shared} heads of {width}")
        size = width // (heads + 2 * shared)
        ends = [0, *np.cumsum([heads * size, shared * size, shared * size]).tolist()]
        query, key, value = (_slice(call, query, 2, first, last) for first, last in pairwise(ends))
    return [
        _split_heads(call, name, count)
        for name, count in ((query, heads), (key, shared), (value, shared))
    ]


def _append(call: Call, past: str, new: str, places: str, output: str) -> str:
    """Return keys or values of all tokens, as (batch, heads, length, size)."""
    batch, heads, length, size = call.shape(new)
    total = call.reader.table.values.get(call.input(6))
    most = length if total is None else int(total.reshape(-1)[0])
    held = call.shape(past)[2] if past else 0
    if not held:
        if most > length:
            raise ExpansionError(f"{most} keys, of which the call has {length} and none are past")
        return call.make("Identity", [new], output)
    if batch == 1 and most == held + length:
        return call.make("Concat", [past, new], output, axis=2)
    if most > held:
        dtype = call.reader.table.tensor(past).dtype
        room = number_of(call, np.zeros((batch, heads, most - held, size), dtype))
        past = call.make("Concat", [past, room], axis=2)
    rows = call.make("Reshape", [places, call.integers("list", (batch, 1, length, 1))])
    rows = call.make("Expand", [rows, call.integers("list", (batch, heads, length, size))])
    return call.make("ScatterElements", [past, rows, new], output, axis=2)


def _share_heads(call: Call, name: str, heads: int) -> str:
    """Repeat each head of keys or values for the queries that share it."""
    batch, shared, length, size = call.shape(name)
    if heads == shared:
        return name
    single, several, all_of_them = (
        call.integers("list", shape)
        for shape in (
            (batch, shared, 1, length, size),
            (batch, shared, heads // shared, length, size),
            (batch, heads, length, size),
        )
    )
    wide = call.make("Expand", [call.make("Reshape", [name, single]), several])
    return call.make("Reshape", [wide, all_of_them])


def _visible(call: Call, places: str, length: int) -> str:
    """Return what to add to scores: minus infinity for later keys, and for those before a window.

    Of ``local_window_size`` keys the last one is the query's own.
    """
    batch, queries = call.shape(places)
    own = call.make("Reshape", [places, call.integers("list", (batch, 1, queries, 1))])
    keys = number_of(call, np.arange(length)[None, None, None])
    seen = call.make("LessOrEqual", [keys, own])
    if (window := int(call.attribute("local_window_size", -1))) >= 0:
        first = call.make("Sub", [own, call.integers("number", window)])
        seen = call.make("And", [seen, call.make("Greater", [keys, first])])
    values = (number_of(call, np.array(value, np.float32)) for value in (0, -np.inf))
    return call.make("Where", [seen, *values])


def rotary_embedding(call: Call) -> None:
    """Expand the rotation of pairs of elements of each head by the angles of its position."""
    call.refuse("is_packed_batching")
    if float(call.attribute("scale", 1.0)) != 1.0:
        raise ExpansionError(f"scale {call.attribute('scale', 1.0)}")
    x, places, cos, sin = (call.input(at) for at in range(4))
    flat = call.rank(x) == 3
    if flat:
        width, heads = call.shape(x)[2], int(call.attribute("num_heads", 0))
        size = 2 * call.shape(cos)[1]
        if not call.attribute("rotary_embedding_dim", 0):
            heads = width // size
        by_heads = _split_heads(call, x, heads)
    else:
        by_heads = x
    batch, _, length, _ = call.shape(by_heads)
    if call.shape(places) == (1,) and (batch, length) != (1, 1):
        places = call.make("Add", [places, number_of(call, np.arange(length))])
        places = call.make("Reshape", [places, call.integers("list", (1, length))])
    elif call.rank(places) == 1:
        places = call.make("Reshape", [places, call.integers("list", (1, 1))])
    interleaved = bool(call.attribute("interleaved", 0))
    y = _rotate(call, by_heads, places, cos, sin, interleaved=interleaved,
                output="" if flat else call.output(0))  # fmt: skip
    if flat:
        _join_heads(call, y)


def _rotate(
    call: Call, x: str, places: str, cos: str, sin: str, *, interleaved: bool, output: str = ""
) -> str:
    """Rotate pairs of the first elements of (batch, heads, length, size), by rows of the tables.

    A pair is elements that are neighbours where ``interleaved``, else one of either half.
    """
    batch, heads, length, size = call.shape(x)
    half = call.shape(cos)[1]
    if 2 * half > size:
        raise ExpansionError(f"angles for {2 * half} elements of a head of {size}")
    shape = call.integers("list", (call.shape(places)[0], 1, length, half))
    c, s = (
        call.make("Reshape", [call.make("Gather", [table, places], axis=0), shape])
        for table in (cos, sin)
    )
    ends = (
        ((0, 2 * half, 2), (1, 2 * half, 2)) if interleaved else ((0, half, 1), (half, 2 * half, 1))
    )
    first, second = (_slice(call, x, 3, *end) for end in ends)
    turned = [
        call.make("Sub", [call.make("Mul", [first, c]), call.make("Mul", [second, s])]),
        call.make("Add", [call.make("Mul", [first, s]), call.make("Mul", [second, c])]),
    ]
    if interleaved:
        single = call.integers("list", (batch, heads, length, half, 1))
        pairs = [call.make("Reshape", [part, single]) for part in turned]
        whole = call.integers("list", (batch, heads, length, 2 * half))
        turned = [call.make("Reshape", [call.make("Concat", pairs, axis=4), whole])]
    rest = [_slice(call, x, 3, 2 * half, size)] if 2 * half < size else []
    return call.make("Concat", [*turned, *rest], output, axis=3)


def _slice(call: Call, x: str, axis: int, first: int, last: int, step: int = 1) -> str:
    ends = (call.integers("list", [value]) for value in (first, last, axis, step))
    return call.make("Slice", [x, *ends])


def _split_heads(call: Call, name: str, heads: int) -> str:
    """Split (batch, length, size) by heads, with their axis behind the batch."""
    batch, length, size = call.shape(name)
    if heads < 1 or size % heads:
        raise ExpansionError(f"{heads} heads of {size}")
    shape = call.integers("list", (batch, length, heads, size // heads))
    return call.make("Transpose", [call.make("Reshape", [name, shape])], perm=[0, 2, 1, 3])


def _join_heads(call: Call, name: str) -> None:
    """Make the output: (batch, length, size) of (batch, heads, length, size)."""
    batch, heads, length, size = call.shape(name)
    y = call.make("Transpose", [name], perm=[0, 2, 1, 3])
    call.make("Reshape", [y, call.integers("list", (batch, length, heads * size))], call.output(0))


def _mask(call: Call, mask: str, keys: int) -> str:
    """Return what to add to scores for a mask of 0 and 1 by key, by query and key, or lengths."""
    if not mask:
        return ""
    shape = call.shape(mask)
    if len(shape) == 1:
        batch = call.shape(call.input(0))[0]
        if shape != (batch,):
            raise ExpansionError(f"a mask of shape {list(shape)}")
        ends = call.make("Reshape", [mask, call.integers("list", (batch, 1))])
        dtype = call.reader.table.tensor(mask).dtype
        places = call.constant("places", np.arange(keys, dtype=dtype)[None])
        mask, shape = call.make("Less", [places, ends]), (batch, keys)
    elif len(shape) not in (2, 3):
        raise ExpansionError(f"a mask of shape {list(shape)}")
    wide = [shape[0], 1, *([1] if len(shape) == 2 else []), *shape[1:]]
    real = call.make("Cast", [mask], to=int(call.reader.table.onnx.TensorProto.FLOAT))
    real = call.make("Reshape", [real, call.integers("list", wide)])
    fill = float(call.attribute("mask_filter_value", MASKED))
    hidden = call.make("Sub", [call.number(1.0, real), real])
    return call.make("Mul", [hidden, call.number(fill, real)])


def _attend(call: Call, parts: Sequence[str], masks: Sequence[str]) -> None:
    """Add ``softmax(scale * Q K' + masks) V`` of (batch, heads, length, size); join heads."""
    query, key, value = parts
    *_, length, size = call.shape(query)
    across = call.make("Transpose", [key], perm=[0, 1, 3, 2])
    scores = call.make("MatMul", [query, across])
    scale = float(call.attribute("scale", 0.0)) or 1 / sqrt(size)
    scores = call.make("Mul", [scores, call.number(scale, scores)])
    if cap := float(call.attribute("softcap", 0.0)):
        part = call.make("Div", [scores, call.number(cap, scores)])
        scores = call.make("Mul", [call.make("Tanh", [part]), call.number(cap, scores)])
    for mask in filter(None, masks):
        scores = call.make("Add", [scores, mask])
    if call.attribute("unidirectional", 0):
        keys = call.shape(scores)[-1]
        later = np.triu(np.full((length, keys), -np.inf, np.float32), 1 + keys - length)
        scores = call.make("Add", [scores, number_of(call, later)])
    shares = call.make("Softmax", [scores], axis=3)
    _join_heads(call, call.make("MatMul", [shares, value]))
