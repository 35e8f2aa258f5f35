"""Checking and timing compiled candidates in a process of their own; the numbers that come out."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from polysci.errors import CheckError, UnsupportedError
from polysci.lower.registry import algorithm_of, location_of
from polysci.measure.samples import LEAST_SAMPLES, MOST_TURNS, Sample, Samples, fastest, is_beaten
from polysci.ops.problem import Problem
from polysci.runtime.backend import Backend
from polysci.runtime.backends import backend_named
from polysci.runtime.measurement import MIN_SAMPLE_S
from polysci.runtime.worker_process import WorkerProcess
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.target.target import HOST

Candidate = tuple[Path, str]  # a shared object, and the symbol of a primitive in it

_PREPARE_S: Final = 600.0  # the largest layers at batch 16 take some seconds
_COLD_FLOOR: Final = 64 << 20  # bytes; a VM may share more last-level cache than it can tell


def bound_of(schedule: Schedule) -> dict[str, Any]:
    """Return the members of a question to the worker that say a schedule's error bound."""
    numbers = schedule.transform.numbers if schedule.transform else ()
    return {"algorithm": location_of(schedule), "numbers": numbers}


def cold_size() -> int:
    """Return how many bytes of buffers in turns make each leave the last-level cache."""
    return max(_COLD_FLOOR, 2 * detect().last_level.size)


class CandidateError(CheckError):
    """A compiled candidate crashed, looped or was wrong; ``candidate`` says which one."""

    def __init__(self, candidate: Candidate, reason: str) -> None:
        self.candidate = candidate
        super().__init__(f"{candidate[1]} in {candidate[0]}: {reason}")


class Bench(WorkerProcess):
    """A worker process prepared with exact inputs of ``problem``, to check and time candidates.

    ``threads`` bounds the OpenMP pool of code that does not fix its own; ``timeout`` is the limit
    in seconds for one call into a candidate and its surroundings, ``seed`` that of the inputs. A
    candidate's fault raises
    ``CandidateError`` and ends the worker; the next question finds a new one. So does Ctrl-C,
    which then propagates.
    """

    def __init__(
        self,
        problem: Problem,
        threads: int = 1,
        *,
        timeout: float = 30.0,
        seed: int = 0,
        backend: Backend | None = None,
    ) -> None:
        self.problem, self.backend = problem, backend or backend_named(HOST)
        self.seed = seed
        env = {"OMP_DYNAMIC": "FALSE", "MKL_NUM_THREADS": "1"}
        name = self.backend.name
        if not self.backend.measured:
            raise UnsupportedError(f"backend {name}: no service times its code")
        super().__init__("polysci.measure.worker", name, threads=threads, env=env, timeout=timeout)
        self._prepared = False
        self._loop: Candidate | None = None
        self._least = 0.0  # what the loop is known to return a second

    def close(self) -> None:
        """End the worker process; any number of times."""
        self._prepared = False
        super().close()

    def take(self, problem: Problem) -> None:
        """Ask about candidates for another problem from now on, in the same process."""
        self.problem, self._prepared = problem, False

    def check(self, so: Path, symbol: str, schedule: Schedule | None = None) -> None:
        """Check three calls bit for bit, between guard pages.

        ``schedule`` says which algorithm's exact inputs it takes (None: the default one's).

        ``CandidateError`` gives the first mismatch's index, expected, got and how many differ, or
        the signal, the time limit or the buffer that was overrun.
        """
        exact: dict[str, Any] = {}
        if schedule:
            exact["exact"] = asdict(algorithm_of(schedule).exact_inputs(self.problem))
        self._ask_about((so, symbol), {"op": "check", "so": str(so), "symbol": symbol, **exact})

    def bound(self, so: Path, symbol: str, schedule: Schedule | None = None) -> float:
        """Check random reals against the error bound; return the largest share of it used.

        ``schedule`` says whose bound it is (None: the default algorithm's).
        """
        terms = bound_of(schedule) if schedule else {}
        self._ask_about((so, symbol), {"op": "prepare_bound", **terms}, _PREPARE_S)
        question = {"op": "bound", "so": str(so), "symbol": symbol, **terms}
        return float(self._ask_about((so, symbol), question)["worst"])

    def load(
        self,
        candidate: Candidate,
        min_sample_s: float = MIN_SAMPLE_S,
        cold_bytes: int = 0,
        *,
        weights_only: bool = False,
    ) -> int:
        """Make a candidate ready to be sampled; the handle holds until the worker ends.

        With ``cold_bytes`` successive calls use other buffers, of so many bytes in all; with
        ``weights_only`` other packed weights, and the same x and y.
        """
        so, symbol = candidate
        question = {"op": "load", "so": str(so), "symbol": symbol}
        options = {"cold_bytes": cold_bytes, "min_sample_s": min_sample_s}
        options["weights_only"] = weights_only
        return int(self._ask_about(candidate, question | options)["handle"])

    def sample(self, candidate: Candidate, handle: int, warm_up_s: float = 0.0) -> Sample:
        """Return a sample, in seconds a call, after untimed calls of at least ``warm_up_s``."""
        question = {"op": "sample", "handle": handle, "warm_up_s": warm_up_s}
        return Sample(**self._ask_about(candidate, question))

    def watch(self, so: Path, symbol: str, least: float = 0.0) -> None:
        """Run the loop ``double symbol(int64_t iterations)`` around every sample from now on.

        Its speed says whether a neighbour takes a part of the cores: it uses as many threads as
        what is timed. ``least`` is what it is known to return a second.
        """
        self._loop, self._least = (so, symbol), least
        self._watch()

    def _watch(self) -> None:
        if self._loop and self._prepared:
            so, symbol = self._loop
            self._ask_about(
                self._loop, {"op": "watch", "so": str(so), "symbol": symbol, "least": self._least}
            )

    def time(
        self,
        candidates: Sequence[Candidate],
        *,
        samples: int = 10,
        budget_s: float | None = None,
        cold: bool = False,
        min_sample_s: float = MIN_SAMPLE_S,
        eliminate: bool = False,
    ) -> list[Samples]:
        """Samples of every candidate in seconds a call, taken in turns.

        Each sample lasts at least ``min_sample_s``. Ends after ``samples`` undisturbed ones of
        every candidate (``Samples.enough``), or after three turns once ``budget_s`` seconds have
        passed. Caches are warm (an untimed call comes before each sample), or with ``cold`` every
        call works on buffers that have left the last-level cache. ``eliminate`` gives no further
        turn to a candidate that is slower than the fastest one beyond the spread of the samples.
        """
        start = time.monotonic()
        cold_bytes = cold_size() if cold else 0
        loaded: list[tuple[Candidate, int]] = []
        taken = [Samples() for _ in candidates]
        count = max(samples, LEAST_SAMPLES)
        try:
            for candidate in candidates:
                loaded.append((candidate, self.load(candidate, min_sample_s, cold_bytes)))
            for turn in range(MOST_TURNS * count):
                late = budget_s is not None and time.monotonic() - start > budget_s
                if late and turn >= LEAST_SAMPLES:
                    break
                for (candidate, handle), its in zip(loaded, taken, strict=True):
                    if not its.enough(count) and not (eliminate and is_beaten(its, taken)):
                        its.add(self.sample(candidate, handle))
        finally:
            with suppress(CheckError):
                if self._prepared:
                    self.ask({"op": "unload"})
        return taken

    def probe(
        self, so: Path, symbol: str, run_s: float = 5e-3, clock: Candidate | None = None
    ) -> Samples:
        """Some runs of ``double symbol(int64_t iterations)``, of at least ``run_s`` seconds each.

        Samples in seconds for a unit of what it returns, as a flop. ``clock``, a loop of that kind
        whose rounds take so many cycles, runs around each.
        """
        question = {"op": "probe", "so": str(so), "symbol": symbol, "run_s": run_s}
        options = {"clock": [str(clock[0]), clock[1]]} if clock else {}
        runs = self._ask_about((so, symbol), question | options)["runs"]
        return Samples([Sample(**members) for members in runs])

    def probe_device(
        self, so: Path, symbol: str, sizes: Sequence[int], run_s: float = 5e-3, turns: int = 0
    ) -> tuple[int, list[float]]:
        """Return the turns of some runs of a device's loop, and the seconds of each run.

        The loop is ``symbol(turns, buffers...)``, with buffers of ``sizes`` bytes. Runs have
        ``turns``, or if that is 0 as many as take ``run_s`` seconds.
        """
        question = {"op": "probe_device", "so": str(so), "symbol": symbol, "sizes": [*sizes]}
        answer = self._ask_about((so, symbol), question | {"run_s": run_s, "turns": turns})
        return int(answer["turns"]), [*map(float, answer["runs"])]

    def peak(self, so: Path, symbol: str) -> Sample:
        """Seconds a flop of ``double symbol(int64_t iterations)``, which returns the flops it did.

        The fastest undisturbed run of some, which are repeated MOST_TURNS times until there is
        one; then the fastest of all.
        """
        runs: list[Sample] = []
        for _ in range(MOST_TURNS):
            runs += self.probe(so, symbol).taken
            if not fastest(runs).disturbed:
                break
        return fastest(runs)

    def _ask_about(
        self, candidate: Candidate, question: Mapping[str, Any], timeout: float | None = None
    ) -> dict[str, Any]:
        self.prepare()
        try:
            return self.ask(question, timeout)
        except (CheckError, UnsupportedError) as error:
            self.close()  # even a survivor may have had its memory overwritten
            raise CandidateError(candidate, str(error)) from error
        except BaseException:
            self.close()
            raise

    def prepare(self) -> None:
        """Start the process and have it make inputs and their results, if it did not yet."""
        if self._prepared:
            return
        question = {
            "op": "prepare",
            "problem": str(self.problem),
            "layout": self.problem.layout,
            "dtype": self.problem.dtype,
            "seed": self.seed,
        }
        try:
            self.start()
            self.ask(question, max(_PREPARE_S, self.timeout))
        except BaseException:
            self.close()
            raise
        self._prepared = True
        self._watch()
