"""Costs of a network's stages beside its layers: element loops, barriers, second reads, gathers."""

from __future__ import annotations

from dataclasses import dataclass

from polysci.numerics.arrays import LINE
from polysci.target.machine import Machine
from polysci.target.target import Target


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Costs of stages and their threads on a machine, in microseconds unless a name says else."""

    machine: Machine

    def products(self, flops: float, weights: int, l2: bool) -> float:
        """Return a layer's time: its products, or its weights' way from L2 or from L3."""
        rate = self.machine.l2 if l2 else self.machine.l3
        return max(flops / self.machine.peak, weights / rate) * 1e-3

    def loop(self, elements: int, functions: int) -> float:
        """Return the time of a loop over elements with so many functions of each, in vectors."""
        return elements * functions * self._coefficient("function_ns") * 1e-3

    def scalar_loop(self, elements: int) -> float:
        """Return the time of a stage that does not run in vectors."""
        return elements * self._coefficient("scalar_ns") * 1e-3

    def shared(self, serial: float, threads: int, barriers: int) -> float:
        """Return the time that threads take together, with their waiting at barriers."""
        return serial / threads + barriers * self._coefficient("barrier_us")

    def wake(self, idle: float) -> float:
        """Return how long waking threads takes that were idle for so long: they sleep at last."""
        return self._coefficient("wake_us") if idle > self._coefficient("spin_us") else 0.0

    def team_pays(self, saved: float) -> bool:
        """Return whether a team of threads saves enough of a run."""
        return saved >= self._coefficient("team_us")

    def shares_evenly(self, count: int, threads: int) -> bool:
        """Return whether threads that take whole products of a stack are nearly all busy."""
        turns = -(-count // threads)
        return count >= self._coefficient("balanced_stack") * threads * turns > 0

    def gather_ns(self, size: int) -> float:
        """Return the nanoseconds of copying so many bytes into another layout."""
        return size / LINE * self._coefficient("gather_ns")

    def second_read_s(self, size: int) -> float:
        """Return seconds of writing a tensor that leaves L2 and reading it again."""
        return 2 * size / (self.machine.l3 * 1e9)

    def _coefficient(self, name: str) -> float:
        return self.machine.coefficient(name)


def seconds_a_byte(machine: Machine, target: Target, size: int) -> float:
    """Return seconds that a byte takes into L2 from where so many bytes have room."""
    if size <= target.second_level.size:
        return 0.0
    return 1e-9 / (machine.l3 if size <= target.last_level.size else machine.memory)
