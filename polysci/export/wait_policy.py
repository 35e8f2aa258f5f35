"""The text about OpenMP threads that wait, in exported files."""

from __future__ import annotations

from textwrap import wrap
from typing import Final

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
