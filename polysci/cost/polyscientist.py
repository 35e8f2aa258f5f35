"""PolyScientist's cost: bytes of working sets, each times the latency of the level it lies in."""

from __future__ import annotations

from polysci.cost.cache_placement import caches_of, weigh
from polysci.cost.estimate import Context
from polysci.cost.working_sets import working_set_bytes
from polysci.polyhedral.footprint import Count
from polysci.space.enumerate import Family

# Cycles to L1, L2, L3 and memory of the published machine (Tavarageri et al., PolyScientist,
# arXiv 2002.02145, and the programs published with it).
LATENCIES = (4.0, 14.0, 60.0, 84.0)


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
