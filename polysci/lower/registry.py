"""The algorithms, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from polysci.errors import SpecError
from polysci.lower.algorithm import Algorithm

if TYPE_CHECKING:  # a worker process needs no isl
    from polysci.space.schedule import Schedule

DEFAULT: Final = "direct"  # the algorithm of schedules without a transform
MAPPED: Final = "mapped"  # that of schedules with loops that are mapped to a device's axes
AUTO: Final = "auto"  # not an algorithm: all that apply and keep weights as they are
AUTO_F16: Final = "auto_f16"  # all that apply


@dataclass(frozen=True, slots=True)
class AlgorithmRow:
    """``location`` is ``module:Class`` of an ``Algorithm``, imported when it is first needed.

    ``rounds_weights``: it keeps them in fewer bits than the problem has, and must be asked for.
    """

    location: str
    summary: str
    rounds_weights: bool = False


ALGORITHMS: Mapping[str, AlgorithmRow] = MappingProxyType(
    {
        DEFAULT: AlgorithmRow(
            "polysci.lower.direct.algorithm:Direct", "sums products exactly as written"
        ),
        "winograd": AlgorithmRow(
            "polysci.lower.winograd.algorithm:Winograd",
            "rounds more, within a bound, and needs fewer of them",
        ),
        "winograd_f16": AlgorithmRow(
            "polysci.lower.winograd.algorithm:RoundedWinograd",
            "is winograd with transformed weights in f16, half as many bytes",
            rounds_weights=True,
        ),
        "residues": AlgorithmRow(
            "polysci.lower.residues:Residues",
            "computes gradients of strided inputs, each residue class of pixels by itself",
        ),
        "bilinear": AlgorithmRow(
            "polysci.lower.bilinear.algorithm:Bilinear",
            "multiplies matrices by Strassen's algorithm, which rounds more, within a bound",
        ),
        MAPPED: AlgorithmRow(
            "polysci.lower.mapped.algorithm:MappedGroups",
            "sums as direct loops do, in tiles of groups of work-items",
        ),
    }
)


@cache
def load(location: str) -> Algorithm[Any]:
    """The algorithm at ``module:Class``."""
    module, _, name = location.partition(":")
    algorithm: Algorithm[Any] = getattr(import_module(module), name)()
    return algorithm


def algorithm_named(name: str) -> Algorithm[Any]:
    """The algorithm of a row."""
    return load(ALGORITHMS[name].location)


def name_of(schedule: Schedule) -> str:
    """Return the algorithm of a schedule. Raises SpecError for a transform that none has."""
    transform = schedule.transform
    if transform is None:
        return MAPPED if schedule.mapped else DEFAULT
    if transform.name in (DEFAULT, MAPPED) or transform.name not in ALGORITHMS:
        known = ", ".join(name for name in ALGORITHMS if name not in (DEFAULT, MAPPED))
        raise SpecError(f"schedule {schedule}: {transform}: expected a transform named {known}")
    return transform.name


def algorithm_of(schedule: Schedule) -> Algorithm[Any]:
    """The algorithm that a schedule is written for. Raises as ``name_of`` does."""
    return algorithm_named(name_of(schedule))


def location_of(schedule: Schedule) -> str:
    """Return where an algorithm is, for another process. Raises as ``name_of`` does."""
    return ALGORITHMS[name_of(schedule)].location


def names() -> tuple[str, ...]:
    """The algorithms of searches, in the order of their rows: the default has tiles of groups."""
    return tuple(name for name in ALGORITHMS if name != MAPPED)


def algorithms_of(choice: str) -> tuple[str, ...]:
    """Return the algorithms that a search considers which takes this name."""
    if choice == AUTO_F16:
        return names()
    if choice == AUTO:
        return tuple(name for name in names() if not rounds_weights(name))
    return (choice,)


def rounds_weights(name: str) -> bool:
    """Return whether an algorithm keeps weights in fewer bits than the problem has."""
    return ALGORITHMS[name].rounds_weights


def options() -> tuple[str, ...]:
    """Return the names that a search takes."""
    return (*names(), AUTO, AUTO_F16)


def help_text() -> str:
    """Return the rows as the command line shows them."""
    rows = [f"{name} {ALGORITHMS[name].summary}" for name in names()]
    return (
        f"{'; '.join(rows)}; {AUTO} takes the fastest one that does not round weights, {AUTO_F16} "
        f"of all ({DEFAULT})"
    )
