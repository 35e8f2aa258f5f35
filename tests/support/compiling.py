"""Small networks as files, and what compiles them quickly in tests."""

from pathlib import Path

import onnx
from onnx import ModelProto

from polysci.network.compiled import Network, compile_network
from polysci.target.host import detect
from tests.support.onnxmodels import model, node, reals

# Not the best instruction set: its rates would be measured for a minute.
ISA = detect().allowed[-2:][0].name
FAST = ("--level", "estimate", "--isa", ISA)
HOSTILE = '*/ #error "\\ ../../etc/passwd %s {0} @NAME@ \\'


def tiny(x: str = "x", y: str = "y", batch: int | str = 1) -> ModelProto:
    """Two convolutions with a residual, ReLU, pooling and a Gemm."""
    nodes = [
        node("Conv", "x w1 b1", "a", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", "a", "r"),
        node("Conv", "r w2", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Add", "c r", "s"),
        node("Relu", "s", "t"),
        node("MaxPool", "t", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", "p", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f w3 b3", "y", transB=1),
    ]
    weights = {
        "w1": reals(8, 4, 3, 3), "b1": reals(8), "w2": 0.1 * reals(8, 8, 3, 3, seed=1),
        "w3": reals(6, 8, seed=2), "b3": reals(6, seed=3),
    }  # fmt: skip
    nodes[0].input[0], nodes[-1].output[0] = x, y
    return model(nodes, {x: (batch, 4, 8, 8)}, {y: (batch, 6)}, weights)


def saved(made: ModelProto, path: Path) -> Path:
    onnx.save(made, path)
    return path


def compiled(path: Path, *, threads: int = 1, name: str | None = None) -> Network:
    """The network of a file, schedules as the model prefers them."""
    return compile_network(path, "estimate", threads, isa=ISA, name=name)
