"""Code for microcontrollers: a bare-metal compiler, and an emulator that has their boards."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER, EMULATOR = "arm-none-eabi-gcc", "qemu-system-arm"
PACKAGES = "gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm"
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
CORES = ("cortex-m4", "cortex-m7", "cortex-m55")


def need() -> None:
    """Skip the test where the tools are missing; in CI that is a failure."""
    missing = [name for name in (COMPILER, EMULATOR) if not shutil.which(name)]
    if missing:
        text = f"no {' and no '.join(missing)} (Debian, Ubuntu: apt install {PACKAGES})"
        (pytest.fail if "CI" in os.environ else pytest.skip)(text)


def make(project: Path, target: str, core: str, *words: str) -> str:
    """Return what a target of a freestanding project prints for a core; a warning is an error."""
    done = subprocess.run(
        ["make", "-s", target, f"CPU={core}", "CFLAGS=-O2 -Werror", *words],
        cwd=project, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout[-1000:]}{done.stderr[-2000:]}"
    return done.stdout


def symbols(program: Path) -> dict[str, tuple[int, int]]:
    """Return address and size of what a program defines, by name."""
    words = ["arm-none-eabi-nm", "-S", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    return {row[3]: (int(row[0], 16), int(row[1], 16)) for row in rows if len(row) == 4}
