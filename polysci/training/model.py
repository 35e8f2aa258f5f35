"""What is trained: a list of layers, or an ONNX model whose initializers become parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from polysci.errors import SpecError
from polysci.network.frontends.layers.model import Layer, LayeredModel, build_model
from polysci.network.frontends.onnx import importer
from polysci.network.frontends.onnx.model_file import ModelSource, read
from polysci.network.ir.graph import Graph
from polysci.network.operators.lower import SUPPORTED

Source: TypeAlias = "ModelSource | Sequence[Layer]"
# Operators whose constants of such positions training leaves alone: running statistics.
_FIXED: Mapping[str, tuple[int, ...]] = MappingProxyType({"BatchNormalization": (3, 4)})


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
    source: Source, shape: Sequence[int], *, seed: int = 0, external: bool = False
) -> TrainedModel:
    """Of a list of layers on an input of ``shape``, or of an ONNX model of one input and output.

    Raises SpecError for another model, TypeError for what is no layer.
    """
    if isinstance(source, list | tuple):
        learning, predicting = (
            build_model(source, shape, training=training, seed=seed) for training in (True, False)
        )
        return TrainedModel(learning, predicting)
    model = _of_onnx(source, shape, external)
    return TrainedModel(model, model)


def _of_onnx(source: ModelSource, shape: Sequence[int], external: bool) -> LayeredModel:
    """The model as it predicts: normalisation by its statistics, and nothing dropped."""
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
    fixed = {
        node.inputs[at]
        for node in graph.nodes
        for at in _FIXED.get(node.op, ())
        if at < len(node.inputs)
    }
    parameters = {
        name: value
        for name, value in graph.constants.items()
        if name in names - fixed and value.dtype == "float32" and value.size
    }
    return LayeredModel(_with_inputs(graph, parameters), parameters, {}, {})


def _with_inputs(graph: Graph, parameters: Mapping[str, Any]) -> Graph:
    """The graph with constants as inputs."""
    constants = {name: v for name, v in graph.constants.items() if name not in parameters}
    inputs = (*graph.inputs, *(graph.tensors[name] for name in parameters))
    return replace(graph, inputs=inputs, constants=constants)
