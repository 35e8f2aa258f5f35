"""Trained models, and a step of training as a graph: loss, gradients and updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from polysci.errors import SpecError
from polysci.frontends.layers.model import Layer, LayeredModel, build_model
from polysci.frontends.onnx import importer
from polysci.frontends.onnx.model_file import ModelSource, read
from polysci.graph.builder import Backward, GraphBuilder
from polysci.graph.differentiate import add_gradients, dependents
from polysci.graph.formulas import derive
from polysci.graph.graph import Graph, Node, Tensor
from polysci.graph.losses import LOSSES
from polysci.graph.operators.lower import SUPPORTED
from polysci.graph.optimizers import Optimizer, limit_norm
from polysci.numerics.arrays import Array

Source: TypeAlias = "ModelSource | Sequence[Layer]"
_NORMAL = "batch_norm"


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """The graph while the model learns, and that of predictions; both know the same parameters."""

    learning: LayeredModel
    predicting: LayeredModel

    @property
    def x(self) -> str:
        """Return the input that is no parameter."""
        return self.learning.graph.inputs[0].name

    @property
    def y(self) -> str:
        return self.learning.graph.outputs[0].name


def model_of(
    source: Source, shape: Sequence[int], *, seed: int = 0, batch_statistics: bool = False
) -> TrainedModel:
    """Return the model of a list of layers, or of an ONNX model of one input and output.

    ``batch_statistics``: batch normalisation of an ONNX model that predicts learns by those of the
    batch, and replaces those that the model holds by their running means; layers always do.

    Raises SpecError for another model, and for one without parameters, TypeError for what is no
    layer.
    """
    if isinstance(source, list | tuple):
        if not source:
            raise SpecError("model: expected at least one layer, got an empty list")
        learning, predicting = (
            build_model(source, shape, training=training, seed=seed) for training in (True, False)
        )
        model = TrainedModel(learning, predicting)
    else:
        model = _of_onnx(source, shape, batch_statistics)
    if not any(value.size for value in model.learning.parameters.values()):
        kinds = "layers" if isinstance(source, list | tuple) else "initializers"
        raise SpecError(f"model: none of its {kinds} has parameters to learn")
    return model


def _of_onnx(source: ModelSource, shape: Sequence[int], batch_statistics: bool) -> TrainedModel:
    """Return the model as it predicts, and as it learns; nothing is dropped in either."""
    proto = read(source)
    names = {tensor.name for tensor in proto.graph.initializer}
    inputs = [tensor for tensor in proto.graph.input if tensor.name not in names]
    if len(inputs) != 1 or len(proto.graph.output) != 1:
        raise SpecError(
            f"a model of {len(inputs)} inputs and {len(proto.graph.output)} outputs: "
            "training takes one of each"
        )
    dims: dict[str, Any] = {
        f"{inputs[0].name}.{at}": size
        for at, size in enumerate(shape)
        if not inputs[0].type.tensor_type.shape.dim[at].HasField("dim_value")
    }
    graph = importer.graph_of(proto, dims, supported=SUPPORTED)
    if graph.inputs[0].shape != tuple(shape):
        raise SpecError(f"shape {list(shape)}: the model takes {list(graph.inputs[0].shape)}")
    fixed = {name for node in graph.nodes if node.op == _NORMAL for name in node.inputs[3:5]}
    parameters = {
        name: value
        for name, value in graph.constants.items()
        if name in names - fixed and value.dtype == "float32" and value.size
    }
    return _with_statistics(graph, parameters, batch_statistics)


def _with_statistics(
    graph: Graph, parameters: Mapping[str, Array], batch_statistics: bool
) -> TrainedModel:
    """Let batch normalisation learn by the batch, and keep its running statistics."""
    learning, predicting = list[Node](), list[Node]()
    tensors, state, replaced = dict(graph.tensors), dict[str, Array](), dict[str, str]()
    for node in graph.nodes:
        trains = batch_statistics or bool(node.attributes.get("training_mode"))
        if node.op != _NORMAL or not trains:
            learning.append(node)
            predicting.append(node)
            continue
        kept = [f"{name}.{node.outputs[0]}" for name in node.inputs[3:5]]
        for name, old in zip(kept, node.inputs[3:5], strict=True):
            if old not in graph.constants:
                raise SpecError(f"{node}: {old} is computed: its running statistics are constants")
            state[name], replaced[name] = graph.constants[old], f"{name}.next"
            for tensor in (name, replaced[name]):
                tensors[tensor] = replace(graph.tensors[old], name=tensor)
        attributes = {key: x for key, x in node.attributes.items() if key != "training_mode"}
        plain = replace(
            node, inputs=(*node.inputs[:3], *kept), outputs=node.outputs[:1], attributes=attributes
        )
        predicting.append(plain)
        outputs = (node.outputs[0], *(replaced[name] for name in kept))
        attributes = {**attributes, "training_mode": 1}
        learning.append(replace(plain, outputs=outputs, attributes=attributes))
    values = {**parameters, **state}
    inputs = (*graph.inputs, *(tensors[name] for name in values))
    constants = {name: value for name, value in graph.constants.items() if name not in parameters}
    both = [
        LayeredModel(
            replace(
                graph, nodes=tuple(nodes), tensors=tensors, inputs=inputs, constants=constants,
                outputs=(*graph.outputs, *(tensors[name] for name in follows.values())),
            ),
            parameters, state, follows,
        )
        for nodes, follows in ((learning, replaced), (predicting, dict[str, str]()))
    ]  # fmt: skip
    return TrainedModel(*both)


TARGET, RATE, STEP = "target", "lr", "step"


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Graph of x, target, learning rate, parameters and state; its first output is the loss.

    All other outputs replace inputs. ``first`` are the first values of what is replaced. The first
    ``forward`` nodes are those of the forward pass and the loss.
    """

    graph: Graph
    first: Mapping[str, Array]
    forward: int


def with_loss(model: TrainedModel, loss: str) -> Graph:
    """Return the graph of the model with the input ``target`` and the loss as its first output.

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
    value = LOSSES[loss](grown, model.y, TARGET)
    return grown.to_graph(inputs, [value, *(tensor.name for tensor in graph.outputs[1:])])


def build_step(
    model: TrainedModel, loss: str, optimizer: Optimizer, clip_norm: float | None = None
) -> StepGraph:
    """Join forward pass, backward pass and update. Raises as what it calls does."""
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
    graph = replace(back.to_graph(inputs, [value, *replaced]), in_place=replaced)
    first = {**model.learning.parameters, **model.learning.state, **kept}
    return StepGraph(graph, {**first, STEP: np.zeros((), np.int64)}, len(forward.nodes))


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
        updated: Sequence[str] = optimizer.update(back, name, gradient, states, factors)
        replaced |= dict(zip(updated, (name, *states), strict=True))
    return replaced
