"""What turns a schedule into a running primitive: emit, build, load, time. One row a backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from polysci.errors import UnsupportedError
from polysci.lower.algorithm import PLAIN, EmitOptions
from polysci.ops.problem import Problem
from polysci.runtime.build import cache, library
from polysci.runtime.build.library import Library
from polysci.space.schedule import Schedule
from polysci.target.isa import Isa

if TYPE_CHECKING:
    from polysci.lower.direct.emit import Source


class Backend(Protocol):
    """A language that primitives are generated in, and what compiles, loads and times it.

    ``name`` is its row in BACKENDS, by which a worker process is told of it.
    """

    @property
    def name(self) -> str: ...

    def emit(
        self, problem: Problem, schedule: Schedule, threads: int = 1, options: EmitOptions = PLAIN
    ) -> Source:
        """The source of a problem under a schedule, as ``lowering.emit`` describes."""
        ...

    def build(
        self,
        text: str | Sequence[str],
        *,
        flags: Sequence[str] | None = None,
        symbols: Sequence[str] = (),
        timeout: float | None = None,
    ) -> Path:
        """The file that a source text, or several linked, compile to; built at most once.

        It defines the functions ``symbols``. The compiler may take ``timeout`` seconds.
        """
        ...

    def build_many(
        self,
        texts: Sequence[str],
        *,
        jobs: int = 2,
        symbols: Sequence[Sequence[str]] = (),
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[Path]:
        """Every text built, ``jobs`` compilers at a time; paths in the texts' order.

        ``symbols``: the functions that each of them defines; ``meanwhile``: what this process does
        while compilers run.
        """
        ...

    def load(self, path: Path, declarations: str) -> Library:
        """A built file, loaded, whose functions ``declarations`` declare."""
        ...

    def time(self, run: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> float:
        """Mean seconds of a call of ``run``, one with each of ``arguments``, in a row."""
        ...


@dataclass(frozen=True, slots=True)
class COpenMP:
    """C with OpenMP for CPUs, compiled by this machine's compiler, called through cffi."""

    name: str = "c"

    def emit(
        self, problem: Problem, schedule: Schedule, threads: int = 1, options: EmitOptions = PLAIN
    ) -> Source:
        """C source; raises IllegalScheduleError, SpecError or UnsupportedError."""
        from polysci.lower import lowering  # a process that loads and times needs no isl

        return lowering.emit(problem, schedule, threads, options)

    def build(
        self,
        text: str | Sequence[str],
        *,
        flags: Sequence[str] | None = None,
        symbols: Sequence[str] = (),
        timeout: float | None = None,
    ) -> Path:
        """The shared object, as ``cache.build`` makes it. Raises BuildError."""
        return cache.build(text, flags=flags, symbols=symbols, timeout=timeout)

    def build_many(
        self,
        texts: Sequence[str],
        *,
        jobs: int = 2,
        symbols: Sequence[Sequence[str]] = (),
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[Path]:
        """Shared objects. BuildError of the first text that fails."""
        return cache.build_many(texts, jobs=jobs, symbols=symbols, meanwhile=meanwhile)

    def load(self, path: Path, declarations: str) -> Library:
        """The shared object in this process. Raises BuildError."""
        return library.load(path, declarations)

    def time(self, run: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> float:
        """By the clock of the process; the Python loop adds 0.3 us to each call."""
        start = time.perf_counter_ns()
        for words in arguments:
            run(*words)
        return (time.perf_counter_ns() - start) / len(arguments) * 1e-9


CPU: Final[Backend] = COpenMP()
BACKENDS: Mapping[str, Backend] = MappingProxyType({row.name: row for row in (CPU,)})


def backend_of(isa: Isa) -> Backend:
    """The backend that an instruction set's row names. Raises UnsupportedError if there is none."""
    if isa.backend not in BACKENDS:
        known = ", ".join(BACKENDS)
        raise UnsupportedError(f"ISA {isa}: no backend {isa.backend!r}; known: {known}")
    return BACKENDS[isa.backend]
