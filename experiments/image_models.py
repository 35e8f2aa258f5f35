"""Image networks as ONNX models, made here instead of downloaded: weights are random but seeded.

Weights have He's scales, so that numbers neither grow nor vanish; batch norm is folded already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # of that opset
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


@dataclass(slots=True)
class ModelBuilder:
    """A model of one image as it grows: methods add nodes and name what they make."""

    shape: tuple[int, ...]
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    channels: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.channels["x"] = self.shape[1]

    def node(self, kind: str, *inputs: str, channels: int, **attributes: Any) -> str:
        """The result of a node, which has so many channels."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        self.channels[name] = channels
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, *shape: int) -> str:
        """A filter or a matrix whose first axis are results."""
        scale = np.sqrt(2 * shape[0] / prod(shape))
        return self.constant((scale * self.random.normal(size=shape)).astype(np.float32))

    def bias(self, size: int) -> str:
        return self.constant((0.1 * self.random.normal(size=size)).astype(np.float32))

    def act(self, x: str, kind: str) -> str:
        """An activation by its operator's name, by ``Silu`` or ``Relu6``; none for ""."""
        channels = self.channels[x]
        match kind:
            case "":
                return x
            case "Silu":
                return self.node(
                    "Mul", x, self.node("Sigmoid", x, channels=channels), channels=channels
                )
            case "Relu6":
                bounds = [self.constant(np.array(v, np.float32)) for v in (0, 6)]
                return self.node("Clip", x, *bounds, channels=channels)
            case _:
                return self.node(kind, x, channels=channels)

    def conv(
        self,
        x: str,
        k: int,
        size: int = 1,
        stride: int = 1,
        act: str = "",
        *,
        depthwise: bool = False,
    ) -> str:
        """A convolution with "same" padding, and its activation."""
        groups = k if depthwise else 1
        w = self.weights(k, self.channels[x] // groups, size, size)
        y = self.node(
            "Conv", x, w, self.bias(k), channels=k, kernel_shape=[size, size],
            strides=[stride, stride], pads=[size // 2] * 4, group=groups,
        )  # fmt: skip
        return self.act(y, act)

    def upsample_conv(self, x: str, k: int) -> str:
        """A transposed convolution of 2x2 and stride 2."""
        scale = np.sqrt(1 / self.channels[x])
        w = scale * self.random.normal(size=(self.channels[x], k, 2, 2))
        return self.node(
            "ConvTranspose", x, self.constant(w.astype(np.float32)), self.bias(k), channels=k,
            kernel_shape=[2, 2], strides=[2, 2],
        )  # fmt: skip

    def squeeze_excite(self, x: str, narrow: int, inside: str, gate: str) -> str:
        """Channels scaled by what two small layers make of their means."""
        channels = self.channels[x]
        mean = self.node("GlobalAveragePool", x, channels=channels)
        scale = self.conv(self.conv(mean, narrow, act=inside), channels, act=gate)
        return self.node("Mul", x, scale, channels=channels)

    def max_pool(self, x: str, size: int, stride: int, pad: int = 0) -> str:
        return self.node(
            "MaxPool", x, channels=self.channels[x], kernel_shape=[size, size],
            strides=[stride, stride], pads=[pad] * 4,
        )  # fmt: skip

    def concat(self, *parts: str, axis: int = 1) -> str:
        return self.node("Concat", *parts, channels=sum(map(self.channels.get, parts)), axis=axis)  # type: ignore[arg-type]

    def split(self, x: str) -> tuple[str, str]:
        """Both halves of the channels."""
        half = self.channels[x] // 2
        names = [f"t{len(self.nodes)}a", f"t{len(self.nodes)}b"]
        sizes = self.constant(np.array([half, half], np.int64))
        self.nodes.append(helper.make_node("Split", [x, sizes], names, axis=1))
        self.channels |= dict.fromkeys(names, half)
        return names[0], names[1]

    def add(self, x: str, y: str) -> str:
        return self.node("Add", x, y, channels=self.channels[x])

    def dense(self, x: str, k: int, act: str = "") -> str:
        w = self.weights(k, self.channels[x])
        return self.act(self.node("Gemm", x, w, self.bias(k), channels=k, transB=1), act)

    def features(self, x: str) -> str:
        """The mean of every channel, as a vector an image."""
        channels = self.channels[x]
        mean = self.node("GlobalAveragePool", x, channels=channels)
        return self.node("Flatten", mean, channels=channels)

    def model(self, name: str, *outputs: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, None) for y in outputs],
            self.constants,
        )  # fmt: skip
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def mobilenet_v2() -> onnx.ModelProto:
    """Sandler et al., 2018, table 2, width 1."""
    b = ModelBuilder((1, 3, 224, 224))
    x = b.conv("x", 32, 3, 2, "Relu6")
    blocks = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
              (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
    for expansion, k, count, first in blocks:
        for at in range(count):
            stride, wide = first if at == 0 else 1, b.channels[x] * expansion
            y = b.conv(x, wide, act="Relu6") if expansion > 1 else x
            y = b.conv(b.conv(y, wide, 3, stride, "Relu6", depthwise=True), k)
            x = b.add(x, y) if stride == 1 and b.channels[x] == k else y
    y = b.dense(b.features(b.conv(x, 1280, act="Relu6")), 1000)
    return b.model("mobilenet_v2", y)


R, H = "Relu", "HardSwish"
Row = tuple[int, int, int, bool, str, int]  # filter, expansion, channels, squeeze, act, stride
V3_LARGE: tuple[Row, ...] = (
    (3, 16, 16, False, R, 1), (3, 64, 24, False, R, 2), (3, 72, 24, False, R, 1),
    (5, 72, 40, True, R, 2), (5, 120, 40, True, R, 1), (5, 120, 40, True, R, 1),
    (3, 240, 80, False, H, 2), (3, 200, 80, False, H, 1), (3, 184, 80, False, H, 1),
    (3, 184, 80, False, H, 1), (3, 480, 112, True, H, 1), (3, 672, 112, True, H, 1),
    (5, 672, 160, True, H, 2), (5, 960, 160, True, H, 1), (5, 960, 160, True, H, 1),
)  # fmt: skip
V3_SMALL: tuple[Row, ...] = (
    (3, 16, 16, True, R, 2), (3, 72, 24, False, R, 2), (3, 88, 24, False, R, 1),
    (5, 96, 40, True, H, 2), (5, 240, 40, True, H, 1), (5, 240, 40, True, H, 1),
    (5, 120, 48, True, H, 1), (5, 144, 48, True, H, 1), (5, 288, 96, True, H, 2),
    (5, 576, 96, True, H, 1), (5, 576, 96, True, H, 1),
)  # fmt: skip


def mobilenet_v3(name: str, rows: tuple[Row, ...], head: int, hidden: int) -> onnx.ModelProto:
    """Howard et al., 2019, tables 1 and 2."""
    b = ModelBuilder((1, 3, 224, 224))
    x = b.conv("x", 16, 3, 2, H)
    for size, wide, k, squeeze, act, stride in rows:
        y = b.conv(x, wide, act=act) if wide != b.channels[x] else x
        y = b.conv(y, wide, size, stride, act, depthwise=True)
        if squeeze:
            y = b.squeeze_excite(y, (wide // 4 + 4) // 8 * 8, R, "HardSigmoid")
        y = b.conv(y, k)
        x = b.add(x, y) if stride == 1 and b.channels[x] == k else y
    y = b.dense(b.dense(b.features(b.conv(x, head, act=H)), hidden, H), 1000)
    return b.model(name, y)


def efficientnet_b0() -> onnx.ModelProto:
    """Tan and Le, 2019, table 1."""
    b = ModelBuilder((1, 3, 224, 224))
    x = b.conv("x", 32, 3, 2, "Silu")
    blocks = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
              (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip
    for expansion, k, count, first, size in blocks:
        for at in range(count):
            stride, wide = first if at == 0 else 1, b.channels[x] * expansion
            y = b.conv(x, wide, act="Silu") if expansion > 1 else x
            y = b.conv(y, wide, size, stride, "Silu", depthwise=True)
            y = b.conv(b.squeeze_excite(y, b.channels[x] // 4, "Silu", "Sigmoid"), k)
            x = b.add(x, y) if stride == 1 and b.channels[x] == k else y
    y = b.dense(b.features(b.conv(x, 1280, act="Silu")), 1000)
    return b.model("efficientnet_b0", y)


def unet(width: int = 32) -> onnx.ModelProto:
    """Ronneberger et al., 2015, with "same" padding, half its channels, 256x256 pixels."""
    b = ModelBuilder((1, 3, 256, 256))
    x, kept = "x", list[str]()
    for level in range(5):
        x = b.max_pool(x, 2, 2) if level else x
        x = b.conv(b.conv(x, width << level, 3, act=R), width << level, 3, act=R)
        kept.append(x)
    for level in range(3, -1, -1):
        x = b.concat(kept[level], b.upsample_conv(x, width << level))
        x = b.conv(b.conv(x, width << level, 3, act=R), width << level, 3, act=R)
    return b.model("unet", b.conv(x, 2))


def espcn() -> onnx.ModelProto:
    """Shi et al., 2016: 3 times as many pixels along each side."""
    b = ModelBuilder((1, 1, 224, 224))
    x = b.conv(b.conv("x", 64, 5, act="Tanh"), 32, 3, act="Tanh")
    y = b.node("DepthToSpace", b.conv(x, 9, 3), channels=1, blocksize=3, mode="CRD")
    return b.model("espcn", y)


def _c2f(b: ModelBuilder, x: str, k: int, count: int, adds: bool) -> str:
    parts = [*b.split(b.conv(x, k, act="Silu"))]
    for _ in range(count):
        y = b.conv(b.conv(parts[-1], k // 2, 3, act="Silu"), k // 2, 3, act="Silu")
        parts.append(b.add(parts[-1], y) if adds else y)
    return b.conv(b.concat(*parts), k, act="Silu")


def _pools(b: ModelBuilder, x: str, k: int) -> str:
    parts = [b.conv(x, k // 2, act="Silu")]
    for _ in range(3):
        parts.append(b.max_pool(parts[-1], 5, 1, 2))
    return b.conv(b.concat(*parts), k, act="Silu")


def yolo(size: int = 320, bins: int = 16, classes: int = 80) -> onnx.ModelProto:
    """A detector as the smallest YOLOv8: three scales, boxes out of a softmax over bins."""
    b = ModelBuilder((1, 3, size, size))
    x, kept = b.conv("x", 16, 3, 2, "Silu"), dict[int, str]()
    for k, count in ((32, 1), (64, 2), (128, 2), (256, 1)):
        x = kept[k] = _c2f(b, b.conv(x, k, 3, 2, "Silu"), k, count, True)
    kept[256] = x = _pools(b, x, 256)
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    for k in (128, 64):
        x = b.node("Resize", x, "", scales, channels=b.channels[x], mode="nearest",
                   coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
        x = kept[k] = _c2f(b, b.concat(x, kept[k]), k, 1, False)
    for k in (128, 256):
        x = kept[k] = _c2f(b, b.concat(b.conv(x, k // 2, 3, 2, "Silu"), kept[k]), k, 1, False)
    rows, width = list[str](), 4 * bins + classes
    for k in (64, 128, 256):
        heads = [b.conv(b.conv(b.conv(kept[k], wide, 3, act="Silu"), wide, 3, act="Silu"), out)
                 for wide, out in ((64, 4 * bins), (80, classes))]  # fmt: skip
        flat = b.constant(np.array([1, width, -1], np.int64))
        rows.append(b.node("Reshape", b.concat(*heads), flat, channels=width))
    whole = b.node("Concat", *rows, channels=width, axis=2)
    sizes = b.constant(np.array([4 * bins, classes], np.int64))
    b.nodes.append(helper.make_node("Split", [whole, sizes], ["boxes", "scores"], axis=1))
    shape = b.constant(np.array([1, 4, bins, -1], np.int64))
    boxes = b.node("Reshape", "boxes", shape, channels=4)
    boxes = b.node("Softmax", b.node("Transpose", boxes, channels=bins, perm=[0, 2, 1, 3]),
                   channels=bins, axis=1)  # fmt: skip
    b.channels[boxes] = bins
    w = b.constant(np.arange(bins, dtype=np.float32).reshape(1, bins, 1, 1))
    boxes = b.node("Conv", boxes, w, channels=1, kernel_shape=[1, 1])
    boxes = b.node("Reshape", boxes, b.constant(np.array([1, 4, -1], np.int64)), channels=4)
    scores = b.node("Sigmoid", "scores", channels=classes)
    return b.model("yolo", b.concat(boxes, scores))


def light(name: str) -> onnx.ModelProto:
    """An image network of ONNX's own tests; random weights where it has one value repeated."""
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    random = np.random.default_rng(0)
    shapes = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    uses = {name: (node.op_type, at) for node in model.graph.node
            for at, name in enumerate(node.input)}  # fmt: skip
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        (y,), shape = node.output, tuple(map(int, shapes[node.input[0]]))
        array = _random_weights(random, shape, *uses[y])
        model.graph.initializer.append(numpy_helper.from_array(array, y))
    model.ir_version = max(model.ir_version, 4)  # before, initializers were inputs too
    names = {item.name for item in model.graph.initializer}
    inputs = [item for item in model.graph.input if item.name not in names]
    del model.graph.node[:], model.graph.input[:]
    model.graph.node.extend(kept)
    model.graph.input.extend(inputs)
    return model


def _random_weights(
    random: np.random.Generator, shape: tuple[int, ...], kind: str, at: int
) -> np.ndarray:
    """Weights that stand at a place of the inputs of an operator."""
    values = random.normal(size=shape)
    if kind in ("Conv", "Gemm", "MatMul") and at == 1:
        values *= np.sqrt(2 * shape[0] / prod(shape))
    elif kind == "BatchNormalization" and at in (1, 4):
        values = 1 + 0.2 * values.clip(-2, 2)
    else:
        values *= 0.1
    return np.asarray(values, np.float32)


LIGHT_NAMES = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50",
               "shufflenet", "squeezenet", "vgg19", "zfnet512")  # fmt: skip
MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = MappingProxyType(
    {
        **{name: (lambda name=name: light(name)) for name in LIGHT_NAMES},  # type: ignore[misc]
        "mobilenet_v2": mobilenet_v2,
        "mobilenet_v3_large": lambda: mobilenet_v3("mobilenet_v3_large", V3_LARGE, 960, 1280),
        "mobilenet_v3_small": lambda: mobilenet_v3("mobilenet_v3_small", V3_SMALL, 576, 1024),
        "efficientnet_b0": efficientnet_b0,
        "unet": unet,
        "espcn": espcn,
        "yolo": yolo,
    }
)
