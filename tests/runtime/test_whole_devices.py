"""Networks with layers of 8 bits on devices: the numbers of C, and every kind of stage."""

from collections.abc import Callable
from itertools import product

import numpy as np
import onnx
import pytest

from polysci.network.compiled import CompileOptions, Network, compile_network, rebuild_network
from polysci.network.debug import compare_tensors, first_wrong
from tests.graph.operators import test_quantised_recurrent as recurrent
from tests.runtime.test_narrow_devices import CUDA, OPENCL, target_of
from tests.support.any_device import at_hand
from tests.support.device_cases import quantised_convolutions, quantised_products
from tests.support.networks import given, read
from tests.support.randomgraphs import random_model

PLACES = ((OPENCL, "mobile"), (OPENCL, "groups"), (OPENCL, "cpu"), (CUDA, "cpu"))


def steps() -> onnx.ModelProto:
    """A recurrent layer whose state is rounded anew in every step."""
    return recurrent.model_of(recurrent.weights_of(1, each=True, zero=0), "forward")


CASES = [*product(PLACES, (quantised_products, steps, quantised_convolutions))]


def both(made: onnx.ModelProto, device: str, kind: str) -> tuple[Network, Network]:
    """A network of a device, and that of C."""
    options = (CompileOptions("estimate", target=it) for it in (target_of(device, kind), None))
    network, host = (compile_network(made, it) for it in options)
    return network, host


@pytest.mark.sampled
@pytest.mark.parametrize(("place", "make"), CASES)
def test_networks_compute_what_c_does(
    place: tuple[str, str], make: Callable[[], onnx.ModelProto]
) -> None:
    made = make()
    inputs = given(read(made))
    with at_hand(place[0]):
        network, host = both(made, *place)
        results, expected = network(inputs), host(inputs)
        for name, array in expected.items():
            assert results[name].dtype == array.dtype
            if array.dtype == np.float32:
                assert np.allclose(results[name], array, rtol=1e-5, atol=1e-5)
            else:
                assert np.array_equal(results[name], array)
        apart = rebuild_network(network, apart=True)
        assert first_wrong(compare_tensors(apart, inputs, strict=True)) is None
    assert any(layer.problem.dtype != "f32" for layer in network.prepared.program.layers())


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", range(32))
def test_random_networks_compute_what_c_does(seed: int, place: tuple[str, str]) -> None:
    made = random_model(seed, quantised=True)
    inputs = given(read(made))
    with at_hand(place[0]):
        results, expected = (network(inputs) for network in both(made, *place))
    for name, array in expected.items():
        assert np.allclose(results[name], array, rtol=0, atol=1e-6 * np.abs(array).max()), name
