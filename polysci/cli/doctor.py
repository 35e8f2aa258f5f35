"""polysci doctor: check this installation."""

from __future__ import annotations

import argparse

from polysci.cli import layers as shared

HELP = "check compilers, instruction sets, caches, OpenMP, cache directory and packages"


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.isa_option(command)
    shared.wide_option(command)


def run(arguments: argparse.Namespace) -> int:
    """Print every check; 1 if one is bad."""
    from polysci.cli.diagnosis import checks
    from polysci.target.host import detect

    results = checks(detect(arguments.isa) if arguments.isa else None)
    width = shared.table_width(arguments)
    for result in results:
        print(result.text(width))
    return int(any(not result.ok for result in results))
