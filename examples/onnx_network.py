"""A whole ONNX network as one callable: ``python examples/onnx_network.py [LEVEL]``."""

import sys

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import polysci

GRAPH = """
<ir_version: 8, opset_import: ["" : 17]>
residual (float[1,3,32,32] image) => (float[1,10] scores) {
  stem = Conv<pads=[1,1,1,1]>(image, w1)
  a = Relu(stem)
  b = Conv<pads=[1,1,1,1]>(a, w2)
  sum = Add(a, b)
  c = Relu(sum)
  pooled = GlobalAveragePool(c)
  flat = Flatten(pooled)
  scores = Gemm(flat, w3)
}
"""
WEIGHTS = {"w1": (16, 3, 3, 3), "w2": (16, 16, 3, 3), "w3": (16, 10)}


def model() -> onnx.ModelProto:
    """The graph above with random weights."""
    graph = onnx.parser.parse_model(GRAPH)
    rng = np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        values = 0.1 * rng.standard_normal(shape, dtype=np.float32)
        graph.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return graph


def main(level: str = "measure") -> None:
    """Compile the network, run it, and compare it with ONNX's reference."""
    net = polysci.compile_network(model(), level=level)  # or the path of a file

    image = np.random.default_rng(1).standard_normal((1, 3, 32, 32), dtype=np.float32)
    scores = net(image)
    (expected,) = ReferenceEvaluator(model()).run(None, {"image": image})
    assert np.allclose(scores, expected, atol=1e-4)
    print(net.report())


if __name__ == "__main__":
    main(*sys.argv[1:])
