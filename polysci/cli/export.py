"""polysci export: code to take away."""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.errors import CheckError, SpecError, UnsupportedError
from polysci.target.isas import ISAS

if TYPE_CHECKING:
    from polysci.cli.display import Display
    from polysci.export import TunedProblem
    from polysci.export.candidates import SearchTarget
    from polysci.ops.problem import Problem

_HELP = "write C sources, or a Python package, that work without polysci"


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser("export", help=_HELP, description=_HELP, allow_abbrev=False)
    shared.layer_options(command)
    shared.search_options(command)
    command.add_argument("-o", "--output", required=True, metavar="DIR", help="where to")
    command.add_argument("--python", action="store_true", help="an importable package, not C")
    command.add_argument(
        "--isas", type=lambda text: [name.strip() for name in text.split(",")], metavar="NAME,NAME",
        help="code of each of these instruction sets, of which a CPU takes the best that it has, "
        f"instead of one: {', '.join(ISAS)}",
    )  # fmt: skip
    command.add_argument("--name", metavar="NAME", help="of files and symbols (DIR's name)")
    command.add_argument("--force", action="store_true", help="write beside files of others")
    command.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Optimise (or look up) every layer, then write; nothing is written if a layer failed."""
    from polysci.cli.display import Display
    from polysci.export import check_c, check_python, export_c, export_python
    from polysci.export.candidates import merge_layers

    out, options = Path(asked.output), {"name": asked.name, "force": asked.force}
    stands = _stands(asked)
    if asked.python:
        _check_builds(asked)
        check_python(out, **options)
    else:
        check_c(out, **options, isas=[stand.isa.name for stand in stands])
    todo = shared.problems(asked)
    found: Sequence[TunedProblem]
    with Display(len(todo) * max(1, len(stands))) as display:
        if stands:
            found = merge_layers([_planned(todo, one, display) for one in _parts(asked, stands)])
        else:
            found = _planned(todo, (asked, None), display)
    for path in (export_python if asked.python else export_c)(found, out, **options):
        print(path)
    return 0


def _check_builds(asked: argparse.Namespace) -> None:
    """Raise SpecError where a package, which holds compiled code, would be another machine's."""
    from polysci.target.host import detect

    isa = shared.target_of(asked).isa
    if asked.machine and isa not in detect().runnable:
        raise SpecError(f"--python builds for this CPU, which has no {isa}; {asked.machine} has it")


def _stands(asked: argparse.Namespace) -> list[SearchTarget]:
    """One for every instruction set of ``--isas``, the best first. Raises SpecError."""
    from polysci.export.candidates import check_isas, search_targets

    if asked.isas is None:
        return []
    if asked.python:
        raise UnsupportedError("--isas: a Python package holds the code of one instruction set")
    described = shared.load_machine_file(asked)
    chosen = check_isas(asked.isas, asked.isa, source="--isas")
    target, machine = shared.target_of(asked), shared.machine_of(asked)
    if described and asked.level not in ("estimate", "wisdom-only"):
        raise SpecError(f"--level {asked.level}: nothing runs on the machine of {asked.machine}")
    found = search_targets(chosen, asked.level, target=target, machine=machine)
    for stand in found:
        if stand.machine and not described:
            shared.say(f"{stand.isa}: this CPU does not run it: the model chooses unmeasured")
    return found


def _parts(
    asked: argparse.Namespace, stands: Sequence[SearchTarget]
) -> Iterator[tuple[argparse.Namespace, SearchTarget]]:
    """Each with its share of what remains of ``--time-limit``."""
    start = time.monotonic()
    for at, stand in enumerate(stands):
        part = copy.copy(asked)
        if asked.time_limit is not None:
            left = max(0.01, asked.time_limit - (time.monotonic() - start))
            part.time_limit = left / (len(stands) - at)
        yield part, stand


def _planned(
    todo: list[Problem], part: tuple[argparse.Namespace, SearchTarget | None], display: Display
) -> list[TunedProblem]:
    """The results of all layers. Raises CheckError for one that has none."""
    asked, stand = part
    results: list[TunedProblem] = []
    for one in shared.tune_layers(todo, asked, display.watch, stand=stand):
        if one.result is None:
            raise CheckError(f"{shared.title(one.problem)}: {one.fault}")
        results.append(one.result)
        display.done(f"{shared.title(one.problem)}: {one.result.schedule}")
    return results
