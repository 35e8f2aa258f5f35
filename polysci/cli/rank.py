"""polysci rank: what every ranker would choose, and how good that is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import zip_longest
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.cli.layers import title
from polysci.errors import NoCompilerError, PolysciError, SpecError, UnsupportedError

if TYPE_CHECKING:
    from polysci.cli.display import Display
    from polysci.cost import Context
    from polysci.ops.problem import Problem
    from polysci.runtime.backend import Backend
    from polysci.space.schedule import Schedule
    from polysci.tune import Progress

BATCH = 4  # schedules compiled and tried together


@dataclass(slots=True)
class RankedLayer:
    """One layer: every ranker's choices, their times and scores; or the error in ``fault``.

    ``times`` are seconds, or the error of a schedule.
    """

    problem: Problem
    rankings: list[Ranking] = field(default_factory=list)
    times: dict[Schedule, float | str] = field(default_factory=dict)
    scores: dict[str, RankerScore] = field(default_factory=dict)
    fault: str = ""
    note: str = ""

    def time(self, choice: RankedSchedule) -> float | None:
        outcome = self.times.get(choice.schedule)
        return outcome if isinstance(outcome, float) else None

    @property
    def best(self) -> float | None:
        return min((t for t in self.times.values() if isinstance(t, float)), default=None)


def as_json(layers: list[RankedLayer], threads: int) -> str:
    """A line a choice and a score, then a summary; times in seconds."""
    lines = [json.dumps(row) for layer in layers for row in _members(layer, threads)]
    summary = {name: its | {"layers": n} for name, (n, its) in _means(layers).items()}
    return "\n".join([*lines, json.dumps({"summary": {"layers": len(layers), "rankers": summary}})])


def _members(ranked: RankedLayer, threads: int) -> Iterator[dict[str, Any]]:
    """A row a choice, then one a score; times in seconds."""
    layer = {
        "layer": title(ranked.problem),
        "problem": str(ranked.problem),
        "layout": ranked.problem.layout,
        "threads": threads,
    }
    if ranked.fault:
        yield layer | {"error": ranked.fault}
    for ranking in ranked.rankings:
        mine = layer | {"ranker": ranking.ranker}
        if ranking.fault:
            yield mine | {"error": str(ranking.fault)}
        for place, choice in enumerate(ranking.choices, 1):
            wrong = ranked.times.get(choice.schedule)
            yield mine | {
                "place": place,
                "schedule": str(choice.schedule),
                "cost": choice.cost,
                "predicted_seconds": choice.seconds,
                "seconds": ranked.time(choice),
                **({"error": wrong} if isinstance(wrong, str) else {}),
            }
    for name, score in ranked.scores.items():
        yield layer | {"ranker": name, "score": asdict(score)}


def _means(layers: list[RankedLayer]) -> dict[str, tuple[int, dict[str, float]]]:
    """Return, for each ranker with scores, the number of layers and the means of its scores."""
    means = {}
    for name in dict.fromkeys(name for layer in layers for name in layer.scores):
        its = [layer.scores[name] for layer in layers if name in layer.scores]
        means[name] = (
            len(its),
            {
                "first": geometric_mean(score.first for score in its),
                "few": geometric_mean(score.few for score in its),
                "tau": fmean(score.tau for score in its),
                "pairs": fmean(score.pairs for score in its),
            },
        )
    return means


def as_text(layers: list[RankedLayer], width: int | None) -> str:
    """A table a layer, in ``width`` columns, and one over all."""
    from polysci.text.tables import columns, fit

    parts = []
    for layer in layers:
        choices = fit(
            list(_rows(layer)),
            width,
            drop=("cost", "predicted", "place"),
            clip=("schedule",),
            left=("ranker", "schedule"),
            indent="  ",
        )
        parts += [
            _heading(layer),
            choices,
            *_faults(layer),
            *[f"  {layer.note}"] * bool(layer.note),
        ]
        parts.append("")
        if layer.scores:
            rows = [_score_row(name, asdict(score)) for name, score in layer.scores.items()]
            parts += [columns([_SCORE_HEAD, *rows]), ""]
    means = _means(layers)
    if len(layers) > 1 and means:
        rows = [(*_score_row(name, its), str(n)) for name, (n, its) in means.items()]
        parts += [
            f"{len(layers)} layers: geomeans of first and few, means of tau and pairs",
            columns([(*_SCORE_HEAD, "layers"), *rows]), "",
        ]  # fmt: skip
    return "\n".join(parts[:-1])


_SCORE_HEAD = ("ranker", "first", "few", "tau", "pairs")


def _score_row(name: str, figures: dict[str, float]) -> tuple[str, ...]:
    return (name, *(f"{figures[column]:.3f}" for column in _SCORE_HEAD[1:]))


def _heading(layer: RankedLayer) -> str:
    text, name = str(layer.problem), title(layer.problem)
    return text if name in text else f"{name}: {text}"


def _rows(layer: RankedLayer) -> Iterator[tuple[str, ...]]:
    from polysci.text.tables import time_text

    yield ("ranker", "place", "schedule", "cost", "predicted",
           *(("measured", "of best") if layer.times else ()))  # fmt: skip
    for ranking in layer.rankings:
        for place, choice in enumerate(ranking.choices, 1):
            name = ranking.ranker if place == 1 else ""
            row: tuple[str, ...] = (name, str(place), str(choice.schedule), f"{choice.cost:.4g}",
                   time_text(choice.seconds))  # fmt: skip
            wrong = layer.times.get(choice.schedule)
            if isinstance(wrong, str):
                row = (*row, "FAILED")
            time, best = layer.time(choice), layer.best
            yield (*row, time_text(time), f"{best / time:.3f}") if time and best else row


def _faults(layer: RankedLayer) -> Iterator[str]:
    if layer.fault:
        yield f"  FAILED: {layer.fault}"
    for schedule, outcome in layer.times.items():
        if isinstance(outcome, str):
            yield f"  {schedule}: FAILED: {_first(outcome)}"
    for ranking in layer.rankings:
        if ranking.fault:
            yield f"  without {ranking.ranker}: {_first(str(ranking.fault))}"


def _first(text: str) -> str:
    return text.partition("\n")[0]


HELP = "show the first schedules of every ranker; with --measure, how good its order is"
NOTES = """\
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


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.layer_options(command, nargs="*")
    shared.device_option(command)
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


def run(arguments: argparse.Namespace) -> int:
    """Rank every layer, time the choices if requested, print; 1 if a layer or ranker failed."""
    from polysci.cli.display import Display

    shared.check_writable(arguments.output)
    if arguments.list:
        shared.write(_listing(arguments), arguments.output)
        return 0
    names, threads = _names(arguments), shared.threads_of(arguments)
    layers = list[RankedLayer]()
    todo = list({problem.key: problem for problem in shared.problems(arguments)}.values())
    with Display(len(todo)) as display, display.hold():
        for problem in todo:
            layers.append(RankedLayer(problem))
            _fill(layers[-1], arguments, names, display)
            display.done(_line(layers[-1]))
    layers = [layer for layer in layers if layer.rankings or layer.fault]
    if layers:
        width = shared.table_width(arguments)
        shared.write(
            as_json(layers, threads) if arguments.json else as_text(layers, width), arguments.output
        )
    display.end()
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
    from polysci.cost.shortlist import SECONDS
    from polysci.lower.choice import takes_groups
    from polysci.lower.registry import DEFAULT, algorithm_named
    from polysci.runtime.backends import backend_of
    from polysci.tune import Progress, context_of
    from polysci.tune.occupancy import describe_registers

    def watch_step(step: Progress) -> None:
        display.watch(layer.problem, step)

    def watch(stage: str, done: int, total: int) -> None:
        watch_step(Progress(stage, done, total))

    threads, target = shared.threads_of(arguments), shared.target_of(arguments)
    machine, calibrating = shared.machine_of(arguments), partial(watch, "calibrating")
    try:
        grouped, backend = takes_groups(layer.problem, target), backend_of(target)
        why = "" if grouped else algorithm_named(DEFAULT).refusal(layer.problem)
        if why:
            raise UnsupportedError(f"rankers order direct schedules, but {why}")
        context = context_of(layer.problem, threads, target, calibrating, machine)
        if grouped:
            names = arguments.ranker or [SECONDS]
            layer.note = describe_registers(backend)
        for at, name in enumerate(names):
            watch(f"ranking: {name}", at, len(names))
            layer.rankings.append(
                rank_groups(layer.problem, context, name, arguments.top, backend, watch_step)
                if grouped else rank_choices(context, name, arguments.top)
            )  # fmt: skip
            if arguments.ranker and isinstance(layer.rankings[-1].fault, SpecError):
                raise layer.rankings[-1].fault
        if not arguments.measure:
            return
        todo = distinct(layer.rankings)
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


def _score(layer: RankedLayer, context: Context) -> None:
    seconds = {schedule: time for schedule, time in layer.times.items() if isinstance(time, float)}
    for ranking in layer.rankings:
        if ranker_score := score_ranking(context, ranking, seconds):
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


@dataclass(frozen=True, slots=True)
class Ranking:
    """The first choices of a ranker, best first; or the error in ``fault``."""

    ranker: str
    choices: tuple[RankedSchedule, ...] = ()
    fault: PolysciError | None = None


@dataclass(frozen=True, slots=True)
class RankedSchedule:
    """A schedule, its ranker's ``cost`` and its predicted seconds."""

    schedule: Schedule
    cost: float
    seconds: float


@dataclass(frozen=True, slots=True)
class RankerScore:
    """The quality of a ranker's order on ``schedules`` timed ones, its own and the others'.

    ``first`` and ``few``: the shortest time of all over that of its first choice, and over that of
    the best of its choices; ``tau`` and ``pairs``: ``tau`` and ``pair_accuracy`` of cost.metrics.
    """

    schedules: int
    first: float
    few: float
    tau: float
    pairs: float


def rank_choices(context: Context, ranker: str, count: int) -> Ranking:
    """The first ``count`` schedules of a ranker; an error becomes its ``fault``."""
    from polysci.cost.shortlist import choices

    try:
        ranked = choices(context, count, ranker=ranker)
    except PolysciError as error:
        return Ranking(ranker, fault=error)
    return Ranking(ranker, tuple(RankedSchedule(it.schedule, it.cost, it.seconds) for it in ranked))


def rank_groups(
    problem: Problem, context: Context, ranker: str, count: int, backend: Backend,
    tell: Callable[[Progress], None] = lambda step: None,
) -> Ranking:  # fmt: skip
    """The first ``count`` tiles of groups, by the one ranker that orders them."""
    from polysci.cost.shortlist import SECONDS
    from polysci.lower.choice import candidates
    from polysci.tune.occupancy import COMPILED, refine

    if ranker != SECONDS:
        why = f"ranker {ranker}: orders the loops of CPUs; those of groups only {SECONDS} does"
        return Ranking(ranker, fault=UnsupportedError(why))
    try:
        ranked = candidates(problem, context, max(count, COMPILED))
        ranked = refine(problem, context, ranked, count, backend, tell)[:count]
    except PolysciError as error:
        return Ranking(ranker, fault=error)
    return Ranking(ranker, tuple(RankedSchedule(it.schedule, it.seconds, it.seconds)
                                 for it in ranked))  # fmt: skip


def distinct(rankings: Sequence[Ranking]) -> list[Schedule]:
    """All chosen schedules, each once: every ranker's first choice, then the second ones, ..."""
    turns = zip_longest(*(ranking.choices for ranking in rankings))
    return list(dict.fromkeys(choice.schedule for turn in turns for choice in turn if choice))


def measure_choices(
    problem: Problem,
    schedules: Sequence[Schedule],
    threads: int = 1,
    backend: Backend | None = None,
) -> Iterator[tuple[Schedule, float | PolysciError]]:
    """Each schedule's shortest seconds a call, caches warm; or the error that it causes."""
    from polysci.measure.bench import Bench
    from polysci.measure.trials import build_trials, time_trials

    with Bench(problem, threads, backend=backend) as bench:
        for at in range(0, len(schedules), BATCH):
            batch = schedules[at : at + BATCH]
            built = build_trials(problem, batch, threads, backend=backend)
            for trial, samples in time_trials(bench, built):
                if isinstance(samples, PolysciError):
                    yield trial.schedule, samples
                else:
                    yield trial.schedule, min(samples.seconds)


def score_ranking(
    context: Context, ranking: Ranking, seconds: Mapping[Schedule, float]
) -> RankerScore | None:
    """A ranker's score; None without two measured times, or where none of its choices has one."""
    import numpy as np

    from polysci.cost import metrics
    from polysci.cost.shortlist import cost_of

    own = [choice.schedule for choice in ranking.choices if choice.schedule in seconds]
    every = list(dict.fromkeys([*own, *seconds]))
    if not own or len(every) < 2:
        return None
    places = np.arange(len(every), dtype=np.float64)
    costs_of = {choice.schedule: choice.cost for choice in ranking.choices}
    costs = np.array([
        costs_of[schedule] if schedule in costs_of else cost_of(context, schedule, ranking.ranker)
        for schedule in every
    ])  # fmt: skip
    times = np.array([seconds[schedule] for schedule in every])
    return RankerScore(
        len(every),
        metrics.best_of_top(places, times),
        metrics.best_of_top(places, times, len(own)),
        metrics.tau(costs, times),
        metrics.pair_accuracy(costs, times),
    )
