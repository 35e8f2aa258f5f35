"""The peer's worker: one layer at a time, by the fastest way that PyTorch has for it.

Constant weights are packed ahead, autograd is off. ``torch`` is imported with the first problem.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import cycle, repeat
from types import MappingProxyType
from typing import Any, Final

from polysci.errors import CheckError
from polysci.measure.disturbance import observe
from polysci.measure.timed_calls import Timed, TimedPaths, count_copies
from polysci.ops import parse_problem
from polysci.peers.example_inputs import example_inputs
from polysci.peers.pytorch.operands import Operands, Path, Run
from polysci.peers.pytorch.ways import float_paths, integer_paths
from polysci.runtime.backends.host import Host

# The ways of a precision, by the element of x.
WAYS: Final[Mapping[str, Callable[[Operands], Iterator[Path]]]] = MappingProxyType(
    {
        "f32": float_paths,
        "bf16": float_paths,
        "f16": float_paths,
        "u8": integer_paths,
        "s8": integer_paths,
    }
)
_MOST_COPIES: Final = 1 << 12  # of cold weights: TorchScript compiles each for milliseconds


class PyTorch:
    """One layer at a time, by the fastest of its paths."""

    operations = ("prepare", "load", "sample")

    def __init__(self) -> None:
        self._torch: Any = None
        self._paths: Mapping[str, Run] = {}
        self._operands: Operands
        self._timed: dict[bool, tuple[Timed, int]]  # by whether weights are cold

    def prepare(
        self, problem: str, layout: str, dtype: str, threads: int, seed: int
    ) -> dict[str, Any]:
        """Make inputs, pack weights, and compare the result of every path with the reference.

        ``refused`` says of paths that PyTorch does not have here why not. Raises CheckError where
        PyTorch is missing, has no path at all or computes something else, and UnsupportedError
        for a precision or padding that it lacks.
        """
        self._torch = torch = _torch(threads)
        layer = parse_problem(problem, layout, dtype)
        with torch.inference_mode():
            self._operands = Operands.of(torch, layer, example_inputs(layer, dtype, seed))
            self._paths, refused = _verify(self._operands)
        if not self._paths:
            reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
            raise CheckError(f"PyTorch {torch.__version__} has no {dtype} here: {reasons}")
        return {"version": torch.__version__, "paths": list(self._paths), "refused": refused}

    def load(self, min_sample_s: float, cold_bytes: int = 0) -> dict[str, Any]:
        """Choose the fastest path and the calls of a sample.

        With ``cold_bytes`` the fastest one that can be made many times is made ready for calls with
        cold weights too.
        """
        timed = {name: Timed(Host(), run, repeat(()), ()) for name, run in self._paths.items()}
        with self._torch.inference_mode():
            trials = TimedPaths.of(timed, min_sample_s)
            best = trials.fastest(timed)
            self._timed = {False: (timed[best], trials.calls[best])}
            if cold_bytes:
                once = {path.name for path in _ways(self._operands) if path.once}
                again = trials.fastest(timed.keys() - once)
                cold = Timed(Host(), _call, cycle(self._copies(again, cold_bytes)), ())
                self._timed[True] = cold, cold.calls(min_sample_s)
        return {"path": best, "seconds": trials.seconds}

    def sample(self, warm_up_s: float, cold: bool = False) -> dict[str, Any]:
        """One ``Sample``, in seconds a call, after untimed calls of at least ``warm_up_s``."""
        timed, calls = self._timed[cold]
        with self._torch.inference_mode():
            timed.warm_up(warm_up_s)
            seconds, shares = observe(lambda: timed.seconds(calls))
            return {"seconds": seconds, **shares}

    def _copies(self, name: str, cold_bytes: int) -> list[tuple[Run]]:
        """Calls of a path, each with weights of its own."""
        operands = self._operands
        size = operands.inputs.w.nbytes
        count = min(count_copies(size, cold_bytes), _MOST_COPIES)
        others = (replace(operands, w=operands.w.clone()) for _ in range(count - 1))
        paths = (path for other in others for path in _ways(other) if path.name == name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [(self._paths[name],), *((path.make(),) for path in paths)]


def _call(run: Run) -> int:
    run()
    return 0


def _ways(operands: Operands) -> Iterator[Path]:
    return WAYS[operands.inputs.elements[0]](operands)


def _torch(threads: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        try:
            import torch
        except (ImportError, OSError) as error:
            raise CheckError(f"PyTorch cannot be imported: {error}") from error
    if not torch.backends.mkldnn.is_available():
        raise CheckError(f"PyTorch {torch.__version__} was built without oneDNN")
    torch.set_num_threads(threads)
    return torch


def _verify(operands: Operands) -> tuple[dict[str, Run], dict[str, str]]:
    """The paths that are there, each found right, and why others are not."""
    verified, refused = dict[str, Run](), dict[str, str]()
    for path in _ways(operands):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # TorchScript and quantised tensors are called old
                run = path.make()
                y = run()
        except RuntimeError as error:
            refused[path.name] = str(error).partition("\n")[0]
            continue
        operands.verify(path, y)
        verified[path.name] = run
    return verified, refused
