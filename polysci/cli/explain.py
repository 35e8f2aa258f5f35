"""polysci explain: why this schedule."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from polysci.cli import compile
from polysci.cli import layers as shared
from polysci.errors import SpecError, WisdomError

_HELP = (
    "show domain, accesses, dependences, GEMM roles, working sets, traffic, bounds, the "
    "prediction, the roofline, rivals and what every ranker says; of a whole model "
    "(MODEL.onnx) what became one stage, and what was considered and refused"
)


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser("explain", help=_HELP, description=_HELP, allow_abbrev=False)
    shared.layer_options(command)
    command.add_argument("--ranker", default="traffic", metavar="NAME", help="cost model (traffic)")
    shared.algorithm_option(command)
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
    if models := [text for text in asked.layers if text.endswith(".onnx")]:
        return compile.print_explanation(asked, _only(models, asked))
    from polysci.explain import members, render

    threads = shared.threads_of(asked)
    given = shared.schedule_of(asked)
    todo = shared.problems(asked)
    pictures = _pictures(asked.plot, len(todo))
    for problem, picture in zip(todo, pictures, strict=True):
        context = _context(problem, asked)
        plan, origin, measured = _chosen(problem, given, context, asked)
        if plan and plan.transform:
            _show_winograd(problem, plan, origin, measured, context, asked)
            continue
        found = _explained(problem, plan, origin, measured, context, asked)
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


def _only(models: list[str], asked: argparse.Namespace) -> str:
    """The one model asked for. Raises SpecError for more, and for what a model has none of."""
    if len(asked.layers) > 1:
        raise SpecError(f"{models[0]}: a whole model is explained by itself")
    for option in ("schedule", "source", "plot", "batch", "machine"):
        if getattr(asked, option):
            raise SpecError(f"--{option}: of a layer; {models[0]} is a whole model")
    return models[0]


def _pictures(path: str | None, count: int) -> list[Path | None]:
    """A file for every layer; checked before anything is explained."""
    if path is None:
        return [None] * count
    from polysci.explain.plot import check

    check(Path(path))
    if count == 1:
        return [Path(path)]
    return [Path(path).with_stem(f"{Path(path).stem}-{at + 1}") for at in range(count)]


def _context(problem: Any, asked: argparse.Namespace) -> Any:
    from polysci.cli.display import Display
    from polysci.tune import context_of

    threads, target = shared.threads_of(asked), shared.target_of(asked)
    with Display(1) as display:
        return context_of(
            problem, threads, target, _calibrating(display, problem), shared.machine_of(asked)
        )


def _chosen(problem: Any, given: Any, context: Any, asked: argparse.Namespace) -> Any:
    """The schedule to explain, where it comes from and its time; None leaves it to the ranker."""
    from polysci.algorithms.choice import candidates, key_of, resolve_algorithm
    from polysci.tune.wisdom import Wisdom

    plan, origin, measured = given, "given", None
    if plan is None and shared.machine_of(asked) is None:
        key = key_of(problem, asked.algorithm)
        plan, measured = _recorded(Wisdom(), key, context.threads, context.target)
        origin = "wisdom"
    if plan is None and resolve_algorithm(problem, asked.algorithm) != "direct":
        options = {"ranker": asked.ranker}
        plan = candidates(problem, context, 4, asked.algorithm, **options)[0].schedule
        origin = "estimate"
    return plan, origin, measured


def _show_winograd(
    problem: Any,
    plan: Any,
    origin: str,
    measured: float | None,
    context: Any,
    asked: argparse.Namespace,
) -> None:
    """A Winograd schedule has parts of its own: no loops of the nest, rivals or working sets."""
    from polysci.algorithms.winograd.plan import resolve
    from polysci.algorithms.winograd.text import members, render
    from polysci.tune import emit

    if asked.plot:
        raise SpecError(f"--plot: nothing is drawn for {plan}: use --algorithm direct")
    found, name = resolve(problem, plan, context.threads), shared.title(problem)
    source = emit(problem, plan, context.threads).file if asked.source else None
    on = (context.target, context.machine)
    if asked.json:
        told = members(name, found, *on, measured)
        print(json.dumps(told | ({"source": source} if source else {})))
        return
    print(render(name, found, *on, origin=origin, measured=measured))
    if source:
        print(source)


def _explained(
    problem: Any,
    plan: Any,
    origin: str,
    measured: float | None,
    context: Any,
    asked: argparse.Namespace,
) -> Any:
    from polysci.explain import explain
    from polysci.tune import model_of
    from polysci.tune.wisdom import Wisdom

    threads, target = context.threads, context.target
    found = explain(
        shared.title(problem), model_of(problem)[0], context, plan,
        origin=origin, measured=measured, ranker=asked.ranker,
    )  # fmt: skip
    return (
        found
        if measured or shared.machine_of(asked)
        else _measured(Wisdom(), problem, threads, target, found)
    )


def _source(problem: Any, found: Any, threads: int) -> str:
    from polysci.tune import emit

    return emit(problem, found.schedule, threads).file


def _calibrating(display: Any, problem: Any) -> Any:
    from polysci.tune import Progress

    return lambda done, total: display.watch(problem, Progress("calibrating", done, total))


def _recorded(wisdom: Any, key: str, threads: int, target: Any) -> tuple[Any, float | None]:
    """The measured schedule of this machine, if there is one and it still reads."""
    from polysci.polyhedral import schedule
    from polysci.runtime.measurement import host_of

    record = wisdom.best(key, threads, target.isa.features, host=host_of(target))
    if record is None:
        return None, None
    try:
        return schedule.parse(record.schedule), record.seconds
    except SpecError:
        return None, None


def _measured(wisdom: Any, problem: Any, threads: int, target: Any, found: Any) -> Any:
    """The explanation with the time of its schedule, if it was ever tried on this machine."""
    from dataclasses import replace

    from polysci.runtime.measurement import host_of

    try:
        records = wisdom.measured(host_of(target), threads=threads)
    except WisdomError:
        return found
    text = str(found.schedule)
    times = [one.seconds for one in records if (one.problem, one.schedule) == (problem.key, text)]
    return replace(found, measured=min(times)) if times else found
