"""The program that functions of operators build: names, shapes, stages, and repeated stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from polysci.errors import UnsupportedError
from polysci.graph.builder import FLOATS
from polysci.graph.graph import ConstantValues, Graph, Node
from polysci.graph.refusals import Refusal
from polysci.loop_ir.expressions import Expr, Load, Number, apply, axis, combine, constant
from polysci.loop_ir.functions import kind_of_type
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import Array
from polysci.numerics.formulas import evaluate, is_number, parse
from polysci.numerics.scalar_functions import template
from polysci.program.control import STEP, CarriedTensor, StepView
from polysci.program.stages import LoopStage, RepeatStage, Stage, Value

NUMBERS = (*FLOATS, *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "bool")
# What inputs and outputs hold; of 16 bits casts alone read and make them, and products read bf16.
STORED = (*NUMBERS, "float16", "bf16")


@dataclass(slots=True)
class Builder(ConstantValues):
    """A graph on its way to stages."""

    graph: Graph
    values: dict[str, Value] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, tensor in self.graph.tensors.items():
            self.values[name] = Value(name, tensor.shape, tensor.dtype)
        self.constants |= self.graph.constants

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    def dtype(self, name: str) -> str:
        return self.values[name].dtype

    def refuse(self, reason: str, *needs: str) -> NoReturn:
        """This node cannot be computed; constant ``needs`` would change that."""
        raise Refusal(reason, *needs)

    def known(self, node: Node, position: int, what: str) -> Array | None:
        """A constant input, None where it is left out; refuses one that is computed."""
        name = node.input(position)
        if not name:
            return None
        value = self.constant_value(name)
        if value is None:
            self.refuse(f"{what} is not constant", name)
        return value

    def fresh(
        self, base: str, shape: Sequence[int], dtype: str = "float32", order: tuple[int, ...] = ()
    ) -> str:
        """A new tensor."""
        name, number = base, 1
        while name in self.values:
            name, number = f"{base}.{number}", number + 1
        self.values[name] = Value(name, tuple(shape), dtype, order)
        return name

    def number(self, base: str, value: Array) -> str:
        """A new constant."""
        name = self.fresh(base, value.shape, value.dtype.name)
        self.constants[name] = value
        return name

    def define(self, node: Node, expr: Expr, output: str | None = None) -> str:
        """A tensor, by default the node's first output, element by element."""
        name = output or node.outputs[0]
        self.stages.append(LoopStage(str(node), name, expr))
        return name

    def add(
        self, node: Node, base: str, expr: Expr, shape: Sequence[int], dtype: str = "float32"
    ) -> str:
        """Define a new tensor, element by element."""
        return self.define(node, expr, self.fresh(base, shape, dtype))

    def load(self, name: str, like: str) -> Expr:
        """An element of ``name`` beside one of ``like``, to whose shape it broadcasts.

        A constant of one element is the number itself.
        """
        value = self.constants.get(name)
        if value is not None and value.size == 1 and _fits_number(value):
            return Number(float(value.reshape(-1)[0]))
        shape, rank = self.shape(name), len(self.shape(like))
        skip = rank - len(shape)
        index = (axis(skip + at) if size > 1 else constant(0) for at, size in enumerate(shape))
        return Load(name, tuple(index))

    def along(self, name: str, number: int) -> Load:
        """An element of a vector that runs along an axis."""
        return Load(name, (axis(number) if self.shape(name)[0] > 1 else constant(0),))

    def check_numbers(self, node: Node, *names: str) -> None:
        """Refuses element types that no loop computes with."""
        for name in names:
            if name and self.dtype(name) not in NUMBERS:
                self.refuse(f"elements of {self.dtype(name)}")

    def check_function(self, function: str, *names: str) -> None:
        """Refuses element types whose kind of number lacks a function."""
        for name in names:
            dtype = self.dtype(name)
            if dtype not in NUMBERS or template(function, kind_of_type(dtype)) is None:
                self.refuse(f"elements of {dtype}")

    def check_floats(self, node: Node, *names: str) -> None:
        """Refuses all but real numbers."""
        for name in names:
            if name and self.dtype(name) not in FLOATS:
                self.refuse(f"elements of {self.dtype(name)}")


def _fits_number(value: Array) -> bool:
    """Return whether the only element is a number, and one that a double holds."""
    if value.dtype.name not in NUMBERS:
        return False
    return value.dtype.kind in "bf" or abs(int(value.reshape(-1)[0])) <= 1 << 53


def attribute_axes(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front; none may come twice."""
    axes = tuple(int(value) + rank * (value < 0) for value in values)
    if any(not 0 <= number < rank for number in axes):
        raise UnsupportedError(f"axes {tuple(values)} of a tensor of {rank} axes")
    if len(set(axes)) < len(axes):
        raise UnsupportedError(f"axes {tuple(values)} name an axis twice")
    return axes


def formula(text: str, **terms: Expr | float) -> Expr:
    """Return a formula of expressions and numbers: ``formula("(x - mean) * s", x=.., ...)``."""
    value = evaluate(parse(text), dict(terms), lambda function, parts: apply(function, *parts))
    return Number(value) if is_number(value) else value


def step_index(count: int, *, backwards: bool = False) -> Affine:
    """The number of the step, or that counted from the end."""
    return combine({STEP: -1}, count - 1) if backwards else combine({STEP: 1})


def slice_at(place: Affine, at: int, rank: int) -> tuple[Affine, ...]:
    """The index of a slice of a tensor of ``rank`` axes: all of it at one place of axis ``at``."""
    return (*(axis(n) for n in range(at)), place, *(axis(n) for n in range(at, rank - 1)))


@dataclass(slots=True)
class Steps:
    """A RepeatStage on its way: its stages are made between ``begin`` and ``end``."""

    build: Builder
    name: str
    count: int
    reads: list[StepView] = field(default_factory=list, kw_only=True)
    writes: list[StepView] = field(default_factory=list, kw_only=True)
    carried: list[CarriedTensor] = field(default_factory=list, kw_only=True)
    around: list[Stage] = field(default_factory=list, kw_only=True)

    def begin(self) -> None:
        """Stages from here on are those of a step."""
        self.around, self.build.stages = self.build.stages, []

    def end(self) -> None:
        """The stages since ``begin`` are repeated."""
        members, self.build.stages = self.build.stages, self.around
        self.repeat(members)

    def repeat(self, members: Sequence[Stage]) -> None:
        """A step consists of these stages."""
        self.build.stages.append(RepeatStage(
            self.name, self.count, tuple(members), tuple(self.reads), tuple(self.writes),
            tuple(self.carried),
        ))  # fmt: skip

    def read(self, outer: str, index: tuple[Affine, ...], shape: Sequence[int]) -> str:
        """A slice of a tensor as a step knows it."""
        inner = self.build.fresh(f"{outer}.slice", shape, self.build.dtype(outer))
        self.reads.append(StepView(inner, outer, index))
        return inner

    def write(self, outer: str, index: tuple[Affine, ...], shape: Sequence[int]) -> str:
        """A slice that a step has to make."""
        inner = self.build.fresh(f"{outer}.slice", shape, self.build.dtype(outer))
        self.writes.append(StepView(inner, outer, index))
        return inner

    def carry(self, base: str, first: Expr, shape: Sequence[int], dtype: str) -> CarriedTensor:
        """A tensor that is ``first`` before all steps; to be called before ``begin``."""
        build = self.build
        state = build.fresh(f"{base}.state", shape, dtype)
        build.stages.append(LoopStage(f"{self.name}: {base}", state, first))
        inner, following = (build.fresh(f"{base}.{word}", shape, dtype) for word in ("now", "next"))
        self.carried.append(CarriedTensor(inner, following, state))
        return self.carried[-1]

    def define(self, output: str, expr: Expr) -> str:
        """A tensor of a step, element by element."""
        self.build.stages.append(LoopStage(self.name, output, expr))
        return output


def whole(build: Builder, name: str) -> Load:
    """Every element of a tensor, in its place."""
    return Load(name, tuple(axis(at) for at in range(len(build.shape(name)))))
