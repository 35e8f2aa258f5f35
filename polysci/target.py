"""Target: the instruction set, caches and cores of this host, or of a description file."""

from __future__ import annotations

import os
import platform
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from polysci.errors import SpecError

KIB = 1024
MIB = 1024 * KIB

# Where sysfs has no caches: the smallest of any AVX2 server core since 2013.
ASSUMED_CACHES = {"l1": 32 * KIB, "l2": 256 * KIB, "l3": 2 * MIB}

# A hypervisor shows the host's whole last level to every guest. Server parts own 1.4 to 4 MiB of
# it a core, so a guest may hope for no more than this much for each CPU it was given.
L3_PER_GUEST_CPU = 4 * MIB

# Of the hundred flags in cpuinfo only these families can decide about code or cache sizes.
FEATURE_PREFIXES = ("amx", "avx", "f16c", "fma", "hypervisor", "sse", "ssse", "asimd", "sve")


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set: what the CPU must have, and what it gives to a microkernel.

    ``features`` carry the names that both cpuinfo and ``__attribute__((target(...)))`` use.
    Generated C asks for them itself; ``cflags`` say the same to a compiler of other sources.
    """

    name: str
    features: tuple[str, ...]
    cflags: tuple[str, ...]
    lanes_f32: int
    registers: int

    @property
    def attribute(self) -> str:
        """The GNU C attribute that enables the set for one function; empty if it needs none."""
        names = ",".join(self.features)
        return f'__attribute__((target("{names}")))' if names else ""

    def runs_on(self, features: Iterable[str]) -> bool:
        """Whether a CPU with these features executes it."""
        return set(self.features) <= set(features)

    def __str__(self) -> str:
        return self.name


def _isa(name: str, features: str, lanes_f32: int, registers: int) -> Isa:
    words = tuple(features.split())
    return Isa(name, words, tuple(f"-m{word}" for word in words), lanes_f32, registers)


ISAS: dict[str, Isa] = {
    isa.name: isa
    for isa in (  # the best comes last
        _isa("portable", "", lanes_f32=4, registers=16),
        _isa("avx2", "avx2 fma", lanes_f32=8, registers=16),
        _isa("avx512", "avx2 fma avx512f avx512bw avx512dq avx512vl", lanes_f32=16, registers=32),
    )
}


@dataclass(frozen=True, slots=True)
class Target:
    """A machine to generate code for; cache sizes in bytes, ``l1`` and ``l2`` of one core.

    ``cores`` are the CPUs that this process may run on. ``assumed`` names the fields that are
    documented defaults because the machine does not tell.
    """

    isa: Isa
    features: tuple[str, ...]
    l1: int
    l2: int
    l3: int
    cores: int
    model_name: str
    assumed: tuple[str, ...] = ()

    def has(self, feature: str) -> bool:
        """Whether the CPU has the feature, in cpuinfo's spelling."""
        return feature in self.features

    @property
    def runnable(self) -> tuple[Isa, ...]:
        """The instruction sets that this CPU executes, best last, whatever ``isa`` is capped to."""
        return tuple(isa for isa in ISAS.values() if isa.runs_on(self.features))

    def rows(self) -> list[tuple[str, str]]:
        """Label and value of everything known, for a table."""
        caches = [(name.upper(), self._cache(name)) for name in ("l1", "l2", "l3")]
        return [
            ("CPU", self.model_name),
            ("ISA", f"{self.isa} ({self.isa.lanes_f32} f32 lanes, {self.isa.registers} registers)"),
            ("ISAs that run", " ".join(isa.name for isa in self.runnable)),
            *caches,
            ("cores", f"{self.cores}{self._mark('cores')}"),
            ("features", " ".join(self.features) or "none"),
        ]

    def _cache(self, name: str) -> str:
        return size_text(getattr(self, name)) + self._mark(name)

    def _mark(self, name: str) -> str:
        return " (assumed)" if name in self.assumed else ""

    def __str__(self) -> str:
        caches = " ".join(f"{n.upper()}={size_text(getattr(self, n))}" for n in ("l1", "l2", "l3"))
        return f"{self.isa} {caches} cores={self.cores}"

    def to_toml(self) -> str:
        """The description file that :func:`from_toml` reads back."""
        lines = [f"isa = {_quote(self.isa.name)}", f"features = {_quote_all(self.features)}"]
        lines += [f"{name} = {getattr(self, name)}" for name in ("l1", "l2", "l3", "cores")]
        lines += [
            f"model_name = {_quote(self.model_name)}",
            f"assumed = {_quote_all(self.assumed)}",
        ]
        return "\n".join(lines) + "\n"


def from_toml(text: str) -> Target:
    """Read a description file; every fault is a SpecError that names the key."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"target description is not TOML: {error}") from None
    known = ("isa", "features", "l1", "l2", "l3", "cores", "model_name", "assumed")
    for key in data:
        if key not in known:
            raise SpecError(f"target description: unknown key {key!r}; known: {', '.join(known)}")
    isa = isa_named(_word(data, "isa"), source="target description: isa")
    sizes = {key: _positive(data, key) for key in ("l1", "l2", "l3", "cores")}
    features = _words(data, "features")
    if not isa.runs_on(features):
        missing = ", ".join(sorted(set(isa.features) - set(features)))
        raise SpecError(f"target description: isa {isa} needs features that are absent: {missing}")
    name = _word(data, "model_name") if "model_name" in data else "unknown"
    return Target(isa, features, **sizes, model_name=name, assumed=_words(data, "assumed"))


def detect(isa: str | Isa | None = None, *, root: Path = Path("/")) -> Target:
    """Describe this host, with the best instruction set that runs and does not exceed ``isa``.

    The environment variable POLYSCI_ISA caps it as well. ``root`` holds ``proc`` and ``sys``.
    SpecError: no such instruction set.
    """
    fields, cpus = _cpuinfo(root)
    words = (fields.get("flags") or fields.get("Features") or "").split()
    features = tuple(sorted({word for word in words if word.startswith(FEATURE_PREFIXES)}))
    found = _sysfs_caches(root)
    caches = {name: found.get(name, default) for name, default in ASSUMED_CACHES.items()}
    if "hypervisor" in features:
        caches["l3"] = max(caches["l2"], min(caches["l3"], L3_PER_GUEST_CPU * max(cpus, 1)))
    assumed = [name for name in ASSUMED_CACHES if name not in found]
    if not words:
        assumed.insert(0, "features")
    return Target(
        isa=_best(features, isa),
        features=features,
        **caches,
        cores=available_cores(),
        model_name=fields.get("model name") or platform.processor() or platform.machine(),
        assumed=tuple(assumed),
    )


def isa_named(name: str, *, source: str = "isa") -> Isa:
    """The row of ISAS; SpecError naming ``source`` and the rows that exist."""
    try:
        return ISAS[name]
    except KeyError:
        raise SpecError(
            f"{source}: no instruction set {name!r}; known: {', '.join(ISAS)}"
        ) from None


def available_cores() -> int:
    """How many CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def size_text(size: int) -> str:
    """Bytes as the shortest exact number of M, K or bytes: 1048576 is 1M."""
    for unit, suffix in ((MIB, "M"), (KIB, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)


def _best(features: tuple[str, ...], cap: str | Isa | None) -> Isa:
    order = list(ISAS)
    caps = [isa_named(cap) if isinstance(cap, str) else cap] if cap else []
    if variable := os.environ.get("POLYSCI_ISA"):
        caps.append(isa_named(variable, source="environment variable POLYSCI_ISA"))
    allowed = min((order.index(isa.name) for isa in caps), default=len(order) - 1)
    return [isa for isa in list(ISAS.values())[: allowed + 1] if isa.runs_on(features)][-1]


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


def _sysfs_caches(root: Path) -> dict[str, int]:
    """Sizes in bytes of the data and unified caches of CPU 0, by level."""
    found: dict[str, int] = {}
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text().strip() for name in ("level", "type", "size")
            )
            if kind != "Instruction" and f"l{level}" in ASSUMED_CACHES:
                found[f"l{level}"] = _bytes(size)
        except (OSError, ValueError):
            continue
    return {name: size for name, size in found.items() if size > 0}


def _bytes(text: str) -> int:
    unit = {"K": KIB, "M": MIB}.get(text[-1:], 1)
    return int(text.rstrip("KM")) * unit


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def _quote_all(words: tuple[str, ...]) -> str:
    return "[" + ", ".join(_quote(word) for word in words) + "]"


def _word(data: dict[str, object], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise SpecError(f"target description: {key} must be a string, got {value!r}")
    return value


def _words(data: dict[str, object], key: str) -> tuple[str, ...]:
    value = data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise SpecError(f"target description: {key} must be a list of strings, got {value!r}")
    return tuple(value)


def _positive(data: dict[str, object], key: str) -> int:
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise SpecError(f"target description: {key} must be a positive integer, got {value!r}")
    return value
