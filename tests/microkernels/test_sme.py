"""Code for SME's outer products, compiled for aarch64 and emulated: kernels, whole layers."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from polysci.errors import UnsupportedError
from polysci.export import ExportedLayer
from polysci.ops import parse_problem
from polysci.printers.headers import headers
from polysci.space.schedule import parse
from polysci.target.microkernels import HeaderSet, find
from polysci.tune import emit
from tests.support import aarch64, emulated, kernelunit, wholelayers
from tests.support.kernelunit import ROOT, Group

FLAGS = (
    *("-D_GNU_SOURCE", "-DLONG_RUNS", "-O0", "-fno-math-errno", "-fno-trapping-math"),
    "-ffp-contract=off",
)
KERNELS, SMALL = emulated.of_isas(["sme"])
GROUPS = [*SMALL, *KERNELS]  # the first one runs by default
CPU = aarch64.cpu_of("sme")
SHORTER = "max,sme-default-vector-length=32"
COMPILERS = {"gcc": (aarch64.COMPILER,), "clang": aarch64.clang()}


DRIVERS = emulated.Drivers(
    aarch64.need, "guarded.c",
    lambda source, _: aarch64.build(source.with_suffix(""), [source], *FLAGS),
)  # fmt: skip
tools, drivers = DRIVERS.fixtures(GROUPS)


@pytest.mark.sampled
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_kernels_are_exact_and_stay_inside_their_operands(
    drivers: dict[Group, Path], group: Group
) -> None:
    emulated.check_program(aarch64.run(drivers[group], cpu=CPU), group)


# Faults that each must be noticed: text that is there once, and what stands in its place.
F32, BF16 = HeaderSet("sme"), HeaderSet("sme", "bf16", "bf16", "f32")
FAULTS = {
    "reads past the columns": (
        F32, '"whilelt " p PS_OUTER_OF ", " lanes ", %[lanes]', '"ptrue " p ".s',
    ),
    "reads past the words of a row": (F32, "whilelt p4.s, x13, %[length]", "ptrue p4.s"),
    "keeps rows of the padding": (F32, "real >> i & 1 ? ~(uint32_t)0 : 0", "~(uint32_t)0"),
    "ends after 16 words": (F32, '"b.lt 1b', '"'),
    "ends after 4 words": (F32, '"b 3b', '"'),
    "begins with zeros": (F32, "ps_begin(acc + i * t.vecs", "(void)accumulate, ps_begin(acc"),
    "copies beyond a part": (F32, "ps_least(length, DEPTH)", "length"),
    "adds one of two products": (BF16, 'PS_OUTER_OF ".h"', 'PS_OUTER_OF ".s"'),
    "takes words for parts": (BF16, "sizeof(uint32_t) && width == PS_WORD", "sizeof(uint32_t)"),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(tmp_path: Path, fault: str) -> None:
    unit, old, new = FAULTS[fault]
    text = kernelunit.text(next(group for group in SMALL if group.unit == unit))
    assert text.count(old) == 1
    data = ROOT / "tests/data"
    source, main = tmp_path / "faulty.c", (data / "driver_main.c").read_text()
    source.write_text("\n".join([text.replace(old, new), (data / "guarded.c").read_text(), main]))
    done = aarch64.run(aarch64.build(tmp_path / "faulty", [source], *FLAGS), cpu=CPU)
    assert done.returncode != 0 and "_sme_" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("unit", {(g.unit.compute, g.unit.x): g.unit for g in SMALL}.values())
def test_headers_compile_without_a_warning(tmp_path: Path, unit: HeaderSet, compiler: str) -> None:
    aarch64.need(COMPILERS[compiler][0])
    source = emulated.headers_alone(tmp_path, unit)
    flags = ("-O1", "-Wno-unused-function")
    aarch64.build(tmp_path / "headers", [source], *flags, compiler=COMPILERS[compiler])


COUNTS = {1: (4, 20), 2: (8, 28), 3: (12, 36)}  # of four steps: products, instructions


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("registers", COUNTS)
def test_a_turn_of_the_loop_has_so_many_instructions(
    tmp_path: Path, registers: int, compiler: str
) -> None:
    aarch64.need(COMPILERS[compiler][0])
    columns = 16 * registers
    problem, source = parse_problem(f"mb1ic64ih16oc{columns}kh1ph0"), tmp_path / "tile.c"
    source.write_text(emit(problem, parse(f"p > brgemm_sme_f32_16x{columns}")).file)
    flags = ("-O3", "-S", *("-Wno-unused-command-line-argument",) * (compiler == "clang"))
    aarch64.build(tmp_path / "tile.s", [source], *flags, compiler=COMPILERS[compiler])
    text = (tmp_path / "tile.s").read_text()
    assert {f"d{number}" for number in range(8, 16)} <= set(re.findall(r"\bd\d+\b", text)), "saved"
    (turn,) = re.findall(r"(\bsubs\s+x15, x15, #4.*?\n\s*b)\s", text, re.DOTALL)
    lines = [line for line in turn.splitlines() if line.strip()]
    assert (turn.count("fmopa"), len(lines)) == COUNTS[registers]


WHOLE = ("f32", "bf16", "bf16:bf16:f32", "f16:f16:f32", "u8:s8:u8")
BUILD = ("-D_GNU_SOURCE", "-O1", "-fopenmp", "-ffp-contract=off")


def program(
    layers: Sequence[ExportedLayer], folder: Path, *flags: str, compiler: str = "gcc"
) -> tuple[Path, Path]:
    """A program of layers, and what it reads."""
    return wholelayers.program(
        layers, folder, partial(aarch64_build, flags=flags, compiler=compiler)
    )


def aarch64_build(
    out: Path, sources: Sequence[Path], *, flags: Sequence[str], compiler: str
) -> Path:
    return aarch64.build(out, sources, *flags, compiler=COMPILERS[compiler])


def check_layers(layers: Sequence[ExportedLayer], made: tuple[Path, Path]) -> None:
    """Compare every byte of their results."""
    done = aarch64.run(*made, cpu=CPU)
    assert (done.returncode, done.stdout) == (0, f"{len(layers)} of {len(layers)} layers\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_layers_are_exact(tmp_path: Path, dtype: str) -> None:
    """Bare, and with bias, residual and clamp; zero points and scales where there are any."""
    layers = emulated.planned(dtype, "sme")
    own = {find(layer.schedule.kernel).isa for layer in layers}
    assert own <= {"sme", "neon", "neondot"} and ("sme" in own) == (dtype != "u8:s8:u8")
    check_layers(layers, program(layers, tmp_path, *BUILD))


CHOSEN = {  # what each way to read A is for
    "words of rows": ("mb1ic40ih6oc50kh3ph1", "nhwc", "f32", "k:48 p > brgemm_sme_f32_6x48"),
    "columns": ("mb1ic20ih8oc40kh1ph0", "nchw", "f32", "p:2 > brgemm_sme_f32_16x40"),
    "columns, some of them": ("mb1ic20ih8oc9kh3ph1", "nchw", "f32", "p > brgemm_sme_f32_8x12"),
    "columns of words": (
        "mm:20x43x70 ta", "nhwc", "bf16", "pack(A) i:16 j:48 > brgemm_sme_bf16_16x48",
    ),
    "elements apart": ("mb1ic9ih9oc33kh3sh2ph1", "nchw", "f32", "p > brgemm_sme_f32_5x36"),
    "Winograd": (
        "mb1ic16ih12oc32kh3ph1", "nhwc", "f32", "winograd(2) t:12 k:32 > brgemm_sme_f32_12x32",
    ),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_every_way_to_read_a_is_exact(tmp_path: Path, dtype: str, compiler: str) -> None:
    """Of clang also where vectors of SVE may be live around a run: compiled for all of the CPU."""
    aarch64.need(COMPILERS[compiler][0])
    layers = [
        ExportedLayer(parse_problem(words, layout).with_(dtype=dtype), parse(schedule), 1)
        for words, layout, own, schedule in CHOSEN.values()
        if own == dtype
    ]
    flags = ("-O3", "-D_GNU_SOURCE", "-ffp-contract=off")
    flags += ("-march=armv9-a+sme",) * (compiler == "clang")
    check_layers(layers, program(layers, tmp_path, *flags, compiler=compiler))


@pytest.mark.exhaustive
def test_narrow_weights_are_exact(tmp_path: Path) -> None:
    """Those of bf16 become f32 on the way; blocks are for kernels of NEON."""
    words = {"linear:5x64x45": "i:5 j:44", "linear:19x40x24": "i:16 j:24"}
    layers = [
        ExportedLayer(
            parse_problem(problem, dtype="f32:bf16:f32"),
            parse(f"{loops} > brgemm_sme_f32_16x{loops.partition('j:')[2]}"), 1,
        )
        for problem, loops in words.items()
    ]  # fmt: skip
    check_layers(layers, program(layers, tmp_path, *BUILD))


@pytest.mark.parametrize(
    ("words", "loops", "message"),
    [
        (
            "mb1ic8ih8oc8kh1ph0",
            "swap(A,B) q:16 k:8",
            "cannot swap the factors: .* reads rows of x as A",
        ),
        ("mm:16x16x16", "plain(B) i:16 j:16", "cannot read B where it lies: .* does not"),
        ("linear:16x64x16", "i:16 j:16", "multiplies no weights of s4x32 by f32"),
    ],
)
def test_what_outer_products_do_not_take_is_refused(words: str, loops: str, message: str) -> None:
    problem = parse_problem(words, "nchw" if "swap" in loops else "nhwc")
    if "linear" in words:
        problem = problem.with_(dtype="f32:s4x32:f32")
    with pytest.raises(UnsupportedError, match=message):
        emit(problem, parse(f"{loops} > brgemm_sme_f32_16x16"))


@pytest.mark.exhaustive
def test_code_for_another_length_does_not_run(tmp_path: Path) -> None:
    """Nor where the CPU lacks SME."""
    layer = ExportedLayer(parse_problem("ic16ih9oc24kh1sh2"), parse("n p > brgemm_sme_f32_5x24"), 1)
    made = program([layer], tmp_path, *BUILD)
    check_layers([layer], made)
    for cpu in (SHORTER, "max,sme-default-vector-length=128", "max,sme=off", "cortex-a72", "a64fx"):
        done = aarch64.run(*made, cpu=cpu)
        assert done.returncode == 77 and "lacks a feature" in done.stdout, cpu


@pytest.mark.exhaustive
def test_what_a_caller_keeps_in_za_is_saved(tmp_path: Path) -> None:
    source = tmp_path / "saved.c"
    text = headers(HeaderSet("sme"))
    source.write_text(f"{text}\n{(ROOT / 'tests/data/saved_za.c').read_text()}")
    flags = ("-D_GNU_SOURCE", "-O2", "-Wno-unused-function")
    done = aarch64.run(aarch64.build(tmp_path / "saved", [source], *flags), cpu=CPU)
    assert (done.returncode, done.stdout) == (0, "right\n")
