"""polysci explain: why this schedule."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from polysci.cli import layers as shared
from polysci.errors import SpecError, WisdomError

_HELP = (
    "show domain, accesses, dependences, GEMM roles, working sets, traffic, bounds, the "
    "prediction, the roofline, rivals and what every ranker says"
)


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser("explain", help=_HELP, description=_HELP, allow_abbrev=False)
    shared.layer_options(command)
    command.add_argument("--ranker", default="traffic", metavar="NAME", help="cost model (traffic)")
    command.add_argument("--schedule", metavar="TEXT", help="explain this one instead")
    command.add_argument("--source", action="store_true", help="print its C as well")
    command.add_argument("--json", action="store_true", help="JSON lines")
    command.add_argument(
        "--plot", metavar="FILE", help="draw working sets and times there too, as .png or .svg; "
        "of several layers as FILE-1, FILE-2 and so on",
    )  # fmt: skip
    command.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Explain every layer: the given schedule, the recorded one, or the model's choice."""
    from polysci import schedule
    from polysci.explain import members, render

    threads = shared.threads_of(asked)
    given = schedule.parse(asked.schedule) if asked.schedule else None
    todo = shared.problems(asked)
    pictures = _pictures(asked.plot, len(todo))
    for problem, picture in zip(todo, pictures, strict=True):
        found = _explained(problem, given, asked)
        source = _source(problem, found, threads) if asked.source else None
        if asked.json:
            print(json.dumps(members(found) | ({"source": source} if source else {})))
        else:
            print(render(found))
            if source:
                print(source)
        if picture:
            from polysci.explain.plot import draw

            draw(found, picture)
            shared.say(f"written: {picture}")
    return 0


def _pictures(path: str | None, count: int) -> list[Path | None]:
    """A file for every layer; checked before anything is explained."""
    if path is None:
        return [None] * count
    from polysci.explain.plot import check

    check(Path(path))
    if count == 1:
        return [Path(path)]
    return [Path(path).with_stem(f"{Path(path).stem}-{at + 1}") for at in range(count)]


def _explained(problem: Any, given: Any, asked: argparse.Namespace) -> Any:
    from polysci.cli.display import Display
    from polysci.explain import explain
    from polysci.tune import context_of, model_of
    from polysci.wisdom import Wisdom

    threads, target = shared.threads_of(asked), shared.target_of(asked)
    machine = shared.machine_of(asked)
    with Display(1) as display:
        context = context_of(problem, threads, target, _calibrating(display, problem), machine)
    plan, origin, measured = given, "given", None
    if plan is None and machine is None:
        plan, measured = _recorded(Wisdom(), problem, threads, target)
        origin = "wisdom"
    found = explain(
        shared.title(problem), model_of(problem)[0], context, plan,
        origin=origin, measured=measured, ranker=asked.ranker,
    )  # fmt: skip
    return found if measured or machine else _measured(Wisdom(), problem, threads, target, found)


def _source(problem: Any, found: Any, threads: int) -> str:
    from polysci.tune import emit

    return emit(problem, found.schedule, threads).file


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


def _measured(wisdom: Any, problem: Any, threads: int, target: Any, found: Any) -> Any:
    """The explanation with the time of its schedule, if it was ever tried on this machine."""
    from dataclasses import replace

    from polysci.tune.search import host_of

    try:
        records = wisdom.measured(host_of(target), threads=threads)
    except WisdomError:
        return found
    text = str(found.schedule)
    times = [one.seconds for one in records if (one.problem, one.schedule) == (problem.key, text)]
    return replace(found, measured=min(times)) if times else found
