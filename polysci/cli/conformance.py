"""polysci conformance: ONNX's own tests of operators."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict

from polysci.cli import layers as shared
from polysci.errors import SpecError

HELP = "run the node tests of the onnx package: which pass, which are refused and why"
MORE = "Status 1 if a result is wrong."


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument(
        "--match", type=_pattern, default="", metavar="REGEX", help="tests with such names alone"
    )
    command.add_argument(
        "--jobs", type=shared.positive, default=2, metavar="N", help="processes side by side (2)"
    )
    shared.isa_option(command)
    shared.table_options(command)
    command.add_argument(
        "--markdown", action="store_true", help="print the page of the documentation"
    )
    command.add_argument("--output", metavar="FILE", help="write to FILE")


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: no regular expression: {error}") from None
    return text


def run(arguments: argparse.Namespace) -> int:
    """Judge all cases, a line of progress a batch."""
    from polysci.peers.networks.conformance import WRONG, judge_cases, load_cases, markdown, text

    if arguments.json and arguments.markdown:
        raise SpecError("--json and --markdown exclude each other")
    cases, outside = load_cases(arguments.match)
    if not cases:
        raise SpecError(f"--match {arguments.match!r}: no test in scope has such a name")
    verdicts = judge_cases(
        cases, isa=arguments.isa, jobs=arguments.jobs,
        watch=lambda done, total: shared.say(f"{done} of {total} cases"),
    )  # fmt: skip
    every = sorted([*verdicts, *outside], key=lambda verdict: verdict.case)
    if arguments.json:
        page = "\n".join(json.dumps(asdict(verdict)) for verdict in every)
    elif arguments.markdown:
        page = markdown(every)
    else:
        page = text(every, shared.table_width(arguments))
    shared.write(page, arguments.output)
    return int(any(verdict.kind == WRONG for verdict in verdicts))
