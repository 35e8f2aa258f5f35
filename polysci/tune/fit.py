"""The prices of the cost model on this machine, fitted to schedules that were measured on it."""

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
from polysci.target.host import Target
from polysci.target.machine import PRICES, Machine
from polysci.tune.sample import stratified_sample

COUNT = 10  # schedules a layer
SLOW = 2  # power of (least / seconds) that weighs a schedule: the fit is for the good ones
TRUST = 0.004  # of the defaults, against one measured schedule: decides what was not exercised
# Small layers that exercise every price: short and long reductions, outputs and weights that leave
# the caches, strides, packing, both layouts, no reduction at all.
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
Row = tuple[float, float, dict[str, float], float]  # measured, unpriced, counts, least of the layer


def fit_coefficients(target: Target, machine: Machine, progress: Progress | None = None) -> Machine:
    """The machine with its prices fitted to COUNT measured schedules of every one of LAYERS.

    ``progress(done, total)`` after every layer. Raises BuildError or CheckError.
    """
    rows: list[Row] = []
    for done, problem in enumerate(LAYERS):
        rows += _measured(problem, target, machine)
        if progress:
            progress(done + 1, len(LAYERS))
    return replace(machine, **coefficients(rows, machine))


def _measured(problem: Conv2d, target: Target, machine: Machine) -> Iterator[Row]:
    _, roles, strides = model_of(problem)
    context = Context(roles, strides, target, machine)
    plans = stratified_sample(context, COUNT, first=2)
    with Bench(problem) as bench:
        found = [
            (one.schedule, min(samples))
            for one, samples in time_trials(bench, build_trials(problem, plans))
            if not isinstance(samples, PolysciError)
        ]
    least = min((seconds for _, seconds in found), default=0.0)
    for plan, seconds in found:
        unpriced, counts = work(*as_family(context, plan))
        yield seconds, float(unpriced[0]), {k: float(v[0]) for k, v in counts.items()}, least


def coefficients(rows: Sequence[Row], machine: Machine) -> dict[str, Any]:
    """Prices, none below 0, that explain what the unpriced part of the model leaves over.

    Least squares of the relative error (Lawson and Hanson's NNLS). A price that nothing measured
    depends on keeps the machine's value.
    """
    names = [name for name in PRICES if any(row[2][name] > 0 for row in rows)]
    before = np.array([machine.price(name) for name in names])
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
