"""Layers and networks in bf16 and f16 on devices: exact, and every conversion of a number."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest

import polysci
from polysci.lower.registry import algorithm_of
from polysci.measure.integer_reference import Arrays
from polysci.network.compiled import CompileOptions, compile_network, rebuild_network
from polysci.network.debug import compare_tensors, first_wrong
from polysci.numerics.dtypes import DTYPES, from_bf16, to_stored, values
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.runtime.backends import backend_named
from polysci.target.isas import DEVICE_ISAS
from polysci.target.target import Memory, Target
from tests.support.any_device import DEVICES, at_hand
from tests.support.device_cases import recurrent, two_layers
from tests.support.onnxmodels import node, reals

OPENCL, CUDA = DEVICES
# A device as it is; as one that is no CPU, whose groups have memory of their own, or have none.
KINDS = ("cpu", "groups", "mobile")
TEXTS = ("mb1ic6ih9oc20oh9kh3ph1", "g8mb1ic8ih10oc8oh8kh3", "mb2ic8ih7oc16oh4kh3ph1sh2",
         "g2mb1ic8ih6oc40kh1", "mm:13x44x40 tb alpha=2 beta=3", "bwd_d mb2ic20ih6oc16oh6kh3ph1",
         "bwd_w mb2ic8ih6oc20oh6kh3ph1")  # fmt: skip
TYPES = ("bf16", "f16", "bf16:bf16:f32", "f16:f16:f32")
CASES = [(text, layout) for text, layout in product(TEXTS, ("nhwc", "nchw"))
         if layout == "nhwc" or not text.startswith("mm:")]  # fmt: skip


def target_of(device: str, kind: str) -> Target:
    """A device of a kind."""
    (target,) = backend_named(device).targets()
    if kind == "cpu" or device == CUDA:
        return target
    local = (Memory("local", 48 << 10, kind="local"),) * (kind == "groups")
    return replace(target, isa=DEVICE_ISAS["opencl4"], memories=(*target.memories, *local))


def check_exact(problem: Problem, target: Target) -> None:
    primitive = polysci.compile(problem, "estimate", target=target)
    arrays = Arrays.of(problem, 0, algorithm_of(primitive.schedule).exact_inputs(problem))
    w = arrays.inputs["w"]
    packed = w if model_of(problem)[1].packs_b else primitive.pack_weights(w)
    fused = {name: arrays.inputs[name] for name in ("bias", "residual", "clamp")
             if name in arrays.inputs}  # fmt: skip
    for variant, own in (("plain", {}), ("fused", fused)):
        fault = arrays.fault(variant, primitive(arrays.inputs["x"], packed, **own))
        assert fault is None, f"{primitive.schedule}, {variant}: {fault}"


@pytest.mark.parametrize(
    ("kind", "case", "dtype"),
    [pytest.param(kind, case, dtype, marks=[pytest.mark.exhaustive] * (at % 57 != 5))
     for at, (kind, case, dtype) in enumerate(product(KINDS, CASES, TYPES))],
)  # fmt: skip
def test_layers_are_exact_on_opencl(kind: str, case: tuple[str, str], dtype: str) -> None:
    with at_hand(OPENCL):
        check_exact(parse_problem(*case, dtype), target_of(OPENCL, kind))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_layers_are_exact_on_cuda(case: tuple[str, str], dtype: str) -> None:
    with at_hand(CUDA):
        check_exact(parse_problem(*case, dtype), target_of(CUDA, ""))


def numbers(count: int) -> np.ndarray:
    """Floats of all kinds: random bits, halves of units of both types, infinities, NaN, zeros."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, count, np.uint32)
    bits[: count // 4] &= np.uint32(0xFFFF8000)  # ties of bf16
    bits[count // 4 : count // 2] &= np.uint32(0xFFFFF000)  # ties of f16
    bits[count // 4 : count // 2] = bits[count // 4 : count // 2] & 0x8FFFFFFF | 0x30000000
    floats = bits.view(np.float32)
    floats[:8] = np.inf, -np.inf, np.nan, 0, 65504, 65519.996, 65520, 2.0**-25
    floats[8:12] = 2.0**-25 * (1 + 2.0**-20), 3 * 2.0**-25, -(2.0**-24), 2.0**-14 - 2.0**-26
    floats[np.abs(floats) < 2.0**-126] = 0  # count as 0 on devices
    return floats


@pytest.mark.parametrize("kind", ["cpu", pytest.param("groups", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_sums_are_rounded_to_the_nearest(dtype: str, kind: str) -> None:
    """The bias alone, which is f32: ties go to even, NaN stays NaN, large numbers are infinite."""
    problem = parse_problem("mb1ic4ih1oc4099kh1", "nhwc", dtype)
    bias, kept = numbers(4099), DTYPES[dtype]
    with at_hand(OPENCL):
        primitive = polysci.compile(problem, "estimate", target=target_of(OPENCL, kind))
        x, w = (zeros(shape, kept.numpy) for shape in (problem.x_shape, problem.w_shape))
        result = primitive(x, primitive.pack_weights(w), bias=bias).ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values(to_stored(bias, kept), kept)
    assert np.array_equal(values(result, kept), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", ["bf16:bf16:f32", "f16:f16:f32"])
def test_every_narrow_number_is_read(dtype: str) -> None:
    """A factor of 1 gives back all, denormals of f16 too; those of bf16 may count as 0."""
    kept = DTYPES[dtype[: dtype.index(":")]]
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = bits if kept.name == "bf16" else bits.view(np.float16)
    expected = from_bf16(bits) if kept.name == "bf16" else x.astype(np.float32)
    counts = ~(np.abs(expected) < 2.0**-126)
    problem = parse_problem("mb1ic1ih256oc1kh1", "nhwc", dtype)
    with at_hand(OPENCL):
        primitive = polysci.compile(problem, "estimate", target=target_of(OPENCL, "cpu"))
        w = to_stored(np.ones(problem.w_shape, np.float32), kept)
        result = primitive(x.reshape(problem.x_shape), primitive.pack_weights(w))
    assert np.array_equal(result.ravel()[counts], expected[counts], equal_nan=True)


def zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("device", "kind", "make"),
    [pytest.param(*case, marks=[pytest.mark.exhaustive] * (at not in (1, 4)))
     for at, case in enumerate(product(DEVICES, ("cpu", "groups"), (two_layers, recurrent)))
     if case[:2] != (CUDA, "groups")],
)  # fmt: skip
def test_networks_compute_what_they_do_here(
    device: str, kind: str, make: Callable[[], onnx.ModelProto]
) -> None:
    """Layers of several types in one text; and every tensor is compared with the reference."""
    with at_hand(device):
        target = target_of(device, kind)
        network, host = (
            compile_network(make(), CompileOptions("estimate", target=where, dtype="bf16"))
            for where in (target, None)
        )
        inputs = {port.name: reals(*port.shape, seed=3) for port in host.inputs}
        results, expected = network(inputs), host(inputs)
        for name, array in expected.items():
            assert np.allclose(results[name], array, rtol=0, atol=2.0**-7 * abs(array).max())
        steps = compare_tensors(rebuild_network(network, apart=True), inputs, strict=True)
        assert network.summary.narrow and first_wrong(steps) is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("device", [CUDA, pytest.param(OPENCL, marks=pytest.mark.exhaustive)])
def test_networks_of_halves_compute_what_they_do_here(device: str) -> None:
    """A model whose own tensors are of f16."""
    nodes = [node("Conv", "x w", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"),
             node("Softmax", "r", "y", axis=1)]  # fmt: skip
    weights = {"w": reals(8, 3, 3, 3).astype(np.float16)}
    half = onnx.TensorProto.FLOAT16
    graph = onnx.helper.make_graph(
        nodes, "halves", [onnx.helper.make_tensor_value_info("x", half, (1, 3, 6, 6))],
        [onnx.helper.make_tensor_value_info("y", half, (1, 8, 6, 6))],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    x = reals(1, 3, 6, 6, seed=3).astype(np.float16)
    with at_hand(device):
        network, host = (
            compile_network(made, CompileOptions("estimate", target=where))
            for where in (target_of(device, "cpu"), None)
        )
        result, expected = network({"x": x})["y"], host({"x": x})["y"]
    assert result.dtype == np.float16
    assert np.allclose(result.astype(float), expected.astype(float), rtol=0, atol=2.0**-9)
