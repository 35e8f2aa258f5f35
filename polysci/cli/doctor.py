"""polysci doctor: what is wrong here, and what to do about it."""

from __future__ import annotations

import argparse
from typing import Any

from polysci.cli import layers as shared

_HELP = "check compiler, instruction sets, caches, OpenMP, cache directory and packages"


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser("doctor", help=_HELP, description=_HELP, allow_abbrev=False)
    shared.isa_option(command)
    command.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Print every check; 1 if one is bad."""
    from polysci.cli.diagnosis import checks
    from polysci.target.host import detect

    found = checks(detect(asked.isa) if asked.isa else None)
    for one in found:
        print(one)
    return int(any(not one.ok for one in found))
