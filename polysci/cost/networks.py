"""Costs of a network's stages beside its layers: loops, barriers, transfers between stages."""

from __future__ import annotations

from dataclasses import dataclass

from polysci.target.machine import Machine
from polysci.target.target import Target


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that find their weights in L2 if all fit there: operations and bytes of each."""

    flops: tuple[float, ...]
    weights: tuple[int, ...]
    times: int = 1


@dataclass(frozen=True, slots=True)
class StageWork:
    """The features of a stage: layers, functions of elements in vectors, elements that are not."""

    layers: tuple[LayerGroup, ...] = ()
    functions: int = 0
    scalars: int = 0


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Costs of stages and their threads on a machine, in microseconds unless a name says else."""

    machine: Machine
    target: Target

    def serial(self, work: StageWork) -> float:
        """Return the time of one thread."""
        ns = work.functions * self._coefficient("function_ns")
        ns += work.scalars * self._coefficient("scalar_ns")
        return sum(map(self._layers, work.layers)) + ns * 1e-3

    def _layers(self, group: LayerGroup) -> float:
        """Return the time of layers: of their products, or of their weights' way if longer."""
        machine = self.machine
        rate = machine.l2 if sum(group.weights) <= self.target.second_level.size else machine.l3
        parts = zip(group.flops, group.weights, strict=True)
        ns = sum(max(flops / machine.peak, weights / rate) for flops, weights in parts)
        return group.times * ns * 1e-3

    def shared(self, work: StageWork, threads: int, barriers: int) -> float:
        """Return the time that threads take together, with their waiting at barriers."""
        return self.serial(work) / threads + barriers * self._coefficient("barrier_us")

    def wake(self, idle: float) -> float:
        """Return how long waking threads takes that were idle for so long: they sleep at last."""
        return self._coefficient("wake_us") if idle > self._coefficient("spin_us") else 0.0

    def team_pays(self, saved: float) -> bool:
        """Return whether a team of threads saves enough of a run."""
        return saved >= self._coefficient("team_us")

    def shares_evenly(self, count: int, threads: int) -> bool:
        """Return whether threads that take whole products of a stack are nearly all busy."""
        turns = -(-count // threads)
        busy = self._coefficient("balanced_stack") * threads * turns
        return threads > 1 and count >= busy > 0

    def fused_update_s(
        self, steps: int, seconds: float, gradient: int, alone: int, together: int
    ) -> float:
        """Return seconds of products that steps add to a gradient, each so long by itself.

        Every step reads and writes the ``gradient``, which comes from where ``together``, all
        weights and gradients of a step, have room, not from where its operands ``alone`` have;
        sizes are in bytes.
        """
        further = max(0.0, self._seconds_a_byte(together) - self._seconds_a_byte(alone))
        return steps * (seconds + 2 * gradient * further)

    def _seconds_a_byte(self, size: int) -> float:
        """Return seconds that a byte takes into L2 from where so many bytes have room."""
        near = size <= self.target.second_level.size
        return 0.0 if near else 1e-9 / rate_of(self.machine, self.target, size)

    def _coefficient(self, name: str) -> float:
        return self.machine.coefficient(name)


@dataclass(frozen=True, slots=True)
class RunCost:
    """Bytes of the arena of a network, and the time of a run in one thread, in microseconds."""

    memory: int
    time: float

    def score(self, aim: str) -> tuple[float, float]:
        """Return what is to be least where memory can be had for time.

        For the aim ``memory`` it is the memory; for ``speed`` the product of both, so that memory
        has to shrink by a larger factor than time grows.
        """
        return (self.memory if aim == "memory" else self.memory * self.time), self.time


def rate_of(machine: Machine, target: Target, size: float, threads: int = 1) -> float:
    """Return the GB/s at which threads together read what L2 does not hold: so many bytes."""
    if size > target.last_level.size:
        return min(machine.memory * threads, machine.memory_all)
    sharing = target.sharing(target.last_level.name, threads)
    return threads * min(machine.l3, machine.l3_all / sharing)
