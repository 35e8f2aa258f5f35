"""Fit the cost model's coefficients to schedules measured on this machine.

The schedules are a stratified sample: fast, medium and slow ones of every kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

import numpy as np
from numpy.typing import NDArray

from polysci.cost import Context, traffic
from polysci.cost.rankers import space_of
from polysci.cost.shortlist import Choice, Ranked, as_family, distinct, turns, view_contexts
from polysci.cost.traffic import work
from polysci.errors import CheckError, PolysciError, UnsupportedError
from polysci.measure.bench import Bench
from polysci.measure.samples import Samples, check_quiet
from polysci.measure.trials import BuiltSchedule, build_all, time_trials
from polysci.ops.convolutions import Conv2d
from polysci.ops.model import model_of
from polysci.runtime.backends import backend_of
from polysci.space.directives import Stream
from polysci.space.enumerate import Family
from polysci.space.schedule import Schedule
from polysci.target import microkernels
from polysci.target.coefficients import FITTED, TABLE
from polysci.target.machine import Machine, assume_rates
from polysci.target.target import Target
from polysci.tune.probes import build_reference

SAMPLED = 8  # schedules a layer, of which some are measured
COUNT = 32  # schedules measured: the fit is as good as one to all that are sampled
SLOW = 2  # a schedule has the weight (least / seconds) ** SLOW: the fit is for the fast ones
MOST_LEFT_OUT = 0.5  # of them, as disturbed: fourteen coefficients have 18 equations then
REPEATS = 5  # of a layer's disturbed schedules, at most
PAUSE_S = 0.1  # before a repeat: some of the scheduler's slices
TRUST = 0.007  # weight of the defaults, against one measured schedule
# Small layers that exercise every coefficient: short and long reductions, outputs and weights that
# exceed the caches, strides, packing, both layouts, walks over pages, no reduction at all.
LAYERS = (
    Conv2d(N=1, C=64, H=56, W=56, K=256, R=1, S=1),
    Conv2d(N=1, C=512, H=28, W=28, K=64, R=1, S=1),
    Conv2d(N=1, C=256, H=7, W=7, K=256, R=3, S=3, pad=1),
    Conv2d(N=1, C=1024, H=14, W=14, K=256, R=1, S=1, stride=2),
    Conv2d(N=1, C=2048, H=7, W=7, K=512, R=1, S=1),
    Conv2d(N=1, C=3, H=112, W=112, K=32, R=3, S=3, stride=2, pad=1),
    Conv2d(N=1, C=128, H=28, W=28, K=128, R=3, S=3, pad=1, groups=128),
    Conv2d(N=1, C=128, H=56, W=56, K=128, R=3, S=3, pad=1, groups=128),
    Conv2d(N=1, C=512, H=14, W=14, K=512, R=3, S=3, pad=1, groups=512),
    Conv2d(N=1, C=1024, H=7, W=7, K=1024, R=3, S=3, pad=1, groups=1024),
    Conv2d(N=1, C=128, H=56, W=56, K=128, R=3, S=3, pad=1, groups=32),
    Conv2d(N=1, C=128, H=28, W=28, K=128, R=1, S=1, layout="nchw"),
    Conv2d(N=1, C=256, H=56, W=56, K=64, R=1, S=1, layout="nchw"),
)  # fmt: skip

Progress = Callable[[int, int], None]
Numbers = NDArray[np.float64]
Pair = tuple[Conv2d, Schedule]
Row = tuple[float, float, dict[str, float], float]  # measured, fixed part, counts, layer's least
RANGES = (1.1, 1.5, 4.0)  # bounds of predicted seconds over the least; equal shares of the sample


@dataclass(frozen=True, slots=True)
class ModelledSchedule:
    """A schedule of a layer, the seconds that no coefficient changes, and what those multiply."""

    problem: Conv2d
    schedule: Schedule
    fixed: float
    counts: Mapping[str, float]


def schedules_to_measure(target: Target) -> list[Pair]:
    """COUNT schedules of the layers LAYERS, by assumed rates: the same at every calibration."""
    machine = assume_rates(target)
    sample = [
        model_schedule(problem, schedule, target, machine)
        for problem in LAYERS
        for schedule in sample_schedules(_context(problem, target, machine), SAMPLED, first=2)
    ]
    return [(part.problem, part.schedule) for part in choose_informative(sample, machine, COUNT)]


def fit_coefficients(
    target: Target, machine: Machine, trials: Sequence[Pair], progress: Progress | None = None
) -> Machine:
    """The machine with coefficients fitted to measured schedules, those of a layer in a row.

    ``progress(done, total)`` after every layer. Raises BuildError, CheckError, or DisturbedError
    where the machine is too busy.
    """
    machine = fit_latency(machine)
    chosen = [model_schedule(*trial, target, machine) for trial in trials]
    backend = backend_of(target)
    jobs = max(2, target.cores)
    built = build_all(trials, jobs=jobs, backend=backend, share=max(1, len(trials) // jobs // 2))
    if progress:
        progress(1, 2)
    rows, measured = list[Row](), list[Samples]()
    with Bench(LAYERS[0], backend=backend) as bench:
        bench.watch(*build_reference(target))
        pairs = zip(chosen, built, strict=True)
        for problem, group in groupby(pairs, key=lambda pair: pair[0].problem):
            bench.take(problem)
            timed = list(_time(bench, list(group)))
            measured += [samples for _, samples in timed]
            rows += _rows(timed)
            if progress:
                progress(len(built) + len(measured), 2 * len(built))
    if not measured:
        raise CheckError(
            "none of the schedules that calibration times gives right results on this machine; "
            f"to see why: polysci check {LAYERS[0]}"
        )
    check_quiet("schedules", measured, MOST_LEFT_OUT)
    fitted = fit(rows, machine)
    return machine.with_coefficients(fitted.values, fitted.errors)


def _context(problem: Conv2d, target: Target, machine: Machine) -> Context:
    _, roles, strides = model_of(problem)
    return Context(roles, strides, target, machine)


def model_schedule(
    problem: Conv2d, schedule: Schedule, target: Target, machine: Machine
) -> ModelledSchedule:
    """Return the model's terms of a schedule, for the fit."""
    fixed, counts = work(*as_family(_context(problem, target, machine), schedule))
    numbers = {name: float(count[0]) for name, count in counts.items()}
    return ModelledSchedule(problem, schedule, float(fixed[0]), numbers)


def choose_informative(
    sample: Sequence[ModelledSchedule], machine: Machine, count: int
) -> list[ModelledSchedule]:
    """The schedules whose times tell most about the coefficients, in the sample's order.

    A D-optimal design (Fedorov, Theory of Optimal Experiments, 1972), one schedule after the other:
    the next one is that whose predicted share of time is least determined by those before.
    """
    if len(sample) <= count:
        return list(sample)
    before = np.array([machine.coefficient(name) for name in FITTED])
    counts = np.array([[part.counts[name] for name in FITTED] for part in sample])
    predicted = np.array([part.fixed for part in sample]) + counts @ before
    least = {part.problem: np.inf for part in sample}
    for part, seconds in zip(sample, predicted, strict=True):
        least[part.problem] = min(least[part.problem], seconds)
    fast = (np.array([least[part.problem] for part in sample]) / predicted) ** SLOW
    shares = counts * np.maximum(before, 1e-3) * (fast / predicted)[:, None]
    information = np.eye(len(before)) * TRUST**2 * count
    chosen = set[int]()
    while len(chosen) < count:
        unknown = np.einsum("ij,jk,ik->i", shares, np.linalg.inv(information), shares)
        unknown[list(chosen)] = -1.0
        best = int(np.argmax(unknown))
        chosen.add(best)
        information += np.outer(shares[best], shares[best])
    return [sample[at] for at in sorted(chosen)]


def _time(
    bench: Bench, pairs: Sequence[tuple[ModelledSchedule, BuiltSchedule]]
) -> Iterator[tuple[ModelledSchedule, Samples]]:
    """The samples of every schedule of a layer that works; disturbed ones are repeated."""
    timed = {
        at: samples
        for at, (_, samples) in enumerate(time_trials(bench, [built for _, built in pairs]))
        if not isinstance(samples, PolysciError)
    }
    for _ in range(REPEATS):
        busy = [at for at, samples in timed.items() if samples.disturbed]
        if not busy:
            break
        time.sleep(PAUSE_S)
        again = time_trials(bench, [pairs[at][1] for at in busy], check=False)
        for at, (_, samples) in zip(busy, again, strict=True):
            if not isinstance(samples, PolysciError):
                timed[at].taken += samples.taken
    for at, samples in timed.items():
        yield pairs[at][0], samples


def _rows(timed: Sequence[tuple[ModelledSchedule, Samples]]) -> Iterator[Row]:
    """Yield the rows of one layer's undisturbed schedules."""
    clean = [(modelled, min(its.seconds)) for modelled, its in timed if not its.disturbed]
    fastest = min((seconds for _, seconds in clean), default=0.0)
    for modelled, seconds in clean:
        yield seconds, modelled.fixed, dict(modelled.counts), fastest


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients by name, and the standard error of each."""

    values: Mapping[str, float]
    errors: Mapping[str, float]


def fit(rows: Sequence[Row], machine: Machine) -> Fit:
    """Return coefficients within bounds that explain the measured time beyond the fixed part.

    Least squares of the relative error, with bounds (Branch, Coleman and Li, 1999), drawn to the
    machine's values by TRUST. A coefficient on which no measured schedule depends keeps the
    machine's value. Standard errors are those of the squares without bounds.
    """
    from scipy.optimize import lsq_linear  # half a second to import, and only a fit needs it

    names = [name for name in FITTED if any(row[2][name] > 0 for row in rows)]
    before = np.array([machine.coefficient(name) for name in names])
    measured = np.array([row[0] for row in rows])
    weight = (np.array([row[3] for row in rows]) / measured) ** SLOW / measured
    counts = np.array([[row[2][name] for name in names] for row in rows])
    left = measured - np.array([row[1] for row in rows])
    scale = np.maximum(before, 1e-3)
    prior = TRUST * np.sqrt(len(rows)) * np.diag(1 / scale)
    matrix = np.vstack([counts * weight[:, None], prior])
    wanted = np.concatenate([left * weight, prior @ before])
    bounds = np.array([(TABLE[name].least, TABLE[name].most) for name in names]).T
    fitted = lsq_linear(matrix, wanted, bounds=bounds)
    rest = (matrix @ fitted.x - wanted)[: len(rows)]
    variance = rest @ rest / max(1, len(rows) - len(names))
    errors = np.sqrt(variance * np.diag(np.linalg.inv(matrix.T @ matrix)))
    return Fit(
        dict(zip(names, map(float, fitted.x), strict=True)),
        dict(zip(names, map(float, errors), strict=True)),
    )


def fit_latency(machine: Machine) -> Machine:
    """Return the machine with ``in_flight`` fitted to the measured rates of its kernels.

    Least squares of the rates at which products of f32 run; the standard error is that of these.
    """
    from scipy.optimize import least_squares  # half a second to import, and only a fit needs it

    known = microkernels.registry()
    kernels = [
        kernel
        for kernel in (known[name] for name in machine.efficiency if name in known)
        if (kernel.family, kernel.compute, kernel.tile_registers) == ("brgemm", "f32", None)
    ]
    if not kernels:
        return machine
    measured = np.array([machine.efficiency[str(kernel)] for kernel in kernels])
    unmeasured = replace(machine, efficiency={})

    def errors(in_flight: Numbers) -> Numbers:
        own = unmeasured.with_coefficients({"in_flight": float(in_flight[0])})
        rates = [own.of_kernel("", kernel.rows, kernel.vecs) for kernel in kernels]
        left: Numbers = np.array(rates) - measured
        return left

    row = TABLE["in_flight"]
    before = machine.coefficient("in_flight")
    fitted = least_squares(errors, [before], bounds=(row.least, row.most))
    slope = float(np.sum(np.square(fitted.jac)))
    if not slope:  # no kernel has so few sums that latency shows
        return machine
    variance = 2 * fitted.cost / max(1, len(kernels) - 1) / slope
    return machine.with_coefficients(
        {"in_flight": float(fitted.x[0])}, {"in_flight": float(variance**0.5)}
    )


def sample_schedules(
    context: Context, count: int, *, seed: int = 0, first: int = 5
) -> list[Schedule]:
    """``count`` distinct schedules that can be generated, or all if there are fewer.

    The model's ``first`` ones; then in turns from three ranges of predicted time, and within a
    range in turns from every kind: loop order, register tile, place of the packing, parallel loops,
    stores past the caches. The same arguments give the same sample.
    """
    ranked = [
        Ranked(view, wide, family)
        for view, wide in view_contexts(context)
        for family in space_of(wide, 8, 2)
    ]
    seconds = [traffic(part.context, part.family).seconds for part in ranked]
    number = np.repeat(np.arange(len(ranked)), [len(part.family) for part in ranked])
    index = np.concatenate([np.arange(len(part.family)) for part in ranked])
    time = np.concatenate(seconds)
    kind = np.concatenate([_kinds(at, part.family) for at, part in enumerate(ranked)])
    rng = np.random.default_rng(seed)
    best = np.argsort(time, kind="stable")
    fastest, sample = time.min(), dict[Schedule, None]()
    orders = [best] + [
        _in_turns(kind, np.flatnonzero((time >= low * fastest) & (time <= high * fastest)), rng)
        for low, high in zip((0.0, *RANGES), RANGES, strict=False)
    ]
    sources = [_members(context, order, number, index, time, ranked) for order in orders]
    for choice in islice(sources[0], first):
        sample[choice.schedule] = None
    rounds = [iter(source) for source in sources[1:]]
    while rounds and len(sample) < count:
        rounds = [source for source in rounds if len(sample) >= count or _add(source, sample)]
    return list(sample)


def _add(source: Iterator[Choice], sample: dict[Schedule, None]) -> bool:
    """Add the next schedule of a source; False once it has none, or none that can be generated."""
    try:
        choice = next(source, None)
    except UnsupportedError:
        choice = None
    if choice is None:
        return False
    sample[choice.schedule] = None
    return True


def _members(
    context: Context,
    order: NDArray[np.intp],
    number: NDArray[np.intp],
    index: NDArray[np.intp],
    time: NDArray[np.float64],
    ranked: list[Ranked],
) -> Iterator[Choice]:
    if not len(order):
        return iter(())
    pool = ((float(time[at]), int(number[at]), int(index[at])) for at in order)
    return distinct(context, pool, ranked, costs_are_seconds=True)


def _kinds(number: int, family: Family) -> NDArray[np.int64]:
    """A number for each member's kind."""
    kind = np.full(len(family), number, dtype=np.int64)
    for part in (family.which, family.pack + 1, family.parallel, family.has(Stream)):
        kind = kind * 64 + part
    return kind


def _in_turns(
    kind: NDArray[np.int64], members: NDArray[np.intp], rng: np.random.Generator
) -> NDArray[np.intp]:
    """Members in random order, one of every kind before a second one of any."""
    members = rng.permutation(members)
    by_kind = members[np.argsort(kind[members], kind="stable")]
    kinds = kind[by_kind]
    turn = turns(kinds)
    shuffled = rng.permutation(len(by_kind))
    return by_kind[shuffled[np.argsort(turn[shuffled], kind="stable")]]
