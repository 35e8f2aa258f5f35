"""Measured parameters of a machine: what the cost model multiplies its counts with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Any

from polysci.errors import SpecError
from polysci.target import Target


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates and latencies of one core; measured by ``calibrate``, or documented defaults.

    ``peak`` is the FMA peak in GFLOP/s; ``efficiency`` the fraction of it that a microkernel
    reaches with operands in L1; ``l2``, ``l3``, ``memory`` the GB/s at which that level feeds a
    core; ``copy`` the GB/s of packing; ``call_ns`` the cost of entering a register tile, ``run_ns``
    of one run of its reduction loop; ``fork_us`` of starting a parallel region.
    """

    peak: float
    l2: float
    l3: float
    memory: float
    copy: float
    call_ns: float = 7.0
    run_ns: float = 2.5
    fork_us: float = 3.0
    measured: bool = False
    efficiency: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def of_kernel(self, name: str, rows: int, vecs: int) -> float:
        """Fraction of the peak of a microkernel; estimated where it was not measured.

        The estimate: an FMA unit needs about 8 independent accumulators to hide its latency, and
        two loads a cycle must feed two FMAs a cycle.
        """
        if name in self.efficiency:
            return self.efficiency[name]
        tile = rows * vecs
        return float(min(1.0, tile / 8, tile / max(1.0, 0.55 * (rows + vecs))))

    def to_json(self) -> str:
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps({**data, "efficiency": dict(self.efficiency)}, indent=1, sort_keys=True)


def from_json(text: str) -> Machine:
    """The machine of a text that ``to_json`` wrote. Raises SpecError for anything else."""
    try:
        data: dict[str, Any] = json.loads(text)
        efficiency = {str(k): float(v) for k, v in data.pop("efficiency").items()}
        measured = bool(data.pop("measured"))
        numbers = {name: float(value) for name, value in data.items()}
        machine = Machine(**numbers, measured=measured, efficiency=MappingProxyType(efficiency))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SpecError(f"machine parameters: {error}") from error
    rates = (*numbers.values(), *efficiency.values())
    if not all(isfinite(rate) and rate > 0 for rate in rates):
        raise SpecError("machine parameters: every rate must be positive and finite")
    return machine


def assumed(target: Target) -> Machine:
    """Parameters typical of a 3 GHz server core with the target's vectors."""
    return Machine(peak=6.0 * 2 * target.isa.lanes_f32, l2=90.0, l3=25.0, memory=12.0, copy=15.0)
