"""The search: rank, build, check and time, record and reuse."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from polysci.algorithms import choice
from polysci.algorithms.lowering import emit
from polysci.codegen import Source
from polysci.errors import (
    BuildError,
    CheckError,
    PolysciError,
    SpecError,
    UnsupportedError,
    WisdomError,
)
from polysci.measure.bench import Bench, CandidateError
from polysci.measure.trials import BuiltSchedule, build_trials, time_trials
from polysci.ops.problem import Problem
from polysci.polyhedral import schedule
from polysci.polyhedral.schedule import Schedule
from polysci.rank import Context
from polysci.rank.lower_bound import lower_bound
from polysci.rank.shortlist import as_family, ranker_of
from polysci.runtime.build import cache
from polysci.runtime.build.compiler import find_compiler
from polysci.runtime.measurement import Measurement, host_of, protocol
from polysci.target.host import MOST_THREADS, Target, detect
from polysci.target.machine import Machine
from polysci.tune.calibrate import peak_text, peak_unit
from polysci.tune.context import context_of
from polysci.tune.result import LEVELS, Progress, Result, Trial
from polysci.tune.wisdom import Record, Wisdom

TIE = 0.01  # of the median: within it the schedule that the model prefers wins
BATCH = 4  # candidates built and tried together
_log = logging.getLogger(__name__)


def optimize(
    problem: Problem,
    level: str = "measure",
    threads: int = 1,
    *,
    target: Target | None = None,
    isa: str | None = None,
    ranker: str = "traffic",
    time_limit: float | None = None,
    wisdom: Wisdom | None = None,
    progress: Callable[[Progress], None] | None = None,
    machine: Machine | None = None,
    algorithm: str = "direct",
) -> Result:
    """Find a schedule for ``problem`` and the C that implements it.

    ``level`` is one of LEVELS, as FFTW's: ``estimate`` runs nothing, ``measure`` times the model's
    best few, ``patient`` and ``exhaustive`` more, ``wisdom-only`` takes a record or raises
    WisdomError. ``time_limit`` seconds end the search early; so does Ctrl-C, and what was measured
    until then counts. Records go to ``wisdom`` (default: the user's file) and are reused.
    ``isa`` caps the instruction set of this machine, as POLYSCI_ISA does: the lower of both counts.
    ``machine`` describes one that need not be this one: nothing is compiled, run or recorded.
    ``algorithm`` is ``direct``, whose results are exact for small integers, ``winograd``, within
    the bound of ``winograd.bound``, or ``auto``, the faster one; UnsupportedError for winograd of a
    problem that has no transform.
    """
    _check_types(target, isa, wisdom, threads)
    if target and isa is not None:
        raise SpecError(f"isa {isa!r}: the target has one ({target.isa}); give either")
    target = target or detect(isa)
    if level not in LEVELS:
        raise SpecError(f"level {level!r}: expected one of {', '.join(LEVELS)}")
    ranker_of(ranker)
    choice.resolve_algorithm(problem, algorithm)
    if machine and LEVELS[level].measured != 0:
        raise SpecError(f"level {level!r}: nothing runs on a described machine; use 'estimate'")
    if not 1 <= threads <= MOST_THREADS:
        raise SpecError(f"threads={threads}: expected 1 to {MOST_THREADS}")
    if time_limit is not None and not time_limit > 0:
        raise SpecError(f"time limit {time_limit}: expected a positive number of seconds")
    problem.check_memory()
    if problem.batched and not problem.x_shape[0]:  # nothing to run; the code is one image's
        one = optimize(
            problem.with_(N=1),
            "estimate",
            threads,
            target=target,
            ranker=ranker,
            wisdom=wisdom,
            machine=machine,
            algorithm=algorithm,
        )
        return replace(one, problem=problem, level=level)
    search = _Search(
        problem, level, threads, target, ranker,
        wisdom if wisdom is not None else Wisdom(), progress or (lambda _: None), time_limit,
        machine, algorithm,
    )  # fmt: skip
    return search.run()


def _check_types(target: Any, isa: Any, wisdom: Any, threads: Any) -> None:
    """Raise TypeError for what is not of its type."""
    if not isinstance(threads, int) or isinstance(threads, bool):
        raise TypeError(f"threads: expected an int, got {threads!r:.80}")
    for name, given, kind in (
        ("target", target, Target), ("isa", isa, str), ("wisdom", wisdom, Wisdom),
    ):  # fmt: skip
        if given is not None and not isinstance(given, kind):
            raise TypeError(f"{name}: expected {kind.__name__}, got {given!r:.80}")


@dataclass(slots=True)
class _Search:
    problem: Problem
    level: str
    threads: int
    target: Target
    ranker: str
    wisdom: Wisdom
    progress: Callable[[Progress], None]
    time_limit: float | None
    machine: Machine | None = None
    algorithm: str = "direct"
    start: float = field(default_factory=time.monotonic)
    trials: dict[str, Trial] = field(default_factory=dict)
    interrupted: bool = False
    context: Context | None = None

    def run(self) -> Result:
        known = None if self.machine and self.level == "estimate" else self._recorded()
        if known:
            return known
        if self.level == "wisdom-only":
            raise WisdomError(
                f"no record for {self.problem} with {self.threads} thread(s) on this machine; "
                f"'polysci optimize' measures one"
            )
        plan = LEVELS[self.level]
        self.progress(Progress("ranking", 0, 1))
        context = self._context()
        space: dict[str, Any] = {
            "ranker": self.ranker, "tiles": plan.tiles, "blocks": plan.blocks,
        }  # fmt: skip
        count = None if plan.measured is None else plan.measured or 5
        ranked = choice.candidates(self.problem, context, count, self.algorithm, **space)
        if plan.measured == 0:
            return self._estimated(ranked)
        return self._measured(self._seeded(context, ranked), plan.finalists)

    def _context(self) -> Context:
        if self.context is None:
            self.context = context_of(
                self.problem,
                self.threads,
                self.target,
                lambda done, total: self.progress(Progress("calibrating", done, total)),
                self.machine,
            )
        return self.context

    @property
    def host(self) -> str:
        return host_of(self.target)

    def _late(self) -> bool:
        spent = time.monotonic() - self.start
        return self.time_limit is not None and spent > self.time_limit

    def _recorded(self) -> Result | None:
        """The result of an earlier search at this level or above, if its schedule still works."""
        level = "estimate" if self.level == "wisdom-only" else self.level
        features = self.target.isa.features
        try:
            record = self.wisdom.best(
                self._key(), self.threads, features, host=self.host, level=level
            )
        except WisdomError as error:
            if self.level == "wisdom-only":
                raise
            _log.warning("searching without records: %s", error)
            return None
        if record is None:
            return None
        try:
            plan = schedule.parse(record.schedule)
            if plan.transform and self.algorithm == "direct":
                raise UnsupportedError("it is not direct")
            if not _runs_on(plan, self.target):
                raise UnsupportedError(f"{self.target.isa} does not run {plan.kernel}")
            source = emit(self.problem, plan, self.threads)
        except PolysciError as error:
            _log.warning("ignoring the record %s: %s", record.schedule, error)
            return None
        context = self._context()
        measurement = Measurement(
            (record.seconds,), self.problem.flops, record.schedule, "recorded", self.threads,
            self.host, context.peak * self.threads,
        )  # fmt: skip
        return self._result(
            plan, source, choice.predict_seconds(self.problem, context, plan), measurement
        )

    def _key(self) -> str:
        return choice.key_of(self.problem, self.algorithm)

    def _estimated(self, ranked: Sequence[choice.Candidate]) -> Result:
        """The first choice of the model that compiles."""
        refusal: Exception | None = None
        for option in ranked:
            self.progress(Progress("compiling", 0, 1))
            try:
                source = emit(self.problem, option.schedule, self.threads)
                if not self.machine:
                    cache.build(source.file)
            except UnsupportedError as error:
                refusal = error
                continue
            return self._result(option.schedule, source, option.seconds, None)
        raise UnsupportedError(f"{self.problem}: no schedule could be built: {refusal}")

    def _seeded(
        self, context: Context, ranked: list[choice.Candidate]
    ) -> list[tuple[Schedule, float]]:
        """The model's choices, after what did well on other machines."""
        found = [(option.schedule, option.seconds) for option in ranked]
        known = {str(plan) for plan, _ in found}
        seeds: list[tuple[Schedule, float]] = []
        records: Sequence[Record] = ()
        with suppress(WisdomError):
            records = self.wisdom.seeds(
                self._key(), self.threads, self.target.isa.features, host=self.host
            )
        for record in records[:2]:
            with suppress(PolysciError):
                plan = schedule.parse(record.schedule)
                direct = plan.transform is None or self.algorithm != "direct"
                if str(plan) not in known and direct and _runs_on(plan, self.target):
                    seeds.append((plan, choice.predict_seconds(self.problem, context, plan)))
        return [*found[:1], *seeds, *found[1:]]

    def _measured(self, candidates: list[tuple[Schedule, float]], finalists: int) -> Result:
        """Build, check and time the candidates in batches; then time the best ones together."""
        find_compiler()  # its absence is no fault of a candidate
        sources: dict[str, BuiltSchedule] = {}
        with Bench(self.problem, self.threads) as bench:
            try:
                self._rounds(bench, candidates, sources)
                timed = self._finals(bench, sources, finalists)
            except KeyboardInterrupt:
                if not any(trial.seconds for trial in self.trials.values()):
                    raise
                self.interrupted = True
                timed = {}
            return self._won(bench, sources, timed)

    def _rounds(
        self,
        bench: Bench,
        candidates: list[tuple[Schedule, float]],
        sources: dict[str, BuiltSchedule],
    ) -> None:
        for at in range(0, len(candidates), BATCH):
            spent = time.monotonic() - self.start
            enough = any(trial.seconds for trial in self.trials.values())
            if enough and (self._late() or spent > LEVELS[self.level].seconds):
                return
            self.progress(Progress("measuring", at, len(candidates), self._best()))
            batch = {p: s for p, s in candidates[at : at + BATCH] if self._may_win(p)}
            if not batch:
                continue
            tried = build_trials(self.problem, list(batch), self.threads)
            if not self.trials and all(isinstance(one.error, BuildError) for one in tried):
                raise next(one.error for one in tried if one.error)
            for one, found in time_trials(bench, tried):
                trial = Trial(one.schedule, batch[one.schedule])
                if isinstance(found, PolysciError):
                    if isinstance(found, CheckError):
                        _log.warning("%s: %s fell out: %s", self.problem, one.schedule, found)
                    self._note(trial, fault=str(found))
                    continue
                sources[str(one.schedule)] = one
                self._note(trial, seconds=min(found))

    def _may_win(self, plan: Schedule) -> bool:
        """False for what cannot, by a bound that is no prediction; only a full search asks."""
        best = self._best()
        if best is None or LEVELS[self.level].measured is not None or plan.transform:
            return True
        bound = float(lower_bound(*as_family(self._context(), plan))[0])
        if bound > best:
            reason = f"not run: it takes {bound:.3g} s at the least"
            self._note(
                Trial(plan, choice.predict_seconds(self.problem, self._context(), plan)),
                fault=reason,
            )
        return bound <= best

    def _best(self) -> float | None:
        return min((t.seconds for t in self.trials.values() if t.seconds), default=None)

    def _note(self, trial: Trial, *, seconds: float | None = None, fault: str = "") -> None:
        noted = Trial(trial.schedule, trial.predicted, seconds, fault)
        self.trials[str(trial.schedule)] = noted

    def _finals(
        self, bench: Bench, sources: dict[str, BuiltSchedule], finalists: int
    ) -> dict[str, tuple[float, ...]]:
        """Samples of the fastest few, taken in turns."""
        while True:
            timed = [trial for trial in self.trials.values() if trial.seconds is not None]
            best = sorted(timed, key=lambda trial: (trial.seconds, str(trial.schedule)))
            names = [str(trial.schedule) for trial in best[:finalists]]
            self.progress(Progress("comparing", 0, 1, self._best()))
            objects = {name: sources[name].candidate for name in names}
            try:
                return dict(zip(names, bench.time([*objects.values()], samples=11), strict=True))
            except CandidateError as error:  # the others are still there
                guilty = next(n for n, found in objects.items() if found == error.candidate)
                self._note(self.trials[guilty], fault=str(error))

    def _won(
        self,
        bench: Bench,
        sources: dict[str, BuiltSchedule],
        timed: dict[str, tuple[float, ...]],
    ) -> Result:
        """Record and return the winner: the fastest, or within a tie the model's preference."""
        if not timed:
            timed = {n: (t.seconds,) for n, t in self.trials.items() if t.seconds is not None}
        if not timed:
            faults = "; ".join(f"{t.schedule}: {t.fault}" for t in self.trials.values())
            raise CheckError(f"{self.problem}: no candidate survived: {faults}")
        median = {name: sorted(its)[len(its) // 2] for name, its in timed.items()}
        least = min(median.values())
        near = [name for name, seconds in median.items() if seconds <= least * (1 + TIE)]
        name = min(near, key=lambda name: (self.trials[name].predicted, name))
        measurement = Measurement(
            timed[name], self.problem.flops, name, protocol(len(timed[name])), self.threads,
            self.host, None if self.interrupted else self._peak(bench),
        )  # fmt: skip
        for other, seconds in median.items():
            self.trials[other] = Trial(
                self.trials[other].schedule, self.trials[other].predicted, seconds
            )
        level = "estimate" if self.interrupted or self._late() else self.level
        self._keep(name, measurement, level)
        source = sources[name].source
        assert source is not None
        return self._result(
            self.trials[name].schedule, source, self.trials[name].predicted, measurement
        )

    def _peak(self, bench: Bench) -> float:
        """Peak of one core for these types, now or when it was calibrated, times the threads.

        The higher one: a busy neighbour can take half of either, and nothing adds to it.
        """
        context = self._context()
        peak = context.peak
        with suppress(PolysciError):
            unit = peak_unit(self.target.isa.name, context.contraction.a.dtype)
            now = bench.peak(cache.build(peak_text(unit)), "peak")
            peak = max(peak, now)
        return peak * self.threads

    def _keep(self, name: str, measurement: Measurement, level: str) -> None:
        try:
            self.wisdom.record(
                self._key(), self.threads, self.target.isa.features, level, name,
                measurement.median, host=self.host, gflops=measurement.gflops,
                isa=self.target.isa.name, compiler=find_compiler().identity,
            )  # fmt: skip
            self.wisdom.record_trials(
                self._key(), self.threads, self.target.isa.features,
                {n: t.seconds for n, t in self.trials.items() if t.seconds and n != name},
                host=self.host, flops=self.problem.flops, isa=self.target.isa.name,
                compiler=find_compiler().identity,
            )  # fmt: skip
        except WisdomError as error:
            _log.warning("the result is not recorded: %s", error)

    def _result(
        self, plan: Schedule, source: Source, seconds: float, measurement: Measurement | None
    ) -> Result:
        return Result(
            self.problem, plan, source, seconds, measurement, tuple(self.trials.values()),
            time.monotonic() - self.start, self.level, self.threads, self.interrupted,
        )  # fmt: skip


def _runs_on(plan: Schedule, target: Target) -> bool:
    return any(f"_{isa.name}_" in plan.kernel for isa in target.allowed)
