"""Code on a Cortex-M55 that qemu imitates: Helium's kernels between canaries, whole layers."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from polysci.export import ExportedLayer
from polysci.target.microkernels import HeaderSet
from tests.support import boards, emulated, wholelayers
from tests.support.kernelunit import ROOT, Group, small_groups

FLAGS = ("-O1", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
KERNELS, SMALL = emulated.of_machine("arm")
PAIRS = [it for it in small_groups() if (it.unit.isa, it.unit.compute) == ("scalar", "i16")]
PAGES = ROOT / "tests/data/wasi"  # a header that newlib lacks as well
ABSENT = """\
#include <malloc.h>
#include <unistd.h>
long sysconf(int name) { return (void)name, 4096; }
int posix_memalign(void **at, size_t align, size_t size) { return !(*at = memalign(align, size)); }
"""


DRIVERS = emulated.Drivers(
    boards.need, "unguarded.c",
    lambda source, _: boards.build(source.with_suffix(".elf"), [source], *FLAGS),
)  # fmt: skip
tools, drivers = DRIVERS.fixtures([*KERNELS, *SMALL, *PAIRS])


@pytest.mark.sampled
@pytest.mark.parametrize("group", [*KERNELS, *SMALL, *PAIRS], ids=str)
def test_kernels_are_exact_and_write_nothing_else(drivers: dict[Group, Path], group: Group) -> None:
    emulated.check_program(boards.run(drivers[group]), group)


# Faults that each must be noticed, or the tests above prove nothing.
FAULTS = {
    "uses what is behind a tail": (
        HeaderSet("helium"), "isa_helium", "ps_load_first(p, n) ((void)(n), ps_load(p))"
    ),
    "writes behind a tail": (
        HeaderSet("helium"), "isa_helium", "ps_store_first(p, x, n) ((void)(n), ps_store(p, x))"
    ),
    "does not flip": (HeaderSet("helium", "i8", "u8", "s32"), "dot_i8_helium", "PS_FLIP 0"),
    "adds no product": (
        HeaderSet("helium", "i8", "u8", "s32"), "dot_i8_helium",
        "PS_NONE 0\n#undef vmladavaq_s8\n#define vmladavaq_s8(s, a, b) ((void)(a), (void)(b), (s))",
    ),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(tmp_path: Path, fault: str) -> None:
    program, _ = DRIVERS.faulty(tmp_path, FAULTS[fault])
    done = boards.run(program)
    assert done.returncode != 0 and "_helium" in done.stdout


def build(out: Path, sources: Sequence[Path], *flags: str, data: Path | None = None) -> Path:
    """One program, with what drivers ask for that newlib lacks."""
    absent = out.parent / "absent.c"
    absent.write_text(ABSENT)
    flags = ("-ffp-contract=off", f"-I{PAGES}", *flags)
    return boards.build(out, [*sources, absent], *flags, data=data)


def run_layers(layers: Sequence[ExportedLayer], folder: Path) -> None:
    """Compare every byte of their results."""
    program, _ = wholelayers.program(
        layers, folder, lambda out, sources: build(out, sources, "-O1", data=folder / "data")
    )
    done = boards.run(program)
    said = (done.returncode, done.stdout)
    assert said == (0, f"{len(layers)} of {len(layers)} layers\n"), done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ["helium", "scalar"])
@pytest.mark.parametrize("dtype", emulated.PRECISIONS)
def test_whole_layers_are_exact(tmp_path: Path, isa: str, dtype: str) -> None:
    """Bare, and with bias, residual and clamp; zero points and scales where there are any."""
    run_layers(emulated.planned(dtype, isa), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("compute", "weights"), emulated.ALIKE)
def test_narrow_weights_are_exact(tmp_path: Path, compute: str, weights: str) -> None:
    run_layers(emulated.narrow_weights("helium", compute, weights), tmp_path)


@pytest.mark.exhaustive
def test_conversions_agree_with_those_of_one_number(tmp_path: Path) -> None:
    """Roundings, infinities, NaN, saturation, zeros behind the used lanes."""
    source = emulated.conversions(tmp_path, "helium")
    done = boards.run(build(tmp_path / "narrow", [source], "-O2"))
    assert (done.returncode, done.stdout) == (0, "right\n")
