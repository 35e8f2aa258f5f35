"""The decisions of a tuner about a program, and the genes that combine them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.errors import SpecError
from polysci.polyhedral.tile_schedule import Loop
from polysci.space import directives
from polysci.space.schedule import parse
from polysci.target.microkernels import find

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
