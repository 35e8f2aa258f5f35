"""The search: rank, build, check and time, record and reuse."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

from polysci.border.guard import guard
from polysci.cost import Context
from polysci.cost.shortlist import vectors_of
from polysci.errors import CheckError, PolysciError, SpecError, UnsupportedError, WisdomError
from polysci.lower import choice
from polysci.lower.algorithm import Candidate
from polysci.lower.choice import FindCandidates
from polysci.lower.direct.emit import Source
from polysci.lower.registry import DEFAULT
from polysci.measure.first_run import check_first_run
from polysci.numerics.dtypes import precision_named
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.runtime.backend import backend_of
from polysci.runtime.measurement import RECORDED, Measurement
from polysci.space.schedule import Schedule
from polysci.space.summation import SummationOrder
from polysci.target.host import detect
from polysci.target.machine import Machine, assume_rates
from polysci.target.microkernels import find
from polysci.target.target import Target
from polysci.tune.calibrate import load_rates
from polysci.tune.context import context_of
from polysci.tune.predictions import Prediction, keep, key_of, load
from polysci.tune.records import SearchRecords
from polysci.tune.result import LEVELS, AnyOrder, Progress, Result
from polysci.tune.runner import LocalRunner, MakeRunner
from polysci.tune.search_options import check_flags, check_level, check_options, check_types
from polysci.tune.trials import Trials
from polysci.tune.tuned_trials import TunedTrials
from polysci.tune.tuners import TunerOptions, options_of
from polysci.tune.wisdom import Wisdom

KINDS = 60  # of schedules, from which those to measure are chosen
RANKER = "traffic"
_log = logging.getLogger(__name__)


@guard
def optimize(
    problem: Problem,
    level: str = "measure",
    threads: int = 1,
    *,
    target: Target | None = None,
    isa: str | None = None,
    ranker: str = RANKER,
    time_limit: float | None = None,
    wisdom: Wisdom | None = None,
    progress: Callable[[Progress], None] | None = None,
    machine: Machine | None = None,
    algorithm: str = DEFAULT,
    schedule: Schedule | str | None = None,
    again: bool = False,
    reproducible: bool = False,
    quick: bool = False,
    verify: bool = True,
    tuner: str | TunerOptions | None = None,
    make_runner: MakeRunner = LocalRunner,
    find_candidates: FindCandidates = choice.candidates,
) -> Result:
    """Find a schedule for ``problem`` and the C that implements it.

    ``level`` is one of LEVELS, as FFTW's: ``estimate`` times nothing, ``measure`` the model's best
    few, ``patient`` and ``exhaustive`` more, ``wisdom-only`` takes a record or raises WisdomError.
    ``time_limit`` (seconds) and Ctrl-C end the search early; what was measured until then counts.
    Records go to ``wisdom`` (default: the user's file) and are reused, unless they are disturbed or
    ``again`` is set. ``isa`` caps the instruction set. With ``machine``, which need not be this
    one, nothing is compiled, run or recorded, but by ``make_runner``'s; ``find_candidates`` ranks.
    ``algorithm``: ``direct``, exact for small integers, another one, within its error bound, or
    ``auto``; UnsupportedError where it does not compute this. ``reproducible``: any number of
    threads gives the same bits. A ``tuner``, by name or settings, chooses what is measured; a later
    call goes on where it was killed. ``quick``: level ``estimate`` compiles nothing. A ``schedule``
    is built as it is. ``verify``: code that was not measured is checked once on this machine, in a
    worker process; where it is wrong, the next choice is taken, or CheckError raised.
    """
    check_options(level, threads, target, isa, wisdom, time_limit)
    check_types(problem, machine, ranker, algorithm, progress)
    check_flags(again=again, reproducible=reproducible, quick=quick, verify=verify)
    target, algorithm = target or detect(isa), choice.resolve_algorithm(problem, algorithm)
    settings, runs = options_of(tuner), machine is None or make_runner is not LocalRunner
    level = check_level(level, again, runs, settings)
    problem.check_memory()
    if not problem.x_shape[0]:  # nothing to run; the code is one image's
        result = optimize(
            problem.with_batch(1), "estimate", threads, target=target, ranker=ranker, wisdom=wisdom,
            machine=machine, algorithm=algorithm, schedule=schedule, reproducible=reproducible,
            verify=verify,
        )  # fmt: skip
        return replace(result, problem=problem, level=level)
    if schedule is not None:
        asked = problem, schedule, level, threads, target, machine, algorithm, verify
        return _emit_requested(*asked)
    kept = _kept_schedule(problem, target, algorithm) if reproducible else None
    records = _records(problem, algorithm, threads, target, wisdom, kept)
    return _Search(
        problem, level, threads, target, ranker, records, progress, time_limit, machine, algorithm,
        again, kept, quick, verify, settings, make_runner, find_candidates,
    ).run()  # fmt: skip


def _kept_schedule(problem: Problem, target: Target, algorithm: str) -> Schedule | None:
    """The schedule whose order of sums is kept; sums of integers are equal in any."""
    if precision_named(problem.dtype).integer:
        return None
    return choice.reproducible_schedule(problem, target, algorithm)


def _records(
    problem: Problem,
    algorithm: str,
    threads: int,
    target: Target,
    wisdom: Wisdom | None,
    kept: Schedule | None,
) -> SearchRecords:
    """The records that a search uses; reproducible ones are apart from the others."""
    key = choice.key_of(problem, algorithm, reproducible=kept is not None)
    store = Wisdom() if wisdom is None else wisdom
    order = SummationOrder.of(model_of(problem)[1], kept) if kept else None
    return SearchRecords(problem, key, algorithm, threads, target, store, order)


@cache
def _warn_of_turns(threads: int, cores: int) -> None:
    """Say once that threads outnumber the cores, by affinity and quota, of this process."""
    if threads > cores:
        _log.warning(
            "threads=%d: this process may use %d core%s ('polysci doctor' says why): threads that "
            "take turns are no faster than one", threads, cores, "s" * (cores > 1),
        )  # fmt: skip


def _emit_requested(
    problem: Problem,
    requested: Schedule | str,
    level: str,
    threads: int,
    target: Target,
    machine: Machine | None,
    algorithm: str,
    verify: bool,
) -> Result:
    """Return the result of a schedule that was asked for. Nothing is measured, no rate either."""
    start = time.monotonic()
    if isinstance(requested, Schedule):
        requested.check_parts()
    schedule = requested if isinstance(requested, Schedule) else Schedule.parse(requested)
    if algorithm != DEFAULT and not choice.admits(algorithm, schedule):
        raise SpecError(f"schedule: {schedule}: not one of the algorithm {algorithm}")
    if reason := target.refusal(find(schedule.kernel).isa):
        raise UnsupportedError(f"schedule: {schedule.kernel} {reason}")
    source = backend_of(target.isa).emit(problem, schedule, threads)
    rates = machine or load_rates(target, source.precision.x.name) or assume_rates(target)
    context = context_of(problem, threads, target, machine=rates)
    predicted = choice.predict_seconds(problem, context, schedule)
    spent = time.monotonic() - start
    return Result(
        problem, schedule, source, predicted, None, (), spent, level, threads, verify=verify
    )


@dataclass(slots=True)
class _Search:
    problem: Problem
    level: str
    threads: int
    target: Target
    ranker: str
    records: SearchRecords
    progress: Callable[[Progress], None] | None
    time_limit: float | None
    machine: Machine | None
    algorithm: str
    again: bool
    kept: Schedule | None = None  # whose order of sums reproducible schedules have
    quick: bool = False
    verify: bool = True
    tuner: TunerOptions | None = None
    make_runner: MakeRunner = LocalRunner
    find_candidates: FindCandidates = choice.candidates
    start: float = field(default_factory=time.monotonic)
    context: Context | None = None

    def run(self) -> Result:
        if self.machine is None:
            _warn_of_turns(self.threads, self.target.cores)
        described = self.machine is not None and self.level == "estimate"
        known = None if described or self.again or self.tuner else self._recorded()
        if known:
            return known
        if self.level == "wisdom-only":
            raise WisdomError(
                f"no record for {self.problem} with {self.threads} thread(s) on this machine; "
                f"'polysci optimize' measures one"
            )
        level = LEVELS[self.level]
        if known := self._predicted():
            return known
        self._tell(Progress("ranking", 0, 1))
        if self.tuner:
            return self._measure(self.tuner)
        count = None if level.measured is None else level.measured or 5
        # The order of another ranker decides, not the seconds that the traffic model predicts.
        explores = level.measured and self.ranker == RANKER
        ranked = self.find_candidates(
            self.problem, self._context(), count, self.algorithm,
            ranker=self.ranker, tiles=level.tiles, blocks=level.blocks,
            kinds=KINDS if explores else 0, order=self.records.order,
        )  # fmt: skip
        ranked = self._with_kept(ranked)
        if level.measured != 0:  # None: all of them
            return self._measure(ranked)
        result = self._estimate([(option.schedule, option.seconds) for option in ranked])
        if key := self._prediction_key():
            keep(key, Prediction(str(result.schedule), result.predicted))
        return result

    def _prediction_key(self) -> str:
        """Under which the choice of the model is kept; empty where it is not."""
        if not self.quick or LEVELS[self.level].measured != 0 or self.machine or self.kept:
            return ""
        context = self._context()
        weights = context.weights.to_json() if context.weights else ""
        return key_of((
            self.records.key, self.level, str(self.threads), self.ranker, repr(self.target),
            context.machine.to_json(), weights,
        ))  # fmt: skip

    def _predicted(self) -> Result | None:
        """What an earlier search at this level chose, if its schedule still works."""
        key = self._prediction_key()
        known = load(key) if key else None
        if known is None:
            return None
        try:
            return self._estimate([(self.records.schedule_of(known.schedule), known.seconds)])
        except PolysciError as error:
            _log.warning("ignoring the prediction %s: %s", known.schedule, error)
            return None

    def _with_kept(self, ranked: list[Candidate]) -> list[Candidate]:
        """The candidates, with the schedule whose order of sums is kept: it always fits."""
        kept = self.kept
        if kept is None or any(candidate.schedule == kept for candidate in ranked):
            return ranked
        seconds = choice.predict_seconds(self.problem, self._context(), kept)
        every = [*ranked, Candidate(kept, seconds)]
        return sorted(every, key=lambda candidate: candidate.seconds)

    def _any_order(self) -> AnyOrder | None:
        """What a search in any order predicts, and what one measured."""
        if self.kept is None:
            return None
        (best,) = choice.candidates(self.problem, self._context(), 1, self.algorithm)[:1]
        others = replace(
            self.records, key=choice.key_of(self.problem, self.algorithm), order=None
        ).best("measure")
        return AnyOrder(best.seconds, others.record.seconds if others else None)

    def _tell(self, step: Progress) -> None:
        if self.progress:
            self.progress(step)

    def _show_calibration(self, done: int, total: int) -> None:
        self._tell(Progress("calibrating", done, total))

    def _context(self) -> Context:
        if self.context is None:
            self.context = context_of(
                self.problem,
                self.threads,
                self.target,
                self._show_calibration if self.progress else None,
                self.machine,
            )
        return self.context

    def _recorded(self) -> Result | None:
        """The result of an earlier search at this level or above, if its schedule still works."""
        known = self.records.best(self.level)
        if known is None:
            return None
        context = self._context()
        measurement = Measurement(
            (known.record.seconds,), self.problem.flops, str(known.schedule), RECORDED,
            self.threads, self.records.host, context.peak * self.threads,
            known.record.dropped, known.record.speed, self.problem.multiplied_flops,
        )  # fmt: skip
        predicted = choice.predict_seconds(self.problem, context, known.schedule)
        return self._result(known.schedule, known.source, predicted, measurement)

    def _estimate(self, ranked: Sequence[tuple[Schedule, float]]) -> Result:
        """The first choice of the model that compiles, of schedules and seconds."""
        refusal: Exception | None = None
        backend = backend_of(self.target.isa)
        for schedule, seconds in ranked:
            self._tell(Progress("compiling", 0, 1))
            try:
                source = backend.emit(self.problem, schedule, self.threads)
                if not self.machine and not self.quick:
                    path = backend.build(source.file, symbols=source.symbols)
                    if self.verify:
                        check_first_run(path, self.problem, source, self.threads, backend)
            except UnsupportedError as error:
                refusal = error
                continue
            except CheckError as error:
                _log.warning("%s", error)
                refusal = error
                continue
            return self._result(schedule, source, seconds, None)
        if isinstance(refusal, CheckError):
            raise refusal
        raise UnsupportedError(f"{self.problem}: no schedule could be built: {refusal}")

    def _measure(self, ranked: Sequence[Candidate] | TunerOptions) -> Result:
        """The fastest of the model's choices and of what did well on other machines; recorded.

        Or of what a tuner proposes.
        """
        level = LEVELS[self.level]
        trials = Trials(
            self.problem, self._context(), level, self.start, self.time_limit, self._tell,
            self.records, self.make_runner, self.again,
        )  # fmt: skip
        if isinstance(ranked, TunerOptions):
            tuned = TunedTrials.of(
                trials, self.records, ranked, level, self.again, self.find_candidates
            )
            winner = trials.run(tuned.attempt)
        else:
            ahead, rest = self._with_seeds(ranked)
            first, every = len(ahead), [*ahead, *rest]
            most = level.measured and level.measured + first - 1
            winner = trials.run(partial(trials.try_all, candidates=every, first=first, most=most))
        partly = trials.interrupted or trials.late
        if self.again:
            self.records.forget()
        self.records.keep(
            winner.measurement, "estimate" if partly else self.level, trials.trials.values(),
            trials.compiler,
        )  # fmt: skip
        result = self._result(winner.schedule, winner.source, winner.predicted, winner.measurement)
        return replace(result, trials=tuple(trials.trials.values()), interrupted=trials.interrupted)

    def _with_seeds(self, ranked: Sequence[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
        """What is measured in any case, and the model's other choices.

        Its first choice of all roles that schedules can have, and what did well on other machines.
        """
        known = {str(candidate.schedule) for candidate in ranked}
        seeds = [
            Candidate(schedule, choice.predict_seconds(self.problem, self._context(), schedule))
            for schedule in self.records.seeds()
            if str(schedule) not in known
        ]
        best = {vectors_of(candidate.schedule): candidate for candidate in reversed(ranked)}
        ahead = [candidate for candidate in ranked if candidate in best.values()]
        return [*ahead, *seeds], [candidate for candidate in ranked if candidate not in ahead]

    def _result(
        self, schedule: Schedule, source: Source, seconds: float, measurement: Measurement | None
    ) -> Result:
        return Result(
            self.problem, schedule, source, seconds, measurement, (),
            time.monotonic() - self.start, self.level, self.threads, any_order=self._any_order(),
            verify=self.verify,
        )  # fmt: skip
