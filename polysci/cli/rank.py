"""polysci rank: what every ranker would choose, and how good that is."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.cli.rank_table import RankedLayer, as_json, as_text
from polysci.errors import PolysciError, SpecError

if TYPE_CHECKING:
    from polysci.cli.display import Display

_HELP = "show the first schedules of every ranker; with --measure, how good its order is"
_NOTES = """\
A cost is in the ranker's own unit; least is best. 'predicted' is the traffic model's time, whoever
chose. With --measure all of them are compiled, checked and timed in turn. Then, for each ranker:
  first   speed of its first choice, of the fastest schedule shown: 1 is perfect
  few     the same for the best of its choices, which is what a search that measures them finds
  tau     Kendall's tau between its costs and the times of all schedules shown; 1: the same order
  pairs   share of the pairs more than 2 % apart in time that its costs put the right way
"""


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser(
        "rank", help=_HELP, description=_HELP, epilog=_NOTES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    shared.layer_options(command, nargs="*")
    command.add_argument("--list", action="store_true", help="print the rankers and what they do")
    command.add_argument(
        "--ranker", action="append", metavar="NAME", help="this one; may be repeated (all)"
    )
    command.add_argument(
        "--top", type=shared.positive, default=3, metavar="N", help="first schedules of each (3)"
    )
    command.add_argument(
        "--measure", action="store_true", help="compile, check and time every schedule shown"
    )
    command.add_argument("--json", action="store_true", help="JSON lines and a summary")
    command.add_argument("-o", "--output", metavar="FILE", help="write the table or JSON there")
    command.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Rank every layer, measure if asked, print; 1 if a layer or a ranker asked for failed."""
    from polysci.cli.display import Display

    if asked.list:
        shared.write(_listing(asked.json), asked.output)
        return 0
    names, threads = _names(asked), shared.threads_of(asked)
    found, interrupted = list[RankedLayer](), False
    todo = list({problem.key: problem for problem in shared.problems(asked)}.values())
    with Display(len(todo)) as display:
        try:
            for problem in todo:
                found.append(RankedLayer(problem))
                _fill(found[-1], asked, names, display)
                display.done(_line(found[-1]))
        except KeyboardInterrupt:
            interrupted = True
    found = [one for one in found if one.rankings or one.fault]
    if found:
        shared.write(as_json(found, threads) if asked.json else as_text(found), asked.output)
    if interrupted:
        raise shared.Interrupted
    return int(any(_failed(one, asked) for one in found))


def _names(asked: argparse.Namespace) -> list[str]:
    """The rankers to ask. Raises SpecError for what cannot be done at all."""
    from polysci.rank import RANKERS
    from polysci.rank.shortlist import ranker_of

    if not asked.layers:
        raise SpecError("rank: expected SPEC or FILE, or --list")
    if asked.measure and asked.machine:
        raise SpecError(f"--measure runs code on this machine, not on that of {asked.machine}")
    names = list(dict.fromkeys(asked.ranker or RANKERS))
    for name in names:
        ranker_of(name)
    return names


def _fill(one: RankedLayer, asked: argparse.Namespace, names: list[str], display: Display) -> None:
    """Rank, measure and score one layer; what Ctrl-C leaves in ``one`` is scored as well."""
    from polysci.tune import Progress, context_of
    from polysci.tune.ranker_scores import distinct, measure_choices, ranking

    def watch(stage: str, done: int, total: int) -> None:
        display.watch(one.problem, Progress(stage, done, total))

    threads, target = shared.threads_of(asked), shared.target_of(asked)
    machine, calibrating = shared.machine_of(asked), partial(watch, "calibrating")
    try:
        context = context_of(one.problem, threads, target, calibrating, machine)
        for at, name in enumerate(names):
            watch(f"ranking: {name}", at, len(names))
            one.rankings.append(ranking(context, name, asked.top))
            if asked.ranker and isinstance(one.rankings[-1].fault, SpecError):
                raise one.rankings[-1].fault
        if not asked.measure:
            return
        todo = distinct(one.rankings)
        try:
            watch("measuring", 0, len(todo))
            for plan, time in measure_choices(one.problem, todo, threads):
                one.times[plan] = str(time) if isinstance(time, PolysciError) else time
                watch("measuring", len(one.times), len(todo))
        finally:
            _score(one, context)
    except SpecError:
        raise
    except PolysciError as error:
        one.fault = str(error)


def _score(one: RankedLayer, context: Any) -> None:
    from polysci.tune.ranker_scores import score

    seconds = {plan: time for plan, time in one.times.items() if isinstance(time, float)}
    for ranking in one.rankings:
        if found := score(context, ranking, seconds):
            one.scores[ranking.ranker] = found


def _failed(one: RankedLayer, asked: argparse.Namespace) -> bool:
    faults = [ranking.fault is not None for ranking in one.rankings]
    return bool(one.fault) or all(faults) or (any(faults) and bool(asked.ranker))


def _line(one: RankedLayer) -> str:
    name = shared.title(one.problem)
    if one.fault:
        return f"{name}: FAILED: {one.fault}"
    good = [ranking for ranking in one.rankings if ranking.choices]
    timed = f", {len(one.times)} schedules timed" if one.times else ""
    return f"{name}: {len(good)} of {len(one.rankings)} rankers{timed}"


def _listing(as_json: bool) -> str:
    from polysci.rank import RANKERS
    from polysci.text.tables import columns

    rows = [(name, ranker.summary) for name, ranker in RANKERS.items()]
    if as_json:
        return "\n".join(json.dumps({"ranker": name, "summary": text}) for name, text in rows)
    return columns(rows, left=(0, 1), indent="")
