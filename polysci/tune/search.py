"""The search: rank, build, check and time, record and reuse."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Unpack

from polysci.border.arguments import check_type
from polysci.border.guard import guard
from polysci.cost import Context
from polysci.cost.shortlist import vectors_of
from polysci.errors import CheckError, PolysciError, SpecError, UnsupportedError, WisdomError
from polysci.lower import choice
from polysci.lower.algorithm import Candidate
from polysci.lower.registry import DEFAULT
from polysci.measure.first_run import check_first_run
from polysci.numerics.dtypes import precision_named
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.runtime.backends import backend_of
from polysci.runtime.measurement import RECORDED, Measurement
from polysci.runtime.source import Source, emit
from polysci.space.schedule import Schedule
from polysci.space.summation import SummationOrder
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.target.microkernels import find
from polysci.target.target import Target
from polysci.tune.calibrate import load_rates
from polysci.tune.context import context_of
from polysci.tune.occupancy import COMPILED, refine
from polysci.tune.predictions import Prediction, keep, key_of, load
from polysci.tune.records import SearchRecords
from polysci.tune.result import LEVELS, AnyOrder, Progress, Result, SearchLevel
from polysci.tune.search_options import RANKER, SearchKeywords, SearchOptions
from polysci.tune.trials import Trials
from polysci.tune.tuned_trials import TunedTrials
from polysci.tune.tuners import TunerOptions
from polysci.tune.wisdom import Wisdom

KINDS = 60  # of schedules, from which those to measure are chosen
_log = logging.getLogger(__name__)


@guard
def optimize(
    problem: Problem,
    level: str | SearchOptions = "measure",
    threads: int = 1,
    **options: Unpack[SearchKeywords],
) -> Result:
    """Find a schedule for ``problem`` and the C that implements it.

    ``level`` is one of LEVELS, as FFTW's: ``estimate`` times nothing, ``measure`` the model's best
    few, ``patient`` and ``exhaustive`` more, ``wisdom-only`` takes a record or raises WisdomError.
    The other options are keywords; a SearchOptions in place of ``level`` has all of them.
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
    asked = SearchOptions.of(level, threads, options)
    check_type("problem", problem, Problem)
    target = asked.target or detect(asked.isa)
    algorithm = choice.resolve_algorithm(problem, asked.algorithm)
    own_level, tuner = asked.resolve_level()
    asked = replace(
        asked, level=own_level, target=target, isa=None, algorithm=algorithm, tuner=tuner
    )
    problem.check_memory()
    if not problem.x_shape[0]:  # nothing to run; the code is one image's
        one_image = replace(
            asked, level="estimate", again=False, quick=False, tuner=None, progress=None,
            time_limit=None,
        )  # fmt: skip
        result = optimize(problem.with_batch(1), one_image)
        return replace(result, problem=problem, level=own_level)
    if asked.schedule is not None:
        return _emit_requested(problem, asked.schedule, asked, target)
    kept = _kept_schedule(problem, target, algorithm) if asked.reproducible else None
    records = _records(problem, asked, target, kept)
    return _ScheduleSearch(problem, asked, target, records, tuner, kept).run()


def _kept_schedule(problem: Problem, target: Target, algorithm: str) -> Schedule | None:
    """The schedule whose order of sums is kept; sums of integers are equal in any."""
    if precision_named(problem.dtype).integer:
        return None
    return choice.reproducible_schedule(problem, target, algorithm)


def _records(
    problem: Problem, options: SearchOptions, target: Target, kept: Schedule | None
) -> SearchRecords:
    """Return the records that a search uses; reproducible ones are apart from the others."""
    key = choice.key_of(problem, options.algorithm, reproducible=kept is not None)
    store = Wisdom() if options.wisdom is None else options.wisdom
    order = SummationOrder.of(model_of(problem)[1], kept) if kept else None
    return SearchRecords(problem, key, options.algorithm, options.threads, target, store, order)


@cache
def _warn_of_turns(threads: int, cores: int) -> None:
    """Say once that threads outnumber the cores, by affinity and quota, of this process."""
    if threads > cores:
        _log.warning(
            "threads=%d: this process may use %d core%s ('polysci doctor' says why): threads that "
            "take turns are no faster than one", threads, cores, "s" * (cores > 1),
        )  # fmt: skip


def _emit_requested(
    problem: Problem, requested: Schedule | str, options: SearchOptions, target: Target
) -> Result:
    """Return the result of a schedule that was asked for. Nothing is measured, no rate either."""
    algorithm, threads = options.algorithm, options.threads
    start = time.monotonic()
    if isinstance(requested, Schedule):
        requested.check_parts()
    schedule = requested if isinstance(requested, Schedule) else Schedule.parse(requested)
    if algorithm != DEFAULT and not choice.admits(algorithm, schedule):
        raise SpecError(f"schedule: {schedule}: not one of the algorithm {algorithm}")
    if reason := target.refusal(find(schedule.kernel).isa):
        raise UnsupportedError(f"schedule: {schedule.kernel} {reason}")
    source = emit(problem, schedule, threads)
    rates = options.machine or load_rates(target, source.precision.x.name) or assume_rates(target)
    context = context_of(problem, threads, target, machine=rates)
    predicted = choice.predict_seconds(problem, context, schedule)
    spent = time.monotonic() - start
    return Result(
        problem, schedule, source, predicted, None, (), spent, options.level, threads,
        verify=options.verify, backend=target.backend,
    )  # fmt: skip


@dataclass(slots=True)
class _ScheduleSearch:
    problem: Problem
    options: SearchOptions
    target: Target
    records: SearchRecords
    tuner: TunerOptions | None = None
    kept: Schedule | None = None  # whose order of sums reproducible schedules have
    start: float = field(default_factory=time.monotonic)
    context: Context | None = None

    def run(self) -> Result:
        if self.options.machine is None:
            _warn_of_turns(self.options.threads, self.target.cores)
        described = self.options.machine is not None and self.options.level == "estimate"
        known = None if described or self.options.again or self.tuner else self._find_recorded()
        if known:
            return known
        if self.options.level == "wisdom-only":
            raise WisdomError(
                f"no record for {self.problem} with {self.options.threads} thread(s) on this "
                "machine; 'polysci optimize' measures one"
            )
        level = LEVELS[self.options.level]
        if known := self._find_predicted():
            return known
        self._tell(Progress("ranking", 0, 1))
        if self.tuner:
            return self._measure(self.tuner)
        ranked = self._with_kept(self._rank(level))
        if level.measured != 0:  # None: all of them
            return self._measure(ranked)
        result = self._estimate([(option.schedule, option.seconds) for option in ranked])
        if key := self._prediction_key():
            keep(key, Prediction(str(result.schedule), result.predicted))
        return result

    def _rank(self, level: SearchLevel) -> list[Candidate]:
        """The schedules to build or measure; on a device by what its compiler tells of them."""
        problem, context, backend = self.problem, self._context(), backend_of(self.target)
        count = None if level.measured is None else level.measured or 5
        compiles = backend.occupancy and not self.options.machine and not self.options.quick
        # The order of another ranker decides, not the seconds that the traffic model predicts.
        explores = level.measured and self.options.ranker == RANKER
        ranked = self.options.find_candidates(
            problem, context, max(count, COMPILED) if compiles and count else count,
            self.options.algorithm, ranker=self.options.ranker, tiles=level.tiles,
            blocks=level.blocks, kinds=KINDS if explores else 0, order=self.records.order,
        )  # fmt: skip
        if not compiles:
            return ranked
        wanted = 1 if level.measured == 0 else COMPILED
        refined = refine(problem, context, ranked, wanted, backend, self._tell)
        return refined[: count and count + (KINDS if explores else 0)]

    def _prediction_key(self) -> str:
        """Return the key under which the model's choice is kept; empty where it is not."""
        if (
            not self.options.quick
            or LEVELS[self.options.level].measured != 0
            or self.options.machine
            or self.kept
        ):
            return ""
        context = self._context()
        weights = context.weights.to_json() if context.weights else ""
        return key_of((
            self.records.key, self.options.level, str(self.options.threads), self.options.ranker,
            repr(self.target), context.machine.to_json(), weights,
        ))  # fmt: skip

    def _find_predicted(self) -> Result | None:
        """Return the choice of an earlier search at this level, if its schedule still works."""
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
        """Return the predicted and the measured seconds of a search in any order."""
        if self.kept is None:
            return None
        (best,) = choice.candidates(self.problem, self._context(), 1, self.options.algorithm)[:1]
        others = replace(
            self.records, key=choice.key_of(self.problem, self.options.algorithm), order=None
        ).best("measure")
        return AnyOrder(best.seconds, others.record.seconds if others else None)

    def _tell(self, step: Progress) -> None:
        if self.options.progress:
            self.options.progress(step)

    def _context(self) -> Context:
        if self.context is None:

            def show(done: int, total: int) -> None:
                self._tell(Progress("calibrating", done, total))

            self.context = context_of(
                self.problem, self.options.threads, self.target,
                show if self.options.progress else None, self.options.machine,
            )  # fmt: skip
        return self.context

    def _find_recorded(self) -> Result | None:
        """The result of an earlier search at this level or above, if its schedule still works."""
        known = self.records.best(self.options.level)
        if known is None:
            return None
        context = self._context()
        peak = context.measured_peak
        measurement = Measurement(
            (known.record.seconds,), self.problem.flops, str(known.schedule), RECORDED,
            self.options.threads, self.records.host, peak and peak * self.options.threads,
            known.record.dropped, known.record.speed, self.problem.multiplied_flops,
        )  # fmt: skip
        predicted = choice.predict_seconds(self.problem, context, known.schedule)
        return self._result(known.schedule, known.source, predicted, measurement)

    def _estimate(self, ranked: Sequence[tuple[Schedule, float]]) -> Result:
        """The first choice of the model that compiles, of schedules and seconds."""
        refusal: Exception | None = None
        backend = backend_of(self.target)
        for schedule, seconds in ranked:
            self._tell(Progress("compiling", 0, 1))
            try:
                source = emit(self.problem, schedule, self.options.threads)
                if not self.options.machine and not self.options.quick:
                    path = backend.build(source.file, symbols=source.symbols, module=source.module)
                    if self.options.verify:
                        check_first_run(path, self.problem, source, self.options.threads, backend)
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
        level = LEVELS[self.options.level]
        trials = Trials(
            self.problem, self._context(), level, self.start, self.options.time_limit, self._tell,
            self.records, self.options.make_runner, self.options.again,
        )  # fmt: skip
        if isinstance(ranked, TunerOptions):
            tuned = TunedTrials.of(
                trials, self.records, ranked, level, self.options.again,
                self.options.find_candidates,
            )  # fmt: skip
            trial, source, measurement = trials.run(tuned.attempt)
        else:
            ahead, rest = self._with_seeds(ranked)
            first, every = len(ahead), [*ahead, *rest]
            most = level.measured and level.measured + first - 1
            attempt = partial(trials.try_all, candidates=every, first=first, most=most)
            trial, source, measurement = trials.run(attempt)
        partly = trials.interrupted or trials.late
        if self.options.again:
            self.records.forget()
        self.records.keep(
            measurement, "estimate" if partly else self.options.level,
            trials.trials.values(), trials.compiler,
        )  # fmt: skip
        result = self._result(trial.schedule, source, trial.predicted, measurement)
        return replace(result, trials=tuple(trials.trials.values()), interrupted=trials.interrupted)

    def _with_seeds(self, ranked: Sequence[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
        """Return the candidates that are measured in any case, and the model's other choices.

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
            time.monotonic() - self.start, self.options.level, self.options.threads,
            any_order=self._any_order(), verify=self.options.verify, backend=self.target.backend,
        )  # fmt: skip
