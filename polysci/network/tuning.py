"""Schedules of a whole network: compared where they will run, or chosen by a tuner.

Alone, a layer finds its weights and its input in the caches from the call before. In a network it
does not, and another order of loops may win. So the best few of every layer, ``rivals``, are timed
once more, all layers at once, in networks that time their stages. A tuner times individuals:
schedules of all layers, fusions, orders of axes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from polysci.errors import CheckError, NoCompilerError, PolysciError
from polysci.graph.operators.lower import lower
from polysci.lower import choice
from polysci.lower.choice import candidates, key_of, other_form
from polysci.lower.registry import algorithm_of
from polysci.measure.bench import Bench
from polysci.measure.samples import is_worse
from polysci.measure.trials import build_trials
from polysci.network.build import library_of, runner_of, time_networks
from polysci.network.cache import NetworkRecords
from polysci.network.code import Code
from polysci.network.options import PlanOptions, machine_for
from polysci.network.prefetches import prefetching, with_prefetches
from polysci.network.prepare import (
    PreparedNetwork,
    fuse_with_schedules,
    generate_code,
    options_of,
    pass_context,
    prepare,
    setting_of,
)
from polysci.ops.problem import Problem
from polysci.program.passes.fused_updates import AUTO, step_products
from polysci.program.passes.fusion import fuse_loops
from polysci.program.passes.layouts import free_orders
from polysci.program.passes.row import FusionGroup
from polysci.program.passes.row_fusion import Chain, FusionSpace, FusionVerdict, fuse_rows
from polysci.program.passes.table import (
    PassChoices,
    program_before,
)
from polysci.program.stages import LayerStage, RepeatStage, RowFusion, members_of, problems
from polysci.runtime.measurement import host_of
from polysci.space.schedule import Schedule, parse
from polysci.space.summation import SummationOrder
from polysci.tune import LEVELS, Progress, Result, context_of, optimize
from polysci.tune.records import AS_COSTS, LAYER, OTHERWISE
from polysci.tune.tuned_trials import KNOWN, state_path
from polysci.tune.tuners import (
    Decision,
    Genome,
    Outcome,
    Space,
    TunerOptions,
    TunerState,
    choose_options,
    drive,
    state_of,
)
from polysci.tune.wisdom import Record, Wisdom

# Policies of a search inside a network: what it tolerates, and how much it times.
TIE: Final = 0.01  # of the time: within it the schedule that was best alone stays
RUNS: Final = 9
WARM_UP: Final = 2  # runs
Inside = tuple[str, ...]  # the tensors within a row fusion
Times = tuple[float, float]  # seconds of its members together, and apart
ROUNDS: Final = 7  # schedules of each layer
KINDS: Final = 3  # of them the fastest of an algorithm or a kernel
FIRST: Final = 2  # of them what the model prefers with weights from memory, measured or not


def retune(
    prepared: PreparedNetwork,
    results: Mapping[str, Result],
    options: PlanOptions,
    name: str,
    wisdom: Wisdom | None = None,
) -> tuple[PreparedNetwork, dict[str, Schedule]]:
    """Return the network with row fusions and joint loops, and schedules by key of problems.

    At a level that measures, both are timed in the whole network; else the model decides.
    """
    chosen = {key: result.schedule for key, result in results.items()}
    measures = LEVELS[options.level].measured != 0 and bool(chosen)
    if measures and options.times_networks:
        chosen = in_place(prepared, results, options, name, wisdom)
    seconds = {key: result.predicted for key, result in results.items()}
    if not (measures and options.times_stages) or prepared.program.resizes:
        whole = fuse_with_schedules(prepared, chosen, seconds, options, {})
        return whole, chosen if measures else with_prefetches(whole, chosen, options)
    space = fuse_rows(prepared.placed, setting_of(chosen, seconds, options))
    decided, measured = time_divisions(space, chosen, options, name)
    whole = fuse_with_schedules(prepared, chosen, seconds, options, decided)
    links = (its for its in whole.considered if not isinstance(its, FusionGroup))
    groups = space.judged(whole.program.stages, measured)
    return replace(whole, considered=(*links, *groups)), chosen


def in_place(
    prepared: PreparedNetwork,
    results: Mapping[str, Result],
    options: PlanOptions,
    name: str,
    wisdom: Wisdom | None = None,
) -> dict[str, Schedule]:
    """Return the schedule of every problem, by key, that takes least time in the whole network."""
    store = wisdom if wisdom is not None else Wisdom()
    placed = prepared.placed
    by_key = options_of(placed.program, options)
    tried = {
        key: [
            schedule for schedule in rivals(problem, results[key], by_key[key], store)
            if not prepared.refuse(key, schedule)
        ] or [results[key].schedule]
        for key, problem in problems(placed.program).items()
    }  # fmt: skip
    rounds = max((len(schedules) for schedules in tried.values()), default=1)
    spent: dict[str, list[float]] = {key: [] for key in tried}
    for number in range(rounds):
        chosen = {
            key: schedules[min(number, len(schedules) - 1)] for key, schedules in tried.items()
        }
        code = generate_code(placed, chosen, name, options, timed=True)
        times = _by_problem(code)
        for key in tried:
            spent[key].append(times[key])
    return {key: schedules[_best(spent[key][: len(schedules)])] for key, schedules in tried.items()}


def time_divisions(
    space: FusionSpace, chosen: Mapping[str, Schedule], options: PlanOptions, name: str
) -> tuple[dict[str, FusionVerdict], dict[Inside, Times]]:
    """Return which tensors of chains lie inside a row fusion where their stages take least time.

    And the seconds of all row fusions that were timed. All chains are divided otherwise at once,
    and their stages timed.
    """
    rounds = max((len(chain.divisions) for chain in space.chains), default=0)
    spent: list[dict[str, float]] = []
    for number in range(rounds if rounds > 1 else 0):
        placed = space.divide(number)
        runs = _stage_seconds(generate_code(placed, chosen, name, options, timed=True))
        seconds = [sorted(run[at] for run in runs)[1] for at in range(len(runs[0]))]
        timed = zip(placed.program.stages, seconds, strict=True)
        spent.append({name: taken for stage, taken in timed for name in stage.outputs})
    decided, measured = dict[str, FusionVerdict](), dict[Inside, Times]()
    for stages in space.chains if spent else ():
        own = times_of(stages, spent)
        measured |= own
        decided |= verdicts_of(stages, spent, own)
    return decided, measured


def times_of(chain: Chain, spent: Sequence[Mapping[str, float]]) -> dict[Inside, Times]:
    """Return seconds of the row fusions of a chain, together and apart, by the tensors inside.

    ``spent`` holds seconds of stages, a mapping a division; the last is that into stages by
    themselves.
    """
    times = dict[Inside, Times]()
    for runs, seconds in zip(chain.divisions[:-1], spent, strict=False):
        for run in runs:
            *tensors, last = [member.output for member in run.of(chain.members)]
            if tensors:
                together, _ = times.get(tuple(tensors), (seconds[last], 0.0))
                apart = sum(spent[-1][name] for name in (*tensors, last))
                times[tuple(tensors)] = min(together, seconds[last]), apart
    return times


def verdicts_of(
    chain: Chain, spent: Sequence[Mapping[str, float]], times: Mapping[Inside, Times]
) -> dict[str, FusionVerdict]:
    """Return what is decided of the tensors of a chain by what ``times_of`` took and returned."""
    whole = [
        sum(seconds[chain.members[run.end - 1].output] for run in runs)
        for runs, seconds in zip(chain.divisions, spent, strict=False)
    ]
    best = whole.index(min(whole))
    fused = [tuple(member.output for member in its.members[:-1]) for its in chain.fusions(best)]
    verdicts: dict[str, FusionVerdict] = {}
    for tensors, (together, apart) in times.items():
        inside = tensors in fused
        seconds = f"measured {together * 1e6:.0f} us together, {apart * 1e6:.0f} us apart"
        verdict = FusionVerdict("" if inside else seconds)
        verdicts |= {name: verdict for name in tensors if inside or name not in verdicts}
    return verdicts


def _best(seconds: Sequence[float]) -> int:
    """Return the place of the first unless another is faster by more than a tie."""
    least = int(np.argmin(seconds))
    return least if seconds[least] < seconds[0] * (1 - TIE) else 0


def _by_problem(code: Code) -> dict[str, float]:
    """Return seconds a run of all stages of each problem."""
    runs = _stage_seconds(code)
    seconds: dict[str, float] = {}
    for at, stage in enumerate(code.placed.program.stages):
        if isinstance(stage, LayerStage | RepeatStage):
            least = sorted(run[at] for run in runs)[1]  # the second best: a neighbour can only add
            layers = [part for part in members_of(stage) if isinstance(part, LayerStage)]
            for key in dict.fromkeys(layer.problem.key for layer in layers):
                seconds[key] = seconds.get(key, 0.0) + least
    return seconds


def _stage_seconds(code: Code) -> list[list[float]]:
    """Return seconds of every stage in each of some runs; the code must time itself."""
    runs = runner_of(code).time_stages(len(code.placed.program.stages), RUNS, WARM_UP)
    return [[end - start for start, end in pairwise(marks)] for marks in runs]


def rivals(
    problem: Problem, result: Result, options: PlanOptions, wisdom: Wisdom
) -> list[Schedule]:
    """Return up to ``ROUNDS`` schedules; the winner alone is the first."""
    distinct: dict[str, Schedule] = {}
    for schedule in _likely(problem, result, options, wisdom):
        distinct.setdefault(str(schedule), schedule)
        if len(distinct) == ROUNDS:
            break
    return list(distinct.values())


def _likely(
    problem: Problem, result: Result, options: PlanOptions, wisdom: Wisdom
) -> Iterator[Schedule]:
    """Yield the winner alone, its other form, the fastest of each kind, others, the model's."""
    yield result.schedule
    context = context_of(problem, options.threads, options.target)
    with suppress(PolysciError):
        if other := other_form(problem, context, result.schedule):
            yield other
        if other := prefetching(problem, result.schedule, options):
            yield other
    records = _records(problem, options, wisdom)
    kinds = dict[tuple[str, str], Record]()
    for record in records:
        schedule = parse(record.schedule)
        kinds.setdefault((str(schedule.transform), schedule.kernel), record)
    other_kinds, near_best = map(context.machine.coefficient, ("slower_kind", "slower_inside"))
    fastest = [
        record for record in kinds.values()
        if record.seconds <= other_kinds * records[0].seconds
    ]  # fmt: skip
    near = [record for record in records if record.seconds <= near_best * records[0].seconds]
    kept = SummationOrder.of(context.contraction, result.schedule)
    order = kept if options.reproducible else None
    cold = candidates(problem, replace(context, cold=True), ROUNDS, options.algorithm, order=order)
    preferred = [
        choice.schedule for choice in cold if choice.seconds <= near_best * cold[0].seconds
    ]
    yield from (parse(record.schedule) for record in fastest[:KINDS])
    yield from preferred[:FIRST]
    yield from (parse(record.schedule) for record in near)
    yield from preferred[FIRST:]


def _records(problem: Problem, options: PlanOptions, wisdom: Wisdom) -> list[Record]:
    """Return the records of a problem, the fastest first."""
    key = key_of(problem, options.algorithm, reproducible=options.reproducible)
    with suppress(PolysciError):
        own = wisdom.measurements(host_of(options.target), threads=options.threads, problem_key=key)
        return sorted(own, key=lambda record: (record.seconds, record.schedule))
    return []


OPTIONS: Final = 24  # schedules of each layer that the model prefers
SAMPLES: Final = 5  # of an individual
FINALISTS: Final = 4
FINAL_SAMPLES: Final = 11


@dataclass(frozen=True, slots=True)
class TunedNetwork:
    """An individual: a network after all passes, the schedules of its layers, and its C."""

    prepared: PreparedNetwork
    schedules: Mapping[str, Schedule]
    code: Code

    @property
    def built(self) -> tuple[Code, Path]:
        """The network's C, and the library of that."""
        return self.code, library_of(self.code)


@dataclass
class NetworkTuner:
    """Decides about a network what ``retune`` does: ``chosen`` are its schedules, the first seed.

    ``prepared`` is a network before passes that need schedules, ``results`` are those of searches
    of its layers alone. ``until`` is when time is up, by ``time.monotonic``.
    """

    prepared: PreparedNetwork
    results: dict[str, Result]
    chosen: Mapping[str, Schedule]
    options: PlanOptions
    name: str
    wisdom: Wisdom
    progress: Callable[[Progress], None] | None = None
    until: float | None = None
    variants: dict[PassChoices, PreparedNetwork] = field(default_factory=dict)
    seconds: dict[Path, float] = field(default_factory=dict)  # different choices may be one code
    least: float = 0.0

    @cached_property
    def records(self) -> NetworkRecords:
        """The network's records in wisdom, by whose names decisions are called."""
        return NetworkRecords(self.prepared.graph, self.options, self.wisdom)

    def run(self, tuner: TunerOptions) -> TunedNetwork:
        """Return the fastest individual whose layers are right; after Ctrl-C, of those measured."""
        state = state_of(self._path(tuner), tuner, self._space)
        self.least, whole = self._lower_bound(state.space), True
        try:
            drive(state, lambda genomes: self._measure(state, genomes), lambda: self._enough(state))
            whole = not self._late()
            ranked = self._compare(state)
        except KeyboardInterrupt:
            if not state.ranked:
                raise
            ranked, whole = state.ranked, False
        faults = [] if ranked else state.faults
        for genome in ranked:
            network = self.network_of(texts := state.space.texts(genome))
            if not (fault := self._fault(network)):
                said = {name: text for name, text in texts.items() if text != AS_COSTS}
                self.records.keep(said, state.seconds(genome), whole=whole)
                return network
            faults.append(fault)
        raise CheckError(
            f"{self.name}: no individual of the tuner survived: {'; '.join(faults[:3])}"
        )

    def _path(self, tuner: TunerOptions) -> Path:
        """Return the path of the state, which depends on the network and the machine."""
        host, threads = host_of(self.options.target), str(self.options.threads)
        passes = str(self.prepared.fuse), self.prepared.optimize
        return state_path([self.records.key, host, threads, *passes, str(tuner.members())])

    def _space(self) -> Space:
        """Return schedules of every layer, and where passes may decide against their costs."""
        program = self.prepared.program
        todo, by_key = problems(program), options_of(program, self.options)
        decisions = [
            Decision.of(f"{LAYER} {key}", self._schedules(key, problem, by_key[key]))
            for key, problem in todo.items()
        ]
        decisions += [
            Decision.of(f"{kind} {self.records.numbers.get(tensor, tensor)}", (AS_COSTS, OTHERWISE))
            for kind, tensors in self._free().items()
            for tensor in tensors
        ]
        plain = Space(tuple(decisions))
        seeds = [(0,) * len(decisions)]
        seeds += [choose_options(plain, its) for its in self.records.seeds(list(todo), KNOWN)]
        return replace(plain, seeds=tuple(dict.fromkeys(seeds)))

    def _schedules(self, key: str, problem: Problem, options: PlanOptions) -> list[str]:
        """Return schedules of a layer: what won alone or inside, its rivals, the model's best."""
        result = self.results[key]
        context = context_of(problem, options.threads, options.target)
        order = SummationOrder.of(context.contraction, result.schedule)
        ranked = choice.candidates(
            problem, context, OPTIONS, options.algorithm,
            order=order if options.reproducible else None,
        )  # fmt: skip
        rival_schedules = rivals(problem, result, options, self.wisdom)
        every = [self.chosen[key], *rival_schedules, *(candidate.schedule for candidate in ranked)]
        fitting = (its for its in every if not self.prepared.refuse(key, its))
        return list(dict.fromkeys(map(str, fitting)))

    def _free(self) -> dict[str, list[str]]:
        """Return the tensors that the members of ``PassChoices`` may name, by member."""
        context = pass_context(
            self.options.dtype, self.options.target, machine_for(self.options.target),
            fuse=self.prepared.fuse,
        )  # fmt: skip
        before = partial(program_before, program=lower(self.prepared.graph), context=context)
        loops = fuse_loops(before("fuse loops"))[1] if self.prepared.fuse else ()
        whole = self._arrange(self.prepared, self.chosen)
        inside = [stage.internal for stage in whole.program.stages if isinstance(stage, RowFusion)]
        return {
            "apart": list(dict.fromkeys(fusion.tensor for fusion in loops if fusion.done)),
            "turned": free_orders(before("axis orders")),
            "updates": [
                product.layer.output
                for product in step_products(before("fused updates"))
                if self.prepared.choices.update == AUTO
            ],
            "no_rows": list(chain.from_iterable(inside)),
        }

    def network_of(self, texts: Mapping[str, str]) -> TunedNetwork:
        """Return an individual of these options by the names of decisions.

        Raises PolysciError where they do not go together.
        """
        schedules, otherwise = dict[str, Schedule](), dict[str, set[str]]()
        tensors = {number: name for name, number in self.records.numbers.items()}
        for name, text in texts.items():
            kind, _, what = name.partition(" ")
            if kind == LAYER:
                schedules[what] = parse(text)
            elif text == OTHERWISE:
                otherwise.setdefault(kind, set()).add(tensors.get(what, what))
        kinds: dict[str, Any] = {kind: frozenset(names) for kind, names in otherwise.items()}
        choices = PassChoices(**kinds, update=self.prepared.choices.update)
        prepared = self._variant(choices)
        by_key = options_of(prepared.program, self.options)
        for key, problem in problems(prepared.program).items():
            if key not in schedules:
                schedules[key] = self._choose_unforeseen(key, problem, by_key[key])
        arranged = self._arrange(prepared, schedules)
        code = generate_code(arranged.placed, schedules, self.name, self.options)
        return TunedNetwork(arranged, schedules, code)

    def _variant(self, choices: PassChoices) -> PreparedNetwork:
        """Return the network that passes make of these choices."""
        own = replace(choices, no_rows=frozenset())
        if own not in self.variants:
            self.variants[own] = (
                self.prepared if own == self.prepared.choices else prepare(
                    self.prepared.graph, self.options.dtype, fuse=self.prepared.fuse,
                    target=self.options.target, optimize=self.prepared.optimize, choices=own,
                )
            )  # fmt: skip
        return replace(self.variants[own], choices=choices)

    def _choose_unforeseen(self, key: str, problem: Problem, options: PlanOptions) -> Schedule:
        """Return the model's choice for a layer that another order of axes makes another one."""
        if key not in self.results:
            self.results[key] = optimize(
                problem, "estimate", options.threads, target=options.target, wisdom=self.wisdom,
                algorithm=options.algorithm, reproducible=options.reproducible, quick=True,
            )  # fmt: skip
        return self.results[key].schedule

    def _arrange(
        self, prepared: PreparedNetwork, schedules: Mapping[str, Schedule]
    ) -> PreparedNetwork:
        seconds = {key: result.predicted for key, result in self.results.items()}
        decided = dict.fromkeys(prepared.choices.no_rows, FusionVerdict("it shall stay"))
        return fuse_with_schedules(prepared, schedules, seconds, self.options, decided)

    def _measure(
        self, state: TunerState, genomes: Sequence[Genome]
    ) -> Iterator[tuple[Genome, Outcome]]:
        for genome in genomes:
            if self.progress:
                total = state.limit
                self.progress(Progress("tuning", len(state.outcomes), total, state.best))
            yield genome, self._time(state.space, genome)

    def _time(self, space: Space, genome: Genome) -> Outcome:
        try:
            code, library = self.network_of(space.texts(genome)).built
            if library not in self.seconds:
                (samples,) = time_networks([(code, library)], self.options.threads, SAMPLES)
                self.seconds[library] = min(samples.seconds)
            return Outcome(self.seconds[library])
        except NoCompilerError:  # it is gone, and would be for each of them
            raise
        except PolysciError as error:
            return Outcome(None, str(error))

    def _enough(self, state: TunerState) -> bool:
        """Tell whether time is up, or the fastest individual is at the bound of all."""
        return state.best is not None and (self._late() or state.best < self.least)

    def _late(self) -> bool:
        return self.until is not None and time.monotonic() > self.until

    def _lower_bound(self, space: Space) -> float:
        """Return the least seconds that layers of any individual take, under any schedules."""
        least, by_key = dict[str, float](), options_of(self.prepared.program, self.options)
        for decision in space.decisions:
            kind, _, key = decision.name.partition(" ")
            if kind != LAYER or key not in by_key:
                continue
            problem = problems(self.prepared.program)[key]
            context = context_of(problem, by_key[key].threads, self.options.target)
            schedules = [parse(text) for text in decision.options]
            least[key] = min(algorithm_of(its).lower_bound(context, its) for its in schedules)
        return sum(least[layer.problem.key] for layer in self.prepared.program.layers())

    def _compare(self, state: TunerState) -> list[Genome]:
        """Return the fastest individuals, timed in turns; the seed stays where none is faster."""
        if self.progress:
            self.progress(Progress("comparing", 0, 1, state.best))
        seed = state.space.seeds[0]
        names = list(dict.fromkeys([seed, *state.ranked[:FINALISTS]]))
        built = [self.network_of(state.space.texts(genome)).built for genome in names]
        try:
            timed = time_networks(built, self.options.threads, FINAL_SAMPLES)
        except CheckError:  # one crashes now and then: the times that are known must do
            return state.ranked
        order = sorted(range(len(names)), key=lambda at: timed[at].median)
        best = timed[order[0]]
        near = [at for at in sorted(order) if not is_worse(timed[at], best)]
        return [names[at] for at in dict.fromkeys((*near, *order))]

    def _fault(self, network: TunedNetwork) -> str:
        """Return why a layer's code is wrong, by exact integers between guard pages; else nothing.

        What its own search measured was checked there.
        """
        by_key = options_of(network.prepared.program, self.options)
        for key, problem in problems(network.prepared.program).items():
            schedule, result = network.schedules[key], self.results[key]
            if result.measurement and schedule == result.schedule:
                continue
            (trial,) = build_trials(problem, [schedule], by_key[key].threads)
            try:
                if trial.error:
                    raise trial.error
                with Bench(problem, by_key[key].threads) as bench:
                    bench.check(*trial.candidate, schedule)
            except PolysciError as error:
                return f"{problem}: {schedule}: {error}"
        return ""
