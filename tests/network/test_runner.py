"""Calls of a compiled network: what is no array, and memory that outlives its network."""

import gc
from pathlib import Path

import numpy as np
import pytest

from polysci.network.compile.compiled import Network, compile_network
from polysci.network.runtime.runner import check_inputs
from tests.support.compiling import saved, tiny


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return compile_network(saved(tiny(), tmp_path_factory.mktemp("net") / "m.onnx"), "estimate")


class Liar(np.ndarray):
    """An array that reports the shape that the network expects."""

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (1, 4, 8, 8)


def test_inputs_that_are_no_plain_arrays(net: Network) -> None:
    x = np.ones((1, 4, 8, 8), np.float32)
    with pytest.raises(TypeError, match=r"x: expected a NumPy array, got .*MaskedArray"):
        net(np.ma.masked_equal(x, 1))
    with pytest.raises(TypeError, match=r"x: .*Liar reports \(1, 4, 8, 8\) float32"):
        net(np.zeros(1, np.float32).view(Liar))
    misaligned = np.frombuffer(bytes(1) + x.tobytes(), np.uint8)[1:].view(np.float32)
    assert check_inputs(net.inputs[0], misaligned.reshape(x.shape)).flags.aligned


def test_a_context_keeps_its_model_and_library(tmp_path: Path) -> None:
    net = compile_network(saved(tiny(), tmp_path / "m.onnx"), "estimate", name="outlived")
    context, library = net.runner.context(), str(net.runner.library.path)
    del net
    gc.collect()
    assert library in Path("/proc/self/maps").read_text()
    del context
    gc.collect()
    assert library not in Path("/proc/self/maps").read_text()


def test_a_call_makes_no_signature(net: Network) -> None:
    """Inputs and outputs are looked up on every call: they are made once."""
    assert net.inputs is net.inputs and net.outputs is net.outputs
