"""PolyDL's cost: bytes of working sets, times latency over bandwidth of the level they lie in."""

from __future__ import annotations

from polysci.cost.cache_placement import caches_of, weigh
from polysci.cost.estimate import Context
from polysci.cost.polyscientist import LATENCIES
from polysci.cost.working_sets import working_set_bytes
from polysci.polyhedral.footprint import Count
from polysci.space.enumerate import Family

# Bytes a cycle from L1, L2, L3 and memory of the published machine (Tavarageri et al., PolyDL,
# arXiv 2006.02230, and the programs published with it).
BANDWIDTHS = (192.0, 96.0, 16.0, 55.0)
WEIGHTS = tuple(cycles / rate for cycles, rate in zip(LATENCIES, BANDWIDTHS, strict=True))


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
