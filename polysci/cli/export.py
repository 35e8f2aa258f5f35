"""polysci export: code to take away."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from polysci.cli import layers as shared
from polysci.errors import CheckError

_HELP = "write C sources, or a Python package, that work without polysci"


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser("export", help=_HELP, description=_HELP, allow_abbrev=False)
    shared.layer_options(command)
    shared.search_options(command)
    command.add_argument("-o", "--output", required=True, metavar="DIR", help="where to")
    command.add_argument("--python", action="store_true", help="an importable package, not C")
    command.add_argument("--name", metavar="NAME", help="of files and symbols (DIR's name)")
    command.add_argument("--force", action="store_true", help="write beside files of others")
    command.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Optimise (or look up) every layer, then write; nothing is written if a layer failed."""
    from polysci.cli.display import Display
    from polysci.export import check_c, check_python, export_c, export_python

    out, options = Path(asked.output), {"name": asked.name, "force": asked.force}
    (check_python if asked.python else check_c)(out, **options)
    todo = shared.problems(asked)
    results = []
    with Display(len(todo)) as display:
        for one in shared.tuned(todo, asked, display.watch):
            if one.result is None:
                raise CheckError(f"{shared.title(one.problem)}: {one.fault}")
            results.append(one.result)
            display.done(f"{shared.title(one.problem)}: {one.result.schedule}")
    for path in (export_python if asked.python else export_c)(results, out, **options):
        print(path)
    return 0
