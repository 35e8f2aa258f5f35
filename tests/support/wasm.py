"""Code for WebAssembly: a compiler with the C library of WASI, and Node, which runs it."""

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from polysci.errors import NoCompilerError
from polysci.export.web_build import find_wasm_compiler
from polysci.runtime.build.compiler import Compiler
from polysci.target.isas import ISAS

COMPILER, LINKER, RUNNER = "clang", "wasm-ld", "node"
PACKAGES = "clang lld wasi-libc libclang-rt-dev-wasm32 nodejs"
MAIN = Path(__file__).with_name("wasi_main.mjs")
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
PAGES = Path(__file__).parents[1] / "data/wasi"  # headers that WASI lacks
STACK = "-Wl,-z,stack-size=4194304"


def need() -> None:
    """Skip the test where the tools are missing; in CI that is a failure."""
    missing = [name for name in (COMPILER, LINKER, RUNNER) if not shutil.which(name)]
    if missing:
        text = f"no {' and no '.join(missing)} (Debian, Ubuntu: apt install {PACKAGES})"
        (pytest.fail if "CI" in os.environ else pytest.skip)(text)


def build(out: Path, sources: Sequence[Path], *flags: str, isa: str = "wasm128") -> Path:
    """One program; a warning is an error."""
    own = ("--target=wasm32-wasi", *ISAS[isa].flags, f"-I{PAGES}", *STRICT, *flags)
    words = [COMPILER] if isa == "wasm128" else compiler_of(isa).cmd
    done = subprocess.run(
        [*words, *own, "-fno-sanitize=undefined", "-o", out, *sources, "-lm", STACK],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:2000]
    return out


@functools.cache
def compiler_of(isa: str) -> Compiler:
    """A compiler that knows an instruction set, which not all of clang do; skips without."""
    try:
        return find_wasm_compiler(ISAS[isa])
    except NoCompilerError as error:
        return pytest.skip(f"{error}")


def run(program: Path, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """Run a program, which sees all files."""
    return node("--experimental-wasi-unstable-preview1", MAIN, program, *arguments)


def node(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Node, without its warnings of what is experimental."""
    return subprocess.run(
        [RUNNER, "--no-warnings", *relaxed(), *words],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@functools.cache
def relaxed() -> tuple[str, ...]:
    """What makes versions of Node before 21 run relaxed SIMD."""
    words = [RUNNER, "-p", "process.versions.node.split('.')[0]"]
    version = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    return ("--experimental-wasm-relaxed-simd",) if int(version) < 21 else ()
