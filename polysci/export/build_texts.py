"""The values of build files and READMEs: sources, flags of the compiler, threads that wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from types import MappingProxyType
from typing import Final

from polysci.printers.headers import flags_in
from polysci.printers.network import OPENMP

IEEE: Final = "-fno-math-errno -fno-trapping-math -ffp-contract=off"
_COUNTED: Final = "-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign"
_THREADS: Final = " -pthread"
_CMAKE_THREADS: Final = " Threads::Threads"
# Of headers, the kinds of machine that have them, as compilers call those.
_MACHINES: Final = MappingProxyType(
    {
        "arm_sve.h": "aarch64% arm64%", "riscv_vector.h": "riscv64%", "wasm_simd128.h": "wasm32%",
    }
)  # fmt: skip
_VERSION: Final = "1.0.0"  # of what is installed
_LOADER: Final = " -ldl"  # which newer C libraries hold themselves
_CMAKE_LOADER: Final = " ${CMAKE_DL_LIBS}"
_POLICY: Final = (
    "Threads that wait for others spin before they sleep: milliseconds with GNU's OpenMP runtime, "
    "200 ms with LLVM's. Where fewer cores are free than threads, a call can take many times as "
    "long: set OMP_WAIT_POLICY=passive, or a small GOMP_SPINCOUNT (GNU) or KMP_BLOCKTIME (LLVM), "
    "before the program starts."
)


def build_values(
    files: Mapping[str, object], headers: str, threads: int, pool: str = OPENMP, *,
    exact: bool = False, shared: bool = False, loader: bool = False,
) -> dict[str, str]:  # fmt: skip
    """Return the values of Makefile, CMakeLists and README that say how C files are compiled.

    ``files`` by path, ``headers`` are what objects depend on. ``threads`` of ``pool`` run the code.
    ``exact``: by the flags with which the self-test's tolerance was found. ``shared``: also as a
    shared library, with an example and a self-test that counts allocations. ``loader``: it opens
    other libraries when it runs.
    """
    stems = [path.removesuffix(".c") for path in files if path.endswith(".c")]
    threaded = threads > 1 and pool == OPENMP
    tried = ["-fopenmp"] * threaded + ["-fopenmp-simd"] * shared
    calls = [*(f"$(call can,{option})" for option in tried), *["-Wno-unknown-pragmas"] * shared]
    return {
        "VERSION": _VERSION,
        "DATA": "",
        "OBJECTS": " ".join(f"{stem}.o" for stem in stems),
        "SOURCES": " ".join(f"{stem}.c" for stem in stems),
        "DEPENDS": headers,
        "IEEE": IEEE * exact,
        "OPENMP": ",".join(calls),
        "OPTION": f" {tried[0]}" if tried else "",
        "THREADED": "yes" * threaded,
        "PTHREADS": "yes" * (pool == "pthread"),
        "SIMD": "yes" * shared,
        "SHARED": "yes" * shared,
        "COUNTED": _COUNTED * shared,
        "LIBRARY_THREADS": _THREADS * (pool == "pthread") + _LOADER * loader,
        "EXAMPLE_THREADS": _THREADS * (pool != OPENMP) + _LOADER * loader,
        "TEST_THREADS": _THREADS * (shared or pool == "callback") + _LOADER * loader,
        "CMAKE_LOADER": _CMAKE_LOADER * loader,
        "CMAKE_EXAMPLE": _CMAKE_THREADS * (pool == "callback"),
        "CALLBACK": "yes" * (pool == "callback"),
        "COUNT": str(threads),
        **file_flags(files),
    }


def wait_policy(threads: int, first: str, indent: str) -> str:
    """Return lines about the wait policy and its variables, each begun by a newline.

    There are none for one thread. ``first`` goes before the first line, ``indent`` before others.
    """
    if threads == 1:
        return ""
    lines = wrap(_POLICY, 98, initial_indent=first, subsequent_indent=indent)
    return "".join(f"\n{line}" for line in lines)


def file_flags(files: Mapping[str, object]) -> dict[str, str]:
    """Return FILE_FLAGS_MAKE and FILE_FLAGS_CMAKE: flags that C files ask for; files by path.

    Files of one kind of processor are empty for others, whose compilers may not know the flags.
    """
    texts = {
        path: text for path, text in files.items() if path.endswith(".c") and isinstance(text, str)
    }
    asked = [
        (path, flags, _machines_of(text))
        for path, text in texts.items() if (flags := flags_in(text))
    ]  # fmt: skip
    return {
        "FILE_FLAGS_MAKE": "".join(f"{_make_flags(*row)}\n" for row in asked),
        "FILE_FLAGS_CMAKE": "".join(f"{_cmake_flags(*row)}\n" for row in asked),
    }


def _machines_of(text: str) -> str:
    """Return patterns of the machines that a C file is for, by its headers; nothing for all."""
    return next((its for name, its in _MACHINES.items() if f"#include <{name}>" in text), "")


def _make_flags(path: str, flags: Sequence[str], machines: str) -> str:
    """Return the line of a Makefile that gives flags to a file."""
    words = " ".join(flags)
    if machines:
        words = f"$(if $(filter {machines},$(shell $(CC) -dumpmachine)),{words})"
    return f"{path.removesuffix('.c')}.o: FLAGS += {words}"


def _cmake_flags(path: str, flags: Sequence[str], machines: str) -> str:
    """Return the lines of a CMakeLists.txt that do so."""
    properties = f'PROPERTIES COMPILE_OPTIONS "{";".join(flags)}"'
    line = f"set_source_files_properties({path} {properties})"
    if not machines:
        return line
    known = f"KNOWS_FLAGS_OF_{path.removesuffix('.c')}"
    check = f'include(CheckCCompilerFlag)\ncheck_c_compiler_flag("{" ".join(flags)}" {known})'
    return f"{check}\nif({known})\n  {line}\nendif()"
