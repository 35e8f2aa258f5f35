"""The layers of an ONNX model that can be quantised, and the model with some of them so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from polysci.errors import SpecError
from polysci.frontends.onnx.model_file import DOMAINS, nodes_below, onnx_module, opset_of
from polysci.numerics.arrays import Array
from polysci.numerics.dtypes import to_bf16
from polysci.quantize.ranges import LEAST, LinearRange

if TYPE_CHECKING:
    import onnx

OPSET: Final = 13  # the first one with a scale a channel
MOST: Final = 127  # the largest weight
OPERATORS: Final = ("Conv", "MatMul", "Gemm")


@dataclass(frozen=True, slots=True)
class WeightedLayer:
    """A node with constant weights: its place among the nodes, and the weights' channels."""

    at: int
    name: str
    op: str
    x: str
    weights: str
    y: str
    bias: str
    axis: int  # of the weights, along which each channel has a scale


def with_opset(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """Return a copy of a model that follows opset 13 or later. Raises SpecError where none can."""
    onnx = onnx_module()
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if opset_of(model, where) < OPSET:
        try:
            copy = onnx.version_converter.convert_version(copy, OPSET)
        except Exception as error:  # of its C++ code
            text = f"{error}".splitlines()[0]
            raise SpecError(f"{where}: cannot be converted to opset {OPSET}: {text:.200}") from None
    _without_constants(copy.graph)
    return copy


def _without_constants(graph: Any) -> None:
    """Make the tensors of Constant nodes initializers."""
    nodes = []
    for node in graph.node:
        value = next((part for part in node.attribute if part.name == "value"), None)
        if node.op_type != "Constant" or node.domain not in DOMAINS or value is None:
            nodes.append(node)
            continue
        tensor = value.t
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
    del graph.node[:]
    graph.node.extend(nodes)


def constants_of(model: onnx.ModelProto) -> dict[str, Any]:
    """Return the initializers that no caller can replace, by name."""
    inputs = {value.name for value in model.graph.input}
    return {part.name: part for part in model.graph.initializer if part.name not in inputs}


def layers_of(model: onnx.ModelProto) -> list[WeightedLayer]:
    """Return the layers, in order: Conv, MatMul and Gemm by constant weights of f32."""
    constants, real = constants_of(model), onnx_module().TensorProto.FLOAT
    layers = []
    for at, node in enumerate(model.graph.node):
        if node.op_type not in OPERATORS or node.domain not in DOMAINS or len(node.input) < 2:
            continue
        x, name = node.input[:2]
        weights = constants.get(name)
        if weights is None or x in constants or weights.data_type != real:
            continue
        words = {
            part.name: onnx_module().helper.get_attribute_value(part) for part in node.attribute
        }
        plain = words.get("alpha", 1.0) == words.get("beta", 1.0) == 1 and not words.get("transA")
        rank = len(weights.dims)
        if not plain or rank < 2 or (node.op_type == "MatMul" and rank > 2):
            continue
        first = node.op_type == "Conv" or bool(words.get("transB"))
        bias = node.input[2] if len(node.input) > 2 else ""
        title = node.name or node.output[0]
        layers.append(
            WeightedLayer(at, title, node.op_type, x, name, node.output[0], bias, 0 if first else 1)
        )
    return layers


def narrow_weights(values: Array, axis: int) -> tuple[Array, Array]:
    """Return signed weights of 8 bits and a scale for each place along an axis."""
    others = tuple(at for at in range(values.ndim) if at != axis)
    scale = (np.abs(values).max(others) / MOST).astype(np.float32)
    scale[scale < LEAST] = 1
    around = [-1 if at == axis else 1 for at in range(values.ndim)]
    numbers = np.rint(values / scale.reshape(around)).clip(-MOST, MOST)
    return numbers.astype(np.int8), scale


@dataclass(slots=True)
class Rewriter:
    """A model on its way to narrow layers; tensors and weights are rounded once for all readers."""

    model: onnx.ModelProto
    ranges: Mapping[str, LinearRange]
    nodes: list[Any] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)  # key of a rounded tensor -> its name
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.taken = {name for node in graph.node for name in (*node.input, *node.output)}
        self.taken |= {part.name for part in (*graph.input, *graph.initializer)}

    def fresh(self, base: str) -> str:
        name, number = base, 1
        while name in self.taken:
            name, number = f"{base}_{number}", number + 1
        self.taken.add(name)
        return name

    def constant(self, base: str, value: Array) -> str:
        name = self.fresh(base)
        self.model.graph.initializer.append(onnx_module().numpy_helper.from_array(value, name))
        return name

    def add(self, op: str, inputs: Iterable[str], base: str, **attributes: Any) -> str:
        name = self.fresh(base)
        node = onnx_module().helper.make_node(op, [*inputs], [name], name, **attributes)
        self.nodes.append(node)
        return name

    def array(self, name: str) -> Array:
        return np.asarray(onnx_module().numpy_helper.to_array(constants_of(self.model)[name]))

    def round_tensor(self, x: str) -> str:
        """Return a tensor rounded to 8 bits and back."""
        if x not in self.made:
            bounds = self.ranges[x]
            scale = self.constant(f"{x}_scale", np.asarray(bounds.scale))
            zero = self.constant(f"{x}_zero", np.asarray(bounds.zero))
            numbers = self.add("QuantizeLinear", [x, scale, zero], f"{x}_quantized")
            real = [numbers, scale, zero]
            self.made[x] = self.add("DequantizeLinear", real, f"{x}_dequantized")
        return self.made[x]

    def round_weights(self, layer: WeightedLayer) -> tuple[str, Array]:
        """Return weights rounded to 8 bits and back, and their scales."""
        key = f"{layer.weights} {layer.axis}"
        numbers, scales = narrow_weights(self.array(layer.weights), layer.axis)
        if key not in self.made:
            base = layer.weights
            zero = np.zeros(scales.shape, np.int8)
            parts = {"quantized": numbers, "scale": scales, "zero": zero}
            names = [self.constant(f"{base}_{word}", part) for word, part in parts.items()]
            self.made[key] = self.add("DequantizeLinear", names, f"{base}_dequantized",
                                      axis=layer.axis)  # fmt: skip
        return self.made[key], scales

    def round_bias(self, layer: WeightedLayer, scales: Array) -> str:
        """Return a bias in whole steps of the sums and back; as it is where 32 bits lack it."""
        value = self.array(layer.bias) if layer.bias in constants_of(self.model) else None
        if value is None or value.shape != scales.shape:
            return layer.bias
        steps = scales.astype(np.float64) * float(self.ranges[layer.x].scale)
        numbers = np.rint(value / steps)
        if np.abs(numbers).max(initial=0) > np.iinfo(np.int32).max:
            return layer.bias
        parts = {"quantized": numbers.astype(np.int32), "scale": steps.astype(np.float32)}
        names = [self.constant(f"{layer.name}_bias_{word}", part) for word, part in parts.items()]
        return self.add("DequantizeLinear", names, f"{layer.name}_bias_dequantized", axis=0)

    def inputs(self, layer: WeightedLayer, dtype: str) -> list[str]:
        """Return the inputs of a layer in ``int8`` or ``bf16``."""
        others = [layer.bias] if layer.bias else []
        if dtype == "bf16":
            return [layer.x, self.brain_weights(layer.weights), *others]
        weights, scales = self.round_weights(layer)
        bias = [self.round_bias(layer, scales)] if layer.bias else []
        return [self.round_tensor(layer.x), weights, *bias]

    def brain_weights(self, name: str) -> str:
        """Return weights that are stored as bf16; layers read them as f32."""
        key = f"{name} bf16"
        if key not in self.made:
            onnx = onnx_module()
            bits = to_bf16(self.array(name))
            brain = self.fresh(f"{name}_bf16")
            kind = onnx.TensorProto.BFLOAT16
            tensor = onnx.helper.make_tensor(brain, kind, bits.shape, bits.tobytes(), raw=True)
            self.model.graph.initializer.append(tensor)
            self.made[key] = self.add("Cast", [brain], f"{name}_f32", to=onnx.TensorProto.FLOAT)
        return self.made[key]


def quantise_layers(
    model: onnx.ModelProto, ranges: Mapping[str, LinearRange], dtypes: Mapping[str, str]
) -> onnx.ModelProto:
    """Return the model with layers, by the name of their result, in ``int8`` or ``bf16``."""
    onnx = onnx_module()
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    rewriter, layers = Rewriter(copy, ranges), {layer.at: layer for layer in layers_of(model)}
    for at, node in enumerate(model.graph.node):
        layer = layers.get(at)
        new = onnx.NodeProto()
        new.CopyFrom(node)
        if layer and dtypes.get(layer.y, "f32") != "f32":
            new.input[:] = rewriter.inputs(layer, dtypes[layer.y])
        rewriter.nodes.append(new)
    del copy.graph.node[:]
    copy.graph.node.extend(rewriter.nodes)
    _drop_unused(copy.graph)
    return copy


def with_losses(
    model: onnx.ModelProto, ranges: Mapping[str, LinearRange], dtypes: Iterable[str]
) -> tuple[onnx.ModelProto, dict[tuple[str, str], str]]:
    """Return the model with the squares of what each layer by itself loses as more outputs.

    The names are by the layer's result and type; type ``f32`` is the sum of squares of the result.
    """
    onnx = onnx_module()
    copy, names = onnx.ModelProto(), dict[tuple[str, str], str]()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    rewriter, layers = Rewriter(copy, ranges), {layer.at: layer for layer in layers_of(model)}
    for at, node in enumerate(model.graph.node):
        rewriter.nodes.append(node)
        if not (layer := layers.get(at)):
            continue
        squares = rewriter.add("ReduceSumSquare", [layer.y], f"{layer.y}_squares", keepdims=0)
        names[layer.y, "f32"] = squares
        for dtype in dtypes:
            new = onnx.NodeProto()
            new.CopyFrom(node)
            new.input[:] = rewriter.inputs(layer, dtype)
            new.output[:] = [rewriter.fresh(f"{layer.y}_{dtype}")]
            new.name = new.output[0]
            rewriter.nodes.append(new)
            off = rewriter.add("Sub", [new.output[0], layer.y], f"{layer.y}_{dtype}_off")
            loss = rewriter.add("ReduceSumSquare", [off], f"{layer.y}_{dtype}_loss", keepdims=0)
            names[layer.y, dtype] = loss
    del copy.graph.node[:]
    copy.graph.node.extend(rewriter.nodes)
    _add_outputs(copy.graph, names.values(), ())
    return copy, names


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Return the model with other tensors of f32 as its outputs."""
    copy = onnx_module().ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    _add_outputs(copy.graph, names)
    return copy


def _add_outputs(graph: Any, names: Iterable[str], shape: tuple[int, ...] | None = None) -> None:
    helper, real = onnx_module().helper, onnx_module().TensorProto.FLOAT
    graph.output.extend(helper.make_tensor_value_info(name, real, shape) for name in names)


def _drop_unused(graph: Any) -> None:
    """Leave out initializers that no node reads."""
    read = {name for node in nodes_below(graph.node) for name in node.input}
    read |= {value.name for value in graph.output}
    kept = [part for part in graph.initializer if part.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
