"""Target: a device to generate code for: its instruction set, memories and cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from polysci.errors import SpecError
from polysci.target.isa import Isa
from polysci.target.isas import DEVICE_ISAS, ISAS, up_to

MOST_THREADS = 1024  # of one primitive, and cores of a described machine
MAKERS = ("intel", "amd", "apple", "ampere", "arm", "neoverse")  # as CPUs name them
HOST = "host"  # the backend of this machine's CPUs
LEVELS = 3  # of caches that the cost model tells apart
KIB = 1024
MIB = 1024 * KIB

MemoryKind = Literal["cache", "local", "global"]


@dataclass(frozen=True, slots=True)
class Memory:
    """One level of a device's memory, ``size`` bytes large.

    ``cores`` is how many cores share one of it, 0 for all. A ``cache`` is filled by the hardware,
    in lines of ``line`` bytes; code places data in the ``local`` memory of a core and in the
    ``global`` one. 0 where not known: ``ways`` of a cache, and ``bandwidth``, the GB/s at which
    one core reads it.
    """

    name: str
    size: int
    cores: int = 1
    line: int = 64
    ways: int = 0
    bandwidth: float = 0.0
    kind: MemoryKind = "cache"

    def lines_apart(self, step: int) -> float:
        """Return how many lines ``step`` bytes apart a cache holds; by its size without ways."""
        return max(self.ways, self.size / step)

    def __str__(self) -> str:
        return f"{self.name}={size_text(self.size)}"


@dataclass(frozen=True, slots=True)
class ComputeUnit:
    """Widths and limits of a compute unit of a device, which groups of work-items share.

    ``width`` work-items take an instruction together, ``issues`` such instructions a clock, and
    ``most`` times as many are there at a time, with ``registers`` of 32 bits for all of them. A
    kernel may declare ``shared`` bytes of the memory of its group, of which ``front`` bytes are
    read in a clock. ``latency``: clocks from the request of an element of the device's memory to
    its arrival.

    The defaults are those of NVIDIA's multiprocessors from sm_80 on: CUDA C++ Programming Guide,
    throughput of instructions and technical specifications by compute capability.
    """

    width: int = 32
    lanes: int = 128  # multiplications of f32 a clock
    issues: int = 4
    most: int = 48
    registers: int = 65536
    shared: int = 48 << 10
    front: int = 128
    latency: int = 500


@dataclass(frozen=True, slots=True)
class Target:
    """A machine to generate code for; ``memories`` from the nearest to the cores outwards.

    ``cores`` are the CPUs that this process may use (``target.host``). ``assumed`` names the
    memories, and ``features`` or ``cores``, that are documented defaults because the machine does
    not tell, or tells what no machine has. ``withheld`` are features of the CPU that the kernel
    denies. ``backend`` names the row of ``runtime.backends`` that builds and runs code for it.
    ``unit`` is what each of the ``cores`` of a device with work-groups is.
    Raises SpecError for memories without a cache, which all rankers count with.
    """

    isa: Isa
    features: tuple[str, ...]
    memories: tuple[Memory, ...]
    cores: int
    model_name: str
    assumed: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    backend: str = HOST
    unit: ComputeUnit = ComputeUnit()

    def __post_init__(self) -> None:
        if not self.caches:
            known = ", ".join(memory.name for memory in self.memories)
            raise SpecError(f"memories: expected one of kind cache at least, got {known or 'none'}")

    def memory(self, name: str) -> Memory:
        """Return the memory of a name, as ``L2``. Raises SpecError where the device has none."""
        for memory in self.memories:
            if memory.name == name:
                return memory
        known = ", ".join(memory.name for memory in self.memories)
        raise SpecError(f"memory {name!r}: {self.model_name} has {known or 'none'}")

    @property
    def local(self) -> Memory | None:
        """The memory of a group's own; None where that is ordinary memory."""
        return next((memory for memory in self.memories if memory.kind == "local"), None)

    @property
    def caches(self) -> tuple[Memory, ...]:
        """The memories that the hardware fills, the smallest first."""
        return tuple(memory for memory in self.memories if memory.kind == "cache")

    @property
    def first_level(self) -> Memory:
        """The cache nearest to the cores."""
        return self.caches[0]

    @property
    def second_level(self) -> Memory:
        """The cache behind the first one, which is the first one itself where it is alone."""
        return self.caches[: LEVELS - 1][-1]

    @property
    def last_level(self) -> Memory:
        """The largest cache."""
        return self.caches[-1]

    @property
    def levels(self) -> tuple[Memory, Memory, Memory]:
        """The caches of the cost model: the first, the second and the last.

        Where there are fewer, the last one stands for those that lack, so that whatever it does
        not hold comes from memory; of more than three, those in the middle count as the last.
        """
        return self.first_level, self.second_level, self.last_level

    def sharing(self, name: str, threads: int = 1) -> int:
        """Return how many of ``threads`` use one memory of a name together.

        Neighbouring threads run on neighbouring cores.
        """
        return max(1, min(self.memory(name).cores or self.cores, threads))

    def share(self, name: str, threads: int = 1) -> float:
        """Return bytes of a memory that each of ``threads`` has."""
        return self.memory(name).size / self.sharing(name, threads)

    def has(self, feature: str) -> bool:
        """Return whether the CPU has the feature, in cpuinfo's spelling."""
        return feature in self.features

    @property
    def kind(self) -> str:
        """The key of figures: who made the CPU, and the best instruction set that it runs."""
        name = self.model_name.lower()
        maker = next((maker for maker in MAKERS if maker in name), "unknown")
        return f"{maker}-{self.runnable[-1]}"

    @property
    def runnable(self) -> tuple[Isa, ...]:
        """The instruction sets that this CPU executes, best last, whatever ``isa`` is capped to."""
        known = DEVICE_ISAS if self.isa.name in DEVICE_ISAS else ISAS
        return tuple(isa for isa in known.values() if isa.runs_on(self.features))

    @property
    def allowed(self) -> tuple[Isa, ...]:
        """The instruction sets that code for this target may use, best last: none above ``isa``."""
        if self.isa.name in DEVICE_ISAS:
            return self.runnable
        return tuple(isa for isa in self.runnable if isa in up_to(self.isa))

    @property
    def hidden(self) -> tuple[Isa, ...]:
        """The instruction sets that the CPU executes and a cap forbids, best last."""
        return tuple(isa for isa in self.runnable if isa not in self.allowed)

    def refusal(self, isa: str) -> str:
        """Return why code for an instruction set may not run here; empty where it may."""
        if isa not in map(str, self.runnable):
            return f"needs {isa}, which this CPU does not run"
        if isa in map(str, self.hidden):
            return f"is above {self.isa}, to which --isa or POLYSCI_ISA caps"
        return ""

    def rows(self) -> list[tuple[str, str]]:
        """Label and value of everything known, for a table."""
        return [
            ("CPU" if self.backend == HOST else "device", self.model_name),
            ("kind", self.kind),
            ("ISA", f"{self.isa} ({self.isa.lanes_f32} f32 lanes, {self.isa.registers} registers)"),
            ("ISAs that run", " ".join(isa.name for isa in self.runnable)),
            *([("ISAs that a cap hides", " ".join(map(str, self.hidden)))] if self.hidden else []),
            *((memory.name, self._text(memory)) for memory in self.memories),
            ("cores", f"{self.cores}{self._mark('cores')}"),
            ("features", " ".join(self.features) or "none"),
        ]

    def _text(self, memory: Memory) -> str:
        cores = memory.cores or self.cores
        owner = "of each core" if cores == 1 else f"for {cores} cores"
        return f"{size_text(memory.size)} {owner}{self._mark(memory.name)}"

    def _mark(self, name: str) -> str:
        return " (assumed)" if name in self.assumed else ""

    def __str__(self) -> str:
        return " ".join([str(self.isa), *map(str, self.memories), f"cores={self.cores}"])


def size_text(size: int) -> str:
    """Return bytes as the shortest exact number of M, K or bytes: 1048576 is 1M."""
    for unit, suffix in ((MIB, "M"), (KIB, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)
