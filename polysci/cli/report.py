"""polysci report: one page about layers or a whole model, and a trace of the model's runs."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polysci.cli import compile as compile_command
from polysci.cli import layers as shared
from polysci.errors import PolysciError, SpecError, WisdomError
from polysci.version import __version__

if TYPE_CHECKING:
    from polysci.cost import Context
    from polysci.network.account import NetworkAccount
    from polysci.ops.problem import Problem
    from polysci.report import Report
    from polysci.report.network_page import NetworkPage
    from polysci.target.machine import Machine
    from polysci.target.target import Target

HELP = "write one self-contained HTML page about layers, or about a whole model"
MORE = (
    "Of layers: table, roofline, rank scatter, every schedule. Of a model (MODEL.onnx, .pt2, .tc, "
    "or words of layers): stages, roofline, memory over time, fusions and why others were refused."
)
_LONGEST = 80  # characters of a title
# Options that one of the two takes, and what they are when nobody gives them.
_OF_LAYERS: Final = {
    "layout": "nhwc", "direction": "", "batch": None, "machine": None, "ranker": "traffic",
}  # fmt: skip
_OF_MODELS: Final = {
    "dim": [], "value": [], "most": [], "state": [], "positions": "", "mask": "",
    "external_data": False,
    "optimize": "speed", "update": "auto", "keep_denormals": False, "name": None, "trace": None,
}  # fmt: skip


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.layer_options(command)
    shared.search_options(command)
    _model_options(command)
    command.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="the HTML file to write"
    )


def run(arguments: argparse.Namespace) -> int:
    """Optimise (or look up) every layer, then write the page; 1 if a layer failed.

    Or compile a model, time it, and write its page.

    After Ctrl-C the page holds the layers that are there.
    """
    if _names_model(arguments):
        return _report_model(arguments)
    from polysci.cli.display import Display
    from polysci.report import page

    todo = shared.problems(arguments)
    shared.check_writable(arguments.output)
    tuned = list[shared.TunedLayer]()
    with Display(len(todo)) as display, display.hold():
        for layer in shared.tune_layers(todo, arguments, display.watch):
            tuned.append(layer)
            display.done(_line(layer))
    if tuned:
        shared.write(page(_report(arguments, tuned, len(todo))), arguments.output)
        shared.say(f"written: {arguments.output}")
    display.end()
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
        arguments.level, _now(), __version__,
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


def _model_options(command: argparse.ArgumentParser) -> None:
    """Add the options of models."""
    compile_command.reading_options(command)
    command.add_argument("--name", metavar="NAME", help="title of the page (the model's name)")
    command.add_argument(
        "--trace", metavar="FILE.json",
        help="of a model: also write measured runs as trace events, for ui.perfetto.dev",
    )  # fmt: skip
    command.set_defaults(explain=False)


def _names_model(arguments: argparse.Namespace) -> bool:
    """Return whether a whole model is named. Raises SpecError for options of the other kind."""
    from polysci.frontends import table

    models = [text for text in arguments.layers if table.names_model(text)]
    if models and len(arguments.layers) > 1:
        raise SpecError(f"{models[0]}: a page is of one model, or of layers; leave out the others")
    what, other = ("layers", _OF_LAYERS) if models else ("a whole model (MODEL.onnx)", _OF_MODELS)
    for name, default in other.items():
        if getattr(arguments, name) != default:
            option = "dir" if name == "direction" else name.replace("_", "-")
            raise SpecError(f"--{option}: an option for {what}")
    return bool(models)


def _report_model(arguments: argparse.Namespace) -> int:
    """Compile the model, time it, write the page and the trace; then 0."""
    from polysci.network.account import account_of
    from polysci.report.network_page import network_page, trace_text

    (arguments.model,) = arguments.layers
    shared.check_writable(arguments.output)
    shared.check_writable(arguments.trace, "--trace")
    if arguments.trace and Path(arguments.trace).resolve() == Path(arguments.output).resolve():
        raise SpecError(f"--trace {arguments.trace}: the page itself; give another file")
    network = compile_command.network_of(arguments)
    shared.say("timing stages and runs")
    account = account_of(network)
    shared.write(network_page(_page_of(account)), arguments.output)
    shared.say(f"written: {arguments.output}")
    if arguments.trace:
        shared.write(trace_text(account), arguments.trace, "--trace")
        shared.say(f"written: {arguments.trace}; ui.perfetto.dev opens it")
    return 0


def _page_of(account: NetworkAccount) -> NetworkPage:
    """The account beside the machine's rates."""
    from polysci.explain.roofline import bandwidths
    from polysci.report.network_page import NetworkPage

    options = account.network.options
    machine = options.rates
    rates = bandwidths(machine, options.target, options.threads)
    return NetworkPage(account, machine, rates, _now(), __version__)


def _now() -> str:
    """The date of a page."""
    return datetime.now().strftime("%Y-%m-%d %H:%M")
