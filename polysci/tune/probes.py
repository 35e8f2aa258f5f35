"""Probes of a calibration as loop IR: peak, streaming reads, parallel regions, microkernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from polysci.loop_ir.index import Flag, Index, Supported, Variable, as_index, negate
from polysci.loop_ir.nodes import (
    Address,
    AddressOf,
    Arithmetic,
    Assign,
    Buffer,
    Constant,
    Convert,
    Declare,
    Element,
    Fields,
    For,
    If,
    Invoke,
    Let,
    LoopFunction,
    LoopKind,
    LoopModule,
    LoopStatement,
    Mask,
    Named,
    Opaque,
    Return,
    RoutineResult,
    ScalarParameter,
    Scope,
    Store,
    Value,
    block,
    loop,
)
from polysci.measure.bench import Candidate
from polysci.numerics.dtypes import COMPUTES
from polysci.numerics.scalar_functions import EXACT
from polysci.printers.c import CPrinter
from polysci.printers.headers import headers
from polysci.runtime.backends import backend_of
from polysci.target import microkernels
from polysci.target.isa import TileRegisters
from polysci.target.isas import isa_of
from polysci.target.microkernels import HeaderSet, Microkernel, header_set_of
from polysci.target.target import Target

TAPS: Final = 3  # of a depthwise filter's line, and lines of a stencil's
SUMS: Final = 12  # accumulators of the reference kernel, which hide latency: many loads for each
BLOCK: Final = 12 * 1024  # bytes of memory that are read one behind the other
JUMP: Final = 9  # blocks from one that is read to the next, where the next one lies elsewhere
DEPTH: Final = 64  # reduction steps of a probe's run: A and B of the largest tile stay in L1
TURNS: Final = Variable("n")
THREAD: Final = Variable("thread")
Parts = list[LoopFunction | Let | Declare]


def unit_of(kernel: Microkernel, x: str) -> HeaderSet:
    """Return the header set of a kernel for inputs of type ``x``, with sums as results.

    Kernels that convert read x itself, others a packed copy.
    """
    compute = COMPUTES[kernel.compute]
    return header_set_of(kernel, x, compute.sum.name, packed=not compute.converts)


def peak_text(unit: HeaderSet) -> str:
    """Return C of ``double peak(int64_t n)``: the multiplications of a unit, from registers."""
    return _text(unit, _peak_headers(unit), [_call_probe("peak", "ps_probe_peak")])


def peak_units(isa: str, x: str) -> dict[str, HeaderSet]:
    """Return the unit that bounds the kernels of each way to multiply, for inputs ``x``.

    Those of ``a8`` multiply bytes as the fastest kernels of 8-bit numbers do; those of ``a24``,
    whose products take three of bytes, are compared with f32.
    """
    if x == "a8":
        return {x: next(iter(peak_units(isa, "u8").values()))}
    if x == "a24":
        own = peak_units(isa, "f32")["f32"]
        return dict.fromkeys(("f32", x), own)
    ways = microkernels.ways("brgemm", isa, x)
    return {way[0].compute: unit_of(way[0], x) for way in ways}


def _peak_headers(unit: HeaderSet) -> tuple[str, ...]:
    registers = isa_of(unit.isa).tile_registers
    return ("probe", registers.probe) if registers else ("probe",)


def _text(
    unit: HeaderSet, names: Sequence[str], parts: Sequence[LoopFunction | Let | Declare]
) -> str:
    """Return C of a unit's headers, more headers by name, and probes."""
    texts = map(microkernels.header, names)
    return "\n".join([headers(unit), *texts, CPrinter().module(LoopModule(tuple(parts)))])


def _probe(name: str, *body: LoopStatement, kernel: bool = False) -> LoopFunction:
    """Return ``double name(int64_t n)``, which returns what it did in ``n`` turns."""
    attributes = ("PS_KERNEL",) if kernel else ()
    return LoopFunction(name, (ScalarParameter("n"),), block(*body), EXACT, attributes)


def _call_probe(name: str, routine: str, *arguments: Value) -> LoopFunction:
    """Return the probe that calls a routine of the headers."""
    return _probe(name, Return(RoutineResult(routine, (*arguments, TURNS))))


def _times_turns(count: float) -> Value:
    """Return so much for each turn."""
    return Arithmetic("*", Constant(count, EXACT), Convert(EXACT, TURNS))


def _static(name: str, dtype: str, count: int | Index) -> Declare:
    return Declare(Buffer(name, dtype, as_index(count), Scope.STATIC))


def _buffer(name: str, floats: int) -> tuple[Parts, LoopStatement]:
    """Return a buffer's memory, and the statement that fills it before a probe's first run."""
    filled = f"{name}_filled"
    fill = Invoke("ps_probe_fill", (Named(name), 4 * floats))
    memory: Parts = [_static(name, "float32", floats), Let(filled, 0, "int", False, static=True)]
    return memory, If(negate(Flag(filled)), block(Assign(filled, 1), fill))


def bandwidth_text(target: Target) -> str:
    """Return C of the peak and of one core's reads: of L2, L3, memory in order and in jumps."""
    unit = peak_units(target.isa.name, "f32")["f32"]
    parts: Parts = [_call_probe("peak", "ps_probe_peak")]
    for level, size in {"l2": target.second_level.size // 2, "l3": _l3_bytes(target, 1)}.items():
        name, count = f"{level}_buffer", size // 4
        memory, fill = _buffer(name, count)
        read = RoutineResult("ps_probe_read", (Named(name), count, TURNS))
        parts += [*memory, _probe(f"read_{level}", fill, Return(read))]
    blocks = _blocks(4 * target.last_level.size)
    memory, fill = _buffer("buffer", blocks * BLOCK // 4)
    parts += memory
    for name, jump in {"read_memory": 1, "read_jumps": JUMP}.items():
        at = Let("at", 0, const=False, static=True)
        read = _read_blocks(Named("buffer"), blocks, jump, AddressOf("at"))
        parts.append(_probe(name, fill, at, Return(read)))
    return _text(unit, (*_peak_headers(unit), "probe_read"), parts)


def _blocks(size: int) -> int:
    """Return the blocks in so many bytes, so few that JUMP shares no divisor with them.

    Each is read before one comes again.
    """
    blocks = size // BLOCK
    return blocks - (blocks - 1) % JUMP


def _read_blocks(buffer: Value, blocks: int, jump: int, at: Value) -> RoutineResult:
    return RoutineResult("ps_probe_read_blocks", (buffer, BLOCK // 4, blocks, jump, at, TURNS))


def _l3_bytes(target: Target, cores: int) -> int:
    """Return the bytes a core reads from L3: its share of a third, but more than L2 holds."""
    return max(target.last_level.size // 3 // cores, 3 * target.second_level.size // 2)


def _sum_of_threads(threads: int, result: Value) -> list[LoopStatement]:
    """Return statements that compute a result in each thread at once and return their sum."""
    done = Declare(Buffer("done", EXACT, as_index(threads), Scope.STACK))
    add = Assign("total", Arithmetic("+", Named("total"), Element("done", Variable("i"))))
    return [
        done,
        _in_threads(threads, Store("done", THREAD, result)),
        Let("total", Constant(0, EXACT), EXACT, const=False),
        loop("i", threads, add),
        Return(Named("total")),
    ]


def _in_threads(threads: int, statement: LoopStatement) -> For:
    return For("thread", as_index(0), as_index(threads), block(statement), kind=LoopKind.THREADS)


def together_text(target: Target) -> str:
    """Return C of the probes of all cores at once; ``fork`` returns 1e3 for every region."""
    cores, parts = target.cores, Parts()
    blocks = _blocks(4 * target.last_level.size // cores)
    l3_floats, memory_floats = _l3_bytes(target, cores) // 4 // 64 * 64, blocks * BLOCK // 4
    place = Address(Named("at"), THREAD)
    l3, memory = (Address(Named(f"{level}_buffer"), floats * THREAD)
                  for level, floats in (("l3", l3_floats), ("memory", memory_floats)))  # fmt: skip
    reads = {
        "l3": (l3_floats, RoutineResult("ps_probe_read", (l3, l3_floats, TURNS))),
        "memory": (memory_floats, _read_blocks(memory, blocks, 1, place)),
    }
    for level, (floats, read) in reads.items():
        buffer, fill = _buffer(f"{level}_buffer", cores * floats)
        places = [_static("at", "int64", cores)] * (level == "memory")
        parts += [
            *buffer,
            _probe(f"read_{level}_all", fill, *places, *_sum_of_threads(cores, read)),
        ]
    regions = loop("i", TURNS, _in_threads(cores, Opaque()))
    parts.append(_probe("fork", regions, Return(_times_turns(1e3))))
    return _text(peak_units(target.isa.name, "f32")["f32"], ("probe", "probe_read"), parts)


def clock_text(isa: str) -> str:
    """Return C of ``double clock(int64_t n)``: rounds of so many cycles each."""
    probe = _call_probe("clock", "ps_probe_clock")
    return _text(peak_units(isa, "f32")["f32"], ("probe_clock",), [probe])


def build_clock(target: Target) -> Candidate:
    """Build the loop of ``clock_text``, for ``Bench.probe``."""
    text = clock_text(target.isa.name)
    return backend_of(target).build(text, symbols=("clock",)), "clock"


def reference_kernel(isa: str) -> Microkernel:
    """Return the kernel whose loop runs around samples, to tell how much of the core they had.

    Its operands come from L1: beside a neighbour on the same core it loses 30 %, as others do;
    the peak's loop, which loads nothing, loses 5 %.
    """
    (kernels,) = microkernels.ways("brgemm", isa, "f32")
    return min(
        kernels, key=lambda kernel: (abs(kernel.rows * kernel.vecs - SUMS), abs(kernel.vecs - 2))
    )


def reference_text(isa: str, threads: int) -> str:
    """Return C of ``double reference(int64_t n)``: the reference kernel in all threads at once.

    Threads that share a core, as two processors of a virtual machine may, take longer together.
    """
    kernel = reference_kernel(isa)
    reference = _probe("reference", *_sum_of_threads(threads, RoutineResult(str(kernel), (TURNS,))))
    return _text(unit_of(kernel, "f32"), ("probe",), [_tile(kernel), reference])


def build_reference(target: Target, threads: int = 1) -> Candidate:
    """Build the loop of ``reference_text``, for ``Bench.watch``."""
    text = reference_text(target.isa.name, threads)
    return backend_of(target).build(text, symbols=("reference",)), "reference"


def tile_text(kernels: Sequence[Microkernel], x: str) -> str:
    """Return C of ``double KERNEL(int64_t n)`` for every kernel: runs of DEPTH words from L1."""
    return _text(unit_of(kernels[0], x), ("probe",), [*map(_tile, kernels)])


def _tile(kernel: Microkernel) -> LoopFunction:
    """Return the probe of one kernel's runs; it returns the operations."""
    word, shifts = COMPUTES[kernel.compute].vnni_factor, kernel.shifts
    rows, cols, registers = kernel.rows, kernel.cols, kernel.tile_registers
    run, steps, of_a = reduction_of(kernel)
    acc, t, c = Named("acc"), Named("t"), Named("c")
    fill = [
        Invoke("ps_probe_fill", (Named(of), RoutineResult("sizeof", (Named(of),)))) for of in "ab"
    ]
    return _probe(
        str(kernel),
        _static("a", "ps_a", of_a),
        _static("b", "ps_b", DEPTH * cols * word),
        _static("c", "ps_y", rows * cols),
        tile_record(kernel, of_a),
        Declare(Buffer("acc", "ps_acc", as_index(rows * kernel.vecs * shifts), Scope.REGISTER)),
        *fill,
        *(_configuration(registers) if registers else []),
        Invoke("ps_begin", (acc, t, c, 0)),
        loop("i", TURNS, *run),
        *[Invoke("ps_unshift", (acc, t))] * (kernel.group > 1),
        *[Invoke("ps_unpair", (acc, t))] * (kernel.family == "depthwise"),
        Invoke("ps_end", (acc, t, c, 0)),
        *([Invoke(registers.release, (AddressOf(registers.state),))] if registers else []),
        Invoke("ps_probe_keep", (c,)),
        Return(_times_turns(operations_of(kernel, steps))),
        kernel=True,
    )


def tile_record(kernel: Microkernel, of_a: int) -> Let:
    """Return the definition of a kernel's tile ``t``, whose A has so many elements."""
    shape: dict[str, Value] = {
        **{"rows": kernel.rows, "vecs": kernel.vecs, "wrap": kernel.rows},
        **{"lanes": Named("PS_LANES"), "diagonal": int(kernel.diagonal), "shifts": kernel.shifts},
        **{"a_inner": of_a // (kernel.rows + TAPS - 1), "c_inner": kernel.cols, "c_col": 1},
        **({"together": kernel.in_lane} if kernel.in_lane > 1 else {}),
    }
    return record("t", "ps_tile", shape)


def operations_of(kernel: Microkernel, steps: int) -> float:
    """Return the operations of so many steps of a kernel's reduction."""
    word = COMPUTES[kernel.compute].vnni_factor
    words = kernel.in_lane if kernel.diagonal and not kernel.stacked else word
    return 2.0 * steps * kernel.rows * kernel.cols * words


def record(name: str, kind: str, fields: Mapping[str, Value]) -> Let:
    """Return the definition of a record that is known when code is compiled."""
    return Let(name, Fields(tuple(fields.items())), kind, static=True)


def _configuration(registers: TileRegisters) -> list[LoopStatement]:
    """Return what an entry does before its first register tile on tile registers."""
    return [
        Let(registers.state, 0, "int", const=False),
        If(negate(Supported()), block(Return(0))),
        Invoke(registers.configure, (AddressOf(registers.state), Named("t"))),
    ]


def reduction_of(kernel: Microkernel) -> tuple[list[LoopStatement], int, int]:
    """Return a part of a reduction as the kernel's tiles do it most; its steps; elements of A.

    It adds the products of ``a`` and ``b`` to ``acc``, the sums of the tile ``t``.
    """
    if kernel.stencil:
        return _stencil(kernel)
    word = COMPUTES[kernel.compute].vnni_factor
    a_row, a_step = (kernel.cols, 0) if kernel.diagonal else (DEPTH * word, word)
    of_a = (kernel.rows + TAPS - 1) * a_row
    acc, t, a, b = map(Named, ("acc", "t", "a", "b"))
    pixels = Mask((1 << kernel.rows + TAPS - 1) - 1, 64)
    if kernel.stacked:
        shape: dict[str, Value] = {"taps": TAPS, "count": Named("PS_WORD"), "step": kernel.cols}
        stack = Fields(tuple(shape.items()), "ps_stack")
        operands: tuple[Value, ...] = (acc, t, stack, pixels, a, b, 0, Named("PS_WORD"))
        return [Invoke("ps_slide_stacked", operands)], TAPS, of_a
    if kernel.family == "depthwise" and kernel.rows > 1:
        operands = (acc, t, pixels, a, b, TAPS, kernel.cols)
        return [Invoke("ps_slide", operands)], TAPS, of_a
    run = "ps_run_grouped" if kernel.group > 1 else "ps_run"
    rows = Mask((1 << kernel.rows) - 1)
    return [Invoke(run, (acc, t, rows, a, b, DEPTH // kernel.shifts, a_step))], DEPTH, of_a


def _stencil(kernel: Microkernel) -> tuple[list[LoopStatement], int, int]:
    """Return the probe of a filter of TAPS by TAPS over rows of pixels without gaps."""
    every, width = kernel.every, kernel.every * kernel.cols
    rows, pitch = (kernel.rows - 1) * every + TAPS, width + TAPS - 1
    together = TAPS if kernel.shifts_pixels else every
    window = {"taps": TAPS, "apart": 1, "step": every, "every": every, "across": 1,
              "bottom": rows, "row": pitch, "b_row": TAPS}  # fmt: skip
    calls = [
        Invoke("ps_run_window", (
            *map(Named, ("acc", "t", "f")), *(Address(Named(of), as_index(tap)) for of in "ab"),
            count, 0, width + count - every,
        ))
        for tap in range(0, TAPS, together)
        for count in [min(together, TAPS - tap)]
    ]  # fmt: skip
    return [record("f", "ps_window", window), *calls], TAPS * TAPS, rows * pitch
