"""polysci rank: what every ranker would choose, and how good that is."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.cli import output_file
from polysci.cli.rank_table import RankedLayer, as_json, as_text
from polysci.errors import NoCompilerError, PolysciError, SpecError, UnsupportedError

if TYPE_CHECKING:
    from polysci.cli.display import Display

_HELP = "show the first schedules of every ranker; with --measure, how good its order is"
_NOTES = """\
A cost is in the ranker's own unit; least is best. 'predicted' is the traffic
model's time, whoever chose. With --measure all of them are compiled, checked
and timed in turn. Then, for each ranker:
  first   speed of its first choice, of the fastest schedule shown: 1 is perfect
  few     the same for the best of its choices, which is what a search that
          measures them finds
  tau     Kendall's tau between its costs and the times of all schedules shown;
          1: the same order
  pairs   share of the pairs more than 2 % apart in time that its costs put the
          right way
"""


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser(
        "rank", help=_HELP, description=_HELP, epilog=_NOTES, allow_abbrev=False,
    )  # fmt: skip
    shared.layer_options(command, nargs="*")
    command.add_argument("--list", action="store_true", help="list the rankers")
    command.add_argument(
        "--ranker", action="append", metavar="NAME", help="use this ranker; may be repeated (all)"
    )
    command.add_argument(
        "--top",
        type=shared.positive,
        default=3,
        metavar="N",
        help="number of schedules to show for each ranker (3)",
    )
    command.add_argument(
        "--measure", action="store_true", help="compile, check and time every schedule shown"
    )
    shared.table_options(command)
    command.add_argument("-o", "--output", metavar="FILE", help="write the table or JSON to FILE")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Rank every layer, time the choices if requested, print; 1 if a layer or ranker failed."""
    from polysci.cli.display import Display

    output_file.check_writable(arguments.output)
    if arguments.list:
        output_file.write(_listing(arguments), arguments.output)
        return 0
    names, threads = _names(arguments), shared.threads_of(arguments)
    layers, interrupted = list[RankedLayer](), False
    todo = list({problem.key: problem for problem in shared.problems(arguments)}.values())
    with Display(len(todo)) as display:
        try:
            for problem in todo:
                layers.append(RankedLayer(problem))
                _fill(layers[-1], arguments, names, display)
                display.done(_line(layers[-1]))
        except KeyboardInterrupt:
            interrupted = True
    layers = [layer for layer in layers if layer.rankings or layer.fault]
    if layers:
        width = shared.table_width(arguments)
        output_file.write(
            as_json(layers, threads) if arguments.json else as_text(layers, width), arguments.output
        )
    if interrupted:
        raise shared.Interrupted
    return int(any(_has_failed(layer, arguments) for layer in layers))


def _names(arguments: argparse.Namespace) -> list[str]:
    """The rankers to ask. Raises SpecError for what cannot be done at all."""
    from polysci.cost import RANKERS
    from polysci.cost.shortlist import ranker_of

    if not arguments.layers:
        raise SpecError("rank: expected SPEC or FILE, or --list")
    if arguments.measure and arguments.machine:
        raise SpecError(f"--measure runs code on this machine, not on that of {arguments.machine}")
    if arguments.measure and shared.foreign_target(arguments):
        raise SpecError(f"--measure runs code on this machine, which has no {arguments.isa}")
    names = list(dict.fromkeys(arguments.ranker or RANKERS))
    for name in names:
        ranker_of(name)
    return names


def _fill(
    layer: RankedLayer, arguments: argparse.Namespace, names: list[str], display: Display
) -> None:
    """Rank, measure and score a layer; after Ctrl-C, what was measured is scored as well."""
    from polysci.lower.registry import DEFAULT, algorithm_named
    from polysci.runtime.backends import backend_of
    from polysci.tune import Progress, context_of
    from polysci.tune.ranker_scores import distinct, measure_choices, ranking

    def watch(stage: str, done: int, total: int) -> None:
        display.watch(layer.problem, Progress(stage, done, total))

    threads, target = shared.threads_of(arguments), shared.target_of(arguments)
    machine, calibrating = shared.machine_of(arguments), partial(watch, "calibrating")
    try:
        if why := algorithm_named(DEFAULT).refusal(layer.problem):
            raise UnsupportedError(f"rankers order direct schedules, but {why}")
        context = context_of(layer.problem, threads, target, calibrating, machine)
        for at, name in enumerate(names):
            watch(f"ranking: {name}", at, len(names))
            layer.rankings.append(ranking(context, name, arguments.top))
            if arguments.ranker and isinstance(layer.rankings[-1].fault, SpecError):
                raise layer.rankings[-1].fault
        if not arguments.measure:
            return
        todo, backend = distinct(layer.rankings), backend_of(target)
        try:
            watch("measuring", 0, len(todo))
            for schedule, time in measure_choices(layer.problem, todo, threads, backend):
                layer.times[schedule] = str(time) if isinstance(time, PolysciError) else time
                watch("measuring", len(layer.times), len(todo))
        finally:
            _score(layer, context)
    except (SpecError, NoCompilerError):
        raise
    except PolysciError as error:
        layer.fault = str(error)


def _score(layer: RankedLayer, context: Any) -> None:
    from polysci.tune.ranker_scores import score

    seconds = {schedule: time for schedule, time in layer.times.items() if isinstance(time, float)}
    for ranking in layer.rankings:
        if ranker_score := score(context, ranking, seconds):
            layer.scores[ranking.ranker] = ranker_score


def _has_failed(layer: RankedLayer, arguments: argparse.Namespace) -> bool:
    faults = [ranking.fault is not None for ranking in layer.rankings]
    return bool(layer.fault) or all(faults) or (any(faults) and bool(arguments.ranker))


def _line(layer: RankedLayer) -> str:
    name = shared.title(layer.problem)
    if layer.fault:
        return f"{name}: FAILED: {layer.fault}"
    good = [ranking for ranking in layer.rankings if ranking.choices]
    timed = f", {len(layer.times)} schedules timed" if layer.times else ""
    return f"{name}: {len(good)} of {len(layer.rankings)} rankers{timed}"


def _listing(arguments: argparse.Namespace) -> str:
    from polysci.cost import RANKERS
    from polysci.text.tables import pairs

    rows = [(name, ranker.summary) for name, ranker in RANKERS.items()]
    if arguments.json:
        return "\n".join(json.dumps({"ranker": name, "summary": text}) for name, text in rows)
    return pairs(rows, shared.table_width(arguments), indent="")
