"""The backward pass of LSTM, GRU and RNN by its definition."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polysci.graph.graph import Node
from polysci.graph.recurrences import KEPT, ORDERS
from polysci.graph.reference.evaluation import Evaluation
from polysci.numerics.arrays import Array

_LATE = "linear_before_reset"


def recurrent_gradient(of: Evaluation) -> list[Array]:
    """Gradients of the first states, and of what the gates' functions take."""
    node, known = of.node, of.known
    kind, layout = node.attributes["cell"], bool(node.attributes.get("layout", 0))
    dy, peepholes, r, *_ = (known[name] if name else None for name in node.inputs)
    dyh, lengths, dyc = (known[name] if name else None for name in node.inputs[3:6])
    assert r is not None
    kept = [known[name].swapaxes(0, 1) if layout else known[name] for name in node.inputs[6:]]
    (steps, batch, hidden), count = kept[0].shape, r.shape[0]
    order = node.attributes.get("order", ORDERS[kind])
    y = np.zeros((steps, count, batch, hidden), r.dtype) if dy is None else dy
    y = y.transpose(1, 2, 0, 3) if layout and dy is not None else y
    firsts, made = list[list[Array]](), list[Array]()
    for d in range(count):
        state = [
            np.zeros((batch, hidden), r.dtype) if end is None else (end[:, d] if layout else end[d])
            for end in (dyh, dyc)
        ]
        by_x, by_h = (np.zeros((steps, batch, len(order) * hidden), r.dtype) for _ in range(2))
        backwards = node.attributes.get("direction", "forward") == "reverse" or d == 1
        for t in range(steps)[:: 1 if backwards else -1]:
            parts = [part[t] for part in kept[d * len(KEPT[kind]) :]]
            seen = dict(zip(KEPT[kind], parts, strict=False))
            alive = np.ones((batch, 1), bool) if lengths is None else (t < lengths)[:, None]
            total = state[0] + np.where(alive, y[t, d], 0)
            own = None if peepholes is None else peepholes[d]
            gates, memory, rest = _gates(node, seen, total, state[1], r[d], own)
            for side, mark in ((by_x, ""), (by_h, "'")):
                parts = [gates.get(letter + mark, gates[letter]) for letter in order]
                side[t] = np.where(alive, np.concatenate(parts, 1), 0)
            state[0] = np.where(alive, by_h[t] @ r[d] + rest, total)
            state[1] = np.where(alive, memory, state[1])
        firsts.append(state)
        both = [by_x, by_h][: 1 + (kind == "gru" and bool(node.attributes.get(_LATE)))]
        made += [side.swapaxes(0, 1) if layout else side for side in both]
    ends = [np.stack(parts, 1 if layout else 0) for parts in zip(*firsts, strict=True)]
    return [*ends, *made]


def _gates(
    node: Node,
    seen: Mapping[str, Array],
    dh: Array,
    dc: Array,
    r_d: Array,
    peepholes: Array | None,
) -> tuple[dict[str, Array], Array, Array]:
    """By letter what reaches the gates, ``'`` behind it that by h; of c; of h beside R."""
    kind = node.attributes["cell"]
    if kind == "lstm":
        i, o, f, g, c, before, _ = (seen[letter] for letter in KEPT[kind])
        none = np.zeros(3 * dh.shape[1])
        p_i, p_o, p_f = np.split(none if peepholes is None else peepholes, 3)
        by_o = dh * np.tanh(c) * o * (1 - o)
        dc = dc + dh * o * (1 - np.tanh(c) ** 2) + by_o * p_o
        by_i, by_f = dc * g * i * (1 - i), dc * before * f * (1 - f)
        gates = {"i": by_i, "o": by_o, "f": by_f, "g": dc * i * (1 - g**2)}
        return gates, dc * f + by_i * p_i + by_f * p_f, np.zeros_like(dh)
    if kind == "gru":
        z, r, n, q, before = (seen[letter] for letter in KEPT[kind])
        new = dh * (1 - z) * (1 - n**2)
        update = dh * (before - n) * z * (1 - z)
        if not node.attributes.get(_LATE):
            through = new @ r_d[2 * dh.shape[1] :]
            gates = {"z": update, "r": through * before * r * (1 - r), "n": new}
            return {**gates, "n'": 0 * new}, dc, dh * z + through * r
        reset = new * q * r * (1 - r)
        return {"z": update, "r": reset, "n": new, "n'": new * r}, dc, dh * z
    names, n = node.attributes.get("activations") or ("Tanh",), seen["n"]
    slope = n > 0 if names[0] in ("Relu", b"Relu") else 1 - n**2
    return {"n": dh * slope}, dc, np.zeros_like(dh)
