"""Code for vectors of RISC-V, compiled by clang and emulated: every kernel, layers, a network."""

import os
import re
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from polysci.export import ExportedLayer
from polysci.ops.convolutions import Conv2d
from polysci.runtime.build.compiler import default_flags
from polysci.space.schedule import parse
from polysci.target.isas import ISAS
from polysci.target.microkernels import HeaderSet
from polysci.target.riscv import LANES
from polysci.tune import emit
from tests.support import emulated, riscv, wholelayers
from tests.support.command import done
from tests.support.compiling import saved, tiny
from tests.support.kernelunit import Group

IEEE = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
FLAGS = ("-D_GNU_SOURCE", "-O1", *IEEE, "-Wno-pass-failed")  # where a size is no constant
KERNELS, SMALL = emulated.of_machine("riscv64")
# Of registers: as many as need be, and more.
BITS = {"rvv128": (128, 256, 512), "rvv256": (256, 512)}


def build(out: Path, sources: Sequence[Path], isa: str, *flags: str) -> Path:
    return riscv.build(out, sources, *ISAS[isa].flags, *(flags or FLAGS))


DRIVERS = emulated.Drivers(
    riscv.need, "guarded.c",
    lambda source, group: build(source.with_suffix(""), [source], group.unit.isa),
)  # fmt: skip
tools, drivers = DRIVERS.fixtures([*KERNELS, *SMALL])


@pytest.mark.sampled
@pytest.mark.parametrize("group", [*KERNELS, *SMALL], ids=str)
def test_kernels_are_exact_and_stay_inside_their_operands(
    drivers: dict[Group, Path], group: Group
) -> None:
    for bits in BITS[group.unit.isa]:
        emulated.check_program(riscv.run(drivers[group], bits=bits), group)


# Faults that each must be noticed, or the tests above prove nothing.
FAULTS = {
    "reads past a tail": (
        HeaderSet("rvv256"), "isa_riscv64", "ps_load_first(p, n) ((void)(n), ps_load(p))"
    ),
    "writes past a tail": (
        HeaderSet("rvv128"), "isa_riscv64", "ps_store_first(p, x, n) ((void)(n), ps_store(p, x))"
    ),
    "forgets a lane": (HeaderSet("rvv256"), "isa_riscv64", "ps_swap(x, d) ((void)(d), (x))"),
    "adds one of two products": (
        HeaderSet("rvv256", "i16", "u8", "s32"), "dot_i16_riscv64",
        "ps_dot(a, b, s) ((s) + (a).first * (b).first)",
    ),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(tmp_path: Path, fault: str) -> None:
    program, group = DRIVERS.faulty(tmp_path, FAULTS[fault])
    ran = riscv.run(program, bits=BITS[group.unit.isa][0])
    assert ran.returncode != 0 and f"_{group.unit.isa}" in ran.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("unit", {(g.unit.isa, g.unit.compute): g.unit for g in SMALL}.values())
def test_headers_compile_without_a_warning(tmp_path: Path, unit: HeaderSet) -> None:
    source = emulated.headers_alone(tmp_path, unit)
    build(tmp_path / "headers", [source], unit.isa, "-O1", "-Wno-unused-function")


# Of a tile's innermost loop: products, loads of A, and everything else but the moves of pointers.
TILES = [
    ("f32", "rvv128_f32_7x16", "vfmacc.vf", 14, "flw", 7),
    ("f32", "rvv128_f32_14x8", "vfmacc.vf", 14, "flw", 14),
    ("f32", "rvv256_f32_4x48", "vfmacc.vf", 12, "flw", 4),
    ("f32", "rvv256_f32_3x64", "vfmacc.vf", 12, "flw", 3),
    ("u8:s8:u8", "rvv128_i16_6x16", "vmacc.vx", 24, "lbu", 12),
    ("s8:s8:s8", "rvv256_i16_3x48", "vmacc.vx", 18, "lb", 6),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("dtype", "kernel", "product", "products", "load", "loads"), TILES)
def test_accumulators_stay_in_registers(
    tmp_path: Path, dtype: str, kernel: str, product: str, products: int, load: str, loads: int
) -> None:
    """At the flags that primitives get: a scalar of A a row, no spill, the length set ahead."""
    rows, columns = map(int, kernel.rpartition("_")[2].split("x"))
    tile = Conv2d(N=1, C=64, H=12, W=rows, K=columns, R=1, S=1, dtype=dtype)
    source = tmp_path / "tile.c"
    source.write_text(emit(tile, parse(f"p > brgemm_{kernel}")).file)
    isa = kernel.partition("_")[0]
    build(tmp_path / "tile.s", [source], isa, *default_flags(openmp=False)[1:6], "-S")
    loops = re.split(r"^\.LBB\w+:.*$", (tmp_path / "tile.s").read_text(), flags=re.MULTILINE)
    bodies = [re.split(r"\tbn\w+\t", body)[0] for body in loops]
    (inner,) = [body for body in bodies if body.count(f"\t{product}\t") == products]
    assert inner.count(f"\t{load}\t") == loads
    assert "vset" not in inner and "(sp)" not in inner and "vmv" not in inner


WHOLE = [(isa, dtype) for isa in BITS for dtype in emulated.PRECISIONS]


def program_of(layers: Sequence[ExportedLayer], folder: Path, isa: str) -> tuple[Path, Path]:
    flags = ("-D_GNU_SOURCE", "-O1", "-ffp-contract=off")
    return wholelayers.program(
        layers, folder, lambda out, sources: build(out, sources, isa, *flags)
    )


def run_layers(layers: Sequence[ExportedLayer], folder: Path, isa: str) -> None:
    """Compare every byte of their results, with registers of each length."""
    program = program_of(layers, folder, isa)
    for bits in BITS[isa]:
        ran = riscv.run(*program, bits=bits)
        said = (ran.returncode, ran.stdout)
        assert said == (0, f"{len(layers)} of {len(layers)} layers\n"), ran.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(("isa", "dtype"), WHOLE)
def test_whole_layers_are_exact(tmp_path: Path, isa: str, dtype: str) -> None:
    """Bare, and with bias, residual and clamp; zero points and scales where there are any."""
    run_layers(emulated.planned(dtype, isa), tmp_path, isa)


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", BITS)
@pytest.mark.parametrize(("compute", "weights"), [*emulated.ALIKE, *emulated.ROUNDED])
def test_narrow_weights_are_exact(tmp_path: Path, isa: str, compute: str, weights: str) -> None:
    run_layers(emulated.narrow_weights(isa, compute, weights), tmp_path, isa)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("isa", "bits"), [("rvv128", 0), ("rvv256", 0), ("rvv256", 128)])
def test_a_cpu_without_such_registers_is_told_so(tmp_path: Path, isa: str, bits: int) -> None:
    ran = riscv.run(*program_of(emulated.planned("f32", isa)[:1], tmp_path, isa), bits=bits)
    assert ran.returncode == 77 and "lacks a feature" in ran.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", BITS)
def test_conversions_agree_with_those_of_one_number(tmp_path: Path, isa: str) -> None:
    """Roundings, infinities, NaN, denormals, saturation; nothing behind the used lanes is read."""
    source = emulated.conversions(tmp_path, isa)
    flags = ("-D_GNU_SOURCE", "-O2", "-fno-math-errno", "-ffp-contract=off")
    program = build(tmp_path / "narrow", [source], isa, *flags)
    for bits in BITS[isa]:
        ran = riscv.run(program, bits=bits)
        assert (ran.returncode, ran.stdout) == (0, "right\n")


@pytest.mark.exhaustive
def test_the_length_of_vectors_is_what_a_few_bytes_of_code_say(tmp_path: Path) -> None:
    source = tmp_path / "lanes.c"
    words = ", ".join(map(str, struct.unpack("<II", LANES)))
    source.write_text(
        "#include <stdio.h>\nlong lanes(void);\n"
        f'__asm__(".text\\n.globl lanes\\nlanes: .word {words}\\n");\n'
        'int main(void) { return printf("%ld\\n", lanes()) < 0; }\n'
    )
    program = build(tmp_path / "lanes", [source], "rvv128")
    for bits in (128, 256, 1024):
        assert riscv.run(program, bits=bits).stdout == f"{bits // 32}\n"


def self_test(out: Path) -> Path:
    """Its program, as a user makes it: by the project's Makefile and a cross compiler."""
    flags = "CFLAGS=-O2 -Werror -Wno-pass-failed"  # clang does not unroll all loops of portable
    words = ["make", "-s", f"CC={' '.join(riscv.compiler())}", flags, "OPENMP=", "selftest"]
    made = subprocess.run(words, cwd=out, capture_output=True, text=True, timeout=120)
    assert (made.returncode, made.stderr) == (0, ""), made.stderr[:2000]
    return out / "selftest"


@pytest.mark.exhaustive
@pytest.mark.skipif("POLYSCI_ISA" in os.environ, reason="code above a cap is refused")
@pytest.mark.parametrize("isas", ["rvv128", "rvv256", "rvv256,rvv128,portable"])
def test_a_network_passes_its_self_test(tmp_path: Path, isas: str) -> None:
    """Where registers are too short it says so, or takes the next of its instruction sets."""
    model, out = saved(tiny(), tmp_path / "net.onnx"), tmp_path / "net"
    option = "--isas" if "," in isas else "--isa"
    done("compile", model, option, isas, "--level", "estimate", "-o", out)
    program = self_test(out)
    for bits in (512, 256, 128, 0):
        least = int(isas[3:]) if isas in BITS else 0
        ran = riscv.run(program, out, bits=bits)
        assert ran.returncode == (77 if bits < least else 0), f"{ran.stdout}{ran.stderr}"
