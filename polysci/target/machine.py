"""Measured parameters of a machine: what the cost model multiplies its counts with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Any

from polysci.errors import SpecError
from polysci.target import microkernels
from polysci.target.target import Target

RATES = ("peak", "l2", "l3", "memory", "l3_all", "memory_all")
COEFFICIENTS = (
    "call_ns", "run_ns", "store_ns", "reload_ns", "prefetch_ns", "page_ns", "seek_ns", "copy_ns",
    "gather_ns", "hidden_panels", "hidden_l2", "hidden_l3", "hidden_memory", "beside_l3",
)  # fmt: skip
# Least and most of each: an event takes a cycle of some fast clock at least, where compute cannot
# hide it, and a share is one. What is fitted lies between.
BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "call_ns": (0.2, 50.0), "run_ns": (0.2, 20.0), "store_ns": (0.1, 10.0),
        "reload_ns": (0.1, 10.0), "prefetch_ns": (0.02, 5.0), "page_ns": (0.2, 50.0),
        "seek_ns": (0.5, 100.0), "copy_ns": (0.4, 50.0), "gather_ns": (0.8, 200.0),
        "hidden_panels": (0.0, 1.0), "hidden_l2": (0.0, 1.0), "hidden_l3": (0.0, 1.0),
        "hidden_memory": (0.0, 1.0), "beside_l3": (0.0, 1.0),
    }
)  # fmt: skip
# Multiplications a second over those of f32, assumed where nothing was measured: of dot products as
# on AMD Zen 4, though Intel's AVX512-BF16 reaches 0.5 for bf16; of f16, which converts every
# broadcast of A, as on an Intel core with AVX512-FP16.
SPEED = MappingProxyType({"f32": 1.0, "f16": 0.6, "bf16": 2.0, "i8": 4.0, "i16": 1.0})


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates and coefficients of one core: fitted by ``calibrate``, or documented defaults.

    Rates: ``peak`` is the FMA peak in GFLOP/s; ``efficiency`` the rate of a microkernel over it
    with operands in L1; ``l2``, ``l3``, ``memory`` the GB/s at which that level feeds one
    core, ``l3_all`` and ``memory_all`` all cores of an L3 and of the machine together.

    Coefficients, which may be 0: ``call_ns`` of entering a register tile, ``run_ns`` of one run of
    its reduction loop, ``store_ns`` of a vector of C, ``reload_ns`` of one that a later call adds
    to, ``prefetch_ns`` of a line that ``ahead(B)`` asks for, ``page_ns`` of a page that the first
    translation buffer lacks, ``seek_ns`` of the first line of a run that comes from beyond L2,
    ``copy_ns`` of a packed line of 64 bytes, ``gather_ns`` of one whose source is not contiguous.
    ``hidden_l2``, ``hidden_l3`` and ``hidden_memory`` are the shares of a transfer that show
    although compute could hide it (of L2, of A), ``hidden_panels`` that of packed B out of L2,
    ``beside_l3`` that of reads of L2 that shows although transfers from beyond it take longer.
    ``jump_ns`` is how long memory delivers nothing where the next panel of B is not the next in
    memory. ``fork_us`` is what starting a parallel region takes.
    ``peak_all`` is the FMA peak of all cores together in GFLOP/s, 0 where it was not measured: the
    model does not use it, timing does; ``cores`` are all that were measured.
    """

    peak: float
    l2: float
    l3: float
    memory: float
    l3_all: float
    memory_all: float
    call_ns: float = 0.2
    run_ns: float = 0.55
    store_ns: float = 0.6
    reload_ns: float = 0.3
    prefetch_ns: float = 0.1
    page_ns: float = 0.7
    seek_ns: float = 3.0
    copy_ns: float = 1.1
    gather_ns: float = 5.0
    hidden_panels: float = 0.09
    hidden_l2: float = 0.09
    hidden_l3: float = 0.02
    hidden_memory: float = 0.2
    beside_l3: float = 0.3
    jump_ns: float = 500.0
    fork_us: float = 3.0
    peak_all: float = 0.0
    measured: bool = False
    cores: int = field(default=1, compare=False)
    efficiency: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def copy(self) -> float:
        """GB/s of packing contiguous runs, in and out."""
        return 2 * 64 / max(self.copy_ns, 1e-3)

    def coefficient(self, name: str) -> float:
        """A coefficient of the cost model, by its name."""
        return float(getattr(self, name))

    def fastest(self, compute: str) -> float:
        """The most that kernels of a compute reach, as a fraction of the f32 peak."""
        measured = [v for name, v in self.efficiency.items() if f"_{compute}_" in name]
        return max(measured, default=SPEED[compute]) if compute != "f32" else 1.0

    def of_kernel(self, name: str, rows: int, vecs: int, compute: str = "f32") -> float:
        """Rate of a microkernel over the f32 peak; estimated where it was not measured.

        The estimate: an FMA unit needs about 8 independent accumulators to hide its latency, and
        two loads a cycle must feed two FMAs a cycle.
        """
        if name in self.efficiency:
            return self.efficiency[name]
        kernel = microkernels.registry().get(name)
        if kernel and (tile := kernel.tile_registers):  # enough sums hide the latency
            tall = -(-rows // tile.rows)  # and few rows waste a register
            busy = min(1.0, tall * vecs / tile.sums)
            return SPEED[compute] * tile.speed * busy * rows / (tile.rows * tall)
        sums = rows * vecs
        busy = min(1.0, sums / 8, sums / max(1.0, 0.55 * (rows + vecs)))
        return SPEED[compute] * float(busy)

    def of_threads(self, threads: int) -> float:
        """FMA peak in GFLOP/s of so many threads; 0 if not measured."""
        measured = {self.cores: self.peak_all, 1: self.peak}
        return measured.get(threads, 0.0) if self.measured else 0.0

    def to_json(self) -> str:
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps({**data, "efficiency": dict(self.efficiency)}, indent=1, sort_keys=True)


def from_json(text: str) -> Machine:
    """The machine of a text that ``to_json`` wrote. Raises SpecError for anything else."""
    try:
        data: dict[str, Any] = json.loads(text)
        efficiency = {str(k): float(v) for k, v in data.pop("efficiency").items()}
        measured, cores = bool(data.pop("measured")), int(data.pop("cores"))
        numbers = {name: float(value) for name, value in data.items()}
        machine = Machine(
            **numbers, measured=measured, cores=cores, efficiency=MappingProxyType(efficiency)
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SpecError(f"machine parameters: {error}") from error
    rates = [*(numbers[name] for name in RATES), *efficiency.values()]
    if not all(isfinite(rate) and rate > 0 for rate in rates):
        raise SpecError("machine parameters: every rate must be positive and finite")
    if not all(isfinite(value) and value >= 0 for value in numbers.values()):
        raise SpecError("machine parameters: every coefficient must be finite and not negative")
    return machine


def assume_rates(target: Target) -> Machine:
    """Return parameters typical of a 3 GHz server core with the target's vectors.

    A bandwidth that the target knows of ``L2``, ``L3`` or ``memory`` takes the place of ours.
    """
    rates = {"L2": 90.0, "L3": 25.0, "memory": 12.0}
    rates |= {memory.name: memory.bandwidth for memory in target.memories if memory.bandwidth}
    return Machine(
        peak=6.0 * 2 * target.isa.lanes_f32, l2=rates["L2"], l3=rates["L3"], memory=rates["memory"],
        l3_all=rates["L3"] * target.sharing(target.last_level.name, target.cores),
        memory_all=rates["memory"] * target.cores**0.5,
        cores=target.cores,
    )  # fmt: skip
