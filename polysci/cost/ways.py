"""Which ways to multiply are worth ranking: by rates, bytes and packing, before any schedule."""

from __future__ import annotations

from math import prod

from polysci.cost.estimate import Context
from polysci.numerics.dtypes import COMPUTES
from polysci.polyhedral.footprint import LINE
from polysci.space.enumerate import ways_of
from polysci.space.knobs import reads_copy
from polysci.target.microkernels import Microkernel

SLOWER = 1.3  # of the best way's bound: schedules differ by less from their bounds

Way = tuple[Microkernel, ...]


def competitive_ways(context: Context) -> tuple[Way, ...]:
    """The kernels of every way whose bound is within ``SLOWER`` of the least, that one first."""
    ways = ways_of(context.contraction, context.target.isa.name)
    if len(ways) < 2:
        return ways
    bounds = [_bound_seconds(context, way[0]) for way in ways]
    order = sorted(range(len(ways)), key=lambda index: bounds[index])
    return tuple(ways[index] for index in order if bounds[index] <= SLOWER * min(bounds))


def _bound_seconds(context: Context, kernel: Microkernel) -> float:
    """Seconds of one core: multiplications or the operands once, then copying A where needed."""
    contraction, machine = context.contraction, context.machine
    compute = COMPUTES[kernel.compute]
    operations = 2.0 * prod(d.extent for d in contraction.dims)
    rate = machine.peak * machine.fastest(kernel.compute)
    a, out = contraction.a, contraction.out
    panels = float(prod(contraction.b.shape)) * compute.bytes
    moved = panels + float(prod(a.shape)) * a.bytes + float(prod(out.shape)) * out.bytes
    offset = a.offset(context.strides[a.array])
    copied = float(prod(a.shape)) * compute.bytes if reads_copy(contraction, offset, kernel) else 0
    copied += panels if contraction.packs_b else 0
    return (
        max(operations / rate, moved / _bandwidth(context, moved)) * 1e-9
        + copied / LINE * machine.copy_ns * 1e-9
    )


def _bandwidth(context: Context, size: float) -> float:
    """GB/s at which the level that holds ``size`` bytes feeds one core."""
    target, machine = context.target, context.machine
    if context.cold or size > target.last_level.size:
        return machine.memory
    return machine.l3 if size > target.memory("L2").size else machine.l2
