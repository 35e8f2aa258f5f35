"""A cost model of your own, beside the default one: ``python examples/own_ranker.py``.

The cost here is the traffic into L1 alone. A package adds such a ranker to the table of polysci by
an entry point of the group ``polysci.rankers``; then ``--ranker`` knows it. In pyproject.toml:

    [project.entry-points."polysci.rankers"]
    l1_bytes = "own_ranker:OWN"
"""

import numpy as np

import polysci
from polysci.cost import RANKERS, Context, Family, Ranker, traffic
from polysci.cost.batch import costs
from polysci.cost.metrics import tau
from polysci.polyhedral.footprint import Count
from polysci.tune import context_of

LAYER = "mb1ic64ih28oc128kh3ph1"


def l1_bytes(context: Context, family: Family) -> Count:
    """Bytes that move into L1, for every schedule of the family; the least is the best."""
    return np.broadcast_to(traffic(context, family).levels[0].total, len(family))


OWN = Ranker("bytes into L1, whatever they cost", l1_bytes)


def main() -> None:
    """Rank one layer's schedules with both models and compare the orders."""
    context = context_of(polysci.parse_problem(LAYER))
    families = OWN.families(context, 2, 1)  # two register tiles, one cache block
    schedules = [family.schedule(i) for family in families for i in range(len(family))]
    schedules = sorted(set(schedules), key=str)
    own, default = (costs(context, schedules, r.cost) for r in (OWN, RANKERS["traffic"]))

    print(f"{len(schedules)} schedules of {LAYER}")
    for position in np.argsort(own, kind="stable")[:3]:
        print(f"{own[position] / 1e6:8.2f} MB  {1e6 * default[position]:8.1f} us predicted  "
              f"{schedules[position]}")  # fmt: skip
    print(f"Kendall's tau between the two orders: {tau(own, default):.2f}")
    assert -1 <= tau(own, default) < 1


if __name__ == "__main__":
    main()
