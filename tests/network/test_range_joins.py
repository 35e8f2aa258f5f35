"""Ranges of sizes whose axes are joined with others, and of which parts are taken."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from polysci.errors import UnsupportedError
from polysci.network.sizes import SizedNetwork, compile_sizes
from polysci.program.passes.variation import VaryingSizeError
from tests.support.command import done
from tests.support.exported import run
from tests.support.onnxmodels import model, node

WIDTH, HEADS, DEEP = 12, 3, 4
Arrays = Mapping[str, np.ndarray]


def whole_numbers(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


WEIGHTS = {
    "wq": whole_numbers(WIDTH, WIDTH, seed=1), "wk": whole_numbers(WIDTH, WIDTH, seed=2),
    "wo": whole_numbers(WIDTH, 5, seed=3), "heads": np.int64([0, 0, HEADS, DEEP]),
    "back": np.int64([0, 0, WIDTH]),
}  # fmt: skip


def check(
    network: SizedNetwork, inputs: Callable[..., Arrays], expected: Callable[[Arrays], Arrays],
    *sizes: tuple[int, ...],
) -> None:  # fmt: skip
    """In both directions: what a longer run leaves behind an end changes no shorter one."""
    for size in (*sizes[::-1], *sizes):
        arrays = inputs(*size)
        results = network(arrays)
        for name, array in expected(arrays).items():
            assert results[name].shape == array.shape
            tolerance = 1e-6 if name == "mean" else 0
            assert np.allclose(results[name], array, rtol=tolerance, atol=0), (size, name)


def cached_attention(rows: int | str = 1) -> onnx.ModelProto:
    """Attention of new rows to keys and values of a cache and their own, hidden ones left out."""
    nodes = [
        node("MatMul", "x wq", "q0"), node("Reshape", "q0 heads", "q1"),
        node("Transpose", "q1", "q", perm=[0, 2, 1, 3]),
        node("MatMul", "x wk", "k0"), node("Reshape", "k0 heads", "k1"),
        node("Transpose", "k1", "k2", perm=[0, 2, 1, 3]),
        node("Concat", "past_k k2", "k3", axis=2), node("Transpose", "k3", "k", perm=[0, 1, 3, 2]),
        node("Reshape", "x heads", "v1"), node("Transpose", "v1", "v2", perm=[0, 2, 1, 3]),
        node("Concat", "past_v v2", "v", axis=2),
        node("MatMul", "q k", "s"), node("Relu", "s", "r"), node("Mul", "r mask", "p"),
        node("MatMul", "p v", "z0"), node("Transpose", "z0", "z1", perm=[0, 2, 1, 3]),
        node("Reshape", "z1 back", "z"), node("MatMul", "z wo", "y"),
    ]  # fmt: skip
    cache = [1, HEADS, "past", DEEP]
    inputs = {
        "x": [1, rows, WIDTH],
        "past_k": cache,
        "past_v": cache,
        "mask": [1, f"past + {rows}"],
    }
    return model(nodes, inputs, {"y": None, "k3": None, "v": None}, WEIGHTS)


def cached_inputs(past: int, rows: int = 1) -> Arrays:
    cache = [whole_numbers(1, HEADS, past, DEEP, seed=seed) for seed in (past, 100 + past)]
    mask = np.random.default_rng(past).integers(0, 2, (1, past + rows)).astype(np.float32)
    x = whole_numbers(1, rows, WIDTH, seed=rows)
    return {"x": x, "past_k": cache[0], "past_v": cache[1], "mask": mask}


def split(tensor: np.ndarray) -> np.ndarray:
    return tensor.reshape(1, -1, HEADS, DEEP).transpose(0, 2, 1, 3)


def expected_attention(inputs: Arrays) -> Arrays:
    x = inputs["x"].astype(np.float64)
    k = np.concatenate([inputs["past_k"], split(x @ WEIGHTS["wk"])], 2)
    v = np.concatenate([inputs["past_v"], split(x)], 2)
    p = np.maximum(split(x @ WEIGHTS["wq"]) @ k.swapaxes(2, 3), 0) * inputs["mask"]
    z = (p @ v).transpose(0, 2, 1, 3).reshape(1, -1, WIDTH)
    return {"y": z @ WEIGHTS["wo"], "k3": k, "v": v}


def test_a_cache_and_a_new_row() -> None:
    """The sizes of the mask are told by its name, a sum."""
    network = compile_sizes(cached_attention(), {"past": range(8, 13)}, "estimate", verify=False)
    entry = network.entry(past=10)
    assert [port.shape for port in entry.outputs][1] == (1, HEADS, 11, DEEP)
    check(network, cached_inputs, expected_attention, *[(past,) for past in range(8, 13)])
    wrong = {**cached_inputs(10), "mask": np.ones((1, 10), np.float32)}
    with pytest.raises(ValueError, match=r"no entry has inputs .*mask \[1, 10\]"):
        network(wrong)


@pytest.mark.exhaustive
def test_a_library_with_a_cache(tmp_path: Path) -> None:
    """Built without warnings; its header tells the sums of sizes."""
    onnx.save(cached_attention("rows"), tmp_path / "cached.onnx")
    words = ["--dim", "past=7..12", "--dim", "rows=4..6", "--level", "estimate"]
    done("compile", str(tmp_path / "cached.onnx"), *words, "-o", str(tmp_path / "net"))
    header = (tmp_path / "net" / "cached.h").read_text()
    assert "float32  1 x (size_past + size_rows) (mask)" in header
    built = run("make", "check", "CFLAGS=-O1 -Werror", cwd=tmp_path / "net")
    assert built.returncode == 0 and "0 failed" in built.stdout, built.stdout


@pytest.mark.exhaustive
def test_a_decoder_of_pytorch() -> None:
    """The sizes of the mask are those of the cache and one more, as its Dim says."""
    torch = pytest.importorskip("torch")

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 5)

        def forward(self, x, past_k, past_v, mask):
            parts = self.qkv(x).chunk(3, -1)
            q, k, v = (it.unflatten(-1, (2, 8)).transpose(1, 2) for it in parts)
            k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
            z = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, None, :])
            return self.out(z.transpose(1, 2).flatten(2)), k, v

    torch.manual_seed(0)
    module, past = Decoder().eval(), torch.export.Dim("past", min=2, max=64)

    def inputs(size: int) -> tuple:
        cache = [torch.randn(1, 2, size, 8) for _ in range(2)]
        return torch.randn(1, 1, 16), *cache, torch.randn(1, size + 1)

    shapes = (None, {2: past}, {2: past}, {1: past + 1})
    program = torch.export.export(module, inputs(6), dynamic_shapes=shapes)
    network = compile_sizes(program, {"past_k.2": range(5, 13)}, "estimate", verify=False)
    for size in (*range(5, 13), 5):
        tensors = inputs(size)
        names = ("x", "past_k", "past_v", "mask")
        results = network({name: it.numpy() for name, it in zip(names, tensors, strict=True)})
        for array, tensor in zip(results.values(), module(*tensors), strict=True):
            assert np.allclose(array, tensor.detach().numpy(), atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_a_cache_of_many_sizes_and_several_rows(threads: int) -> None:
    dims = {"past": range(1, 26), "rows": range(1, 8)}
    network = compile_sizes(
        cached_attention("rows"), dims, "estimate", threads=threads, verify=False
    )
    sizes = [(past, rows) for past in (*range(1, 15), 17, 24, 25) for rows in (7, 1, 4, 5)]
    check(network, cached_inputs, expected_attention, *sizes)


def rows_of(tokens: int) -> Arrays:
    return {"x": whole_numbers(1, tokens, WIDTH, seed=tokens)}


def test_tokens_around_all_others() -> None:
    """Scores and sums are over all of them; the first one is a result."""
    nodes = [
        node("Concat", "token x end", "a", axis=1), node("MatMul", "a wq", "q"),
        node("Transpose", "a", "k", perm=[0, 2, 1]), node("MatMul", "q k", "s"),
        node("ReduceMax", "s", "m", axes=[-1], keepdims=1), node("Sub", "s m", "p"),
        node("MatMul", "p a", "y"), node("Gather", "y first", "top", axis=1),
        node("ReduceMean", "a", "mean", axes=[1], keepdims=0),
    ]  # fmt: skip
    weights = {
        "wq": WEIGHTS["wq"], "token": whole_numbers(1, 1, WIDTH, seed=4), "first": np.int64(0),
        "end": whole_numbers(1, 2, WIDTH, seed=5),
    }  # fmt: skip
    outputs = {"y": None, "top": None, "mean": None}
    joined = model(nodes, {"x": [1, "T", WIDTH]}, outputs, weights)

    def expected(inputs: Arrays) -> Arrays:
        a = np.concatenate([weights["token"], inputs["x"], weights["end"]], 1)
        s = a @ WEIGHTS["wq"] @ a.swapaxes(1, 2)
        y = (s - s.max(-1, keepdims=True)) @ a
        return {"y": y, "top": y[:, 0], "mean": a.mean(1, dtype=np.float64)}

    network = compile_sizes(joined, {"T": range(9, 13)}, "estimate", verify=False)
    check(network, rows_of, expected, *[(tokens,) for tokens in range(9, 13)])


PARTS: Mapping[str, slice] = {
    "behind": slice(1, None), "before": slice(None, -1), "middle": slice(2, -3),
    "fixed": slice(2, 6), "last": slice(-3, None), "late": slice(-5, -2),
    "turned": slice(None, None, -1), "halves": slice(1, None, 2),
}  # fmt: skip


def parts() -> tuple[onnx.ModelProto, Callable[[Arrays], Arrays]]:
    """Products and sums of parts of an axis, each of which is multiplied with itself."""
    nodes, weights, outputs = list[onnx.NodeProto](), {"one": np.int64([1])}, dict[str, None]()
    for name, part in PARTS.items():
        step = part.step or 1
        limits = {"starts": part.start, "ends": part.stop, "steps": step}
        missing = {"starts": 0, "ends": 99} if step > 0 else {"starts": 99, "ends": -99}
        for word, value in limits.items():
            number = missing[word] if value is None else value
            weights[f"{name}_{word}"] = np.int64([number])
        words = f"x {name}_starts {name}_ends one {name}_steps"
        nodes += [
            node("Slice", words, name), node("Transpose", name, f"{name}_t", perm=[0, 2, 1]),
            node("MatMul", f"{name}_t {name}", f"{name}_y"),
            node("Add", f"{name} {name}", f"{name}_two"),
        ]  # fmt: skip
        outputs |= {f"{name}_y": None, f"{name}_two": None}
    nodes += [
        node("Sub", "behind before", "steps"),
        node("Concat", "last behind fixed", "turn", axis=1),
    ]
    outputs |= {"steps": None, "turn": None}

    def expected(inputs: Arrays) -> Arrays:
        x, results = inputs["x"], dict[str, np.ndarray]()
        for name, part in PARTS.items():
            own = x[:, part]
            results |= {f"{name}_y": own.swapaxes(1, 2) @ own, f"{name}_two": 2 * own}
        results["steps"] = x[:, 1:] - x[:, :-1]
        return {**results, "turn": np.concatenate([x[:, -3:], x[:, 1:], x[:, 2:6]], 1)}

    return model(nodes, {"x": [1, "T", WIDTH]}, outputs, weights), expected


def test_parts_of_an_axis() -> None:
    taken, expected = parts()
    network = compile_sizes(taken, {"T": range(9, 13)}, "estimate", verify=False)
    check(network, rows_of, expected, *[(tokens,) for tokens in range(9, 13)])


def test_what_has_no_code_is_named() -> None:
    """Twice a size, an element that shorter sizes do not have, and state of a range."""
    kept = {"past_k": "k3", "past_v": "v"}
    said = r"^dimension past cannot vary: past_k: what lasts from run to run has one size; list"
    with pytest.raises(VaryingSizeError, match=said):
        compile_sizes(cached_attention(), {"past": range(9, 13)}, "estimate", state=kept)
    twice = model([node("Concat", "x x", "y", axis=1)], {"x": [1, "T", 4]}, {"y": None}, {})
    with pytest.raises(VaryingSizeError, match=r"^dimension T cannot vary: y: axis 1 of it is the"):
        compile_sizes(twice, {"T": range(9, 13)}, "estimate")
    places = {"place": np.int64(10)}
    late = model([node("Gather", "x place", "y", axis=1)], {"x": [1, "T", 4]}, {"y": None}, places)
    with pytest.raises(UnsupportedError, match=r"indices outside of axes of \[9\] elements"):
        compile_sizes(late, {"T": range(9, 13)}, "estimate")
