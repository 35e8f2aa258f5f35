"""The published rankers: bytes of working sets, placed in caches, times a level's price."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from polysci.cost.estimate import Context
from polysci.cost.working_sets import Sizes, working_set_bytes
from polysci.errors import SpecError
from polysci.polyhedral.footprint import FLOAT, Count
from polysci.space.enumerate import Family
from polysci.target.target import Target
from polysci.text.suggestions import suggest

# Cycles to L1, L2, L3 and memory of the published machine (Tavarageri et al., PolyScientist,
# arXiv 2002.02145, and the programs published with it).
LATENCIES = (4.0, 14.0, 60.0, 84.0)
# Bytes a cycle from L1, L2, L3 and memory of the published machine (Tavarageri et al., PolyDL,
# arXiv 2006.02230, and the programs published with it).
BANDWIDTHS = (192.0, 96.0, 16.0, 55.0)
WEIGHTS = tuple(cycles / rate for cycles, rate in zip(LATENCIES, BANDWIDTHS, strict=True))
Caches = tuple[float, float, float]  # bytes of L1 and L2 of one core, and of the shared L3


def caches_of(target: Target, threads: int = 1) -> Caches:
    """Bytes of L1 and L2 for one thread, and of the last level for all threads."""
    own = [target.share(level, threads) for level in ("L1", "L2")]
    return (
        own[0],
        own[1],
        float(target.last_level.size * -(-threads // target.sharing("L3", threads))),
    )


def optimistic(sizes: Sizes, caches: Caches) -> Count:
    """Bytes in L1, L2, L3 and memory, (schedules, 4): each set alone, in the first that holds it.

    The smallest and the largest working set of a dependence are two sets. L1 and L2 must hold one
    thread's set, L3 and memory the sets of all threads together.
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
    """Bytes in L1, L2, L3 and memory, (schedules, 4): sets in a cache leave less room for others.

    Dependences are sorted by size, smallest working sets first. A level takes the largest set if
    it fits in the remaining room; else it takes the smallest, once, and the largest goes to the
    next level. Sets that fit in no cache count in memory. L3 and memory hold all threads' sets.
    """
    rows = np.arange(len(sizes.least))[:, None]
    order = np.lexsort((sizes.most, sizes.least), axis=1)
    parts = (sizes.least, sizes.most, sizes.least_shared, sizes.most_shared)
    smallest_sets, largest_sets, smallest_shared, largest_shared = (
        FLOAT * part[rows, order] for part in parts
    )
    used = np.zeros((len(sizes.least), 4))
    for at in range(smallest_sets.shape[1]):
        largest = largest_sets[:, at] > 0
        smallest = largest.copy()
        columns = (
            *[(smallest_sets[:, at], largest_sets[:, at])] * 2,
            (smallest_shared[:, at], largest_shared[:, at]),
        )
        for level, ((low, high), cache) in enumerate(zip(columns, caches, strict=True)):
            fits = largest & (used[:, level] + high <= cache)
            used[:, level] += np.where(fits, high, 0.0)
            largest, smallest = largest & ~fits, smallest & ~fits
            part = smallest & (used[:, level] + low <= cache)
            used[:, level] += np.where(part, low, 0.0)
            smallest &= ~part
        used[:, 3] += np.where(largest, largest_shared[:, at], 0.0)
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
        raise SpecError(
            f"placement {placement!r}: expected one of {', '.join(PLACEMENTS)}"
            f"{suggest(placement, PLACEMENTS)}"
        )
    cost: Count = PLACEMENTS[placement](sizes, caches) @ np.array(weights)
    return cost


def polyscientist(
    context: Context,
    family: Family,
    *,
    placement: str = "pessimistic",
    convention: str = "published",
) -> Count:
    """Byte-cycles of every schedule, with the cache sizes of the context's target."""
    sizes = working_set_bytes(context.contraction, family, context.threads, convention)
    return weigh(sizes, caches_of(context.target, context.threads), LATENCIES, placement)


def polydl(
    context: Context,
    family: Family,
    *,
    placement: str = "pessimistic",
    convention: str = "published",
) -> Count:
    """Cost of every schedule, with the cache sizes of the context's target."""
    sizes = working_set_bytes(context.contraction, family, context.threads, convention)
    return weigh(sizes, caches_of(context.target, context.threads), WEIGHTS, placement)
