"""The instruction sets of ``--isas``, and where the schedules of each are looked for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from polysci.cli import layers as shared
from polysci.errors import SpecError, UnsupportedError

if TYPE_CHECKING:
    from polysci.export.candidates import SearchTarget


def search_targets_of(arguments: argparse.Namespace, level: str) -> list[SearchTarget]:
    """One for every instruction set of ``--isas``, the best first. Raises SpecError."""
    from polysci.export.candidates import check_isas, search_targets

    if arguments.isas is None:
        return []
    if arguments.python:
        raise UnsupportedError("--isas: a Python package holds the code of one instruction set")
    described = shared.load_machine_file(arguments)
    chosen = check_isas(arguments.isas, arguments.isa, source="--isas")
    target, machine = shared.target_of(arguments), shared.machine_of(arguments)
    if described and level not in ("estimate", "wisdom-only"):
        raise SpecError(f"--level {level}: nothing runs on the machine of {arguments.machine}")
    targets = search_targets(chosen, level, target=target, machine=machine)
    for search_target in targets:
        if search_target.machine and not described:
            shared.say_unmeasured(search_target)
    return targets
