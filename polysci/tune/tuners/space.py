"""The decisions of a tuner about a program, the genes that combine them, and its settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.border.arguments import check_type
from polysci.errors import SpecError
from polysci.polyhedral.tile_schedule import Loop
from polysci.space import directives
from polysci.space.schedule import parse
from polysci.target.microkernels import find
from polysci.text.names import suggest

Genome = tuple[int, ...]  # of every decision the number of an option
Genes = NDArray[np.intp]
TOWARDS_FIRST = 3  # power of a uniform number: random options are mostly early ones


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """``options`` are the texts to choose from, the one that the model prefers first.

    ``genes[i]`` are the properties of option i as numbers; equal where options share a property.
    """

    name: str
    options: tuple[str, ...]
    genes: Genes

    @classmethod
    def of(cls, name: str, options: Sequence[str]) -> Decision:
        """The decision between texts: schedules, or words that have one property each."""
        rows = [dict(_properties(text)) for text in options]
        columns = dict.fromkeys(column for row in rows for column in row)
        genes = np.zeros((len(rows), len(columns)), np.intp)
        for at, column in enumerate(columns):
            numbers: dict[str, int] = {}
            for row, its in enumerate(rows):
                genes[row, at] = numbers.setdefault(its.get(column, ""), len(numbers))
        return cls(name, tuple(options), genes)

    def nearest(self, genes: Genes, weights: NDArray[Any] | float = 1.0) -> int:
        """The option with most of these genes; of several the one that the model prefers."""
        return int(np.argmax(((self.genes == genes) * weights).sum(axis=1)))

    def nearest_to(self, text: str) -> int:
        """The option most like one of another space, such as a schedule for other sizes."""
        wanted = dict(_properties(text))
        alike = [len(wanted.items() & dict(_properties(own)).items()) for own in self.options]
        return int(np.argmax(alike))


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """All decisions of a program; an individual has one option of each.

    ``seeds`` are measured first: what the model and records prefer.
    """

    decisions: tuple[Decision, ...]
    seeds: tuple[Genome, ...] = ()

    @property
    def size(self) -> int:
        """How many individuals there are."""
        return prod(len(decision.options) for decision in self.decisions)

    def genome(self, rng: np.random.Generator) -> Genome:
        """A random individual, mostly of options that the model prefers."""
        draws = rng.random(len(self.decisions)) ** TOWARDS_FIRST
        return tuple(
            int(draw * len(decision.options))
            for draw, decision in zip(draws, self.decisions, strict=True)
        )

    def texts(self, genome: Genome) -> dict[str, str]:
        """The options of an individual by the names of decisions."""
        return {
            decision.name: decision.options[number]
            for decision, number in zip(self.decisions, genome, strict=True)
        }


def _properties(text: str) -> Iterator[tuple[str, str]]:
    """Properties of an option: those of a schedule, or the word itself."""
    levels = Counter[str]()
    try:
        schedule = parse(text)
        kernel = find(schedule.kernel)
    except SpecError:  # a word, or a recorded schedule of another version
        yield "word", text
        return
    yield "family", f"{kernel.family} {kernel.compute}"
    yield "columns", str(kernel.cols)
    yield "rows", str(kernel.rows)
    yield "transform", str(schedule.transform)
    yield "order", " ".join(p.dim if isinstance(p, Loop) else str(p) for p in schedule.nest)
    yield "packed", str(schedule.pack)
    yield "panels", str(schedule.panels_depth)
    yield "parallel", " ".join(loop.dim for loop in schedule.parallel)
    for row in directives.DIRECTIVES:
        yield row.word, str(schedule.find(row))
    for loop in schedule.loops:
        yield f"{loop.dim} {levels[loop.dim]}", str(loop.step)
        levels[loop.dim] += 1


def genes_of(space: Space, genome: Genome) -> list[Genes]:
    """The genes of an individual, decision by decision."""
    return [d.genes[number] for d, number in zip(space.decisions, genome, strict=True)]


def choose_options(space: Space, wanted: Mapping[str, str]) -> Genome:
    """The individual most like these texts; the first option where there is none."""
    return tuple(
        decision.nearest_to(wanted[decision.name]) if decision.name in wanted else 0
        for decision in space.decisions
    )


# Yields individuals to measure, and is sent their seconds: infinite for one that fell out.
Proposals = Generator[Sequence[Genome], Sequence[float], None]

NAMES: Final = ("genetic", "bayesian", "random")
_LEAST: Final = {"population": 2, "generations": 1, "elites": 0, "seed": 0}
_MOST: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class TunerOptions:
    """A tuner and its limit: at most ``population`` times ``generations`` individuals.

    The others are of the genetic one. ``crossover``: the chance that a child has two parents, not
    one; ``mutation``: that a gene changes; ``elites``: so many of a generation live on. The
    defaults are those of Vasilache and others, Tensor Comprehensions (2018), section 5. Raises
    SpecError or TypeError for what is out of range.
    """

    name: str = "genetic"
    population: int = 100
    generations: int = 25
    crossover: float = 0.8
    mutation: float = 0.07
    elites: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        check_type("tuner", self.name, str)
        if self.name not in NAMES:
            known = f"{', '.join(NAMES)}{suggest(self.name, NAMES)}"
            raise SpecError(f"tuner {self.name!r}: expected one of {known}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            check_type(name, value, int)
            if not least <= value < _MOST:
                raise SpecError(f"{name}={value}: a tuner has at least {least}, below 2^31")
        if self.elites >= self.population:
            raise SpecError(f"elites={self.elites}: expected fewer than population")
        for name in ("crossover", "mutation"):
            check_type(name, getattr(self, name), int, float)
            if not 0 <= getattr(self, name) <= 1:
                raise SpecError(f"{name}={getattr(self, name)}: expected a chance from 0 to 1")

    @property
    def budget(self) -> int:
        """How many individuals are proposed at most."""
        return self.population * self.generations

    def members(self) -> dict[str, Any]:
        """Return the options as JSON members."""
        return asdict(self)


def options_of(tuner: object) -> TunerOptions | None:
    """The settings that a caller means by them or by a name; None: no tuner."""
    if tuner is None or isinstance(tuner, TunerOptions):
        return tuner
    check_type("tuner", tuner, str, TunerOptions)
    return TunerOptions(str(tuner))
