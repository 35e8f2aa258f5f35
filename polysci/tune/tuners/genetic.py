"""The genetic tuner: generations of individuals; the fast ones live on and have children.

As in Vasilache and others, Tensor Comprehensions (2018), section 5, but that parents are winners of
tournaments (Goldberg and Deb, A Comparative Analysis of Selection Schemes, 1991): times of good
schedules differ by percents, of which shares of 1/time would make nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from polysci.tune.tuners.options import Proposals, TunerOptions
from polysci.tune.tuners.space import Genome, Space, genes_of

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
