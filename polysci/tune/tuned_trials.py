"""A tuner's search for one problem: a program with one decision, whose options are schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Final

from polysci.cost.shortlist import vectors_of
from polysci.lower import choice
from polysci.lower.algorithm import Candidate
from polysci.lower.choice import FindCandidates
from polysci.runtime.build.folder import cache_dir
from polysci.space.schedule import parse
from polysci.tune.predictions import key_of
from polysci.tune.records import SearchRecords
from polysci.tune.result import SearchLevel, Trial
from polysci.tune.runner import TrialRunner
from polysci.tune.trials import BATCH, NOT_RUN, Trials
from polysci.tune.tuners import (
    Decision,
    Genome,
    Outcome,
    Space,
    TunerOptions,
    TunerState,
    drive,
    state_of,
)
from polysci.tune.tuners.state import FOLDER

OPTIONS: Final = 200  # schedules of a problem that the model prefers, the steps of loops apart
KINDS: Final = 60  # others, the best of their kind
KNOWN: Final = 10  # seeds that are the fastest on record, and as many for other sizes


def state_path(parts: Sequence[str]) -> Path:
    """Return the file of a tuner's state, by ``parts`` and the code of the search."""
    return cache_dir() / FOLDER / f"{key_of(parts)}.jsonl"


def space_of(ranked: Sequence[Candidate], records: SearchRecords) -> Space:
    """The schedules that a tuner chooses from; seeds are the best of the model and of records."""
    schedules = [candidate.schedule for candidate in ranked]
    known = [*records.fastest(KNOWN), *records.seeds()]
    decision = Decision.of(records.key, list(dict.fromkeys(map(str, [*schedules, *known]))))
    first = {vectors_of(schedule): schedule for schedule in reversed(schedules)}
    seeds = [schedules[0], *first.values(), *known]
    numbers = [decision.options.index(str(schedule)) for schedule in seeds]
    numbers += map(decision.nearest_to, records.of_other_sizes(KNOWN))
    return Space((decision,), tuple((number,) for number in dict.fromkeys(numbers)))


@dataclass(slots=True)
class TunedTrials:
    """The trials of a tuner; ``state`` has its space, and lives on in a file."""

    trials: Trials
    state: TunerState
    runner: TrialRunner | None = None
    bounds: dict[Genome, float] = field(default_factory=dict)
    predicted: dict[str, float] = field(default_factory=dict)  # seconds of schedules

    @classmethod
    def of(
        cls, trials: Trials, records: SearchRecords, options: TunerOptions, level: SearchLevel,
        again: bool, find_candidates: FindCandidates,
    ) -> TunedTrials:  # fmt: skip
        """The tuner of a problem, where an earlier process left it unless ``again``."""
        problem, context = trials.problem, trials.context
        machine = context.machine.to_json()
        predicted: dict[str, float] = {}
        key_parts = records.key, str(context.threads), repr(context.target), records.host, machine

        def make() -> Space:
            ranked = find_candidates(
                problem, context, OPTIONS, records.algorithm,
                tiles=level.tiles, blocks=level.blocks, kinds=KINDS, order=records.order,
            )  # fmt: skip
            predicted.update((str(option.schedule), option.seconds) for option in ranked)
            return space_of(ranked, records)

        path = state_path([*key_parts, str(options.members())])
        return cls(trials, state_of(path, options, make, again=again), predicted=predicted)

    @property
    def options(self) -> tuple[str, ...]:
        """The texts of all schedules, by their numbers."""
        return self.state.space.decisions[0].options

    def attempt(self, runner: TrialRunner) -> None:
        """Try what the tuner proposes, as ``Trials.run`` asks for."""
        self.runner = runner
        for genome, outcome in self.state.outcomes.items():
            candidate = self._candidate(genome)
            self.trials.note(Trial(candidate.schedule, candidate.seconds, *outcome))
        self.trials.keep = self._keep
        drive(self.state, self._measure, self._enough, BATCH * runner.width, self._choose)

    def _candidate(self, genome: Genome) -> Candidate:
        text, trials = self.options[genome[0]], self.trials
        schedule = parse(text)
        if text not in self.predicted:
            seconds = choice.predict_seconds(trials.problem, trials.context, schedule)
            self.predicted[text] = seconds
        return Candidate(schedule, self.predicted[text])

    def _choose(self, genomes: Sequence[Genome], count: int) -> Sequence[Genome]:
        """Seeds first, then what may be fastest by what was measured."""
        seeds = [genome for genome in genomes if genome in self.state.space.seeds][:count]
        others = {self._candidate(genome): genome for genome in genomes if genome not in seeds}
        likely = self.trials.choose([*others], count - len(seeds))
        return [*seeds, *(others[candidate] for candidate in likely)]

    def _keep(self, trial: Trial) -> None:
        if (name := str(trial.schedule)) in self.options:
            genome = (self.options.index(name),)
            self.state.note(genome, Outcome(trial.seconds, trial.fault))

    def _measure(self, genomes: Sequence[Genome]) -> Iterator[tuple[Genome, Outcome]]:
        assert self.runner is not None
        total = self.state.limit
        done = len(self.state.outcomes)
        self.trials.tell("tuning", done, total)
        self.trials.try_likely(self.runner, [self._candidate(genome) for genome in genomes])
        for genome in genomes:
            trial = self.trials.trials[self.options[genome[0]]]
            if trial.fault != NOT_RUN:
                yield genome, Outcome(trial.seconds, trial.fault)

    def _enough(self) -> bool:
        """Return whether time is up, or nothing that was not measured can win."""
        best = self.trials.best
        if best is None:
            return False
        if not self.bounds:
            for number, text in enumerate(self.options):
                self.bounds[(number,)] = self.trials.least_seconds(parse(text))
        left = (bound for at, bound in self.bounds.items() if at not in self.state.outcomes)
        return self.trials.late or min(left, default=inf) > best
