"""Code for RISC-V, wherever the tests run: a compiler that knows its vectors, and an emulator."""

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

OLDEST, NEWEST = 17, 40  # versions of clang that know version 1.0 of the vectors
EMULATOR = "qemu-riscv64"
SYSTEM = Path("/usr/riscv64-linux-gnu")  # where its C library lies
LIBRARY = SYSTEM / "include/stdio.h"
PACKAGES = "clang-19 gcc-riscv64-linux-gnu libc6-dev-riscv64-cross qemu-user"
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unknown-pragmas")


@functools.cache
def compiler() -> tuple[str, ...]:
    """Its words; empty without."""
    names = [f"clang-{version}" for version in range(NEWEST, OLDEST - 1, -1)]
    path = next(filter(None, map(shutil.which, names)), None)
    target = "--target=riscv64-linux-gnu"
    return (path, target, "-isystem", f"{SYSTEM}/include", "-static") if path else ()


def need() -> None:
    """Skip the test where the tools are missing; in CI that is a failure."""
    found = {
        "clang-17 or newer": compiler(), EMULATOR: shutil.which(EMULATOR),
        str(LIBRARY): LIBRARY.exists(),
    }  # fmt: skip
    if missing := [name for name, there in found.items() if not there]:
        text = f"no {' and no '.join(missing)} (Debian, Ubuntu: apt install {PACKAGES})"
        (pytest.fail if "CI" in os.environ else pytest.skip)(text)


def build(out: Path, sources: Sequence[Path], *flags: str) -> Path:
    """One program; a warning is an error."""
    words = [*compiler(), *STRICT, *flags, "-Wno-unused-command-line-argument"]
    done = subprocess.run(
        [*words, "-o", out, *sources, "-lm"], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:2000]
    return out


def run(program: Path, *arguments: Path, bits: int) -> subprocess.CompletedProcess[str]:
    """Run it on an emulated CPU whose vector registers have so many bits; 0: it has none."""
    vectors = f"v=true,vlen={bits},elen=64,vext_spec=v1.0" if bits else "v=false"
    words = (EMULATOR, "-cpu", f"rv64,{vectors}", program, *arguments)
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
