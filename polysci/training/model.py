"""Trained models: a list of layers, or an ONNX model whose initializers are parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from polysci.errors import SpecError
from polysci.frontends.layers.model import Layer, LayeredModel, build_model
from polysci.frontends.onnx import importer
from polysci.frontends.onnx.model_file import ModelSource, read
from polysci.graph.graph import Graph, Node
from polysci.graph.operators.lower import SUPPORTED
from polysci.numerics.arrays import Array

Source: TypeAlias = "ModelSource | Sequence[Layer]"
_NORMAL = "BatchNormalization"


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """The graph while the model learns, and that of predictions; both know the same parameters."""

    learning: LayeredModel
    predicting: LayeredModel

    @property
    def x(self) -> str:
        """The input that is no parameter."""
        return self.learning.graph.inputs[0].name

    @property
    def y(self) -> str:
        return self.learning.graph.outputs[0].name


def model_of(
    source: Source, shape: Sequence[int], *, seed: int = 0, external: bool = False,
    batch_statistics: bool = False,
) -> TrainedModel:  # fmt: skip
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
        model = _of_onnx(source, shape, external, batch_statistics)
    if not any(value.size for value in model.learning.parameters.values()):
        kinds = "layers" if isinstance(source, list | tuple) else "initializers"
        raise SpecError(f"model: none of its {kinds} has parameters to learn")
    return model


def _of_onnx(
    source: ModelSource, shape: Sequence[int], external: bool, batch_statistics: bool
) -> TrainedModel:
    """The model as it predicts, and as it learns; nothing is dropped in either."""
    proto = read(source, external=external)
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
    """Nodes of batch normalisation that learn by the batch, and their running statistics."""
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
            for made in (name, replaced[name]):
                tensors[made] = replace(graph.tensors[old], name=made)
        words = {key: value for key, value in node.attributes.items() if key != "training_mode"}
        own = replace(node, inputs=(*node.inputs[:3], *kept), outputs=node.outputs[:1])
        predicting.append(replace(own, attributes=words))
        outputs = (node.outputs[0], *(replaced[name] for name in kept))
        learning.append(replace(own, outputs=outputs, attributes={**words, "training_mode": 1}))
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
