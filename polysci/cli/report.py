"""polysci report: one page about layers."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.cli import output_file, report_network
from polysci.errors import PolysciError, WisdomError

if TYPE_CHECKING:
    from polysci.cost import Context
    from polysci.ops.problem import Problem
    from polysci.report import Report
    from polysci.target.machine import Machine
    from polysci.target.target import Target

_HELP = "write one self-contained HTML page about layers, or about a whole model"
_MORE = (
    "Of layers: table, roofline, rank scatter, every schedule. Of a model (MODEL.onnx, .pt2, .tc, "
    "or words of layers): stages, roofline, memory over time, fusions and why others were refused."
)
_LONGEST = 80  # characters of a title


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser(
        "report", help=_HELP, description=f"{_HELP}. {_MORE}", allow_abbrev=False
    )
    shared.layer_options(command)
    shared.search_options(command)
    report_network.options(command)
    command.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="the HTML file to write"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Optimise (or look up) every layer, then write the page; 1 if a layer failed.

    Or compile a model, time it, and write its page.

    After Ctrl-C the page holds the layers that are there.
    """
    if report_network.names_model(arguments):
        return report_network.run(arguments)
    from polysci.cli.display import Display
    from polysci.report import page

    todo = shared.problems(arguments)
    output_file.check_writable(arguments.output)
    tuned, interrupted = list[shared.TunedLayer](), False
    with Display(len(todo)) as display:
        try:
            for layer in shared.tune_layers(todo, arguments, display.watch):
                tuned.append(layer)
                display.done(_line(layer))
        except KeyboardInterrupt:
            interrupted = True
    if tuned:
        output_file.write(page(_report(arguments, tuned, len(todo))), arguments.output)
        shared.say(f"written: {arguments.output}")
    if interrupted:
        raise shared.Interrupted
    return int(any(layer.result is None for layer in tuned))


def _line(layer: shared.TunedLayer) -> str:
    if layer.result is None:
        return f"{shared.title(layer.problem)}: FAILED: {layer.fault}"
    mark = shared.mark_disturbed(layer.result)
    return f"{shared.title(layer.problem)}: {layer.result.schedule}{mark}"


def _report(arguments: argparse.Namespace, tuned: list[shared.TunedLayer], planned: int) -> Report:
    from polysci.report import Report, layer_of
    from polysci.tune.calibrate import machine_of

    threads, target = shared.threads_of(arguments), shared.target_of(arguments)
    described, recorded = shared.machine_of(arguments), _recorded_seconds(threads, target)
    layers = tuple(
        layer_of(
            shared.title(layer.problem), layer.problem, layer.result, layer.fault,
            _context(layer.problem, threads, target, described),
            recorded.get(layer.problem.key, {}),
        )
        for layer in tuned
    )  # fmt: skip
    return Report(
        _title(arguments.layers), layers, planned, target, described or machine_of(target), threads,
        arguments.level, report_network.now(), report_network.version_text(),
    )  # fmt: skip


def _context(
    problem: Problem, threads: int, target: Target, machine: Machine | None
) -> Context | None:
    """The ranker's context; None where there is none, as for an empty batch."""
    from polysci.tune import context_of

    try:
        return context_of(problem, threads, target, machine=machine)
    except PolysciError:
        return None


def _title(sources: list[str]) -> str:
    """Names of networks and layers, shortened to the first where there are many."""
    names = [Path(word).stem if Path(word).suffix in (".txt", ".c") else word for word in sources]
    title = ", ".join(names)
    return title if len(title) <= _LONGEST else f"{names[0]} and {len(names) - 1} more"


def _recorded_seconds(threads: int, target: Target) -> Mapping[str, Mapping[str, float]]:
    """Measured seconds of this machine by problem and schedule, trials included.

    Disturbed ones are left out: they say nothing about the model.
    """
    from polysci.runtime.measurement import host_of
    from polysci.tune.wisdom import Wisdom, canonical_features

    times: defaultdict[str, dict[str, float]] = defaultdict(dict)
    try:
        records = Wisdom().measurements(host_of(target), threads=threads)
    except WisdomError:  # the report is useful without earlier records
        return times
    features = canonical_features(target.isa.features)
    for record in records:
        if record.features == features and not record.disturbed:
            times[record.problem][record.schedule] = record.seconds
    return times
