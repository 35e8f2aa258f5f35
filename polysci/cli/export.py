"""polysci export: write code that works without polysci."""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from polysci.cli import layers as shared
from polysci.cli.schedulers import farm_of, farm_targets, scheduler_option, tune_on_farm
from polysci.errors import CheckError, SpecError
from polysci.target.isas import ISAS

if TYPE_CHECKING:
    from polysci.cli.display import Display
    from polysci.export import TunedProblem
    from polysci.export.candidates import SearchTarget
    from polysci.ops.problem import Problem

HELP = "write C sources, or a Python package, that work without polysci"


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.layer_options(command)
    shared.search_options(command)
    command.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder to write")
    command.add_argument(
        "--python", action="store_true", help="write an importable Python package instead of C"
    )
    command.add_argument(
        "--isas", type=lambda text: [name.strip() for name in text.split(",")], metavar="NAME,NAME",
        help="write code for each of these instruction sets, of which the best that the CPU has is "
        f"used at run time: {', '.join(ISAS)}",
    )  # fmt: skip
    scheduler_option(command)
    shared.device_option(command)
    command.add_argument("--name", metavar="NAME", help="name of files and symbols (DIR's name)")
    command.add_argument(
        "--force", action="store_true", help="write to a folder that holds other files"
    )


def run(arguments: argparse.Namespace) -> int:
    """Optimise (or look up) every layer, then write; nothing is written if a layer failed."""
    from polysci.cli.display import Display
    from polysci.export import check_c, check_python, export_c, export_python
    from polysci.export.candidates import merge_layers

    out, options = Path(arguments.output), {"name": arguments.name, "force": arguments.force}
    arguments = _with_device(arguments)
    todo = shared.problems(arguments)
    targets = (
        _tune_on_farm(todo, arguments)
        if arguments.scheduler is not None
        else shared.search_targets_of(arguments, arguments.level)
    )
    if arguments.python:
        _check_builds(arguments)
        check_python(out, **options)
    else:
        check_c(out, **options, isas=[target.isa.name for target in targets])
    results: Sequence[TunedProblem]
    with Display(len(todo) * max(1, len(targets))) as display:
        if targets:
            results = merge_layers(
                [_tune(todo, part, display) for part in _parts(arguments, targets)]
            )
        else:
            results = _tune(todo, (arguments, None), display)
    for path in (export_python if arguments.python else export_c)(results, out, **options):
        print(path)
    return 0


def _tune_on_farm(todo: list[Problem], arguments: argparse.Namespace) -> list[SearchTarget]:
    """Return search targets of what a farm measured. Raises CheckError where a layer failed."""
    from polysci.cli.display import Display
    from polysci.numerics.dtypes import precision_named

    if arguments.python:
        raise SpecError("--python: a package holds code that runs here; leave out --scheduler")
    with farm_of(arguments) as farm, Display(0) as display:
        display.layers = len({problem.key for problem in todo}) * len(farm.machines)
        for layer in tune_on_farm(farm, todo, arguments, display):
            if layer.result is None:
                raise CheckError(f"{shared.title(layer.problem)}: {layer.fault}")
        return farm_targets(farm, precision_named(arguments.dtype).x.name)


def _with_device(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return arguments by which all units of a device share the work; others as they are.

    Raises SpecError for options that say nothing of its code, or where there is no such device.
    """
    device = shared.device_of(arguments)
    if device is None:
        return arguments
    for option in ("python", "isas"):
        if getattr(arguments, option):
            raise SpecError(
                f"--device {arguments.device}: written with a host in C; leave out --{option}"
            )
    return argparse.Namespace(**{
        **vars(arguments), "threads": arguments.threads or device.cores,
    })  # fmt: skip


def _check_builds(arguments: argparse.Namespace) -> None:
    """Raise SpecError where a package, which holds compiled code, would not run on this CPU."""
    from polysci.target.host import detect

    isa = shared.target_of(arguments).isa
    if isa not in detect().runnable:
        raise SpecError(f"--python builds for this CPU, which has no {isa}")


def _parts(
    arguments: argparse.Namespace, targets: Sequence[SearchTarget]
) -> Iterator[tuple[argparse.Namespace, SearchTarget]]:
    """Every target with its share of the remaining ``--time-limit``."""
    start = time.monotonic()
    for at, search_target in enumerate(targets):
        part = copy.copy(arguments)
        if arguments.time_limit is not None:
            left = max(0.01, arguments.time_limit - (time.monotonic() - start))
            part.time_limit = left / (len(targets) - at)
        yield part, search_target


def _tune(
    todo: list[Problem], part: tuple[argparse.Namespace, SearchTarget | None], display: Display
) -> list[TunedProblem]:
    """The results of all layers. Raises CheckError where a layer failed."""
    arguments, search_target = part
    results: list[TunedProblem] = []
    for layer in shared.tune_layers(todo, arguments, display.watch, search_target=search_target):
        if layer.result is None:
            raise CheckError(f"{shared.title(layer.problem)}: {layer.fault}")
        results.append(layer.result)
        display.done(f"{shared.title(layer.problem)}: {layer.result.schedule}")
    return results
