"""How many CPUs this process may use: by affinity, and by its control groups' quota."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


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
