"""Every microkernel against plain loops: types, tails, runs, masks, epilogues, guard pages."""

import ctypes
import hashlib
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest

from polysci.errors import SpecError, UnsupportedError
from polysci.numerics.dtypes import COMPUTES, PRECISIONS, computes
from polysci.printers.headers import headers
from polysci.runtime.build import cache
from polysci.target import microkernels
from polysci.target.isas import DEVICE_ISAS, ISAS, isa_of
from polysci.target.microkernels import HeaderSet, header_set_of
from tests.support import kernelunit
from tests.support.exhaustive import selected
from tests.support.kernelunit import (
    FLAGS,
    STRICT,
    Group,
    groups,
    on_vectors,
    quick_flags,
    runs_here,
    small_groups,
)
from tests.support.samples import COMPILED

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
TIMES = 2  # random cases of a kernel for each number of lanes and of runs
SMALL_TIMES = 6

Units = dict[Group, Path]
Checks = dict[Group, subprocess.CompletedProcess[str]]


def by_isa(isa: str) -> list[Group]:
    return [group for group in groups() if group.unit.isa == isa]


def known(chosen: list[Group]) -> list[Group]:
    """Those that this machine's compilers know; tests of other machines have the others."""
    return [group for group in chosen if group.unit.isa in COMPILED]


def built(chosen: list[Group]) -> Units:
    """The compiled units of those that run here, the largest first to the compilers."""
    chosen = [group for group in chosen if runs_here(group.unit.isa)]
    chosen.sort(key=lambda group: -group.effort)
    texts = [kernelunit.text(group, stand_in=True) for group in chosen]
    return dict(zip(chosen, cache.build_many(texts, flags=quick_flags()), strict=True))


@pytest.fixture(scope="module")
def wanted(request: pytest.FixtureRequest) -> list[Group]:
    """The groups whose tests will run."""
    return selected(request.session, "group", Group)


@pytest.fixture(scope="module")
def units(wanted: list[Group]) -> Units:
    """Every kernel, with one choice of types."""
    return built([group for group in groups() if group in wanted])


@pytest.fixture(scope="module")
def checks(units: Units) -> Checks:
    return kernelunit.run_all(units, TIMES)


@pytest.fixture(scope="module")
def small_checks(wanted: list[Group]) -> Checks:
    """Of small kernels with every choice of types."""
    chosen = [group for group in small_groups() if group in wanted]
    return kernelunit.run_all(built(chosen), SMALL_TIMES)


def passed(checks: Checks, group: Group) -> list[str]:
    """What was checked."""
    if group not in checks:
        pytest.skip(f"this CPU lacks {group.unit.isa}")
    done = checks[group]
    assert done.returncode == 0, f"{done.stdout[-600:]}{done.stderr[-600:]}"
    return done.stdout.split()


@pytest.mark.sampled
@pytest.mark.parametrize("group", sorted(groups(), key=kernelunit.portable_first), ids=str)
def test_kernels_are_exact_and_stay_inside_their_operands(checks: Checks, group: Group) -> None:
    assert passed(checks, group) == [str(kernel) for kernel in group.kernels]


@pytest.mark.exhaustive
@pytest.mark.parametrize("group", small_groups(), ids=str)
def test_every_choice_of_types_computes_and_packs(small_checks: Checks, group: Group) -> None:
    names = map(str, group.kernels)
    assert passed(small_checks, group) == [
        *names,
        "ps_pack_row",
        *(["ps_slide"] if group.slid else []),
    ]


def test_every_unit_of_every_precision_is_among_them() -> None:
    """Whatever code is generated for, its headers are checked."""
    checked = {group.unit for group in small_groups()}
    for isa in ISAS:
        for precision in PRECISIONS.values():
            x, y = precision.x.name, precision.y.name
            families = {k.family for k in microkernels.registry().values() if not k.stencil}
            for family in sorted(families):
                for kernel in (way[0] for way in microkernels.ways(family, isa, x)):
                    both = {header_set_of(kernel, x, y, packed=packed) for packed in (True, False)}
                    assert both <= checked or kernel.tile_registers
    assert HeaderSet("avx512bf16", "bf16", "bf16", "f32") in checked


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", sorted({kernel.isa for kernel in on_vectors()}))
def test_symbols_of_the_units_are_the_names_of_the_registry(isa: str) -> None:
    """The units read kernels.def by a reader of their own."""
    if not runs_here(isa):
        pytest.skip(f"this CPU lacks {isa}")
    compiled = []
    units = built(by_isa(isa))
    for group in by_isa(isa):
        unit = ctypes.CDLL(str(units[group]))
        compiled += kernelunit.names_of(unit)
        assert all(hasattr(unit, name) for name in compiled[-len(group.kernels) :])
    registered = [kernel for kernel in microkernels.registry().values() if kernel.isa == isa]
    own = [str(it) for it in registered if not it.stacked and not COMPUTES[it.compute].bytes_of_x]
    assert sorted(compiled) == sorted(own)


def test_every_line_of_the_list_is_registered() -> None:
    """3744 tiles in the order that ties between schedules are broken by."""
    names = [name for name, kernel in microkernels.registry().items() if kernel.isa in ISAS]
    assert [line.replace(", ", "_") for line in kernelunit.kernel_lines()] == [
        f"KERNEL({'_'.join(name.rsplit('x', 1))})" for name in names
    ]
    digest = hashlib.sha256("".join(f"{name}\n" for name in names).encode()).hexdigest()
    assert (len(names), digest[:16]) == (3744, "8a451df225d09d0d")
    for name, kernel in microkernels.registry().items():
        assert name == str(kernel) and microkernels.find(name) == kernel
        assert kernel.isa in {*ISAS, *DEVICE_ISAS} and kernel.compute in COMPUTES
        assert (
            kernel.cols == kernel.vecs * kernel.lanes == kernel.vecs * isa_of(kernel.isa).lanes_f32
        )
        masked = not kernel.tile_registers and kernel.items == 1
        assert kernel.rows <= 32 or not masked, f"{name}: a row mask has 32 bits"


def test_register_tiles_fit_the_registers() -> None:
    for kernel in on_vectors():
        if kernel.outer_products:  # whose sums vectors take by parts
            assert kernel.rows <= kernel.outer_products and kernel.vecs <= 12, kernel
            continue
        scalars = kernel.isa.startswith("rvv")  # which multiplies vectors by scalars
        if kernel.stencil:  # pixels, and the weights of three taps: of two columns where one load
            # brings two
            needed = kernel.rows * kernel.vecs + (1 if scalars else 4) * kernel.every
            assert needed <= isa_of(kernel.isa).registers, kernel
            continue
        # AVX-512 takes the broadcast of A from memory inside the FMA; 8-bit A may be flipped first,
        # products of 16-bit numbers are added by an instruction of their own. Helium's A is in a
        # register of the core.
        apart = scalars or kernel.isa.startswith("avx512") or kernel.isa == "helium"
        passing = apart and kernel.family == "brgemm"
        of_a = {"f32": 1 - passing, "f16": 1, "bf16": 1 - passing, "i8": 1, "i16": 2}[
            kernel.compute
        ]
        needed = kernel.rows * kernel.vecs * kernel.shifts + kernel.vecs + of_a
        assert needed <= isa_of(kernel.isa).registers, kernel


def test_every_isa_can_compute_any_number_of_rows() -> None:
    """An even split may ask for any count up to the largest; tiles of groups are not split."""
    rows: dict[tuple[str, ...], list[int]] = {}
    for k in microkernels.registry().values():
        if k.family in ("fma", "mma"):
            continue
        rows.setdefault((k.family, k.isa, k.compute, str(k.cols)), []).append(k.rows)
    for key, counts in rows.items():
        assert counts == list(range(1, max(counts) + 1)), key


def test_every_isa_has_grouped_kernels_for_all_groups_narrower_than_a_vector() -> None:
    kernels = microkernels.registry().values()
    for isa in {kernel.isa for kernel in kernels if kernel.compute == "f32"}:
        widths = [2**i for i in range(1, 8) if 2**i < isa_of(isa).lanes_f32]
        for compute in dict.fromkeys(k.compute for k in kernels if k.isa == isa and k.diagonal):
            grouped = {k for k in kernels if (k.isa, k.compute) == (isa, compute) and k.group > 1}
            shifts = {kernel.group for kernel in grouped}  # NEON's may fill a vector
            words = max((kernel.in_lane for kernel in grouped), default=1)
            assert {width for width in widths if width >= words} <= shifts
            assert max(shifts, default=0) <= isa_of(isa).lanes_f32
            assert all(kernel.family == f"grouped{kernel.group}" for kernel in grouped)
            assert all(kernel.group == kernel.shifts * kernel.in_lane for kernel in grouped)
            assert all(kernel.diagonal for kernel in grouped)


def test_every_isa_has_kernels_for_every_input() -> None:
    for isa in ISAS:
        for x in sorted({precision.x.name for precision in PRECISIONS.values()}):
            for family in ("brgemm", "depthwise"):
                for kernel in chain.from_iterable(ways := microkernels.ways(family, isa, x)):
                    assert kernel.isa in (*isa_of(isa).chain, "portable")
                    assert kernel.compute in computes(x, family)
                assert ways, (family, isa, x)


def test_unknown_kernels_are_refused() -> None:
    with pytest.raises(SpecError, match="'brgemm_avx512_f32_99x99' is not in microkernels/kernels"):
        microkernels.find("brgemm_avx512_f32_99x99")
    with pytest.raises(SpecError, match="no instruction set 'vax'"):
        microkernels.lanes("vax")
    with pytest.raises(UnsupportedError, match=r"isa_vax\.h"):
        microkernels.header("isa_vax")


PORTABLE, WHOLE = HeaderSet("portable"), HeaderSet("portable", "i16", "u8", "u8")
DIRECT = HeaderSet("portable", "i16", "s8", "s8", packed_copy=False)
# Faulty primitives, by the header after which they replace the right ones: each must be noticed, or
# the tests above prove nothing.
FAULTS = {
    "reads past a tail": (PORTABLE, "isa_portable", "ps_load_first(p, n) ((void)(n), ps_load(p))"),
    "writes past a tail": (
        PORTABLE, "isa_portable", "ps_store_first(p, x, n) ((void)(n), ps_store(p, x))",
    ),
    "forgets the sum": (PORTABLE, "isa_portable", "ps_fma(x, y, z) ((void)(z), (x) * (y))"),
    "has no lower bound": (PORTABLE, "isa_portable", "ps_max(x, y) ((void)(x), (y))"),
    "has no upper bound": (PORTABLE, "isa_portable", "ps_min(x, y) ((void)(x), (y))"),
    "clamps a NaN": (PORTABLE, "isa_portable", "ps_max(x, y) (ps_max)(y, x)"),
    "adds nothing": (PORTABLE, "isa_portable", "ps_add(x, y) ((void)(y), (x))"),
    "streams to the wrong place": (
        PORTABLE, "isa_portable", "ps_stream(p, x) ps_store((p) + 1, x)",
    ),
    "swaps nothing": (PORTABLE, "isa_portable", "ps_swap(x, d) ((void)(d), (x))"),
    "swaps the wrong lanes": (PORTABLE, "isa_portable", "ps_swap(x, d) ps_swap(x, 3 - (d))"),
    "turns nothing": (PORTABLE, "isa_portable", "ps_transpose(x) ((void)(x))"),
    "cuts f32 to bf16": (
        HeaderSet("portable", "f32", "bf16", "bf16"), "scalar",
        "ps_bf16_of(x) (uint16_t)(ps_bits_of(x) >> 16)",
    ),
    "keeps no denormals": (
        HeaderSet("portable", "f32", "f16", "f32"), "scalar",
        "ps_f16_value(x) (((x) & 0x7c00) ? (ps_f16_value)(x) : 0.0f)",
    ),
    "reads a word where there is a part": (WHOLE, "a_i16_boxed", "ps_word_first(p, n) ps_word(p)"),
    "takes a part of a part": (WHOLE, "a_i16_boxed", "ps_word_first(p, n) ps_int_splat(0)"),
    "fills with zeros": (WHOLE, "a_i16_boxed", "ps_filling(zero) ((void)(zero), ps_int_splat(0))"),
    "fills one place of a word": (WHOLE, "a_i16_boxed", "ps_filling(zero) ps_int_splat(zero)"),
    "reads too many channels": (
        DIRECT, "a_i16_direct", "ps_beside(p, n) ((void)(n), ps_x_int(p, PS_LANES))",
    ),
    "saturates sums of pairs": (
        WHOLE, "narrow_portable",
        "ps_pairs(x, y, z) ((z) + ps_int_min((ps_pairs)(x, y, ps_int_splat(0)), "
        "ps_int_splat(32767)))",
    ),
    "rounds towards zero": (
        WHOLE, "narrow_portable", "ps_to_int(x) __builtin_convertvector(x, ps_int)",
    ),
    "wraps around": (
        WHOLE, "narrow_portable",
        "ps_store_u8(p, x, n) (ps_store_u8)(p, (x) & ps_int_splat(255), n)",
    ),
    "stores a signed result": (
        WHOLE, "narrow_portable", "ps_store_u8(p, x, n) ps_store_s8((void *)(p), x, n)",
    ),
    "reads past the scales": (
        WHOLE, "narrow_portable", "ps_int_load(p, n) ((void)(n), (ps_int_load)(p, PS_LANES))",
    ),
    "forgets offsets": (WHOLE, "narrow_portable", "ps_int_add(x, y) ((void)(y), (x))"),
    "begins without offsets": (
        WHOLE, "end_scaled", "ps_begin_offset(acc, t, e) ps_begin(acc, t, c, 0)",
    ),
    "leaves the clamp to the narrowing": (
        WHOLE, "end_scaled",
        "ps_limits(l, c, to, n) ((void)(l), (void)(c), (void)(to), (void)(n), (const float *)0)",
    ),
    "scales a little too much": (
        WHOLE, "narrow_portable", "ps_mul(x, y) ((x) * (y) * (1.0f + 0x1p-23f))",
    ),
    "turns too little": (WHOLE, "x_u8", "ps_x_bits(p, n) (ps_x_bits)(p, (n) - 1)"),
    "writes past a box": (WHOLE, "a_i16_boxed", "ps_a_store(p, x, n) (ps_a_store)(p, x, PS_LANES)"),
}  # fmt: skip


def small(unit: HeaderSet) -> Group:
    return next(group for group in small_groups() if group.unit == unit)


@pytest.fixture(scope="module")
def faulty(request: pytest.FixtureRequest) -> dict[str, subprocess.CompletedProcess[str]]:
    chosen = [name for name in selected(request.session, "fault", str) if name in FAULTS]
    texts = [
        kernelunit.text(small(unit), fault=(header, macro))
        for unit, header, macro in map(FAULTS.__getitem__, chosen)
    ]
    paths = cache.build_many(texts, flags=quick_flags())
    return kernelunit.run_all(dict(zip(chosen, paths, strict=True)), SMALL_TIMES)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_primitive_is_noticed(
    faulty: dict[str, subprocess.CompletedProcess[str]], fault: str
) -> None:
    assert faulty[fault].returncode != 0
    assert "_portable_" in faulty[fault].stdout


@pytest.mark.exhaustive
@pytest.mark.isa("avx2")
@pytest.mark.parametrize("isa", ["avx2", "portable"])
def test_products_are_rounded_before_they_are_added(isa: str) -> None:
    """Also where the compiler may fuse; without the barrier it does, and that is noticed."""
    text = kernelunit.text(small(HeaderSet(isa, "i16", "u8", "u8")))
    fused = [*FLAGS, "-O2", "-ffp-contract=fast", "-mfma"]
    done = kernelunit.run(cache.build(text, flags=fused), SMALL_TIMES)
    assert done.returncode == 0, done.stdout
    text = text.replace("PS_ROUND(real);", "").replace("PS_ROUND(own);", "")
    done = kernelunit.run(cache.build(text, flags=fused), SMALL_TIMES)
    assert done.returncode != 0 and "expected" in done.stdout


@pytest.mark.exhaustive
def test_portable_kernels_under_sanitizers(tmp_path: Path) -> None:
    compiler = COMPILERS[0] if COMPILERS else pytest.skip("neither gcc nor clang")

    def sanitized(group: Group) -> subprocess.CompletedProcess[str]:
        source, program = tmp_path / f"{group}.c", tmp_path / str(group)
        source.write_text(kernelunit.text(group))
        flags = ["-O0", "-g1", "-DSANITIZED", "-fsanitize=address,undefined"]
        words = [compiler, *STRICT, *flags, "-fno-sanitize-recover=all", "-o", program, source]
        subprocess.run(words, check=True, timeout=240)
        return subprocess.run([program], capture_output=True, text=True, timeout=240)

    large = [group for group in by_isa("portable") if group.unit.compute == "f32"]
    chosen = [group for group in small_groups() if group.unit.isa == "portable"]
    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(sanitized, [*large, *chosen]):
            assert done.returncode == 0, f"{done.stdout[-400:]}{done.stderr[-2000:]}"


def warned(compiler: str, folder: Path, texts: dict[str, str]) -> list[str]:
    """What a compiler says about texts of these names."""

    def said(name: str) -> str:
        source = folder / f"{name}.c"
        source.write_text(texts[name])
        options = ["-O0", "-Wno-unused-function", "-c", "-o", folder / f"{name}.o"]
        words = [compiler, *STRICT, *options, source]
        return subprocess.run(words, capture_output=True, text=True, timeout=240).stderr

    with ThreadPoolExecutor(2) as pool:
        return [text for text in pool.map(said, texts) if text]


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiler", COMPILERS)
def test_headers_compile_without_a_warning(tmp_path: Path, compiler: str) -> None:
    """And probes of the machine behind them."""
    probes = "\n".join(microkernels.header(name) for name in ("probe", "probe_clock", "probe_read"))
    units = {(g.unit.isa, g.unit.compute): g.unit for g in known(small_groups())}
    texts = {str(u): f"{headers(u)}\n{probes}\nextern int some;\n" for u in units.values()}
    assert warned(compiler, tmp_path, texts) == []


@pytest.mark.exhaustive
@pytest.mark.skipif("gcc" not in COMPILERS, reason="no gcc")
def test_gcc_accepts_what_has_a_stand_in(tmp_path: Path) -> None:
    """As it is; all others are compiled above."""
    chosen = [group for group in small_groups() if group.unit.isa in kernelunit.STAND_INS]
    assert not warned("gcc", tmp_path, {str(group): kernelunit.text(group) for group in chosen})


@pytest.mark.exhaustive
@pytest.mark.skipif("clang" not in COMPILERS, reason="no clang")
def test_clang_accepts_every_choice_of_types(tmp_path: Path) -> None:
    texts = {str(group): kernelunit.text(group) for group in known(small_groups())}
    assert not warned("clang", tmp_path, texts)


@pytest.mark.exhaustive
@pytest.mark.skipif("clang" not in COMPILERS, reason="no clang")
def test_clang_compiles_the_same_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """One choice of types of every ISA and way to multiply, run as well."""
    monkeypatch.setenv("CC", "clang")
    chosen = {
        (group.unit.isa, group.unit.compute): group
        for group in small_groups()
        if runs_here(group.unit.isa)
    }
    texts = [kernelunit.text(group, stand_in=True) for group in chosen.values()]
    flags = [flag for flag in FLAGS if flag != "-fopenmp"]
    for path in cache.build_many(texts, flags=flags):
        done = kernelunit.run(path)
        assert done.returncode == 0, f"{done.stdout[-600:]}{done.stderr[-600:]}"
