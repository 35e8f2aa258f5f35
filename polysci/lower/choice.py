"""The algorithms of a search, and their schedules in one order by predicted seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import merge
from itertools import chain
from typing import Any, Final

from polysci.cost import Context
from polysci.errors import SpecError, UnsupportedError
from polysci.lower.algorithm import Algorithm, Candidate, SpaceLimits
from polysci.lower.mapped.plan import kernels_of, takes
from polysci.lower.registry import (
    AUTO,
    AUTO_F16,
    DEFAULT,
    MAPPED,
    algorithm_named,
    algorithm_of,
    algorithms_of,
    name_of,
    names,
    options,
    rounds_weights,
)
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.ops.registry import parse_key
from polysci.space.schedule import Schedule
from polysci.space.summation import SummationOrder
from polysci.target.machine import assume_rates
from polysci.target.target import Target
from polysci.text.names import suggest

TYPICAL_THREADS: Final = 4  # for which reproducible sums are laid out
REPRODUCIBLE: Final = "reproducible"  # the last word of keys of such records
SOUGHT: Final = 32  # schedules of an algorithm among which those of one order of sums are kept
LEAST: Final = 2  # of each algorithm that auto measures, however they are predicted

FindCandidates = Callable[..., list[Candidate]]  # as ``candidates`` does


def resolve_algorithm(problem: Problem, algorithm: str) -> str:
    """The algorithm to search with: the only one that applies where no other does.

    The default is that one as well, where it does not compute the problem itself.

    Raises SpecError for a name that does not exist, UnsupportedError for an algorithm that does not
    compute the problem.
    """
    automatic = algorithm in (AUTO, AUTO_F16)
    if automatic or (algorithm == DEFAULT and algorithm_named(DEFAULT).refusal(problem)):
        own = algorithms_of(algorithm if automatic else AUTO)
        applicable = [name for name in own if not algorithm_named(name).refusal(problem)]
        if len(applicable) == 1:
            return applicable[0]
        return AUTO_F16 if any(map(rounds_weights, applicable)) else AUTO
    if algorithm not in names():
        known = f"{', '.join(options())}{suggest(algorithm, options())}"
        raise SpecError(f"algorithm {algorithm!r}: expected one of {known}")
    if reason := algorithm_named(algorithm).refusal(problem):
        raise UnsupportedError(
            f"{problem}: algorithm {algorithm}: {reason}; {AUTO!r} computes it in another way"
        )
    return algorithm


def key_of(problem: Problem, algorithm: str, *, reproducible: bool = False) -> str:
    """Return the key of a search's records: those of direct searches hold direct schedules."""
    chosen = resolve_algorithm(problem, algorithm)
    parts = [problem.key, *[chosen] * (chosen != DEFAULT), *[REPRODUCIBLE] * reproducible]
    return " ".join(parts)


def parse_record_key(key: str) -> tuple[Problem, str]:
    """The problem and the algorithm whose ``key_of`` is this. Raises SpecError where none is."""
    plain = key.removesuffix(f" {REPRODUCIBLE}")
    text, _, algorithm = plain.rpartition(" ")
    if algorithm not in options():
        text, algorithm = plain, DEFAULT
    problem = parse_key(text)
    own = key_of(problem, algorithm, reproducible=plain != key)
    if own != key:
        raise SpecError(f"problem {key!r}: its records are under {own!r}")
    return problem, algorithm


def keys_of(problem: Problem) -> tuple[str, ...]:
    """All keys under which searches of a problem keep their records."""
    others = (name for name in options() if name != DEFAULT)
    keys = (problem.key, *(f"{problem.key} {name}" for name in others))
    return (*keys, *(f"{key} {REPRODUCIBLE}" for key in keys))


def admits(algorithm: str, schedule: Schedule) -> bool:
    """Return whether a search with ``algorithm`` may take a schedule; raises like ``name_of``."""
    name = name_of(schedule)
    if name == MAPPED:
        return algorithm in (MAPPED, DEFAULT, AUTO, AUTO_F16)
    return name in algorithms_of(algorithm)


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
    order: SummationOrder | None = None,
) -> list[Candidate]:
    """The best ``count`` schedules of an algorithm (None: all); with auto, of all in one order.

    Beside them come the best of ``kinds`` other kinds.

    Raises as ``Algorithm.candidates`` and ``resolve_algorithm`` do.
    """
    chosen = resolve_algorithm(problem, algorithm)
    limits = SpaceLimits(ranker, tiles, blocks, kinds, order)
    ranked, refused = list[Sequence[Candidate]](), list[UnsupportedError]()
    direct = float("inf")  # seconds of the best direct schedule, whose row is the first one
    for row in _algorithms(problem, context.target, chosen):
        if row.margin and row.least_seconds(problem, context) > (1 - row.margin) * direct:
            continue
        try:
            own = _in_order(row, problem, context, count, limits)
        except UnsupportedError as error:
            refused.append(error)
            continue
        if row.margin and own and own[0].seconds > (1 - row.margin) * direct:
            continue
        if own and not row.margin:
            direct = min(direct, own[0].seconds)
        ranked.append(own)
    if refused and not ranked:
        raise refused[0]
    return _merge(ranked, None if count is None else count + kinds)


def takes_groups(problem: Problem, target: Target) -> bool:
    """Return whether tiles of groups stand for direct loops of a problem on a target."""
    if not has_groups(target) or algorithm_named(MAPPED).refusal(problem):
        return False
    _, contraction, _ = model_of(problem)
    return takes(contraction, target)


def _algorithms(problem: Problem, target: Target, chosen: str) -> list[Algorithm[Any]]:
    """Return the algorithms of a choice that have kernels for a problem on a target.

    Where groups of the target share a memory, their tiles stand for direct loops.
    """
    isa = target.isa
    known = algorithms_of(chosen)
    if takes_groups(problem, target):
        known = tuple(MAPPED if name == DEFAULT else name for name in known)
    algorithms = [
        algorithm_named(name) for name in known
        if isa.language in algorithm_named(name).languages
    ]  # fmt: skip
    if not algorithms:
        raise UnsupportedError(f"algorithm {chosen}: no kernels of {isa}")
    return [algorithm for algorithm in algorithms if not algorithm.refusal(problem)]


def has_groups(target: Target) -> bool:
    """Return whether groups of work-items of a target share a memory."""
    return bool(kernels_of(target.isa.name, "f32"))


def _in_order(
    algorithm: Algorithm[Any],
    problem: Problem,
    context: Context,
    count: int | None,
    limits: SpaceLimits,
) -> Sequence[Candidate]:
    """Return candidates of one algorithm; with an order of sums those that have it, maybe none."""
    order = limits.order
    if order is None:
        return algorithm.candidates(problem, context, count, limits)
    sought = count  # the default looks for them itself
    if algorithm is not algorithm_named(DEFAULT):
        sought = SOUGHT if count is None else max(count, SOUGHT)
    try:
        ranked = algorithm.candidates(problem, context, sought, limits)
    except UnsupportedError:
        return []
    sums = [SummationOrder.of(context.contraction, option.schedule) for option in ranked]
    own = [option for option, its in zip(ranked, sums, strict=True) if its == order]
    return own if count is None else own[: count + limits.kinds]


def reproducible_schedule(problem: Problem, target: Target, algorithm: str = DEFAULT) -> Schedule:
    """The schedule whose order of sums reproducible searches keep, whatever threads there are.

    It is the model's choice for ``TYPICAL_THREADS`` threads on a typical machine with the
    target's instruction set and caches, so that nothing measured decides.
    """
    _, roles, strides = model_of(problem)
    context = Context(roles, strides, target, assume_rates(target), TYPICAL_THREADS)
    return candidates(problem, context, 1, algorithm)[0].schedule


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
    """Predicted seconds of one schedule of any algorithm. Raises as ``Algorithm.resolve`` does."""
    return algorithm_of(schedule).predict_seconds(problem, context, schedule)
