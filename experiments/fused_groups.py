"""Twenty small groups of neighbouring operators whose tensors do not stay in a small L2 cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from onnx import ModelProto
from small_models import ModelBuilder

from polysci import layers
from polysci.frontends.layers.model import Layer
from polysci.graph.graph import Graph
from polysci.graph.optimizers import SGD
from polysci.graph.passes.table import simplify
from polysci.training.model import build_step, model_of

IMAGE = (1, 32, 64, 64)  # 512 KiB of f32
SAME: Mapping[str, Any] = {"pads": [1, 1, 1, 1]}
TOKENS, WIDTH = 512, 256
POOL = {"kernel_shape": [2, 2], "strides": [2, 2]}


def read_by_layer(build: ModelBuilder, c: int) -> ModelProto:
    """Return a model with a small layer behind: its tensors are channels last, but the result."""
    axes = len(build.shape) - 2
    build.conv(c, 8, [1] * axes, "", strides=[4] * axes)
    return build.model()


def convolutions(*kernels: int, c: int = 32, image: tuple[int, ...] = IMAGE) -> ModelProto:
    """Convolutions of square filters, each with a bias and a ReLU."""
    build = ModelBuilder(image)
    for at, size in enumerate(kernels):
        build.conv(c if at else image[1], c, (size, size), pads=[size // 2] * 4)
    return read_by_layer(build, c)


def bottleneck(c: int, wide: int) -> ModelProto:
    """Pointwise, depthwise and pointwise again, and the input."""
    build = ModelBuilder((1, c, 64, 64))
    build.conv(c, wide, (1, 1))
    build.add("Conv", build.weights(wide, 1, 3, 3, fan_in=9), kernel_shape=[3, 3], group=wide,
              **SAME)  # fmt: skip
    build.add("Relu")
    build.conv(wide, c, (1, 1), "")
    build.add("Add", "x")
    return read_by_layer(build, c)


def pooled(kind: str, *, behind: bool) -> ModelProto:
    """A convolution and a pool, and a pointwise layer behind."""
    build = ModelBuilder(IMAGE)
    build.conv(32, 64, (3, 3), **SAME)
    build.add(kind, **POOL)
    if behind:
        build.conv(64, 32, (1, 1))
    return read_by_layer(build, 32 if behind else 64)


def signals() -> ModelProto:
    """Dilated layers of signals."""
    build = ModelBuilder((1, 32, 8192))
    for dilation in (1, 2, 4):
        build.conv(32, 32, (3,), dilations=[dilation], pads=[dilation] * 2)
    return read_by_layer(build, 32)


def perceptron(*widths: int, function: str = "Relu", rows: int = TOKENS) -> ModelProto:
    """Products, a function behind each but the last."""
    build = ModelBuilder((rows, widths[0]))
    for at, (c, k) in enumerate(pairwise(widths)):
        build.dense(c, k, function if at < len(widths) - 2 else "")
    return build.model()


def gated() -> ModelProto:
    """Two products of the same rows, one of which gates the other, and a third."""
    build = ModelBuilder((TOKENS, WIDTH))
    build.dense(WIDTH, 2 * WIDTH, "Sigmoid")
    gate = build.last
    build.add("MatMul", build.weights(WIDTH, 2 * WIDTH, fan_in=WIDTH), source="x")
    build.add("Mul", gate)
    build.dense(2 * WIDTH, WIDTH)
    return build.model()


def attention() -> ModelProto:
    """Scores of two heads, softmax and the product with the values, which are the queries too."""
    heads, wide = 2, 64
    build = ModelBuilder((heads, TOKENS, wide))
    keys = build.add("Transpose", perm=[0, 2, 1], source="x")
    build.add("MatMul", keys, source="x")
    build.add("Mul", build.constant(np.float32(wide**-0.5)))
    build.add("Softmax", axis=-1)
    build.add("MatMul", "x")
    return build.model()


def softmax(*, product: bool) -> ModelProto:
    """A product, a softmax of its rows, and perhaps a product again."""
    build = ModelBuilder((TOKENS, 64))
    build.dense(64, 2 * WIDTH)
    build.add("Softmax", axis=-1)
    if product:
        build.dense(2 * WIDTH, 64)
    return build.model()


def normalised(kind: str) -> ModelProto:
    """A normalisation of rows, a product, and the input."""
    build = ModelBuilder((TOKENS, 2 * WIDTH))
    ones = build.constant(np.ones(2 * WIDTH, np.float32))
    if kind == "layer":
        build.add("LayerNormalization", ones, build.weights(2 * WIDTH, fan_in=1), axis=-1)
    else:
        build.add("Mul", build.last)
        build.add("ReduceMean", build.constant(np.array([-1])), keepdims=1)
        build.add("Sqrt")
        root = build.last
        build.add("Div", root, source="x")
        build.add("Mul", ones)
    build.dense(2 * WIDTH, 2 * WIDTH)
    build.add("Add", "x")
    return build.model()


def reduced() -> ModelProto:
    """A product, and of its rows the largest element and the sum of what lies below it."""
    build = ModelBuilder((2 * TOKENS, 64))
    build.dense(64, WIDTH)
    rows = build.last
    build.add("ReduceMax", build.constant(np.array([-1])), keepdims=1)
    build.add("Sub", build.last, source=rows)
    build.add("ReduceSum", build.constant(np.array([-1])), keepdims=0)
    return build.model()


def step_of(parts: list[Layer], shape: tuple[int, ...]) -> Graph:
    """Return a step of training: forward pass, cross entropy, backward pass and update."""
    return simplify(build_step(model_of(parts, shape), "cross_entropy", SGD()).graph)


def trained_perceptron() -> Graph:
    parts = [layers.Linear(128, 256), layers.ReLU(), layers.Linear(256, 10)]
    return step_of(parts, (2 * TOKENS, 128))


def trained_convolutions() -> Graph:
    parts = [
        layers.Conv2d(8, 16, 3, padding=1), layers.ReLU(), layers.Conv2d(16, 16, 1),
        layers.ReLU(), layers.AdaptiveAvgPool2d(1), layers.Flatten(), layers.Linear(16, 10),
    ]  # fmt: skip
    return step_of(parts, (4, 8, 64, 64))


GROUPS: Mapping[str, Callable[[], ModelProto | Graph]] = {
    "conv 1 3": lambda: convolutions(1, 3),
    "conv 3 1": lambda: convolutions(3, 1, c=64),
    "conv 3 3": lambda: convolutions(3, 3),
    "conv 5 1 3": lambda: convolutions(5, 1, 3, c=16),
    "conv halo": lambda: convolutions(5, 5, 5, image=(1, 32, 12, 256)),
    "bottleneck": lambda: bottleneck(16, 96),
    "conv1d": signals,
    "conv pool": lambda: pooled("MaxPool", behind=False),
    "conv pool conv": lambda: pooled("AveragePool", behind=True),
    "mlp relu": lambda: perceptron(128, 512, 128),
    "mlp gelu": lambda: perceptron(256, 512, 512, 64, function="Tanh"),
    "mlp gated": gated,
    "attention": attention,
    "product softmax": lambda: softmax(product=False),
    "softmax product": lambda: softmax(product=True),
    "layer norm": lambda: normalised("layer"),
    "rms norm": lambda: normalised("rms"),
    "reductions": reduced,
    "step of mlp": trained_perceptron,
    "step of conv": trained_convolutions,
}
