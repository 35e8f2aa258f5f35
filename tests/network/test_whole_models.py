"""Transformers, ConvNeXt, a window-shifting block, a tagger and a text recogniser, as exported."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.frontends.onnx import reference
from tests.support.networks import network_of, read

WIDE = 16  # elements of a token
HEADS = 2


@dataclass
class Writer:
    """A model under construction; weights have a variance that keeps tensors near 1."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def port(self, name: str, shape: Sequence[int], kind: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def weight(self, *shape: int, near: float = 0.0) -> str:
        random = np.random.default_rng(len(self.weights))
        scale = 1 / sqrt(shape[0] if len(shape) == 2 else max(1, int(np.prod(shape[1:]))))
        return self.known((near + scale * random.normal(size=shape)).astype(np.float32))

    def known(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def list(self, *values: int) -> str:
        return self.known(np.array(values, np.int64))

    def op(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """The name of a node's first output; all are that name and a number behind it."""
        name = f"t{len(self.nodes)}"
        names = [name, *(f"{name}.{at}" for at in range(1, outputs))]
        self.nodes.append(helper.make_node(op, inputs, names, f"{op} {name}", **attributes))
        return name

    def linear(self, x: str, given: int, made: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(given, made)), self.weight(made))

    def norm(self, x: str, size: int = WIDE) -> str:
        return self.op("LayerNormalization", x, self.weight(size, near=1), self.weight(size))

    def heads(self, x: str, length: int) -> str:
        split = self.op("Reshape", x, self.list(-1, length, HEADS, WIDE // HEADS))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])

    def attention(self, x: str, length: int, added: str = "") -> str:
        q, k, v = (self.heads(self.linear(x, WIDE, WIDE), length) for _ in range(3))
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        scale = self.known(np.array(sqrt(HEADS / WIDE), np.float32))
        scores = self.op("Mul", scores, scale)
        scores = self.op("Add", scores, added) if added else scores
        y = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        y = self.op("Transpose", y, perm=[0, 2, 1, 3])
        return self.linear(self.op("Reshape", y, self.list(-1, length, WIDE)), WIDE, WIDE)

    def gelu(self, x: str) -> str:
        """As exporters of older opsets write it."""
        half, one, root = (self.known(np.array(v, np.float32)) for v in (0.5, 1.0, sqrt(2)))
        erf = self.op("Add", self.op("Erf", self.op("Div", x, root)), one)
        return self.op("Mul", self.op("Mul", x, erf), half)

    def perceptron(self, x: str, size: int = WIDE) -> str:
        return self.linear(self.gelu(self.linear(x, size, 4 * size)), 4 * size, size)

    def block(self, x: str, length: int, added: str = "") -> str:
        x = self.op("Add", x, self.attention(self.norm(x), length, added))
        return self.op("Add", x, self.perceptron(self.norm(x)))

    def roll(self, x: str, size: int, by: int) -> str:
        """Two axes moved around, the part that leaves one end enters at the other."""
        for at in (1, 2):
            axes = self.list(at)
            parts = [
                self.op("Slice", x, self.list(first), self.list(last), axes)
                for first, last in ((by % size, size), (0, by % size))
            ]
            x = self.op("Concat", *parts, axis=at)
        return x

    def model(self, *outputs: str) -> onnx.ModelProto:
        ports = [helper.make_empty_tensor_value_info(name) for name in outputs]
        for port in ports:
            port.type.tensor_type.elem_type = TensorProto.FLOAT
        tensors = [numpy_helper.from_array(value, name) for name, value in self.weights.items()]
        graph = helper.make_graph(self.nodes, "small", self.inputs, ports, tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def vision_transformer() -> onnx.ModelProto:
    w = Writer()
    x = w.op("Conv", w.port("x", [2, 3, 8, 8]), w.weight(WIDE, 3, 4, 4), strides=[4, 4])
    x = w.op("Transpose", w.op("Reshape", x, w.list(0, WIDE, -1)), perm=[0, 2, 1])
    first = w.op("Expand", w.weight(1, 1, WIDE), w.list(2, 1, WIDE))
    x = w.op("Add", w.op("Concat", first, x, axis=1), w.weight(1, 5, WIDE))
    x = w.norm(w.block(x, 5))
    return w.model(w.linear(w.op("Gather", x, w.known(np.array(0)), axis=1), WIDE, 7))


def text_transformer() -> onnx.ModelProto:
    w = Writer()
    ids, mask = (w.port(name, [2, 6], TensorProto.INT64) for name in ("ids", "mask"))
    x = w.op("Add", w.op("Gather", w.weight(50, WIDE), ids), w.weight(1, 6, WIDE))
    real = w.op("Cast", w.op("Unsqueeze", mask, w.list(1, 2)), to=TensorProto.FLOAT)
    one, least = (w.known(np.array(v, np.float32)) for v in (1, np.finfo(np.float32).min))
    x = w.block(w.norm(x), 6, w.op("Mul", w.op("Sub", one, real), least))
    return w.model(x, w.op("Tanh", w.linear(w.op("ReduceMean", x, axes=[1]), WIDE, WIDE)))


def conv_next() -> onnx.ModelProto:
    w = Writer()
    x = w.op("Conv", w.port("x", [1, 3, 16, 16]), w.weight(WIDE, 3, 4, 4), strides=[4, 4])
    y = w.op("Conv", x, w.weight(WIDE, 1, 7, 7), pads=[3] * 4, group=WIDE)
    y = w.perceptron(w.norm(w.op("Transpose", y, perm=[0, 2, 3, 1])))
    y = w.op("Transpose", w.op("Mul", y, w.weight(WIDE)), perm=[0, 3, 1, 2])
    x = w.op("ReduceMean", w.op("Add", x, y), axes=[-2, -1], keepdims=0)
    return w.model(w.linear(w.norm(x), WIDE, 5))


def shifted_windows() -> onnx.ModelProto:
    w, size, window = Writer(), 4, 2
    x = w.roll(w.norm(w.port("x", [1, size, size, WIDE])), size, 1)
    split = w.list(1, size // window, window, size // window, window, WIDE)
    x = w.op("Transpose", w.op("Reshape", x, split), perm=[0, 1, 3, 2, 4, 5])
    x = w.op("Reshape", x, w.list(-1, window * window, WIDE))
    places = np.random.default_rng(0).integers(0, 9, (4, 4))
    bias = w.op("Gather", w.weight(9, HEADS), w.known(places))
    bias = w.op("Unsqueeze", w.op("Transpose", bias, perm=[2, 0, 1]), w.list(0))
    x = w.op("Reshape", w.attention(x, 4, bias), w.list(1, 2, 2, window, window, WIDE))
    x = w.op("Transpose", x, perm=[0, 1, 3, 2, 4, 5])
    return w.model(w.roll(w.op("Reshape", x, w.list(1, size, size, WIDE)), size, -1))


def audio_encoder() -> onnx.ModelProto:
    w = Writer()
    x = w.op("Conv", w.port("x", [1, 10, 12]), w.weight(WIDE, 10, 3), w.weight(WIDE), pads=[1, 1])
    x = w.op("Conv", w.gelu(x), w.weight(WIDE, WIDE, 3), pads=[1, 1], strides=[2])
    x = w.op("Add", w.op("Transpose", w.gelu(x), perm=[0, 2, 1]), w.weight(6, WIDE))
    return w.model(w.norm(w.block(x, 6)))


def tagger() -> onnx.ModelProto:
    w = Writer()
    x = w.op("Gather", w.weight(50, 8), w.port("ids", [2, 6], TensorProto.INT64))
    x, size = w.op("Transpose", x, perm=[1, 0, 2]), 8
    for _ in range(2):
        given = [w.weight(2, 24, size), w.weight(2, 24, 6), w.weight(2, 48)]
        x = w.op("LSTM", x, *given, hidden_size=6, direction="bidirectional")
        x = w.op("Reshape", w.op("Transpose", x, perm=[0, 2, 1, 3]), w.list(0, 0, -1))
        size = 12
    y = w.linear(w.op("Transpose", x, perm=[1, 0, 2]), 12, 5)
    return w.model(w.op("LogSoftmax", y, axis=-1))


def recogniser() -> onnx.ModelProto:
    w = Writer()
    x = w.op("Relu", w.op("Conv", w.port("x", [1, 1, 8, 20]), w.weight(8, 1, 3, 3), pads=[1] * 4))
    x = w.op("Conv", w.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), w.weight(8, 8, 4, 1))
    x = w.op("Transpose", w.op("Squeeze", x, w.list(2)), perm=[2, 0, 1])
    x = w.op("GRU", x, w.weight(1, 24, 8), w.weight(1, 24, 8), w.weight(1, 48), hidden_size=8,
             linear_before_reset=1)  # fmt: skip
    return w.model(w.linear(w.op("Squeeze", x, w.list(1)), 8, 11))


# Model, and how many layers it has: products and convolutions that are searched.
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], int]] = {
    "vision transformer": (vision_transformer, 10),
    "text transformer": (text_transformer, 9),
    "ConvNeXt": (conv_next, 5),
    "shifted windows": (shifted_windows, 6),
    "audio encoder": (audio_encoder, 10),
    "tagger": (tagger, 9),
    "text recogniser": (recogniser, 5),
}


def arrays_for(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    random, arrays = np.random.default_rng(3), dict[str, np.ndarray]()
    for port in model.graph.input:
        shape = [dim.dim_value for dim in port.type.tensor_type.shape.dim]
        if port.name == "mask":
            arrays["mask"] = np.array([[1] * 6, [1] * 4 + [0] * 2])
        elif port.type.tensor_type.elem_type == TensorProto.INT64:
            arrays[port.name] = random.integers(0, 50, shape)
        else:
            arrays[port.name] = random.normal(size=shape).astype(np.float32)
    return arrays


def error_of(name: str, threads: int, dtype: str = "f32") -> float:
    make, layers = MODELS[name]
    graph, arrays = read(make()), arrays_for(make())
    network, exact = network_of(graph, threads, dtype), reference.run(graph, arrays)
    assert len(network.prepared.program.layers()) == layers
    results = network(arrays)
    return max(float(np.abs(results[title] - exact[title]).max()) for title in results)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_models_are_right(name: str, threads: int) -> None:
    assert error_of(name, threads) < 5e-6


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["text transformer", "tagger"])
def test_in_bf16(name: str) -> None:
    assert 0 < error_of(name, 1, "bf16") < 0.1
