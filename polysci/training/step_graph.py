"""One step of training as a graph: loss, gradients, and what replaces parameters and state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from polysci.errors import SpecError
from polysci.graph.backward import Backward
from polysci.graph.builder import GraphBuilder
from polysci.graph.differentiate import add_gradients, dependents
from polysci.graph.formulas import derive
from polysci.graph.gradients.losses import LOSSES
from polysci.graph.gradients.optimizers import Optimizer, limit_norm
from polysci.graph.graph import Graph, Tensor
from polysci.numerics.arrays import Array
from polysci.training.model import TrainedModel

TARGET, RATE, STEP = "target", "lr", "step"


@dataclass(frozen=True, slots=True)
class StepGraph:
    """``graph``: of x, target, learning rate, parameters and state; its first output is the loss.

    All other outputs replace inputs. ``first`` are the first values of what is replaced.
    """

    graph: Graph
    first: Mapping[str, Array]


def with_loss(model: TrainedModel, loss: str) -> Graph:
    """The graph of the model with the input ``target`` and the loss as its first output.

    Raises SpecError for a loss that is none of LOSSES, and for names that it needs itself.
    """
    if loss not in LOSSES:
        raise SpecError(f"loss {loss!r:.80}: expected one of {', '.join(LOSSES)}")
    graph = model.learning.graph
    if taken := {TARGET, RATE, STEP} & {*graph.tensors}:
        raise SpecError(f"{sorted(taken)[0]!r}: training has a tensor of this name itself")
    shape = graph.tensors[model.y].shape
    target = Tensor(TARGET, shape)
    if loss == "cross_entropy":
        target = Tensor(TARGET, (shape[0], *shape[2:]), "int64")
    inputs = (graph.inputs[0], target, *graph.inputs[1:])
    known = replace(graph, inputs=inputs, tensors={**graph.tensors, TARGET: target})
    grown = GraphBuilder(known)
    made = LOSSES[loss](grown, model.y, TARGET)
    return grown.grown(inputs, [made, *(tensor.name for tensor in graph.outputs[1:])])


def build_step(
    model: TrainedModel, loss: str, optimizer: Optimizer, clip_norm: float | None = None
) -> StepGraph:
    """Forward pass, backward pass and update. Raises as ``with_loss`` and ``add_gradients`` do."""
    forward, parameters = with_loss(model, loss), [*model.learning.parameters]
    rate, step = Tensor(RATE, ()), Tensor(STEP, (), "int64")
    kept = {
        f"{name}.{word}": np.zeros_like(value)
        for name, value in model.learning.parameters.items()
        for word in optimizer.states
    }
    states = [Tensor(name, value.shape) for name, value in kept.items()]
    x, target, *rest = forward.inputs
    inputs = (x, target, rate, *rest, *states, step)
    tensors = {**forward.tensors, **{tensor.name: tensor for tensor in (rate, step, *states)}}
    whole = replace(forward, inputs=inputs, tensors=tensors)
    back = Backward(whole, wanted=dependents(whole, parameters))
    value = forward.outputs[0].name
    gradients = add_gradients(back, value, parameters)
    replaced = _updates(back, optimizer, gradients, clip_norm)
    replaced |= {new: old for old, new in model.learning.replaced.items()}
    graph = replace(back.grown(inputs, [value, *replaced]), in_place=replaced)
    first = {**model.learning.parameters, **model.learning.state, **kept}
    return StepGraph(graph, {**first, STEP: np.zeros((), np.int64)})


def _updates(
    back: Backward, optimizer: Optimizer, gradients: Mapping[str, str], clip_norm: float | None
) -> dict[str, str]:
    """Return parameters, the optimizer's states and the count, by the name that replaces each."""
    count = derive(back, "step + 1", step=STEP)
    factors = {**optimizer.factors(back, count), "lr": RATE}
    if clip_norm is not None:
        factors["clip"] = limit_norm(back, [*gradients.values()], clip_norm)
    replaced = {count: STEP}
    for name, gradient in gradients.items():
        states = [f"{name}.{word}" for word in optimizer.states]
        made: Sequence[str] = optimizer.update(back, name, gradient, states, factors)
        replaced |= dict(zip(made, (name, *states), strict=True))
    return replaced
