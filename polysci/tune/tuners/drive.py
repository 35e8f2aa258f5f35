"""The tuners, by name, and the driver: what a tuner proposes is measured once, and kept."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from polysci.errors import UnsupportedError
from polysci.tune.tuners.space import Decision, Genome, Proposals, Space, TunerOptions, genes_of
from polysci.tune.tuners.state import Outcome, TunerState

ROUND: Final = 3  # individuals in a tournament
TRIES: Final = 20  # to make a child that the generation has not
TOGETHER: Final = 4  # individuals proposed before the time of any is known: compilers share cores


def propose_generations(space: Space, options: TunerOptions) -> Proposals:
    """Generations of at most ``population``; the first has the seeds and random individuals."""
    rng = np.random.default_rng(options.seed)
    size = min(options.population, space.size)
    people = dict.fromkeys(space.seeds[:size])
    for _ in range(TRIES * size):
        if len(people) == size:
            break
        people[space.genome(rng)] = None
    for number in range(options.generations):
        generation = list(people)
        seconds = yield generation
        if number == options.generations - 1:
            return
        ranked = [generation[at] for at in np.argsort(seconds, kind="stable")]
        people = dict.fromkeys(ranked[: options.elites])
        for _ in range(TRIES * size):
            if len(people) == size:
                break
            people[_child(space, ranked, options, rng)] = None


def _child(
    space: Space, ranked: Sequence[Genome], options: TunerOptions, rng: np.random.Generator
) -> Genome:
    """One with the genes of two parents, or of one, some of them mutated."""
    first, second = (ranked[rng.integers(len(ranked), size=ROUND).min()] for _ in range(2))
    if rng.random() >= options.crossover:
        second = first
    child: list[int] = []
    parts = zip(space.decisions, genes_of(space, first), genes_of(space, second), strict=True)
    for decision, own, other in parts:
        whole = len(space.decisions) > 1 and rng.random() < 0.5  # a decision, not parts of it
        from_own = rng.random(1 if whole else len(own)) < 0.5
        mutated = rng.random(len(own)) < options.mutation
        donor = decision.genes[rng.integers(len(decision.options))]
        genes = np.where(mutated, donor, np.where(from_own, own, other))
        child.append(decision.nearest(genes, 1.0 + len(own) * mutated))
    return tuple(child)


def propose_random(space: Space, options: TunerOptions) -> Proposals:
    """The seeds, then individuals at random."""
    rng, proposed = np.random.default_rng(options.seed), dict.fromkeys(space.seeds)
    yield list(proposed)
    while (left := min(options.budget, space.size) - len(proposed)) > 0:
        batch = dict.fromkeys(space.genome(rng) for _ in range(min(TOGETHER, left)))
        fresh = [genome for genome in batch if genome not in proposed]
        proposed |= dict.fromkeys(fresh)
        if fresh:
            yield fresh


def load_optuna() -> Any:
    """The package. Raises UnsupportedError that tells how to install it."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise UnsupportedError(
            f"tuner 'bayesian': optuna cannot be imported ({error}); pip install 'polysci[tuners]'"
        ) from error
    logging.getLogger("optuna").setLevel(logging.WARNING)  # it tells of every trial otherwise
    return optuna


def check_packages(options: TunerOptions) -> None:
    """Raise UnsupportedError where what the tuner is made of cannot be imported."""
    if options.name == "bayesian":
        load_optuna()


def propose_by_density(space: Space, options: TunerOptions) -> Proposals:
    """Propose by a tree-structured Parzen estimator (optuna's TPESampler).

    Its parameters are genes; the individual is the one with most of them (Bergstra and others,
    Algorithms for Hyper-Parameter Optimization, 2011).
    """
    optuna = load_optuna()
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=options.seed))
    columns = {
        name: optuna.distributions.CategoricalDistribution(sorted({*values.tolist()}))
        for decision in space.decisions
        for name, values in zip(_columns(decision), decision.genes.T, strict=True)
    }
    for genome in space.seeds:
        study.enqueue_trial(_params(space, genome))
    for _ in range(max(1, options.budget // TOGETHER)):
        trials = [study.ask(columns) for _ in range(TOGETHER)]
        seconds = yield [_nearest(space, trial.params) for trial in trials]
        for trial, time in zip(trials, seconds, strict=True):
            if np.isfinite(time):
                study.tell(trial, time)
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)


def _columns(decision: Decision) -> list[str]:
    return [f"{decision.name} {column}" for column in range(decision.genes.shape[1])]


def _params(space: Space, genome: Genome) -> dict[str, int]:
    return {
        name: int(gene)
        for decision, genes in zip(space.decisions, genes_of(space, genome), strict=True)
        for name, gene in zip(_columns(decision), genes, strict=True)
    }


def _nearest(space: Space, params: Mapping[str, int]) -> Genome:
    return tuple(
        decision.nearest(np.array([params[name] for name in _columns(decision)]))
        for decision in space.decisions
    )


Measure = Callable[[Sequence[Genome]], Iterator[tuple[Genome, Outcome]]]
Choose = Callable[[Sequence[Genome], int], Sequence[Genome]]
Propose = Callable[[Space, TunerOptions], Proposals]

TUNERS: Final[Mapping[str, Propose]] = MappingProxyType(
    {
        "genetic": propose_generations,
        "bayesian": propose_by_density,
        "random": propose_random,
    }
)


def drive(
    state: TunerState,
    measure: Measure,
    enough: Callable[[], bool],
    together: int = 4,
    choose: Choose = lambda genomes, count: genomes[:count],
) -> None:
    """Measure what the tuner proposes until it ends, or ``enough``.

    ``measure`` gets up to ``together`` individuals, and yields the outcome of each as it has it.
    Those of a generation come in the order in which ``choose`` takes some: time may end before it.
    """
    proposals = TUNERS[state.options.name](state.space, state.options)
    batch = next(proposals, None)
    while batch is not None:
        fresh = [genome for genome in dict.fromkeys(batch) if genome not in state.outcomes]
        while fresh:
            if enough():
                return
            chosen = choose(fresh, together)
            fresh = [genome for genome in fresh if genome not in chosen]
            for genome, outcome in measure(chosen):
                state.note(genome, outcome)
        if enough() or any(genome not in state.outcomes for genome in batch):  # time was up
            return
        try:
            batch = proposals.send([state.seconds(genome) for genome in batch])
        except StopIteration:
            return
