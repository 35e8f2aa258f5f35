"""A network on a machine as its page shows it: every stage beside what the machine allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polysci.explain.roofline import peak_name
from polysci.network.account import NetworkAccount, StageAccount
from polysci.target.machine import Machine


@dataclass(frozen=True, slots=True)
class NetworkPage:
    """``bandwidths`` of L2, L3 and memory, by name, are in GB/s, of all threads."""

    account: NetworkAccount
    machine: Machine
    bandwidths: Mapping[str, float]
    date: str
    version: str

    @property
    def title(self) -> str:
        return self.account.network.name

    @property
    def by_time(self) -> list[StageAccount]:
        """The slowest stage first."""
        return sorted(self.account.stages, key=lambda stage: (-stage.seconds, stage.position))

    @property
    def peaks(self) -> dict[str, float]:
        """GFLOP/s of all threads by name, for each way to multiply that layers have."""
        layers = [stage for stage in self.account.stages if stage.schedule]
        return {peak_name(stage.compute): stage.peak for stage in layers or self.account.stages}

    @property
    def at_peak(self) -> float:
        """Seconds of all operations at their peaks, taps in the padding left out."""
        return sum((stage.multiplied or 0) / stage.peak * 1e-9 for stage in self.account.stages)

    @property
    def flops(self) -> int:
        return sum(stage.flops or 0 for stage in self.account.stages)

    def share(self, stage: StageAccount) -> float:
        """Return the share of a run that a stage takes."""
        return stage.seconds / self.account.report.latency

    def rate(self, stage: StageAccount) -> float | None:
        """GFLOP/s."""
        return stage.flops / stage.seconds * 1e-9 if stage.flops and stage.seconds > 0 else None

    def needed_rate(self, stage: StageAccount) -> float:
        """GFLOP/s, taps in the padding left out; 0 where nobody counts them."""
        return (stage.multiplied or 0) / stage.seconds * 1e-9 if stage.seconds > 0 else 0.0

    def bandwidth(self, stage: StageAccount) -> float | None:
        """GB/s of what it touches."""
        return stage.bytes / stage.seconds * 1e-9 if stage.seconds > 0 else None

    def least(self, stage: StageAccount) -> float:
        """Seconds at the peak, or at the memory's bandwidth where that takes longer."""
        part = stage.threads / max(1, self.account.network.threads)
        compute = (stage.multiplied or 0) / (stage.peak * part * 1e9)
        return max(compute, stage.bytes / (self.bandwidths["memory"] * 1e9))

    def binds(self, stage: StageAccount) -> str:
        """Name what bounds it: ``compute`` or ``memory``."""
        slow = stage.bytes / self.bandwidths["memory"] > (stage.multiplied or 0) / stage.peak
        return "memory" if slow else "compute"

    def loss(self, stage: StageAccount) -> float:
        """Seconds that it takes more than ``least``."""
        return max(0.0, stage.seconds - self.least(stage))
