"""polysci explain: why this schedule."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from polysci.cli import compile
from polysci.cli import layers as shared
from polysci.cli.bindings import binding_options
from polysci.errors import SpecError, WisdomError

if TYPE_CHECKING:
    from polysci.cost import Context
    from polysci.explain import MeasuredTime
    from polysci.lower.algorithm import ExplainRequest, ScheduleExplanation
    from polysci.ops.problem import Problem
    from polysci.space.schedule import Schedule
    from polysci.tune.wisdom import Record, Wisdom

SHORTLIST = 4  # schedules ranked to take the first of
_log = logging.getLogger(__name__)

HELP = (
    "show domain, accesses, dependences, GEMM roles, working sets, traffic, bounds, the "
    "prediction, the roofline, other schedules and every ranker's choice; for a model "
    "(MODEL.onnx): which nodes became one stage, and which fusions were refused and why"
)


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.layer_options(command)
    shared.device_option(command)
    command.add_argument("--ranker", default="traffic", metavar="NAME", help="cost model (traffic)")
    shared.algorithm_option(command)
    command.add_argument(
        "--schedule", metavar="TEXT", help="explain this schedule instead of the best"
    )
    command.add_argument("--source", action="store_true", help="print the C code as well")
    binding_options(command)
    shared.table_options(command)
    command.add_argument(
        "--plot", metavar="FILE", help="also draw working sets and times to FILE, as .png or .svg; "
        "of several layers as FILE-1, FILE-2 and so on",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Explain every layer: the given schedule, the recorded one, or the model's choice."""
    from polysci.frontends import table

    if models := [text for text in arguments.layers if table.names_model(text)]:
        return compile.print_explanation(arguments, _only(models, arguments))
    if bound := [*arguments.dim, *arguments.value, *arguments.most]:
        raise SpecError(f"{bound[0][0]}: bound in a whole model (MODEL.onnx), not in layers")
    from polysci.lower.registry import algorithm_of

    requested = shared.schedule_of(arguments)
    todo = shared.problems(arguments)
    pictures = _pictures(arguments.plot, len(todo))
    for problem, picture in zip(todo, pictures, strict=True):
        request = _request(problem, requested, _context(problem, arguments), arguments)
        _show(request, algorithm_of(request.schedule).explain(request), picture, arguments)
    return 0


def _show(
    request: ExplainRequest,
    explanation: ScheduleExplanation,
    picture: Path | None,
    arguments: argparse.Namespace,
) -> None:
    from polysci.tune import emit

    if picture:
        _draw(request, explanation, picture)
    source = None
    if arguments.source:
        source = emit(request.problem, request.schedule, request.context.threads).file
    if arguments.json:
        print(json.dumps(explanation.members() | ({"source": source} if source else {})))
        return
    print(explanation.render(shared.table_width(arguments)))
    if source:
        print(source)


def _draw(request: ExplainRequest, explanation: ScheduleExplanation, picture: Path) -> None:
    """Raises SpecError for a schedule without loops of the nest."""
    from polysci.explain.plot import draw
    from polysci.lower.registry import DEFAULT

    if explanation.nest is None:
        raise SpecError(
            f"--plot: nothing is drawn for {request.schedule}: use --algorithm {DEFAULT}"
        )
    draw(explanation.nest, picture)
    shared.say(f"written: {picture}")


def _only(models: list[str], arguments: argparse.Namespace) -> str:
    """The model. Raises SpecError for several arguments and for options that need a layer."""
    if len(arguments.layers) > 1:
        raise SpecError(f"{models[0]}: a whole model is explained by itself")
    for option in ("schedule", "source", "plot", "batch", "machine"):
        if getattr(arguments, option):
            raise SpecError(f"--{option}: applies to layers only; {models[0]} is a whole model")
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


def _context(problem: Problem, arguments: argparse.Namespace) -> Context:
    from polysci.cli.display import Display
    from polysci.tune import Progress, context_of

    with Display(1) as display:
        return context_of(
            problem, shared.threads_of(arguments), shared.target_of(arguments),
            lambda done, total: display.watch(problem, Progress("calibrating", done, total)),
            shared.machine_of(arguments),
        )  # fmt: skip


def _request(
    problem: Problem, requested: Schedule | None, context: Context, arguments: argparse.Namespace
) -> ExplainRequest:
    """The schedule to explain, where it comes from, and its time if it was ever measured here."""
    from polysci.lower.algorithm import ExplainRequest
    from polysci.lower.choice import candidates, key_of
    from polysci.tune.wisdom import Wisdom

    wisdom = Wisdom() if shared.machine_of(arguments) is None else None
    key = key_of(problem, arguments.algorithm)
    schedule, origin, measured = requested, "given", None
    if schedule is None and wisdom:
        schedule, measured = _recorded_schedule(wisdom, key, context)
        origin = "wisdom"
    if schedule is None:
        ranked = candidates(
            problem, context, SHORTLIST, arguments.algorithm, ranker=arguments.ranker
        )
        schedule, origin = ranked[0].schedule, "estimate"
    if measured is None and wisdom:
        measured = _measured_time(wisdom, key, context, schedule)
    title = shared.title(problem)
    return ExplainRequest(title, problem, schedule, context, origin, measured, arguments.ranker)


def _recorded_schedule(
    wisdom: Wisdom, key: str, context: Context
) -> tuple[Schedule | None, MeasuredTime | None]:
    """The measured schedule of this machine, if there is one and it still parses."""
    from polysci.lower.registry import name_of
    from polysci.runtime.measurement import host_of
    from polysci.space import schedule

    target = context.target
    try:
        record = wisdom.best(key, context.threads, target.isa.features, host=host_of(target))
        if record is None:
            return None, None
        recorded = schedule.parse(record.schedule)
        name_of(recorded)
    except WisdomError as error:
        _log.warning("explaining without records: %s", error)
        return None, None
    except SpecError:
        return None, None
    return recorded, _recorded_time(record)


def _measured_time(
    wisdom: Wisdom, key: str, context: Context, schedule: Schedule
) -> MeasuredTime | None:
    """The least undisturbed time of the schedule, else the least, if it was ever tried here."""
    from polysci.runtime.measurement import host_of

    try:
        records = wisdom.measurements(host_of(context.target), threads=context.threads)
    except WisdomError:
        return None
    tried = [r for r in records if r.problem == key and r.schedule == str(schedule)]
    best = min(tried, key=lambda record: (record.disturbed, record.seconds), default=None)
    return _recorded_time(best) if best else None


def _recorded_time(record: Record) -> MeasuredTime:
    from polysci.explain import MeasuredTime

    return MeasuredTime(record.seconds, True, record.dropped, record.speed, record.disturbed)
