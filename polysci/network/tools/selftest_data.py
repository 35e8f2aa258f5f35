"""Made-up inputs, what the graph makes of them in float64, and how far a network may be from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.errors import CheckError
from polysci.network.compile.compiled import Network
from polysci.network.compile.planned import PlannedNetwork
from polysci.network.frontends.onnx import reference
from polysci.network.ir.graph import Graph
from polysci.network.runtime.example_inputs import inputs_of
from polysci.network.runtime.runner import order_inputs
from polysci.network.tools.debug import bound_of
from polysci.peers.networks.contest import largest_error

Array = NDArray[Any]
SLACK = 4  # times the error that was seen: another compiler rounds elsewhere
LEAST = 2.0**-20  # 16 roundings in f32
LAST_BIT = 2.0**-23  # of f32


@dataclass(frozen=True, slots=True)
class SelftestData:
    """Arrays in the order of inputs and outputs; ``error`` is what the network was off by.

    ``tolerance`` is what the same C may be off by elsewhere; both over the largest number or 1.
    ``ran``: whether this machine ran it.
    """

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    error: float
    tolerance: float
    ran: bool = True

    @property
    def derived(self) -> str:
        """Where the tolerance comes from."""
        if not self.ran:
            return "nothing ran when it was made, and this is the bound of a network that is right"
        if not self.error:
            return "rounding decides about these results: they are the ones of its making"
        return f"{SLACK} times the error seen when it was made ({self.error:.2g}), and 2^-20"


def make_selftest_data(network: PlannedNetwork, seed: int = 0) -> SelftestData:
    """Run the network and the reference. Raises CheckError where they are too far apart.

    One that is planned for another machine does not run. Where weights that differ in their last
    bit move the reference as far, rounding decides about the results and float64 says nothing of
    them: the network's own are kept then.
    """
    inputs, bound = inputs_of(network.inputs, seed), bound_of(network)
    arrays = order_inputs(network.inputs, inputs)
    expected = _expected(network, network.prepared.graph, inputs)
    if not isinstance(network, Network):
        return SelftestData(tuple(arrays), tuple(expected), 0.0, bound, ran=False)
    outputs = network.runner(arrays)
    error = largest_error(outputs, expected)
    if error <= bound:
        return SelftestData(tuple(arrays), tuple(expected), error, SLACK * error + LEAST)
    moved = largest_error(_expected(network, _shaken(network.prepared.graph), inputs), expected)
    if moved <= bound:
        raise CheckError(
            f"{network.name}: its results are {error:.2g} from a float64 reference, more than "
            f"{bound:g}; --debug-layers names the first wrong stage"
        )
    return SelftestData(tuple(arrays), tuple(outputs), 0.0, bound)


def _expected(network: PlannedNetwork, graph: Graph, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs in float64, as the network gives them."""
    made = reference.run_outputs(graph, inputs, [port.name for port in network.outputs])
    return [
        np.ascontiguousarray(made[port.name].astype(port.dtype)).reshape(port.shape)
        for port in network.outputs
    ]


def _shaken(graph: Graph) -> Graph:
    """The same graph with real constants changed by up to the last bit of f32."""
    random = np.random.default_rng(0)
    changed = {
        name: value * (1 + LAST_BIT * random.uniform(-1, 1, value.shape))
        if value.dtype.kind == "f" else value
        for name, value in graph.constants.items()
    }  # fmt: skip
    return replace(graph, constants=changed)
