"""Ranges of sizes along which windows move: lengths of signals, heights and widths of images."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest

from polysci.network.compiled import compile_network
from polysci.network.sizes import compile_sizes
from tests.support.onnxmodels import model, node


def whole_numbers(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def check(
    built: onnx.ModelProto, dims: Mapping[str, range], sizes: Sequence[Mapping[str, int]],
    threads: int = 1, **fixed: int,
) -> None:  # fmt: skip
    """Every size computes what a network of that size alone does, whatever ran before."""
    network = compile_sizes(built, {**dims, **fixed}, "estimate", threads=threads, verify=False)
    cases = list[tuple[Mapping[str, int], np.ndarray, Mapping[str, np.ndarray]]]()
    for size in sizes:
        x = whole_numbers(*network.entry(**size).inputs[0].shape, seed=sum(size.values()))
        alone = compile_network(built, "estimate", dims={**size, **fixed}, verify=False)
        cases.append((size, x, alone({"x": x})))
    for size, x, expected in (*cases, *cases[::-1]):
        results = network({"x": x})
        for name, array in expected.items():
            assert results[name].shape == array.shape
            tolerance = 1e-6 if name == "mean" else 0
            assert np.allclose(results[name], array, rtol=tolerance, atol=tolerance), (size, name)


def signals() -> onnx.ModelProto:
    """Convolutions of several strides, a residual, pools, and a mean of all."""
    nodes = [
        node("Conv", "x w1 b1", "a", pads=[1, 1]), node("Relu", "a", "b"),
        node("Conv", "b w2", "c", pads=[1, 1], strides=[2]),
        node("Conv", "b w3", "d", strides=[2]), node("Add", "c d", "e"), node("Relu", "e", "f"),
        node("MaxPool", "f", "g", kernel_shape=[3], strides=[2], pads=[1, 1]),
        node("Conv", "g w2", "h", pads=[2, 2], dilations=[2]),
        node("GlobalAveragePool", "h", "mean"), node("ReduceSum", "h", "total", keepdims=0),
    ]  # fmt: skip
    weights = {
        "w1": whole_numbers(8, 3, 3, seed=1), "b1": whole_numbers(8, seed=2),
        "w2": whole_numbers(8, 8, 3, seed=3), "w3": whole_numbers(8, 8, 1, seed=4),
    }  # fmt: skip
    outputs = {"a": None, "e": None, "g": None, "h": None, "mean": None, "total": None}
    return model(nodes, {"x": [1, 3, "L"]}, outputs, weights)


def test_signals() -> None:
    check(signals(), {"L": range(17, 25)}, [{"L": size} for size in (24, 17, 22)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_signals_of_many_sizes(threads: int) -> None:
    check(signals(), {"L": range(4, 41)}, [{"L": size} for size in range(4, 41)], threads)


def images(height: str, width: str) -> onnx.ModelProto:
    """A stem, a block with a shortcut, depthwise windows, and a mean of all pixels."""
    nodes = [
        node("Conv", "x w1", "a", pads=[3, 3, 3, 3], strides=[2, 2]), node("Relu", "a", "b"),
        node("MaxPool", "b", "c", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", "c w2 b2", "d", pads=[1, 1, 1, 1]), node("Relu", "d", "e"),
        node("Conv", "e w2", "f", pads=[1, 1, 1, 1]), node("Add", "f c", "g"),
        node("Relu", "g", "h"),
        node("Conv", "h w3", "i", pads=[1, 1, 1, 1], strides=[2, 2], group=8),
        node("Conv", "i w4", "j"), node("AveragePool", "j", "k", kernel_shape=[2, 2]),
        node("GlobalAveragePool", "j", "m"), node("Flatten", "m", "mean"),
        node("ReduceMax", "h", "top", axes=[2, 3], keepdims=0),
    ]  # fmt: skip
    weights = {"w1": whole_numbers(8, 3, 7, 7, seed=1), "b2": whole_numbers(8, seed=2),
               "w2": whole_numbers(8, 8, 3, 3, seed=3), "w3": whole_numbers(8, 1, 3, 3, seed=4),
               "w4": whole_numbers(5, 8, 1, 1, seed=5)}  # fmt: skip
    outputs = {"h": None, "j": None, "k": None, "mean": None, "top": None}
    return model(nodes, {"x": [1, 3, height, width]}, outputs, weights)


def test_images_with_a_height_of_a_range() -> None:
    sizes = [{"H": size} for size in (40, 33)]
    check(images("H", "W"), {"H": range(33, 41)}, sizes, W=36)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_images_of_two_ranges(threads: int) -> None:
    """Windows at the corner read what lies behind both ends."""
    dims = {"H": range(33, 50), "W": range(20, 28)}
    sizes = [{"H": high, "W": wide} for high in (49, 33, 38, 48) for wide in (20, 27, 25, 24)]
    check(images("H", "W"), dims, sizes, threads)


@pytest.mark.exhaustive
def test_square_images() -> None:
    sizes = range(32, 65)
    check(images("S", "S"), {"S": sizes}, [{"S": size} for size in sizes])
