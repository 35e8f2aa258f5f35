"""The backward pass of LSTM, GRU and RNN: a loop over the steps from the last one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder, Steps, formula, slice_at, whole
from polysci.graph.operators.convolution import Matrix
from polysci.graph.operators.recurrent import (
    CELLS,
    KEPT,
    ORDERS,
    RECURRENT_GRADIENT,
    Direction,
    chosen_activations,
    last_of,
    mask_of,
    multiply,
    order_of,
    places_of,
    slopes,
    time_axis,
)
from polysci.graph.operators.table import Evaluation, Operator
from polysci.loop_ir.expressions import Expr, Load, Number, apply, axis, constant
from polysci.numerics.arrays import Array
from polysci.program.control import CarriedTensor

_FIRST_KEPT, _FIRST_MADE = 6, 2  # inputs before what a forward pass kept, outputs before gradients
_LAST = (3, 5)  # inputs: gradients of the last hidden state and of the last memory


@dataclass(slots=True)
class ReturningDirection(Direction):
    """The backward pass of one direction; ``functions`` are slopes by a function's value."""

    @property
    def kind(self) -> str:
        return str(self.node.attributes["cell"])

    @property
    def late(self) -> bool:
        """Return whether it is a GRU that resets products of the state, not the state."""
        return self.kind == "gru" and bool(self.node.attributes.get("linear_before_reset"))

    @property
    def made(self) -> tuple[str, ...]:
        """Gradients of what the gates' functions take: by x, and by h where it differs."""
        count = 1 + self.late
        return self.node.outputs[_FIRST_MADE + self.number * count :][:count]

    def kept(self, letters: str) -> list[Load]:
        """Elements of tensors that the forward pass kept."""
        names = self.node.inputs[_FIRST_KEPT + self.number * len(KEPT[self.kind]) :]
        outer = [names[KEPT[self.kind].index(letter)] for letter in letters]
        return [whole(self.build, self.part(name, self.steps.read)) for name in outer]

    def write(self, letter: str, value: Expr, side: int = 0) -> Expr:
        """The gradient of what the function of a gate takes: 0 where a sequence has ended."""
        first = order_of(self.node).index(letter) * self.hidden
        part = self.part(self.made[side], self.steps.write, first, self.hidden)
        return whole(self.build, self.steps.define(part, self.apply_mask(value)))

    def total(self, held: CarriedTensor) -> Expr:
        """The gradient of the hidden state behind a step, by the step behind it and by Y."""
        dy, value = self.node.inputs[0], whole(self.build, held.inner)
        if not dy:
            return value
        own = self.apply_mask(whole(self.build, self.y_part(dy, self.steps.read)))
        name = self.build.fresh(f"{held.inner}.total", self.build.shape(held.inner), self.dtype)
        return whole(self.build, self.steps.define(name, apply("add", value, own)))

    @property
    def dtype(self) -> str:
        return self.build.dtype(self.node.inputs[2])

    def gradient_of_state(self, held: CarriedTensor, first: int = 0, gates: int = 0) -> Expr:
        """The product of all or some gates' gradients with R: that of the state before a step."""
        first, columns = first * self.hidden, gates * self.hidden
        gradients = self.part(self.made[-1], self.steps.read, first, columns)
        rows, x = self.build.shape(gradients)[1], Matrix(gradients, (0,), 1)
        weights = self.weights(2, first, rows)
        shape, base = self.build.shape(held.inner), f"{gradients}.product"
        return whole(
            self.build, multiply(self.build, self.node, x, weights, shape, base, across=True)
        )

    def through_peephole(self, value: Expr, gradient: Expr, number: int) -> Expr:
        """A gradient of the memory, with what reaches it through a peephole, if there are any."""
        if not self.node.inputs[1]:
            return value
        weight = self.own(self.node.inputs[1], number * self.hidden)
        return apply("add", value, apply("mul", gradient, weight))


def lstm(cell: ReturningDirection, carried: Sequence[CarriedTensor]) -> None:
    """Differentiate ``c' = f * c + i * g`` and ``h' = o * function(c')``."""
    hidden, memory = carried
    build, (sigmoid, tanh, out) = cell.build, cell.functions
    i, o, f, g, c, before = cell.kept("iofgcd")
    total, seen = cell.total(hidden), apply("tanh", c)
    direct = formula("total * o * slope", total=total, o=o, slope=out(seen))
    by_o = cell.write("o", formula("total * y * slope", total=total, y=seen, slope=sigmoid(o)))
    through = cell.through_peephole(direct, by_o, 1)
    name = build.fresh(f"{memory.inner}.total", build.shape(memory.inner), cell.dtype)
    cell.steps.define(name, apply("add", whole(build, memory.inner), through))
    summed = whole(build, name)
    by_i, by_f, _ = (
        cell.write(letter, formula("dc * x * slope", dc=summed, x=factor, slope=slope))
        for letter, factor, slope in (
            ("i", g, sigmoid(i)), ("f", before, sigmoid(f)), ("g", i, tanh(g))
        )
    )  # fmt: skip
    kept = cell.through_peephole(apply("mul", summed, f), by_i, 0)
    cell.keep(memory, cell.through_peephole(kept, by_f, 2))
    cell.keep(hidden, cell.gradient_of_state(hidden))


def gru(cell: ReturningDirection, carried: Sequence[CarriedTensor]) -> None:
    """Differentiate ``n = function(x + r * q or x + R (r * h))``, ``h' = (1 - z) * n + z * h``."""
    (hidden,) = carried
    sigmoid, tanh = cell.functions
    z, r, n, q, before = cell.kept("zrnqh")
    total = cell.total(hidden)
    new = cell.write("n", formula("total * (1 - z) * slope", total=total, z=z, slope=tanh(n)))
    text = "total * (h - n) * slope"
    kept = formula(text, total=total, h=before, n=n, slope=sigmoid(z))
    stays, update = apply("mul", total, z), cell.write("z", kept)
    if not cell.late:
        through = cell.gradient_of_state(hidden, 2, 1)
        cell.write("r", formula("x * h * slope", x=through, h=before, slope=sigmoid(r)))
        by_r = cell.gradient_of_state(hidden, 0, 2)
        cell.keep(hidden, formula("by_r + (s + x * r)", by_r=by_r, s=stays, x=through, r=r))
        return
    cell.write("n", apply("mul", new, r), 1)
    reset = cell.write("r", formula("new * q * slope", new=new, q=q, slope=sigmoid(r)))
    cell.write("r", reset, 1)
    cell.write("z", update, 1)
    cell.keep(hidden, apply("add", cell.gradient_of_state(hidden), stays))


def rnn(cell: ReturningDirection, carried: Sequence[CarriedTensor]) -> None:
    """Differentiate ``h' = function(W x + R h + bias)``."""
    (hidden,) = carried
    (n,) = cell.kept("n")
    cell.write("n", apply("mul", cell.total(hidden), cell.functions[0](n)))
    cell.keep(hidden, cell.gradient_of_state(hidden))


_STEPS: Mapping[str, Callable[[ReturningDirection, Sequence[CarriedTensor]], None]] = (
    MappingProxyType({"lstm": lstm, "gru": gru, "rnn": rnn})
)


def recurrent_gradient(build: Builder, node: Node) -> None:
    """A loop over the steps for each direction, against the order of its forward pass."""
    build.check_floats(node, *(node.inputs[at] for at in (0, 1, 2, 3, 5)))
    kind, time = str(node.attributes["cell"]), time_axis(node)
    shape = build.shape(node.inputs[_FIRST_KEPT])
    count, state = shape[time], (shape[1 - time], shape[2])
    mask, places = mask_of(build, node, node.inputs[4], count), places_of(node, count, returns=True)
    states = 1 + (kind == "lstm")
    functions = slopes(build, node, len(places), CELLS[kind].activations)
    every: list[list[CarriedTensor]] = []
    for number, place in enumerate(places):
        steps = Steps(build, str(node), count)
        cell = ReturningDirection(build, node, steps, number, place, functions[number], "")
        every.append([])
        for position, at in enumerate(_LAST[:states]):
            first: Expr = Number(0.0)
            if node.inputs[at]:
                first = Load(node.inputs[at], slice_at(constant(number), time, 3))
            base = f"{node.outputs[_FIRST_MADE]}.{position}"
            every[-1].append(steps.carry(base, first, state, cell.dtype))
        if mask:
            cell.mask = steps.read(mask, (place, axis(0)), build.shape(mask)[1:])
        steps.begin()
        _STEPS[kind](cell, every[-1])
        steps.end()
    for position in range(states):
        last_of(build, node, position, [held[position] for held in every])


_LATE = "linear_before_reset"


def recurrent_gradient_reference(of: Evaluation) -> list[Array]:
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
    firsts, gradients = list[list[Array]](), list[Array]()
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
        gradients += [side.swapaxes(0, 1) if layout else side for side in both]
    ends = [np.stack(parts, 1 if layout else 0) for parts in zip(*firsts, strict=True)]
    return [*ends, *gradients]


def _gates(
    node: Node,
    seen: Mapping[str, Array],
    dh: Array,
    dc: Array,
    r_d: Array,
    peepholes: Array | None,
) -> tuple[dict[str, Array], Array, Array]:
    """Return the gates' gradients by letter (``'``: by h), that of c, that of h beside R."""
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
    ((name, *_), *_), n = chosen_activations(node, 1, CELLS[kind].activations), seen["n"]
    slope = n > 0 if name == "relu" else 1 - n**2
    return {"n": dh * slope}, dc, np.zeros_like(dh)


ROWS = (
    Operator(
        RECURRENT_GRADIENT, "", recurrent_gradient, reference=recurrent_gradient_reference
    ),
)  # fmt: skip
