"""Gradients of LSTM, GRU and RNN: a node for all steps, and products of all steps at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from polysci.errors import UnsupportedError
from polysci.graph.backward import Backward
from polysci.graph.formulas import derive
from polysci.graph.gradients.products import multiply
from polysci.graph.gradients.shape_ops import cut
from polysci.graph.graph import Node, Tensor
from polysci.graph.recurrences import FIRST_KEPT, KEPT, ORDERS, RECURRENT_GRADIENT

_REFUSED = ("clip", "input_forget", "activation_alpha", "activation_beta")
_WORDS = ("direction", "layout", "order", "activations", "linear_before_reset")
_PEEPHOLES = "iof"  # gates, in the order of an LSTM's peepholes


def recurrent(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """The node of the backward pass, then ``dx = dG W``, ``dW = dG' x``, ``dR = dG' h``.

    The products of weights sum over all steps at once.
    """
    _check(node)
    x, w, r, bias = (node.input(at) for at in range(4))
    kept, dys = _keep(back, node), [*dys, "", ""]
    count, dtype, shape = back.shape(r)[0], back.dtype(x), back.shape(x)
    rows, states = back.shape(r)[1], 1 + (node.op == "lstm")
    early = node.op == "gru" and not node.attributes.get("linear_before_reset")
    lead, sides = shape[:2], 1 + (node.op == "gru" and not early)
    first = (shape[0], count, back.shape(r)[2])
    first = first if node.attributes.get("layout") else (count, shape[1], first[2])
    words: dict[str, Any] = {n: node.attributes[n] for n in _WORDS if n in node.attributes}
    inputs = (dys[0], node.input(7), r, dys[1], node.input(4), dys[2], *kept)
    outputs = [(first, dtype)] * 2 + [((*lead, rows), dtype)] * (sides * count)
    made = back.add_many(RECURRENT_GRADIENT, inputs, outputs, cell=node.op, **words)
    steps = [back.reshape(name, (prod(lead), rows)) for name in made[2:]]
    by_x, by_h = steps[::sides], steps[sides - 1 :: sides]
    seen = [back.reshape(name, (prod(lead), first[2])) for name in kept]
    flat, dxs = back.reshape(x, (prod(lead), shape[2])), dict[int, str]()
    if back.wants(x):
        parts = [multiply(back, dg, _matrix(back, w, at)) for at, dg in enumerate(by_x)]
        dxs[0] = back.reshape(back.sum(parts), shape)
    if back.wants(w):
        dxs[1] = _stack(back, [multiply(back, dg, flat, turn_a=True) for dg in by_x])
    if back.wants(r):
        factors = ("h", "h", "q") if early else ("h",)
        dxs[2] = _by_kept(back, node, by_h, seen, factors, _product)
    if bias and back.wants(bias):
        sums = [[back.total(dg, (0,)) for dg in pair] for pair in zip(by_x, by_h, strict=True)]
        dxs[3] = _stack(back, [_join(back, pair) for pair in sums])
    dxs |= {5 + at: made[at] for at in range(states) if node.input(5 + at)}
    if node.input(7) and back.wants(node.input(7)):
        parts = [_cut_gates(back, node, dg, _PEEPHOLES) for dg in by_x]
        dxs[7] = _by_kept(back, node, parts, seen, ("d", "c", "d"), _sum_of_products)
    return [dxs.get(at, "") for at in range(len(node.inputs))]


def _by_kept(
    back: Backward, node: Node, gradients: Sequence[str], kept: Sequence[str],
    letters: Sequence[str], reduce: Callable[[Backward, str, str], str],
) -> str:  # fmt: skip
    """By direction, a gradient of weights: of parts of gates' gradients, each by what it saw."""
    own, sides = KEPT[node.op], list[str]()
    for at, dg in enumerate(gradients):
        width = back.shape(dg)[1] // len(letters)
        sides.append(_join(back, [
            reduce(
                back,
                dg if len(letters) == 1 else cut(back, dg, 1, part * width, (part + 1) * width),
                kept[at * len(own) + own.index(letter)],
            )
            for part, letter in enumerate(letters)
        ]))  # fmt: skip
    return _stack(back, sides)


def _product(back: Backward, dg: str, seen: str) -> str:
    return multiply(back, dg, seen, turn_a=True)


def _sum_of_products(back: Backward, dg: str, seen: str) -> str:
    return back.total(derive(back, "dg * seen", dg=dg, seen=seen), (0,))


def _cut_gates(back: Backward, node: Node, dg: str, letters: str) -> str:
    """Columns of some gates, in this order."""
    order = str(node.attributes.get("order") or ORDERS[node.op])
    width = back.shape(dg)[1] // len(order)
    places = [order.index(letter) * width for letter in letters]
    return _join(back, [cut(back, dg, 1, at, at + width) for at in places], 1)


def _check(node: Node) -> None:
    """Refuses what the backward pass does not know."""
    if words := [word for word in _REFUSED if node.attributes.get(word)]:
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


def _join(back: Backward, parts: Sequence[str], along: int = 0) -> str:
    if len(parts) == 1:
        return parts[0]
    shape = list(back.shape(parts[0]))
    shape[along] *= len(parts)
    return back.add("concat", parts, shape, back.dtype(parts[0]), axis=along)
