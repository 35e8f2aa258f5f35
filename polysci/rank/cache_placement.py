"""Which working set lies in which cache, as the published rankers place them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from polysci.errors import SpecError
from polysci.polyhedral.footprint import FLOAT, Count
from polysci.rank.working_sets import Sizes
from polysci.target.host import Target

Caches = tuple[float, float, float]  # bytes of L1 and L2 of one core, and of the shared L3


def caches_of(target: Target, threads: int = 1) -> Caches:
    """What one thread has of L1 and L2, and all threads of the last level, in bytes."""
    own = [getattr(target, level) / target.sharing(level, threads) for level in ("l1", "l2")]
    return own[0], own[1], float(target.l3 * -(-threads // target.sharing("l3", threads)))


def optimistic(sizes: Sizes, caches: Caches) -> Count:
    """Bytes in L1, L2, L3 and memory, (schedules, 4): each set alone, in the first that holds it.

    The smallest and the largest working set of a dependence are two sets. In L1 and L2 it is one
    thread's that must fit, in L3 and memory all threads' together.
    """
    own = FLOAT * np.concatenate([sizes.least, sizes.most], axis=1)
    shared = FLOAT * np.concatenate([sizes.least_shared, sizes.most_shared], axis=1)
    left, levels = own > 0, list[Count]()
    for size, cache in zip((own, own, shared), caches, strict=True):
        here = left & (size <= cache)
        levels.append(np.where(here, size, 0.0).sum(axis=1))
        left &= ~here
    levels.append(np.where(left, shared, 0.0).sum(axis=1))
    return np.stack(levels, axis=1)


def pessimistic(sizes: Sizes, caches: Caches) -> Count:
    """Bytes in L1, L2, L3 and memory, (schedules, 4): what is in a cache takes its room.

    Dependences come by size, the smallest working sets first. A level takes the largest set if it
    fits beside what lies there; else the smallest, once, and the largest goes on to the next
    level. What no cache takes counts in memory. L3 and memory hold all threads' sets.
    """
    rows = np.arange(len(sizes.least))[:, None]
    order = np.lexsort((sizes.most, sizes.least), axis=1)
    parts = (sizes.least, sizes.most, sizes.least_shared, sizes.most_shared)
    least, most, least_shared, most_shared = (FLOAT * part[rows, order] for part in parts)
    used = np.zeros((len(sizes.least), 4))
    for at in range(least.shape[1]):
        largest = most[:, at] > 0
        smallest = largest.copy()
        columns = (*[(least[:, at], most[:, at])] * 2, (least_shared[:, at], most_shared[:, at]))
        for level, ((low, high), cache) in enumerate(zip(columns, caches, strict=True)):
            whole = largest & (used[:, level] + high <= cache)
            used[:, level] += np.where(whole, high, 0.0)
            largest, smallest = largest & ~whole, smallest & ~whole
            part = smallest & (used[:, level] + low <= cache)
            used[:, level] += np.where(part, low, 0.0)
            smallest &= ~part
        used[:, 3] += np.where(largest, most_shared[:, at], 0.0)
    return used


PLACEMENTS: Mapping[str, Callable[[Sizes, Caches], Count]] = MappingProxyType(
    {"pessimistic": pessimistic, "optimistic": optimistic}
)


def weigh(
    sizes: Sizes, caches: Caches, weights: Sequence[float], placement: str = "pessimistic"
) -> Count:
    """The sum over levels of bytes times ``weights``, of L1, L2, L3 and memory, a schedule each.

    Raises SpecError for a placement that does not exist.
    """
    if placement not in PLACEMENTS:
        raise SpecError(f"placement {placement!r}: expected one of {', '.join(PLACEMENTS)}")
    cost: Count = PLACEMENTS[placement](sizes, caches) @ np.array(weights)
    return cost
