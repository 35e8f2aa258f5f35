"""The OpenMP pragmas of generated C; without OpenMP the code is serial."""

from __future__ import annotations

from typing import Final

BARRIER: Final = "#pragma omp barrier"
MASTER: Final = "#pragma omp master"
SIMD: Final = "#pragma omp simd"
SIMD_OF: Final = "#pragma omp simd simdlen({})"  # elements of a vector, where the ISA has such
SIMD_SUM: Final = "#pragma omp simd reduction(+ : {})"  # of variables


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
    words = " simd" * simd + f" collapse({loops})" * (loops > 1)
    return f"#pragma omp for{words} {static}" + " nowait" * (not wait)


def single(*, wait: bool = True) -> str:
    """One thread of the region executes what follows."""
    return "#pragma omp single" + " nowait" * (not wait)


def team(threads: int, *, joined: bool, last: bool) -> str:
    """A loop over thread numbers: a region of its own, or a share of the caller's.

    In the caller's region nobody waits after the ``last`` one.
    """
    return loop(wait=not last) if joined else parallel_loop(threads)


def guard(pragma: str) -> list[str]:
    """The lines of a pragma that a compiler without OpenMP does not see."""
    return ["#ifdef _OPENMP", pragma, "#endif"]
