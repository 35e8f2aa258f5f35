"""Simplified graphs compute the same, with fewer operations; float64 by ONNX's reference."""

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysci.errors import SpecError
from polysci.frontends.onnx import reference
from polysci.frontends.onnx.importer import graph_of
from polysci.graph.graph import AFFINE, Graph
from polysci.graph.passes.table import simplify
from tests.frontends.onnx.test_import import LIGHT, load
from tests.support.onnxmodels import model, node, reals

NORM = "s t m v"  # of a batch normalisation: scale, shift, mean, variance


def norm(channels: int) -> dict[str, np.ndarray]:
    return {name: abs(reals(channels, seed=i)) + 0.5 for i, name in enumerate(NORM.split())}


def agree(before: Graph, after: Graph, close: float = 2e-6) -> None:
    inputs = {one.name: reals(*one.shape, seed=9) for one in before.inputs}
    first, second = reference.run(before, inputs), reference.run(after, inputs)
    for one in before.outputs:
        scale = abs(first[one.name]).max() or 1.0
        assert abs(first[one.name] - second[one.name]).max() <= close * scale, one


def ops(graph: Graph) -> list[str]:
    return [one.op for one in graph.nodes]


CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray], list[str]]] = {
    "norm of a convolution": (
        [node("Conv", "x w b", "c"), node("BatchNormalization", f"c {NORM}", "y")],
        {"w": reals(5, 4, 3, 3), "b": reals(5), **norm(5)}, ["conv"],
    ),
    "norm of grouped ones without bias": (
        [node("Conv", "x w", "c", group=2), node("BatchNormalization", f"c {NORM}", "y")],
        {"w": reals(6, 2, 1, 3), **norm(6)}, ["conv"],
    ),
    "as exporters write it": (
        [node("Conv", "x w", "c"), node("BatchNormalization", f"c {NORM}", "n"),
         node("Mul", "n f", "p"), node("Add", "g p", "y")],
        {"w": reals(5, 4, 1, 1), **norm(5), "f": reals(5, 1, 1), "g": reals(1, 5, 1, 1)}, ["conv"],
    ),
    "differences and quotients": (
        [node("Sub", "x f", "a"), node("Sub", "f a", "b"), node("Div", "b g", "y")],
        {"f": reals(4, 1, 1), "g": reals(4, 1, 1) + 2}, [AFFINE],
    ),
    "a number for all": (
        [node("ConvTranspose", "x w", "c"), node("Mul", "c f", "y")],
        {"w": reals(4, 3, 2, 2), "f": np.array(0.5, np.float32)}, ["conv_transpose"],
    ),
    "idle operations": (
        [node("Add", "x zeros", "a"), node("Mul", "ones a", "b"), node("Where", "no n b", "c"),
         node("Where", "yes c n", "d"), node("Expand", "d shape", "e"),
         node("Cast", "e", "f", to=1), node("Sub", "f zeros", "g"), node("Div", "g ones", "h"),
         node("Neg", "h", "y")],
        {"zeros": np.zeros((4, 1, 1), np.float32), "ones": np.ones(1, np.float32),
         "no": np.zeros((1, 1, 7, 7), bool), "yes": np.ones((4, 1, 1), bool),
         "n": np.full(1, np.nan, np.float32), "shape": np.array([4, 1, 1])}, ["neg"],
    ),
    "operations that are not idle": (
        [node("Where", "some x n", "a"), node("GlobalAveragePool", "a", "b"),
         node("Expand", "b shape", "c"), node("Sub", "zeros c", "d"), node("Neg", "d", "y")],
        {"zeros": np.zeros((1, 4, 1, 1), np.float32), "shape": np.array([1, 4, 2, 1]),
         "some": np.arange(4).reshape(4, 1, 1) > 1, "n": np.full(1, 3, np.float32)},
        ["select", "global_average_pool", "expand", AFFINE, "neg"],
    ),
    "zeros that add elements": (
        [node("GlobalAveragePool", "x", "a"), node("Where", "yes a z", "b"), node("Neg", "b", "y")],
        {"yes": np.ones((1, 4, 1, 1), bool), "z": np.zeros((1, 4, 1, 2), np.float32)},
        ["global_average_pool", "select", "neg"],
    ),
    "a quotient by x": ([node("Div", "f x", "y")], {"f": reals(4, 1, 1)}, ["div"]),
    "a sum along the width": ([node("Add", "x f", "y")], {"f": reals(7)}, ["add"]),
    "a sum of more channels": (
        [node("GlobalAveragePool", "x", "a"), node("Add", "a f", "y")],
        {"f": reals(1, 4, 3, 1)}, ["global_average_pool", "add"],
    ),
    "grouped transposed convolution": (
        [node("ConvTranspose", "x w", "c", group=2), node("Mul", "c f", "y")],
        {"w": reals(4, 3, 2, 2), "f": reals(6, 1, 1)}, ["conv_transpose", AFFINE],
    ),
    "matrix product": (
        [node("Flatten", "x", "a"), node("Gemm", "a w b", "g"), node("Mul", "g f", "y")],
        {"w": reals(196, 5), "b": reals(5), "f": reals(5)}, ["reshape", "gemm"],
    ),
    "its other way": (
        [node("Flatten", "x", "a"), node("Gemm", "a w", "g", transB=1), node("Add", "g f", "y")],
        {"w": reals(5, 196), "f": reals(1, 5)}, ["reshape", "gemm"],
    ),
    "a scaled matrix product": (
        [node("Flatten", "x", "a"), node("Gemm", "a w b", "g", alpha=2.0), node("Add", "g b", "y")],
        {"w": reals(196, 5), "b": reals(5)}, ["reshape", "gemm", AFFINE],
    ),
    "a scale of queries": (
        [node("MatMul", "x w", "a"), node("Add", "b a", "c"), node("Reshape", "c shape", "d"),
         node("Transpose", "d", "e", perm=[2, 0, 1]), node("Mul", "e f", "y")],
        {"w": reals(7, 6), "b": reals(6), "shape": np.array([4, 7, 6]),
         "f": np.array(0.3, np.float32)}, ["matmul", "add", "reshape", "transpose"],
    ),
    "a scale of scores": (
        [node("MatMul", "x w", "q"), node("MatMul", "x v", "k"),
         node("Transpose", "k", "t", perm=[0, 1, 3, 2]), node("MatMul", "q t", "s"),
         node("Div", "s f", "y")],
        {"w": reals(7, 6), "v": reals(7, 6, seed=1), "f": np.array(3, np.float32)},
        ["matmul", "matmul", "transpose", "matmul"],
    ),
    "a scale of fewer scores": (
        [node("MatMul", "x w", "q"), node("Transpose", "q", "t", perm=[0, 1, 3, 2]),
         node("MatMul", "q t", "s"), node("Mul", "s f", "y")],
        {"w": reals(7, 8), "f": np.array(0.5, np.float32)},
        ["matmul", "transpose", "matmul", AFFINE],
    ),
    "a scale of many keys": (
        [node("ReduceMean", "x", "q", axes=[2]), node("Mul", "x f", "k"),
         node("Transpose", "k", "t", perm=[0, 1, 3, 2]), node("MatMul", "q t", "y")],
        {"f": np.array(0.5, np.float32)}, ["reduce_mean", "transpose", "matmul", AFFINE],
    ),
    "scales of queries and of keys": (
        [node("Relu", "x", "a"), node("Mul", "a f", "q"), node("Sigmoid", "x", "b"),
         node("Mul", "b f", "k"), node("Transpose", "k", "t", perm=[0, 1, 3, 2]),
         node("MatMul", "q t", "y")],
        {"f": np.array(0.3, np.float32)},
        ["relu", AFFINE, "sigmoid", "transpose", "matmul"],
    ),
    "queries that share keys": (
        [node("Concat", "x x x", "q", axis=1), node("Unsqueeze", "x two", "a"),
         node("Expand", "a wide", "b"), node("Reshape", "b heads", "c"),
         node("Transpose", "c", "t", perm=[0, 1, 3, 2]), node("MatMul", "q t", "y")],
        {"two": np.array([2]), "wide": np.array([1, 4, 3, 7, 7]),
         "heads": np.array([1, 12, 7, 7])},
        ["concat", "reshape", "reshape", "transpose", "reshape", "matmul", "reshape"],
    ),
    "queries that share one key": (
        [node("Slice", "x zero one axis", "a"), node("Expand", "a wide", "b"),
         node("MatMul", "x b", "y")],
        {"zero": np.array([0]), "one": np.array([1]), "axis": np.array([1]),
         "wide": np.array([1, 4, 7, 7])}, ["slice", "reshape", "reshape", "matmul", "reshape"],
    ),
    "keys one after the other": (
        [node("Concat", "x x x", "q", axis=1), node("Unsqueeze", "x one", "a"),
         node("Expand", "a wide", "b"), node("Reshape", "b heads", "c"),
         node("MatMul", "q c", "y")],
        {"one": np.array([1]), "wide": np.array([1, 3, 4, 7, 7]),
         "heads": np.array([1, 12, 7, 7])},
        ["concat", "reshape", "expand", "reshape", "matmul"],
    ),
    "expanded columns": (
        [node("Slice", "x zero one axis", "a"), node("Expand", "a wide", "b"),
         node("MatMul", "x b", "y")],
        {"zero": np.array([0]), "one": np.array([1]), "axis": np.array([3]),
         "wide": np.array([1, 4, 7, 7])}, ["slice", "expand", "matmul"],
    ),
    "a scale of what others read": (
        [node("MatMul", "x w", "a"), node("Mul", "a f", "b"), node("Add", "a b", "y")],
        {"w": reals(7, 6), "f": np.array(0.5, np.float32)}, ["matmul", AFFINE, "add"],
    ),
    "copies": (
        [node("Identity", "x", "a"), node("Dropout", "a", "b mask"), node("Relu", "b", "c"),
         node("Dropout", "c", "y")],
        {}, ["relu", "dropout"],
    ),
    "two norms in a row": (
        [node("BatchNormalization", f"{one} {NORM}", two) for one, two in ("xa", "ay")],
        norm(4), [AFFINE],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_simplified(name: str) -> None:
    nodes, weights, left = CASES[name]
    graph = graph_of(model(nodes, {"x": [1, 4, 7, 7]}, {"y": None}, weights))
    short = simplify(graph)
    assert ops(short) == left
    if name != "grouped transposed convolution":  # onnx 1.23's reference refuses that
        agree(graph, short)
    named = {name for one in short.nodes for name in (*one.inputs, *one.outputs) if name}
    assert named <= set(short.tensors) and set(short.constants) <= named
    assert all(short.constants[n].shape == short.tensors[n].shape for n in short.constants)


@pytest.mark.parametrize("outputs", [["y", "c"], ["y"]])
def test_what_others_read_stays(outputs: Sequence[str]) -> None:
    nodes = [node("Conv", "x w", "c"), node("Mul", "c f", "m"), node("Add", "m c", "y")]
    weights = {"w": reals(4, 4, 1, 1), "f": reals(4, 1, 1)}
    graph = graph_of(model(nodes, {"x": [1, 4, 2, 2]}, dict.fromkeys(outputs), weights))
    short = simplify(graph)
    assert ops(short) == ["conv", AFFINE, "add"]
    agree(graph, short)


@pytest.mark.parametrize(
    ("shape", "left"),
    [((3, 1), ["gemm", AFFINE]), ((3, 3), ["gemm", AFFINE]), ((1, 3), ["gemm"]), ((3,), ["gemm"]),
     ((1, 1), ["gemm"])],
)  # fmt: skip
def test_a_bias_is_folded_where_it_is_a_number_a_column(shape: tuple[int], left: list[str]) -> None:
    nodes = [node("Gemm", "x w b", "g"), node("Mul", "g f", "y")]
    weights = {"w": reals(4, 3), "b": reals(*shape), "f": reals(3)}
    graph = graph_of(model(nodes, {"x": [3, 4]}, {"y": None}, weights))
    short = simplify(graph)
    assert ops(short) == left
    agree(graph, short)


def test_names_of_the_model_are_not_taken() -> None:
    own = "f.shape f.shape.1 m.scale m.shift m.weights m.bias"
    nodes = [node("Flatten", "x", "f"), node("Gemm", "f w b", "g"), node("Mul", "g s", "m"),
             node("Sum", f"m {own}", "y")]  # fmt: skip
    weights = {name: reals(1, 5, seed=at) for at, name in enumerate(own.split())}
    weights |= {"w": reals(196, 5), "b": reals(5), "s": reals(5)}
    graph = graph_of(model(nodes, {"x": [1, 4, 7, 7]}, {"y": None}, weights))
    short = simplify(graph)
    assert ops(short) == ["reshape", "gemm", "sum"]
    assert short.nodes[0].inputs == ("x", "f.shape.2")
    assert short.nodes[1].inputs == ("f", "m.weights.1", "m.bias.1")
    assert simplify(short).nodes == short.nodes
    agree(graph, short)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_a_constant_of_zeros(op: str) -> None:
    zeros = np.zeros((4, 1, 1), np.float32)
    graph = graph_of(model([node(op, "x f", "y")], {"x": [1, 4, 2, 2]}, {"y": None}, {"f": zeros}))
    short = simplify(graph)
    assert ops(short) == [AFFINE]
    if op == "Div":
        assert np.isposinf(short.constants["y.scale"]).all()
    else:
        agree(graph, short)


def test_a_dropout_that_trains_stays() -> None:
    nodes = [node("Dropout", "x ratio train", "y")]
    weights = {"ratio": np.array(0.5, np.float32), "train": np.array(True)}
    graph = graph_of(model(nodes, {"x": [1, 4]}, {"y": None}, weights))
    assert ops(simplify(graph)) == ["dropout"]


@pytest.mark.exhaustive
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_chains_compute_the_same(data: st.DataObject) -> None:
    """Convolutions, norms, constants and branches, in any order."""
    weights: dict[str, Any] = norm(4)
    nodes, names = list[onnx.NodeProto](), ["x"]
    for at in range(data.draw(st.integers(1, 7))):
        kind = data.draw(st.sampled_from(["Conv", "Norm", "Mul", "Add", "Sub", "Relu", "Sum"]))
        source, made = data.draw(st.sampled_from(names[-2:])), f"t{at}"
        if kind == "Conv":
            weights[f"w{at}"] = reals(4, 4, 1, 1, seed=at)
            nodes.append(node("Conv", f"{source} w{at}", made))
        elif kind == "Norm":
            nodes.append(node("BatchNormalization", f"{source} {NORM}", made))
        elif kind in ("Mul", "Add", "Sub"):
            weights[f"w{at}"] = reals(*data.draw(st.sampled_from([(4, 1, 1), (1,), (3,)])), seed=at)
            pair = [source, f"w{at}"] if data.draw(st.booleans()) else [f"w{at}", source]
            nodes.append(node(kind, " ".join(pair), made))
        else:
            both = f"{source} {data.draw(st.sampled_from(names))}" if kind == "Sum" else source
            nodes.append(node(kind, both, made))
        names.append(made)
    outputs = {names[-1]: None, data.draw(st.sampled_from(names[1:])): None}
    graph = graph_of(model(nodes, {"x": [2, 4, 3, 3]}, outputs, weights))
    short = simplify(graph)
    assert len(short.nodes) <= len(graph.nodes)
    assert [str(one) for one in short.outputs] == [str(one) for one in graph.outputs]
    agree(graph, short, 1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "left"), [("resnet50", 123), ("densenet121", 367), ("inception_v2", 164)]
)
def test_models_of_the_onnx_package(name: str, left: int) -> None:
    short = simplify(load(LIGHT / f"light_{name}.onnx"))
    assert len(short.nodes) == left and "batch_norm" not in ops(short)


def test_inputs_must_fit() -> None:
    graph = graph_of(model([node("Relu", "x", "y")], {"x": [2]}, {"y": None}))
    with pytest.raises(SpecError, match=r"input 'x': expected shape \(2,\), got shape \(3,\)"):
        reference.run(graph, {"x": reals(3)})
    with pytest.raises(SpecError, match=r"input 'x': .* got none"):
        reference.run(graph, {})


def test_tensors_of_the_reference_go_after_their_last_use() -> None:
    """The same outputs as with all tensors kept, in the memory of a few of them."""
    weights = {f"w{at}": reals(1 << 16, seed=at) for at in range(16)}
    nodes = [node("Mul", f"y{at} w{at}", f"y{at + 1}") for at in range(16)]
    graph = graph_of(model(nodes, {"y0": [1 << 16]}, {"y9": None, "y16": None}, weights))
    x = reals(1 << 16)
    every = reference.run(graph, {"y0": x})
    tracemalloc.start()
    some = reference.run_outputs(graph, {"y0": x}, ["y9", "y16", "w3"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(some) == ["y9", "y16", "w3"] and peak < 10 * x.size * 8
    for name, value in some.items():
        assert value.dtype == "f8" and np.array_equal(value, every[name])
