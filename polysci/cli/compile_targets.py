"""``compile`` for CPUs other than this one, or of several kinds: planned, written, not run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from polysci.cli import layers as shared
from polysci.cli.isas import search_targets_of
from polysci.errors import SpecError

if TYPE_CHECKING:
    from polysci.export.candidates import SearchTarget
    from polysci.graph.graph import Graph
    from polysci.network.options import PlanOptions


def targets_of(arguments: argparse.Namespace) -> list[SearchTarget]:
    """Return search targets of code that does not run here, or is one of several."""
    from polysci.export.candidates import SearchTarget

    level = arguments.level or ("estimate" if arguments.machine else "measure")
    if targets := search_targets_of(arguments, level):
        return targets
    machine = shared.machine_of(arguments)
    if machine is None:
        return []
    if arguments.freestanding:
        raise SpecError("--freestanding: weights are packed here, by code that runs here")
    if not arguments.out:
        raise SpecError(f"--isa {arguments.isa}: nothing of it runs here; it needs -o DIR")
    if arguments.python:
        raise SpecError(f"--isa {arguments.isa}: a package holds code that runs here, of this CPU")
    return [SearchTarget(shared.target_of(arguments), machine, "estimate")]


def options_for(target: SearchTarget, arguments: argparse.Namespace) -> PlanOptions:
    """Return the options by which a network for a target is compiled."""
    from polysci.network.options import PlanOptions

    return PlanOptions(
        target.level, shared.threads_of(arguments), arguments.dtype, arguments.algorithm,
        target.target, not arguments.keep_denormals, target.machine, arguments.reproducible,
    )  # fmt: skip


def refuse_tuner(arguments: argparse.Namespace) -> None:
    """Raise SpecError for a tuner of what does not run here."""
    if arguments.tuner:
        raise SpecError(
            "--tuner: it times the whole network, which runs here and is one; leave it out where "
            "code is written for other CPUs, or for several kinds"
        )


def write_for(
    targets: Sequence[SearchTarget], arguments: argparse.Namespace, graph: Graph, name: str
) -> int:
    """Plan for each target, then write a project."""
    from polysci.export.networks.c_project import write_project
    from polysci.export.networks.isa_choice import IsaChoice
    from polysci.network.planned import plan_network, use_pool
    from polysci.network.prepare import prepare
    from polysci.program.passes.table import PassChoices

    several = bool(arguments.isas) or len(targets) > 1
    if arguments.compare or arguments.json:
        raise SpecError("--compare, --json: tell of a network that runs here, and is one")
    refuse_tuner(arguments)
    best = targets[0]
    prepared = prepare(
        graph, arguments.dtype, target=best.target, machine=best.machine,
        optimize=arguments.optimize, choices=PassChoices(update=arguments.update),
    )  # fmt: skip
    plans = []
    for target in targets:
        options = options_for(target, arguments)
        own = f"{name}_{target.isa}" if several else name
        limit = arguments.time_limit and arguments.time_limit / len(targets)
        plan = plan_network(prepared, options, own, time_limit=limit)
        plans.append(use_pool(plan, arguments.pool))
    paths = write_project(
        IsaChoice(name, tuple(plans)) if several else plans[0], Path(arguments.out),
        embed=arguments.embed, packed=arguments.packed_weights, force=arguments.force,
    )  # fmt: skip
    print("\n".join(map(str, paths)))
    return 0
