"""Gradients of LSTM, GRU and RNN: a node for all steps, and products of all steps at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any

from polysci.errors import UnsupportedError
from polysci.network.gradients.backward import Backward, Rules
from polysci.network.gradients.moving import cut
from polysci.network.gradients.products import multiply
from polysci.network.ir.graph import Node, Tensor
from polysci.network.ir.recurrences import FIRST_KEPT, KEPT, RECURRENT_GRADIENT

_REFUSED = ("clip", "input_forget", "activation_alpha", "activation_beta")
_WORDS = ("direction", "layout", "order", "activations")


def recurrent(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """The node of the backward pass, then ``dx = dG W``, ``dW = dG' x``, ``dR = dG' h``.

    The products of weights sum over all steps at once.
    """
    _check(node)
    x, w, r, bias = (node.input(at) for at in range(4))
    kept, dys = _keep(back, node), [*dys, "", ""]
    count, dtype, shape = back.shape(r)[0], back.dtype(x), back.shape(x)
    rows, states = back.shape(r)[1], 1 + (node.op == "LSTM")
    lead, sides = shape[:2], 1 + (node.op == "GRU")
    first = (shape[0], count, back.shape(r)[2])
    first = first if node.attributes.get("layout") else (count, shape[1], first[2])
    words: dict[str, Any] = {n: node.attributes[n] for n in _WORDS if n in node.attributes}
    inputs = (dys[0], "", r, dys[1], node.input(4), dys[2], *kept)
    outputs = [(first, dtype)] * 2 + [((*lead, rows), dtype)] * (sides * count)
    made = back.add_many(RECURRENT_GRADIENT, inputs, outputs, cell=node.op, **words)
    steps = [back.reshape(name, (prod(lead), rows)) for name in made[2:]]
    by_x, by_h = steps[::sides], steps[sides - 1 :: sides]
    flat, dxs = back.reshape(x, (prod(lead), shape[2])), dict[int, str]()
    if back.wants(x):
        parts = [multiply(back, dg, _matrix(back, w, at)) for at, dg in enumerate(by_x)]
        dxs[0] = back.reshape(back.sum(parts), shape)
    if back.wants(w):
        dxs[1] = _stack(back, [multiply(back, dg, flat, turn_a=True) for dg in by_x])
    if back.wants(r):
        size, at = len(KEPT[node.op]), KEPT[node.op].index("h")
        befores = [back.reshape(name, (prod(lead), first[2])) for name in kept[at::size]]
        pairs = zip(by_h, befores, strict=True)
        dxs[2] = _stack(back, [multiply(back, dg, h, turn_a=True) for dg, h in pairs])
    if bias and back.wants(bias):
        sums = [[back.total(dg, (0,)) for dg in pair] for pair in zip(by_x, by_h, strict=True)]
        dxs[3] = _stack(back, [_join(back, pair) for pair in sums])
    dxs |= {5 + at: made[at] for at in range(states) if node.input(5 + at)}
    return [dxs.get(at, "") for at in range(len(node.inputs))]


def _check(node: Node) -> None:
    """Refuses what the backward pass does not know."""
    words = [word for word in _REFUSED if node.attributes.get(word)]
    if node.op == "GRU" and not node.attributes.get("linear_before_reset"):
        words.append("linear_before_reset=0")
    if node.input(7):
        words.append("peepholes")
    if words:
        raise UnsupportedError(f"the gradient of {node.op} with {', '.join(words)}")


def _keep(back: Backward, node: Node) -> tuple[str, ...]:
    """What the node has to make for its backward pass, as outputs behind its own."""
    letters, x, r = KEPT[node.op], back.shape(node.inputs[0]), back.shape(node.inputs[2])
    kept = list[str]()
    for _ in range(len(letters) * r[0]):
        kept.append(back.fresh(node.op))
        back.tensors[kept[-1]] = Tensor(kept[-1], (*x[:2], r[2]), back.dtype(node.inputs[0]))
    own = (*node.outputs, "", "")[:FIRST_KEPT]
    back.nodes[back.nodes.index(node)] = replace(node, outputs=(*own, *kept))
    return tuple(kept)


def _matrix(back: Backward, weights: str, direction: int) -> str:
    """Those of one direction."""
    part = cut(back, weights, 0, direction, direction + 1)
    return back.reshape(part, back.shape(weights)[1:])


def _stack(back: Backward, parts: Sequence[str]) -> str:
    """Tensors as one with an axis of directions before all others."""
    wide = [back.reshape(part, (1, *back.shape(part))) for part in parts]
    return _join(back, wide)


def _join(back: Backward, parts: Sequence[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    shape = list(back.shape(parts[0]))
    shape[0] *= len(parts)
    return back.add("Concat", parts, shape, back.dtype(parts[0]), axis=0)


GRADIENTS: Rules = MappingProxyType(dict.fromkeys(KEPT, recurrent))
