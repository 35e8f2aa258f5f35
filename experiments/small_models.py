"""Small networks with seeded random weights: recurrent models, chains of 1-D layers, tiny ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 18, 9
CELLS = {"LSTM": 4, "GRU": 3}  # and their gates


@dataclass(slots=True)
class ModelBuilder:
    """A model on its way: nodes one after the other, each on the result of the one before."""

    shape: tuple[int, ...]
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    last: str = "x"

    def weights(self, *shape: int, fan_in: int) -> str:
        """A constant whose products with ordinary inputs stay ordinary."""
        values = self.random.standard_normal(shape) / np.sqrt(fan_in)
        return self.constant(values.astype(np.float32))

    def constant(self, values: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def add(self, kind: str, *others: str, source: str = "", **attributes: Any) -> str:
        """A node that reads the last result, or ``source``, and others."""
        name = f"t{len(self.nodes)}"
        inputs = [source or self.last, *others]
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        self.last = name
        return name

    def dense(self, c: int, k: int, function: str = "") -> str:
        """A product with a matrix, a bias, a function."""
        self.add("Gemm", self.weights(k, c, fan_in=c), self.weights(k, fan_in=c), transB=1)
        return self.add(function) if function else self.last

    def conv(
        self, c: int, k: int, kernel: Sequence[int], function: str = "Relu", **attributes: Any
    ) -> str:
        """A convolution, a bias, a function."""
        fan_in = c * int(np.prod(kernel))
        w, bias = self.weights(k, c, *kernel, fan_in=fan_in), self.weights(k, fan_in=fan_in)
        source = attributes.pop("source", "")
        self.add("Conv", w, bias, source=source, kernel_shape=list(kernel), **attributes)
        return self.add(function) if function else self.last

    def recurrent(self, kind: str, c: int, hidden: int, *, both: bool = False) -> str:
        """A layer over steps x batch x c, as exporters write it: directions beside each other."""
        directions, rows = 1 + both, CELLS[kind] * hidden
        attributes: dict[str, Any] = {"hidden_size": hidden}
        if both:
            attributes["direction"] = "bidirectional"
        if kind == "GRU":
            attributes["linear_before_reset"] = 1  # what PyTorch computes
        self.add(
            kind,
            self.weights(directions, rows, c, fan_in=c),
            self.weights(directions, rows, hidden, fan_in=hidden),
            self.weights(directions, 2 * rows, fan_in=hidden),
            **attributes,
        )
        self.add("Transpose", perm=[0, 2, 1, 3])
        return self.add("Reshape", self.constant(np.array([0, 0, -1])))

    def model(self) -> ModelProto:
        """The model, whose one output is the last result."""
        shape = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        y = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "network", [shape], [y], self.constants)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def recurrent(kind: str, hidden: int, steps: int, *, both: bool = False) -> ModelProto:
    """Two recurrent layers, batch 1."""
    build = ModelBuilder((steps, 1, hidden))
    build.recurrent(kind, hidden, hidden, both=both)
    build.recurrent(kind, hidden * (1 + both), hidden, both=both)
    return build.model()


def wavenet(channels: int, length: int, dilations: Sequence[int]) -> ModelProto:
    """Gated, dilated, causal layers with residuals, and the sum of what they skip."""
    build = ModelBuilder((1, 1, length))
    x, skipped = build.conv(1, channels, (1,), ""), ""
    for dilation in dilations:
        build.conv(
            channels, 2 * channels, (2,), "", source=x, dilations=[dilation], pads=[dilation, 0]
        )
        gated, halves = build.last, (f"{build.last}.a", f"{build.last}.b")
        build.nodes.append(
            helper.make_node("Split", [gated], [*halves], axis=1, num_outputs=2, name=gated)
        )
        value = build.add("Tanh", source=halves[0])
        gate = build.add("Sigmoid", source=halves[1])
        product = build.add("Mul", gate, source=value)
        skip = build.conv(channels, channels, (1,), "", source=product)
        skipped = build.add("Add", skip, source=skipped) if skipped else skip
        x = build.add("Add", x, source=build.conv(channels, channels, (1,), "", source=product))
    build.add("Relu", source=skipped)
    build.conv(channels, channels, (1,))
    build.conv(channels, 256, (1,), "")
    return build.model()


def chain(channels: int, length: int, dilations: Sequence[int]) -> ModelProto:
    """Residual blocks of two dilated layers of three taps (a TCN)."""
    build = ModelBuilder((1, channels, length))
    for dilation in dilations:
        x, around = build.last, {"dilations": [dilation], "pads": [dilation, dilation]}
        build.conv(channels, channels, (3,), **around)
        build.conv(channels, channels, (3,), **around)
        build.add("Add", x)
        build.add("Relu")
    return build.model()


def crnn(width: int, channels: Sequence[int], hidden: int) -> ModelProto:
    """A recogniser of lines of text: convolutions, pools, two layers in both directions."""
    build, c = ModelBuilder((1, 1, 32, width)), 1
    halves = ([2, 2], [2, 2], [2, 1], [2, 1], [2, 1])  # of 32 rows one is left
    for k, step in zip(channels, halves, strict=True):
        build.conv(c, k, (3, 3), pads=[1, 1, 1, 1])
        build.add("MaxPool", kernel_shape=step, strides=step)
        c = k
    build.add("Squeeze", build.constant(np.array([2])))
    build.add("Transpose", perm=[2, 0, 1])
    build.recurrent("LSTM", c, hidden, both=True)
    build.recurrent("LSTM", 2 * hidden, hidden, both=True)
    build.add("MatMul", build.weights(2 * hidden, 97, fan_in=2 * hidden))
    build.add("Add", build.weights(97, fan_in=97))
    build.add("Softmax", axis=2)
    return build.model()


def mlp(*sizes: int) -> ModelProto:
    """Dense layers, all but the last with ReLU."""
    build = ModelBuilder((1, sizes[0]))
    for c, k in pairwise(sizes[:-1]):
        build.dense(c, k, "Relu")
    build.dense(sizes[-2], sizes[-1])
    return build.model()


def signal(channels: Sequence[int], length: int) -> ModelProto:
    """1-D layers of stride 2, a mean, a dense layer."""
    build = ModelBuilder((1, channels[0], length))
    for c, k in pairwise(channels):
        build.conv(c, k, (5,), pads=[2, 2], strides=[2])
    build.add("GlobalAveragePool")
    build.add("Flatten")
    build.dense(channels[-1], 6)
    return build.model()


def digits(channels: Sequence[int], size: int) -> ModelProto:
    """3x3 layers and pools on a small image, a dense layer, softmax."""
    build, c, side = ModelBuilder((1, 1, size, size)), 1, size
    for k in channels:
        build.conv(c, k, (3, 3), pads=[1, 1, 1, 1])
        build.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
        c, side = k, side // 2
    build.add("Flatten")
    build.dense(c * side * side, 10)
    build.add("Softmax", axis=1)
    return build.model()


def step_by_step(kind: str, hidden: int) -> ModelProto:
    """A recurrent layer of one step, and a dense one."""
    build = ModelBuilder((1, 1, hidden))
    build.recurrent(kind, hidden, hidden)
    build.add("Reshape", build.constant(np.array([1, -1])))
    build.dense(hidden, 8)
    return build.model()


POWERS = tuple(2**n for n in range(8))
SETS: Mapping[str, Mapping[str, Callable[[], ModelProto]]] = {
    "recurrent": {
        "lstm128_100": lambda: recurrent("LSTM", 128, 100),
        "lstm256_50": lambda: recurrent("LSTM", 256, 50),
        "lstm512_16": lambda: recurrent("LSTM", 512, 16),
        "gru128_100": lambda: recurrent("GRU", 128, 100),
        "gru256_50": lambda: recurrent("GRU", 256, 50),
        "gru512_16": lambda: recurrent("GRU", 512, 16),
        "bilstm128_50": lambda: recurrent("LSTM", 128, 50, both=True),
        "bilstm256_50": lambda: recurrent("LSTM", 256, 50, both=True),
        "bigru256_50": lambda: recurrent("GRU", 256, 50, both=True),
        "wavenet32_1024": lambda: wavenet(32, 1024, POWERS),
        "wavenet64_1024": lambda: wavenet(64, 1024, POWERS),
        "chain64_400": lambda: chain(64, 400, POWERS[:5]),
        "chain128_200": lambda: chain(128, 200, POWERS[:4]),
        "crnn256": lambda: crnn(100, (64, 128, 256, 256, 512), 256),
        "crnn96": lambda: crnn(160, (16, 32, 64, 96, 128), 96),
    },
    "tiny": {
        "mlp_16_64_4": lambda: mlp(16, 64, 64, 4),
        "mlp_64_256_10": lambda: mlp(64, 256, 256, 10),
        "mlp_784_128_10": lambda: mlp(784, 128, 10),
        "autoencoder_64": lambda: mlp(64, 32, 16, 8, 16, 32, 64),
        "signal_128": lambda: signal((3, 16, 32), 128),
        "signal_256": lambda: signal((9, 32, 32, 64), 256),
        "digits_12": lambda: digits((8, 16), 12),
        "digits_28": lambda: digits((8, 16), 28),
        "gru64_1": lambda: step_by_step("GRU", 64),
        "lstm128_1": lambda: step_by_step("LSTM", 128),
    },
}
