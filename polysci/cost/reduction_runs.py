"""The runs of a call's reduction: how many there are, and steps that only fill them."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import numpy as np

from polysci.cost.traffic_counts import TrafficCounts
from polysci.polyhedral.affine import Affine
from polysci.polyhedral.contraction import Contraction, Dim
from polysci.polyhedral.footprint import Count
from polysci.space.padding import skips


def idle_steps(nest: TrafficCounts, *, packed: bool) -> float:
    """Reduction steps executed over those needed: runs are rounded up to the VNNI factor.

    A run is that of k, in a copy without gaps that of k and the last tap.
    """
    vnni, kernel = nest.compute.vnni_factor, nest.family.tiles[0].kernel
    contraction = nest.contraction
    if kernel.stacked:
        stacked = contraction.by_role("br")[0].extent
        return -(-stacked // vnni) * vnni / stacked
    if vnni == 1 or kernel.family != "brgemm":
        return 1.0
    steps = prod(d.extent for d in contraction.by_role("k"))
    joins = packed and nest.family.pad == 0 and not skips(contraction, packed=True)
    if joins and steps % vnni:
        steps *= _touching_taps(contraction)
    return -(-steps // vnni) * vnni / steps


def _touching_taps(contraction: Contraction) -> int:
    """Values of the last tap, if they are neighbours in a copy of A; else 1."""
    taps = [d for d in contraction.by_role("br") if contraction.a.uses(d.name)]
    if not taps:
        return 1
    axis = next(affine for affine in contraction.a.index if affine.coef(taps[-1].name))
    extents = {d.name: d.extent for d in contraction.dims}
    apart = gcd(*(coef for name, coef in axis.terms if extents[name] > 1))
    return taps[-1].extent if axis.coef(taps[-1].name) == apart else 1


def runs_of_call(nest: TrafficCounts) -> Count:
    """Runs of one call: neighbouring taps are one run where A is contiguous across them.

    All taps of swapped factors and of a stencil are one.
    """
    contraction = nest.contraction
    taps = [d for d in contraction.by_role("br") if contraction.x.uses(d.name)]
    depths = contraction.by_role("k")
    if not taps or contraction.swapped or nest.family.tiles[0].kernel.stencil:
        return np.ones(1)
    offset = contraction.x.offset(nest.context.strides[contraction.x.array])
    if not depths and not contraction.padded:
        return np.full(1, float(_split_runs(taps, offset)))
    channels = prod(d.extent for d in depths)
    joined = channels == 1 or any(
        offset.coef(taps[-1].name) == channels * offset.coef(d.name) for d in depths
    )
    inner = taps[-1].extent
    direct, packed = 1 if joined else inner, 1 if nest.family.pad == 0 else inner
    around = prod(d.extent for d in taps[:-1])
    return around * np.where(nest.packed, packed, direct).astype(np.float64)


def _split_runs(taps: Sequence[Dim], offset: Affine) -> int:
    """Runs of reductions without a depth: those whose steps go on evenly are one."""
    *outer, last = taps
    step = offset.coef(last.name) * last.extent
    while outer and offset.coef(outer[-1].name) == step:
        step *= outer.pop().extent
    return prod(d.extent for d in outer)
