"""The image networks of the onnx package: their stored results, and every tensor of random ones.

Their own weights are one value repeated, so numbers grow to 1e9 and a softmax hides most faults:
other weights show them.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from polysci.frontends.onnx import importer
from polysci.graph.graph import Graph
from polysci.graph.operators.lower import SUPPORTED
from polysci.graph.passes.table import simplify
from polysci.network.compiled import build_network, compile_network, rebuild_network
from polysci.network.debug import compare_tensors
from polysci.network.options import PlanOptions
from polysci.network.prepare import prepare
from polysci.target.host import detect
from tests.support.flags import QUICK
from tests.support.networks import given

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
NAMES = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet",
         "squeezenet", "vgg19", "zfnet512")  # fmt: skip
EVERY = [name if name == "squeezenet" else pytest.param(name, marks=pytest.mark.slow)
         for name in NAMES]  # fmt: skip


def graph_of(name: str) -> Graph:
    return importer.load(LIGHT / f"light_{name}.onnx", supported=SUPPORTED)


def shared(name: str) -> np.ndarray:
    """The result that comes with the model, for ``ramp``."""
    return numpy_helper.to_array(onnx.load_tensor(LIGHT / f"light_{name}_output_0.pb"))


def ramp(shape: tuple[int, ...]) -> np.ndarray:
    """The input of ONNX's own runner."""
    size = int(np.prod(shape))
    return (np.arange(size).reshape(shape) / size).astype(np.float32)


def with_random_weights(graph: Graph, seed: int = 0) -> Graph:
    """He's scales, so that numbers neither grow nor vanish; variances around 1."""
    random, changed = np.random.default_rng(seed), dict(graph.constants)
    for node in graph.nodes:
        for at, name in enumerate(node.inputs[1:], 1):
            value = changed.get(name)
            if value is None or value.dtype != np.float32:
                continue
            new = random.normal(size=value.shape)
            if node.op in ("conv", "gemm") and at == 1:
                new *= np.sqrt(2 * value.shape[0] / value.size)
            elif node.op == "batch_norm":
                new = 1 + 0.2 * new.clip(-2, 2) if at in (1, 4) else 0.1 * new
            else:
                new *= 0.1
            changed[name] = new.astype(np.float32)
    return replace(graph, constants=changed)


def test_all_names_are_here() -> None:
    found = {path.stem.removeprefix("light_") for path in LIGHT.glob("light_*.onnx")}
    assert found == set(NAMES)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EVERY)
def test_the_results_that_come_with_the_models(name: str) -> None:
    network = compile_network(simplify(graph_of(name)), "estimate", isa="portable", flags=QUICK)
    (port,) = network.inputs
    np.testing.assert_allclose(network(ramp(port.shape)), shared(name), rtol=1e-3, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_of_random_weights(name: str, threads: int) -> None:
    graph = simplify(with_random_weights(graph_of(name)))
    options = PlanOptions("estimate", threads, "f32", "direct", detect())
    network = rebuild_network(build_network(prepare(graph), options, name), apart=True)
    wrong = [one for one in compare_tensors(network, given(graph)) if not one.error < 1e-4]
    assert not wrong, wrong[0]
