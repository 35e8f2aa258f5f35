"""The peer's worker: one convolution at a time, by the fastest way that PyTorch has for it.

Weights are packed ahead, autograd is off. ``torch`` is imported with the first problem.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final

from polysci.errors import CheckError
from polysci.measure.worker import Timed
from polysci.ops import convolution, parse_problem
from polysci.peers.example_inputs import example_inputs
from polysci.peers.pytorch import floats, integers
from polysci.peers.pytorch.operands import Operands, Path, Run

# The ways of a precision, by the element of x.
WAYS: Final[Mapping[str, Callable[[Operands], Iterator[Path]]]] = MappingProxyType(
    {
        "f32": floats.paths,
        "bf16": floats.paths,
        "f16": floats.paths,
        "u8": integers.paths,
        "s8": integers.paths,
    }
)
_TRIALS: Final = 5  # samples that decide between the paths


class PyTorch:
    """One convolution at a time, by the fastest of its paths."""

    operations = ("prepare", "load", "sample")

    def __init__(self) -> None:
        self._torch: Any = None
        self._paths: Mapping[str, Run] = {}
        self._timed: tuple[Timed, int]

    def prepare(
        self, problem: str, layout: str, dtype: str, threads: int, seed: int
    ) -> dict[str, Any]:
        """Make inputs, pack weights, and compare the result of every path with the reference.

        ``refused`` says of paths that PyTorch does not have here why not. Raises CheckError where
        PyTorch is missing, has no path at all or computes something else.
        """
        self._torch = torch = _torch(threads)
        conv = convolution(parse_problem(problem, layout))
        with torch.inference_mode():
            operands = Operands.of(torch, conv, example_inputs(conv, dtype, seed))
            self._paths, refused = _verify(operands)
        if not self._paths:
            reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
            raise CheckError(f"PyTorch {torch.__version__} has no {dtype} here: {reasons}")
        return {"version": torch.__version__, "paths": list(self._paths), "refused": refused}

    def load(self, min_sample_s: float) -> dict[str, Any]:
        """Choose the fastest path and the calls of a sample."""
        timed = {name: Timed(run, repeat(()), ()) for name, run in self._paths.items()}
        calls = {name: self._inside(run.calls, min_sample_s) for name, run in timed.items()}
        fastest = dict.fromkeys(timed, float("inf"))
        for _ in range(_TRIALS):
            for name, timer in timed.items():
                fastest[name] = min(fastest[name], self._inside(timer.seconds, calls[name]))
        best = min(fastest, key=lambda name: (fastest[name], name))
        self._timed = timed[best], calls[best]
        return {"path": best, "seconds": fastest}

    def sample(self, warm_up_s: float) -> dict[str, Any]:
        """One sample, in seconds a call, after untimed calls of at least ``warm_up_s``."""
        timed, calls = self._timed
        self._inside(timed.warm_up, warm_up_s)
        return {"seconds": self._inside(timed.seconds, calls)}

    def _inside(self, measure: Callable[[Any], Any], argument: float) -> Any:
        with self._torch.inference_mode():
            return measure(argument)


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
    for path in WAYS[operands.inputs.elements[0]](operands):
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
