"""Rankers from installed packages: checked rows of the table, and errors that name the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from polysci.cost.estimate import Context
from polysci.cost.ranker import Ranker
from polysci.errors import PolysciError, SpecError
from polysci.polyhedral.footprint import Count
from polysci.space.enumerate import Family
from polysci.target.extensions import Extension, add_each

GROUP = "polysci.rankers"
Answer = TypeVar("Answer")


def add_rankers(own: Mapping[str, Ranker]) -> Mapping[str, Ranker]:
    """Our rankers and, behind them, those of installed packages.

    A ranker that does not fit, or has the name of another one, is left out with a logged warning.
    """
    rankers = dict(own)

    def add(extension: Extension) -> None:
        if extension.name in rankers:
            raise SpecError(f"another ranker is called {extension.name!r}")
        if not isinstance(extension.value, Ranker):
            raise SpecError(f"expected a Ranker, got {extension.value!r:.80}")
        rankers[extension.name] = _check_answers(extension, extension.value)

    add_each(GROUP, add)
    return rankers


def _check_answers(extension: Extension, ranker: Ranker) -> Ranker:
    """The ranker, whose faults are SpecErrors that name its package."""

    def cost(context: Context, family: Family) -> Count:
        numbers = _call(extension, lambda: np.asarray(ranker.cost(context, family), float))
        if numbers.shape != (len(family),) or np.isnan(numbers).any():
            raise SpecError(
                f"{extension}: cost: expected a number for each of {len(family)} schedules, got "
                f"an array of shape {numbers.shape} with {np.isnan(numbers).sum()} NaNs"
            )
        return numbers

    def families(context: Context, tiles: int, blocks: int) -> Iterator[Family]:
        yield from _call(extension, lambda: list(ranker.families(context, tiles, blocks)))

    return Ranker(ranker.summary, cost, families)


def _call(extension: Extension, ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except PolysciError:
        raise
    except Exception as error:  # whatever a module of others raises
        raise SpecError(f"{extension}: {type(error).__name__}: {error}") from error
