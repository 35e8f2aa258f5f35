"""polysci report MODEL: one page about a whole model, and a trace of its runs."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polysci.cli import compile as compile_command
from polysci.cli import layers as shared
from polysci.cli import output_file
from polysci.errors import SpecError

if TYPE_CHECKING:
    from polysci.network.account import NetworkAccount
    from polysci.report.network_model import NetworkPage

# Options that one of the two takes, and what they are when nobody gives them.
_OF_LAYERS: Final = {
    "layout": "nhwc", "direction": "", "batch": None, "machine": None, "ranker": "traffic",
}  # fmt: skip
_OF_MODELS: Final = {
    "dim": [], "value": [], "external_data": False, "optimize": "speed", "update": "auto",
    "keep_denormals": False, "name": None, "trace": None,
}  # fmt: skip


def options(command: argparse.ArgumentParser) -> None:
    """Add the options of models."""
    compile_command.reading_options(command)
    command.add_argument("--name", metavar="NAME", help="title of the page (the model's name)")
    command.add_argument(
        "--trace", metavar="FILE.json",
        help="of a model: also write measured runs as trace events, for ui.perfetto.dev",
    )  # fmt: skip
    command.set_defaults(explain=False)


def names_model(arguments: argparse.Namespace) -> bool:
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


def run(arguments: argparse.Namespace) -> int:
    """Compile the model, time it, write the page and the trace; then 0."""
    from polysci.network.account import account_of
    from polysci.report.network_page import network_page
    from polysci.report.trace import trace_text

    (arguments.model,) = arguments.layers
    output_file.check_writable(arguments.output)
    output_file.check_writable(arguments.trace, "--trace")
    if arguments.trace and Path(arguments.trace).resolve() == Path(arguments.output).resolve():
        raise SpecError(f"--trace {arguments.trace}: the page itself; give another file")
    network = compile_command.network_of(arguments)
    shared.say("timing stages and runs")
    account = account_of(network)
    output_file.write(network_page(_page_of(account)), arguments.output)
    shared.say(f"written: {arguments.output}")
    if arguments.trace:
        output_file.write(trace_text(account), arguments.trace, "--trace")
        shared.say(f"written: {arguments.trace}; ui.perfetto.dev opens it")
    return 0


def _page_of(account: NetworkAccount) -> NetworkPage:
    """The account beside the machine's rates."""
    from polysci.explain.roofline import bandwidths
    from polysci.report.network_model import NetworkPage

    options = account.network.options
    machine = options.rates
    rates = bandwidths(machine, options.target, options.threads)
    return NetworkPage(account, machine, rates, now(), version_text())


def now() -> str:
    """The date of a page."""
    return datetime.now().strftime("%Y-%m-%d %H:%M")


def version_text() -> str:
    """Return the version of the installed package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("polysci")
    except PackageNotFoundError:
        return "(not installed)"
