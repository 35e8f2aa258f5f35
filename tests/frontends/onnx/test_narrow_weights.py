"""Constant weights of 4 and 8 bits stay narrow, and results are those of their values."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.errors import UnsupportedError
from polysci.graph.graph import NARROW_MATMUL
from polysci.graph.passes.table import simplify
from tests.support.networks import network_of, read

ml_dtypes = pytest.importorskip("ml_dtypes")
M, K, N = 3, 128, 20
RANGES = {"INT4": (-8, 8), "UINT4": (0, 16), "INT8": (-128, 128), "UINT8": (0, 256)}
Arrays = dict[str, np.ndarray]


def reals(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def model_of(nodes: list[Any], tensors: list[Any], k: int = K, rows: tuple[int, ...] = (M,)) -> Any:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "narrow", [info("x", TensorProto.FLOAT, (*rows, k))],
        [info("y", TensorProto.FLOAT, (*rows, N))], tensors,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@dataclass(frozen=True)
class Case:
    """A model, the weights that its numbers stand for (K x N), and the type that stays narrow."""

    model: Any
    weights: np.ndarray
    bias: np.ndarray | float
    kept: str

    def check(self) -> None:
        """Compare with float64, and the layer's type."""
        graph = simplify(read(self.model))
        narrow = [node.attributes["weights"] for node in graph.nodes if node.op == NARROW_MATMUL]
        assert narrow == [self.kept] * bool(self.kept)
        x = reals(*[dim.dim_value for dim in self.model.graph.input[0].type.tensor_type.shape.dim])
        network = network_of(graph)
        y = network({"x": x})["y"]
        (key,) = network.schedules
        assert key.endswith(f" f32:{self.kept}:f32" if self.kept else " f32")
        assert "1 stages" in repr(network) or not self.kept
        bound = (K + 4) * 2.0**-24 * (abs(x).astype(float) @ abs(self.weights) + abs(self.bias))
        assert (abs(y - (x.astype(float) @ self.weights + self.bias)) <= bound).all()


def microsoft(
    bits: int, block: int, zeros: str = "", *, k: int = K, bias: bool = False, kept: str = "",
    rows: tuple[int, ...] = (M,), **words: int,
) -> Case:  # fmt: skip
    """A product by MatMulNBits."""
    random, parts = np.random.default_rng(1), -(-k // block)
    numbers = random.integers(0, 2**bits, (N, parts * block))
    halves = numbers[:, ::2] | numbers[:, 1::2] << 4
    packed = (halves if bits == 4 else numbers).astype(np.uint8).reshape(N, parts, -1)
    scale = random.random((N, parts)).astype(np.float32)
    given: Arrays = {"B": packed, "scale": scale.reshape(-1)}
    zero = np.full((N, parts), 2.0 ** (bits - 1))
    if zeros == "packed":
        zero = random.integers(0, 2**bits, (N, parts))
        pairs = np.pad(zero, ((0, 0), (0, parts % 2)))
        both = pairs[:, ::2] | pairs[:, 1::2] << 4
        given["zero"] = (both if bits == 4 else zero).astype(np.uint8).reshape(-1)
    elif zeros:
        zero = given["zero"] = (random.random((N, parts)) * 2**bits).astype(np.float32)
    names = ["x", "B", "scale", "zero" if zeros else ""]
    if bias:
        given["bias"] = reals(N, seed=2)
        names += ["", "bias"]
    node = helper.make_node("MatMulNBits", names, ["y"], "the product", domain="com.microsoft",
                            K=k, N=N, bits=bits, block_size=block, **words)  # fmt: skip
    tensors = [numpy_helper.from_array(value, name) for name, value in given.items()]
    real = (numbers - np.repeat(zero, block, 1)) * np.repeat(scale, block, 1).astype(float)
    return Case(
        model_of([node], tensors, k, rows), real[:, :k].T, given.get("bias", 0.0), kept
    )  # fmt: skip


def dequantised(
    kind: str, scheme: str, *, zero: bool = False, form: str = "matmul", k: int = K, kept: str = ""
) -> Case:
    """A product by what DequantizeLinear makes of numbers; ``form`` says how it reads them."""
    random, turned = np.random.default_rng(3), form != "matmul"
    shape, along = ((N, k), 1) if turned else ((k, N), 0)
    low, high = RANGES[kind]
    numbers = random.integers(low, high, shape)
    words: dict[str, int] = {}
    sizes: tuple[int, ...] = ()
    if scheme == "columns":
        sizes, words = (N,), {"axis": 1 - along}
    elif scheme != "tensor":
        block = int(scheme)
        words = {"axis": along, "block_size": block}
        sizes = (N, -(-k // block)) if turned else (-(-k // block), N)
    scale = np.asarray(random.random(sizes), np.float32)
    zeros = random.integers(low, high, sizes) if zero else np.zeros(sizes, int)
    data_type = getattr(TensorProto, kind)
    tensors = [
        helper.make_tensor("q", data_type, shape, numbers.ravel()),
        numpy_helper.from_array(scale, "scale"),
        helper.make_tensor("zero", data_type, sizes, np.asarray(zeros).ravel()),
        numpy_helper.from_array(reals(N, seed=4), "bias"),
    ]
    nodes = [helper.make_node("DequantizeLinear", ["q", "scale", *["zero"] * zero], ["w"], **words)]
    if form == "gemm":
        nodes.append(helper.make_node("Gemm", ["x", "w", "bias"], ["y"], transB=1))
    elif turned:
        nodes.append(helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["x", "turned"], ["y"]))
    else:
        nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))

    def spread(part: np.ndarray) -> np.ndarray:
        if scheme == "columns":
            return part[:, None] if turned else part
        return part if scheme == "tensor" else np.repeat(part, block, along)

    whole = (slice(None), slice(k)) if turned else (slice(k), slice(None))
    factors = [np.asarray(spread(part), float) for part in (zeros, scale)]
    less, step = (part[whole] if part.ndim == 2 else part for part in factors)
    real = (numbers - less) * step
    bias = reals(N, seed=4) if form == "gemm" else 0.0
    return Case(model_of(nodes, tensors, k), real.T if turned else real, bias, kept)


def cast(kind: str, kept: str) -> Case:
    """A product by numbers as they are, whose columns are scaled behind it."""
    numbers = np.random.default_rng(5).integers(*RANGES[kind], (K, N))
    scale = np.abs(reals(N, seed=6))
    tensors = [
        helper.make_tensor("q", getattr(TensorProto, kind), (K, N), numbers.ravel()),
        numpy_helper.from_array(scale, "scale"),
    ]
    nodes = [
        helper.make_node("Cast", ["q"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Mul", ["m", "scale"], ["y"]),
    ]
    return Case(model_of(nodes, tensors), numbers * scale.astype(float), 0.0, kept)


CASES = {
    "4 bits": microsoft(4, 32, kept="s4x32"),
    "4 bits, zeros": microsoft(4, 32, "packed", kept="u4x32", rows=(2, M)),
    "4 bits, real zeros, bias": microsoft(4, 64, "real", bias=True, kept="u4x64", accuracy_level=4),
    "8 bits": microsoft(8, 16, kept="s8x16"),
    "8 bits, zeros, bias": microsoft(8, 128, "packed", bias=True, kept="u8x128"),
    "a part of a block": microsoft(4, 32, "packed", k=120, bias=True),
    "int4, blocks": dequantised("INT4", "32", kept="s4x32"),
    "uint4, blocks, transposed": dequantised("UINT4", "16", zero=True, form="turned", kept="u4x16"),
    "int4, blocks, zeros": dequantised("INT4", "64", zero=True, form="gemm", kept="u4x64"),
    "int8, columns": dequantised("INT8", "columns", kept="s8x128"),
    "uint8, columns, zeros": dequantised("UINT8", "columns", zero=True, form="gemm", kept="u8x128"),
    "uint8, one scale": dequantised("UINT8", "tensor", zero=True, form="turned", kept="u8x128"),
    "int8, scaled behind": cast("INT8", "s8x128"),
    "uint4, scaled behind": cast("UINT4", "u4x128"),
    "no block divides K": dequantised("INT4", "columns", k=120),
    "a last block that is cut": dequantised("UINT4", "64", zero=True, k=96),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_weights_stay_narrow(case: Case) -> None:
    case.check()


def test_orders_of_k_and_other_sizes_are_refused() -> None:
    model = microsoft(4, 32).model
    model.graph.node[0].input.extend(["order"])
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(K, np.int32), "order"))
    with pytest.raises(UnsupportedError, match="g_idx"):
        read(model)
    with pytest.raises(UnsupportedError, match="2 bits"):
        read(microsoft(4, 32).model.__class__.FromString(_with_bits(2)))


def _with_bits(bits: int) -> bytes:
    model = microsoft(4, 32).model
    next(it for it in model.graph.node[0].attribute if it.name == "bits").i = bits
    return bytes(model.SerializeToString())


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(("bits", "zeros"), [(4, ""), (4, "packed"), (4, "real"), (8, "packed")])
def test_results_are_those_of_onnx_runtime(bits: int, zeros: str, level: int) -> None:
    """Its level 4 rounds x to 8 bits, which these do not."""
    runtime = pytest.importorskip("onnxruntime")
    case, x = microsoft(bits, 32, zeros, accuracy_level=level), reals(M, K)
    session = runtime.InferenceSession(case.model.SerializeToString())
    (expected,) = session.run(None, {"x": x})
    y = network_of(read(case.model))({"x": x})["y"]
    bound = abs(x) @ abs(case.weights) * (2.0**-6 if level == 4 else 1e-5)
    assert (abs(y - expected) <= bound).all()


def test_onnx_knows_the_numbers() -> None:
    assert helper.tensor_dtype_to_np_dtype(onnx.TensorProto.INT4).name == "int4"
