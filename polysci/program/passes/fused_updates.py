"""Gradients of weights that steps share: *fused* into the steps, or *diffused*, a product behind.

A diffused product reads again what all steps made. Fused, each step adds its part to the gradient
while what it made is hot (Georganas et al., "High-performance deep learning via a single building
block", 2019). The model decides, and not by the number of threads: it changes no bit of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

import numpy as np

from polysci.cost.networks import StageCosts
from polysci.loop_ir.expressions import Number, axis, combine
from polysci.numerics.affine import Affine
from polysci.ops.matmul import Matmul
from polysci.ops.problem import Problem
from polysci.program.control import STEP, CarriedTensor, StepView
from polysci.program.passes.row import Fusion
from polysci.program.stages import (
    LayerStage,
    LoopStage,
    Program,
    RepeatStage,
    Stage,
    Value,
    ViewStage,
    fresh_name,
)

AUTO: Final = "auto"
UPDATES: Final = (AUTO, "fused", "diffused")


@dataclass(frozen=True, slots=True)
class StepProduct:
    """A product of what all steps of ``stage`` made that these steps could sum themselves.

    A step makes ``rows`` of the matrix: columns from ``first`` on of the tensor ``stacked``, at
    ``place`` along its axis ``along``. ``problem`` is the product of these rows.
    """

    layer: LayerStage
    stage: RepeatStage
    stacked: str
    first: int
    along: int
    place: Affine
    rows: int

    @property
    def problem(self) -> Matmul:
        assert isinstance(self.layer.problem, Matmul)
        return self.layer.problem.with_(K=self.rows)

    @property
    def stacked_index(self) -> tuple[Affine, ...]:
        """The index of a step's rows in the tensor that steps made."""
        own = axis(0), combine({"i1": 1}, self.first)
        return (self.place, *own) if self.along == 0 else (own[0], self.place, own[1])

    @property
    def factor_index(self) -> tuple[Affine, ...]:
        """The index of the step's rows in the second factor, a matrix of the rows of all steps."""
        near, far = (1, self.rows) if self.along == 0 else (self.stage.count, 1)
        row = combine({STEP: far * self.place.coef(STEP), "i0": near}, far * self.place.const)
        return row, axis(1)


@dataclass(frozen=True, slots=True)
class UpdatePredictions:
    """Predicted seconds of both ways on one thread; ``predict`` gives those of a product.

    Diffused, a product finds its factors where their size puts them. Fused, every step reads and
    writes the whole gradient.
    """

    costs: StageCosts
    predict: Callable[[Problem], float]
    predicted: dict[str, float] = field(default_factory=dict)

    def diffused(self, product: StepProduct) -> float:
        """Seconds of one product behind the steps."""
        return self.seconds(product.layer.problem)

    def fused(self, product: StepProduct, others: Sequence[StepProduct]) -> float:
        """Seconds of all steps' parts, beside those of ``others``."""
        problem, weights = product.problem, [
            part.problem.w_shape for part in product.stage.members if isinstance(part, LayerStage)
        ]  # fmt: skip
        alone = sum(map(_bytes, (problem.x_shape, problem.w_shape, problem.y_shape)))
        together = sum(map(_bytes, (*weights, *(other.problem.y_shape for other in others))))
        seconds, gradient = self.seconds(problem), _bytes(problem.y_shape)
        return self.costs.fused_update_s(product.stage.count, seconds, gradient, alone, together)

    def seconds(self, problem: Problem) -> float:
        if problem.key not in self.predicted:
            self.predicted[problem.key] = self.predict(problem)
        return self.predicted[problem.key]


def _bytes(shape: Sequence[int]) -> int:
    return prod(shape) * np.dtype(np.float32).itemsize


def step_products(program: Program) -> list[StepProduct]:
    """The products that steps could sum."""
    makers = program.makers()
    layers = [stage for stage in program.stages if isinstance(stage, LayerStage)]
    return [product for layer in layers if (product := step_product(layer, program, makers))]


def fuse_updates(
    program: Program, update: str, predictions: UpdatePredictions, otherwise: Container[str] = ()
) -> tuple[Program, tuple[Fusion, ...]]:
    """The program with products inside steps, if ``update`` is fused, or auto and they gain there.

    With auto the tensors in ``otherwise`` go the other way.
    """
    products, chosen, considered = step_products(program), list[StepProduct](), list[Fusion]()
    for product in products:
        layer, steps = product.layer, product.stage
        refusal = "" if update == "fused" else "updates are diffused"
        if update == AUTO:
            beside = [other for other in products if other.stage is steps]
            times = predictions.diffused(product), predictions.fused(product, beside)
            behind, inside = (f"{seconds * 1e6:.0f} us" for seconds in times)
            fused = (times[1] < times[0]) != (layer.output in otherwise)
            refusal = "" if fused else f"predicted {inside} in steps, {behind} behind them"
        chosen += [product] * (not refusal)
        read = program.values[product.stacked].bytes
        considered.append(Fusion(layer.name, steps.name, layer.output, read, refusal))
    if not chosen:
        return program, tuple(considered)
    return _Steps(program, program.makers()).put(chosen), tuple(considered)


def step_product(
    layer: LayerStage, program: Program, makers: Mapping[str, list[Stage]]
) -> StepProduct | None:
    """Return how steps could sum a layer; None where they cannot."""
    problem, values = layer.problem, program.values
    if not isinstance(problem, Matmul) or replace(problem, dtype="f32") != Matmul(
        problem.M, problem.K, problem.N, transposed="a"
    ):
        return None
    others = layer.bias, layer.residual, layer.clamp, layer.stack
    if any(others) or values[layer.output].dtype != "float32" or not layer.w_axes:
        return None
    stacked, first = _columns_of(layer.x.tensor, program, makers)
    stage = _last_maker(stacked, makers)
    if not isinstance(stage, RepeatStage) or stage.breaks or len(makers[stacked]) > 1:
        return None
    places = {
        (at, index)
        for view in stage.writes if view.outer == stacked
        for at, index in enumerate(view.index) if index.coef(STEP)
    }  # fmt: skip
    if len(places) != 1 or len(values[layer.weights].shape) != 2:
        return None
    ((along, place),) = places
    shape, begin = values[stacked].shape, [it is stage for it in program.stages].index(True)
    ready = {name for it in program.stages[:begin] for name in it.outputs}
    *_, root = layer.weights, *(view.source for view in _views(layer.weights, makers))
    if along > 1 or shape[along] != stage.count or (root in makers and root not in ready):
        return None
    return StepProduct(layer, stage, stacked, first, along, place, shape[1 - along])


def _columns_of(name: str, program: Program, makers: Mapping[str, list[Stage]]) -> tuple[str, int]:
    """The tensor of three axes of which a matrix has some columns, and the first; else no name."""
    first, shape = 0, program.values[name].shape
    for view in _views(name, makers):
        outer = program.values[view.source].shape
        if view.index is None:
            whole = len(outer) == 3 and (outer[0] * outer[1], outer[2]) == shape
            return (view.source, first) if whole else ("", 0)
        if view.index != (axis(0), combine({"i1": 1}, view.index[-1].const)):
            break
        first, shape = first + view.index[1].const, outer
    return "", 0


def _last_maker(name: str, makers: Mapping[str, list[Stage]]) -> Stage | None:
    return next(reversed(makers.get(name, [])), None)


def _views(name: str, makers: Mapping[str, list[Stage]]) -> Iterator[ViewStage]:
    """The views that a tensor is, from the last to the first."""
    while isinstance(view := _last_maker(name, makers), ViewStage):
        yield view
        name = view.source


@dataclass(slots=True)
class _Steps:
    """Products on their way into steps; ``placed`` are stages that are in their place, by id."""

    program: Program
    makers: Mapping[str, list[Stage]]
    values: dict[str, Value] = field(init=False)
    stages: list[Stage] = field(default_factory=list)
    placed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.values = dict(self.program.values)

    def put(self, products: list[StepProduct]) -> Program:
        """The program with products in their steps."""
        self.placed |= {id(product.layer) for product in products}
        for stage in self.program.stages:
            own = [product for product in products if product.stage is stage]
            for product in own:
                for view in reversed([*_views(product.layer.weights, self.makers)]):
                    self.add(view)
                total = product.layer.output
                self.stages.append(LoopStage(f"{stage.name}: {total}", total, Number(0.0)))
            self.add(stage, own)
        return replace(self.program, values=self.values).with_stages(tuple(self.stages))

    def add(self, stage: Stage, products: list[StepProduct] | None = None) -> None:
        """Put a stage in its place, once."""
        if id(stage) in self.placed:
            return
        self.placed.add(id(stage))
        for product in products or ():
            assert isinstance(stage, RepeatStage)
            stage = self.with_product(stage, product)
        self.stages.append(stage)

    def with_product(self, stage: RepeatStage, product: StepProduct) -> RepeatStage:
        """Steps that add their part of a product to what they carry over."""
        layer, problem = product.layer, product.problem
        total = layer.output
        gradients, seen = (
            self.fresh(f"{name}.slice", name, (problem.K, columns))
            for name, columns in ((product.stacked, problem.M), (layer.weights, problem.N))
        )
        inner, following = (
            self.fresh(f"{total}.{word}", total, (problem.M, problem.N)) for word in ("now", "next")
        )
        part = replace(
            layer, problem=problem, x=replace(layer.x, tensor=gradients), weights=seen,
            y=replace(layer.y, tensor=following), residual=inner,
        )  # fmt: skip
        views = (
            StepView(gradients, product.stacked, product.stacked_index),
            StepView(seen, layer.weights, product.factor_index),
        )
        return replace(
            stage, members=(*stage.members, part), reads=(*stage.reads, *views),
            carried=(*stage.carried, CarriedTensor(inner, following, total)),
        )  # fmt: skip

    def fresh(self, base: str, like: str, shape: tuple[int, ...]) -> str:
        """A new tensor of the type of another one."""
        name = fresh_name(base, self.values)
        self.values[name] = replace(self.values[like], name=name, shape=shape)
        return name
