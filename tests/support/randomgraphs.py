"""Small graphs at random: nodes that fit what there is, joins, several outputs."""

from collections.abc import Sequence
from random import Random

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.support.graph_draft import OPSET, Draft, Shape
from tests.support.quantised_nodes import of_8_bits
from tests.support.random_nodes import (
    binary,
    concat,
    conv,
    conv_transpose,
    gemm,
    matmul,
    norm,
    pad,
    pool,
    reduction,
    reshape,
    resize,
    slices,
    split,
    unary,
)

CHAIN = (conv, conv, conv, conv, norm, unary, unary, binary, pool, concat)
MAKERS = (
    conv, conv, conv, conv_transpose, gemm, matmul, norm, unary, unary, binary, binary, concat,
    concat, split, slices, pad, reshape, reshape, pool, resize, reduction,
)  # fmt: skip


def models(most: int = 8) -> st.SearchStrategy[onnx.ModelProto]:
    """Of random seeds."""
    return st.integers(0, 1 << 32).map(lambda seed: random_model(seed, most))


def random_model(
    seed: int, most: int = 8, *, quantised: bool = False, chain: bool = False
) -> onnx.ModelProto:
    """A model of 3 to ``most`` nodes; its outputs are all that nobody reads, and perhaps more.

    ``quantised``: half of them have 8-bit operands and results, as quantisers write them.
    ``chain``: most work on an image and read the one before, as those do that run by rows.
    """
    d = Draft(Random(seed), np.random.default_rng(seed), chain=chain)
    makers = (CHAIN if chain else MAKERS) + (of_8_bits,) * 16 * quantised
    for at in range(d.one(1, 1, 2)):
        channels, height = d.one(1, 2, 3, 4, 8, 16), d.one(1, 4, 5, 7)
        four = (d.one(1, 1, 2, 3), channels, height, d.one(5, 6, 9))
        larger = (1, channels, d.one(9, 14, 17), d.one(8, 9, 13))
        d.shapes[f"x{at}"] = larger if chain else d.one(four, four, four, four[:2], four[:3])
    inputs = dict(d.shapes)
    wanted = d.one(*range(3, most + 1))
    for _ in range(4 * wanted):
        if len(d.nodes) >= wanted:
            break
        d.one(*makers)(d)
    if not d.nodes:
        d.node("Relu", next(iter(inputs)))
    return finished(d, inputs)


def finished(d: Draft, inputs: dict[str, Shape]) -> onnx.ModelProto:
    read = {name for node in d.nodes for name in node.input}
    made = [name for node in d.nodes for name in node.output]
    outputs = [name for name in made if name not in read]
    extra = d.one("", "", "", *d.shapes)
    if extra and extra not in outputs:
        outputs.append(extra)
    return model_of(d.nodes, inputs, {n: d.shapes[n] for n in outputs}, d.weights)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Shape],
    outputs: dict[str, Shape],
    weights: dict[str, np.ndarray],
) -> onnx.ModelProto:
    used = {name for node in nodes for name in node.input}
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "random",
        [info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(v, n) for n, v in weights.items() if n in used],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
