"""LSTM, GRU and RNN: one product for the inputs of all steps, then a loop over the steps.

What a step multiplies lies packed: its product reads the recurrent weights, and little else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from polysci.graph.gradients import recurrent as gradients
from polysci.graph.graph import Node
from polysci.graph.operators.activations import Activation, activations
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.convolution import Matrix, matrix_product
from polysci.graph.operators.steps import Steps, moving, slice_at, whole
from polysci.graph.operators.table import Operator
from polysci.graph.recurrences import FIRST_KEPT, KEPT, ORDERS
from polysci.graph.reference import recurrent as reference
from polysci.loop_ir.expressions import Expr, Load, Number, Reduce, apply, axis, combine, constant
from polysci.polyhedral.affine import Affine
from polysci.program.control import CarriedTensor
from polysci.program.stages import ConcatStage, ViewStage

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
        """What a step reads or writes, which ``share`` says, of a tensor with an axis of time."""
        time, shape = time_axis(self.node), self.build.shape(outer)
        index = (*slice_at(self.place, time, 3)[:2], combine({"i1": 1}, first))
        return share(outer, index, (shape[1 - time], columns or shape[2]))

    def y_part(self, y: str, share: Callable[..., str]) -> str:
        """The same of Y, which has an axis of directions behind that of steps."""
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
        value, columns = self.build.constant(name), self.build.shape(name)[2]
        if value is not None:
            part = np.ascontiguousarray(value[self.number, first : first + rows])
            return self.build.number(f"{name}.{self.number}", part)
        made = self.build.fresh(f"{name}.{self.number}", (rows, columns), self.build.dtype(name))
        index = (constant(self.number), combine({"i0": 1}, first), axis(1))
        self.build.stages.append(ViewStage(str(self.node), made, name, index))
        return made

    def bias(self, *halves: int) -> str:
        """The sum of halves of B: that of the inputs, 0, and that of what is carried, 1."""
        name, build = self.node.input(3), self.build
        if not name:
            return ""
        value, size = build.constant(name), build.shape(name)[1] // 2
        if value is not None:
            both = value[self.number].reshape(2, size)[list(halves)]
            return build.number(f"{name}.{self.number}", both.sum(axis=0, dtype=value.dtype))
        made = build.fresh(f"{name}.{self.number}", (size,), build.dtype(name))
        at = [Load(name, (constant(self.number), combine({"i0": 1}, n * size))) for n in halves]
        return build.define(self.node, at[0] if len(at) == 1 else apply("add", *at), made)

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

    def keep(self, held: CarriedTensor, value: Expr) -> None:
        """What is carried over: as it was where a sequence has ended."""
        if self.mask:
            at = Load(self.mask, (axis(0),))
            value = apply("select", at, value, whole(self.build, held.inner))
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
    both = apply("add", apply("mul", forgetting, old), apply("mul", entering, fresh))
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
    update = gate("z")
    stays, enters = apply("mul", update, old), apply("mul", apply("sub", 1.0, update), fresh)
    cell.keep(hidden, apply("add", enters, stays))


def rnn(cell: Direction, x: str, carried: Sequence[CarriedTensor]) -> None:
    """``h' = function(W x + R h + bias)``."""
    (hidden,) = carried
    cell.record("h", whole(cell.build, hidden.inner))
    summed = cell.recur(hidden.inner, 0, 1)
    both = apply("add", whole(cell.build, summed), whole(cell.build, x))
    cell.keep(hidden, cell.record("n", cell.functions[0](cell.clip(both))))


CELLS: Mapping[str, Cell] = MappingProxyType({
    "lstm": Cell(("Sigmoid", "Tanh", "Tanh"), (5, 6), lstm),
    "gru": Cell(("Sigmoid", "Tanh"), (5,), gru),
    "rnn": Cell(("Tanh",), (5,), rnn),
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
    carried = [_carried(direction, cell) for direction in directions]
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
    """By direction, where along the axis of time a step is; the other way if it ``returns``."""
    return [moving(count, backwards=back != returns) for back in _BACKWARDS[_direction(node)]]


def _direction(node: Node) -> str:
    return str(node.attributes.get("direction", "forward"))


def time_axis(node: Node) -> int:
    """Of x: steps are its first axis, or with ``layout`` its second."""
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


def _carried(direction: Direction, cell: Cell) -> list[CarriedTensor]:
    """What a direction carries over, beginning with inputs of the node or 0."""
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
    """By step and batch: 1 in a sequence, 0 behind its end; empty where all are as long."""
    known = build.constant(lengths) if lengths else None
    if not lengths or (known is not None and (known >= count).all()):
        return ""
    numbers = build.number(f"{lengths}.steps", np.arange(count, dtype=np.int32))
    left = apply("sub", Load(lengths, (axis(1),)), Load(numbers, (axis(0),)))
    made = build.fresh(f"{lengths}.mask", (count, build.shape(lengths)[0]), "int32")
    return build.define(node, apply("min", apply("max", left, 0.0), 1.0), made)


def _write(direction: Direction, hidden: CarriedTensor) -> None:
    """A step's part of Y, which has an axis of directions behind that of steps."""
    build, y = direction.build, direction.node.outputs[0]
    if not y:
        return
    slice_ = direction.y_part(y, direction.steps.write)
    value: Expr = whole(build, hidden.following)
    if direction.mask:
        value = apply("select", Load(direction.mask, (axis(0),)), value, 0.0)
    direction.steps.define(slice_, value)


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


ROWS = (
    *(Operator(name, name.upper(), recurrent, gradient=gradients.recurrent,
               reference=reference.recurrent)
      for name in CELLS),
)  # fmt: skip
