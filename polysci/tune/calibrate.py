"""Measure a machine once: FMA peak, microkernels, bandwidths; fit the cost model's coefficients."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from polysci.border.files import read_stored
from polysci.codegen import ctree as c
from polysci.codegen import openmp
from polysci.errors import PolysciError
from polysci.measure.bench import Bench
from polysci.numerics.dtypes import COMPUTES
from polysci.ops.conv2d import Conv2d
from polysci.runtime.backend import backend_of
from polysci.runtime.build.folder import cache_dir
from polysci.target import microkernels
from polysci.target.header_sets import HeaderSet, header_set_of, headers
from polysci.target.host import Target
from polysci.target.isa import Isa, TileRegisters
from polysci.target.isas import isa_named
from polysci.target.machine import Machine, assume_rates, from_json
from polysci.target.microkernels import Microkernel
from polysci.tune.fit import fit_coefficients

FORMAT = 3
TAPS = 3  # of a depthwise filter's line
DEPTH = 64  # reduction steps of a probe's run: A and B of the largest tile stay in L1
PASSES = 12  # over all probes at most
RUN_S = 4e-4  # of a probe: short, so that some run lies between two interruptions
_log = logging.getLogger(__name__)
_failures: set[str] = set()  # logged ones
Progress = Callable[[int, int], None]


def machine_of(target: Target, progress: Progress | None = None, x: str = "f32") -> Machine:
    """The stored parameters of this machine, with the rates of kernels for inputs of type ``x``.

    Measured now if there are none. Where measuring fails, the documented defaults are returned and
    a warning is logged.
    """
    try:
        return load_rates(target, x) or calibrate(target, progress, x)
    except PolysciError as error:
        reason = str(error).partition("\n")[0]
        if reason not in _failures:
            _log.warning("calibration failed, using assumed rates: %s", error)
        _failures.add(reason)
        return assume_rates(target)


def load_rates(target: Target, x: str = "f32") -> Machine | None:
    """The stored parameters of this machine; None if it was never measured."""
    try:
        return from_json(read_stored(machine_path(target, x)).decode("utf-8"))
    except (OSError, UnicodeDecodeError, PolysciError):
        return None


def machine_path(target: Target, x: str = "f32") -> Path:
    """The file of a target's parameters; its name depends on the list of kernels."""
    kernels = " ".join(map(str, kernels_for(target.isa.name, x)))
    units = "".join(headers(unit) for unit in header_sets_for(target.isa.name, x))
    text = f"{FORMAT} {target} {target.features} {kernels} {units}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return cache_dir() / f"machine-{digest}.json"


def kernels_for(isa: str, x: str) -> list[Microkernel]:
    """The kernels that multiply inputs of type ``x``."""
    families = dict.fromkeys(kernel.family for kernel in microkernels.registry().values())
    return [kernel for family in families for kernel in microkernels.best(family, isa, x)]


def header_sets_for(isa: str, x: str) -> list[HeaderSet]:
    """The header sets of those kernels, with sums as results."""
    header_sets = [_unit(kernel, x) for kernel in kernels_for(isa, x)]
    return list(dict.fromkeys(header_sets))


def _unit(kernel: Microkernel, x: str) -> HeaderSet:
    return header_set_of(kernel, x, COMPUTES[kernel.compute].sum.name, packed=True)


def calibrate(target: Target, progress: Progress | None = None, x: str = "f32") -> Machine:
    """Measure and store the parameters; ``progress(done, total)`` after every step.

    Takes less than a minute. All but the rates of kernels is measured once, in f32. Raises
    BuildError or CheckError.
    """
    if x != "f32":
        return _extend(target, progress, x)
    kernels = kernels_for(target.isa.name, x)
    objects = backend_of(target.isa).build_many([_bandwidth_text(target)])
    questions = [("peak", objects[0])]
    questions += [(f"read_{level}", objects[0]) for level in ("l2", "l3", "memory")]
    questions += _kernel_questions(kernels, x, target.isa)
    rates = _rates(questions, 1, _part(progress, 0, 50))
    peak = max(rates["peak"], *(rates[str(kernel)] for kernel in kernels))
    efficiency = {str(kernel): rates[str(kernel)] / peak for kernel in kernels}
    machine = replace(
        assume_rates(target), peak=peak, l2=rates["read_l2"], l3=rates["read_l3"],
        memory=rates["read_memory"], l3_all=rates["read_l3"], memory_all=rates["read_memory"],
        measured=True, efficiency=MappingProxyType(efficiency),
    )  # fmt: skip
    if target.cores > 1:
        machine = replace(machine, **_together(target, _part(progress, 50, 60)))
    machine = fit_coefficients(target, machine, _part(progress, 60, 100))
    _write(machine_path(target), machine.to_json())
    return machine


def _extend(target: Target, progress: Progress | None, x: str) -> Machine:
    """The machine as f32 knows it, with the rates of the kernels for ``x``."""
    machine = load_rates(target) or calibrate(target, progress)
    kernels = kernels_for(target.isa.name, x)
    rates = _rates(_kernel_questions(kernels, x, target.isa), 1, progress)
    efficiency = {str(kernel): rates[str(kernel)] / machine.peak for kernel in kernels}
    machine = replace(machine, efficiency=MappingProxyType({**machine.efficiency, **efficiency}))
    _write(machine_path(target, x), machine.to_json())
    return machine


def _kernel_questions(kernels: Sequence[Microkernel], x: str, isa: Isa) -> list[tuple[str, Path]]:
    """The name of every kernel and the shared object that holds its probe."""
    parts: list[Sequence[Microkernel]] = []
    for unit in dict.fromkeys(_unit(kernel, x) for kernel in kernels):
        parts += _parts([kernel for kernel in kernels if _unit(kernel, x) == unit], 16)
    objects = backend_of(isa).build_many([_tile_text(part, x) for part in parts])
    return [
        (str(kernel), path) for part, path in zip(parts, objects, strict=True) for kernel in part
    ]


def _part(progress: Progress | None, first: int, last: int) -> Progress | None:
    """Progress of one part of the work, as percent of the whole."""
    if progress is None:
        return None
    return lambda done, total: progress(first + (last - first) * done // total, 100)


def _together(target: Target, progress: Progress | None) -> dict[str, Any]:
    """What all cores get together from L3 and memory, and what a parallel region costs."""
    path = backend_of(target.isa).build(_together_text(target))
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


def peak_text(unit: HeaderSet) -> str:
    """C of ``double peak(int64_t iterations)``: the multiplications of a unit, from registers."""
    registers = isa_named(unit.isa).tile_registers
    probes = ("probe", registers.probe) if registers else ("probe",)
    body = [c.Statement("return ps_probe_peak(n)")]
    return _text(unit, probes, [_probe("peak", body)])


def peak_unit(isa: str, x: str) -> HeaderSet:
    """The unit whose multiplications bound every kernel for inputs of type ``x``."""
    return _unit(microkernels.best("brgemm", isa, x)[0], x)


def _text(unit: HeaderSet, names: Sequence[str], parts: Sequence[c.Generable]) -> str:
    """C of a unit's headers, more headers by name, and definitions."""
    return "\n".join([
        headers(unit), *map(microkernels.header, names), *map(c.text, parts), "",
    ])  # fmt: skip


def _probe(name: str, body: Sequence[c.Generable], attribute: str = "") -> c.Generable:
    """C of ``double name(int64_t n)``, which returns what it did in ``n`` turns."""
    head = f"double {name}(int64_t n)"
    return c.Collection([c.Statement(head), c.function(f"{attribute}{head}", body)])


def _bandwidth_text(target: Target) -> str:
    sizes = {"l2": target.l2 // 2, "l3": target.l3 // 3, "memory": 4 * target.l3}
    unit = peak_unit(target.isa.name, "f32")
    parts: list[c.Generable] = [c.Line(peak_text(unit))]
    parts.append(c.Line(microkernels.header("probe_read")))
    for level, size in sizes.items():
        buffer, count = f"{level}_buffer", size // 4
        body = [
            c.Statement("static int filled"),
            c.when("!filled++", c.Statement(f"ps_probe_fill({buffer}, sizeof {buffer})")),
            c.Statement(f"return ps_probe_read({buffer}, {count}, n)"),
        ]
        parts += [_array(f"float {buffer}[{count}]"), _probe(f"read_{level}", body)]
    return "\n".join([*map(c.text, parts), ""])


def _array(declarator: str) -> c.Generable:
    """C of a static array that begins where a cache line does."""
    return c.Statement(f"static {declarator} __attribute__((aligned(64)))")


def _together_text(target: Target) -> str:
    """C of the probes that run on all cores at once; ``fork`` returns 1e3 for every region."""
    cores = target.cores
    parts: list[c.Generable] = []
    for level, size in {"l3": target.l3 // 3, "memory": 4 * target.l3}.items():
        buffer, count = f"{level}_buffer", size // 4 // cores // 64 * 64
        fill = c.Statement(f"ps_probe_fill({buffer}[i], sizeof {buffer}[i])")
        read = c.Statement(f"bytes += ps_probe_read({buffer}[i], {count}, n)")
        body = [
            c.Statement("static int filled"),
            c.Statement("double bytes = 0"),
            c.loop("int i = 0", f"!filled && i < {cores}", "++i", fill),
            c.Statement("filled = 1"),
            c.Line(openmp.parallel_loop(cores, "reduction(+ : bytes)")),
            c.loop("int i = 0", f"i < {cores}", "++i", read),
            c.Statement("return bytes"),
        ]
        parts += [_array(f"float {buffer}[{cores}][{count}]"), _probe(f"read_{level}_all", body)]
    regions = c.Block(
        [c.Line(openmp.parallel(cores)), c.Statement('__asm__ volatile("" : : : "memory")')]
    )
    turns = c.loop("int64_t i = 0", "i < n", "++i", regions)
    parts.append(_probe("fork", [turns, c.Statement("return 1e3 * (double)n")]))
    return _text(peak_unit(target.isa.name, "f32"), ("probe", "probe_read"), parts)


def _reduction(kernel: Microkernel, a_step: int) -> tuple[str, int]:
    """C of a part of a reduction as the kernel's tiles do it most, and its steps."""
    if kernel.family == "depthwise" and kernel.rows > 1:
        pixels = (1 << kernel.rows + TAPS - 1) - 1
        return f"ps_slide(acc, t, UINT64_C({pixels:#x}), a, b, {TAPS}, {kernel.cols})", TAPS
    run = "ps_run_grouped" if kernel.shifts > 1 else "ps_run"
    rows = f"{(1 << kernel.rows) - 1:#x}u"
    return f"{run}(acc, t, {rows}, a, b, {DEPTH // kernel.shifts}, {a_step})", DEPTH


def _configuration(registers: TileRegisters) -> list[c.Generable]:
    """C of what an entry does before its first register tile on tile registers."""
    return [
        c.Statement(registers.declaration()),
        c.when("!PS_CPU_OK()", c.Statement("return 0")),
        c.Statement(registers.configuration(f"&{registers.state}")),
    ]


def _tile_text(kernels: Sequence[Microkernel], x: str) -> str:
    """C of ``double KERNEL(int64_t iterations)`` for every kernel: runs of DEPTH words from L1."""
    parts = [_probe(str(kernel), _tile(kernel), "PS_KERNEL ") for kernel in kernels]
    return _text(_unit(kernels[0], x), ("probe",), parts)


def _tile(kernel: Microkernel) -> list[c.Generable]:
    """C of one kernel's runs; returns the operations."""
    word, shifts = COMPUTES[kernel.compute].vnni_factor, kernel.shifts
    rows, cols, registers = kernel.rows, kernel.cols, kernel.tile_registers
    a_row, a_step = (cols, 0) if kernel.diagonal else (DEPTH * word, word)
    run, steps = _reduction(kernel, a_step)
    operations = 2.0 * steps * rows * cols * (1 if kernel.diagonal else word)
    return [
        _array(f"ps_a a[{(rows + TAPS - 1) * a_row}]"),
        _array(f"ps_b b[{DEPTH * cols * word}]"),
        _array(f"ps_y c[{rows * cols}]"),
        c.Statement(
            f"static const ps_tile t = {{.rows = {rows}, .vecs = {kernel.vecs}, "
            f".wrap = {rows}, .lanes = PS_LANES, .diagonal = {int(kernel.diagonal)}, "
            f".shifts = {shifts}, .a_inner = {a_row}, .c_inner = {cols}, .c_col = 1}}"
        ),
        c.Statement(f"ps_acc acc[{rows * kernel.vecs * shifts}]"),
        c.Statement("ps_probe_fill(a, sizeof a)"),
        c.Statement("ps_probe_fill(b, sizeof b)"),
        *(_configuration(registers) if registers else ()),
        c.Statement("ps_begin(acc, t, c, 0)"),
        c.loop("int64_t i = 0", "i < n", "++i", c.Statement(run)),
        *([c.Statement("ps_unshift(acc, t)")] if shifts > 1 else []),
        *([c.Statement("ps_unpair(acc, t)")] if kernel.family == "depthwise" else []),
        c.Statement("ps_end(acc, t, c, 0)"),
        *([c.Statement(registers.ending())] if registers else []),
        c.Statement('__asm__ volatile("" : : "r"(c) : "memory")'),  # c is read: keep the loop
        c.Statement(f"return {operations} * (double)n"),
    ]
