"""Run a tuner: what it proposes is measured once, and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from polysci.tune.tuners.genetic import propose_generations
from polysci.tune.tuners.options import Proposals, TunerOptions
from polysci.tune.tuners.rivals import propose_by_density, propose_random
from polysci.tune.tuners.space import Genome, Space
from polysci.tune.tuners.state import Outcome, TunerState

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
