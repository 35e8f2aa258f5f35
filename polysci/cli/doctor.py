"""polysci doctor: what is wrong here, and what to do about it."""

from __future__ import annotations

import argparse
from typing import Any

_HELP = "check compiler, instruction sets, caches, OpenMP, cache directory and packages"


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser("doctor", help=_HELP, description=_HELP, allow_abbrev=False)
    command.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Print every check; 1 if one is bad."""
    from polysci.doctor import checks

    found = checks()
    for one in found:
        print(one)
    return int(any(not one.ok for one in found))
