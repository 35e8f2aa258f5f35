"""Target: the instruction set, caches and cores of this host, or of one that is described."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from polysci.border.arguments import check_type
from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.target.cpus import available_cores
from polysci.target.isa import Isa
from polysci.target.isas import ISAS, caps, permissions, up_to

MOST_THREADS = 1024  # of one primitive, and cores of a described machine
MAKERS = ("intel", "amd", "apple", "ampere", "arm", "neoverse")  # as CPUs name them
KIB = 1024
MIB = 1024 * KIB

# Where sysfs has no caches: the smallest of any AVX2 server core since 2013.
ASSUMED_CACHES = {"l1": 32 * KIB, "l2": 256 * KIB, "l3": 2 * MIB}

# A hypervisor shows the host's whole last level to every guest. Server parts own 1.4 to 4 MiB of
# it a core, so a guest may hope for no more than this much for each CPU it was given.
L3_PER_GUEST_CPU = 4 * MIB

# More than any part has for each CPU that shares a cache: stacked ones have 48 MiB of L3 a CPU.
# A hypervisor that hides itself may claim it, or firmware.
MOST_PER_CPU = {"l1": MIB, "l2": 64 * MIB, "l3": 64 * MIB}

# Of the hundred flags in cpuinfo only these families can decide about code or cache sizes.
FEATURE_PREFIXES = (
    "avx", "f16c", "fma", "hypervisor", "sse", "ssse", "asimd", "bf16", "i8mm", "sve",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """A machine to generate code for; cache sizes in bytes, each of one cache.

    ``cores`` are the CPUs that this process may use (``target.cpus``); ``l1_cores``, ``l2_cores``,
    ``l3_cores`` how many of them share one cache of that level, 0 for all: a machine has
    cores / l3_cores L3 caches of ``l3`` bytes. ``assumed`` names the fields that are documented
    defaults because the machine does not tell, or tells what no machine has. ``withheld`` are
    features of the CPU that the kernel denies.
    """

    isa: Isa
    features: tuple[str, ...]
    l1: int
    l2: int
    l3: int
    cores: int
    model_name: str
    assumed: tuple[str, ...] = ()
    l1_cores: int = 1
    l2_cores: int = 1
    l3_cores: int = 0
    withheld: tuple[str, ...] = ()

    def sharing(self, level: str, threads: int = 1) -> int:
        """How many of ``threads`` use one cache of a level (``l1``, ``l2``, ``l3``) together.

        Neighbouring threads run on neighbouring cores.
        """
        cores = getattr(self, f"{level}_cores") or self.cores
        return max(1, min(cores, threads))

    def has(self, feature: str) -> bool:
        """Whether the CPU has the feature, in cpuinfo's spelling."""
        return feature in self.features

    @property
    def kind(self) -> str:
        """What figures are kept by: who made the CPU, and the best instruction set that it runs."""
        name = self.model_name.lower()
        maker = next((maker for maker in MAKERS if maker in name), "unknown")
        return f"{maker}-{self.runnable[-1]}"

    @property
    def runnable(self) -> tuple[Isa, ...]:
        """The instruction sets that this CPU executes, best last, whatever ``isa`` is capped to."""
        return tuple(isa for isa in ISAS.values() if isa.runs_on(self.features))

    @property
    def allowed(self) -> tuple[Isa, ...]:
        """The instruction sets that code for this target may use, best last: none above ``isa``."""
        return tuple(isa for isa in self.runnable if isa in up_to(self.isa))

    @property
    def hidden(self) -> tuple[Isa, ...]:
        """The instruction sets that the CPU executes and a cap forbids, best last."""
        return tuple(isa for isa in self.runnable if isa not in self.allowed)

    def refusal(self, isa: str) -> str:
        """Why code for an instruction set may not run here; empty where it may."""
        if isa not in map(str, self.runnable):
            return f"needs {isa}, which this CPU does not run"
        if isa in map(str, self.hidden):
            return f"is above {self.isa}, to which --isa or POLYSCI_ISA caps"
        return ""

    def rows(self) -> list[tuple[str, str]]:
        """Label and value of everything known, for a table."""
        caches = [(name.upper(), self._cache(name)) for name in ("l1", "l2", "l3")]
        return [
            ("CPU", self.model_name),
            ("kind", self.kind),
            ("ISA", f"{self.isa} ({self.isa.lanes_f32} f32 lanes, {self.isa.registers} registers)"),
            ("ISAs that run", " ".join(isa.name for isa in self.runnable)),
            *([("ISAs that a cap hides", " ".join(map(str, self.hidden)))] if self.hidden else []),
            *caches,
            ("cores", f"{self.cores}{self._mark('cores')}"),
            ("features", " ".join(self.features) or "none"),
        ]

    def _cache(self, name: str) -> str:
        cores = getattr(self, f"{name}_cores") or self.cores
        owner = "of each core" if cores == 1 else f"for {cores} cores"
        return f"{size_text(getattr(self, name))} {owner}{self._mark(name)}"

    def _mark(self, name: str) -> str:
        return " (assumed)" if name in self.assumed else ""

    def __str__(self) -> str:
        caches = " ".join(f"{n.upper()}={size_text(getattr(self, n))}" for n in ("l1", "l2", "l3"))
        return f"{self.isa} {caches} cores={self.cores}"


@guard
def detect(isa: str | Isa | None = None, *, root: Path = Path("/")) -> Target:
    """Describe this host, with the best instruction set that runs and does not exceed ``isa``.

    The environment variable POLYSCI_ISA caps it as well. ``root`` holds ``proc`` and ``sys``.
    SpecError: no such instruction set.
    """
    check_type("isa", isa, str, Isa, type(None))
    fields, cpus = _cpuinfo(root)
    words = (fields.get("flags") or fields.get("Features") or "").split()
    known = _known_features(words)
    withheld = _withheld(known) if root == Path("/") else ()
    features = tuple(word for word in known if word not in withheld)
    cores, sharing = available_cores(root), _sysfs_sharing(root)
    caches, assumed = _believe(_sysfs_caches(root), sharing, max(cpus, 1), "hypervisor" in features)
    shared = {f"{name}_cores": min(cores, number) for name, number in sharing.items()}
    if not words:
        assumed.insert(0, "features")
    return Target(
        isa=_best(features, isa),
        features=features,
        **caches,
        cores=cores,
        model_name=fields.get("model name") or _part(fields) or platform.machine(),
        assumed=tuple(assumed),
        withheld=withheld,
        **shared,
    )


def _believe(
    told: Mapping[str, int], sharing: Mapping[str, int], cpus: int, guest: bool
) -> tuple[dict[str, int], list[str]]:
    """The sizes to reckon with, and which of them the machine does not tell believably.

    A size above MOST_PER_CPU counts as untold; such an L3, and any of a ``guest``, is limited to
    L3_PER_GUEST_CPU. No cache is smaller than the one inside it.
    """
    strange = [
        name for name, size in told.items()
        if size > MOST_PER_CPU[name] * min(sharing.get(name, cpus), cpus)
    ]  # fmt: skip
    caches, assumed = dict[str, int](), list[str]()
    for name, default in ASSUMED_CACHES.items():
        size = told.get(name, default)
        if name == "l3" and (guest or name in strange):
            size = min(size, L3_PER_GUEST_CPU * cpus)
        elif name in strange:
            size = default
        caches[name] = max(size, *caches.values(), 0)
        if name not in told or (name in strange and not (guest and name == "l3")):
            assumed.append(name)
    return caches, assumed


def size_text(size: int) -> str:
    """Bytes as the shortest exact number of M, K or bytes: 1048576 is 1M."""
    for unit, suffix in ((MIB, "M"), (KIB, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)


def _best(features: tuple[str, ...], cap: str | Isa | None) -> Isa:
    limits = [up_to(isa) for isa in caps(cap).values()]
    here = [isa for isa in ISAS.values() if isa.machine and isa.runs_on(features)]
    for setter, isa in caps(cap).items():
        if here and isa.machine not in ("", here[0].machine):
            names = ", ".join(map(str, here))
            raise SpecError(f"{setter} {isa}: for {isa.machine}; this CPU has portable, {names}")
    allowed = [isa for isa in ISAS.values() if all(isa in limit for limit in limits)]
    return [isa for isa in allowed if isa.runs_on(features)][-1]


def _known_features(words: list[str]) -> tuple[str, ...]:
    """Those of cpuinfo's flags that may decide about code: all that an instruction set needs."""
    needed = {feature for isa in ISAS.values() for feature in isa.features}
    prefixes = (*FEATURE_PREFIXES, *(permission.prefix for permission in permissions()))
    return tuple(sorted({w for w in words if w in needed or w.startswith(prefixes)}))


def _withheld(features: tuple[str, ...]) -> tuple[str, ...]:
    """The features that the kernel denies to processes."""
    asked = [p for p in permissions() if any(word.startswith(p.prefix) for word in features)]
    denied = tuple(permission.prefix for permission in asked if not permission.granted())
    return tuple(word for word in features if word.startswith(denied))


def _cpuinfo(root: Path) -> tuple[dict[str, str], int]:
    """The fields of the first CPU, and the number of CPUs; empty and 0 where there is no cpuinfo.

    Flags here are those the kernel has enabled, so saved registers are taken care of.
    """
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return {}, 0
    fields: dict[str, str] = {}
    cpus = 0
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        cpus += key == "processor"
        fields.setdefault(key, value)
    return fields, cpus


def _part(fields: dict[str, str]) -> str:
    """What names a core of aarch64: numbers, of its design and of who made it."""
    if "CPU part" not in fields:
        return platform.processor()
    return f"part {fields['CPU part']} of implementer {fields.get('CPU implementer', '?')}"


def _sysfs_caches(root: Path) -> dict[str, int]:
    """Sizes in bytes of the data and unified caches of CPU 0, by level."""
    sizes = {f"l{level}": size for level, index in _sysfs(root) if (size := _size(index)) > 0}
    return {name: size for name, size in sizes.items() if name in ASSUMED_CACHES}


def _sysfs_sharing(root: Path) -> dict[str, int]:
    """How many CPUs share each cache of CPU 0, by level, where the kernel tells."""
    lists = {f"l{level}": _line(index / "shared_cpu_list") for level, index in _sysfs(root)}
    counts = {name: _count(cpus) for name, cpus in lists.items() if name in ASSUMED_CACHES}
    return {name: count for name, count in counts.items() if count}


def _sysfs(root: Path) -> Iterator[tuple[str, Path]]:
    """Level and folder of the data and unified caches of CPU 0."""
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if _line(index / "type") in ("Data", "Unified"):
            yield _line(index / "level"), index


def _line(path: Path) -> str:
    """The text of a small file, empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _size(index: Path) -> int:
    """Bytes of a cache, 0 where the file is none."""
    match = re.fullmatch(r"(\d{1,15})([KM]?)", _line(index / "size"))
    return int(match[1]) * {"": 1, "K": KIB, "M": MIB}[match[2]] if match else 0


def _count(cpus: str) -> int:
    """How many CPUs a list such as ``0-3,8`` names; 0 where it is none."""
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", cpus):
        return 0
    ends = [part.split("-") for part in cpus.split(",")]
    return sum(max(0, int(end[-1]) - int(end[0]) + 1) for end in ends)
