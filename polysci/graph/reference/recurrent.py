"""LSTM, GRU and RNN by their definition, in all forms; those of 8 bits as ONNX Runtime has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.graph.graph import QUANTISED_LSTM, Node
from polysci.graph.recurrences import FIRST_KEPT, KEPT, ORDERS
from polysci.graph.reference.evaluation import Evaluation
from polysci.graph.reference.roundings import Nudge
from polysci.numerics.arrays import Array
from polysci.numerics.scalar_functions import FUNCTIONS

Function = Callable[[Array], Any]
# By lower case name: the function of x and its parameters, and the defaults of these.
_FUNCTIONS: Mapping[str, tuple[Callable[..., Any], tuple[float, ...]]] = MappingProxyType(
    {
        **{
            row.onnx.lower(): (row.numpy, tuple(row.parameters.values()))
            for row in FUNCTIONS.values()
            if row.inputs == ("x",) and row.numpy is not None
        },
        "affine": (lambda x, a, b: a * x + b, (1.0, 0.0)),
        "thresholdedrelu": (lambda x, a: np.where(x >= a, x, 0), (1.0,)),
        "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), (1.0, 1.0)),
    }
)
_LSTM = ("Sigmoid", "Tanh", "Tanh")
_DEFAULTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"lstm": _LSTM, QUANTISED_LSTM: _LSTM, "gru": ("Sigmoid", "Tanh"), "rnn": ("Tanh",)}
)


@dataclass(frozen=True, slots=True)
class _Weights:
    """Those of one direction; ``scales`` of 8-bit ones, None for real ones."""

    w: Array
    r: Array
    bias: Array
    peepholes: Array
    scales: tuple[Array, Array] | None
    nudge: Nudge | None

    def of_x(self, x: Array) -> Array:
        return self._product(x, self.w, 0)

    def of_h(self, h: Array) -> Array:
        return self._product(h, self.r, 1)

    def _product(self, x: Array, weights: Array, at: int) -> Array:
        part = weights.T.astype(x.dtype)
        if self.scales is None:
            product: Array = x @ part
            return product
        numbers, step = _narrow(x, self.nudge)
        scaled: Array = (numbers @ part) * (step * self.scales[at])
        return scaled


def _narrow(x: Array, nudge: Nudge | None) -> tuple[Array, Any]:
    """x in steps of its range, 255 of which reach from its least to its largest number, or 0."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    step = (high - low) / 255 if high > low else 1
    zero = np.rint(np.clip(-low / step, 0, 255))
    steps = x / step + (nudge(x.shape) if nudge else 0)
    return np.clip(np.rint(steps) + zero, 0, 255) - zero, step


def recurrent(of: Evaluation) -> list[Array]:
    """Y, Y_h, and Y_c of an LSTM; then what is kept for the backward pass, if it is asked for."""
    node, known, nudge = of.node, of.known, of.nudge
    arrays = [known[name] if name else None for name in node.inputs] + [None] * 10
    (x, w, r), (lengths, *first) = arrays[:3], arrays[4:7]
    assert x is not None and w is not None and r is not None
    time_last, (count, _, hidden) = bool(node.attributes.get("layout", 0)), r.shape
    x = x.swapaxes(0, 1) if time_last else x
    steps, batch, _ = x.shape
    functions, own = _functions(node, count), len(_DEFAULTS[node.op])
    y, last, kept = np.zeros((steps, count, batch, hidden), x.dtype), [], []
    for d in range(count):
        backwards = node.attributes.get("direction", "forward") == "reverse" or d == 1
        state = [
            np.zeros((batch, hidden), x.dtype) if value is None
            else (value[:, d] if time_last else value[d])
            for value in first[: 2 if "lstm" in node.op else 1]
        ]  # fmt: skip
        weights, seen = _weights(node, arrays, d, x.dtype, nudge), [dict[str, Array]()] * steps
        ahead = weights.of_x(x)
        for t in range(steps)[:: -1 if backwards else 1]:
            new, seen[t] = _step(node, functions[d * own :][:own], weights, ahead[t], state)
            alive = np.ones((batch, 1), bool) if lengths is None else (t < lengths)[:, None]
            state = [np.where(alive, *pair) for pair in zip(new, state, strict=True)]
            y[t, d] = np.where(alive, new[0], 0)
        last.append(state)
        if len(node.outputs) > FIRST_KEPT:
            kept += [np.stack([step[letter] for step in seen]) for letter in KEPT[node.op]]
    results = [np.stack(values, 1 if time_last else 0) for values in zip(*last, strict=True)]
    made = [y.transpose(2, 0, 1, 3) if time_last else y, *results]
    if not kept:
        return made
    none = [np.zeros(0)] * (FIRST_KEPT - len(made))
    return [*made, *none, *(part.swapaxes(0, 1) if time_last else part for part in kept)]


def _weights(
    node: Node, arrays: Sequence[Array | None], d: int, dtype: Any, nudge: Nudge | None
) -> _Weights:
    w, r, b, peepholes = (arrays[at] for at in (1, 2, 3, 7))
    assert w is not None and r is not None
    bias = np.zeros(2 * w.shape[1], dtype) if b is None else b[d]
    if "order" in node.attributes:
        places = [node.attributes["order"].index(letter) for letter in ORDERS[node.op]]
        bias = bias.reshape(2, len(places), -1)[:, places].reshape(-1)
        w, r = (
            part.reshape(part.shape[0], len(places), -1, part.shape[2])[:, places].reshape(
                part.shape
            )
            for part in (w, r)
        )
    seen = np.zeros(3 * r.shape[2], dtype) if peepholes is None else peepholes[d]
    scales = tuple(arrays[at][d] for at in (8, 9)) if node.op == QUANTISED_LSTM else None  # type: ignore[index]
    return _Weights(w[d], r[d], bias, seen, scales, nudge)


def _functions(node: Node, directions: int) -> list[Function]:
    """Of all directions, with their parameters."""
    names = node.attributes.get("activations") or _DEFAULTS[node.op] * directions
    lists = [iter(node.attributes.get(f"activation_{word}") or ()) for word in ("alpha", "beta")]
    functions = list[Function]()
    for name in names:
        text = name.decode() if isinstance(name, bytes) else str(name)
        function, defaults = _FUNCTIONS[text.lower()]
        values = [next(given, value) for given, value in zip(lists, defaults, strict=False)]
        functions.append(lambda x, f=function, v=values: f(x, *v))  # type: ignore[misc]
    return functions


def _step(
    node: Node, f: Sequence[Function], weights: _Weights, ahead: Array, state: Sequence[Array]
) -> tuple[list[Array], dict[str, Array]]:
    """What one step carries over: h, and c of an LSTM; and what KEPT has letters for."""
    bound, h, hidden = node.attributes.get("clip") or np.inf, state[0], state[0].shape[1]
    of_x, of_h = np.split(weights.bias, 2)
    before, after = ahead + of_x, weights.of_h(h) + of_h

    def clip(value: Array) -> Array:
        clipped: Array = np.clip(value, -bound, bound)
        return clipped

    if node.op == "rnn":
        made = f[0](clip(before + after))
        return [made], {"n": made, "h": h}
    if node.op == "gru":
        z, reset = np.split(f[0](clip((before + after)[:, : 2 * hidden])), 2, 1)
        last = slice(2 * hidden, None)
        late = node.attributes.get("linear_before_reset")
        q = after[:, last] if late else reset * h
        entering = reset * q if late else weights.of_h(q)[:, last] + of_h[last]
        n = f[1](clip(before[:, last] + entering))
        seen = {"z": z, "r": reset, "n": n, "q": q, "h": h}
        return [(1 - z) * n + z * h], seen
    i, o, forget, g = np.split(before + after, 4, 1)
    c, (p_i, p_o, p_f) = state[1], np.split(weights.peepholes, 3)
    i = f[0](clip(i + p_i * c))
    forget = 1 - i if node.attributes.get("input_forget") else f[0](clip(forget + p_f * c))
    g, memory = f[1](clip(g)), c
    c = forget * c + i * g
    o = f[0](clip(o + p_o * c))
    return [o * f[2](c), c], {"i": i, "o": o, "f": forget, "g": g, "c": c, "d": memory, "h": h}
