"""Code for WebAssembly, run by Node: every kernel between canaries, and whole layers."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from polysci.export import ExportedLayer
from polysci.target.microkernels import HeaderSet
from tests.support import emulated, wasm, wholelayers
from tests.support.kernelunit import Group

FLAGS = ("-O0", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
KERNELS, SMALL = emulated.of_machine("wasm32")


DRIVERS = emulated.Drivers(
    wasm.need, "unguarded.c",
    lambda source, group: wasm.build(
        source.with_suffix(".wasm"), [source], *FLAGS, isa=group.unit.isa
    ),
)  # fmt: skip
tools, drivers = DRIVERS.fixtures([*KERNELS, *SMALL])


@pytest.mark.sampled
@pytest.mark.parametrize("group", [*KERNELS, *SMALL], ids=str)
def test_kernels_are_exact_and_write_nothing_else(drivers: dict[Group, Path], group: Group) -> None:
    emulated.check_program(wasm.run(drivers[group]), group)


# Faults that each must be noticed, or the tests above prove nothing.
FAULTS = {
    "uses what is behind a tail": (
        HeaderSet("wasm128"), "isa_wasm128", "ps_load_first(p, n) ((void)(n), ps_load(p))"
    ),
    "writes behind a tail": (
        HeaderSet("wasm128"), "isa_wasm128", "ps_store_first(p, x, n) ((void)(n), ps_store(p, x))"
    ),
    "forgets a lane": (HeaderSet("wasm128"), "isa_wasm128", "ps_swap(x, d) ((void)(d), (x))"),
    "adds no product": (
        HeaderSet("wasm128", "i16", "u8", "s32"), "narrow_wasm128",
        "ps_pairs(x, y, z) ((void)(x), (void)(y), (z))",
    ),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(tmp_path: Path, fault: str) -> None:
    program, _ = DRIVERS.faulty(tmp_path, FAULTS[fault])
    done = wasm.run(program)
    assert done.returncode != 0 and "_wasm128" in done.stdout


def run_layers(layers: Sequence[ExportedLayer], folder: Path, isa: str = "wasm128") -> None:
    """Compare every byte of their results."""
    flags = ("-O1", "-ffp-contract=off")
    program = wholelayers.program(
        layers, folder, lambda out, sources: wasm.build(out, sources, *flags, isa=isa)
    )
    done = wasm.run(*program)
    said = (done.returncode, done.stdout)
    assert said == (0, f"{len(layers)} of {len(layers)} layers\n"), done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", emulated.PRECISIONS)
def test_whole_layers_are_exact(tmp_path: Path, dtype: str) -> None:
    """Bare, and with bias, residual and clamp; zero points and scales where there are any."""
    run_layers(emulated.planned(dtype, "wasm128"), tmp_path)


@pytest.mark.exhaustive
def test_whole_layers_by_one_operation_are_exact(tmp_path: Path) -> None:
    run_layers(emulated.planned("f32", "wasmrelaxed"), tmp_path, "wasmrelaxed")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("compute", "weights"), [*emulated.ALIKE, *emulated.ROUNDED])
def test_narrow_weights_are_exact(tmp_path: Path, compute: str, weights: str) -> None:
    run_layers(emulated.narrow_weights("wasm128", compute, weights), tmp_path)


@pytest.mark.exhaustive
def test_conversions_agree_with_those_of_one_number(tmp_path: Path) -> None:
    """Roundings, infinities, NaN, denormals, saturation, zeros behind the used lanes."""
    source = emulated.conversions(tmp_path, "wasm128")
    done = wasm.run(wasm.build(tmp_path / "narrow.wasm", [source], "-O2", "-ffp-contract=off"))
    assert (done.returncode, done.stdout) == (0, "right\n")
