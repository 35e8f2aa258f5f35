"""Records of a search: those it takes and leaves; choices of networks as text for records."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import log
from typing import Final

from polysci.errors import PolysciError, SpecError, UnsupportedError, WisdomError
from polysci.lower.choice import admits, parse_record_key
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.ops.registry import parse_key
from polysci.runtime.measurement import Measurement, host_of
from polysci.runtime.source import Source, emit
from polysci.space import schedule
from polysci.space.schedule import Schedule
from polysci.space.summation import SummationOrder
from polysci.target.target import Target
from polysci.tune.result import Trial
from polysci.tune.wisdom import LEVELS, TRIAL, Record, Wisdom

SEEDS = 2  # schedules of other machines that are tried here
_NUMBER = re.compile(r"[0-9]+")
NETWORK: Final = "network"  # the first word of keys of records of individuals
LAYER: Final = "layer"  # the first word of a choice between schedules; the problem's key follows
PASSES: Final = ("apart", "turned", "no_rows", "updates")  # those of others; a tensor follows
AS_COSTS, OTHERWISE = "as costs say", "otherwise"  # the options of these
_IS, _AND = " = ", "; "
_KEY: Final = re.compile(rf"{NETWORK} [0-9a-f]+ \w+ \w+ (reproducible )?[0-9a-f]+")
_log = logging.getLogger(__name__)


def write_choices(texts: Mapping[str, str]) -> str:
    """Return the choices of a network's individual as one line of text, for a record.

    ``layer mm:64x64x64 f32 = j:16 i:6 > brgemm_avx2_f32_6x16; apart v3 = otherwise``.
    """
    return _AND.join(f"{name}{_IS}{text}" for name, text in texts.items())


def parse_choices(text: str) -> dict[str, str]:
    """Return the choices of such texts. Raises SpecError for other texts."""
    texts = dict[str, str]()
    for part in text.split(_AND):
        name, sign, option = part.partition(_IS)
        kind, _, what = name.partition(" ")
        if not sign or not what:
            raise _refuse_individual(f"expected 'CHOICE = OPTION', got {part!r}")
        if kind != LAYER and (kind not in PASSES or option not in (AS_COSTS, OTHERWISE)):
            raise _refuse_individual(f"there is no choice {part!r}")
        if name in texts:
            raise _refuse_individual(f"{name!r} is given twice")
        texts[name] = option
    return texts


def _refuse_individual(reason: str) -> SpecError:
    return SpecError(f"individual of a network: {reason}")


def check_individual(problem: str, text: str, threads: int) -> None:
    """Raise PolysciError unless its schedules are legal ones of their layers."""
    if not _KEY.fullmatch(problem):
        raise SpecError(f"problem {problem!r}: expected '{NETWORK} DIGEST TYPE ALGORITHM DIGEST'")
    for name, option in parse_choices(text).items():
        kind, _, key = name.partition(" ")
        if kind == LAYER:
            emit(parse_key(key), schedule.parse(option), threads)


def check_record(record: Record) -> None:
    """Raise PolysciError unless its schedule is a legal one of its problem, and C comes of it.

    The record may be of any machine.
    """
    if record.problem.startswith(f"{NETWORK} "):
        check_individual(record.problem, record.schedule, record.threads)
        return
    problem, algorithm = parse_record_key(record.problem)
    recorded = schedule.parse(record.schedule)
    if not admits(algorithm, recorded):
        raise SpecError(f"schedule {recorded}: it is not {algorithm}, as problem {problem} says")
    emit(problem, recorded, record.threads)


@dataclass(frozen=True, slots=True)
class RecordedSchedule:
    """A schedule that was measured on this machine, and its C."""

    schedule: Schedule
    source: Source
    record: Record


@dataclass(frozen=True, slots=True)
class SearchRecords:
    """The records of one problem: those under ``key``, for this machine and so many threads."""

    problem: Problem
    key: str
    algorithm: str
    threads: int
    target: Target
    wisdom: Wisdom
    order: SummationOrder | None = None  # that schedules must have

    @property
    def host(self) -> str:
        return host_of(self.target)

    def best(self, level: str) -> RecordedSchedule | None:
        """The best at this level or above, if its schedule still works.

        Records that cannot be read are none, with a warning.
        """
        least = "estimate" if level == "wisdom-only" else level
        features = self.target.isa.features
        try:
            record = self.wisdom.best(self.key, self.threads, features, host=self.host, level=least)
        except WisdomError as error:
            _log.warning("continuing without records: %s", error)
            return None
        if record is None:
            return None
        if record.disturbed and level != "wisdom-only":
            when = record.timestamp
            _log.warning("%s: measuring again: the record of %s is disturbed", self.problem, when)
            return None
        try:
            recorded = self.schedule_of(record.schedule)
            source = emit(self.problem, recorded, self.threads)
        except PolysciError as error:
            _log.warning("ignoring the record %s: %s", record.schedule, error)
            return None
        return RecordedSchedule(recorded, source, record)

    def seeds(self) -> Iterator[Schedule]:
        """Yield the schedules that did well on other machines and may be tried here."""
        records: Sequence[Record] = ()
        with suppress(WisdomError):
            records = self.wisdom.seeds(
                self.key, self.threads, self.target.isa.features, host=self.host
            )
        for record in records[:SEEDS]:
            with suppress(PolysciError):
                yield self.schedule_of(record.schedule)

    def fastest(self, count: int) -> list[Schedule]:
        """The ``count`` fastest on this machine that this search may take, trials included."""
        known, schedules = self._measurements(problem_key=self.key), list[Schedule]()
        for record in sorted(known, key=lambda record: (record.seconds, record.schedule)):
            with suppress(PolysciError):
                schedules.append(self.schedule_of(record.schedule))
        return schedules[:count]

    def of_other_sizes(self, count: int) -> list[str]:
        """The best schedules of the same problem with other numbers, the nearest sizes first."""
        form, best = _NUMBER.sub("", self.key), dict[str, Record]()
        for record in sorted(self._measurements(), key=lambda record: record.seconds):
            if record.problem != self.key and _NUMBER.sub("", record.problem) == form:
                best.setdefault(record.problem, record)
        nearest = sorted(best.values(), key=lambda record: (self._distance(record), record.problem))
        return [record.schedule for record in nearest[:count]]

    def _distance(self, record: Record) -> float:
        """How far the numbers of a problem are from this one's: the sum of their ratios' logs."""
        pairs = zip(_NUMBER.findall(self.key), _NUMBER.findall(record.problem), strict=True)
        return sum(abs(log((int(own) + 1) / (int(other) + 1))) for own, other in pairs)

    def schedule_of(self, text: str) -> Schedule:
        """A kept schedule. Raises UnsupportedError where this search may not take it."""
        recorded = schedule.parse(text)
        if not admits(self.algorithm, recorded):
            raise UnsupportedError(f"it is not {self.algorithm}")
        roles = model_of(self.problem)[1]
        if self.order and SummationOrder.of(roles, recorded) != self.order:
            raise UnsupportedError("its sums have another order than reproducible ones")
        if not any(f"_{isa.name}_" in recorded.kernel for isa in self.target.allowed):
            raise UnsupportedError(f"{self.target.isa} does not run {recorded.kernel}")
        return recorded

    def forget(self) -> None:
        """Delete the winners of earlier searches on this machine; what they tried stays."""
        try:
            for level in LEVELS:
                if level != TRIAL:
                    self.wisdom.forget(self.key, threads=self.threads, host=self.host, level=level)
        except WisdomError as error:
            _log.warning("earlier records stay: %s", error)

    def keep(
        self, measurement: Measurement, level: str, trials: Iterable[Trial], compiler: str
    ) -> None:
        """Record the winner and, to learn from, what it was compared with."""
        features, isa = self.target.isa.features, self.target.isa.name
        winner = measurement.schedule
        try:
            self.wisdom.record(
                self.key, self.threads, features, level, winner, measurement.median,
                host=self.host, gflops=measurement.gflops, isa=isa, compiler=compiler,
                dropped=measurement.dropped, spread=measurement.spread, speed=measurement.speed,
            )  # fmt: skip
        except WisdomError as error:
            _log.warning("the result is not recorded: %s", error)
            return
        self.keep_times(
            {
                str(trial.schedule): trial.seconds
                for trial in trials
                if trial.seconds and str(trial.schedule) != winner and not measurement.disturbed
            },
            compiler,
        )

    def keep_times(self, seconds: Mapping[str, float], compiler: str) -> None:
        """Record what schedules took, by their texts; the same ones again replace them."""
        try:
            self.wisdom.record_trials(
                self.key, self.threads, self.target.isa.features, seconds, host=self.host,
                flops=self.problem.flops, isa=self.target.isa.name, compiler=compiler,
            )  # fmt: skip
        except WisdomError as error:
            _log.warning("times are not recorded: %s", error)

    def times(self, compiler: str) -> dict[str, float]:
        """Return the times of schedules that ``keep_times`` recorded of this compiler's code."""
        known = self._measurements(problem_key=self.key, level=TRIAL)
        return {record.schedule: record.seconds for record in known if record.compiler == compiler}

    def _measurements(self, **criteria: str) -> Sequence[Record]:
        """Return records of this machine and so many threads; none where they cannot be read."""
        with suppress(WisdomError):
            return self.wisdom.measurements(self.host, threads=self.threads, **criteria)
        return ()
