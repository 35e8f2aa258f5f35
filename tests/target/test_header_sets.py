"""The headers of a C file, and the C interface of its primitives, by precision."""

import ctypes
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest

from polysci.errors import BuildError, SpecError, UnsupportedError
from polysci.loop_ir.interface import function, functions
from polysci.lower.bilinear.nest import HEADERS as BILINEAR
from polysci.lower.winograd.launches import HEADERS as LAUNCHES
from polysci.lower.winograd.nest import HEADERS as WINOGRAD
from polysci.numerics.dtypes import COMPUTES, PRECISIONS, Precision, computes
from polysci.ops.convolutions import Conv2d
from polysci.printers import interface
from polysci.printers.headers import FUNCTION_HEADERS, attribute, flags_in, headers, target_lines
from polysci.runtime.backend import bind
from polysci.runtime.build import cache
from polysci.runtime.build.library import load
from polysci.runtime.source import Source
from polysci.target import microkernels
from polysci.target.host import detect
from polysci.target.isa import Isa
from polysci.target.isas import DEVICE_ISAS, ISAS
from polysci.target.microkernels import HeaderSet, header_set_of
from polysci.tune import EmitOptions, emit
from tests.support import samples
from tests.support.judge import build

ROOT = Path(__file__).parents[2]
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
X86 = [name for name in ISAS if "avx" in name or name in ("portable", "scalar")]
WEIGHTS = ("bf16", "s4", "u4", "s8", "u8")  # that f32 kernels decode
LAYER = Conv2d(N=1, C=6, H=5, W=5, K=9, R=3, S=3, pad=1)


def units() -> list[HeaderSet]:
    """Of every kernel for every precision."""
    found = {
        header_set_of(kernel, row.x.name, row.y.name, packed=packed)
        for isa, row in product(X86, PRECISIONS.values())
        for family in ("brgemm", "depthwise")
        for way in microkernels.ways(family, isa, row.x.name)
        for kernel in way[:1]
        for packed in (True, False)
    }
    found |= {HeaderSet(isa, w=w) for isa in ("portable", "avx2", "avx512") for w in WEIGHTS}
    found |= {HeaderSet(isa, w="f16") for isa in ("portable", "avx2", "avx512")}
    found |= {HeaderSet("helium", "i8", x, y) for x in ("u8", "s8") for y in ("u8", "s8", "s32")}
    rounding = ("portable", "avx2", "avx2vnni", "avx512", "avx512vnni")
    found |= {
        HeaderSet(isa, "a8", w=f"{w}a8", packed_copy=packed)
        for isa, w, packed in product(rounding, WEIGHTS[1:], (False, True))
    }
    found |= {
        HeaderSet(isa, "a24", w=w, packed_copy=packed)
        for isa, w, packed in product(("avx2vnni", "avx512vnni"), WEIGHTS[1:], (False, True))
    }
    found.add(HeaderSet("amx", "bf16", "bf16", "f32"))
    return sorted(found, key=str)


def test_names_of_units_differ() -> None:
    assert len(units()) == len(set(map(str, units())))
    assert str(HeaderSet("avx512")) == "avx512"
    assert str(HeaderSet("avx2", "i16", "u8", "s8", packed_copy=False)) == "avx2_i16_u8_s8_x"


def test_a_kernel_reads_x_itself_unless_it_needs_other_elements_and_a_copy() -> None:
    def boxed(name: str, x: str, *, packed: bool) -> bool:
        return header_set_of(microkernels.find(name), x, "f32", packed=packed).packed_copy

    for packed in (True, False):
        assert boxed("brgemm_avx512_f32_6x16", "f32", packed=packed)
        assert boxed("brgemm_avx512bf16_bf16_6x16", "bf16", packed=packed)
        assert boxed("brgemm_avx512vnni_i8_6x16", "u8", packed=packed)
        assert boxed("brgemm_avx512_f32_6x16", "bf16", packed=packed) == packed
        assert boxed("brgemm_avx2_i16_6x8", "s8", packed=packed) == packed
        assert not boxed("depthwise_avx2_f32_6x8", "f16", packed=packed)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("unit", units(), ids=str)
def test_headers_are_those_of_the_unit(unit: HeaderSet) -> None:
    text = headers(unit)
    assert text.startswith(f"#define PS_TARGET {attribute(ISAS[unit.isa])}".rstrip())
    for defined in ("ps_x", "ps_y", "ps_a", "ps_b", "ps_acc", "ps_wide", "ps_args", "ps_epilogue"):
        found = re.findall(rf"\b{defined};", text)
        assert found, defined
    for step in ("ps_begin", "ps_run", "ps_run_part", "ps_run_filled", "ps_end", "ps_pack_row"):
        assert len(re.findall(rf"^PS_INLINE void {step}\(", text, re.MULTILINE)) == 1, step
    scaled = unit.y in ("u8", "s8")
    assert ("void ps_put_narrow(" in text) == scaled


def test_f32_needs_nothing_narrow() -> None:
    for isa in X86:
        kernel = microkernels.ways("brgemm", isa, "f32")[0][0]
        text = headers(header_set_of(kernel, "f32", "f32", packed=True))
        assert "bf16" not in text and "ps_int_" not in text


def defined_in(text: str) -> set[str]:
    """Names of the functions and types that C headers define."""
    functions = re.findall(r"^PS_[A-Z]+ [^;{(]*?\b(ps_\w+)\(", text, re.MULTILINE)
    types = re.findall(r"^typedef [^;{]*?\b(ps_\w+)(?: __attribute__.*)?;", text, re.MULTILINE)
    return {*functions, *types}


@pytest.mark.parametrize("isa", [name for name, row in ISAS.items() if row.language == "c"])
def test_headers_of_transforms_have_names_of_their_own(isa: str) -> None:
    for stored, names in WINOGRAD.items():
        own = defined_in("\n".join(map(microkernels.header, names)))
        assert len(own) > 20
        assert not own & defined_in(headers(HeaderSet(isa, w=stored)))


def test_headers_that_sets_share_serve_all_of_them() -> None:
    for isa in ("rvv128", "rvv256"):
        text = headers(HeaderSet(isa, "i16", "u8", "s8"))
        own = [
            f"isa_{isa}",
            *(f"{it}_riscv64" for it in ("isa", "narrow", "dot_i16", "a_i16_boxed")),
        ]
        places = [text.index(microkernels.header(name)) for name in own]
        assert places == sorted(places)
        assert microkernels.header("nibbles_portable") in headers(HeaderSet(isa, w="s4"))


def few_units() -> list[HeaderSet]:
    """Some that have every header together."""
    seen: set[tuple[object, ...]] = set()
    found = []
    for unit in units():
        parts = {(unit.isa, unit.compute, unit.packed_copy), (unit.isa, unit.x), (unit.isa, unit.y)}
        parts.add((unit.isa, unit.w))
        if not parts <= seen:
            found.append(unit)
            seen |= parts
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(
    "units", [few_units(), pytest.param(units(), marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_strict_compilers_take_units(units: list[HeaderSet], compiler: str, tmp_path: Path) -> None:
    """The headers alone: what no function uses must not be warned of."""
    paths = []
    for unit in units:
        paths.append(tmp_path / f"{unit}.c")
        paths[-1].write_text(headers(unit))
    words = [compiler, "-std=c11", "-O0", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic"]
    done = subprocess.run([*words, "-Werror", *paths], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_has_no_header_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match=r"no microkernel source .*x_f64\.h"):
        headers(HeaderSet("avx2", "f32", "f64", "f32"))
    with pytest.raises(SpecError, match="no instruction set 'mmx'"):
        headers(HeaderSet("mmx"))


def test_no_header_lies_idle() -> None:
    """Every file of microkernels/ is in some unit, or added for a purpose of its own."""
    texts = "\n".join(headers(unit) for unit in units())
    used = {kernel.isa for kernel in microkernels.registry().values()} & set(X86)
    for path in sorted((ROOT / "microkernels").glob("*.h")):
        text = path.read_text(encoding="utf-8")
        missing = (name for name in ISAS if name not in used)
        shared = (word for row in ISAS.values() for word in row.shares)
        others = ("cuda", "device", "opencl", *DEVICE_ISAS, *missing, *shared)
        foreign = any(path.stem.endswith(f"_{name}") for name in others)
        added = path.stem in (
            "activations",
            "group",
            "group_i8",
            "held_i8",
            "keep",
            "lines",
            "held",
            "reading",
            "dot_narrow",
            "probe",
            "probe_clock",
            "probe_items",
            "probe_read",
            "probe_shared",
            "probe_words",
            "routines",
            *FUNCTION_HEADERS,
            *(name for names in WINOGRAD.values() for name in names),
            *BILINEAR,
            *LAUNCHES,
        )
        assert text in texts or foreign or added, path.name


TYPES = {"f32": "float", "s32": "int32_t", "bf16": "uint16_t", "f16": "uint16_t"}
TYPES |= {"u8": "uint8_t", "s8": "int8_t"}


@pytest.mark.parametrize("row", PRECISIONS.values(), ids=str)
def test_declarations_name_every_type(row: Precision) -> None:
    text = re.sub(r"\s+", " ", interface.declare(functions(row), "it"))
    x, w, y, total = (TYPES[each.name] for each in (row.x, row.w, row.y, row.sum))
    packed = "float" if str(row) == "f32" else "void"
    zero = ", int32_t x_zero" if row.integer else ""
    to = "const polysci_scales *to, " if row.scaled else ""
    assert text == (
        "int64_t it_workspace_size(void); int64_t it_packed_size(void); "
        f"void it_pack_weights(const {w} *w, {packed} *packed{zero}); "
        f"int it(const {x} *x, const {packed} *packed, {y} *y, const {total} *bias, "
        f"const {y} *residual, const float *clamp, {to}void *workspace); "
    )
    names = function("run", row).names
    assert names == re.findall(r"(\w+)[,)]", text[text.index(" it(") :])


@pytest.mark.exhaustive
@pytest.mark.parametrize("row", PRECISIONS.values(), ids=str)
def test_the_interface_is_the_one_that_is_loaded(row: Precision) -> None:
    """Generated code binds to the declarations; the struct of scales is laid out as in C."""
    problem = LAYER.with_(dtype=str(row))
    source = source_of(problem)
    library = load(build([source]), interface.declarations("it", row))
    functions = bind(library, "it")
    compute = COMPUTES[computes(row.x.name, "brgemm")[-1]]
    assert functions.packed_size >= 9 * 6 * 9 * compute.bytes
    if row.scaled:
        struct = [("scale", ctypes.c_void_p), ("residual_scale", ctypes.c_float)]
        struct += [("residual_zero", ctypes.c_int32), ("y_zero", ctypes.c_int32)]
        told = type("Scales", (ctypes.Structure,), {"_fields_": struct})
        ffi = library.ffi
        assert ffi.sizeof("polysci_scales") == ctypes.sizeof(told)
        for name, _ in struct:
            assert ffi.offsetof("polysci_scales", name) == getattr(told, name).offset


def source_of(problem: Conv2d) -> Source:
    """A schedule of the portable kernels."""
    (plan,) = samples.members(samples.fixed_context(problem, 1, detect("portable")), 1)
    return emit(problem, plan, 1, EmitOptions("it"))


def made_up(value: int) -> str:
    """C for a row that needs a flag, and fails without it."""
    row = Isa("made_up", (), 4, 16, own_flags=(f"-DVALUE={value}", "-DOTHER"))
    return f"{target_lines(row)}\nint value(void);\nint value(void) {{ return VALUE; }}\n"


def test_compiler_flags_of_a_row_stand_in_its_text() -> None:
    assert flags_in(made_up(7)) == ("-DVALUE=7", "-DOTHER")
    assert flags_in(f"/* a title */\n{made_up(7)}\n{made_up(8)}") == (
        "-DVALUE=7", "-DOTHER", "-DVALUE=8",
    )  # fmt: skip
    extended = Isa("more", (), 4, 16, Isa("some", (), 4, 16, own_flags=("-a",)), own_flags=("-b",))
    assert extended.flags == ("-a", "-b")
    for isa in ISAS.values():
        more = ("-mrelaxed-simd",) * (isa.name == "wasmrelaxed")
        whole = ("-msimd128", *more) if isa.machine == "wasm32" else ()
        if isa.name.startswith("sve"):
            whole = (f"-msve-vector-bits={isa.lanes_f32 * 32}",)
        longer = "_zvl256b" * (isa.name == "rvv256")
        whole = (f"-march=rv64gcv{longer}",) if isa.machine == "riscv64" else whole
        assert isa.flags == flags_in(target_lines(isa)) == whole
    assert flags_in("/* compile with: -O0 */\nint elsewhere;\n") == ()


@pytest.mark.exhaustive
def test_builds_honour_the_flags_of_each_text() -> None:
    other = "#ifdef OTHER\n#error a flag of another text\n#endif\nint other;\n"
    one, two, both = (cache.build(text) for text in (made_up(7), made_up(8), [made_up(7), other]))
    assert len({one, two, both}) == 3
    assert [ctypes.CDLL(str(path)).value() for path in (one, two, both)] == [7, 8, 7]
    with pytest.raises(BuildError, match="a flag of another text"):
        cache.build(f"{made_up(7)}{other}")
