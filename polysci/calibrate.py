"""Measure a machine once: FMA peak, microkernels, bandwidths; and fit the cost model's prices."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from polysci import microkernel
from polysci.build import cache
from polysci.build.folder import cache_dir
from polysci.codegen.emit import headers
from polysci.errors import PolysciError
from polysci.fit import fitted
from polysci.machine import Machine, assumed, from_json
from polysci.measure import Bench
from polysci.microkernel import Microkernel
from polysci.ops.conv2d import Conv2d
from polysci.target import Target

FORMAT = 3
DEPTH = 64  # reduction steps of a probe's run: A and B of the largest tile stay in L1
PASSES = 12  # over all probes at most
RUN_S = 4e-4  # of a probe: short, so that some run lies between two interruptions
_log = logging.getLogger(__name__)
Progress = Callable[[int, int], None]


def machine_of(target: Target, progress: Progress | None = None) -> Machine:
    """The stored parameters of this machine, measured now if there are none.

    Where measuring fails the documented defaults stand in, with a logged warning.
    """
    try:
        return known(target) or calibrate(target, progress)
    except PolysciError as error:
        _log.warning("calibration failed, using assumed rates: %s", error)
        return assumed(target)


def known(target: Target) -> Machine | None:
    """The stored parameters of this machine, if it was ever measured."""
    try:
        return from_json(stored(target).read_text(encoding="utf-8"))
    except (OSError, PolysciError):
        return None


def stored(target: Target) -> Path:
    """Where the parameters of a target are kept; another kernel list is another file."""
    kernels = " ".join(microkernel.registry())
    text = f"{FORMAT} {target} {target.features} {kernels} {headers(target.isa.name)}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return cache_dir() / f"machine-{digest}.json"


def calibrate(target: Target, progress: Progress | None = None) -> Machine:
    """Measure and store the parameters; ``progress(done, total)`` after every step.

    Takes less than a minute. Raises BuildError or CheckError.
    """
    isa = target.isa.name
    kernels = [k for k in microkernel.registry().values() if k.isa == isa]
    sources = [_bandwidth_text(target), *(_tile_text(part) for part in _parts(kernels, 16))]
    objects = cache.build_many(sources)
    questions = [("peak", objects[0])]
    questions += [(f"read_{level}", objects[0]) for level in ("l2", "l3", "memory")]
    for part, path in zip(_parts(kernels, 16), objects[1:], strict=True):
        questions += [(str(kernel), path) for kernel in part]
    rates = _rates(questions, 1, _part(progress, 0, 50))
    peak = max(rates["peak"], *(rates[str(kernel)] for kernel in kernels))
    efficiency = {str(kernel): rates[str(kernel)] / peak for kernel in kernels}
    machine = replace(
        assumed(target), peak=peak, l2=rates["read_l2"], l3=rates["read_l3"],
        memory=rates["read_memory"], l3_all=rates["read_l3"], memory_all=rates["read_memory"],
        measured=True, efficiency=MappingProxyType(efficiency),
    )  # fmt: skip
    if target.cores > 1:
        machine = replace(machine, **_together(target, _part(progress, 50, 60)))
    machine = fitted(target, machine, _part(progress, 60, 100))
    _write(stored(target), machine.to_json())
    return machine


def _part(progress: Progress | None, first: int, last: int) -> Progress | None:
    """Progress of one part of the work, as percent of the whole."""
    if progress is None:
        return None
    return lambda done, total: progress(first + (last - first) * done // total, 100)


def _together(target: Target, progress: Progress | None) -> dict[str, Any]:
    """What all cores get together from L3 and memory, and what a parallel region costs."""
    path = cache.build(_together_text(target))
    names = ("read_l3_all", "read_memory_all", "fork")
    rates = _rates([(name, path) for name in names], target.cores, progress)
    return {
        "l3_all": rates["read_l3_all"],
        "memory_all": rates["read_memory_all"],
        "fork_us": 1 / rates["fork"],
    }


def _rates(
    questions: Sequence[tuple[str, Path]], threads: int, progress: Progress | None
) -> dict[str, float]:
    """The best rate of every probe over PASSES, fewer once a pass changes next to nothing.

    Short runs, many times: what else runs on the machine disturbs some of them, not all.
    """
    rates: dict[str, float] = {}
    with Bench(Conv2d(N=1, C=1, H=1, W=1, K=1, R=1, S=1, pad=0), threads) as bench:
        for turn in range(PASSES):
            better = 0
            for done, (symbol, path) in enumerate(questions):
                rate = bench.peak(path, symbol, RUN_S)
                better += rate > 1.01 * rates.get(symbol, 0.0)
                rates[symbol] = max(rate, rates.get(symbol, 0.0))
                if progress:
                    progress(turn * len(questions) + done + 1, PASSES * len(questions))
            if better <= len(questions) // 100:
                break
    if progress:
        progress(1, 1)
    return rates


def _write(path: Path, text: str) -> None:
    aside = path.with_suffix(".new")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        _log.warning("cannot keep the calibration in %s: %s", path, error)


def _parts(kernels: Sequence[Microkernel], size: int) -> list[Sequence[Microkernel]]:
    return [kernels[at : at + size] for at in range(0, len(kernels), size)]


def peak_text(isa: str) -> str:
    """C of ``double peak(int64_t iterations)``: the FMA peak of an ISA."""
    probe = microkernel.header("probe")
    return "\n".join(
        [headers(isa), probe, "double peak(int64_t n);", "double peak(int64_t n)",
         "{", "    return ps_probe_peak(n);", "}", ""]
    )  # fmt: skip


def _bandwidth_text(target: Target) -> str:
    sizes = {"l2": target.l2 // 2, "l3": target.l3 // 3, "memory": 4 * target.l3}
    parts = [peak_text(target.isa.name)]
    for level, size in sizes.items():
        count = size // 4
        parts += [
            f"static float {level}_buffer[{count}] __attribute__((aligned(64)));",
            f"double read_{level}(int64_t n);",
            f"double read_{level}(int64_t n)",
            "{",
            "    static int filled;",
            "    if (!filled++)",
            f"        ps_probe_fill({level}_buffer, {count});",
            f"    return ps_probe_read({level}_buffer, {count}, n);",
            "}",
        ]
    return "\n".join([*parts, ""])


def _together_text(target: Target) -> str:
    """C of the probes that run on all cores at once; ``fork`` returns 1e3 for every region."""
    cores = target.cores
    parts = [headers(target.isa.name), microkernel.header("probe")]
    for level, size in {"l3": target.l3 // 3, "memory": 4 * target.l3}.items():
        count = size // 4 // cores // 64 * 64
        parts += [
            f"static float {level}_buffer[{cores}][{count}] __attribute__((aligned(64)));",
            f"double read_{level}_all(int64_t n);",
            f"double read_{level}_all(int64_t n)",
            "{",
            "    static int filled;",
            "    double bytes = 0;",
            f"    for (int i = 0; !filled && i < {cores}; ++i)",
            f"        ps_probe_fill({level}_buffer[i], {count});",
            "    filled = 1;",
            f"    #pragma omp parallel for num_threads({cores}) reduction(+ : bytes)",
            f"    for (int i = 0; i < {cores}; ++i)",
            f"        bytes += ps_probe_read({level}_buffer[i], {count}, n);",
            "    return bytes;",
            "}",
        ]
    return "\n".join([
        *parts,
        "double fork(int64_t n);",
        "double fork(int64_t n)",
        "{",
        "    for (int64_t i = 0; i < n; ++i) {",
        f"        #pragma omp parallel num_threads({cores})",
        '        __asm__ volatile("" : : : "memory");',
        "    }",
        "    return 1e3 * (double)n;",
        "}", "",
    ])  # fmt: skip


def _tile_text(kernels: Sequence[Microkernel]) -> str:
    """C of ``double KERNEL(int64_t iterations)`` for every kernel: runs of DEPTH steps from L1."""
    probe = microkernel.header("probe")
    parts = [headers(kernels[0].isa), probe]
    for kernel in kernels:
        a_row = DEPTH if kernel.family == "brgemm" else kernel.cols
        a_step = 1 if kernel.family == "brgemm" else 0
        rows, cols = kernel.rows, kernel.cols
        parts += [
            f"double {kernel}(int64_t n);",
            f"PS_KERNEL double {kernel}(int64_t n)",
            "{",
            f"    static float a[{rows * a_row}] __attribute__((aligned(64)));",
            f"    static float b[{DEPTH * cols}] __attribute__((aligned(64)));",
            f"    static float c[{rows * cols}] __attribute__((aligned(64)));",
            f"    static const ps_tile t = {{.rows = {rows}, .vecs = {kernel.vecs}, "
            f".wrap = {rows}, .lanes = PS_LANES, .diagonal = {int(kernel.family == 'depthwise')}, "
            f".a_inner = {a_row}, .c_inner = {cols}, .c_col = 1}};",
            f"    ps_vec acc[{rows * kernel.vecs}];",
            f"    ps_probe_fill(a, {rows * a_row});",
            f"    ps_probe_fill(b, {DEPTH * cols});",
            "    ps_begin(acc, t, c, 0);",
            "    for (int64_t i = 0; i < n; ++i)",
            f"        ps_run(acc, t, {(1 << rows) - 1:#x}u, a, b, {DEPTH}, {a_step});",
            "    ps_end(acc, t, c, 0);",
            '    __asm__ volatile("" : : "r"(c) : "memory");',  # c is read: keep the loop
            f"    return 2.0 * {DEPTH * rows * cols} * (double)n;",
            "}",
        ]
    return "\n".join([*parts, ""])
