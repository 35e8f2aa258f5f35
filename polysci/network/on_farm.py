"""The layers of networks, searched on the machines of a farm; compiling then finds the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polysci.errors import FarmError
from polysci.farm import Farm, FarmMachine, FarmResult
from polysci.farm.tuning import Watch as FarmWatch
from polysci.farm.tuning import run_searches
from polysci.network.options import PlanOptions
from polysci.network.prepare import PreparedNetwork, options_of
from polysci.program.stages import problems
from polysci.tune.wisdom import Wisdom


@dataclass(frozen=True, slots=True)
class FarmNetwork:
    """A network, how it will be compiled, and for which kind of machine."""

    prepared: PreparedNetwork
    options: PlanOptions
    machine: FarmMachine


def search_on_farm(
    farm: Farm,
    networks: Sequence[FarmNetwork],
    *,
    wisdom: Wisdom | None = None,
    time_limit: float | None = None,
    watch: FarmWatch | None = None,
    done: Callable[[FarmResult, int], None] | None = None,
) -> None:
    """Search every layer of every network on its machine; ``done`` takes each and their number.

    Raises FarmError where a layer was not measured.
    """
    jobs = {
        (key, network.machine.name, wanted[key].threads): (
            problem, network.machine, wanted[key].threads
        )
        for network in networks
        for wanted in [options_of(network.prepared.program, network.options)]
        for key, problem in problems(network.prepared.program).items()
    }  # fmt: skip
    first = networks[0].options
    faults = []
    for layer in run_searches(
        farm, [*jobs.values()], first.level, wisdom=wisdom, time_limit=time_limit, watch=watch,
        algorithm=first.algorithm, reproducible=first.reproducible,
    ):  # fmt: skip
        if done:
            done(layer, len(jobs))
        if layer.result is None:
            faults.append(f"{layer.problem} on {layer.machine.target}: {layer.fault}")
    if faults:
        raise FarmError(f"{len(faults)} of {len(jobs)} layers were not measured: {faults[0]}")
