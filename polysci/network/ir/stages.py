"""What a network computes, step by step: layers by primitives, loops, views, concatenations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType

import numpy as np

from polysci.network.ir.expressions import Expr, loads
from polysci.network.ir.graph import Array
from polysci.numerics.quantization import Scales
from polysci.ops.problem import Problem
from polysci.polyhedral.affine import Affine

CLAMP = tuple[float, float]
ROW_AXIS = 2  # of a tensor: the first axis behind images and channels


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: extents, element type (NumPy's name, or ``bf16``), axes from slowest to fastest."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    order: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return 2 if self.dtype == "bf16" else np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        return self.size * self.item

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements, of a buffer of its own."""
        strides, step = [0] * len(self.shape), 1
        for at in reversed(self.order or range(len(self.shape))):
            strides[at], step = step, step * self.shape[at]
        return tuple(strides)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


def channels_last(rank: int) -> tuple[int, ...]:
    """Axis 1 behind all others."""
    return (0, *range(2, rank), 1) if rank > 2 else tuple(range(rank))


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a tensor as a problem sees it: for each of its axes those of the tensor.

    Axes of the tensor that run on together count as one; none is an extent of 1. ``start`` and
    ``step`` are by axis of the tensor.
    """

    tensor: str
    axes: tuple[tuple[int, ...], ...]
    start: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    step: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class LayerStage:
    """A problem by a primitive: ``y = clamp(problem(x, w) + bias + residual)``.

    ``weights`` names a constant of the problem's ``w_shape``, or a tensor that is packed on every
    run; ``w`` are its strides in elements where they are not row-major. It runs once for each
    position in ``stack``; ``copies`` says, once tensors have places, how many elements x, weights
    and y lie behind the first ones there.
    """

    name: str
    problem: Problem
    x: Window
    y: Window
    weights: str
    bias: str = ""
    residual: str = ""
    clamp: CLAMP | None = None
    scales: Scales | None = None
    x_zero: int = 0
    w: tuple[int, ...] = ()
    stack: tuple[tuple[int, ...], ...] = ()
    copies: tuple[tuple[int, int, int], ...] = ()

    @property
    def output(self) -> str:
        return self.y.tensor

    @property
    def inputs(self) -> tuple[str, ...]:
        names = (self.x.tensor, self.weights, self.bias, self.residual)
        return tuple(dict.fromkeys(name for name in names if name))


@dataclass(frozen=True, slots=True)
class LoopStage:
    """A tensor defined element by element."""

    name: str
    output: str
    expr: Expr

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(load.tensor for load in loads(self.expr)))


@dataclass(frozen=True, slots=True)
class ViewStage:
    """Another name for elements of a tensor: ``output[i..] = source[index(i..)]``.

    Without ``index`` the elements in row-major order (a reshape).
    """

    name: str
    output: str
    source: str
    index: tuple[Affine, ...] | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source,)


@dataclass(frozen=True, slots=True)
class ConcatStage:
    """Tensors one behind the other along an axis."""

    name: str
    output: str
    parts: tuple[str, ...]
    axis: int

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.parts))


@dataclass(frozen=True, slots=True)
class RowFusion:
    """Layers and loops that run together, some rows at a time, each on what the one before made.

    What lies between them is kept for as many rows as the next one needs.
    """

    members: tuple[LayerStage | LoopStage, ...]

    @property
    def name(self) -> str:
        return " > ".join(member.name for member in self.members)

    @property
    def output(self) -> str:
        return self.members[-1].output

    @property
    def internal(self) -> tuple[str, ...]:
        """The tensors between them."""
        return tuple(member.output for member in self.members[:-1])

    @property
    def inputs(self) -> tuple[str, ...]:
        names = [name for member in self.members for name in member.inputs]
        return tuple(name for name in dict.fromkeys(names) if name not in self.internal)


Stage = LayerStage | LoopStage | ViewStage | ConcatStage | RowFusion


@dataclass(frozen=True, slots=True)
class Program:
    """Stages in an order that runs, and the tensors that they make and read.

    ``titles`` are the names by which callers know the outputs.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    titles: tuple[str, ...]
    stages: tuple[Stage, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, Array]

    def readers(self) -> dict[str, list[Stage]]:
        """Tensor -> the stages that read it, in order."""
        readers: dict[str, list[Stage]] = {}
        for stage in self.stages:
            for name in stage.inputs:
                readers.setdefault(name, []).append(stage)
        return readers

    def makers(self) -> dict[str, list[Stage]]:
        """Tensor -> the stages that write it; several, where each writes a part."""
        makers: dict[str, list[Stage]] = {}
        for stage in self.stages:
            makers.setdefault(stage.output, []).append(stage)
        return makers

    def layers(self) -> list[LayerStage]:
        """All layers, those inside row fusions included, in order."""
        layers: list[LayerStage] = []
        for stage in self.stages:
            members = stage.members if isinstance(stage, RowFusion) else (stage,)
            layers += [member for member in members if isinstance(member, LayerStage)]
        return layers

    def with_stages(self, stages: tuple[Stage, ...]) -> Program:
        """The program of other stages, without tensors that none of them knows."""
        used = {*self.inputs, *self.outputs}
        for stage in stages:
            used |= {stage.output, *stage.inputs}
            if isinstance(stage, RowFusion):
                used |= {*stage.internal}
        values = {name: value for name, value in self.values.items() if name in used}
        constants = {name: value for name, value in self.constants.items() if name in used}
        return replace(self, stages=stages, values=values, constants=constants)
