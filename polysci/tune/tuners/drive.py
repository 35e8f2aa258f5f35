"""Run a tuner: what it proposes is measured once, and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from polysci.tune.tuners.options import Proposals, TunerOptions
from polysci.tune.tuners.rivals import propose_by_density, propose_random
from polysci.tune.tuners.space import Genome, Space, genes_of
from polysci.tune.tuners.state import Outcome, TunerState

ROUND: Final = 3  # individuals in a tournament
TRIES: Final = 20  # to make a child that the generation has not


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
