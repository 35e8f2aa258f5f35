"""Fit the cost model's coefficients to schedules measured on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from polysci.algorithms.lowering import model_of
from polysci.errors import PolysciError
from polysci.measure.bench import Bench
from polysci.measure.trials import build_trials, time_trials
from polysci.ops.conv2d import Conv2d
from polysci.rank import Context
from polysci.rank.shortlist import as_family
from polysci.rank.traffic import work
from polysci.runtime.backend import backend_of
from polysci.target.host import Target
from polysci.target.machine import COEFFICIENTS, Machine
from polysci.tune.sample import sample_schedules

COUNT = 10  # schedules a layer
SLOW = 2  # a schedule has the weight (least / seconds) ** SLOW: the fit is for the fast ones
TRUST = 0.004  # weight of the defaults, against one measured schedule
# Small layers that exercise every coefficient: short and long reductions, outputs and weights that
# exceed the caches, strides, packing, both layouts, no reduction at all.
LAYERS = (
    Conv2d(N=1, C=64, H=56, W=56, K=256, R=1, S=1),
    Conv2d(N=1, C=512, H=28, W=28, K=64, R=1, S=1),
    Conv2d(N=1, C=64, H=28, W=28, K=64, R=3, S=3, pad=1),
    Conv2d(N=1, C=256, H=7, W=7, K=256, R=3, S=3, pad=1),
    Conv2d(N=1, C=1024, H=14, W=14, K=256, R=1, S=1, stride=2),
    Conv2d(N=1, C=2048, H=7, W=7, K=512, R=1, S=1),
    Conv2d(N=1, C=3, H=112, W=112, K=32, R=3, S=3, stride=2, pad=1),
    Conv2d(N=1, C=128, H=28, W=28, K=128, R=3, S=3, pad=1, groups=128),
    Conv2d(N=1, C=64, H=56, W=56, K=64, R=3, S=3, stride=2, pad=1, groups=64),
    Conv2d(N=1, C=512, H=14, W=14, K=512, R=3, S=3, pad=1, groups=512),
    Conv2d(N=1, C=1024, H=7, W=7, K=1024, R=3, S=3, pad=1, groups=1024),
    Conv2d(N=1, C=128, H=28, W=28, K=128, R=1, S=1, layout="nchw"),
    Conv2d(N=1, C=64, H=28, W=28, K=64, R=3, S=3, pad=1, layout="nchw"),
)  # fmt: skip

Progress = Callable[[int, int], None]
Numbers = NDArray[np.float64]
Row = tuple[float, float, dict[str, float], float]  # measured, fixed part, counts, layer's least


def fit_coefficients(target: Target, machine: Machine, progress: Progress | None = None) -> Machine:
    """The machine with coefficients fitted to COUNT measured schedules of each layer of LAYERS.

    ``progress(done, total)`` after every layer. Raises BuildError or CheckError.
    """
    rows: list[Row] = []
    for done, problem in enumerate(LAYERS):
        rows += _measure(problem, target, machine)
        if progress:
            progress(done + 1, len(LAYERS))
    return replace(machine, **coefficients(rows, machine))


def _measure(problem: Conv2d, target: Target, machine: Machine) -> Iterator[Row]:
    _, roles, strides = model_of(problem)
    context = Context(roles, strides, target, machine)
    schedules = sample_schedules(context, COUNT, first=2)
    with Bench(problem, backend=backend_of(target.isa)) as bench:
        built = build_trials(problem, schedules, backend=bench.backend)
        timed = [
            (trial.schedule, min(samples.seconds))
            for trial, samples in time_trials(bench, built)
            if not isinstance(samples, PolysciError)
        ]
    fastest = min((seconds for _, seconds in timed), default=0.0)
    for schedule, seconds in timed:
        fixed, counts = work(*as_family(context, schedule))
        yield seconds, float(fixed[0]), {k: float(v[0]) for k, v in counts.items()}, fastest


def coefficients(rows: Sequence[Row], machine: Machine) -> dict[str, Any]:
    """Coefficients, none below 0, that explain the measured time beyond the model's fixed part.

    Least squares of the relative error (Lawson and Hanson's NNLS). A coefficient on which no
    measured schedule depends keeps the machine's value.
    """
    names = [name for name in COEFFICIENTS if any(row[2][name] > 0 for row in rows)]
    before = np.array([machine.coefficient(name) for name in names])
    measured = np.array([row[0] for row in rows])
    weight = (np.array([row[3] for row in rows]) / measured) ** SLOW / measured
    counts = np.array([[row[2][name] for name in names] for row in rows])
    left = measured - np.array([row[1] for row in rows])
    scale = np.maximum(before, 1e-3)
    prior = TRUST * np.sqrt(len(rows)) * np.diag(1 / scale)
    solution, _ = nnls(
        np.vstack([counts * weight[:, None], prior]),
        np.concatenate([left * weight, prior @ before]),
    )
    return dict(zip(names, map(float, solution), strict=True))
