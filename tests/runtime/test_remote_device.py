"""Layers and a network on a device with memory of its own: a folder and a row, nothing else."""

import pickle
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import polysci
from polysci.errors import BuildError, PolysciError, UnsupportedError
from polysci.frontends.onnx import reference
from polysci.loop_ir.memory import MemoryFaultError
from polysci.network.compiled import compile_network
from polysci.ops import parse_problem
from polysci.runtime import backends
from polysci.target.target import Target
from tests.support.networks import read
from tests.support.onnxmodels import model, node, reals
from tests.support.remote_device import NAME, Buffer, RemoteBackend


@pytest.fixture(scope="module")
def remote() -> Iterator[RemoteBackend]:
    """The backend, in the table for the time of a module's tests."""
    backend = RemoteBackend()
    table = backends.BACKENDS
    backends.BACKENDS = {**table, NAME: backend}
    yield backend
    backends.BACKENDS = table


@pytest.fixture(scope="module")
def target(remote: RemoteBackend) -> Target:
    (device,) = remote.targets()
    return device


def integers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.sampled
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(
    "text", ["mb1ic6ih9oc20oh9kh3ph1", "mb2ic8ih7oc16oh4kh3ph1sh2", "g8mb1ic8ih10oc8oh8kh3"]
)
def test_layers_run_on_the_device(
    text: str, layout: str, remote: RemoteBackend, target: Target
) -> None:
    problem = parse_problem(text, layout)
    before = remote.device.launches
    threads = 1 + (layout == "nchw")
    primitive = polysci.compile(problem, "estimate", threads, target=target)
    assert primitive.backend == NAME and "portable" in str(primitive.schedule)
    x, w = integers(problem.x_shape, 1), integers(problem.w_shape, 2)
    bias, residual = (
        integers((problem.y_shape[-1 if layout == "nhwc" else 1],), 3),
        integers(problem.y_shape, 4),
    )
    packed = primitive.pack_weights(w)
    words = {"bias": bias, "residual": residual, "clamp": (-50.0, 60.0)}
    expected = problem.reference(x, w, **words)
    for _ in range(2):
        assert np.array_equal(primitive(x, packed, **words), expected)
    assert np.array_equal(primitive(x, packed), problem.reference(x, w))
    out = np.full(problem.y_shape, np.nan, np.float32)
    assert primitive(x, packed, out=out) is out and np.array_equal(out, problem.reference(x, w))
    assert remote.device.launches >= before + 5


def test_pickles_come_back_to_the_device(target: Target) -> None:
    problem = polysci.Conv2d(N=1, C=4, H=5, W=5, K=8, R=1, S=1)
    primitive = polysci.compile(problem, "estimate", target=target)
    x, w = integers(problem.x_shape, 1), integers(problem.w_shape, 2)
    again, packed = pickle.loads(pickle.dumps((primitive, primitive.pack_weights(w))))
    assert again.backend == packed.backend == NAME
    assert np.array_equal(again(x, packed), problem.reference(x, w))


def test_the_device_checks_its_memory(remote: RemoteBackend, target: Target) -> None:
    """A result that is too short, weights that nobody packed."""
    problem = polysci.Conv2d(N=1, C=4, H=5, W=5, K=8, R=1, S=1)
    source = polysci.compile(problem, "estimate", target=target).source
    path = remote.build(source.file, module=source.module)
    library = remote.load(path, source.declarations)
    x, packed, y = (Buffer.of(np.zeros(size, np.float32)) for size in (100, 32, 200))
    run = library.function(source.symbol)
    assert run(x, packed, y, None, None, None, None) == 0
    assert remote.time(run, [(x, packed, y, None, None, None, None)] * 2) > 0
    with pytest.raises(MemoryFaultError, match="lies outside"):
        run(x, packed, Buffer.empty(796), None, None, None, None)
    with pytest.raises(MemoryFaultError, match="before anything wrote it"):
        run(x, Buffer.empty(128), y, None, None, None, None)
    with pytest.raises(PolysciError, match="elements without values"):
        library.copy_out(Buffer.empty(800), np.empty(200, np.float32))
    with pytest.raises(BuildError, match="nothing was built"):
        remote.load(path / "other", source.declarations)


def small_network() -> onnx.ModelProto:
    """Two convolutions, a sum with the input of the second, a mean and a softmax."""
    nodes = [
        node("Conv", "x w1 b1", "c1", pads=[1, 1, 1, 1]), node("Relu", "c1", "r1"),
        node("Conv", "r1 w2", "c2", pads=[1, 1, 1, 1]), node("Add", "c2 r1", "s"),
        node("GlobalAveragePool", "s", "g"), node("Flatten", "g", "f"),
        node("Softmax", "f", "y", axis=1),
    ]  # fmt: skip
    weights = {"w1": reals(8, 3, 3, 3), "b1": reals(8, seed=1), "w2": reals(8, 8, 3, 3, seed=2)}
    return model(nodes, {"x": (1, 3, 6, 6)}, {"y": (1, 8)}, weights)


@pytest.mark.exhaustive
def test_a_network_runs_on_the_device(remote: RemoteBackend, target: Target) -> None:
    network = compile_network(small_network(), "estimate", target=target)
    evaluator = ReferenceEvaluator(small_network())
    before = remote.device.launches
    for seed in (3, 4):
        x = reals(1, 3, 6, 6, seed=seed)
        y = network(x)
        (expected,) = evaluator.run(None, {"x": x})
        assert np.allclose(y, expected, rtol=1e-5)
    assert remote.device.launches == before + 2
    out = {"y": np.empty((1, 8), np.float32)}
    network({"x": x}, out=out)
    assert np.array_equal(out["y"], y)
    assert network.runner.packed_weights().nbytes == network.runner.model_bytes
    again = np.empty_like(y)
    network.runner.run_at([x.ctypes.data, again.ctypes.data])  # copied in and out
    assert np.array_equal(again, y)


def mixed_network() -> onnx.ModelProto:
    """A convolution of floats, one of 8-bit numbers and another one of floats."""
    nodes = [
        node("Conv", "x w1", "c1", pads=[1, 1, 1, 1]), node("Relu", "c1", "r1"),
        node("QuantizeLinear", "r1 s1 z1", "q1"),
        node("QLinearConv", "q1 s1 z1 w2 s2 z2 s3 z3", "q2", pads=[1, 1, 1, 1]),
        node("DequantizeLinear", "q2 s3 z3", "d2"), node("Conv", "d2 w3", "y"),
    ]  # fmt: skip
    scales = {"s1": np.float32(0.05), "s2": np.float32(0.01), "s3": np.float32(0.08)}
    zeros = {"z1": np.uint8(0), "z2": np.int8(0), "z3": np.uint8(120)}
    w2 = (90 * reals(8, 8, 3, 3, seed=2)).clip(-127, 127).astype(np.int8)
    weights = {"w1": reals(8, 3, 3, 3), "w2": w2, "w3": reals(4, 8, 1, 1, seed=3)}
    return model(nodes, {"x": (1, 3, 6, 6)}, {"y": (1, 4, 6, 6)}, weights | scales | zeros)


@pytest.mark.parametrize(("dtype", "kinds", "error"), [("f32", 2, 0.02), ("bf16", 3, 0.04)])
def test_layers_of_a_network_differ_in_precision(
    dtype: str, kinds: int, error: float, target: Target
) -> None:
    network = compile_network(mixed_network(), "estimate", target=target, dtype=dtype)
    assert len({call.source.key for call in network.code.calls.values()}) == kinds
    x = reals(1, 3, 6, 6, seed=7)
    expected = reference.run(read(mixed_network()), {"x": x})["y"]
    assert np.abs(network(x) - expected).max() < error * np.abs(expected).max()


def test_a_network_is_compiled_again(remote: RemoteBackend, target: Target) -> None:
    x = reals(1, 3, 6, 6, seed=5)
    first, second = (
        compile_network(small_network(), "estimate", target=target)(x) for _ in range(2)
    )
    assert np.array_equal(first, second)


def test_what_is_measured_needs_a_service(target: Target) -> None:
    problem = polysci.Conv2d(N=1, C=4, H=5, W=5, K=8, R=1, S=1)
    with pytest.raises(UnsupportedError, match="backend remote: no service times its code"):
        polysci.optimize(problem, "measure", target=target, time_limit=1)
