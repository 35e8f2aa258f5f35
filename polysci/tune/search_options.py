"""The options of a search, as Python and the command line build them, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from polysci.border.arguments import check_callable, check_type
from polysci.cost.shortlist import ranker_of
from polysci.errors import SpecError
from polysci.lower import choice
from polysci.lower.choice import FindCandidates
from polysci.lower.registry import DEFAULT
from polysci.space.schedule import Schedule
from polysci.target.machine import Machine
from polysci.target.target import MOST_THREADS, Target
from polysci.text.names import suggest
from polysci.tune.result import LEVELS, Progress
from polysci.tune.runner import LocalRunner, MakeRunner
from polysci.tune.tuners import TunerOptions, options_of
from polysci.tune.wisdom import Wisdom

RANKER = "traffic"


class CompileKeywords(TypedDict, total=False):
    """Keyword arguments of a search that ``polysci.compile`` takes as well."""

    target: Target | None
    isa: str | None
    ranker: str
    time_limit: float | None
    wisdom: Wisdom | None
    progress: Callable[[Progress], None] | None
    algorithm: str
    schedule: Schedule | str | None
    reproducible: bool
    verify: bool
    tuner: str | TunerOptions | None


class SearchKeywords(CompileKeywords, total=False):
    """Keyword arguments of ``polysci.optimize``: the fields of SearchOptions behind ``threads``."""

    machine: Machine | None
    again: bool
    quick: bool
    make_runner: MakeRunner
    find_candidates: FindCandidates


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How ``polysci.optimize`` searches: its arguments of these names, checked for their types.

    Raises TypeError, and SpecError for values that no search can have.
    """

    level: str = "measure"
    threads: int = 1
    target: Target | None = None
    isa: str | None = None
    ranker: str = RANKER
    time_limit: float | None = None
    wisdom: Wisdom | None = None
    progress: Callable[[Progress], None] | None = None
    machine: Machine | None = None
    algorithm: str = DEFAULT
    schedule: Schedule | str | None = None
    again: bool = False
    reproducible: bool = False
    quick: bool = False
    verify: bool = True
    tuner: str | TunerOptions | None = None
    make_runner: MakeRunner = LocalRunner
    find_candidates: FindCandidates = choice.candidates

    def __post_init__(self) -> None:
        check_options(self.level, self.threads, self.target, self.isa, self.wisdom, self.time_limit)
        check_type("machine", self.machine, Machine, type(None))
        check_type("ranker", self.ranker, str)
        check_type("algorithm", self.algorithm, str)
        check_callable("progress", self.progress)
        ranker_of(self.ranker)
        for name in ("again", "reproducible", "quick", "verify"):
            check_type(name, getattr(self, name), bool)

    @staticmethod
    def of(level: str | SearchOptions, threads: int, keywords: Mapping[str, Any]) -> SearchOptions:
        """Return the options of a call, which gives them as a whole or one by one."""
        if isinstance(level, SearchOptions):
            if threads != 1 or keywords:
                name = next(iter(keywords), "threads")
                raise TypeError(f"{name}: given twice, as SearchOptions has it")
            return level
        names = [field.name for field in fields(SearchOptions)]
        for name in keywords:
            if name not in names:
                raise TypeError(f"{name}: no option of a search{suggest(name, names)}")
        return SearchOptions(level, threads, **keywords)

    def resolve_level(self) -> tuple[str, TunerOptions | None]:
        """Return the level, at least ``patient`` with a tuner, and the tuner.

        Raises SpecError for a level that cannot do what the other options ask for.
        """
        level, tuner = self.level, options_of(self.tuner)
        if tuner and LEVELS[level].measured == 0:
            raise SpecError(f"level {level!r}: measures nothing, and a tuner measures")
        if self.again and level == "wisdom-only":
            raise SpecError(f"level {level!r}: takes a record; it cannot measure again")
        runs = self.machine is None or self.make_runner is not LocalRunner
        if not runs and LEVELS[level].measured != 0:
            raise SpecError(f"level {level!r}: nothing runs on a described machine; use 'estimate'")
        return ("patient" if tuner and level == "measure" else level), tuner


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
