"""polysci explain: why this schedule."""

from __future__ import annotations

import argparse
import json
from typing import Any

from polysci.cli import layers as shared
from polysci.errors import SpecError

_HELP = "show domain, accesses, GEMM roles, footprints, traffic, rivals and lower bounds"


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser("explain", help=_HELP, description=_HELP, allow_abbrev=False)
    shared.layer_options(command)
    command.add_argument("--ranker", default="traffic", metavar="NAME", help="cost model (traffic)")
    command.add_argument("--schedule", metavar="TEXT", help="explain this one instead")
    command.add_argument("--source", action="store_true", help="print its C as well")
    command.add_argument("--json", action="store_true", help="JSON lines")
    command.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Explain every layer: the given schedule, the recorded one, or the model's choice."""
    from polysci import schedule
    from polysci.cli.display import Display
    from polysci.explain import explain, render
    from polysci.tune import context_of, emit, model_of
    from polysci.wisdom import Wisdom

    threads, target = shared.threads_of(asked), shared.target_of(asked)
    given = schedule.parse(asked.schedule) if asked.schedule else None
    for problem in shared.problems(asked):
        with Display(1) as display:
            context = context_of(problem, threads, target, _calibrating(display, problem))
        plan, origin, measured = given, "given", None
        if plan is None:
            plan, measured = _recorded(Wisdom(), problem, threads, target)
            origin = "wisdom"
        found = explain(
            shared.title(problem), model_of(problem)[0], context, plan,
            origin=origin, measured=measured, ranker=asked.ranker,
        )  # fmt: skip
        source = emit(problem, found.schedule, threads).file if asked.source else None
        if asked.json:
            print(json.dumps(found.to_json() | ({"source": source} if source else {})))
        else:
            print(render(found))
            if source:
                print(source)
    return 0


def _calibrating(display: Any, problem: Any) -> Any:
    from polysci.tune import Progress

    return lambda done, total: display.watch(problem, Progress("calibrating", done, total))


def _recorded(wisdom: Any, problem: Any, threads: int, target: Any) -> tuple[Any, float | None]:
    """The measured schedule of this machine, if there is one and it still reads."""
    from polysci import schedule
    from polysci.tune.search import host_of

    record = wisdom.best(problem.key, threads, target.isa.features, host=host_of(target))
    if record is None:
        return None, None
    try:
        return schedule.parse(record.schedule), record.seconds
    except SpecError:
        return None, None
