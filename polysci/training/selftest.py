"""Data of the self-test of an exported step: a batch, and what steps on it make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from polysci.export.networks.selftest_data import (
    SelftestData,
    as_stored,
    compare_with_reference,
    difference,
    shake,
)
from polysci.frontends.onnx import reference
from polysci.network.compiled import Network
from polysci.network.runner import TensorPort
from polysci.numerics import arrays as aligned
from polysci.numerics.arrays import Array

STEPS: Final = 3


def make_step_data(
    network: Network, held: Mapping[str, Array], batch: Mapping[str, Array]
) -> SelftestData:
    """Steps from ``held`` on, by the network and by the reference in float64; ``held`` stays.

    Outputs are the losses, then what is replaced. Raises CheckError where they are too far apart.
    """
    replaced = _replaced(network)
    loss, *_ = [port for port in network.outputs if port.name not in replaced]
    kept = [port for port in network.outputs if port.name in replaced]

    def learn(values: Mapping[str, Array]) -> list[Array]:
        """The arrays that the reference makes, from these values on."""
        state, losses = dict(values), list[Array]()
        for made in _steps(network, state, batch):
            losses.append(as_stored(made[loss.name], loss))
            state |= {replaced[port.name]: made[port.name] for port in kept}
        return [*losses, *(as_stored(state[replaced[port.name]], port) for port in kept)]

    expected, ports = learn(held), [loss] * STEPS + kept
    return compare_with_reference(
        network, [batch[port.name] for port in network.inputs], ports,
        _run(network, held, batch, loss), expected,
        lambda: difference(learn(shake(held)), expected, ports),
        "training.gradcheck compares the gradients of each parameter",
    )  # fmt: skip


def _replaced(network: Network) -> dict[str, str]:
    """Return, by the name of an output, the input whose memory it takes."""
    program = network.prepared.program
    pairs = zip(program.titles, program.outputs, strict=True)
    return {title: program.in_place[name] for title, name in pairs if name in program.in_place}


def _steps(
    network: Network, state: Mapping[str, Array], batch: Mapping[str, Array]
) -> Iterator[dict[str, Array]]:
    """Yield what the reference makes in each step of ``state`` as it is then."""
    names = [port.name for port in network.outputs]
    for _ in range(STEPS):
        yield reference.run_outputs(network.prepared.graph, {**state, **batch}, names)


def _run(
    network: Network, held: Mapping[str, Array], batch: Mapping[str, Array], loss: TensorPort
) -> list[Array]:
    """The losses that the network makes, and then what it replaces in a copy of ``held``."""
    replaced, runner = _replaced(network), network.runner
    state = {name: aligned.reserve_copy(array) for name, array in held.items()}
    value = aligned.empty(loss.shape)
    results = [state[replaced[port.name]] if port is not loss else value
               for port in network.outputs]  # fmt: skip
    losses = list[Array]()
    for _ in range(STEPS):
        runner.into([batch[port.name] for port in network.inputs], results)
        losses.append(value.copy())
    return [*losses, *(array for array in results if array is not value)]
