"""The OpenMP pragmas that share work among the threads that run generated C.

Without OpenMP the code is serial.
"""

from __future__ import annotations

from typing import Final

BARRIER: Final = "#pragma omp barrier"
MASTER: Final = "#pragma omp master"
SIMD: Final = "#pragma omp simd"
SIMD_OF: Final = "#pragma omp simd simdlen({})"  # elements of a vector, where the ISA has such


def parallel(threads: int) -> str:
    """A parallel region."""
    return f"#pragma omp parallel num_threads({threads})"


def parallel_loop(threads: int, clause: str = "schedule(static)") -> str:
    """A parallel region that is one loop."""
    return f"#pragma omp parallel for num_threads({threads}) {clause}"


def loop(
    loops: int = 1, *, simd: bool = False, wait: bool = False, chunk: int | None = None
) -> str:
    """The threads of the region share so many nested loops; with ``wait`` all wait at the end.

    ``chunk`` is how many turns in a row a thread takes, by default all of its share.
    """
    static = "schedule(static)" if chunk is None else f"schedule(static, {chunk})"
    clauses = " simd" * simd + f" collapse({loops})" * (loops > 1)
    return f"#pragma omp for{clauses} {static}" + " nowait" * (not wait)


def single(*, wait: bool = True) -> str:
    """One thread of the region executes what follows."""
    return "#pragma omp single" + " nowait" * (not wait)


def guard(pragma: str) -> list[str]:
    """The lines of a pragma that a compiler without OpenMP does not see."""
    return ["#ifdef _OPENMP", pragma, "#endif"]
