"""LSTM, GRU and RNN: one product for the inputs of all steps, then a loop over the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.errors import UnsupportedError
from polysci.graph.builder import Backward
from polysci.graph.formulas import derive
from polysci.graph.graph import QUANTISED_LSTM, Node, Tensor
from polysci.graph.operators.builder import Builder, Steps, formula, slice_at, step_index, whole
from polysci.graph.operators.convolution import Matrix, matrix_product
from polysci.graph.operators.products import multiply_gradient
from polysci.graph.operators.shape_ops import cut_gradient
from polysci.graph.operators.table import Evaluation, Nudge, Operator
from polysci.loop_ir.expressions import Expr, Load, Number, Reduce, apply, axis, combine, constant
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import Array
from polysci.numerics.formulas import evaluate, gradients, parse
from polysci.numerics.scalar_functions import FUNCTIONS
from polysci.program.control import CarriedTensor
from polysci.program.stages import ConcatStage, ViewStage

# (dY, peepholes, R, dY_h, lengths, dY_c, kept tensors of each direction) -> (dh, dc, gradients of
# what the gates' functions take, by x and where they differ by h, of each direction). Attributes
# are those of the recurrent node, and ``cell``, its type.
RECURRENT_GRADIENT = "recurrent_gradient"
# By type of node, a letter for each gate, in ONNX's order of their rows; the attribute ``order``
# has the same letters in another one.
ORDERS: Mapping[str, str] = MappingProxyType({"lstm": "iofg", "gru": "zrn", "rnn": "n"})
# By type of node, a letter for each tensor that a recurrent node makes for its backward pass, when
# it has such outputs behind its first three, direction by direction. Each is (steps, batch, hidden)
# or with ``layout`` (batch, steps, hidden). Letters of gates: what their functions made; h and d:
# hidden state and memory before the step; c: memory behind it; q: what r multiplies, or with
# ``linear_before_reset=0`` what R does of the last gate.
KEPT: Mapping[str, str] = MappingProxyType({"lstm": "iofgcdh", "gru": "zrnqh", "rnn": "nh"})
FIRST_KEPT = 3  # outputs before them
Activation = Callable[[Expr], Expr]
Parameters = tuple[float, ...]  # alpha, and beta of those that have one
# Functions of x and their parameters that the table of scalar functions lacks: as expressions, and
# in NumPy.
_OTHERS: Mapping[str, tuple[Callable[..., Expr], Callable[..., Any]]] = MappingProxyType({
    "affine": (
        lambda x, a, b: apply("add", apply("mul", x, a), b), lambda x, a, b: a * x + b,
    ),
    "thresholded_relu": (
        lambda x, a: apply("select", apply("greater_equal", x, a), x, 0.0),
        lambda x, a: np.where(x >= a, x, 0),
    ),
    "scaled_tanh": (
        lambda x, a, b: apply("mul", a, apply("tanh", apply("mul", x, b))),
        lambda x, a, b: a * np.tanh(b * x),
    ),
})  # fmt: skip
# Functions whose slope is known by their value.
_WITH_SLOPES = ("relu", "tanh", "sigmoid")


def _slope(function: str) -> Activation:
    """The slope of a function by its value."""
    row = FUNCTIONS[function]
    formula = parse(row.derivatives[0]) if row.derivatives else gradients(function)[0]
    assert formula is not None
    return lambda y: evaluate(formula, {"y": y, "dy": 1.0}, _apply)


def _apply(function: str, parts: Sequence[Expr | float]) -> Expr:
    return apply(function, *parts)


def slopes(
    build: Builder, node: Node, directions: int, defaults: Sequence[str]
) -> list[list[Activation]]:
    """The slope of each function by its value, by direction; refuses functions without one."""
    names = [name for name, *_ in chosen_activations(node, directions, defaults)]
    for name in names:
        if name not in _WITH_SLOPES:
            build.refuse(f"the gradient of activation {name}")
    functions, size = [_slope(name) for name in names], len(defaults)
    return [functions[first : first + size] for first in range(0, len(functions), size)]


def activations(
    build: Builder, node: Node, directions: int, defaults: Sequence[str]
) -> list[list[Activation]]:
    """The functions of each direction in turn."""
    chosen, size = chosen_activations(node, directions, defaults), len(defaults)
    if len(chosen) != directions * size:
        build.refuse(f"{len(chosen)} activations; expected {directions * size}")
    functions = [_activation(build, *row) for row in chosen]
    return [functions[first : first + size] for first in range(0, len(functions), size)]


def chosen_activations(
    node: Node, directions: int, defaults: Sequence[str]
) -> Sequence[tuple[str, *tuple[float, ...]]]:
    """Name the function of each gate, with its parameters, direction by direction."""
    chosen = node.attributes.get("activations")
    return chosen or [(name,) for name in defaults] * directions


def _activation(build: Builder, name: str, *parameters: float) -> Activation:
    function: Callable[..., Expr]
    if name in _OTHERS:
        function, _ = _OTHERS[name]
    elif name in FUNCTIONS and FUNCTIONS[name].inputs == ("x",):
        function = partial(apply, name)
    else:
        build.refuse(f"activation {name}")
    return lambda x: function(x, *parameters)


_BACKWARDS = MappingProxyType(
    {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of recurrent node: gates, activations where none are named, what it carries over.

    ``inputs`` are the positions of the first values of what is carried. ``step`` makes the stages
    of a step.
    """

    activations: tuple[str, ...]
    inputs: tuple[int, ...]
    step: Callable[[Direction, str, Sequence[CarriedTensor]], None]


@dataclass(slots=True)
class Direction:
    """One direction of a recurrent node."""

    build: Builder
    node: Node
    steps: Steps
    number: int
    place: Affine  # of a step, along the axis of time
    functions: Sequence[Activation]
    mask: str  # by batch: 0 beyond the end of a sequence; empty where all are as long

    @property
    def hidden(self) -> int:
        return self.build.shape(self.node.inputs[2])[2]

    def gate(self, tensor: str, letter: str) -> Load:
        """An element of a gate before its function."""
        number = order_of(self.node).index(letter)
        return Load(tensor, (axis(0), combine({"i1": 1}, number * self.hidden)))

    def record(self, letter: str, value: Expr) -> Expr:
        """A value of a step, written for the backward pass where the node has outputs for it."""
        kept = KEPT[self.node.op]
        names = self.node.outputs[FIRST_KEPT + self.number * len(kept) :]
        if not names:
            return value
        part = self.part(names[kept.index(letter)], self.steps.write)
        return whole(self.build, self.steps.define(part, value))

    def part(self, outer: str, share: Callable[..., str], first: int = 0, columns: int = 0) -> str:
        """Return the part of a tensor with an axis of time that a step shares by ``share``."""
        time, shape = time_axis(self.node), self.build.shape(outer)
        index = (*slice_at(self.place, time, 3)[:2], combine({"i1": 1}, first))
        return share(outer, index, (shape[1 - time], columns or shape[2]))

    def y_part(self, y: str, share: Callable[..., str]) -> str:
        """Return the part of Y, which has an axis of directions behind that of steps."""
        number, shape = constant(self.number), self.build.shape(y)
        if time_axis(self.node):
            index = (axis(0), self.place, number, axis(1))
        else:
            index = (self.place, number, axis(0), axis(1))
        return share(y, index, (shape[0 if time_axis(self.node) else 2], shape[3]))

    def own(self, name: str, first: int = 0) -> Load:
        """An element of a vector of this direction, which runs along the last axis."""
        return Load(name, (constant(self.number), combine({"i1": 1}, first)))

    def clip(self, value: Expr) -> Expr:
        bound = self.node.attributes.get("clip")
        if not bound:
            return value
        return apply("min", apply("max", value, -float(bound)), float(bound))

    def weights(self, position: int, first: int, rows: int) -> str:
        """Rows of W or R of this direction, as a matrix."""
        name = self.node.inputs[position]
        value, columns = self.build.constant_value(name), self.build.shape(name)[2]
        if value is not None:
            part = np.ascontiguousarray(value[self.number, first : first + rows])
            return self.build.number(f"{name}.{self.number}", part)
        matrix = self.build.fresh(f"{name}.{self.number}", (rows, columns), self.build.dtype(name))
        index = (constant(self.number), combine({"i0": 1}, first), axis(1))
        self.build.stages.append(ViewStage(str(self.node), matrix, name, index))
        return matrix

    def bias(self, *halves: int) -> str:
        """The sum of halves of B: that of the inputs, 0, and that of what is carried, 1."""
        name, build = self.node.input(3), self.build
        if not name:
            return ""
        value, size = build.constant_value(name), build.shape(name)[1] // 2
        if value is not None:
            both = value[self.number].reshape(2, size)[list(halves)]
            return build.number(f"{name}.{self.number}", both.sum(axis=0, dtype=value.dtype))
        total = build.fresh(f"{name}.{self.number}", (size,), build.dtype(name))
        at = [Load(name, (constant(self.number), combine({"i0": 1}, n * size))) for n in halves]
        return build.define(self.node, at[0] if len(at) == 1 else apply("add", *at), total)

    def product(
        self, x: Matrix, weights: str, shape: Sequence[int], base: str, bias: str = ""
    ) -> str:
        """``x @ weights' + bias``."""
        return multiply(self.build, self.node, x, weights, shape, base, bias)

    def recur(self, x: str, first: int, gates: int, bias: str = "") -> str:
        """The product of what is carried with rows of R: some gates, from one on."""
        rows = gates * self.hidden
        weights = self.weights(2, first * self.hidden, rows)
        shape = (self.build.shape(x)[0], rows)
        return self.product(Matrix(x, (0,), 1), weights, shape, f"{x}.product", bias)

    def apply_mask(self, value: Expr, otherwise: Expr | float = 0.0) -> Expr:
        """Return a value, or another one where a sequence has ended."""
        if not self.mask:
            return value
        return apply("select", Load(self.mask, (axis(0),)), value, otherwise)

    def keep(self, held: CarriedTensor, value: Expr) -> None:
        """Carry a value over; the one before where a sequence has ended."""
        value = self.apply_mask(value, whole(self.build, held.inner))
        self.steps.define(held.following, value)


def multiply(
    build: Builder, node: Node, x: Matrix, weights: str, shape: Sequence[int], base: str,
    bias: str = "", *, across: bool = False,
) -> str:  # fmt: skip
    """``x @ weights' + bias``, or ``x @ weights`` if ``across``: a layer of f32, else loops."""
    dtype = build.dtype(x.tensor)
    y = Matrix(build.fresh(base, shape, dtype), tuple(range(len(shape) - 1)), len(shape) - 1)
    if dtype == "float32":
        matrix_product(build, node, x, y, weights, bias=bias, across=across)
        return y.tensor
    index = [axis(at) for at in range(len(shape) - 1)] + [Affine((("k", 1),))]
    places = (axis(y.columns), index[-1])
    row = Load(weights, places[::-1] if across else places)
    depth = (("k", build.shape(x.tensor)[x.columns]),)
    expr: Expr = Reduce("add", depth, apply("mul", Load(x.tensor, tuple(index)), row))
    if bias:
        expr = apply("add", expr, build.along(bias, y.columns))
    return build.define(node, expr, y.tensor)


def lstm(cell: Direction, x: str, carried: Sequence[CarriedTensor]) -> None:
    """Gates input, output, forget and cell; ``c' = f * c + i * g``, ``h' = o * function(c')``."""
    hidden, memory = carried
    build, node = cell.build, cell.node
    cell.record("h", whole(build, hidden.inner))
    old = cell.record("d", whole(build, memory.inner))
    summed = cell.recur(hidden.inner, 0, 4)
    gates = build.fresh(f"{summed}.gates", build.shape(summed), build.dtype(summed))
    cell.steps.define(gates, apply("add", whole(build, summed), whole(build, x)))
    peepholes, (f, g, h) = node.input(7), cell.functions

    def gate(letter: str, peephole: int, seen: Expr) -> Expr:
        value: Expr = cell.gate(gates, letter)
        if peepholes:
            weight = cell.own(peepholes, peephole * cell.hidden)
            value = apply("add", value, apply("mul", weight, seen))
        return cell.record(letter, f(cell.clip(value)))

    entering = gate("i", 0, old)
    forgetting: Expr = apply("sub", 1.0, entering)
    if not node.attributes.get("input_forget"):
        forgetting = gate("f", 2, old)
    fresh = cell.record("g", g(cell.clip(cell.gate(gates, "g"))))
    both = formula("f * c + i * g", f=forgetting, c=old, i=entering, g=fresh)
    cell.keep(memory, cell.record("c", both))
    new = whole(build, memory.following)
    cell.keep(hidden, apply("mul", gate("o", 1, new), h(new)))


def gru(cell: Direction, x: str, carried: Sequence[CarriedTensor]) -> None:
    """Gates update, reset and new; ``h' = (1 - z) * n + z * h``."""
    (hidden,) = carried
    build, (f, g) = cell.build, cell.functions
    old = cell.record("h", whole(build, hidden.inner))
    late = bool(cell.node.attributes.get("linear_before_reset"))
    gates = 3 if late else 2
    summed = cell.recur(hidden.inner, 0, gates, cell.bias(1) if late else "")

    def gate(letter: str) -> Expr:
        both = apply("add", cell.gate(summed, letter), cell.gate(x, letter))
        return cell.record(letter, f(cell.clip(both)))

    if late:
        entering: Expr = apply("mul", gate("r"), cell.record("q", cell.gate(summed, "n")))
    else:
        shape, dtype = build.shape(hidden.inner), build.dtype(hidden.inner)
        reset = build.fresh(f"{hidden.inner}.reset", shape, dtype)
        cell.steps.define(reset, cell.record("q", apply("mul", gate("r"), old)))
        entering = whole(build, cell.recur(reset, 2, 1))
    fresh = cell.record("n", g(cell.clip(apply("add", entering, cell.gate(x, "n")))))
    cell.keep(hidden, formula("(1 - z) * n + z * h", z=gate("z"), n=fresh, h=old))


def rnn(cell: Direction, x: str, carried: Sequence[CarriedTensor]) -> None:
    """``h' = function(W x + R h + bias)``."""
    (hidden,) = carried
    cell.record("h", whole(cell.build, hidden.inner))
    summed = cell.recur(hidden.inner, 0, 1)
    both = apply("add", whole(cell.build, summed), whole(cell.build, x))
    cell.keep(hidden, cell.record("n", cell.functions[0](cell.clip(both))))


CELLS: Mapping[str, Cell] = MappingProxyType({
    "lstm": Cell(("sigmoid", "tanh", "tanh"), (5, 6), lstm),
    "gru": Cell(("sigmoid", "tanh"), (5,), gru),
    "rnn": Cell(("tanh",), (5,), rnn),
})  # fmt: skip


def order_of(node: Node) -> str:
    """A letter for each gate, in the order of their rows in W and R: by default ONNX's."""
    return str(node.attributes.get("order") or ORDERS[node.attributes.get("cell", node.op)])


def recurrent(build: Builder, node: Node, make: Callable[..., Direction] = Direction) -> None:
    """A recurrent node: a loop over the steps for each direction, which ``make`` makes.

    So the weights of one direction stay in a core's cache, and another core may take the other.
    """
    cell, x = CELLS[node.op], node.inputs[0]
    whole_numbers = (4,) if make is Direction else (1, 2, 4)
    build.check_floats(
        node, *(name for at, name in enumerate(node.inputs) if at not in whole_numbers)
    )
    _check(build, node, cell)
    if not build.values[x].size:
        for output in filter(None, node.outputs):
            build.define(node, Number(0.0), output)
        return
    places, time = places_of(node, build.shape(x)[time_axis(node)]), time_axis(node)
    count = build.shape(x)[time]
    mask = mask_of(build, node, node.input(4), count)
    functions = activations(build, node, len(places), cell.activations)
    directions = [
        make(build, node, Steps(build, str(node), count), number, place, functions[number], "")
        for number, place in enumerate(places)
    ]
    projected = [_project(direction, cell, x) for direction in directions]
    carried = [_carry_states(direction, cell) for direction in directions]
    for direction, ahead, held in zip(directions, projected, carried, strict=True):
        steps, place = direction.steps, direction.place
        shape = build.shape(ahead)
        own = steps.read(ahead, slice_at(place, time, 3), (shape[1 - time], shape[2]))
        if mask:
            direction.mask = steps.read(mask, (place, axis(0)), build.shape(mask)[1:])
        steps.begin()
        cell.step(direction, own, held)
        _write(direction, held[0])
        steps.end()
    for position in range(len(cell.inputs)):
        last_of(build, node, 1 + position, [held[position] for held in carried])


def places_of(node: Node, count: int, *, returns: bool = False) -> list[Affine]:
    """Return by direction the place of a step in time; the other way if it ``returns``."""
    return [step_index(count, backwards=back != returns) for back in _BACKWARDS[_direction(node)]]


def _direction(node: Node) -> str:
    return str(node.attributes.get("direction", "forward"))


def time_axis(node: Node) -> int:
    """Return the axis of x that holds the steps: the first, or with ``layout`` the second."""
    return int(node.attributes.get("layout", 0))


def _check(build: Builder, node: Node, cell: Cell) -> None:
    """Refuses shapes that do not fit, which shape inference lets pass."""
    if _direction(node) not in _BACKWARDS:
        build.refuse(f"direction {_direction(node)}")
    time, count = time_axis(node), len(_BACKWARDS[_direction(node)])
    x = build.shape(node.inputs[0])
    if len(x) != 3 or time not in (0, 1) or not x[time] * x[2]:
        build.refuse(f"x {list(x)} and layout {time}")
    batch, hidden = x[1 - time], build.shape(node.inputs[2])[-1]
    rows = len(ORDERS[node.op]) * hidden
    first = (batch, count, hidden) if time else (count, batch, hidden)
    wanted = {
        1: (count, rows, x[2]), 2: (count, rows, hidden), 3: (count, 2 * rows), 4: (batch,),
        5: first, 6: first, 7: (count, 3 * hidden),
    }  # fmt: skip
    for at, name in enumerate(node.inputs):
        if name and at and build.shape(name) != wanted[at]:
            build.refuse(f"input {at} {list(build.shape(name))}; expected {list(wanted[at])}")
    order = order_of(node)
    if sorted(order) != sorted(ORDERS[node.op]) or (node.op == "gru" and order[2] != "n"):
        build.refuse(f"order {order} of gates {ORDERS[node.op]}")
    if node.attributes.get("hidden_size", hidden) != hidden:
        build.refuse(f"hidden_size {node.attributes['hidden_size']} and R of {hidden}")


def _project(direction: Direction, cell: Cell, x: str) -> str:
    """The products of the inputs of all steps, and what is added in all of them."""
    build, node = direction.build, direction.node
    rows = len(ORDERS[node.op]) * direction.hidden
    late = node.op == "gru" and node.attributes.get("linear_before_reset")
    bias = direction.bias(0) if late else direction.bias(0, 1)
    shape = (*build.shape(x)[:2], rows)
    weights = direction.weights(1, 0, rows)
    return direction.product(Matrix(x, (0, 1), 2), weights, shape, f"{x}.gates", bias)


def _carry_states(direction: Direction, cell: Cell) -> list[CarriedTensor]:
    """Add the states of a direction, which begin with inputs of the node or 0."""
    build, node, time = direction.build, direction.node, time_axis(direction.node)
    x, number = node.inputs[0], constant(direction.number)
    shape = (build.shape(x)[1 - time], direction.hidden)
    carried = []
    for position in cell.inputs:
        name = node.input(position)
        first: Expr = Load(name, slice_at(number, time, 3)) if name else Number(0.0)
        base = f"{node.outputs[0] or str(node)}.{position}"
        carried.append(direction.steps.carry(base, first, shape, build.dtype(x)))
    return carried


def mask_of(build: Builder, node: Node, lengths: str, count: int) -> str:
    """Add a mask by step and batch, 0 behind the end of a sequence; empty where all are as long."""
    known = build.constant_value(lengths) if lengths else None
    if not lengths or (known is not None and (known >= count).all()):
        return ""
    numbers = build.number(f"{lengths}.steps", np.arange(count, dtype=np.int32))
    left = apply("sub", Load(lengths, (axis(1),)), Load(numbers, (axis(0),)))
    mask = build.fresh(f"{lengths}.mask", (count, build.shape(lengths)[0]), "int32")
    return build.define(node, apply("min", apply("max", left, 0.0), 1.0), mask)


def _write(direction: Direction, hidden: CarriedTensor) -> None:
    """A step's part of Y, which has an axis of directions behind that of steps."""
    build, y = direction.build, direction.node.outputs[0]
    if not y:
        return
    slice_ = direction.y_part(y, direction.steps.write)
    direction.steps.define(slice_, direction.apply_mask(whole(build, hidden.following)))


def last_of(build: Builder, node: Node, output: int, carried: Sequence[CarriedTensor]) -> None:
    """An output of the node: what all directions carried to the end."""
    name = node.outputs[output] if output < len(node.outputs) else ""
    if not name:
        return
    shape = build.shape(name)
    time = time_axis(node)
    part = tuple(1 if at == time else size for at, size in enumerate(shape))
    if len(carried) == 1:
        build.stages.append(ViewStage(str(node), name, carried[0].state))
        return
    views = [build.fresh(f"{held.state}.last", part, build.dtype(held.state)) for held in carried]
    for view, held in zip(views, carried, strict=True):
        build.stages.append(ViewStage(str(node), view, held.state))
    build.stages.append(ConcatStage(str(node), name, tuple(views), time))


_REFUSED = ("clip", "input_forget")
_WORDS = ("direction", "layout", "order", "activations", "linear_before_reset")
_PEEPHOLES = "iof"  # gates, in the order of an LSTM's peepholes


def recurrent_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """The node of the backward pass, then ``dx = dG W``, ``dW = dG' x``, ``dR = dG' h``.

    The products of weights sum over all steps at once.
    """
    _check_differentiable(node)
    x, w, r, bias = (node.input(at) for at in range(4))
    kept, dys = _keep(back, node), [*dys, "", ""]
    count, dtype, shape = back.shape(r)[0], back.dtype(x), back.shape(x)
    rows, states = back.shape(r)[1], 1 + (node.op == "lstm")
    early = node.op == "gru" and not node.attributes.get("linear_before_reset")
    lead, sides = shape[:2], 1 + (node.op == "gru" and not early)
    first = (shape[0], count, back.shape(r)[2])
    first = first if node.attributes.get("layout") else (count, shape[1], first[2])
    attributes: dict[str, Any] = {n: node.attributes[n] for n in _WORDS if n in node.attributes}
    inputs = (dys[0], node.input(7), r, dys[1], node.input(4), dys[2], *kept)
    outputs = [(first, dtype)] * 2 + [((*lead, rows), dtype)] * (sides * count)
    results = back.add_many(RECURRENT_GRADIENT, inputs, outputs, cell=node.op, **attributes)
    steps = [back.reshape(name, (prod(lead), rows)) for name in results[2:]]
    by_x, by_h = steps[::sides], steps[sides - 1 :: sides]
    seen = [back.reshape(name, (prod(lead), first[2])) for name in kept]
    flat, dxs = back.reshape(x, (prod(lead), shape[2])), dict[int, str]()
    if back.wants(x):
        parts = [multiply_gradient(back, dg, _matrix(back, w, at)) for at, dg in enumerate(by_x)]
        dxs[0] = back.reshape(back.sum(parts), shape)
    if back.wants(w):
        dxs[1] = _stack(back, [multiply_gradient(back, dg, flat, turn_a=True) for dg in by_x])
    if back.wants(r):
        factors = ("h", "h", "q") if early else ("h",)
        dxs[2] = _by_kept(back, node, by_h, seen, factors, _product)
    if bias and back.wants(bias):
        sums = [[back.total(dg, (0,)) for dg in pair] for pair in zip(by_x, by_h, strict=True)]
        dxs[3] = _stack(back, [_join(back, pair) for pair in sums])
    dxs |= {5 + at: results[at] for at in range(states) if node.input(5 + at)}
    if node.input(7) and back.wants(node.input(7)):
        parts = [_cut_gates(back, node, dg, _PEEPHOLES) for dg in by_x]
        dxs[7] = _by_kept(back, node, parts, seen, ("d", "c", "d"), _sum_of_products)
    return [dxs.get(at, "") for at in range(len(node.inputs))]


def _by_kept(
    back: Backward, node: Node, gradients: Sequence[str], kept: Sequence[str],
    letters: Sequence[str], reduce: Callable[[Backward, str, str], str],
) -> str:  # fmt: skip
    """Return a gradient of weights by direction: of each gate's gradient by what the gate saw."""
    own, sides = KEPT[node.op], list[str]()
    for at, dg in enumerate(gradients):
        width = back.shape(dg)[1] // len(letters)
        sides.append(_join(back, [
            reduce(
                back,
                dg
                if len(letters) == 1
                else cut_gradient(back, dg, 1, part * width, (part + 1) * width),
                kept[at * len(own) + own.index(letter)],
            )
            for part, letter in enumerate(letters)
        ]))  # fmt: skip
    return _stack(back, sides)


def _product(back: Backward, dg: str, seen: str) -> str:
    return multiply_gradient(back, dg, seen, turn_a=True)


def _sum_of_products(back: Backward, dg: str, seen: str) -> str:
    return back.total(derive(back, "dg * seen", dg=dg, seen=seen), (0,))


def _cut_gates(back: Backward, node: Node, dg: str, letters: str) -> str:
    """Columns of some gates, in this order."""
    order = str(node.attributes.get("order") or ORDERS[node.op])
    width = back.shape(dg)[1] // len(order)
    places = [order.index(letter) * width for letter in letters]
    return _join(back, [cut_gradient(back, dg, 1, at, at + width) for at in places], 1)


def _check_differentiable(node: Node) -> None:
    """Refuses what the backward pass does not know."""
    if refused := [word for word in _REFUSED if node.attributes.get(word)]:
        raise UnsupportedError(f"the gradient of {node.op} with {', '.join(refused)}")


def _keep(back: Backward, node: Node) -> tuple[str, ...]:
    """Name what the node makes for its backward pass, as outputs behind its own."""
    letters, x, r = KEPT[node.op], back.shape(node.inputs[0]), back.shape(node.inputs[2])
    kept = list[str]()
    for _ in range(len(letters) * r[0]):
        kept.append(back.fresh(node.op))
        back.tensors[kept[-1]] = Tensor(kept[-1], (*x[:2], r[2]), back.dtype(node.inputs[0]))
    own = (*node.outputs, "", "")[:FIRST_KEPT]
    back.nodes[back.nodes.index(node)] = replace(node, outputs=(*own, *kept))
    return tuple(kept)


def _matrix(back: Backward, weights: str, direction: int) -> str:
    """Return the matrix of one direction."""
    part = cut_gradient(back, weights, 0, direction, direction + 1)
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


Function = Callable[[Array], Any]


@dataclass(frozen=True, slots=True)
class _Weights:
    """The weights of one direction; ``scales`` of 8-bit ones, None for real ones."""

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


def recurrent_reference(of: Evaluation) -> list[Array]:
    """Y, Y_h, and Y_c of an LSTM; then what is kept for the backward pass, if it is asked for."""
    node, known, nudge = of.node, of.known, of.nudge
    arrays = [known[name] if name else None for name in node.inputs] + [None] * 10
    (x, w, r), (lengths, *first) = arrays[:3], arrays[4:7]
    assert x is not None and w is not None and r is not None
    time_last, (count, _, hidden) = bool(node.attributes.get("layout", 0)), r.shape
    x = x.swapaxes(0, 1) if time_last else x
    steps, batch, _ = x.shape
    defaults = CELLS["lstm" if node.op == QUANTISED_LSTM else node.op].activations
    functions, own = _functions(chosen_activations(node, count, defaults)), len(defaults)
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
    outputs = [y.transpose(2, 0, 1, 3) if time_last else y, *results]
    if not kept:
        return outputs
    none = [np.zeros(0)] * (FIRST_KEPT - len(outputs))
    return [*outputs, *none, *(part.swapaxes(0, 1) if time_last else part for part in kept)]


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


def _functions(chosen: Sequence[tuple[str, *tuple[float, ...]]]) -> list[Function]:
    """Return functions with their parameters in NumPy."""
    return [partial(_apply_numpy, name, tuple(values)) for name, *values in chosen]


def _apply_numpy(name: str, parameters: Sequence[float], x: Array) -> Any:
    function = _OTHERS[name][1] if name in _OTHERS else FUNCTIONS[name].numpy
    assert function is not None
    return function(x, *parameters)


def _step(
    node: Node, f: Sequence[Function], weights: _Weights, ahead: Array, state: Sequence[Array]
) -> tuple[list[Array], dict[str, Array]]:
    """Compute the states behind one step, h, and c of an LSTM; and what KEPT has letters for."""
    bound, h, hidden = node.attributes.get("clip") or np.inf, state[0], state[0].shape[1]
    of_x, of_h = np.split(weights.bias, 2)
    before, after = ahead + of_x, weights.of_h(h) + of_h

    def clip(value: Array) -> Array:
        clipped: Array = np.clip(value, -bound, bound)
        return clipped

    if node.op == "rnn":
        new = f[0](clip(before + after))
        return [new], {"n": new, "h": h}
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


ROWS = (
    *(Operator(name, name.upper(), recurrent, gradient=recurrent_gradient,
               reference=recurrent_reference, stepwise=True)
      for name in CELLS),
)  # fmt: skip
