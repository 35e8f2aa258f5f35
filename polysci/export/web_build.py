"""Compilers for WebAssembly: which one, and C texts -> one module that imports no function."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from polysci.errors import BuildError, NoCompilerError
from polysci.export.build_texts import IEEE
from polysci.export.wasm_binary import MAGIC, MOST_PAGES, PAGE
from polysci.printers.headers import flags_in, headers
from polysci.runtime.build.compiler import (
    TIMEOUT_S,
    Compiler,
    identified,
    run_compiler,
    split_command,
)
from polysci.runtime.build.process import together
from polysci.target.host import available_cores
from polysci.target.isa import Isa
from polysci.target.microkernels import HeaderSet

VARIABLE: Final = "POLYSCI_WASM_CC"
MACHINE: Final = "wasm32"
_TARGET: Final = "--target=wasm32-wasi"
_FLAGS: Final = ("-std=c11", "-O3", *IEEE.split(), "-fopenmp-simd", "-Wno-unknown-pragmas")
# Runs take less than 32 KiB of stack; the rest is for functions of the C library.
_LINK: Final = ("-mexec-model=reactor", "-Wl,--gc-sections,--strip-all,-z,stack-size=262144", "-lm")
# Of instances that share a memory, each with a stack of its own.
_SHARED: Final = ("-matomics", "-mbulk-memory")
_LINK_SHARED: Final = (
    f"-Wl,--shared-memory,--import-memory,--max-memory={MOST_PAGES * PAGE},--export=__stack_pointer"
)
# For a C library without atomics, of which one thread calls what changes memory.
_UNCHECKED: Final = "-Wl,--no-check-features"
HOW_TO_INSTALL: Final = (
    "install clang with a linker and the C library of WASI (Debian, Ubuntu: apt install clang lld "
    "wasi-libc libclang-rt-dev-wasm32), or run 'pip install ziglang', or name a compiler for "
    f"wasm32-wasi in the environment variable {VARIABLE}"
)
_PROBE: Final = """#include <math.h>
#include <stdlib.h>
__attribute__((export_name("probe"))) void *probe(float x) { return malloc((size_t)expf(x)); }
"""


def find_wasm_compiler(isa: Isa, *, shared: bool = False) -> Compiler:
    """Return the compiler that POLYSCI_WASM_CC names, else clang, else that of ziglang.

    The variable may carry options. ``shared``: instances of its modules are to share a memory.
    Raises NoCompilerError where none makes modules of an instruction set, which says what each
    lacks and how to get one.
    """
    chosen = os.environ.get(VARIABLE, "").strip()
    faults, probe = list[str](), f"{headers(HeaderSet(isa.name))}\n{_PROBE}"
    for words in [split_command(VARIABLE, chosen, HOW_TO_INSTALL)] if chosen else _candidates():
        try:
            compiler = identified(words[0], tuple(words[1:]))
            with tempfile.TemporaryDirectory(prefix="polysci-") as folder:
                _build(compiler, {"probe.c": probe}, Path(folder), shared)
        except BuildError as error:
            last = [line.strip() for line in str(error).splitlines() if "error:" in line]
            faults.append(last[0] if last else str(error).partition("\n")[0])
        else:
            return compiler
    source = f"environment variable {VARIABLE}={chosen!r}" if chosen else "no clang, no ziglang"
    reason = "; ".join(faults) or source
    raise NoCompilerError(f"no compiler for {isa} of WebAssembly ({reason}): {HOW_TO_INSTALL}")


def _candidates() -> list[list[str]]:
    """Return what may compile for WebAssembly."""
    clang = shutil.which("clang")
    own = [[sys.executable, "-m", "ziglang", "cc"]] if find_spec("ziglang") else []
    return [*([[clang]] if clang else []), *own]


def build_module(files: Mapping[str, str], compiler: Compiler, *, shared: bool = False) -> bytes:
    """Return the module of C files, by path, which exports what their text says.

    ``shared``: it imports a memory that instances share as ``env.memory``, and exports
    ``__stack_pointer``. Raises BuildError where a file does not compile, what is linked is no
    module, or it would need other imports.
    """
    with tempfile.TemporaryDirectory(prefix="polysci-") as folder:
        return _build(compiler, files, Path(folder), shared)


def _build(compiler: Compiler, files: Mapping[str, str], folder: Path, shared: bool) -> bytes:
    """Compile and link in a folder, several files at a time."""
    for path, text in files.items():
        (folder / path).write_text(text, encoding="utf-8")

    def compile_one(path: str) -> str:
        out = (folder / path).with_suffix(".o")
        own = (*flags_in(files[path]), *(_SHARED if shared else ()))
        options = (_TARGET, *_FLAGS, *own, f"-I{folder}", "-c", "-o", str(out), str(folder / path))
        run_compiler(compiler, options, out, TIMEOUT_S, files[path])
        return str(out)

    calls = [partial(compile_one, path) for path in files if path.endswith(".c")]
    objects, out = together(calls, available_cores()), folder / "module.wasm"
    options = (_TARGET, *objects, "-o", str(out), *_LINK)

    def link(*more: str) -> bytes:
        run_compiler(compiler, (*options, *more), out, TIMEOUT_S, *files.values())
        module = out.read_bytes() if out.is_file() else b""
        if not module.startswith(MAGIC):
            raise BuildError(f"the C compiler {compiler.path} wrote no module of WebAssembly")
        return module

    if not shared:
        return link()
    try:
        return link(*_SHARED, _LINK_SHARED)
    except BuildError as error:
        with contextlib.suppress(BuildError):
            return link(*_SHARED, _LINK_SHARED, _UNCHECKED)
        raise error
