"""C of the probes of a calibration: peak, streaming reads, parallel regions, microkernels."""

from __future__ import annotations

from collections.abc import Sequence

from polysci.measure.bench import Candidate
from polysci.numerics.dtypes import COMPUTES
from polysci.printers import ctree as c
from polysci.printers import openmp
from polysci.runtime.backends import backend_of
from polysci.target import microkernels
from polysci.target.header_sets import HeaderSet, header_set_of, headers
from polysci.target.isa import TileRegisters
from polysci.target.isas import isa_named
from polysci.target.microkernels import Microkernel
from polysci.target.target import Target

TAPS = 3  # of a depthwise filter's line, and lines of a stencil's
SUMS = 12  # accumulators of the reference kernel: enough to hide latency, and many loads for each
BLOCK = 12 * 1024  # bytes of memory that are read one behind the other
JUMP = 9  # blocks from one that is read to the next, where the next one lies elsewhere
DEPTH = 64  # reduction steps of a probe's run: A and B of the largest tile stay in L1


def unit_of(kernel: Microkernel, x: str) -> HeaderSet:
    """The header set of a kernel for inputs of type ``x``, with sums as results.

    Kernels that convert read x itself, others a packed copy.
    """
    compute = COMPUTES[kernel.compute]
    return header_set_of(kernel, x, compute.sum.name, packed=not compute.converts)


def peak_text(unit: HeaderSet) -> str:
    """C of ``double peak(int64_t iterations)``: the multiplications of a unit, from registers."""
    registers = isa_named(unit.isa).tile_registers
    probes = ("probe", registers.probe) if registers else ("probe",)
    body = [c.Statement("return ps_probe_peak(n)")]
    return _text(unit, probes, [_probe("peak", body)])


def peak_units(isa: str, x: str) -> dict[str, HeaderSet]:
    """Return the unit that bounds the kernels of each way to multiply, for inputs ``x``."""
    ways = microkernels.ways("brgemm", isa, x)
    return {way[0].compute: unit_of(way[0], x) for way in ways}


def _text(unit: HeaderSet, names: Sequence[str], parts: Sequence[c.Generable]) -> str:
    """C of a unit's headers, more headers by name, and definitions."""
    return "\n".join([
        headers(unit), *map(microkernels.header, names), *map(c.text, parts), "",
    ])  # fmt: skip


def _probe(name: str, body: Sequence[c.Generable], attribute: str = "") -> c.Generable:
    """C of ``double name(int64_t n)``, which returns what it did in ``n`` turns."""
    head = f"double {name}(int64_t n)"
    return c.Collection([c.Statement(head), c.function(f"{attribute}{head}", body)])


def bandwidth_text(target: Target) -> str:
    """C of the peak and of one core's reads: of L2, of L3, of memory in order and in jumps."""
    unit = peak_units(target.isa.name, "f32")["f32"]
    parts: list[c.Generable] = [c.Line(peak_text(unit))]
    parts.append(c.Line(microkernels.header("probe_read")))
    for level, size in {"l2": target.memory("L2").size // 2, "l3": _l3_bytes(target, 1)}.items():
        buffer, count = f"{level}_buffer", size // 4
        read = c.Statement(f"return ps_probe_read({buffer}, {count}, n)")
        parts += [
            _array(f"float {buffer}[{count}]"),
            _probe(f"read_{level}", [_filled(buffer), read]),
        ]
    blocks = _blocks(4 * target.last_level.size)
    parts.append(_array(f"float buffer[{blocks * BLOCK // 4}]"))
    for name, jump in {"read_memory": 1, "read_jumps": JUMP}.items():
        body = [_filled("buffer"), c.Statement("static int64_t at")]
        parts.append(
            _probe(
                name, [*body, c.Statement(f"return {_read_blocks('buffer', blocks, jump, '&at')}")]
            )
        )
    return "\n".join([*map(c.text, parts), ""])


def _filled(buffer: str) -> c.Generable:
    """C that fills a probe's buffer before its first run."""
    return c.Collection([
        c.Statement("static int filled"),
        c.when("!filled++", c.Statement(f"ps_probe_fill({buffer}, sizeof {buffer})")),
    ])  # fmt: skip


def _blocks(size: int) -> int:
    """Blocks in so many bytes, without a divisor of JUMP: each is read before one comes again."""
    blocks = size // BLOCK
    return blocks - (blocks - 1) % JUMP


def _read_blocks(buffer: str, blocks: int, jump: int, at: str) -> str:
    return f"ps_probe_read_blocks({buffer}, {BLOCK // 4}, {blocks}, {jump}, {at}, n)"


def _l3_bytes(target: Target, cores: int) -> int:
    """Return the bytes a core reads from L3: its share of a third, but more than L2 holds."""
    return max(target.last_level.size // 3 // cores, 3 * target.memory("L2").size // 2)


def _array(declarator: str) -> c.Generable:
    """C of a static array that begins where a cache line does."""
    return c.Statement(f"static {declarator} __attribute__((aligned(64)))")


def together_text(target: Target) -> str:
    """C of the probes that run on all cores at once; ``fork`` returns 1e3 for every region."""
    cores = target.cores
    parts: list[c.Generable] = []
    blocks = _blocks(4 * target.last_level.size // cores)
    l3_floats = _l3_bytes(target, cores) // 4 // 64 * 64
    reads = {
        "l3": (l3_floats, f"ps_probe_read(l3_buffer[i], {l3_floats}, n)"),
        "memory": (blocks * BLOCK // 4, _read_blocks("memory_buffer[i]", blocks, 1, "&at[i]")),
    }
    for level, (count, read) in reads.items():
        buffer = f"{level}_buffer"
        fill = c.Statement(f"ps_probe_fill({buffer}[i], sizeof {buffer}[i])")
        body = [
            c.Statement("static int filled"),
            c.Statement(f"static int64_t at[{cores}]"),
            c.Statement("double bytes = 0"),
            c.loop("int i = 0", f"!filled && i < {cores}", "++i", fill),
            c.Statement("filled = 1"),
            c.Line(openmp.parallel_loop(cores, "reduction(+ : bytes)")),
            c.loop("int i = 0", f"i < {cores}", "++i", c.Statement(f"bytes += {read}")),
            c.Statement("return bytes"),
        ]
        parts += [_array(f"float {buffer}[{cores}][{count}]"), _probe(f"read_{level}_all", body)]
    regions = c.Block(
        [c.Line(openmp.parallel(cores)), c.Statement('__asm__ volatile("" : : : "memory")')]
    )
    turns = c.loop("int64_t i = 0", "i < n", "++i", regions)
    parts.append(_probe("fork", [turns, c.Statement("return 1e3 * (double)n")]))
    return _text(peak_units(target.isa.name, "f32")["f32"], ("probe", "probe_read"), parts)


def clock_text(isa: str) -> str:
    """C of ``double clock(int64_t iterations)``: rounds of so many cycles each."""
    body = [c.Statement("return ps_probe_clock(n)")]
    return _text(peak_units(isa, "f32")["f32"], ("probe_clock",), [_probe("clock", body)])


def build_clock(target: Target) -> Candidate:
    """The loop of ``clock_text``, for ``Bench.probe``."""
    text = clock_text(target.isa.name)
    return backend_of(target).build(text, symbols=("clock",)), "clock"


def reference_kernel(isa: str) -> Microkernel:
    """The kernel whose loop runs around samples, to tell how much of the core they had.

    Its operands come from L1: beside a neighbour on the same core it loses 30 %, as others do;
    the peak's loop, which loads nothing, loses 5 %.
    """
    (kernels,) = microkernels.ways("brgemm", isa, "f32")
    return min(
        kernels, key=lambda kernel: (abs(kernel.rows * kernel.vecs - SUMS), abs(kernel.vecs - 2))
    )


def reference_text(isa: str, threads: int) -> str:
    """C of ``double reference(int64_t iterations)``: the reference kernel in all threads at once.

    Threads that share a core, as two processors of a virtual machine may, take longer together.
    """
    kernel = reference_kernel(isa)
    body = [
        c.Statement("double done = 0"),
        c.Line(openmp.parallel_loop(threads, "reduction(+ : done)")),
        c.loop("int i = 0", f"i < {threads}", "++i", c.Statement(f"done += {kernel}(n)")),
        c.Statement("return done"),
    ]
    return tile_text([kernel], "f32") + c.text(_probe("reference", body)) + "\n"


def build_reference(target: Target, threads: int = 1) -> Candidate:
    """The loop of ``reference_text``, for ``Bench.watch``."""
    text = reference_text(target.isa.name, threads)
    return backend_of(target).build(text, symbols=("reference",)), "reference"


def _reduction(kernel: Microkernel) -> tuple[c.Body, int, int]:
    """C of a part of a reduction as the kernel's tiles do it most; its steps; elements of A."""
    if kernel.stencil:
        return _stencil(kernel)
    word = COMPUTES[kernel.compute].vnni_factor
    a_row, a_step = (kernel.cols, 0) if kernel.diagonal else (DEPTH * word, word)
    of_a = (kernel.rows + TAPS - 1) * a_row
    pixels = (1 << kernel.rows + TAPS - 1) - 1
    if kernel.stacked:
        shape = f"(ps_stack){{.taps = {TAPS}, .count = PS_WORD, .step = {kernel.cols}}}"
        slide = f"ps_slide_stacked(acc, t, {shape}, UINT64_C({pixels:#x}), a, b, 0, PS_WORD)"
        return [c.Statement(slide)], TAPS, of_a
    if kernel.family == "depthwise" and kernel.rows > 1:
        slide = f"ps_slide(acc, t, UINT64_C({pixels:#x}), a, b, {TAPS}, {kernel.cols})"
        return [c.Statement(slide)], TAPS, of_a
    run = "ps_run_grouped" if kernel.shifts > 1 else "ps_run"
    rows = f"{(1 << kernel.rows) - 1:#x}u"
    text = f"{run}(acc, t, {rows}, a, b, {DEPTH // kernel.shifts}, {a_step})"
    return [c.Statement(text)], DEPTH, of_a


def _stencil(kernel: Microkernel) -> tuple[c.Body, int, int]:
    """Return the probe of a filter of TAPS by TAPS over rows of pixels without gaps."""
    every, width = kernel.every, kernel.every * kernel.cols
    rows, pitch = (kernel.rows - 1) * every + TAPS, width + TAPS - 1
    together = TAPS if kernel.shifts_pixels else every
    window = (
        f"static const ps_window f = {{.taps = {TAPS}, .apart = 1, .step = {every}, "
        f".every = {every}, .across = 1, .bottom = {rows}, .row = {pitch}, .b_row = {TAPS}}}"
    )
    calls = [
        f"ps_run_window(acc, t, f, a + {tap}, b + {tap}, {count}, 0, {width + count - every})"
        for tap in range(0, TAPS, together)
        for count in [min(together, TAPS - tap)]
    ]
    return [*map(c.Statement, [window, *calls])], TAPS * TAPS, rows * pitch


def _configuration(registers: TileRegisters) -> list[c.Generable]:
    """C of what an entry does before its first register tile on tile registers."""
    return [
        c.Statement(registers.declaration()),
        c.when("!PS_CPU_OK()", c.Statement("return 0")),
        c.Statement(registers.configuration(f"&{registers.state}")),
    ]


def tile_text(kernels: Sequence[Microkernel], x: str) -> str:
    """C of ``double KERNEL(int64_t iterations)`` for every kernel: runs of DEPTH words from L1."""
    parts = [_probe(str(kernel), _tile(kernel), "PS_KERNEL ") for kernel in kernels]
    return _text(unit_of(kernels[0], x), ("probe",), parts)


def _tile(kernel: Microkernel) -> list[c.Generable]:
    """C of one kernel's runs; returns the operations."""
    word, shifts = COMPUTES[kernel.compute].vnni_factor, kernel.shifts
    rows, cols, registers = kernel.rows, kernel.cols, kernel.tile_registers
    run, steps, of_a = _reduction(kernel)
    a_row = of_a // (rows + TAPS - 1)
    operations = 2.0 * steps * rows * cols * (word if kernel.stacked or not kernel.diagonal else 1)
    return [
        _array(f"ps_a a[{of_a}]"),
        _array(f"ps_b b[{DEPTH * cols * word}]"),
        _array(f"ps_y c[{rows * cols}]"),
        c.Statement(
            f"static const ps_tile t = {{.rows = {rows}, .vecs = {kernel.vecs}, "
            f".wrap = {rows}, .lanes = PS_LANES, .diagonal = {int(kernel.diagonal)}, "
            f".shifts = {shifts}, .a_inner = {a_row}, .c_inner = {cols}, .c_col = 1}}"
        ),
        c.local_array("ps_acc", "acc", rows * kernel.vecs * shifts),
        c.Statement("ps_probe_fill(a, sizeof a)"),
        c.Statement("ps_probe_fill(b, sizeof b)"),
        *(_configuration(registers) if registers else ()),
        c.Statement("ps_begin(acc, t, c, 0)"),
        c.loop("int64_t i = 0", "i < n", "++i", c.Block(run)),
        *([c.Statement("ps_unshift(acc, t)")] if shifts > 1 else []),
        *([c.Statement("ps_unpair(acc, t)")] if kernel.family == "depthwise" else []),
        c.Statement("ps_end(acc, t, c, 0)"),
        *([c.Statement(registers.ending())] if registers else []),
        c.Statement('__asm__ volatile("" : : "r"(c) : "memory")'),  # c is read: keep the loop
        c.Statement(f"return {operations} * (double)n"),
    ]
