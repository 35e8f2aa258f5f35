"""This host as a Target, and the CPUs that this process may use, as the kernel tells."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from polysci.border.arguments import check_type
from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.target import riscv
from polysci.target.isa import Isa
from polysci.target.isas import (
    ISAS,
    caps,
    permissions,
    read_streaming_bits,
    read_vector_bits,
    streaming,
    up_to,
    vectors,
)
from polysci.target.target import KIB, MIB, Memory, Target

# Where sysfs has no caches: the smallest of any AVX2 server core since 2013.
ASSUMED_CACHES = (
    Memory("L1", 32 * KIB),
    Memory("L2", 256 * KIB),
    Memory("L3", 2 * MIB, cores=0),
)

_CACHES = {cache.name: cache for cache in ASSUMED_CACHES}

# A hypervisor shows the host's whole last level to every guest. Server parts own 1.4 to 4 MiB of
# it a core, so a guest may hope for no more than this much for each CPU it was given.
L3_PER_GUEST_CPU = 4 * MIB

# More than any part has for each CPU that shares a cache: stacked ones have 48 MiB of L3 a CPU.
# A hypervisor that hides itself may claim it, or firmware.
MOST_PER_CPU = {"L1": MIB, "L2": 64 * MIB, "L3": 64 * MIB}

# Of the hundred flags in cpuinfo only these families can decide about code or cache sizes.
FEATURE_PREFIXES = (
    "avx", "f16c", "fma", "hypervisor", "sse", "ssse", "asimd", "bf16", "i8mm", "sve",
)  # fmt: skip


@guard
def detect(isa: str | Isa | None = None, *, root: Path = Path("/")) -> Target:
    """Describe this host, with the best instruction set that runs and does not exceed ``isa``.

    The environment variable POLYSCI_ISA caps it as well. ``root`` holds ``proc`` and ``sys``.
    SpecError: no such instruction set.
    """
    check_type("isa", isa, str, Isa, type(None))
    fields, cpus = _cpuinfo(root)
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    flags = flags or riscv.extensions(fields.get("isa", ""))
    if root == Path("/") and platform.machine() == "riscv64" and "v" in flags:
        flags = riscv.with_vectors(flags, riscv.vector_bits())
    known = (*_known_features(flags), *_vector_length(flags, root))
    if any(limit.experimental for limit in caps(isa).values()):
        known = (*known, *_streaming_length(flags, root))
    withheld = _withheld(known) if root == Path("/") else ()
    features = tuple(word for word in known if word not in withheld)
    cores = available_cores(root)
    memories, assumed = _believe(_sysfs_caches(root), max(cpus, 1), "hypervisor" in features)
    if not flags:
        assumed.insert(0, "features")
    return Target(
        isa=_best(features, isa),
        features=features,
        memories=tuple(replace(memory, cores=min(cores, memory.cores)) for memory in memories),
        cores=cores,
        model_name=fields.get("model name") or _part(fields) or platform.machine(),
        assumed=tuple(assumed),
        withheld=withheld,
    )


def _believe(
    reported: Mapping[str, Memory], cpus: int, guest: bool
) -> tuple[list[Memory], list[str]]:
    """Return the caches to reckon with, and which of them the machine does not tell believably.

    A size above MOST_PER_CPU counts as untold; such an L3, and any of a ``guest``, is limited to
    L3_PER_GUEST_CPU. No cache is smaller than the one inside it.
    """
    caches, assumed = list[Memory](), list[str]()
    for default in ASSUMED_CACHES:
        name = default.name
        cache = reported.get(name, replace(default, size=0))
        strange = cache.size > MOST_PER_CPU[name] * min(cache.cores or cpus, cpus)
        size = cache.size or default.size
        if name == "L3" and (guest or strange):
            size = min(size, L3_PER_GUEST_CPU * cpus)
        elif strange:
            size = default.size
        caches.append(replace(cache, size=max([size, *(inner.size for inner in caches)])))
        if not cache.size or (strange and not (guest and name == "L3")):
            assumed.append(name)
    return caches, assumed


def _best(features: tuple[str, ...], cap: str | Isa | None) -> Isa:
    limits = [up_to(isa) for isa in caps(cap).values()]
    here = [isa for isa in ISAS.values() if isa.machine and isa.runs_on(features)]
    for setter, isa in caps(cap).items():
        if here and isa.machine not in ("", here[0].machine):
            names = ", ".join(map(str, here))
            raise SpecError(f"{setter} {isa}: for {isa.machine}; this CPU has portable, {names}")
    allowed = [isa for isa in ISAS.values() if all(isa in limit for limit in limits)]
    return [isa for isa in allowed if isa.runs_on(features)][-1]


def _known_features(flags: list[str]) -> tuple[str, ...]:
    """Return the flags of cpuinfo that may decide about code: all that an instruction set needs."""
    needed = {feature for isa in ISAS.values() for feature in isa.features}
    prefixes = (*FEATURE_PREFIXES, *(permission.prefix for permission in permissions()))
    return tuple(sorted({w for w in flags if w in needed or w.startswith(prefixes)}))


def _vector_length(flags: list[str], root: Path) -> tuple[str, ...]:
    """Return the length of SVE's vectors as a feature, which cpuinfo does not tell.

    It is this process's; of another ``root`` the one that processes begin with.
    """
    if "sve" not in flags:
        return ()
    default = root / "proc/sys/abi/sve_default_vector_length"
    bits = read_vector_bits() if root == Path("/") else 8 * _number(default)
    return (vectors(bits),) if bits else ()


def _streaming_length(flags: list[str], root: Path) -> tuple[str, ...]:
    """Return the same of the streaming mode of SME."""
    if "sme" not in flags:
        return ()
    default = root / "proc/sys/abi/sme_default_vector_length"
    bits = read_streaming_bits() if root == Path("/") else 8 * _number(default)
    return (streaming(bits),) if bits else ()


def _withheld(features: tuple[str, ...]) -> tuple[str, ...]:
    """Return the features that the kernel denies to processes."""
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
    """Return the name of an aarch64 core: numbers of its design and of its maker."""
    if "CPU part" not in fields:
        return platform.processor()
    return f"part {fields['CPU part']} of implementer {fields.get('CPU implementer', '?')}"


def _sysfs_caches(root: Path) -> dict[str, Memory]:
    """Return the data and unified caches of CPU 0 by name; a size of 0, or 0 cores, is untold."""
    caches = dict[str, Memory]()
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        default = _CACHES.get(f"L{_line(index / 'level')}")
        if default and _line(index / "type") in ("Data", "Unified"):
            caches[default.name] = replace(
                default,
                size=_size(index),
                cores=_count(_line(index / "shared_cpu_list")) or default.cores,
                line=_number(index / "coherency_line_size") or default.line,
                ways=_number(index / "ways_of_associativity"),
            )
    return caches


def _line(path: Path) -> str:
    """Return the text of a small file, empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _size(index: Path) -> int:
    """Return bytes of a cache, 0 where the file is none."""
    match = re.fullmatch(r"(\d{1,15})([KM]?)", _line(index / "size"))
    return int(match[1]) * {"": 1, "K": KIB, "M": MIB}[match[2]] if match else 0


def _number(path: Path) -> int:
    """Return the number that a small file holds, 0 where it holds none."""
    return int(text) if re.fullmatch(r"\d{1,9}", text := _line(path)) else 0


def _count(cpus: str) -> int:
    """Return how many CPUs a list such as ``0-3,8`` names; 0 where it is none."""
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", cpus):
        return 0
    ends = [part.split("-") for part in cpus.split(",")]
    return sum(max(0, int(end[-1]) - int(end[0]) + 1) for end in ends)


def available_cores(root: Path = Path("/")) -> int:
    """The CPUs that this process may run on, no more than its quota has whole ones; at least 1.

    ``root`` holds ``proc`` and ``sys``.
    """
    quota = cpu_quota(root)
    cores = allowed_cpus()
    return cores if quota is None else max(1, min(cores, int(quota)))


def allowed_cpus() -> int:
    """Return the CPUs that this process's affinity names."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the CPUs that this process's control groups (version 2 or 1) allow; None: no limit."""
    ratios = [_ratio(folder, "cpu.max") for folder in _folders(root, "", "")]
    for name in ("cpu", "cpu,cpuacct"):
        for folder in _folders(root, name, name):
            ratios.append(_ratio(folder, "cpu.cfs_quota_us", "cpu.cfs_period_us"))
    return min((ratio for ratio in ratios if ratio is not None), default=None)


def _folders(root: Path, controllers: str, mount: str) -> Iterator[Path]:
    """Yield this process's group in a hierarchy and all above it; at least the hierarchy's root."""
    home = root / "sys/fs/cgroup" / mount
    try:
        lines = (root / "proc/self/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, known, own = [*line.split(":", 2), "", ""][:3]
        folder = home / own.strip("/")
        if known == controllers and ".." not in folder.parts:
            yield from (path for path in (folder, *folder.parents) if path.is_relative_to(home))
    yield home


def _ratio(folder: Path, *names: str) -> float | None:
    """Return a quota over its period, None where there is none."""
    try:
        numbers = " ".join((folder / name).read_text() for name in names).split()
        quota, period = int(numbers[0]), int(numbers[1])
    except (OSError, ValueError, IndexError):
        return None
    return quota / period if quota > 0 and period > 0 else None
