"""Rankers: each orders the schedules of a problem by a cost of its own; one row a ranker.

An installed package adds a row by an entry point of the group ``polysci.rankers``, whose name is
the ranker's and which names a ``Ranker``. In the package's pyproject.toml ::

    [project.entry-points."polysci.rankers"]
    bytes = "my_rankers:BYTES"

and in ``my_rankers.py``, for a cost that is one number for each schedule of a family ::

    from polysci.cost import Context, Family, Ranker, traffic

    def packed_bytes(context: Context, family: Family) -> NDArray[np.float64]: ...

    BYTES = Ranker("bytes of packed copies", packed_bytes)

``experiments/rankers`` is such a package. Then ``polysci rank --list`` shows it, ``--ranker
bytes`` takes it, and every comparison of rankers has a line of it. A row whose package is broken,
or whose name is taken, is left out with a logged warning; errors while it ranks name the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from polysci.cost.estimate import Context, Estimate
from polysci.cost.learned import tournament
from polysci.cost.published import polydl, polyscientist
from polysci.cost.rankers import Ranker, add_rankers
from polysci.cost.traffic import traffic
from polysci.space.enumerate import Family
from polysci.target.extensions import ExtensionTable

_OWN: Mapping[str, Ranker] = MappingProxyType(
    {
        "traffic": Ranker(
            "seconds by register-tile rates, traffic over the caches, packing and balance",
            lambda context, family: traffic(context, family).seconds,
        ),
        "polyscientist": Ranker(
            "working sets as published, pessimistically placed, times latency", polyscientist
        ),
        "polydl": Ranker(
            "working sets as published, pessimistically placed, times latency over bandwidth",
            polydl,
        ),
        "learned": Ranker("a tournament that 'polysci learn' trains on measured pairs", tournament),
    }
)
RANKERS: Mapping[str, Ranker] = ExtensionTable(_OWN, add_rankers)

__all__ = ["RANKERS", "Context", "Estimate", "Family", "Ranker", "traffic"]
