"""Texts that exported build files and READMEs share: flags of C files, threads that wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Final

from polysci.printers.headers import flags_in

_POLICY: Final = (
    "Threads that wait for others spin before they sleep: milliseconds with GNU's OpenMP runtime, "
    "200 ms with LLVM's. Where fewer cores are free than threads, a call can take many times as "
    "long: set OMP_WAIT_POLICY=passive, or a small GOMP_SPINCOUNT (GNU) or KMP_BLOCKTIME (LLVM), "
    "before the program starts."
)


def wait_policy(threads: int, first: str, indent: str) -> str:
    """Lines about the wait policy and its variables, each begun by a newline; none for one thread.

    ``first`` goes before the first line, ``indent`` before the others.
    """
    if threads == 1:
        return ""
    lines = wrap(_POLICY, 98, initial_indent=first, subsequent_indent=indent)
    return "".join(f"\n{line}" for line in lines)


def file_flags(sources: Mapping[str, object]) -> dict[str, str]:
    """Return FILE_FLAGS_MAKE and FILE_FLAGS_CMAKE of the templates; ``sources`` by path."""
    wanted = list(_wanted(sources))
    make = (f"{path.removesuffix('.c')}.o: FLAGS += {' '.join(flags)}\n" for path, flags in wanted)
    cmake = (
        f'set_source_files_properties({path} PROPERTIES COMPILE_OPTIONS "{";".join(flags)}")\n'
        for path, flags in wanted
    )
    return {"FILE_FLAGS_MAKE": "".join(make), "FILE_FLAGS_CMAKE": "".join(cmake)}


def _wanted(sources: Mapping[str, object]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The C files that ask for flags, with these."""
    for path, text in sources.items():
        if path.endswith(".c") and isinstance(text, str) and (flags := flags_in(text)):
            yield path, flags
