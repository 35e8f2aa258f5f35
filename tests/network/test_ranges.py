"""Networks for ranges of sizes: every size computes what a network of that size alone does."""

import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest

from polysci.errors import SpecError, UnsupportedError
from polysci.network.compiled import compile_network
from polysci.network.sizes import SizedNetwork, compile_sizes
from polysci.numerics.size_classes import classes_of
from polysci.program.passes.variation import VaryingSizeError
from tests.support.command import done, polysci
from tests.support.exported import run
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
    sizes = range(1, 41)
    many = compile_sizes(attention(), {"T": sizes}, "estimate", threads=threads, verify=False)
    check_sizes(many, sizes)
    alone = many.entry(T=40).runner.model_bytes  # which other sizes share
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


def test_numbers_may_be_made_of_a_size() -> None:
    """Means over it, and the last element."""
    nodes = [
        node("ReduceMean", "x", "mean", axes=[1], keepdims=0),
        node("Gather", "x last", "end", axis=1),
        node("MatMul", "end w", "y"),
    ]
    weights = {"last": np.int64(-1), "w": whole_numbers(WIDTH, 3, seed=5)}
    pooled = model(nodes, {"x": [1, "T", WIDTH]}, {"mean": None, "y": None}, weights)
    network = compile_sizes(pooled, {"T": range(9, 13)}, "estimate", verify=False)
    for tokens in range(9, 13):
        x = whole_numbers(1, tokens, WIDTH, seed=tokens)
        results = network({"x": x})
        assert np.array_equal(results["y"], x[:, -1] @ weights["w"])
        assert np.allclose(results["mean"], x.mean(1, dtype=np.float64), atol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("batch", [2, range(5, 8)], ids=["fixed", "range"])
def test_batches(batch: int | range) -> None:
    """Sequences one behind the other lie closer in callers' arrays than between the stages."""
    several = attention()
    dims = several.graph.input[0].type.tensor_type.shape.dim
    dims[0].ClearField("dim_value")
    dims[0].dim_param = "B"
    network = compile_sizes(several, {"B": batch, "T": range(7, 10)}, "estimate", verify=False)
    for images in [batch] if isinstance(batch, int) else batch:
        for tokens in (9, 7, 8):
            x = whole_numbers(images, tokens, WIDTH, seed=tokens)
            parts = [expected_attention(own[None]) for own in x]
            results = network({"x": x})
            assert np.array_equal(results["y"], np.concatenate([own["y"] for own in parts]))
            assert np.array_equal(results["top"], np.concatenate([own["top"] for own in parts]))


@pytest.mark.exhaustive
def test_batches_of_images() -> None:
    nodes = [
        node("Conv", "x w1", "a", pads=[1, 1, 1, 1], strides=[2, 2]), node("Relu", "a", "b"),
        node("MaxPool", "b", "c", kernel_shape=[2, 2], strides=[2, 2]), node("Conv", "c w2", "d"),
        node("ReduceSum", "d axes", "e", keepdims=0), node("MatMul", "e w3", "y"),
    ]  # fmt: skip
    weights = {"w1": whole_numbers(8, 3, 3, 3, seed=1), "w2": whole_numbers(9, 8, 1, 1, seed=2),
               "w3": whole_numbers(9, 4, seed=3), "axes": np.int64([2, 3])}  # fmt: skip
    images = model(nodes, {"x": ["N", 3, 12, 12]}, {"y": None}, weights)
    network = compile_sizes(images, {"N": range(5, 9)}, "estimate", verify=False)
    for count in range(5, 9):
        x = whole_numbers(count, 3, 12, 12, seed=count)
        alone = compile_network(images, "estimate", dims={"N": count}, verify=False)
        assert np.array_equal(network({"x": x})["y"], alone({"x": x})["y"])


def test_the_last_axis_may_vary_behind_one_of_one_element() -> None:
    turned = model([node("Neg", "x", "y")], {"x": [1, 4, "T"]}, {"y": None}, {})
    network = compile_sizes(turned, {"T": range(5, 7)}, "estimate", verify=False)
    for size in (5, 6):
        x = whole_numbers(1, 4, size, seed=size)
        assert np.array_equal(network({"x": x})["y"], -x)


def test_scales_of_scores_are_where_all_sizes_have_them() -> None:
    """Shorter sequences have fewer scores than queries have elements, and longer ones more."""
    nodes = [
        node("Split", "x", "a b", axis=-1, num_outputs=2), node("Mul", "a scale", "q"),
        node("Transpose", "b", "k", perm=[1, 0]), node("MatMul", "q k", "y"),
    ]  # fmt: skip
    scores = model(nodes, {"x": ["T", 20]}, {"y": None}, {"scale": np.float32(0.5)})
    network = compile_sizes(scores, {"T": range(9, 13)}, "estimate", verify=False)
    for tokens in range(9, 13):
        x = whole_numbers(tokens, 20, seed=tokens)
        assert np.array_equal(network({"x": x})["y"], x[:, :10] * 0.5 @ x[:, 10:].T)


@pytest.mark.exhaustive
def test_a_program_of_pytorch() -> None:
    torch = pytest.importorskip("torch")

    class Causal(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 5)
            self.places = torch.nn.Embedding(32, 16)

        def forward(self, x):
            parts = self.qkv(x + self.places(torch.arange(x.shape[1]))).chunk(3, -1)
            q, k, v = (it.unflatten(-1, (2, 8)).transpose(1, 2) for it in parts)
            z = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            y = self.out(z.transpose(1, 2).flatten(2))
            return y[:, -1], y.mean(1)

    torch.manual_seed(0)
    module, length = Causal().eval(), torch.export.Dim("length", min=2, max=32)
    program = torch.export.export(module, (torch.ones(2, 7, 16),), dynamic_shapes=({1: length},))
    network = compile_sizes(program, {"x.1": range(9, 15)}, "estimate", verify=False)
    for tokens in range(9, 15):
        x = torch.randn(2, tokens, 16)
        expected = module(x)
        for array, tensor in zip(network({"x": x.numpy()}).values(), expected, strict=True):
            assert np.allclose(array, tensor.detach().numpy(), atol=1e-5)


@pytest.mark.exhaustive
def test_a_library(tmp_path: Path) -> None:
    """Built without warnings; its self-test runs the largest size of each part."""
    onnx.save(attention(), tmp_path / "small.onnx")
    words = ["--dim", "T=4..8", "--level", "estimate", "-o", str(tmp_path / "net")]
    done("compile", str(tmp_path / "small.onnx"), *words)
    header = (tmp_path / "net" / "small.h").read_text()
    assert "size_T from 4 to 8:" in header and "float32  1 x size_T x 12 (x)" in header
    assert "#define SMALL_X0_COUNT 96\n" in header
    built = run("make", "check", "CFLAGS=-O1 -Werror", cwd=tmp_path / "net")
    assert built.returncode == 0 and "0 failed" in built.stdout, built.stdout
    told = polysci("compile", str(tmp_path / "small.onnx"), "--dim", "T=4..8")
    assert "--dim T=4..8: several sizes are for a library; it needs -o DIR" in told.stderr


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
    said = r"^dimension T cannot vary: y: axis 2 of it is the size with others; list its sizes"
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
