"""NEON code, compiled for aarch64 and emulated: every kernel, whole layers, exported projects."""

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from polysci.cli import main
from polysci.cost.shortlist import choices
from polysci.export import ExportedLayer
from polysci.ops import parse_problem
from polysci.ops.convolutions import Conv2d
from polysci.printers.headers import attribute
from polysci.runtime.build.compiler import default_flags
from polysci.space.schedule import parse
from polysci.target.isas import ISAS
from polysci.target.machine_file import read
from polysci.target.microkernels import HeaderSet
from polysci.tune import emit
from tests.support import aarch64, emulated, kernelunit, wholelayers
from tests.support.kernelunit import ROOT, Group
from tests.support.samples import fixed_context, members

FLAGS = ("-D_GNU_SOURCE", "-O0", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
KERNELS, SMALL = emulated.of_machine("aarch64", but=("sve", "sme"))


DRIVERS = emulated.Drivers(
    aarch64.need, "guarded.c",
    lambda source, _: aarch64.build(source.with_suffix(""), [source], *FLAGS),
)  # fmt: skip
tools, drivers = DRIVERS.fixtures([*KERNELS, *SMALL])


@pytest.mark.sampled
@pytest.mark.parametrize("group", [*KERNELS, *SMALL], ids=str)
def test_kernels_are_exact_and_stay_inside_their_operands(
    drivers: dict[Group, Path], group: Group
) -> None:
    emulated.check_program(aarch64.run(drivers[group]), group)


# Faults that each must be noticed, or the tests above prove nothing.
FAULTS = {
    "reads past a tail": (
        HeaderSet("neon"), "isa_neon", "ps_load_first(p, n) ((void)(n), ps_load(p))"
    ),
    "forgets a lane": (HeaderSet("neon"), "isa_neon", "ps_swap(x, d) ((void)(d), (x))"),
    "does not flip": (
        HeaderSet("neondot", "i8", "u8", "s32"), "dot_i8_neondot", "PS_FLIP 0",
    ),
    "adds one of two products": (
        HeaderSet("neonbf16", "bf16", "bf16", "f32"), "dot_bf16_neonbf16",
        "ps_dot(a, b, s) vbfmlalbq_f32(s, vreinterpretq_bf16_s32(a), vreinterpretq_bf16_s32(b))",
    ),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(tmp_path: Path, fault: str) -> None:
    program, _ = DRIVERS.faulty(tmp_path, FAULTS[fault])
    done = aarch64.run(program)
    assert done.returncode != 0 and "_neon" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("unit", {(g.unit.isa, g.unit.compute): g.unit for g in SMALL}.values())
def test_headers_compile_without_a_warning(tmp_path: Path, unit: HeaderSet) -> None:
    source = emulated.headers_alone(tmp_path, unit)
    aarch64.build(tmp_path / "headers", [source], "-O1", "-Wno-unused-function")


@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("clang"), reason="no clang")
def test_clang_accepts_every_kernel(tmp_path: Path) -> None:
    """Before its version 16 clang knows the extensions of whole files only."""

    def said(group: Group) -> str:
        source, isa = tmp_path / f"{group}.c", ISAS[group.unit.isa]
        named = f"#define PS_TARGET {attribute(isa)}"
        source.write_text(kernelunit.text(group).replace(named, "#define PS_TARGET"))
        words = ["clang", "--target=aarch64-linux-gnu", *aarch64.INCLUDES, *aarch64.STRICT]
        march = [f"-m{target}" for target in isa.targets]
        return subprocess.run(
            [*words, *march, "-fsyntax-only", source], capture_output=True, text=True
        ).stderr

    with ThreadPoolExecutor(2) as pool:
        assert [text for text in pool.map(said, [*KERNELS, *SMALL]) if text] == []


TILES = [
    ("f32", "neon_f32_6x16", "fmla", 24),
    ("f32", "neon_f32_9x12", "fmla", 27),
    ("bf16", "neonbf16_bf16_14x8", "bfdot", 28),
    ("u8:s8:u8", "neondot_i8_5x20", "sdot", 25),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("dtype", "kernel", "word", "count"), TILES)
def test_accumulators_stay_in_registers(
    tmp_path: Path, dtype: str, kernel: str, word: str, count: int
) -> None:
    """Of the innermost loop, at the flags that primitives get: one instruction a vector of sums."""
    rows, columns = map(int, kernel.rpartition("_")[2].split("x"))
    tile = Conv2d(N=1, C=64, H=12, W=rows, K=columns, R=1, S=1, dtype=dtype)
    source = tmp_path / "tile.c"
    source.write_text(emit(tile, parse(f"p > brgemm_{kernel}")).file)
    aarch64.build(tmp_path / "tile.s", [source], *default_flags(openmp=False)[1:6], "-S")
    loops = re.split(r"^\.L\d+:$", (tmp_path / "tile.s").read_text(), flags=re.MULTILINE)
    bodies = [body.partition("\tbne\t")[0] for body in loops]
    (inner,) = [body for body in bodies if body.count(f"\t{word}\t") == count]
    assert "[sp" not in inner


# Every conversion, dot product and epilogue: native ones, and those that stand in for them.
WHOLE = [
    ("neon", "f32"), ("neon", "f16:f16:f32"), ("neon", "bf16"), ("neonbf16", "bf16"),
    ("neonbf16", "bf16:bf16:f32"), ("neondot", "u8:s8:u8"), ("neondot", "s8:s8:s8"),
    ("neon", "u8:s8:s8"), ("neon", "s8:s8:s32"), ("portable", "f32"), ("portable", "u8:s8:u8"),
]  # fmt: skip
MACHINE = ROOT / "experiments/machines/neoverse-n1-64.toml"


def planned(isa: str, dtype: str) -> list[ExportedLayer]:
    """The layers by turns under the model's choice and under one that it would not make."""
    target = replace(read(MACHINE).target, isa=ISAS[isa])
    found = []
    for position, (words, layout) in enumerate(emulated.LAYERS[: _count(dtype)]):
        problem, threads = parse_problem(words, layout).with_(dtype=dtype), 1 + position % 3 // 2
        context = fixed_context(problem, threads, target)
        if position % 2:
            (plan,) = members(context, 1, seed=position)
        else:
            plan = choices(context, 1)[0].schedule
        found.append(ExportedLayer(problem, plan, threads))
    return found


def _count(dtype: str) -> int:
    """How many of the layers: all in f32, else those in which something differs."""
    return len(emulated.LAYERS) if dtype == "f32" else 5


Whole = dict[tuple[str, str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """For every row of WHOLE a program and what it reads."""

    def made(what: tuple[str, str]) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("layers")
        flags = ("-D_GNU_SOURCE", "-O1", "-fopenmp", "-ffp-contract=off")
        return wholelayers.program(
            planned(*what), folder, lambda out, sources: aarch64.build(out, sources, *flags)
        )

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(WHOLE, pool.map(made, WHOLE), strict=True))


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", WHOLE, ids="-".join)
def test_whole_layers_are_exact(whole: Whole, what: tuple[str, str]) -> None:
    """Bare, and with bias, residual and clamp; zero points and scales where there are any."""
    done = aarch64.run(*whole[what])
    count = _count(what[1])
    assert (done.returncode, done.stdout) == (0, f"{count} of {count} layers\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("isa", "dtype"), [("neon", "u8:s8:s32"), ("neondot", "u8:s8:u8"), ("neondot", "s8:s8:s8")]
)
def test_batches_of_integer_products_are_exact(tmp_path: Path, isa: str, dtype: str) -> None:
    target = replace(read(MACHINE).target, isa=ISAS[isa])
    layers = []
    for words in ("mm:3:9x21x13 b=constant", "mm:2:7x10x19 a=constant", "mm:4:5x1x1 b=constant"):
        problem = parse_problem(words, dtype=dtype)
        (plan,) = members(fixed_context(problem, 1, target), 1)
        layers.append(ExportedLayer(problem, plan, 1))
    flags = ("-D_GNU_SOURCE", "-O1", "-ffp-contract=off")
    program = wholelayers.program(
        layers, tmp_path, lambda out, sources: aarch64.build(out, sources, *flags)
    )
    done = aarch64.run(*program)
    assert (done.returncode, done.stdout) == (0, "3 of 3 layers\n")


SHIFTED = {  # layers in NCHW with swapped factors: loops, rows and columns of a call
    "mb2ic5ih9oc7kh3ph1": ("n pack(A) q:{} k:4", 4, 2),
    "mb1ic6ih4iw23oc5kh1kw5pw2": ("c:4 q:{} pack(A)+4 k:5", 5, 3),
    "mb1ic4ih7oc3kh3": ("k:2 q:{}", 2, 1),
    "mb1ic4ih12oc9kh5ph4dh1": ("pack(A) q:{} k:6", 6, 2),
}


@pytest.mark.exhaustive
def test_shifted_vectors_of_pixels_are_exact(tmp_path: Path) -> None:
    layers = [
        ExportedLayer(
            parse_problem(words, "nchw"),
            parse(f"swap(A,B) {loops.format(4 * vecs)} > brgemm_neon_f32_{rows}x{4 * vecs}"),
            1,
        )
        for words, (loops, rows, vecs) in SHIFTED.items()
    ]
    flags = ("-D_GNU_SOURCE", "-O1", "-ffp-contract=off")
    program = wholelayers.program(
        layers, tmp_path, lambda out, sources: aarch64.build(out, sources, *flags)
    )
    done = aarch64.run(*program)
    assert (done.returncode, done.stdout) == (0, "4 of 4 layers\n")


@pytest.mark.exhaustive
def test_words_of_rows_are_exact(tmp_path: Path) -> None:
    loops = {
        "bwd_w mb4ic19ih7oc37oh7kh1ph0": "private(C) p pack(A) pack(B) k:8 c:6",
        "bwd_w mb5ic19ih7oc20oh7kh3ph1": "private(C) n:4 p:2 pack(A) pack(B) k:8 c:6 r s",
        "mm:50x43x301 ta": "pack(A) i:6 j:8",
    }
    layers = [
        ExportedLayer(
            parse_problem(words, dtype="bf16"), parse(f"{its} > brgemm_neonbf16_bf16_6x8"), 1
        )
        for words, its in loops.items()
    ]
    flags = ("-D_GNU_SOURCE", "-O1", "-ffp-contract=off")
    program = wholelayers.program(
        layers, tmp_path, lambda out, sources: aarch64.build(out, sources, *flags)
    )
    done = aarch64.run(*program)
    assert (done.returncode, done.stdout) == (0, "3 of 3 layers\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kernel", "weights"),
    [*(("neon_f32", weights) for weights in ("bf16", "s4x16", "u4x32", "s8x16", "u8x32")),
     *((f"{isa}_a8", weights) for isa in ("neon", "neondot") for weights in
       ("s4a8x16", "u4a8x32", "s8a8x16", "u8a8x32"))],
)  # fmt: skip
def test_narrow_weights_are_exact(tmp_path: Path, kernel: str, weights: str) -> None:
    loops = {"linear:5x64x11": "i:3 j:8", "linear:3x64x16": "k:1 j:8"}
    layers = [
        ExportedLayer(
            parse_problem(words, dtype=f"f32:{weights}:f32"),
            parse(f"{its} > brgemm_{kernel}_3x8"), 1,
        )
        for words, its in loops.items()
    ]  # fmt: skip
    flags = ("-D_GNU_SOURCE", "-O1", "-ffp-contract=off")
    program = wholelayers.program(
        layers, tmp_path, lambda out, sources: aarch64.build(out, sources, *flags)
    )
    done = aarch64.run(*program)
    assert (done.returncode, done.stdout) == (0, "2 of 2 layers\n")


@pytest.mark.exhaustive
def test_another_result_is_noticed(whole: Whole, tmp_path: Path) -> None:
    program, data = whole["neondot", "u8:s8:u8"]
    wrong = bytearray(data.read_bytes())
    wrong[-1] ^= 1
    (tmp_path / "data").write_bytes(wrong)
    done = aarch64.run(program, tmp_path / "data")
    assert done.returncode == 1 and "(fused): another result\n4 of 5 layers\n" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", [("neondot", "s8:s8:s8"), ("neonbf16", "bf16")], ids="-".join)
def test_a_cpu_without_the_features_is_told_so(whole: Whole, what: tuple[str, str]) -> None:
    done = aarch64.run(*whole[what], cpu="cortex-a53")
    assert done.returncode == 77 and "lacks a feature" in done.stdout


@pytest.mark.exhaustive
def test_conversions_agree_with_those_of_one_number(tmp_path: Path) -> None:
    """Roundings, infinities, NaN, denormals, saturation; nothing behind the used lanes is read."""
    source = emulated.conversions(tmp_path, "neon")
    flags = ("-D_GNU_SOURCE", "-O2", "-fno-math-errno", "-ffp-contract=off")
    done = aarch64.run(aarch64.build(tmp_path / "narrow", [source], *flags))
    assert (done.returncode, done.stdout) == (0, "right\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["f32", "int8"])
def test_a_project_for_another_machine(tmp_path: Path, dtype: str) -> None:
    """As a user makes it: a described machine, its own Makefile, the cross compiler."""
    words = ["g6mb1ic12ih9oc18kh3ph1", "mb1ic8ih8oc12kh1"]
    asked = ["export", *words, "--machine", str(MACHINE), "--level", "estimate", "--dtype", dtype]
    assert main([*asked, "-o", str(tmp_path / "net")]) == 0
    make = ["make", "-s", f"CC={aarch64.COMPILER}", "CFLAGS=-O2 -Werror", "selftest"]
    done = subprocess.run(make, cwd=tmp_path / "net", capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    done = aarch64.run(tmp_path / "net/selftest")
    assert (done.returncode, done.stdout) == (0, "4 passed, 0 failed\n")
    assert "asimd" in (tmp_path / "net/README.md").read_text()
