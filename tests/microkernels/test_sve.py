"""SVE code for vectors of each length, compiled for aarch64 and emulated: kernels, whole layers."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from polysci.cost.shortlist import choices
from polysci.export import ExportedLayer
from polysci.ops import parse_problem
from polysci.ops.convolutions import Conv2d
from polysci.printers.headers import flags_in
from polysci.runtime.build.compiler import default_flags
from polysci.space.schedule import parse
from polysci.target.isas import ISAS
from polysci.target.machine_file import read
from polysci.target.microkernels import HeaderSet, find
from polysci.tune import emit
from tests.support import aarch64, emulated, wholelayers
from tests.support.kernelunit import ROOT, Group
from tests.support.samples import fixed_context, members

FLAGS = ("-D_GNU_SOURCE", "-O0", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
SETS = ("sve256", "sve128", "sve512")
KERNELS, SMALL = emulated.of_isas(SETS)
GROUPS = [
    *sorted(SMALL, key=lambda group: SETS.index(group.unit.isa)),
    *KERNELS,
]  # the first one runs by default
MACHINE = ROOT / "experiments/machines/neoverse-v1-64.toml"


DRIVERS = emulated.Drivers(
    aarch64.need, "guarded.c",
    lambda source, group: aarch64.build(
        source.with_suffix(""), [source], *FLAGS, *ISAS[group.unit.isa].flags
    ),
)  # fmt: skip
tools, drivers = DRIVERS.fixtures(GROUPS)


@pytest.mark.sampled
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_kernels_are_exact_and_stay_inside_their_operands(
    drivers: dict[Group, Path], group: Group
) -> None:
    cpu = aarch64.cpu_of(group.unit.isa)
    emulated.check_program(aarch64.run(drivers[group], cpu=cpu), group)


# Faults that each must be noticed, or the tests above prove nothing.
UNSIGNED = "ps_dot(a, b, s) svdot_s32(s, svreinterpret_s8_s32(a), svreinterpret_s8_s32(b))"
PANEL = "ps_panel(p) ps_int_load((const void *)(p), PS_LANES)"
FAULTS = {
    "reads past a tail": (
        HeaderSet("sve256"), "isa_sve", "ps_load_first(p, n) ((void)(n), ps_load(p))"
    ),
    "writes past a tail": (
        HeaderSet("sve128"), "isa_sve", "ps_store_first(p, x, n) ((void)(n), ps_store(p, x))"
    ),
    "forgets a lane": (HeaderSet("sve512"), "isa_sve", "ps_swap(x, d) ((void)(d), (x))"),
    "does not turn": (HeaderSet("sve256"), "isa_sve", "ps_transpose(x) ((void)(x))"),
    "does not flip": (HeaderSet("sve512", "i8", "u8", "s32"), "dot_i8_sve", "PS_FLIP 0"),
    "takes bytes for signed": (HeaderSet("sve256", "i8", "u8", "s32"), "dot_i8_svei8mm", UNSIGNED),
    "counts upper bytes": (
        HeaderSet("sve128", "i16", "s8", "s32", packed_copy=False), "dot_i16_svei8mm", PANEL,
    ),
    "adds one of two products": (
        HeaderSet("sve256", "bf16", "bf16", "f32"), "dot_bf16_svebf16",
        "ps_dot(a, b, s) svbfmlalb_f32(s, svreinterpret_bf16_s32(a), svreinterpret_bf16_s32(b))",
    ),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(tmp_path: Path, fault: str) -> None:
    program, group = DRIVERS.faulty(tmp_path, FAULTS[fault])
    done = aarch64.run(program, cpu=aarch64.cpu_of(group.unit.isa))
    assert done.returncode != 0 and f"_{group.unit.isa}_" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("unit", {(g.unit.isa, g.unit.compute): g.unit for g in SMALL}.values())
def test_headers_compile_without_a_warning(tmp_path: Path, unit: HeaderSet) -> None:
    source = emulated.headers_alone(tmp_path, unit)
    aarch64.build(
        tmp_path / "headers", [source], "-O1", "-Wno-unused-function", *ISAS[unit.isa].flags
    )


TILES = [
    ("f32", "sve128_f32_6x16", "fmla", 24, 43),
    ("f32", "sve256_f32_6x32", "fmla", 24, 43),
    ("f32", "sve512_f32_9x48", "fmla", 27, 51),
    ("bf16", "sve256_bf16_14x16", "bfdot", 28, 60),
    ("u8:s8:u8", "sve256_i8_6x32", "usdot", 24, 40),
    ("s8:s8:s8", "sve512_i8_28x16", "sdot", 28, 85),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("dtype", "kernel", "word", "count", "all_of_it"), TILES)
def test_accumulators_stay_in_registers(
    tmp_path: Path, dtype: str, kernel: str, word: str, count: int, all_of_it: int
) -> None:
    """Of the innermost loop, at the flags that primitives get: one instruction a vector of sums.

    A word of A is loaded into all lanes by one instruction, at an address that takes another.
    """
    rows, columns = map(int, kernel.rpartition("_")[2].split("x"))
    tile = Conv2d(N=1, C=64, H=12, W=rows, K=columns, R=1, S=1, dtype=dtype)
    source, text = tmp_path / "tile.c", emit(tile, parse(f"p > brgemm_{kernel}")).file
    source.write_text(text)
    flags = (*default_flags(openmp=False)[1:6], *flags_in(text))
    aarch64.build(tmp_path / "tile.s", [source], *flags, "-S")
    loops = re.split(r"^\.L\d+:$", (tmp_path / "tile.s").read_text(), flags=re.MULTILINE)
    bodies = [body.partition("\tbne\t")[0] for body in loops]
    (inner,) = [body for body in bodies if body.count(f"\t{word}\t") == count]
    assert "[sp" not in inner and inner.count("\tld1rw\t") == rows
    assert len(re.findall(r"^\t[a-z]", inner, re.MULTILINE)) < all_of_it


# 3x3 padded, 1x1 strided, depthwise, grouped, stem, dilated, 5x5 strided, deep, a stencil.
LAYERS = (
    ("mb2ic19ih9oc22kh3ph1", "nhwc"),
    ("ic16ih9oc24kh1sh2", "nchw"),
    ("g13ic13ih11oc13kh3ph1", "nhwc"),
    ("g4ic32ih7oc40kh3ph1", "nhwc"),
    ("ic3ih23oc20kh7sh2ph3", "nchw"),
    ("ic9ih15oc11kh5dh1ph2", "nhwc"),
    ("mb2g9ic9ih10oc9kh5sh2ph2", "nchw"),
    ("ic130ih4oc37kh3ph1", "nhwc"),
    ("mb2g9ic9ih19oc9kh3ph1", "nchw"),
)
PRECISIONS = ("f32", "f16:f16:f32", "bf16", "bf16:bf16:f32", "u8:s8:u8", "s8:s8:s8", "u8:s8:s32")
WHOLE = [(isa, dtype) for isa in SETS for dtype in PRECISIONS]
BUILD = ("-D_GNU_SOURCE", "-O1", "-fopenmp", "-ffp-contract=off")


def planned(isa: str, dtype: str) -> list[ExportedLayer]:
    """The layers by turns under the model's choice and under one that it would not make."""
    target = replace(read(MACHINE).target, isa=ISAS[isa], features=ISAS[isa].features)
    found = []
    for position, (words, layout) in enumerate(LAYERS[: len(LAYERS) if dtype == "f32" else 5]):
        problem, threads = parse_problem(words, layout).with_(dtype=dtype), 1 + position % 3 // 2
        context = fixed_context(problem, threads, target)
        if position % 2:
            (plan,) = members(context, 1, seed=position)
        else:
            plan = choices(context, 1)[0].schedule
        found.append(ExportedLayer(problem, plan, threads))
    return found


def program(layers: Sequence[ExportedLayer], folder: Path, isa: str) -> tuple[Path, Path]:
    """A program of layers, and what it reads."""
    flags = (*BUILD, *ISAS[isa].flags)
    return wholelayers.program(
        layers, folder, lambda out, sources: aarch64.build(out, sources, *flags)
    )


def run_layers(layers: Sequence[ExportedLayer], folder: Path, isa: str) -> None:
    """Compare every byte of their results."""
    done = aarch64.run(*program(layers, folder, isa), cpu=aarch64.cpu_of(isa))
    assert (done.returncode, done.stdout) == (0, f"{len(layers)} of {len(layers)} layers\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", WHOLE, ids="-".join)
def test_whole_layers_are_exact(tmp_path: Path, what: tuple[str, str]) -> None:
    """Bare, and with bias, residual and clamp; zero points and scales where there are any."""
    layers = planned(*what)
    assert {find(layer.schedule.kernel).isa for layer in layers} <= {what[0], "neon"}
    run_layers(layers, tmp_path, what[0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", SETS)
def test_narrow_weights_are_exact(tmp_path: Path, isa: str) -> None:
    """Decoded to f32, and multiplied as bytes."""
    lanes, layers = ISAS[isa].lanes_f32, []
    kinds = {"f32": ("bf16", "s4x16", "u4x32", "s8x16", "u8x32")}
    kinds["a8"] = ("s4a8x16", "u4a8x32", "s8a8x16", "u8a8x32")
    for (compute, weights), words in product(
        ((compute, weights) for compute, them in kinds.items() for weights in them),
        (f"linear:5x64x{3 * lanes - 1}", f"linear:3x64x{4 * lanes}"),
    ):
        problem = parse_problem(words, dtype=f"f32:{weights}:f32")
        tile = f"i:3 j:{2 * lanes} > brgemm_{isa}_{compute}_3x{2 * lanes}"
        layers.append(ExportedLayer(problem, parse(tile), 1))
    for number, layer in enumerate(layers):
        (tmp_path / str(number)).mkdir()
        run_layers([layer], tmp_path / str(number), isa)


SHIFTED = {  # layers in NCHW with swapped factors: loops, rows and vectors of a call
    "mb2ic5ih9oc7kh3ph1": ("n pack(A) q:{} k:4", 4, 2),
    "mb1ic6ih4iw23oc5kh1kw5pw2": ("c:4 q:{} pack(A)+4 k:5", 5, 3),
    "mb1ic4ih7oc3kh3": ("k:2 q:{}", 2, 1),
    "mb1ic4ih12oc9kh5ph4dh1": ("pack(A) q:{} k:6", 6, 2),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", SETS)
def test_shifted_vectors_of_pixels_are_exact(tmp_path: Path, isa: str) -> None:
    lanes = ISAS[isa].lanes_f32
    layers = [
        ExportedLayer(
            parse_problem(words, "nchw"),
            parse(f"swap(A,B) {loops.format(lanes * n)} > brgemm_{isa}_f32_{rows}x{lanes * n}"), 1,
        )
        for words, (loops, rows, n) in SHIFTED.items()
    ]  # fmt: skip
    run_layers(layers, tmp_path, isa)


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ["sve256", "sve128"])
def test_words_of_rows_are_exact(tmp_path: Path, isa: str) -> None:
    columns = 2 * ISAS[isa].lanes_f32
    loops = {
        "bwd_w mb4ic19ih7oc37oh7kh1ph0": "private(C) p pack(A) pack(B) k:{} c:6",
        "bwd_w mb5ic19ih7oc20oh7kh3ph1": "private(C) n:4 p:2 pack(A) pack(B) k:{} c:6 r s",
        "mm:50x43x301 ta": "pack(A) i:6 j:{}",
    }
    layers = [
        ExportedLayer(
            parse_problem(words, dtype="bf16"),
            parse(f"{its.format(columns)} > brgemm_{isa}_bf16_6x{columns}"), 1,
        )
        for words, its in loops.items()
    ]  # fmt: skip
    run_layers(layers, tmp_path, isa)


@pytest.mark.exhaustive
def test_code_for_another_length_does_not_run(tmp_path: Path) -> None:
    """Nor where the CPU lacks SVE, or the features beside it."""
    layer = ExportedLayer(parse_problem(LAYERS[1][0]), parse("n p > brgemm_sve256_f32_6x32"), 1)
    made = program([layer], tmp_path, "sve256")
    assert aarch64.run(*made, cpu=aarch64.cpu_of("sve256")).returncode == 0
    longer = "max,sve-default-vector-length=64"
    for cpu in (aarch64.cpu_of("sve128"), longer, "cortex-a72", "a64fx"):
        done = aarch64.run(*made, cpu=cpu)
        assert done.returncode == 77 and "lacks a feature" in done.stdout, cpu


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", SETS)
def test_conversions_agree_with_those_of_one_number(tmp_path: Path, isa: str) -> None:
    """Roundings, infinities, NaN, denormals, saturation; nothing behind the used lanes is read."""
    source = emulated.conversions(tmp_path, isa)
    flags = ("-D_GNU_SOURCE", "-O2", "-fno-math-errno", "-ffp-contract=off", *ISAS[isa].flags)
    program = aarch64.build(tmp_path / "narrow", [source], *flags)
    done = aarch64.run(program, cpu=aarch64.cpu_of(isa))
    assert (done.returncode, done.stdout) == (0, "right\n")
