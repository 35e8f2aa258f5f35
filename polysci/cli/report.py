"""polysci report: one page about a network."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.errors import PolysciError, SpecError, WisdomError

if TYPE_CHECKING:
    from polysci.ops.problem import Problem
    from polysci.rank import Context
    from polysci.report import Report
    from polysci.target.host import Target
    from polysci.target.machine import Machine

_HELP = "write one self-contained HTML page: table, roofline, rank scatter, every schedule"
_LONGEST = 80  # characters of a title


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser("report", help=_HELP, description=_HELP, allow_abbrev=False)
    shared.layer_options(command)
    shared.search_options(command)
    command.add_argument("-o", "--output", required=True, metavar="FILE", help="the page")
    command.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Optimise (or look up) every layer, then write the page; 1 if a layer failed.

    After Ctrl-C the page holds the layers that are there.
    """
    from polysci.cli.display import Display
    from polysci.report import page

    todo = shared.problems(asked)
    _check(Path(asked.output))
    found, interrupted = list[shared.TunedLayer](), False
    with Display(len(todo)) as display:
        try:
            for one in shared.tune_layers(todo, asked, display.watch):
                found.append(one)
                display.done(_line(one))
        except KeyboardInterrupt:
            interrupted = True
    if found:
        shared.write(page(_report(asked, found, len(todo))), asked.output)
        shared.say(f"written: {asked.output}")
    if interrupted:
        raise shared.Interrupted
    return int(any(one.result is None for one in found))


def _check(path: Path) -> None:
    """Raise SpecError now rather than after minutes of search."""
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise SpecError(f"-o {path}: cannot be written: {why}")


def _line(one: shared.TunedLayer) -> str:
    told = f"{one.result.schedule}" if one.result else f"FAILED: {one.fault}"
    return f"{shared.title(one.problem)}: {told}"


def _report(asked: argparse.Namespace, found: list[shared.TunedLayer], planned: int) -> Report:
    from polysci.report import Report, layer_of
    from polysci.tune.calibrate import machine_of

    threads, target = shared.threads_of(asked), shared.target_of(asked)
    described, recorded = shared.machine_of(asked), _recorded(threads, target)
    layers = tuple(
        layer_of(
            shared.title(one.problem), one.problem, one.result, one.fault,
            _context(one.problem, threads, target, described),
            recorded.get(one.problem.key, {}),
        )
        for one in found
    )  # fmt: skip
    return Report(
        _title(asked.layers), layers, planned, target, described or machine_of(target), threads,
        asked.level, datetime.now().strftime("%Y-%m-%d %H:%M"), _version(),
    )  # fmt: skip


def _context(
    problem: Problem, threads: int, target: Target, machine: Machine | None
) -> Context | None:
    """What the model counts with; None where it has nothing to count, as in a batch of none."""
    from polysci.tune import context_of

    try:
        return context_of(problem, threads, target, machine=machine)
    except PolysciError:
        return None


def _title(words: list[str]) -> str:
    """The networks of files, layers as they were written; the first of many."""
    names = [Path(word).stem if Path(word).suffix in (".txt", ".c") else word for word in words]
    told = ", ".join(names)
    return told if len(told) <= _LONGEST else f"{names[0]} and {len(names) - 1} more"


def _recorded(threads: int, target: Target) -> Mapping[str, Mapping[str, float]]:
    """Measured seconds of this machine by problem and schedule, trials included."""
    from polysci.runtime.measurement import host_of
    from polysci.tune.wisdom import Wisdom, canonical_features

    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    try:
        records = Wisdom().measurements(host_of(target), threads=threads)
    except WisdomError:  # a report of what was found now is worth having without it
        return found
    features = canonical_features(target.isa.features)
    for record in records:
        if record.features == features:
            found[record.problem][record.schedule] = record.seconds
    return found


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("polysci")
    except PackageNotFoundError:
        return "(not installed)"
