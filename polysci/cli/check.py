"""polysci check: is the generated code right?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.errors import NoCompilerError, PolysciError, SpecError

if TYPE_CHECKING:
    from polysci.ops.problem import Problem
    from polysci.space.schedule import Schedule

HELP = "compare results with exact and with error-bounded references, between guard pages"


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.layer_options(command, described=False)
    shared.search_options(command, "estimate")
    command.add_argument("--schedule", metavar="TEXT", help="check this schedule")
    command.add_argument(
        "--all", type=shared.positive, metavar="N", help="check the model's first N schedules"
    )
    command.add_argument(
        "--mode", choices=("exact", "bound"), action="append",
        help="small integers bit for bit, or random reals within the rounding-error bound (both)",
    )  # fmt: skip
    command.add_argument("--seed", type=int, default=0, help="seed of the random inputs (0)")
    command.add_argument("--json", action="store_true", help="print JSON lines")


def run(arguments: argparse.Namespace) -> int:
    """Print PASS or FAIL and a command that repeats it, a line each; 1 if anything failed."""
    from polysci.measure.check import MODES, check
    from polysci.runtime.backends import backend_of

    if arguments.schedule and arguments.all:
        raise SpecError("--schedule and --all exclude each other")
    passed, failed, seen = 0, 0, set[str]()
    for problem in shared.problems(arguments):
        if problem.key in seen:
            continue
        seen.add(problem.key)
        try:
            schedules = list(_plans(arguments, problem))
            verdicts = check(
                problem, schedules, shared.threads_of(arguments),
                modes=arguments.mode or MODES, seed=arguments.seed,
                backend=backend_of(shared.target_of(arguments)),
            )  # fmt: skip
            for verdict in verdicts:
                passed, failed = passed + verdict.passed, failed + (not verdict.passed)
                _show(arguments, problem, verdict)
        except (SpecError, NoCompilerError):
            raise
        except PolysciError as error:
            failed += 1
            print(f"FAIL {shared.title(problem)}: {error}", flush=True)
    if not arguments.json:
        print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


def _plans(arguments: argparse.Namespace, problem: Problem) -> Iterator[Schedule]:
    """The schedules to check: the given one, the model's first, or what a search finds."""
    from polysci.lower.choice import candidates
    from polysci.tune import context_of

    requested = shared.schedule_of(arguments)
    if requested:
        yield requested
    elif arguments.all:
        context = context_of(problem, shared.threads_of(arguments), shared.target_of(arguments))
        options = {"ranker": arguments.ranker}
        ranked = candidates(problem, context, arguments.all, arguments.algorithm, **options)
        yield from (candidate.schedule for candidate in ranked)
    else:
        layer = next(iter(shared.tune_layers([problem], arguments)))
        if layer.result is None:
            raise PolysciError(layer.fault)
        yield layer.result.schedule


def _show(arguments: argparse.Namespace, problem: Problem, verdict: Any) -> None:
    if arguments.json:
        members = {"layer": shared.title(problem), "schedule": str(verdict.schedule)}
        members |= {"mode": verdict.mode, "passed": verdict.passed, "fault": verdict.fault}
        print(json.dumps(members | {"worst": verdict.worst, "command": verdict.command}))
        return
    fault = f"\n    {verdict.fault}" if verdict.fault else ""
    print(f"{verdict}{fault}", flush=True)
