"""ResNet-50 with random weights as an ONNX file: ``python examples/resnet50.py FILE.onnx``."""

import sys
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # channels, blocks, first stride
EXPANSION = 4  # channels of a block's result, of its own
CLASSES = 1000


class Builder:
    """The nodes and the weights so far; every method returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        """Weights that keep the size of what they multiply."""
        scale = np.sqrt(2 / np.prod(shape[1:]))
        values = scale * self.random.standard_normal(shape, dtype=np.float32)
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def conv(self, x: str, channels: int, filters: int, size: int, stride: int = 1) -> str:
        return self.node(
            "Conv", x, self.weight(filters, channels, size, size),
            strides=[stride] * 2, pads=[size // 2] * 4,
        )  # fmt: skip

    def block(self, x: str, channels: int, width: int, stride: int) -> str:
        """1x1, 3x3 and 1x1, added to x or to a projection of it."""
        y = self.node("Relu", self.conv(x, channels, width, 1))
        y = self.node("Relu", self.conv(y, width, width, 3, stride))
        y = self.conv(y, width, EXPANSION * width, 1)
        if channels != EXPANSION * width:
            x = self.conv(x, channels, EXPANSION * width, 1, stride)
        return self.node("Relu", self.node("Add", y, x))


def model() -> onnx.ModelProto:
    """The network of He et al. (2016), with the stride in the 3x3 convolutions."""
    net = Builder()
    x = net.node("Relu", net.conv("image", 3, 64, 7, 2))
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for width, blocks, stride in STAGES:
        for at in range(blocks):
            x = net.block(x, channels, width, stride if at == 0 else 1)
            channels = EXPANSION * width
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    x = net.node("Gemm", x, net.weight(CLASSES, channels), transB=1)
    graph = helper.make_graph(
        net.nodes, "resnet50",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 224, 224])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, CLASSES])],
        net.weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main(path: str = "resnet50.onnx") -> None:
    """Write the file."""
    network = model()
    onnx.checker.check_model(network, full_check=True)
    onnx.save(network, path)
    print(f"written: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
