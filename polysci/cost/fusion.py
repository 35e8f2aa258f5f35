"""Seconds of stages that run together, some rows at a time, and below which none of their code is.

Apart, each stage writes its result, whose lines come into L2 for that, and others read it, from a
cache that has room for it or from memory. Together, rows wait in the cache of a core, which must
hold the weights of all layers beside them: if it has not that much room, layers take as long as the
way of their weights, or as their products if these take longer. Where threads meet, rows are
computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import inf

from polysci.cost.networks import StageCosts, rate_of
from polysci.target.machine import Machine
from polysci.target.target import Target


@dataclass(frozen=True, slots=True)
class MemberWork:
    """A stage of several that may run together.

    ``alone`` and ``together``: predicted seconds of it by itself, and some rows at a time, with all
    operands from where they have room; ``moved``: those that it takes less where others have just
    made or read them, or read them next. ``least``: seconds of its multiplications at the peak.
    ``repeated``: rows that two threads compute, over all rows. Its ``weights``, in bytes, are read
    once each of ``turns``.
    """

    alone: float
    together: float
    moved: float = 0.0
    least: float = 0.0
    repeated: float = 0.0
    weights: int = 0
    turns: int = 1


@dataclass(frozen=True, slots=True)
class FusedWork:
    """Stages, each behind those whose results it reads; sizes are in bytes.

    ``leaves``: of the result that the last one writes; ``rings``: of the rows that wait for
    stages.
    """

    members: tuple[MemberWork, ...]
    leaves: int
    rings: int

    @property
    def alone(self) -> float:
        """The predicted seconds of all members, one after the other."""
        return sum(member.alone for member in self.members)

    @property
    def least(self) -> float:
        """The seconds of all multiplications at the peak, those of repeated rows too."""
        return sum(member.least * (1 + member.repeated) for member in self.members)


@dataclass(frozen=True)
class FusionCosts:
    """Costs of stages that run together, on so many threads of a machine."""

    machine: Machine
    target: Target
    threads: int
    times: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def room(self) -> float:
        """The bytes of a core's L2 that weights and waiting rows may fill."""
        return self.share * self.target.second_level.size

    @cached_property
    def share(self) -> float:
        """The share of a cache that what waits may fill."""
        return self.machine.coefficient("row_fusion_cache")

    def moving(self, size: int) -> float:
        """Return seconds that a tensor takes into L2 from where it has room: L3 or memory.

        A part stays in a cache of one that is larger than the room there, unless it is twice as
        large.
        """
        if size not in self.times:  # a program has few sizes, and asks for them very often
            l3, memory = (
                1e-9 / rate_of(self.machine, self.target, level, self.threads)
                for level in (0.0, inf)
            )
            far = _outside(size, self.share * self.target.last_level.size)
            seconds_a_byte = l3 + far * (memory - l3)
            self.times[size] = _outside(size, self.room) * size * seconds_a_byte
        return self.times[size]

    def writing(self, size: int) -> float:
        """Return seconds that a result takes: its lines come into L2 before they are written."""
        return 2 * self.moving(size)

    def loop(self, size: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> float:
        """Return seconds of loops that compute or reduce so many elements.

        They read and write tensors of these sizes.
        """
        computed = 1e-9 * self.machine.coefficient("function_ns") * size / self.threads
        return max(computed, sum(map(self.moving, reads)) + sum(map(self.writing, writes)))

    def stack(self, seconds: float, count: int) -> float:
        """Return seconds of so many products, each of which takes so long by itself.

        Threads that all are busy then take whole products.
        """
        costs = StageCosts(self.machine, self.target)
        evenly = costs.shares_evenly(count, self.threads)
        return seconds * (-(-count // self.threads) if evenly else count)

    def bound(self, work: FusedWork) -> float:
        """Return the seconds below which no code of the members together can be.

        The larger of: their multiplications, those of rows that threads repeat too, at the peak;
        the result on its way out of L2. What comes in is not counted: a stage may read a part of a
        tensor, and both ways may be taken at the same time. A core may clock higher than when its
        peak was measured.
        """
        return self.safe * max(work.least, self.leaving(work.leaves))

    @property
    def safe(self) -> float:
        """The share of a bound by measured rates below which nothing is."""
        return self.machine.coefficient("safe_bound")

    def prunes(self, work: FusedWork) -> bool:
        """Return whether the bound alone shows that the members take no less than apart.

        Both hang on the same measured rates, whatever the clock is.
        """
        return self.bound(work) >= self.safe * work.alone

    def leaving(self, size: int) -> float:
        """Return the seconds that so many bytes take out of L2 at least.

        All caches may keep as many as they have room for, and none the same as another.
        """
        machine, target, threads = self.machine, self.target, self.threads
        counts = [-(-threads // target.sharing(its.name, threads)) for its in target.levels]
        held = [*accumulate(n * its.size for n, its in zip(counts, target.levels, strict=True))]
        rates = (
            min(threads * machine.l3, counts[-1] * max(machine.l3, machine.l3_all)),
            min(threads * machine.memory, max(machine.memory, machine.memory_all)),
        )
        return max(
            1e-9 * max(0, size - room) / rate for room, rate in zip(held[1:], rates, strict=True)
        )

    def hurdle(self, work: FusedWork) -> float:
        """Return the seconds that a prediction must gain: what loops around layers may cost."""
        return self.machine.coefficient("row_fusion_risk") * work.alone

    def together(self, work: FusedWork) -> float:
        """Return the predicted seconds of the members, some rows at a time."""
        weights = sum(member.weights for member in work.members)
        rate = rate_of(self.machine, self.target, weights, self.threads)
        from_l2 = weights + work.rings <= self.room
        stays = min(1.0, max(0.0, 2 - work.rings / self.room))  # of the rows that wait
        seconds = 0.0
        for member in work.members:
            again = 0.0 if from_l2 else 1e-9 * member.weights * member.turns / rate
            own = max(member.together - stays * member.moved, again)
            seconds += own + member.together * member.repeated
        return max(self.bound(work), seconds)


def _outside(size: int, room: float) -> float:
    """Return the share of a tensor that does not stay in a cache with so much room."""
    return min(1.0, max(0.0, size / room - 1))
