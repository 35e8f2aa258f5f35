"""Made-up inputs, what the graph makes of them in float64, and how far a network may be from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.errors import CheckError
from polysci.frontends.onnx import reference
from polysci.graph.graph import Graph
from polysci.network.compiled import Network, PlannedNetwork
from polysci.network.debug import bound_of, spreads
from polysci.network.runner import TensorPort, inputs_of, order_inputs
from polysci.numerics.differences import largest_error
from polysci.numerics.dtypes import from_bf16, to_bf16

Array = NDArray[Any]
SLACK = 4  # times the error that was seen: another compiler rounds elsewhere
LEAST = 2.0**-20  # 16 roundings in f32
STEP_BF16 = 2.0**-7  # from a number to the next one, where another compiler rounds the other way
LAST_BIT = 2.0**-23  # of f32


@dataclass(frozen=True, slots=True)
class SelftestData:
    """Arrays in the order of inputs and outputs; ``error`` is what the network was off by.

    ``tolerance`` is what the same C may be off by elsewhere; both over the largest number or 1.
    ``ran``: whether this machine ran it. ``spread``: how far roundings to 8 bits, which may go the
    other way elsewhere, move the outputs.
    """

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    error: float
    tolerance: float
    ran: bool = True
    least: float = LEAST
    spread: float = 0.0

    @property
    def derived(self) -> str:
        """Return where the tolerance comes from."""
        moved = f" and what roundings to 8 bits move ({self.spread:.2g})" if self.spread else ""
        if not self.ran:
            bound = "the bound of a network that is right"
            more = f", with {SLACK} times what roundings to 8 bits move ({self.spread:.2g})"
            return f"nothing ran when it was made, and this is {bound}{more if self.spread else ''}"
        if not self.error and not self.spread:
            return "rounding decides about these results: they are the ones of its making"
        power = f"2^{round(log2(self.least))}"
        seen = f"the error seen when it was made ({self.error:.2g}){moved}"
        return f"{SLACK} times {seen}, and {power}"

    def values(self) -> dict[str, str]:
        """Return what templates say of the tolerance."""
        return {"TOLERANCE": f"{self.tolerance:.3g}", "DERIVED": self.derived}


def make_selftest_data(network: PlannedNetwork, seed: int = 0) -> SelftestData:
    """Run the network and the reference. Raises CheckError where they are too far apart.

    One that is planned for another machine does not run.
    """
    inputs, graph = inputs_of(network.inputs, seed), network.prepared.graph
    arrays = order_inputs(network.inputs, inputs)
    expected = _compute_expected(network, graph, inputs)
    ports = network.outputs
    names = [port.name for port in ports]
    spread = max(spreads(graph, {**graph.state, **inputs}, names).values(), default=0.0)
    if not isinstance(network, Network):
        tolerance = bound_of(network) + SLACK * spread
        known = tuple(arrays), tuple(expected)
        return SelftestData(*known, 0.0, tolerance, ran=False, spread=spread)

    def moved() -> float:
        shaken = _compute_expected(
            network, replace(graph, constants=shake(graph.constants)), inputs
        )
        return max(difference(shaken, expected, ports), spread)

    outputs = network.runner.sequence()(arrays)
    return compare_with_reference(network, arrays, ports, outputs, expected, moved, spread=spread)


def compare_with_reference(
    network: Network, inputs: Sequence[Array], ports: Sequence[TensorPort],
    outputs: Sequence[Array], expected: Sequence[Array], moved: Callable[[], float],
    advice: str = "--debug-layers names the first wrong stage", spread: float = 0.0,
) -> SelftestData:  # fmt: skip
    """Return what a self-test stores of ``outputs``. Raises CheckError where one is far off.

    Where rounding alone moves the reference as far (``moved``: weights that differ in their last
    bit, roundings to 8 bits), it decides about the results and float64 says nothing of them: the
    network's own are kept then. ``spread``: how far roundings to 8 bits move the results.
    """
    bound = bound_of(network)
    least = max([LEAST, *(STEP_BF16 for port in ports if port.dtype == "bf16")])
    error = difference(outputs, expected, ports)
    if error <= bound:
        arrays = tuple(inputs), tuple(expected)
        tolerance = SLACK * (error + spread) + least
        return SelftestData(*arrays, error, tolerance, least=least, spread=spread)
    if moved() <= bound:
        raise CheckError(
            f"{network.name}: its results are {error:.2g} from a float64 reference, more than "
            f"{bound:g}; {advice}"
        )
    return SelftestData(tuple(inputs), tuple(outputs), 0.0, bound)


def _compute_expected(
    network: PlannedNetwork, graph: Graph, inputs: Mapping[str, Array]
) -> list[Array]:
    """Return the outputs in float64, as the network gives them."""
    known = {**graph.state, **inputs}
    results = reference.run_outputs(graph, known, [port.name for port in network.outputs])
    return [
        np.ascontiguousarray(as_stored(results[port.name], port)).reshape(port.shape)
        for port in network.outputs
    ]


def as_stored(values: Array, port: TensorPort) -> Array:
    """Values as the array of a port holds them."""
    return to_bf16(values) if port.dtype == "bf16" else values.astype(port.dtype)


def difference(
    arrays: Sequence[Array], expected: Sequence[Array], ports: Sequence[TensorPort]
) -> float:
    """Return the largest difference from what is expected, relative to the largest number or 1."""
    return largest_error(_values(arrays, ports), _values(expected, ports))


def _values(arrays: Sequence[Array], ports: Sequence[TensorPort]) -> list[Array]:
    """Return the numbers in the arrays of ports."""
    pairs = zip(arrays, ports, strict=True)
    return [from_bf16(array) if port.dtype == "bf16" else array for array, port in pairs]


def shake(constants: Mapping[str, Array]) -> dict[str, Array]:
    """Real constants changed by up to the last bit of f32, and the others."""
    random = np.random.default_rng(0)
    return {
        name: value * (1 + LAST_BIT * random.uniform(-1, 1, value.shape))
        if value.dtype.kind == "f" else value
        for name, value in constants.items()
    }  # fmt: skip
