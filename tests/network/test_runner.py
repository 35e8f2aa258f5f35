"""Calls of a compiled network: what is no array, and memory that outlives its network."""

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from onnx import TensorProto, helper

from polysci.network.compiled import Network, compile_network
from polysci.network.runner import check_inputs
from tests.support.compiling import saved, tiny


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return compile_network(saved(tiny(), tmp_path_factory.mktemp("net") / "m.onnx"), "estimate")


class Liar(np.ndarray):
    """An array that reports the shape that the network expects."""

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (1, 4, 8, 8)


@pytest.mark.exhaustive
def test_inputs_that_are_no_plain_arrays(net: Network) -> None:
    x = np.ones((1, 4, 8, 8), np.float32)
    with pytest.raises(TypeError, match=r"x: expected a NumPy array, got .*MaskedArray"):
        net(np.ma.masked_equal(x, 1))
    with pytest.raises(TypeError, match=r"x: .*Liar reports \(1, 4, 8, 8\) float32"):
        net(np.zeros(1, np.float32).view(Liar))
    misaligned = np.frombuffer(bytes(1) + x.tobytes(), np.uint8)[1:].view(np.float32)
    assert check_inputs(net.inputs[0], misaligned.reshape(x.shape)).flags.aligned


@pytest.mark.exhaustive
def test_a_context_keeps_its_model_and_library(tmp_path: Path) -> None:
    net = compile_network(saved(tiny(), tmp_path / "m.onnx"), "estimate", name="outlived")
    context, library = net.runner.context(), str(net.runner.library.path)
    del net
    gc.collect()
    assert library in Path("/proc/self/maps").read_text()
    del context
    gc.collect()
    assert library not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_call_one_network_at_the_same_time(net: Network, threads: int) -> None:
    """Each run has a context of its own, and each call results of its own."""
    xs = [np.full((1, 4, 8, 8), number, np.float32) for number in range(threads)]
    expected = [net(x) for x in xs]
    started = Barrier(threads)

    def call(number: int) -> bool:
        out = np.empty_like(expected[number])
        started.wait(60)
        for _ in range(100):
            net(xs[number], out=out)
            if not np.array_equal(out, expected[number]):
                return False
            if not np.array_equal(net(xs[number]), expected[number]):
                return False
        return True

    with ThreadPoolExecutor(threads) as pool:
        assert all(pool.map(call, range(threads)))
    assert 1 <= len(net.runner._idle) <= threads


def test_a_call_makes_no_signature(net: Network) -> None:
    """Inputs and outputs are looked up on every call: they are made once."""
    assert net.inputs is net.inputs and net.outputs is net.outputs


def test_results_in_arrays_of_the_caller(net: Network) -> None:
    x = np.random.default_rng(0).standard_normal((1, 4, 8, 8)).astype(np.float32)
    (inputs, outputs), expected = (net.inputs[0], net.outputs[0]), net(x)
    y = np.empty(outputs.shape, np.float32)
    assert net(x, out=y) is y and np.array_equal(y, expected)
    named = {outputs.name: np.empty_like(y)}
    assert net({inputs.name: x}, out=named) is named
    assert np.array_equal(named[outputs.name], expected)


def test_a_bound_run_reads_and_writes_the_same_arrays(net: Network) -> None:
    x, y = np.zeros((1, 4, 8, 8), np.float32), np.empty(net.outputs[0].shape, np.float32)
    run = net.bind(x, y)
    for seed in range(2):
        x[...] = np.random.default_rng(seed).standard_normal(x.shape)
        assert run() is None  # type: ignore[func-returns-value]
        assert np.array_equal(y, net(x))


def test_arrays_that_cannot_hold_results(net: Network) -> None:
    x, port = np.ones((1, 4, 8, 8), np.float32), net.outputs[0]
    fixed, wide = np.empty(port.shape, np.float32), np.empty((*port.shape, 2), np.float32)
    fixed.flags.writeable = False
    for out, expected in (
        (fixed, "expected a writable, aligned, C-contiguous"),
        (wide[..., 0], "expected a writable, aligned, C-contiguous"),
        (np.empty(1, np.float32), "expected shape"),
        ({"z": fixed}, r"out: expected \['"),
    ):
        with pytest.raises(ValueError, match=expected):
            net(x, out=out)
    with pytest.raises(TypeError, match=f"{port.name}: expected dtype float32, got float64"):
        net.bind(x, np.empty(port.shape))


def test_arrays_that_a_bound_run_cannot_read(net: Network) -> None:
    y = np.empty(net.outputs[0].shape, np.float32)
    with pytest.raises(ValueError, match="x: expected an aligned, C-contiguous"):
        net.bind(np.ones((1, 4, 8, 16), np.float32)[..., ::2], y)


def test_results_do_not_overlap_inputs(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )  # fmt: skip
    net, x = compile_network(helper.make_model(graph), "estimate"), np.ones(4, np.float32)
    with pytest.raises(ValueError, match="out: y: expected memory apart"):
        net(x, out=x)
