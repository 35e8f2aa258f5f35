"""``compile --scheduler``: layers searched on a farm, for this machine or for those of the farm."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from polysci.cli.compile_targets import options_for, refuse_tuner, write_for
from polysci.cli.schedulers import check_dask, describe, farm_of, farm_targets
from polysci.errors import SpecError

if TYPE_CHECKING:
    from polysci.export.candidates import SearchTarget
    from polysci.farm import Farm, FarmMachine, FarmResult
    from polysci.graph.graph import Graph
    from polysci.network.on_farm import FarmNetwork
    from polysci.ops.problem import Problem
    from polysci.tune import Progress


def compile_on_farm(arguments: argparse.Namespace, graph: Graph, name: str) -> int | None:
    """Search on the farm; then write for its machines, if -o asks so, else None.

    With one kind of machine, and it is this one's, the network is compiled here as ever.
    """
    check_dask()
    from polysci.farm.tasks import fingerprint
    from polysci.runtime.build.compiler import find_compiler
    from polysci.target.host import detect

    with farm_of(arguments) as farm:
        own = fingerprint(detect(), find_compiler().identity)
        here = next((machine for machine in farm.machines if machine.name == own), None)
        if here and (not arguments.out or len(farm.machines) == 1):
            _search(farm, arguments, _networks_here(arguments, graph, here))
            return None
        if not arguments.out:
            raise SpecError(
                "--scheduler: none of its workers is a machine like this one; -o DIR writes code "
                "for those that they are"
            )
        refuse_tuner(arguments)
        targets = farm_targets(farm, arguments.dtype)
        networks = _networks_there(arguments, graph, farm, targets)
        _search(farm, arguments, networks)
    return write_for(targets, arguments, graph, name)


def _networks_here(
    arguments: argparse.Namespace, graph: Graph, machine: FarmMachine
) -> list[FarmNetwork]:
    """Return the networks that are timed on this machine: bf16 has f32 as a rival."""
    from polysci.export.candidates import SearchTarget
    from polysci.network.on_farm import FarmNetwork
    from polysci.network.prepare import prepare
    from polysci.program.passes.table import PassChoices

    target = SearchTarget(machine.target, None, arguments.level or "measure")
    options, networks = options_for(target, arguments), []
    for dtype in dict.fromkeys((arguments.dtype, "f32")):
        prepared = prepare(
            graph, dtype, target=target.target, optimize=arguments.optimize,
            choices=PassChoices(update=arguments.update),
        )  # fmt: skip
        networks.append(FarmNetwork(prepared, replace(options, dtype=dtype), machine))
    return networks


def _networks_there(
    arguments: argparse.Namespace, graph: Graph, farm: Farm, targets: list[SearchTarget]
) -> list[FarmNetwork]:
    """Return the same network for each target, prepared for the best."""
    from polysci.network.on_farm import FarmNetwork
    from polysci.network.prepare import prepare
    from polysci.program.passes.table import PassChoices

    best, level = targets[0], arguments.level or "measure"
    prepared = prepare(
        graph, arguments.dtype, target=best.target, machine=best.machine,
        optimize=arguments.optimize, choices=PassChoices(update=arguments.update),
    )  # fmt: skip
    machines = {machine.target: machine for machine in farm.machines}
    return [
        FarmNetwork(
            prepared, replace(options_for(target, arguments), level=level), machines[target.target]
        )
        for target in targets
    ]


def _search(farm: Farm, arguments: argparse.Namespace, networks: list[FarmNetwork]) -> None:
    """Search with a line a layer."""
    from polysci.cli.display import Display
    from polysci.network.on_farm import search_on_farm

    with Display(0) as display:

        def watch(problem: Problem, machine: FarmMachine, step: Progress) -> None:
            display.watch(problem, step)

        def done(layer: FarmResult, count: int) -> None:
            display.layers = count
            display.done(f"{layer.machine.target.isa} {describe(layer)}")

        search_on_farm(farm, networks, time_limit=arguments.time_limit, watch=watch, done=done)
