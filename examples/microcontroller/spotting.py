"""Write a network that spots keywords, of random weights, and samples of its input.

``python examples/microcontroller/spotting.py keyword.onnx samples.npz``: a small DS-CNN, of the
shape of Zhang et al., Hello Edge: Keyword Spotting on Microcontrollers (2017). It takes 49 frames
of 10 coefficients and gives the probability of 12 words. It needs the extra ``[onnx]``.
"""

import sys
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS, WORDS, BLOCKS = 64, 12, 4


def layers() -> Iterator[tuple[str, tuple[int, ...], dict[str, object]]]:
    """Names, shapes of filters and attributes of the convolutions, in order."""
    yield "first", (CHANNELS, 1, 10, 4), {"strides": [2, 2], "pads": [4, 1, 5, 1]}
    for block in range(BLOCKS):
        depthwise = {"pads": [1, 1, 1, 1], "group": CHANNELS}
        yield f"depthwise{block}", (CHANNELS, 1, 3, 3), depthwise
        yield f"pointwise{block}", (CHANNELS, CHANNELS, 1, 1), {}


def keyword() -> onnx.ModelProto:
    """The network."""
    random, weights, nodes, at = np.random.default_rng(0), [], [], "x"

    def add(name: str, *shape: int) -> str:
        values = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)
        weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    for name, shape, attributes in layers():
        inputs = [at, add(f"{name}.w", *shape), add(f"{name}.b", shape[0])]
        nodes.append(helper.make_node("Conv", inputs, [f"{name}.sum"], **attributes))
        nodes.append(helper.make_node("Relu", [f"{name}.sum"], [name]))
        at = name
    dense = ["flat", add("words.w", WORDS, CHANNELS), add("words.b", WORDS)]
    nodes += [
        helper.make_node("GlobalAveragePool", [at], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", dense, ["scores"], transB=1),
        helper.make_node("Softmax", ["scores"], ["y"], axis=1),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (1, 1, 49, 10)), ("y", (1, WORDS)))
    )
    graph = helper.make_graph(nodes, "keyword", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def samples(count: int = 32) -> np.ndarray:
    """Inputs like those that the network gets, for quantization."""
    random = np.random.default_rng(1)
    return random.standard_normal((count, 1, 49, 10)).astype(np.float32)


if __name__ == "__main__":
    onnx.save(keyword(), sys.argv[1])
    np.savez(sys.argv[2], x=samples())
