"""The peer's worker: one layer at a time, by the fastest way that the library has for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from polysci.errors import UnsupportedError
from polysci.measure.disturbance import observe
from polysci.measure.timed_calls import Timed, count_copies
from polysci.ops import parse_problem
from polysci.peers.example_inputs import example_inputs
from polysci.peers.fastest import TimedPaths
from polysci.peers.onednn.library import Dnnl
from polysci.peers.onednn.operators import operator_of
from polysci.peers.onednn.paths import DnnlPath, DnnlProblem


class OneDNN:
    """One layer at a time; its threads are those of the process's ``OMP_NUM_THREADS``."""

    operations = ("open", "prepare", "load", "sample")

    def __init__(self) -> None:
        self._dnnl: Dnnl | None = None
        self._problem: DnnlProblem
        self._paths: dict[str, DnnlPath] = {}
        self._timed: dict[bool, tuple[Timed, int]] = {}  # by whether weights are cold

    def open(self, library: str | None = None) -> dict[str, Any]:
        """Load the library; ``version`` names its file too. Raises UnsupportedError for none."""
        self._dnnl = Dnnl(library)
        return {"version": self._dnnl.version}

    def prepare(
        self,
        problem: str,
        layout: str,
        dtype: str,
        threads: int,
        seed: int,
        library: str | None = None,
    ) -> dict[str, Any]:
        """Make inputs, pack weights, and compare the result of every path with the reference.

        The library is loaded as ``open`` does if that has not been done.
        ``refused`` says of settings that the library does not have here why not. Raises
        UnsupportedError where it has none, and CheckError where it computes something else.
        """
        dnnl = self._dnnl = self._dnnl or Dnnl(library)
        layer = parse_problem(problem, layout, dtype)
        self._paths, self._timed = {}, {}  # of the layer before: its memory may be needed
        self._problem = DnnlProblem(dnnl, operator_of(layer), example_inputs(layer, dtype, seed))
        for path in self._problem.paths():
            self._problem.verify(path)
            self._paths[path.name] = path
        refused = self._problem.refused
        if not self._paths:
            reasons = "; ".join(dict.fromkeys(refused.values()))
            raise UnsupportedError(f"oneDNN {dnnl.version} has no {dtype} here: {reasons}")
        return {"version": dnnl.version, "paths": list(self._paths), "refused": refused}

    def load(self, min_sample_s: float, cold_bytes: int = 0) -> dict[str, Any]:
        """Choose the fastest path with x and y in the problem's layout; ``seconds`` has all.

        With ``cold_bytes`` it is made ready for calls with cold weights too.
        """
        timed = {name: self._ready([path]) for name, path in self._paths.items()}
        trials = TimedPaths.of(timed, min_sample_s)
        best = min(
            (name for name, path in self._paths.items() if path.plain),
            key=lambda name: (trials.seconds[name], name),
        )
        self._timed = {False: (timed[best], trials.calls[best])}
        if cold_bytes:
            cold = self._ready(self._copies(self._paths[best], cold_bytes))
            self._timed[True] = cold, cold.calls(min_sample_s)
        return {"path": best, "seconds": trials.seconds}

    def sample(self, warm_up_s: float, cold: bool = False) -> dict[str, Any]:
        """One ``Sample``, in seconds a call, after untimed calls of at least ``warm_up_s``."""
        timed, calls = self._timed[cold]
        timed.warm_up(warm_up_s)
        seconds, shares = observe(lambda: timed.seconds(calls))
        return {"seconds": seconds, **shares}

    def _copies(self, path: DnnlPath, cold_bytes: int) -> list[DnnlPath]:
        """The path on copies of its weights."""
        count = count_copies(path.weights.data.nbytes, cold_bytes)
        weights = [self._problem.copy_weights(path) for _ in range(count - 1)]
        return [path, *map(path.with_weights, weights)]

    def _ready(self, copies: Sequence[DnnlPath]) -> Timed:
        """A path to be timed, its copies one after the other."""
        assert self._dnnl is not None
        calls = [self._dnnl.call(path.steps) for path in copies]
        return Timed(self._dnnl.execute, cycle([args for args, _ in calls]), (copies, calls))
