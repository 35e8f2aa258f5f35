"""The roofline: the rate of a schedule is bounded by compute or by the bytes of some level.

After Williams, Waterman and Patterson, Roofline: an insightful visual performance model, CACM
2009; one roof a level as in its hierarchical form.
"""

from __future__ import annotations

from dataclasses import dataclass

from polysci.cost import Context
from polysci.explain.terms import Terms
from polysci.polyhedral.footprint import load_bound_bytes
from polysci.target.machine import Machine
from polysci.target.target import Target

PEAK_NOTE = (
    "GFLOP/s count every tap; shares of the peak and the roofline leave out taps in the padding."
)


@dataclass(frozen=True, slots=True)
class Roof:
    """The rate in GFLOP/s that one resource allows.

    For caches and memory: ``intensity`` is the schedule's flop a byte, ``most`` the largest flop a
    byte that the lower bound on loads allows, ``bandwidth`` the GB/s.
    """

    name: str
    rate: float
    intensity: float | None = None
    most: float | None = None
    bandwidth: float | None = None


def bandwidths(machine: Machine, target: Target, threads: int) -> dict[str, float]:
    """Return the GB/s that L2, L3 and memory deliver to ``threads`` threads together.

    These are the sources of the traffic into L1, L2 and L3, as many as the target has caches.
    Every core has an L2; the bandwidth of L3 and memory is limited for all cores together.
    """
    shared = machine.l3_all / target.sharing(target.last_level.name, threads)
    caches = {"L2": threads * machine.l2, "L3": threads * min(machine.l3, shared)}
    sources = list(caches.items())[: len(target.caches) - 1]
    return dict(sources) | {"memory": min(threads * machine.memory, machine.memory_all)}


def peak_name(compute: str) -> str:
    """The name of the peak rate of a way to multiply."""
    return "FMA peak" if compute == "f32" else f"{compute} peak"


def roofs_of(
    context: Context, flops: int, terms: Terms, sizes: tuple[int, ...]
) -> tuple[Roof, ...]:
    """The peak, the microkernel's own rate, and every level's bandwidth times intensity.

    ``flops`` are those of taps inside the image, which a peak allows so many a second.
    ``sizes`` are one thread's shares of L1, L2 and L3, in bytes.
    """
    machine, threads = context.machine, context.threads
    roofs = [Roof(peak_name(context.compute), context.peak * threads)]
    if compute := dict(terms.shares).get("compute"):
        roofs.append(Roof("microkernel", flops / compute * 1e-9))
    rates = bandwidths(machine, context.target, threads)
    for (name, bandwidth), size, level in zip(rates.items(), sizes, terms.levels, strict=True):
        intensity = flops / level.total
        most = flops / load_bound_bytes(context.contraction, size)
        roofs.append(Roof(name, intensity * bandwidth, intensity, most, bandwidth))
    return tuple(roofs)
