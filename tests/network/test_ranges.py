"""Networks for ranges of sizes: every size computes what a network of that size alone does."""

import pickle

import numpy as np
import onnx
import pytest

from polysci.errors import SpecError, UnsupportedError
from polysci.network.size_classes import classes_of
from polysci.network.sizes import SizedNetwork, compile_sizes
from polysci.program.passes.variation import VaryingSizeError
from tests.support.onnxmodels import model, node

WIDTH, HEADS = 12, 3


def whole_numbers(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


WEIGHTS = {
    "wq": whole_numbers(WIDTH, WIDTH, seed=1), "wk": whole_numbers(WIDTH, WIDTH, seed=2),
    "wo": whole_numbers(WIDTH, 5, seed=3), "heads": np.int64([0, 0, HEADS, WIDTH // HEADS]),
    "back": np.int64([0, 0, WIDTH]), "first": np.int64(0),
}  # fmt: skip


def attention() -> onnx.ModelProto:
    """Attention without exponentials, so that whole numbers have exact results; the first row."""
    nodes = [
        node("MatMul", "x wq", "q0"), node("Reshape", "q0 heads", "q1"),
        node("Transpose", "q1", "q", perm=[0, 2, 1, 3]),
        node("MatMul", "x wk", "k0"), node("Reshape", "k0 heads", "k1"),
        node("Transpose", "k1", "k", perm=[0, 2, 3, 1]),
        node("Reshape", "x heads", "v1"), node("Transpose", "v1", "v", perm=[0, 2, 1, 3]),
        node("MatMul", "q k", "s"), node("Relu", "s", "r"),
        node("ReduceMax", "r", "m", axes=[-1], keepdims=1), node("Sub", "r m", "p"),
        node("MatMul", "p v", "z0"), node("Transpose", "z0", "z1", perm=[0, 2, 1, 3]),
        node("Reshape", "z1 back", "z"), node("MatMul", "z wo", "y"),
        node("Gather", "y first", "top", axis=1), node("ReduceSum", "y", "total", keepdims=0),
    ]  # fmt: skip
    outputs = {"y": None, "top": None, "total": None}
    return model(nodes, {"x": [1, "T", WIDTH]}, outputs, WEIGHTS)


def expected_attention(x: np.ndarray) -> dict[str, np.ndarray]:
    x = x.astype(np.float64)

    def split(tensor: np.ndarray) -> np.ndarray:
        return tensor.reshape(1, -1, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)

    q, k, v = split(x @ WEIGHTS["wq"]), split(x @ WEIGHTS["wk"]), split(x)
    r = np.maximum(q @ k.swapaxes(2, 3), 0)
    z = (r - r.max(-1, keepdims=True)) @ v
    y = z.transpose(0, 2, 1, 3).reshape(1, -1, WIDTH) @ WEIGHTS["wo"]
    return {"y": y, "top": y[:, 0], "total": y.sum()}


@pytest.fixture(scope="module")
def network() -> SizedNetwork:
    return compile_sizes(attention(), {"T": range(9, 13)}, "estimate", verify=False)


def check_sizes(network: SizedNetwork, sizes: range) -> None:
    """In both directions: what a longer run leaves behind an end changes no shorter one."""
    for tokens in (*sizes[::-1], *sizes):
        x = whole_numbers(1, tokens, WIDTH, seed=tokens)
        for name, array in expected_attention(x).items():
            assert np.array_equal(network({"x": x})[name], array), (tokens, name)


def test_every_size_is_exact(network: SizedNetwork) -> None:
    assert network.sizes == ({"T": range(9, 13)},)
    check_sizes(network, range(9, 13))


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_every_size_of_many_is_exact(threads: int) -> None:
    sizes = range(1, 71)
    many = compile_sizes(attention(), {"T": sizes}, "estimate", threads=threads, verify=False)
    check_sizes(many, sizes)
    alone = many.entry(T=70).runner.model_bytes  # which other sizes share
    assert alone < 4 * sum(WEIGHTS[name].size for name in ("wq", "wk", "wo")) + 4096


def test_results_may_be_given(network: SizedNetwork) -> None:
    """Nothing is written beyond the elements of a size."""
    x = whole_numbers(1, 9, WIDTH, seed=4)
    around = np.full((1, 12, 5), 7, np.float32)
    out = {"y": around[:, :9], "top": np.empty((1, 5), np.float32),
           "total": np.empty((), np.float32)}  # fmt: skip
    network({"x": x}, out)
    assert np.array_equal(out["y"], expected_attention(x)["y"]) and (around[:, 9:] == 7).all()


def test_an_entry_is_a_network_of_its_size(network: SizedNetwork) -> None:
    entry = network.entry(T=10)
    assert entry.inputs[0].shape == (1, 10, WIDTH) and entry.outputs[0].shape == (1, 10, 5)
    x = whole_numbers(1, 10, WIDTH, seed=1)
    assert np.array_equal(entry({"x": x})["y"], network({"x": x})["y"])
    with pytest.raises(UnsupportedError, match="a pickle holds a network of one size"):
        pickle.dumps(entry)
    assert network.report().splitlines()[0].split()[0] == "T=9..12"


def test_other_sizes_are_refused(network: SizedNetwork) -> None:
    said = rf"^no entry has inputs x \[1, 13, {WIDTH}\]; known: T=9..12$"
    with pytest.raises(ValueError, match=said):
        network({"x": whole_numbers(1, 13, WIDTH, seed=0)})
    with pytest.raises(SpecError, match=r"^no entry of T=4; known: T=9..12$"):
        network.entry(T=4)
    with pytest.raises(SpecError, match=r"'T': expected a range of sizes from 1 on"):
        compile_sizes(attention(), {"T": range(1, 9, 2)}, "estimate")


def test_what_cannot_vary_is_named() -> None:
    nodes = [node("Reshape", "x rows", "y")]
    shaped = model(nodes, {"x": [1, "T", 4]}, {"y": None}, {"rows": np.int64([1, 2, -1])})
    said = r"^dimension T cannot vary: .*y: axis 2 of y has 16 elements for 8, 14 for 7; list its"
    with pytest.raises(VaryingSizeError, match=said):
        compile_sizes(shaped, {"T": range(7, 9)}, "estimate")


def test_parts_of_ranges() -> None:
    """They follow on each other, and grow as their rule says."""
    for sizes in (range(1, 2049), range(5, 10), range(100, 101), range(60, 300)):
        parts = classes_of(sizes)
        assert [size for part in parts for size in part] == [*sizes]
        for part in parts:
            assert len(part) == 1 or part[0] > 4
            assert part[-1] / max(1, part[0] - 1) <= (1.5 if 4 < part[-1] <= 64 else 2)
    assert len(classes_of(range(1, 2049))) == 17
