"""The options of compiled models; ``compile`` for other CPUs, several kinds, or those of a farm."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from polysci.cli import layers as shared
from polysci.cli.bindings import several_sizes
from polysci.cli.schedulers import check_dask, describe, farm_of, farm_targets
from polysci.cli.tuners import tuner_of
from polysci.errors import FarmError, SpecError

if TYPE_CHECKING:
    from polysci.export.candidates import SearchTarget
    from polysci.farm import Farm, FarmMachine
    from polysci.graph.graph import Graph
    from polysci.network.compiled import PlannedNetwork
    from polysci.network.options import CompileOptions, PlanOptions
    from polysci.network.prepare import PreparedNetwork

DTYPES: Final = ("f32", "bf16")
# Arguments of commands that are options of ``compile_network``; of those some commands have few.
_OPTIONS: Final = ("algorithm", "isa", "optimize", "reproducible", "time_limit", "update", "verify")


def title_of(arguments: argparse.Namespace) -> str:
    """Return the name in which files and symbols begin."""
    from polysci.text import names

    name = getattr(arguments, "name", None)
    return names.project(Path(arguments.model).stem if name is None else name)


def compile_options(arguments: argparse.Namespace, **changes: Any) -> CompileOptions:
    """Return the options by which a command compiles its model; ``changes`` are others.

    The sizes of free dimensions, those that data decides, and state are not among them: they belong
    to the graph.
    """
    from polysci.network.options import CompileOptions

    present = {name: getattr(arguments, name) for name in _OPTIONS if hasattr(arguments, name)}
    if device := shared.device_of(arguments):
        present |= {"target": device, "isa": None}
    return CompileOptions(**{
        "level": getattr(arguments, "level", None) or "measure",
        "threads": shared.threads_of(arguments),
        "dtype": check_dtype(arguments.dtype),
        "values": dict(arguments.value),
        "external": getattr(arguments, "external_data", False),
        "flush_denormals": not getattr(arguments, "keep_denormals", False),
        "keep_dtype": bool(several_sizes(arguments)),  # entries of a library have one type
        "name": title_of(arguments),
        "tuner": tuner_of(arguments),
        **present,
        **changes,
    })  # fmt: skip


def named_dtype(text: str) -> str:
    """Return the type that a name or alias stands for; what is none is left to the choices."""
    from polysci.numerics.dtypes import precision_named

    try:
        name = str(precision_named(text))
    except SpecError:
        return text
    return name if name in DTYPES else text


def check_dtype(text: str) -> str:
    """Return the type of a name or alias. Raises SpecError for one that no model is computed in."""
    dtype = named_dtype(text)
    if dtype not in DTYPES:
        raise SpecError(f"--dtype {dtype}: a model is computed in {' or '.join(DTYPES)}")
    return dtype


def targets_of(arguments: argparse.Namespace) -> list[SearchTarget]:
    """Return search targets of code that does not run here, or is one of several."""
    from polysci.export.candidates import SearchTarget
    from polysci.runtime.backends import backend_of
    from polysci.target.host import detect
    from polysci.target.machine import assume_rates
    from polysci.tune.result import LEVELS

    level = arguments.level or ("estimate" if arguments.machine else "measure")
    if arguments.machine and LEVELS[level].measured != 0:
        raise SpecError(f"--level {level}: nothing runs on a described machine; leave it out")
    if device := shared.device_of(arguments):
        written = bool(arguments.out) and not backend_of(device).measured
        return [SearchTarget(device, assume_rates(device), "estimate")] * written
    if targets := shared.search_targets_of(arguments, level):
        return targets
    machine = shared.machine_of(arguments)
    if machine is None:
        return []
    target = shared.target_of(arguments)
    if arguments.freestanding and not (target.isa.condition or target.isa in detect().runnable):
        raise SpecError(
            f"--freestanding: weights are packed here, by the network's code, and this CPU does "
            f"not run {target.isa}"
        )
    if not arguments.out:
        raise SpecError(f"--isa {arguments.isa}: nothing of it runs here; it needs -o DIR")
    if arguments.python:
        raise SpecError(f"--isa {arguments.isa}: a package holds code that runs here, of this CPU")
    search_target = SearchTarget(target, machine, "estimate")
    if not arguments.machine:
        shared.say_unmeasured(search_target)
    return [search_target]


def target_options(target: SearchTarget, arguments: argparse.Namespace) -> CompileOptions:
    """Return the options by which a network for a target is planned."""
    return compile_options(
        arguments, level=target.level, target=target.target, machine=target.machine, isa=None
    )


def refuse_tuner(arguments: argparse.Namespace) -> None:
    """Raise SpecError for a tuner of what does not run here."""
    if arguments.tuner:
        raise SpecError(
            "--tuner: it times the whole network, which runs here and is one; leave it out where "
            "code is written for other CPUs, or for several kinds"
        )


def plan_for(target: SearchTarget, arguments: argparse.Namespace, graph: Graph) -> PlannedNetwork:
    """Return a network for a target, which runs nothing here. Raises SpecError for a tuner."""
    from polysci.network.compiled import plan_network
    from polysci.network.prepare import prepare_with

    refuse_tuner(arguments)
    options = target_options(target, arguments)
    return plan_network(
        prepare_with(graph, options), options.plan(), title_of(arguments),
        time_limit=arguments.time_limit,
    )  # fmt: skip


def write_for(targets: Sequence[SearchTarget], arguments: argparse.Namespace, graph: Graph) -> int:
    """Plan for each target, then write a project."""
    from polysci.export.freestanding import BoardMemory, write_freestanding
    from polysci.export.isa_choice import IsaChoice
    from polysci.export.network_project import write_project
    from polysci.export.web_project import is_web, write_web
    from polysci.network.compiled import plan_network, use_pool
    from polysci.network.prepare import prepare_with

    several, name = bool(arguments.isas) or len(targets) > 1, title_of(arguments)
    if arguments.compare or arguments.json:
        raise SpecError("--compare, --json: tell of a network that runs here, and is one")
    refuse_tuner(arguments)
    prepared = prepare_with(graph, target_options(targets[0], arguments))
    limit = arguments.time_limit and arguments.time_limit / len(targets)
    plans = [
        use_pool(
            plan_network(
                prepared, target_options(target, arguments).plan(),
                f"{name}_{target.isa}" if several else name, time_limit=limit,
            ),
            arguments.pool,
        )
        for target in targets
    ]  # fmt: skip
    out, embed, force = Path(arguments.out), arguments.embed, arguments.force
    lines = list[str]()
    if arguments.freestanding:
        paths = write_freestanding(plans[0], out, force=force)
        lines = BoardMemory.of(plans[0]).lines()
    elif is_web(targets[0].target.isa):
        paths = write_web(plans, out, name, embed=embed, force=force)
    else:
        paths = write_project(
            IsaChoice(name, tuple(plans)) if several else plans[0], out,
            embed=embed, packed=arguments.packed_weights, force=force,
        )  # fmt: skip
    print("\n".join(map(str, (*paths, *lines))))
    return 0


def compile_on_farm(arguments: argparse.Namespace, graph: Graph) -> int | None:
    """Search on the farm; then write for its machines, if -o asks so, else None.

    With one kind of machine, and it is this one's, the network is compiled here as ever.
    """
    check_dask()
    from polysci.farm.tasks import fingerprint
    from polysci.network.prepare import prepare_with
    from polysci.runtime.build.compiler import find_compiler
    from polysci.target.host import detect

    with farm_of(arguments) as farm:
        own = fingerprint(detect(), find_compiler().identity)
        here = next((machine for machine in farm.machines if machine.name == own), None)
        if here and (not arguments.out or len(farm.machines) == 1):
            options = compile_options(arguments, target=here.target, isa=None)
            rivals = [
                replace(options, dtype=dtype) for dtype in dict.fromkeys((options.dtype, "f32"))
            ]
            _search(farm, [(prepare_with(graph, own), own.plan(), here) for own in rivals],
                    arguments.time_limit)  # fmt: skip
            return None
        if not arguments.out:
            raise SpecError(
                "--scheduler: none of its workers is a machine like this one; -o DIR writes code "
                "for those that they are"
            )
        refuse_tuner(arguments)
        targets = farm_targets(farm, arguments.dtype)
        prepared = prepare_with(graph, target_options(targets[0], arguments))
        machines = {machine.target: machine for machine in farm.machines}
        level = arguments.level or "measure"
        _search(farm, [
            (prepared, replace(target_options(target, arguments).plan(), level=level),
             machines[target.target])
            for target in targets
        ], arguments.time_limit)  # fmt: skip
    return write_for(targets, arguments, graph)


def _search(
    farm: Farm,
    networks: Sequence[tuple[PreparedNetwork, PlanOptions, FarmMachine]],
    time_limit: float | None,
) -> None:
    """Search every layer of every network on its machine, with a line a layer.

    Compiling then finds the records. Raises FarmError where a layer was not measured.
    """
    from polysci.cli.display import Display
    from polysci.farm.tuning import run_searches
    from polysci.network.prepare import options_of
    from polysci.program.stages import problems

    jobs = {
        (key, machine.name, wanted[key].threads): (problem, machine, wanted[key].threads)
        for prepared, options, machine in networks
        for wanted in [options_of(prepared.program, options)]
        for key, problem in problems(prepared.program).items()
    }
    options, faults = networks[0][1], list[str]()
    with Display(len(jobs)) as display:
        for layer in run_searches(
            farm, [*jobs.values()], options.level, time_limit=time_limit,
            watch=display.watch_machine, algorithm=options.algorithm,
            reproducible=options.reproducible,
        ):  # fmt: skip
            display.done(f"{layer.machine.target.isa} {describe(layer)}")
            if layer.result is None:
                faults.append(f"{layer.problem} on {layer.machine.target}: {layer.fault}")
    if faults:
        raise FarmError(f"{len(faults)} of {len(jobs)} layers were not measured: {faults[0]}")
