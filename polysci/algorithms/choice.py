"""Which algorithms a search may choose, and their schedules in one order by predicted seconds."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from itertools import chain
from typing import Final

from polysci.algorithms.algorithm import Candidate, SpaceLimits
from polysci.algorithms.registry import (
    AUTO,
    DEFAULT,
    algorithm_named,
    algorithm_of,
    name_of,
    names,
    options,
)
from polysci.errors import SpecError, UnsupportedError
from polysci.ops.parsing import parse_key
from polysci.ops.problem import Problem
from polysci.polyhedral.schedule import Schedule
from polysci.rank import Context
from polysci.text.suggestions import suggest

LEAST: Final = 2  # of each algorithm that auto measures, however they are predicted


def resolve_algorithm(problem: Problem, algorithm: str) -> str:
    """The algorithm to search with: the only one that applies where no other does.

    The default is that one as well, where it does not compute the problem itself.

    Raises SpecError for a name that does not exist, UnsupportedError for an algorithm that does not
    compute the problem.
    """
    if algorithm == AUTO or (algorithm == DEFAULT and algorithm_named(DEFAULT).refusal(problem)):
        applicable = [name for name in names() if not algorithm_named(name).refusal(problem)]
        return applicable[0] if len(applicable) == 1 else AUTO
    if algorithm not in names():
        known = f"{', '.join(options())}{suggest(algorithm, options())}"
        raise SpecError(f"algorithm {algorithm!r}: expected one of {known}")
    if reason := algorithm_named(algorithm).refusal(problem):
        raise UnsupportedError(f"{problem}: algorithm {algorithm}: {reason}")
    return algorithm


def key_of(problem: Problem, algorithm: str) -> str:
    """Under which records of a search are kept: those of direct searches hold direct schedules."""
    chosen = resolve_algorithm(problem, algorithm)
    return problem.key if chosen == DEFAULT else f"{problem.key} {chosen}"


def parse_record_key(key: str) -> tuple[Problem, str]:
    """The problem and the algorithm whose ``key_of`` is this. Raises SpecError where none is."""
    words, _, last = key.rpartition(" ")
    text, algorithm = (words, last) if last in options() else (key, DEFAULT)
    problem = parse_key(text)
    if key_of(problem, algorithm) != key:
        raise SpecError(f"problem {key!r}: its records are under {key_of(problem, algorithm)!r}")
    return problem, algorithm


def keys_of(problem: Problem) -> tuple[str, ...]:
    """All keys under which searches of a problem keep their records."""
    others = (name for name in options() if name != DEFAULT)
    return (problem.key, *(f"{problem.key} {name}" for name in others))


def admits(algorithm: str, schedule: Schedule) -> bool:
    """Whether a search with ``algorithm`` may take the schedule. Raises as ``name_of`` does."""
    return name_of(schedule) == algorithm or algorithm == AUTO


def candidates(
    problem: Problem,
    context: Context,
    count: int | None,
    algorithm: str = DEFAULT,
    *,
    ranker: str = "traffic",
    tiles: int = 8,
    blocks: int = 2,
    kinds: int = 0,
) -> list[Candidate]:
    """The best ``count`` schedules of an algorithm (None: all); with auto, of all in one order.

    Beside them come the best of ``kinds`` other kinds.

    Raises as ``Algorithm.candidates`` and ``resolve_algorithm`` do.
    """
    chosen = resolve_algorithm(problem, algorithm)
    limits = SpaceLimits(ranker, tiles, blocks, kinds)
    algorithms = [algorithm_named(name) for name in (names() if chosen == AUTO else [chosen])]
    ranked = [
        algorithm.candidates(problem, context, count, limits)
        for algorithm in algorithms
        if not algorithm.refusal(problem)
    ]
    return _merge(ranked, None if count is None else count + kinds)


def _merge(ranked: Sequence[Sequence[Candidate]], count: int | None) -> list[Candidate]:
    """The best LEAST of each, so that whatever is measured first compares them; then the rest.

    Each keeps its ranker's order. Ties go to the algorithm whose row comes first.
    """
    if count is None or len(ranked) == 1:
        return _by_seconds(ranked)
    first = _by_seconds([part[:LEAST] for part in ranked])
    rest = _by_seconds([part[LEAST:] for part in ranked])
    return list(chain(first, rest))[:count]


def _by_seconds(ranked: Sequence[Sequence[Candidate]]) -> list[Candidate]:
    return list(merge(*ranked, key=lambda candidate: candidate.seconds))


def other_form(problem: Problem, context: Context, schedule: Schedule) -> Schedule | None:
    """The schedule with or without prefetches of weights; None where that cannot pay."""
    return algorithm_of(schedule).other_form(problem, context, schedule)


def predict_seconds(problem: Problem, context: Context, schedule: Schedule) -> float:
    """Predicted seconds of one schedule of any algorithm. Raises as ``Algorithm.lower`` does."""
    return algorithm_of(schedule).predict_seconds(problem, context, schedule)
