"""A ranker's input (Context) and the traffic model's output (Estimate)."""

from __future__ import annotations

from dataclasses import dataclass

from polysci.cost.weights import Weights
from polysci.polyhedral.contraction import Contraction, Strides
from polysci.polyhedral.footprint import Count, LevelTraffic
from polysci.target.machine import Machine
from polysci.target.microkernels import ways
from polysci.target.target import Target


@dataclass(frozen=True, slots=True)
class Context:
    """A problem on a machine: everything that does not depend on the schedule."""

    contraction: Contraction
    strides: Strides
    target: Target
    machine: Machine
    threads: int = 1
    cold: bool = False  # whether the caches are empty before a call
    weights: Weights | None = None  # of the ranker ``learned``

    @property
    def compute(self) -> str:
        """The way to multiply inputs of these types whose kernels are the fastest here."""
        several = ways("brgemm", self.target.isa.name, self.contraction.multiplied)
        return max((way[0].compute for way in several), key=self.machine.fastest)

    @property
    def peak(self) -> float:
        """GFLOP/s of one core that does nothing but these multiplications."""
        return self.machine.peak * self.machine.fastest(self.compute)

    @property
    def measured_peak(self) -> float | None:
        """GFLOP/s of ``peak`` where it was measured; None where it is assumed."""
        return self.peak if self.machine.measured else None

    @property
    def l2(self) -> float:
        """Bytes of L2 that a thread has."""
        return self.target.share(self.target.second_level.name, self.threads)

    @property
    def rates(self) -> tuple[float, float, float]:
        """GB/s that L2, L3 and memory feed one of the threads; memory's of a cache that lacks."""
        machine, target = self.machine, self.target
        sharing = target.sharing(target.last_level.name, self.threads)
        caches = (machine.l2, min(machine.l3, machine.l3_all / sharing))
        memory = min(machine.memory, machine.memory_all / self.threads)
        l2, l3, *_ = (*caches[: len(target.caches) - 1], memory, memory)
        return l2, l3, memory

    @property
    def fork_seconds(self) -> float:
        """Seconds of starting a parallel region."""
        return self.machine.coefficient("fork_us") * 1e-6

    @property
    def streamed(self) -> float:
        """Bytes of a result that may be stored past the caches."""
        return self.machine.coefficient("streamed_result") * self.target.last_level.size

    def usable(self, size: float) -> float:
        """Return the bytes that the counted data fill of a cache of so many."""
        return self.machine.coefficient("usable_cache") * size


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted seconds of every schedule of a family, and the parts they add up from.

    ``levels`` is the traffic into L1, L2 and L3 in bytes, by operand.
    """

    seconds: Count
    compute: Count
    calls: Count
    packing: Count
    transfer: Count
    imbalance: Count
    levels: tuple[LevelTraffic, LevelTraffic, LevelTraffic]
