"""Candidates in the order of times that know what their kernels take of a compute unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from polysci.cost import Context
from polysci.lower.algorithm import Candidate
from polysci.lower.registry import algorithm_of
from polysci.ops.problem import Problem
from polysci.runtime.backend import Backend
from polysci.runtime.source import emit
from polysci.tune.result import Progress

COMPILED: Final = 50  # of the best candidates, at most
MOST_HELD: Final = 32  # groups of a compute unit, on every device
JOBS: Final = 2  # compilers at a time


def refine(
    problem: Problem,
    context: Context,
    ranked: Sequence[Candidate],
    wanted: int,
    backend: Backend,
    tell: Callable[[Progress], None] = lambda step: None,
) -> list[Candidate]:
    """Return candidates whose first ``wanted`` are the best by what the compiler tells.

    Of the best COMPILED candidates each is compiled that may be among them: that would be if its
    groups filled a compute unit. Those that spill registers fall out. Where no compiler tells, the
    candidates stay as they are.
    """
    if backend.occupancy is None:
        return [*ranked]
    limits = [_best_case(problem, context, it) for it in ranked[:COMPILED]]
    pending = sorted((limit, at) for at, limit in enumerate(limits) if limit is not None)
    known = [it for it, limit in zip(ranked, limits, strict=False) if limit is None]
    total, size = len(pending), min(JOBS, wanted)
    while pending and not _settled(known, wanted, pending[0][0]):
        tell(Progress("compiling", total - len(pending), total))
        batch, pending = pending[:size], pending[size:]
        known += _compile(problem, context, [ranked[at] for _, at in batch], backend)
        known.sort(key=lambda own: (own.seconds, str(own.schedule)))
    untried = [ranked[at] for at in sorted(at for _, at in pending)]
    return [*known, *untried, *ranked[COMPILED:]]


def describe_registers(backend: Backend) -> str:
    """Return where the registers come from that candidates of a backend are ranked with."""
    if backend.occupancy is None:
        return "registers of work-items are assumed: no compiler tells them"
    return f"registers of work-items as {backend.compiler} takes them"


def _best_case(problem: Problem, context: Context, candidate: Candidate) -> float | None:
    """Return the seconds where a unit holds as many groups as any does; None without groups."""
    schedule = candidate.schedule
    return algorithm_of(schedule).predict_held(problem, context, schedule, MOST_HELD)


def _settled(known: Sequence[Candidate], wanted: int, least: float) -> bool:
    """Return whether nothing that takes ``least`` seconds or more changes the first ones."""
    return len(known) >= wanted and known[wanted - 1].seconds <= least


def _compile(
    problem: Problem, context: Context, batch: Sequence[Candidate], backend: Backend
) -> list[Candidate]:
    """Return the candidates that spill nothing, with the seconds of the groups that are held."""
    sources = [emit(problem, it.schedule, context.threads) for it in batch]
    paths = backend.build_many(
        [source.file for source in sources], jobs=JOBS,
        symbols=[source.symbols for source in sources],
        modules=[source.module for source in sources],
    )  # fmt: skip
    assert backend.occupancy
    kept = list[Candidate]()
    for candidate, path in zip(batch, paths, strict=True):
        taken, schedule = backend.occupancy(path), candidate.schedule
        if taken.groups and not taken.spilled:
            algorithm = algorithm_of(schedule)
            seconds = algorithm.predict_held(problem, context, schedule, taken.groups)
            assert seconds is not None
            kept.append(replace(candidate, seconds=seconds))
    return kept
