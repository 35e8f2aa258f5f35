"""Measure a device once: launches, bandwidths of its memories, rates of its multiplications.

Each figure is kept as soon as it is measured. What was not, be it for Ctrl-C or because the device
refuses a probe, is assumed, and measured by the next calibration.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import hypot, inf
from pathlib import Path
from types import MappingProxyType
from typing import Final

from polysci.errors import PolysciError
from polysci.measure.bench import Bench
from polysci.ops.convolutions import Conv2d
from polysci.runtime.backends import backend_of
from polysci.target import microkernels
from polysci.target.coefficients import DEVICES
from polysci.target.machine import RATES, Machine, assume_rates
from polysci.target.target import Target
from polysci.tune.device_probes import (
    LAUNCHES,
    DeviceProbe,
    ProbeFile,
    launches_file,
    probe_files,
)

RUN_S: Final = 1e-3  # of a run: short, so that some lie between two interruptions
PEAK: Final = "peak"
LAUNCH: Final = "launch_us"
SPEEDS: Final = tuple(name for name in DEVICES if name != LAUNCH)  # by the peak of f32
LAUNCH_S: Final = 1e-4  # of a launch whose neighbours are timed: longer than giving one takes
AGREED: Final = 0.02  # of what is measured: so near the best times, another run confirms them
DOUBTFUL: Final = 0.2  # of a rate: with a larger error it stays assumed
DOUBTFUL_LAUNCH: Final = 0.5
LEAST_ERROR: Final = 0.005  # of a figure: no two runs tell more
PATIENCE_S: Final = 1.0  # for which a probe is repeated whose runs do not agree
TIMEOUT_S: Final = 60.0  # of one question to the device
_log = logging.getLogger(__name__)
Store = Callable[[Machine], object]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured number and its standard error."""

    value: float
    error: float

    def times(self, factor: float) -> Figure:
        """Return the number in another unit."""
        return Figure(self.value * factor, self.error * factor)


def calibrate_device(
    target: Target, known: Machine | None, store: Store, progress: Progress
) -> Machine:
    """Return the figures of a device: those of ``known``, and the others, measured now.

    ``store`` takes the Machine after every file of probes, ``progress(done, total)`` counts them.
    A probe that fails costs its figure, and is told in one warning.
    """
    backend = backend_of(target)
    calibration = DeviceCalibration(target, figures_of(known) if known else {})
    files = [*probe_files(target), launches_file(target)]
    problem = Conv2d(N=1, C=1, H=1, W=1, K=1, R=1, S=1, pad=0)
    with Bench(problem, timeout=TIMEOUT_S, backend=backend) as bench:
        for done, file in enumerate(files):
            progress(done, len(files))
            if calibration.lacks(file):
                try:
                    calibration.measure(bench, file)
                finally:  # at Ctrl-C, too
                    if calibration.figures:
                        store(calibration.machine())
    progress(len(files), len(files))
    return calibration.machine()


@cache
def figure_names(target: Target) -> tuple[str, ...]:
    """Return the figures of a device that its probes measure, by the names of a Machine."""
    files = (*probe_files(target), launches_file(target))
    return tuple(dict.fromkeys(probe.figure for file in files for probe in file.probes))


def identity(target: Target) -> str:
    """Return the name of a device and of its driver, which its figures are of."""
    return f"{target.model_name}, {backend_of(target).compiler}"


def values_of(machine: Machine) -> dict[str, float]:
    """Return the figures of a device by their names, assumed ones too."""
    rates = {name: getattr(machine, name) for name in RATES}
    return {**rates, **machine.coefficients, **machine.bandwidths, **machine.efficiency}


def figures_of(machine: Machine) -> dict[str, Figure]:
    """Return what was measured of a device; what a Machine has as a share of the peak as a rate."""
    values = values_of(machine)
    shares = {*machine.efficiency, *SPEEDS}
    figures = {name: Figure(values[name], error) for name, error in machine.errors.items()}
    return {
        name: figure.times(machine.peak if name in shares else 1.0)
        for name, figure in figures.items()
    }


@dataclass(slots=True)
class DeviceCalibration:
    """The figures of a device so far: rates in GFLOP/s and GB/s, and the time of a launch."""

    target: Target
    figures: dict[str, Figure]

    def lacks(self, file: ProbeFile) -> bool:
        """Return whether a figure of a file's probes is not measured."""
        return any(probe.figure not in self.figures for probe in file.probes)

    def measure(self, bench: Bench, file: ProbeFile) -> None:
        """Measure what is missing of a file's probes; say what cannot be."""
        try:
            path = backend_of(self.target).build(file.text, symbols=[it.name for it in file.probes])
        except PolysciError as error:
            self._tell(file.what, error)
            return
        if file.what == LAUNCH:
            if PEAK in self.figures:
                measure = partial(launch_of, bench, path, file, self.figures[PEAK].value)
                self._keep(LAUNCH, measure, DOUBTFUL_LAUNCH)
            return
        for probe in file.probes:
            if probe.figure not in self.figures:
                self._keep(probe.figure, partial(rate_of, bench, path, probe))

    def _keep(self, name: str, measure: Callable[[], Figure], doubtful: float = DOUBTFUL) -> None:
        """Keep a figure; one that other work disturbed is left to the next calibration."""
        try:
            figure = measure()
        except PolysciError as error:
            self._tell(name, error)
            return
        if figure.error <= doubtful * figure.value:
            self.figures[name] = figure

    def _tell(self, what: str, error: Exception) -> None:
        _log.warning("%s: %s stays assumed: %s", self.target.backend, what, error)

    def machine(self) -> Machine:
        """Return what is known: what was measured has standard errors, the rest is assumed."""
        assumed, figures = assume_rates(self.target), dict(self.figures)
        kernels = {name for name in figures if name in microkernels.registry()}
        if PEAK in figures:
            tiles = (name for name in kernels if microkernels.find(name).compute == "f32")
            figures[PEAK] = max((figures[name] for name in (PEAK, *tiles)), key=_value)
        peak = figures[PEAK].value if PEAK in figures else 0.0
        for name in [*kernels, *SPEEDS]:
            if name in figures:  # a share of the peak
                figures[name] = figures[name].times(1 / peak)
        values = {name: figure.value for name, figure in figures.items()}
        rates = {name: values[name] for name in RATES if name in values}
        own = {name: value for name, value in values.items() if name in assumed.coefficients}
        others = {it: values[it] for it in values if it not in (*kernels, *rates, *own)}
        whole = {*figure_names(self.target)} <= values.keys()
        machine = replace(
            assumed, **rates, cpu=identity(self.target), measured=whole,  # type: ignore[arg-type]
            efficiency=MappingProxyType({it: values[it] for it in values if it in kernels}),
            bandwidths=MappingProxyType(others),
        )  # fmt: skip
        return machine.with_coefficients(
            own, {name: figure.error for name, figure in figures.items()}
        )


def _value(figure: Figure) -> float:
    return figure.value


def rate_of(bench: Bench, path: Path, probe: DeviceProbe) -> Figure:
    """Return the rate of a probe: that of the turns by which one run exceeds another.

    They take no longer than the shorter run, and half of it at least: the rest is the launch.
    """
    turns, _ = bench.probe_device(path, probe.name, probe.sizes, RUN_S)
    taken = _difference(bench, path, [(probe, turns), (probe, 2 * turns)], (0.5, 1 + AGREED))
    rate = 1e-9 * probe.amount * turns / taken.value
    return Figure(rate, rate * taken.error / taken.value)


def launch_of(bench: Bench, path: Path, file: ProbeFile, peak: float) -> Figure:
    """Return the microseconds of a launch: those by which many take longer than one.

    All of them do the same work together, in launches that take longer than giving the next one.
    """
    one, many = file.probes
    turns = max(1, round(1e9 * LAUNCH_S * peak / many.amount))
    taken = _difference(bench, path, [(one, turns * LAUNCHES), (many, turns)], (0.0, inf))
    return taken.times(1e6 / (LAUNCHES - 1))


def _difference(
    bench: Bench, path: Path, runs: Sequence[tuple[DeviceProbe, int]], limits: tuple[float, float]
) -> Figure:
    """Return the seconds by which the second of two runs takes longer than the first.

    Each is repeated in turns until its best two times agree, or patience ends: other work lengthens
    most runs, but hardly ever two equally. ``limits`` are those of the difference over the time of
    the first run; one that lies elsewhere is its own error.
    """
    end, times = time.monotonic() + PATIENCE_S, [list[float]() for _ in runs]
    while True:
        for (probe, turns), own in zip(runs, times, strict=True):
            own += bench.probe_device(path, probe.name, probe.sizes, turns=turns)[1]
            own.sort()
        (first, next_first, *_), (second, next_second, *_) = times
        taken, error = second - first, hypot(next_first - first, next_second - second)
        is_possible = limits[0] * first < taken < limits[1] * first
        if (is_possible and error <= AGREED * taken) or time.monotonic() > end:
            least = LEAST_ERROR * second
            return Figure(max(taken, least), max(error, least) if is_possible else abs(taken))
