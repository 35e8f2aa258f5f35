"""Checks of a search's options, before it begins."""

from __future__ import annotations

from typing import Any

from polysci.border.arguments import check_callable, check_type
from polysci.cost.shortlist import ranker_of
from polysci.errors import SpecError
from polysci.ops.problem import Problem
from polysci.target.machine import Machine
from polysci.target.target import MOST_THREADS, Target
from polysci.text.suggestions import suggest
from polysci.tune.result import LEVELS
from polysci.tune.tuners import TunerOptions
from polysci.tune.wisdom import Wisdom


def check_options(
    level: Any, threads: Any, target: Any, isa: Any, wisdom: Any, time_limit: Any
) -> None:
    """Raise TypeError or SpecError for an option of a search that is none."""
    nothing = type(None)
    for name, value, kinds in (
        ("level", level, (str,)), ("threads", threads, (int,)),
        ("target", target, (Target, nothing)), ("isa", isa, (str, nothing)),
        ("wisdom", wisdom, (Wisdom, nothing)),
        ("time_limit", time_limit, (int, float, nothing)),
    ):  # fmt: skip
        check_type(name, value, *kinds)
    if target and isa is not None:
        raise SpecError(f"isa {isa!r}: the target has one ({target.isa}); give either")
    if level not in LEVELS:
        names = f"{', '.join(LEVELS)}{suggest(level, LEVELS)}"
        raise SpecError(f"level {level!r}: expected one of {names}")
    if not 1 <= threads <= MOST_THREADS:
        raise SpecError(f"threads={threads}: expected 1 to {MOST_THREADS}")
    if time_limit is not None and not time_limit > 0:
        raise SpecError(f"time_limit={time_limit}: expected a positive number of seconds")


def check_types(problem: Any, machine: Any, ranker: Any, algorithm: Any, progress: Any) -> None:
    """Raise TypeError for an option of another type, SpecError for a ranker that does not exist."""
    check_type("problem", problem, Problem)
    check_type("machine", machine, Machine, type(None))
    check_type("ranker", ranker, str)
    check_type("algorithm", algorithm, str)
    check_callable("progress", progress)
    ranker_of(ranker)


def check_flags(**flags: Any) -> None:
    """Raise TypeError for a flag that is no bool."""
    for name, value in flags.items():
        check_type(name, value, bool)


def check_level(level: str, again: bool, runs: bool, tuner: TunerOptions | None) -> str:
    """The level, at least ``patient`` with a tuner. Raises SpecError for one that cannot do it.

    ``runs``: whether something runs where the search is for.
    """
    if tuner and LEVELS[level].measured == 0:
        raise SpecError(f"level {level!r}: measures nothing, and a tuner measures")
    if again and level == "wisdom-only":
        raise SpecError(f"level {level!r}: takes a record; it cannot measure again")
    if not runs and LEVELS[level].measured != 0:
        raise SpecError(f"level {level!r}: nothing runs on a described machine; use 'estimate'")
    return "patient" if tuner and level == "measure" else level
