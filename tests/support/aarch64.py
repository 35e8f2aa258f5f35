"""Code for aarch64, wherever the tests run: a compiler for it, and an emulator that runs it."""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from polysci.target.isas import ISAS

NATIVE = platform.machine() == "aarch64"
COMPILER = "gcc" if NATIVE else "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"  # also there: its -cpu takes features away
PACKAGES = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
SYSTEM = "/" if NATIVE else "/usr/aarch64-linux-gnu"  # where its C library lies
INCLUDES = () if NATIVE else ("-isystem", f"{SYSTEM}/include")
CLANG = "clang-19"  # of several compilers that SME's assembly is for
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-psabi")


def need(*more: str) -> None:
    """Skip the test where the tools are missing, or ``more``; in CI that is a failure."""
    missing = [name for name in (COMPILER, EMULATOR, *more) if not shutil.which(name)]
    if missing:
        text = f"no {' and no '.join(missing)} (Debian, Ubuntu: apt install {PACKAGES})"
        (pytest.fail if "CI" in os.environ else pytest.skip)(text)


def clang() -> tuple[str, ...]:
    """The words that call clang for aarch64."""
    return (CLANG, "--target=aarch64-linux-gnu", *INCLUDES)


def build(
    out: Path, sources: Sequence[Path], *flags: str, compiler: Sequence[str] = (COMPILER,)
) -> Path:
    """One program; a warning is an error."""
    words = [*compiler, *STRICT, *flags, "-pipe", "-o", out, *sources, "-lm"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:2000]
    return out


def cpu_of(isa: str) -> str:
    """An emulated CPU that has an instruction set: a model, or one with every feature.

    Vectors of SVE have the length of the set. In streaming mode there is SVE's part for it alone.
    """
    if isa == "sme":
        return "max,sme_fa64=off,sme-default-vector-length=64"
    if isa == "sve512":
        return "a64fx"
    return f"max,sve-default-vector-length={4 * ISAS[isa].lanes_f32}" if "sve" in isa else "max"


def run(program: Path, *arguments: Path, cpu: str = "max") -> subprocess.CompletedProcess[str]:
    """Run it on an emulated CPU, which has every feature or is a named model."""
    words = (EMULATOR, "-L", SYSTEM, "-cpu", cpu, program, *arguments)
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
