"""Is a schedule's code right? Exact and bound mode, between guard pages, in a worker process."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from polysci.errors import BuildError, NoCompilerError, SpecError
from polysci.lower.algorithm import SYMBOL
from polysci.measure.bench import Bench, CandidateError
from polysci.ops.problem import Problem
from polysci.runtime.backend import Backend
from polysci.runtime.source import Source, emit
from polysci.space.schedule import Schedule
from polysci.text.names import suggest

MODES: Final = ("exact", "bound")
_SECONDS: Final = 60.0  # for one check of the smallest layer
_RATE: Final = 2e8  # flop/s that even the slowest code on a busy machine reaches


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of one mode: ``fault`` is empty where the code is right.

    ``worst`` is the largest share of the error bound that was used; None in exact mode.
    """

    problem: Problem
    schedule: Schedule
    threads: int
    mode: str
    seed: int
    fault: str = ""
    worst: float | None = None

    @property
    def passed(self) -> bool:
        return not self.fault

    @property
    def command(self) -> str:
        """The command line that repeats this very check."""
        problem = str(self.problem.with_(name="", multiplicity=1))
        layout = ["--layout", self.problem.layout] if self.problem.layout else []
        dtype = ["--dtype", self.problem.dtype] if self.problem.dtype != "f32" else []
        return shlex.join(
            [
                *("polysci", "check", problem, *layout, *dtype),
                *("--threads", str(self.threads), "--schedule", str(self.schedule)),
                *("--mode", self.mode, "--seed", str(self.seed)),
            ]
        )

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'} {self.mode}: {self.command}"


def time_limit(problem: Problem) -> float:
    """Return seconds that one check of a layer may take."""
    return _SECONDS + problem.flops / _RATE


def check(
    problem: Problem,
    schedules: Iterable[Schedule],
    threads: int = 1,
    *,
    modes: Sequence[str] = MODES,
    seed: int = 0,
    backend: Backend | None = None,
) -> Iterator[Verdict]:
    """Build every schedule and compare its results with the references.

    ``exact``: integers, bit for bit. ``bound``: random reals against float64, within
    gamma_n (|W| * |X| + |bias| + |residual|), n the products and additions of one result, and the
    rounding of y to its type; where x is whole nothing is rounded, and other integers stand in.
    Both put the buffers against guard pages. An algorithm may have integers and a bound of its own
    (``Algorithm.exact_inputs``, ``error_terms``). A fault is a verdict. Raises SpecError for
    another mode, IllegalScheduleError, SpecError or UnsupportedError for a schedule that does not
    fit, NoCompilerError where nothing can be built.
    """
    for mode in modes:
        if mode not in MODES:
            raise SpecError(
                f"mode {mode!r}: expected one of {', '.join(MODES)}{suggest(mode, MODES)}"
            )
    with Bench(problem, threads, timeout=time_limit(problem), seed=seed, backend=backend) as bench:
        for schedule in schedules:
            source = emit(problem, schedule, threads)
            for mode in modes:
                yield _verdict(bench, source, Verdict(problem, schedule, threads, mode, seed))


def _verdict(bench: Bench, source: Source, request: Verdict) -> Verdict:
    what = (request.problem, request.schedule, request.threads, request.mode, request.seed)
    try:
        path = bench.backend.build(source.file, symbols=source.symbols, module=source.module)
        if request.mode == "bound":
            return Verdict(*what, worst=bench.bound(path, SYMBOL, request.schedule))
        bench.check(path, SYMBOL, request.schedule)
    except NoCompilerError:
        raise
    except (BuildError, CandidateError) as error:
        return Verdict(*what, fault=str(error))
    return request
