"""What contradicts itself is refused by name; what is odd but right is computed."""

import time
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.errors import SpecError, UnsupportedError
from polysci.graph.passes.table import simplify
from polysci.network.compiled import compile_network
from polysci.network.prepare import prepare
from tests.support.flags import QUICK
from tests.support.networks import disagreement, read
from tests.support.onnxmodels import node, reals

BRAIN, BYTE = TensorProto.BFLOAT16, TensorProto.UINT8
X, ROOT = {"x": (1, 3, 4, 4)}, {"s": np.float32(1), "z": np.uint8(0), "v": np.int8(0)}


def made(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]],
    weights: dict[str, Any] | None = None, outputs: tuple[str, ...] = ("y",), **kinds: int,
) -> onnx.ModelProto:  # fmt: skip
    """A model; ``kinds`` are element types other than f32."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "small",
        [info(n, kinds.get(n, TensorProto.FLOAT), s) for n, s in inputs.items()],
        [info(n, kinds.get(n, TensorProto.FLOAT), None) for n in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in (weights or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def one(
    op: str, names: str, inputs: dict[str, tuple[int, ...]], weights: dict[str, Any] | None = None,
    **words: Any,
) -> onnx.ModelProto:  # fmt: skip
    kinds = {n: words.pop(n) for n in ("x", "y") if n in words}
    return made([node(op, names, "y", **words)], inputs, weights, **kinds)


WRONG = {
    "channels": (one("Conv", "x w", X, {"w": reals(2, 4, 3, 3)}), r"weights \[2, 4, 3, 3\]"),
    "bias": (one("Conv", "x w b", X, {"w": reals(2, 3, 3, 3), "b": reals(3)}), r"bias \[3\] for 2"),
    "groups": (one("Conv", "x w", X, {"w": reals(2, 3, 3, 3)}, group=0), "0 groups"),
    "taps": (one("Conv", "x w", X, {"w": reals(2, 3, 3, 3)}, kernel_shape=[2, 2]), "kernel_shape"),
    "stride": (one("Conv", "x w", X, {"w": reals(2, 3, 3, 3)}, strides=[0, 1]), "positive values"),
    "pads": (one("Conv", "x w", X, {"w": reals(2, 3, 3, 3)}, pads=[-1, 0, 0, 0]), "negative"),
    "transposed channels": (one("ConvTranspose", "x w", X, {"w": reals(2, 4, 3, 3)}), "weights"),
    "transposed bias": (
        one("ConvTranspose", "x w b", X, {"w": reals(3, 4, 3, 3), "b": reals(3)}), "for 4 channels",
    ),
    "gemm C": (one("Gemm", "x w c", {"x": (2, 3)}, {"w": reals(3, 4), "c": reals(3)}), r"C \[3\]"),
    "wide C": (one("Gemm", "x w c", {"x": (1, 3)}, {"w": reals(3, 4), "c": reals(5, 4)}), "C "),
    "matmul": (one("MatMul", "x w", {"x": (2, 3)}, {"w": reals(4, 4)}), "Incompatible dimensions"),
    "step": (
        one("Slice", "x a b a a", {"x": (2, 3)}, {"a": np.array([0]), "b": np.array([2])}), "step",
    ),
    "pad mode": (
        one("Pad", "x p", {"x": (2, 3)}, {"p": np.array([1, 0, 0, 0])}, mode="strange"), "mode str",
    ),
    "less than nothing": (
        one("Pad", "x p", {"x": (2, 3)}, {"p": np.array([-2, 0, -1, 0])}), r"shape \[-1, 3\]",
    ),
    "pool": (one("MaxPool", "x", X, kernel_shape=[6, 6]), r"shape \[1, 3, -1"),
    "neighbours": (one("LRN", "x", X, size=0), "size 0"),
    "no mean": (one("ReduceMean", "x", {"x": (0, 3)}, axes=[0]), "a mean of nothing"),
    "bound": (one("Clip", "x a", {"x": (4,)}, {"a": reals(4)}), "several numbers"),
    "brain": (one("Relu", "x", {"x": (4,)}, x=BRAIN, y=BRAIN), "elements of bfloat16"),
    "scales": (
        one("QuantizeLinear", "x s z", X, {"s": reals(5), "z": np.zeros(5, np.uint8)}, y=BYTE),
        r"\[5\] parameters for axis 1",
    ),
    "bytes": (
        one("ConvInteger", "x w", X, {"w": np.ones((2, 4, 3, 3), np.int8)}, x=BYTE,
            y=TensorProto.INT32), r"weights \[2, 4, 3, 3\]",
    ),
    "scaled bytes": (
        one("QLinearConv", "x s z w s v s z", X, ROOT | {"w": np.ones((2, 4, 3, 3), np.int8)},
            x=BYTE, y=BYTE), r"weights \[2, 4, 3, 3\]",
    ),
    "region": (
        one("Resize", "x r s", X, {"r": reals(2), "s": np.float32([1, 1, 2, 2])}, mode="linear",
            coordinate_transformation_mode="tf_crop_and_resize"), "2 numbers as roi for 4 axes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_contradictions_are_named(name: str) -> None:
    model, message = WRONG[name]
    with pytest.raises((SpecError, UnsupportedError), match=message) as caught:
        prepare(simplify(read(model)))
    assert " of y" in str(caught.value) or "'y'" in str(caught.value)


def odd() -> onnx.ModelProto:
    """Tensors without elements, numbers without axes, an input that is an output, and names."""
    bad = '*/ "\n\\ } \u00e9 %s ??/\n#error '
    weights = {"w": reals(2, 3, 3, 3), "v": reals(3, 4), "p": np.array([0, 0, -1, 1, 0, 0, 1, -1]),
               "none": np.array([2]), "from": np.array([1])}  # fmt: skip
    nodes = [
        node("Conv", "none_of_them w", "c"), node("Gemm", "few v", "g"),
        node("MatMul", "few v", "m"), node("Relu", "number", "r"), node("Add", "number x", "a"),
        node("ReduceMean", "x", "mean", keepdims=0), node("Pad", "x p", "pad"),
        node("Slice", "few from from", "cut"), node("Concat", "cut cut", "cuts", axis=0),
        helper.make_node("Relu", [f"x{bad}"], [f"t{bad}"], name=bad),
        helper.make_node("Concat", [f"t{bad}", f"x{bad}"], [f"y{bad}"], name="/*", axis=0),
        node("Add", "wide wide", "d"),
    ]  # fmt: skip
    shapes = {"none_of_them": (0, 3, 4, 4), "few": (0, 3), "number": (), "x": (1, 3, 4, 4),
              f"x{bad}": (2, 3), "wide": (2, 2)}  # fmt: skip
    outputs = ("c", "g", "m", "r", "a", "mean", "pad", "cuts", f"y{bad}", "d", "number", "a")
    model = made(
        nodes, shapes, weights, outputs[:-1], wide=TensorProto.DOUBLE, d=TensorProto.DOUBLE
    )
    model.graph.name = bad
    return model


@pytest.mark.parametrize("threads", [1, 2])
def test_odd_graphs_run(threads: int) -> None:
    network = compile_network(simplify(read(odd())), "estimate", threads, isa="portable",
                              flags=QUICK)  # fmt: skip
    random = np.random.default_rng(0)
    given = {p.name: random.normal(size=p.shape).astype(p.dtype) for p in network.inputs}
    found, x = network(given), given["x"]
    assert isinstance(found, dict)
    assert [found[name].shape for name in ("c", "g", "m", "cuts")] == [
        (0, 2, 2, 2), (0, 4), (0, 4), (0, 3),
    ]  # fmt: skip
    assert found["number"] == given["number"] and found["mean"] == pytest.approx(x.mean(), abs=1e-6)
    padded = np.pad(x, ((0, 0), (0, 0), (0, 1), (1, 0)))[:, :, 1:, :-1]
    np.testing.assert_array_equal(found["pad"], padded)
    np.testing.assert_array_equal(found["d"], 2 * given["wide"])


def chain(length: int) -> onnx.ModelProto:
    ops = ("Relu", "Sigmoid", "Tanh")
    nodes = [node(ops[at % 3], f"t{at}", f"t{at + 1}") for at in range(length)]
    return made(nodes, {"t0": (2, 3)}, outputs=(f"t{length}",))


@pytest.mark.exhaustive
def test_long_chains_are_fused_in_parts() -> None:
    graph, start = read(chain(600)), time.process_time()
    prepared = prepare(simplify(graph))
    assert time.process_time() - start < 10
    assert 1 < len(prepared.program.stages) < 10
    assert not disagreement(read(chain(100)), 1, "f32", fuse=True)


@pytest.mark.exhaustive
def test_a_tensor_that_many_read() -> None:
    nodes = [node("Relu", "x", "t"), *(node("Conv", f"t w{at % 3}", f"y{at}") for at in range(30))]
    weights = {f"w{at}": reals(2, 3, 3, 3, seed=at) for at in range(3)}
    model = made(nodes, {"x": (1, 3, 5, 5)}, weights, tuple(f"y{at}" for at in range(30)))
    assert not disagreement(read(model), 2, "f32", fuse=True)
