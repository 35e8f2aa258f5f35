"""Ranges of sizes along which stages repeat: recurrent layers, loops of a model."""

import numpy as np
import onnx
import pytest

from polysci.network.compiled import compile_network
from polysci.network.sizes import compile_sizes
from tests.support.onnxmodels import model, node

INPUTS, HIDDEN, BATCH = 5, 7, 2
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(op: str, direction: str, layout: int = 0) -> onnx.ModelProto:
    """Return two layers, one behind the other, and a product of what they carried to the end."""
    rng, count = np.random.default_rng(1), 1 + (direction == "bidirectional")
    rows, weights = GATES[op] * HIDDEN, dict[str, np.ndarray]()
    for at, width in enumerate((INPUTS, HIDDEN)):
        shapes = {f"w{at}": (count, rows, width), f"r{at}": (count, rows, HIDDEN),
                  f"b{at}": (count, 2 * rows)}  # fmt: skip
        if at:
            shapes = {name: (1, *shape[1:]) for name, shape in shapes.items()}
        weights |= {n: rng.standard_normal(s).astype(np.float32) / 2 for n, s in shapes.items()}
    words = {"hidden_size": HIDDEN, "layout": layout}
    axis = 2 if layout else 1
    nodes = [
        node(op, "x w0 r0 b0", "y0 h0", direction=direction, **words),
        node("ReduceSum", "y0 axes", "s0", keepdims=0),
        node(op, "s0 w1 r1 b1", "y1 h1", **words),
        node("ReduceSum", "y1 axes", "y", keepdims=0),
        node("Concat", "h0 h1", "h", axis=1 if layout else 0),
    ]  # fmt: skip
    weights["axes"] = np.int64([axis])
    shape = [BATCH, "T", INPUTS] if layout else ["T", BATCH, INPUTS]
    return model(nodes, {"x": shape}, {"y": None, "h": None}, weights)


def check(built: onnx.ModelProto, sizes: range, threads: int = 1) -> None:
    """Every size computes what a network of that size alone does, whatever ran before."""
    network = compile_sizes(built, {"T": sizes}, "estimate", threads=threads, verify=False)
    cases = list[tuple[int, np.ndarray, dict[str, np.ndarray]]]()
    for size in sizes:
        shape = network.entry(T=size).inputs[0].shape
        x = np.random.default_rng(size).standard_normal(shape).astype(np.float32)
        alone = compile_network(built, "estimate", dims={"T": size}, verify=False)
        cases.append((size, x, alone({"x": x})))
    for size, x, expected in (*cases[::-1], *cases):
        results = network({"x": x})
        for name, array in expected.items():
            assert results[name].shape == array.shape
            assert np.allclose(results[name], array, rtol=1e-5, atol=1e-6), (size, name)


def test_a_recurrent_layer_of_both_directions() -> None:
    check(recurrent("LSTM", "bidirectional"), range(9, 11))


@pytest.mark.exhaustive
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_recurrent_layers(op: str, direction: str) -> None:
    check(recurrent(op, direction), range(3, 15), threads=2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", GATES)
def test_batches_first(op: str) -> None:
    check(recurrent(op, "bidirectional", 1), range(9, 13))


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", [0, 1])
def test_batches_of_a_range(layout: int) -> None:
    built = recurrent("LSTM", "bidirectional", layout)
    batch = built.graph.input[0].type.tensor_type.shape.dim[1 - layout]
    batch.ClearField("dim_value")
    batch.dim_param = "B"
    dims = {"T": range(9, 13), "B": range(4, 7)}
    network = compile_sizes(built, dims, "estimate", verify=False)
    for size in ({"T": 12, "B": 6}, {"T": 9, "B": 5}, {"T": 11, "B": 4}, {"T": 10, "B": 6}):
        x = np.random.default_rng(1).standard_normal(network.entry(**size).inputs[0].shape)
        inputs = {"x": x.astype(np.float32)}
        alone = compile_network(built, "estimate", dims=size, verify=False)
        for name, array in alone(inputs).items():
            assert np.allclose(network(inputs)[name], array, rtol=1e-5, atol=1e-6), (size, name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_sequences_that_end_early(direction: str) -> None:
    rng = np.random.default_rng(2)
    shapes = {"w": (1, 3 * HIDDEN, INPUTS), "r": (1, 3 * HIDDEN, HIDDEN)}
    weights = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    weights["lengths"] = np.int32([4, 8])
    inputs = ["x", "w", "r", "", "lengths"]
    words = {"hidden_size": HIDDEN, "direction": direction}
    nodes = [onnx.helper.make_node("GRU", inputs, ["y", "h"], **words)]
    check(model(nodes, {"x": ["T", BATCH, INPUTS]}, {"y": None, "h": None}, weights), range(9, 13))


@pytest.mark.exhaustive
@pytest.mark.parametrize("back", [0, 1])
def test_a_loop_of_a_model(back: int) -> None:
    port = onnx.helper.make_tensor_value_info
    ports = {name: port(name, onnx.TensorProto.FLOAT, [3]) for name in ("s", "x", "n", "o")}
    steps = [node("Add", "s x", "n"), node("Mul", "n x", "o")]
    body = onnx.helper.make_graph(steps, "body", [ports["s"], ports["x"]], [ports["n"], ports["o"]])
    scan = onnx.helper.make_node(
        "Scan", ["first", "x"], ["last", "y"], body=body, num_scan_inputs=1,
        scan_input_directions=[back], scan_output_directions=[back],
    )  # fmt: skip
    nodes, weights = [scan, node("Neg", "last", "z")], {"first": np.zeros(3, np.float32)}
    check(model(nodes, {"x": ["T", 3]}, {"y": None, "z": None}, weights), range(9, 13))
