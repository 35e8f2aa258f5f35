"""Compilers for CPUs of other kinds, for which code is written here: which are found."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from polysci.errors import BuildError
from polysci.export import web_build
from polysci.runtime.build.compiler import identified
from polysci.target.isas import ISAS

OLDEST: Final = 17  # version of clang that knows RISC-V's vectors of version 1.0
_NEWEST: Final = 40
_RISCV: Final = "--target=riscv64-linux-gnu"
_GCC: Final = {
    "aarch64": ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
    "Cortex-M": ("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi"),
}


class CrossCompiler(NamedTuple):
    """A kind of CPU, what compiles for it, and how to get that where it was not found."""

    cpu: str
    found: str
    remedy: str = ""


def cross_compilers() -> Iterator[CrossCompiler]:
    """Yield what compiles for each kind of CPU but this machine's own."""
    own = platform.machine()
    yield from (_gcc(cpu) for cpu in _GCC if cpu != own)
    if own != "riscv64":
        yield _riscv()
    yield _wasm(os.environ.get(web_build.VARIABLE, ""), os.environ.get("PATH", ""))


def _gcc(cpu: str) -> CrossCompiler:
    name, packages = _GCC[cpu]
    if path := shutil.which(name):
        return CrossCompiler(cpu, path)
    return CrossCompiler(cpu, f"no {name}", _install(packages))


def _riscv() -> CrossCompiler:
    """Return the newest clang that is called by its version, else the one called clang."""
    for name in (*(f"clang-{version}" for version in range(_NEWEST, OLDEST - 1, -1)), "clang"):
        if (path := shutil.which(name)) and _version(path) >= OLDEST:
            return CrossCompiler("RISC-V", f'CC="{path} {_RISCV}"')
    needed = f"no clang {OLDEST} or newer; gcc does not do"
    packages = "clang-19 gcc-riscv64-linux-gnu libc6-dev-riscv64-cross"
    return CrossCompiler("RISC-V", needed, _install(packages))


def _version(path: str) -> int:
    """Return the main version of a clang; 0 where it does not run."""
    try:
        found = re.search(r"version (\d+)", str(identified(path, ())))
    except (BuildError, OSError):
        return 0
    return int(found[1]) if found else 0


@cache
def _wasm(_variable: str, _path: str) -> CrossCompiler:
    """Return what makes modules of WebAssembly; a small one is made, once for an environment."""
    try:
        return CrossCompiler("WebAssembly", str(web_build.find_wasm_compiler(ISAS["wasm128"])))
    except (BuildError, OSError) as error:
        fault = " ".join(str(error).removesuffix(f": {web_build.HOW_TO_INSTALL}").split())
        return CrossCompiler("WebAssembly", fault, web_build.HOW_TO_INSTALL)


def _install(packages: str) -> str:
    return f"to compile here what is written for it: apt install {packages}"
