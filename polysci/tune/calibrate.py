"""Measure a machine once: FMA peak, microkernels, bandwidths; fit the cost model's coefficients.

What is kept is undisturbed: a machine that stays busy is not stored, and assumed rates stand in
until the process ends.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from math import inf
from pathlib import Path
from statistics import median
from threading import RLock
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.border.files import read_stored, replace_file
from polysci.errors import PolysciError, UnsupportedError
from polysci.measure.bench import Bench, Candidate
from polysci.measure.samples import LEAST_SAMPLES, Samples, check_quiet
from polysci.ops.convolutions import Conv2d
from polysci.printers.headers import headers
from polysci.runtime.backends import backend_of
from polysci.runtime.build.compiler import find_compiler
from polysci.runtime.build.folder import cache_dir, dirs_to_read
from polysci.target import microkernels
from polysci.target.machine import Machine, assume_rates, from_json
from polysci.target.microkernels import HeaderSet, Microkernel
from polysci.target.target import HOST, Target
from polysci.tune.device_calibration import calibrate_device, identity
from polysci.tune.device_probes import PROBE_HEADERS
from polysci.tune.fit import PAUSE_S, Pair, fit_coefficients, schedules_to_measure
from polysci.tune.probes import (
    BLOCK,
    bandwidth_text,
    build_clock,
    build_reference,
    reference_kernel,
    tile_text,
    together_text,
    unit_of,
)
from polysci.tune.result import (
    announce_calibration,
    describe_calibration,
    describe_device_calibration,
)

FORMAT = 12
PATIENCE_S = 10.0  # how long disturbed probes are repeated
PATIENCE_EACH_S = 0.1  # and for each of the probes
AGREE_S = 6.0  # how long others are, on which no two passes agree
RUN_S = 4e-4  # of a probe: short, so that some run lies between two interruptions
AGREED = 0.02  # of a kernel's best time: within it, another pass confirms it
AGREED_SHARED = 0.05  # the same of what the memory, or other cores, decide
STENCIL_ROWS = frozenset((1, 2, 4, 8, 16))  # that are measured, beside the most
_log = logging.getLogger(__name__)
_unstored: dict[Path, Machine] = {}  # measured, but there is no room for its file
_refused: set[Path] = set()  # files of machines that this process failed to measure
_measuring = RLock()
Progress = Callable[[int, int], None]
Probe = tuple[str, Path]  # a function, and the shared object that holds it


def machine_of(target: Target, progress: Progress | None = None, x: str = "f32") -> Machine:
    """Return the stored parameters of a device, with the rates of kernels for inputs of type ``x``.

    Measured now if there are none; those of a device that is not the host are assumed until
    ``measure_device`` has measured it. Where measuring fails, as on a busy machine, a warning is
    logged, and assumed rates stand in until the process ends.
    """
    if target.backend != HOST:
        return load_rates(target) or assume_rates(target)
    if machine := load_rates(target, x):
        return machine
    with _measuring:  # threads that measured at once would disturb each other
        if machine := load_rates(target, x):
            return machine
        if machine_path(target) not in _refused:
            try:
                return calibrate(target, progress, x)
            except PolysciError as error:
                _refused.add(machine_path(target))
                _log.warning("calibration failed, using assumed rates: %s", error)
        return load_rates(target) or assume_rates(target)


def _renew_lock() -> None:
    """A child of fork: whatever thread of its parent measured, none of its own does."""
    global _measuring
    _measuring = RLock()


os.register_at_fork(after_in_child=_renew_lock)


def load_rates(target: Target, x: str = "f32") -> Machine | None:
    """The stored parameters of this machine; None if so many of its cores never were measured."""
    name = _file_name(target, x)
    for folder in dirs_to_read():
        try:
            machine = from_json(read_stored(folder / name).decode("utf-8"))
            if machine.cores >= target.cores:
                return machine
        except (OSError, UnicodeDecodeError, PolysciError):
            continue
    return _unstored.get(machine_path(target, x)) if _unstored else None


def machine_path(target: Target, x: str = "f32") -> Path:
    """The file of a target's parameters; its name depends on the list of kernels."""
    return cache_dir() / _file_name(target, x)


def _file_name(target: Target, x: str) -> str:
    if target.backend != HOST:
        return _device_file(target)
    cpu = replace(target, cores=1)  # a process that may use fewer cores runs on the same
    text = f"{FORMAT} {cpu} {target.features} {_probed_code(target.isa.name, x)}"
    return f"machine-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


@cache
def _device_file(target: Target) -> str:
    """Return the name of a device's file, which depends on its driver and on the probes' code."""
    backend = backend_of(target)
    code = "".join(map(microkernels.header, PROBE_HEADERS))
    who = identity(target) if backend.measured else backend.name
    # PoCL tells how much memory is free, which is no property of a device.
    own = [str(memory) for memory in target.memories if memory.kind != "global"]
    text = f"{FORMAT} {who} {target.isa} {own} {target.cores} {target.features} {code}"
    return f"device-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


@cache
def _probed_code(isa: str, x: str) -> str:
    """Return the names of all kernels that a calibration measures, and their headers."""
    kernels = " ".join(map(str, _kernels(isa, x)))
    return f"{kernels} {''.join(headers(unit) for unit in header_sets_for(isa, x))}"


def kernels_for(isa: str, x: str) -> list[Microkernel]:
    """Return the kernels that multiply inputs of type ``x``, in any way."""
    return [*_kernels(isa, x)]


@cache
def _kernels(isa: str, x: str) -> tuple[Microkernel, ...]:
    families = dict.fromkeys(kernel.family for kernel in microkernels.registry().values())
    kernels = [
        kernel for family in families for way in microkernels.ways(family, isa, x) for kernel in way
    ]
    short = [  # of stencils whose rows fit one vector
        kernel
        for family in families
        for name in microkernels.shorter(isa)
        for way in microkernels.ways(family, name, x)
        for kernel in way
        if kernel.stencil and kernel.vecs == 1
    ]
    return (*kernels, *short)


def header_sets_for(isa: str, x: str) -> list[HeaderSet]:
    """The header sets of those kernels, with sums as results."""
    return list(dict.fromkeys(unit_of(kernel, x) for kernel in _kernels(isa, x)))


def calibrate(target: Target, progress: Progress | None = None, x: str = "f32") -> Machine:
    """Measure and store the parameters; ``progress(done, total)`` after every step.

    Takes less than a minute. All but the rates of kernels is measured once, in f32. Without
    ``progress``, standard error tells of it. Raises BuildError, CheckError, or DisturbedError where
    other work disturbs too much, however often repeated.
    """
    with ExitStack() as stack:
        progress = progress or stack.enter_context(announce_calibration(describe_calibration(x)))
        progress(0, 100)
        machine = load_rates(target) if x != "f32" else None
        end = 80 if x != "f32" else 100
        machine = machine or _measure(target, _part(progress, 0, end))
        if x != "f32":
            machine = _extend(machine, target, x, _part(progress, end, 100))
        progress(100, 100)
    return machine


def measure_device(
    target: Target, progress: Progress | None = None, *, again: bool = False
) -> Machine:
    """Measure what is missing of a device's figures, or with ``again`` all, and store each.

    Ctrl-C leaves those that were measured. Raises UnsupportedError for what runs no code.
    """
    if not backend_of(target).measured:
        raise UnsupportedError(f"{target.backend}: an architecture runs nothing; measure a device")
    with ExitStack() as stack:
        line = describe_device_calibration(target.backend)
        progress = progress or stack.enter_context(announce_calibration(line))
        known = None if again else load_rates(target)
        store = partial(_store, machine_path(target))
        return calibrate_device(target, known, store, progress)


def _measure(target: Target, progress: Progress) -> Machine:
    """All parameters, with the rates of the kernels for f32; stored."""
    find_compiler()  # before anything else is done
    kernels, trials = kernels_for(target.isa.name, "f32"), list[Pair]()
    probes = _kernel_probes(
        _probed(kernels), "f32", target, lambda: trials.extend(schedules_to_measure(target))
    )
    with _bench(target) as bench:
        names = ("peak", "read_l2", "read_l3", "read_memory", "read_jumps")
        path = backend_of(target).build(bandwidth_text(target), symbols=names)
        reads = [(name, path) for name in names[1:]]
        rates = _rates(bench, reads, "rates of memory", AGREED_SHARED)
        probes = [("peak", path), *probes]  # beside kernels: after a rest it is 3 % higher
        clock = build_clock(target)
        rates |= _rates(bench, probes, "microkernels", AGREED, _part(progress, 0, 40), clock)
    peak = max(rates["peak"], *(rates[str(kernel)] for kernel in _probed(kernels)))
    efficiency = _efficiency(kernels, rates, peak)
    machine = replace(
        assume_rates(target), peak=peak, l2=rates["read_l2"], l3=rates["read_l3"],
        memory=rates["read_memory"], l3_all=rates["read_l3"], memory_all=rates["read_memory"],
        measured=True, efficiency=MappingProxyType(efficiency), cpu=target.model_name,
    )  # fmt: skip
    jump = BLOCK / rates["read_jumps"]
    machine = machine.with_coefficients(
        {"jump_ns": max(0.0, jump - BLOCK / rates["read_memory"])},
        {"jump_ns": AGREED_SHARED * jump},
    )
    reference = str(reference_kernel(target.isa.name))
    if target.cores > 1:
        together = _together(target, efficiency[reference])
        fork = together.pop("fork_us")
        machine = replace(machine, **together)
        machine = machine.with_coefficients({"fork_us": fork}, {"fork_us": AGREED_SHARED * fork})
    machine = fit_coefficients(target, machine, trials, _part(progress, 50, 100))
    return _store(machine_path(target), machine)


def _extend(machine: Machine, target: Target, x: str, progress: Progress) -> Machine:
    """The machine as f32 knows it, with the rates of the kernels for ``x``; stored."""
    kernels = [k for k in kernels_for(target.isa.name, x) if str(k) not in machine.efficiency]
    if not kernels:  # it is multiplied as f32
        return _store(machine_path(target, x), machine)
    with _bench(target) as bench:
        probes = _kernel_probes(_probed(kernels), x, target)
        clock = build_clock(target)
        rates = _rates(bench, probes, "microkernels", AGREED, progress, clock)
    efficiency = _efficiency(kernels, rates, machine.peak)
    machine = replace(machine, efficiency=MappingProxyType({**machine.efficiency, **efficiency}))
    return _store(machine_path(target, x), machine)


def _bench(target: Target, threads: int = 1) -> Bench:
    """A process to run probes in; a kernel's loop tells of busy neighbours."""
    problem = Conv2d(N=1, C=1, H=1, W=1, K=1, R=1, S=1, pad=0)
    bench = Bench(problem, threads, backend=backend_of(target))
    bench.watch(*build_reference(target, threads))
    return bench


def _probed(kernels: Sequence[Microkernel]) -> list[Microkernel]:
    """Those that are measured: of stencils some rows and the most; the others lie between."""
    most = dict[tuple[str, str, int], int]()
    for kernel in kernels:
        kind = kernel.family, kernel.isa, kernel.cols
        most[kind] = max(kernel.rows, most.get(kind, 0))
    return [
        kernel
        for kernel in kernels
        if not kernel.stencil
        or kernel.rows in STENCIL_ROWS
        or kernel.rows == most[kernel.family, kernel.isa, kernel.cols]
    ]


def _efficiency(
    kernels: Sequence[Microkernel], rates: Mapping[str, float], peak: float
) -> dict[str, float]:
    """The rate of every kernel over the peak, between those of its rows that were measured."""

    def rate(kernel: Microkernel) -> float:
        alike = [
            other
            for other in kernels
            if (other.family, other.isa, other.cols) == (kernel.family, kernel.isa, kernel.cols)
            and str(other) in rates
        ]
        return float(
            np.interp(
                kernel.rows, [other.rows for other in alike], [rates[str(it)] for it in alike]
            )
        )

    return {
        str(kernel): (rates[str(kernel)] if str(kernel) in rates else rate(kernel)) / peak
        for kernel in kernels
    }


def _kernel_probes(
    kernels: Sequence[Microkernel],
    x: str,
    target: Target,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Probe]:
    """The name of every kernel and the shared object that holds its probe.

    ``meanwhile`` is what this process does while compilers run.
    """
    parts: list[Sequence[Microkernel]] = []
    for unit in dict.fromkeys(unit_of(kernel, x) for kernel in kernels):
        parts += _parts([kernel for kernel in kernels if unit_of(kernel, x) == unit], 16)
    texts = [tile_text(part, x) for part in parts]
    objects = backend_of(target).build_many(texts, jobs=max(2, target.cores), meanwhile=meanwhile)
    return [
        (str(kernel), path) for part, path in zip(parts, objects, strict=True) for kernel in part
    ]


def _parts(kernels: Sequence[Microkernel], size: int) -> list[Sequence[Microkernel]]:
    return [kernels[at : at + size] for at in range(0, len(kernels), size)]


def _part(progress: Progress, first: int, last: int) -> Progress:
    """Progress of one part of the work, as percent of the whole."""
    return lambda done, total: progress(first + (last - first) * done // total, 100)


def _together(target: Target, efficiency: float) -> dict[str, Any]:
    """Measure all cores together: FMA, reads of L3 and memory, and a parallel region.

    ``efficiency`` is that of the reference kernel.
    """
    names = ("read_l3_all", "read_memory_all", "fork")
    path = backend_of(target).build(together_text(target), symbols=names)
    loop, reference = build_reference(target, target.cores)
    with _bench(target, target.cores) as bench:
        probes = [(reference, loop), *((name, path) for name in names)]
        rates = _rates(bench, probes, "rates of all cores together", AGREED_SHARED)
    return {
        "l3_all": rates["read_l3_all"],
        "memory_all": rates["read_memory_all"],
        "fork_us": 1 / rates["fork"],
        "peak_all": rates[reference] / efficiency,
    }


def _rates(
    bench: Bench,
    probes: Sequence[Probe],
    what: str,
    agreed: float,
    progress: Progress | None = None,
    clock: Candidate | None = None,
) -> dict[str, float]:
    """The best confirmed rate of every probe; ``what`` names them all in the DisturbedError.

    With a ``clock``, the loop of ``clock_text``, probes are compared in cycles, and the rates are
    those at the clock's median rate: which probe ran in a burst of it does not matter.

    Short runs, many times: what else runs on the machine disturbs some of them, not all, and hardly
    ever two equally. A probe is repeated until two passes agree on its best time, but for a share
    of ``agreed``.
    """
    samples = {name: Samples() for name, _ in probes}
    bests = {name: [inf, inf] for name in samples}  # of two passes
    todo, start = list(probes), time.monotonic()
    while todo:
        clean = 0
        for name, path in todo:
            runs = bench.probe(path, name, RUN_S, clock)
            samples[name].taken += runs.taken
            bests[name] = sorted([*bests[name], *sorted(_rounds(runs))[:1]])[:2]
            clean += len(runs.clean)
        spent = time.monotonic() - start
        todo = [
            (name, path)
            for name, path in todo
            if len(samples[name].clean) < LEAST_SAMPLES
            or (spent < AGREE_S and not _agree(bests[name], agreed))
        ]
        if progress:
            progress(len(probes) - len(todo), len(probes))
        if spent > PATIENCE_S + PATIENCE_EACH_S * len(probes):
            break
        if not clean:
            time.sleep(PAUSE_S)
    check_quiet(what, list(samples.values()))
    clocks = median(sample.clock for its in samples.values() for sample in its.taken)
    return {name: 1e-9 * clocks / _confirm_rounds(samples[name], bests[name]) for name in samples}


def _confirm_rounds(samples: Samples, bests: Sequence[float]) -> float:
    """The best rounds of the clock that two passes reached: what one reached alone is no rate."""
    return bests[1] if bests[1] < inf else min(sample.rounds for sample in samples.taken)


def _rounds(samples: Samples) -> list[float]:
    """Return the rounds of the undisturbed samples."""
    return [sample.rounds for sample in samples.taken if not sample.disturbed]


def _agree(bests: Sequence[float], agreed: float) -> bool:
    """Return whether the best rounds of two passes differ by no more than a share."""
    best, second = bests
    return second < inf and second <= (1 + agreed) * best


def _store(path: Path, machine: Machine) -> Machine:
    try:
        with replace_file(path) as file:
            file.write(machine.to_json().encode())
    except OSError as error:
        _log.warning("cannot keep the calibration in %s: %s", path, error)
        _unstored[path] = machine
    return machine
