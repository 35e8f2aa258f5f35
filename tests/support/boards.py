"""Code for microcontrollers: a bare-metal compiler, and an emulator that has their boards."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from polysci.export.files import fill_template

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


# Of the board with a Cortex-M55: vectors at 0, all else in its large memory.
PLACES = {
    "VECTORS": "0", "FLASH": "0x60000000", "FLASH_SIZE": "64M", "RAM": "0x64000000",
    "RAM_SIZE": "64M", "STACK_SIZE": "1M",
}  # fmt: skip


def build(out: Path, sources: Sequence[Path], *flags: str, data: Path | None = None) -> Path:
    """One program for a Cortex-M55, which is told a file of ``data``; a warning is an error."""
    names = {"NAME": "tests", "UPPER": "TESTS"}
    for name in ("board.c", "board.h", "board.ld"):
        (out.parent / name).write_text(fill_template(f"free_{name}", names))
    if data:
        start = (out.parent / "board.c").read_text()
        told = f'main(2, (char *[]){{"", "{data}"}})'
        (out.parent / "board.c").write_text(start.replace("main(0, 0)", told))
    places = [f"-Wl,--defsym=board_{name}={place}" for name, place in PLACES.items()]
    core = ("-mcpu=cortex-m55", "-mfloat-abi=hard", "-ffunction-sections", "-Wl,--gc-sections")
    linking = ("-nostartfiles", "--specs=rdimon.specs", *places, "-T", out.parent / "board.ld")
    words = [COMPILER, *core, *STRICT, *flags, "-o", out, *sources, out.parent / "board.c"]
    done = subprocess.run(
        [*words, *linking, "-lm"], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:2000]
    return out


def run(program: Path) -> subprocess.CompletedProcess[str]:
    """Run a program on the board with a Cortex-M55."""
    words = [EMULATOR, "-M", "mps3-an547", "-display", "none", "-monitor", "none"]
    words += ["-serial", "none", "-semihosting-config", "enable=on,target=native"]
    return subprocess.run(
        [*words, "-kernel", program], capture_output=True, text=True, timeout=300, check=False
    )
