"""Measured parameters of a machine: what the cost model multiplies its counts with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType
from typing import Any

from polysci.errors import SpecError
from polysci.numerics.dtypes import COMPUTES
from polysci.target import microkernels
from polysci.target.coefficients import ASSUMED, PRIORS
from polysci.target.target import Memory, Target

RATES = ("peak", "l2", "l3", "memory", "l3_all", "memory_all")
_MAPPINGS = ("efficiency", "bandwidths", "coefficients", "errors")
WRITES, COPIES = "writes", "copies"  # of the memory of a device, among its bandwidths


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates and coefficients of one core: measured by ``calibrate``, or documented priors.

    Rates: ``peak`` is the FMA peak in GFLOP/s; ``efficiency`` the rate of a microkernel over it
    with operands in L1; ``l2``, ``l3``, ``memory`` the GB/s at which that level feeds one
    core, ``l3_all`` and ``memory_all`` all cores of an L3 and of the machine together.
    ``coefficients`` are those of the model, by the names of ``polysci.target.coefficients``;
    ``errors`` the standard errors of what was found on the machine ``cpu``: the other coefficients
    are priors.
    ``bandwidths`` are GB/s that were measured on a device with groups: those at which a compute
    unit reads memories, by their names, and those of WRITES to its memory and of COPIES in it.
    ``peak_all`` is the FMA peak of all cores together in GFLOP/s, 0 where it was not measured: the
    model does not use it, timing does; ``cores`` are all that were measured.
    """

    peak: float
    l2: float
    l3: float
    memory: float
    l3_all: float
    memory_all: float
    peak_all: float = 0.0
    measured: bool = False
    cores: int = field(default=1, compare=False)
    efficiency: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    bandwidths: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    coefficients: Mapping[str, float] = field(default_factory=lambda: PRIORS)
    errors: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    cpu: str = ""

    @property
    def copy(self) -> float:
        """GB/s of packing contiguous runs, in and out."""
        return 2 * 64 / max(self.coefficient("copy_ns"), 1e-3)

    def coefficient(self, name: str) -> float:
        """Return a coefficient of the cost model, by its name."""
        return self.coefficients[name]

    def bandwidth(self, memory: Memory) -> float:
        """Return the GB/s at which a core reads a memory: measured, else described; 0: unknown."""
        return self.bandwidths.get(memory.name, memory.bandwidth)

    def with_coefficients(
        self, values: Mapping[str, float], errors: Mapping[str, float] | None = None
    ) -> Machine:
        """Return the machine with other coefficients, and the errors of those found on it."""
        return replace(
            self,
            coefficients=MappingProxyType({**self.coefficients, **values}),
            errors=MappingProxyType({**self.errors, **(errors or {})}),
        )

    def speed(self, compute: str) -> float:
        """Return the multiplications a second over those of f32 where nothing was measured."""
        return 1.0 if compute == "f32" else self.coefficient(f"speed_{compute}")

    def fastest(self, compute: str) -> float:
        """Return the most that kernels of a compute reach, as a fraction of the f32 peak."""
        measured = [v for name, v in self.efficiency.items() if f"_{compute}_" in name]
        return max(measured, default=self.speed(compute)) if compute != "f32" else 1.0

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
            return (
                self.speed(compute)
                * self.coefficient("speed_tiles")
                * busy
                * rows
                / (tile.rows * tall)
            )
        if kernel and (side := kernel.outer_products):  # few rows waste a register
            of_tiles = self.speed(compute) * self.coefficient("speed_tiles")
            return of_tiles * rows / side * kernel.cols / (-(-kernel.cols // side) * side)
        values = max(1, COMPUTES[compute].bytes_of_x)  # of each number of a row
        sums = rows * vecs * values
        loads = self.coefficient("load_slot") * (rows * values + vecs)
        busy = min(1.0, sums / self.coefficient("in_flight"), sums / max(1.0, loads))
        return self.speed(compute) * float(busy)

    def of_threads(self, threads: int) -> float:
        """FMA peak in GFLOP/s of so many threads; 0 if not measured."""
        measured = {self.cores: self.peak_all, 1: self.peak}
        return measured.get(threads, 0.0) if self.measured else 0.0

    def to_json(self) -> str:
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        mappings = {name: dict(data[name]) for name in _MAPPINGS}
        return json.dumps(data | mappings, indent=1, sort_keys=True)


def from_json(text: str) -> Machine:
    """Return the machine of a text that ``to_json`` wrote. Raises SpecError for anything else.

    Coefficients that an earlier version did not have are priors.
    """
    try:
        data: dict[str, Any] = json.loads(text)
        mappings = {
            name: {str(k): float(v) for k, v in data.pop(name).items()} for name in _MAPPINGS
            if name in data or name != "bandwidths"  # which an earlier version did not have
        }  # fmt: skip
        measured, cores = bool(data.pop("measured")), int(data.pop("cores"))
        cpu = str(data.pop("cpu"))
        numbers = {name: float(value) for name, value in data.items()}
        tables = {name: MappingProxyType(values) for name, values in mappings.items()}
        coefficients = tables["coefficients"]
        tables["coefficients"] = MappingProxyType({**PRIORS, **coefficients})
        fields: dict[str, Any] = {**numbers, **tables}
        machine = Machine(**fields, measured=measured, cores=cores, cpu=cpu)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SpecError(f"machine parameters: {error}") from error
    if not {*coefficients} <= {*PRIORS} or not {*machine.errors} <= {*names_of(machine)}:
        raise SpecError("machine parameters: expected the coefficients of this polysci")
    rates = [
        *(numbers[name] for name in RATES),
        *machine.efficiency.values(), *machine.bandwidths.values(),
    ]  # fmt: skip
    if not all(isfinite(rate) and rate > 0 for rate in rates):
        raise SpecError("machine parameters: every rate must be positive and finite")
    values = (*numbers.values(), *machine.coefficients.values(), *machine.errors.values())
    if not all(isfinite(value) and value >= 0 for value in values):
        raise SpecError("machine parameters: every coefficient must be finite and not negative")
    return machine


def names_of(machine: Machine) -> tuple[str, ...]:
    """Return the names of all figures of a machine that may have a standard error."""
    return (*PRIORS, *RATES, *machine.bandwidths, *machine.efficiency)


def assume_rates(target: Target) -> Machine:
    """Return parameters typical of a 3 GHz server core with the target's vectors.

    A bandwidth that the target knows of its second or last cache, or of ``memory``, takes the place
    of ours. Memory feeds the levels that a target with fewer than three caches lacks. Compute units
    of a device have the clock at which they read the known memory of their groups, and a share each
    of the device's memory.
    """
    bandwidths = {memory.name: memory.bandwidth for memory in target.memories}
    assumed = {name: row.prior for name, row in ASSUMED.items()}
    memory = bandwidths.get("memory") or assumed["memory"]
    caches = [
        cache.bandwidth or assumed[level]
        for cache, level in zip(target.levels[1:], ("l2", "l3"), strict=True)
    ]
    l2, l3, *_ = (*caches[: len(target.caches) - 1], memory, memory)
    peak, power = assumed["lane_peak"] * target.isa.lanes_f32, assumed["memory_power"]
    if target.local and target.local.bandwidth:
        peak, power = 2 * target.unit.lanes * target.local.bandwidth / target.unit.front, 1.0
    return Machine(
        peak=peak, l2=l2, l3=l3, memory=memory,
        l3_all=l3 * target.sharing(target.last_level.name, target.cores),
        memory_all=memory * target.cores ** power,
        cores=target.cores,
    )  # fmt: skip
