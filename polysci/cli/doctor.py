"""polysci doctor: check this installation."""

from __future__ import annotations

import argparse
from typing import Any

from polysci.cli import layers as shared

_HELP = "check compiler, instruction sets, caches, OpenMP, cache directory and packages"


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser("doctor", help=_HELP, description=_HELP, allow_abbrev=False)
    shared.isa_option(command)
    shared.wide_option(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print every check; 1 if one is bad."""
    from polysci.cli.diagnosis import checks
    from polysci.target.host import detect

    results = checks(detect(arguments.isa) if arguments.isa else None)
    width = shared.table_width(arguments)
    for result in results:
        print(result.text(width))
    return int(any(not result.ok for result in results))
