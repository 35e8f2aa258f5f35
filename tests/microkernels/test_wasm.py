"""Code for WebAssembly, run by Node: every kernel between canaries, and whole layers."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from polysci.cost.shortlist import choices
from polysci.export import ExportedLayer
from polysci.ops import parse_problem
from polysci.printers.headers import headers
from polysci.space.schedule import parse
from polysci.target.host import detect
from polysci.target.isas import ISAS
from polysci.target.microkernels import HeaderSet
from tests.support import emulated, wasm, wholelayers
from tests.support.kernelunit import ROOT, Group
from tests.support.samples import fixed_context, members

FLAGS = ("-O0", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
KERNELS, SMALL = emulated.of_machine("wasm32")


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    wasm.need()


def driver(folder: Path, group: Group, fault: tuple[str, str] = ("", "")) -> Path:
    """The program that checks the kernels of a group."""
    source = emulated.source_of(folder, group, "unguarded.c", fault)
    return wasm.build(source.with_suffix(".wasm"), [source], *FLAGS, isa=group.unit.isa)


@pytest.fixture(scope="module")
def drivers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[Group, Path]:
    folder = tmp_path_factory.mktemp("kernels")
    return emulated.build_chosen(request, [*KERNELS, *SMALL], partial(driver, folder))


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
    unit, header, macro = FAULTS[fault]
    group = next(group for group in SMALL if group.unit == unit)
    done = wasm.run(driver(tmp_path, group, (header, macro)))
    assert done.returncode != 0 and "_wasm128" in done.stdout


LAYERS = (
    ("mb2ic19ih9oc22kh3ph1", "nhwc"),
    ("ic16ih9oc24kh1sh2", "nchw"),
    ("g13ic13ih11oc13kh3ph1", "nhwc"),
    ("g4ic16ih7oc20kh3ph1", "nhwc"),
    ("ic3ih23oc20kh7sh2ph3", "nchw"),
    ("ic9ih15oc11kh5dh1ph2", "nhwc"),
    ("mb2g9ic9ih10oc9kh5sh2ph2", "nchw"),
    ("mb2g9ic9ih10oc9kh3ph1", "nchw"),
)
PRECISIONS = ["f32", "f16:f16:f32", "bf16", "bf16:bf16:f32", "u8:s8:u8", "s8:s8:s8", "s8:s8:s32"]


def planned(dtype: str, isa: str) -> list[ExportedLayer]:
    """The layers by turns under the model's choice and under one that it would not make."""
    target = replace(detect(), isa=ISAS[isa], features=ISAS[isa].features)
    found = []
    for position, (words, layout) in enumerate(LAYERS[: len(LAYERS) if dtype == "f32" else 5]):
        problem = parse_problem(words, layout).with_(dtype=dtype)
        context = fixed_context(problem, 1, target)
        if position % 2:
            (plan,) = members(context, 1, seed=position)
        else:
            plan = choices(context, 1)[0].schedule
        found.append(ExportedLayer(problem, plan, 1))
    return found


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
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_whole_layers_are_exact(tmp_path: Path, dtype: str) -> None:
    """Bare, and with bias, residual and clamp; zero points and scales where there are any."""
    run_layers(planned(dtype, "wasm128"), tmp_path)


@pytest.mark.exhaustive
def test_whole_layers_by_one_operation_are_exact(tmp_path: Path) -> None:
    run_layers(planned("f32", "wasmrelaxed"), tmp_path, "wasmrelaxed")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("compute", "weights"),
    [*(("f32", weights) for weights in ("bf16", "s4x16", "u4x32", "s8x16", "u8x32")),
     *(("a8", weights) for weights in ("s4a8x16", "u4a8x32", "s8a8x16", "u8a8x32"))],
)  # fmt: skip
def test_narrow_weights_are_exact(tmp_path: Path, compute: str, weights: str) -> None:
    loops = {"linear:5x64x11": "i:2 j:8", "linear:2x64x16": "k:1 j:8"}
    run_layers(
        [
            ExportedLayer(
                parse_problem(words, dtype=f"f32:{weights}:f32"),
                parse(f"{its} > brgemm_wasm128_{compute}_2x8"), 1,
            )
            for words, its in loops.items()
        ],
        tmp_path,
    )  # fmt: skip


@pytest.mark.exhaustive
def test_conversions_agree_with_those_of_one_number(tmp_path: Path) -> None:
    """Roundings, infinities, NaN, denormals, saturation, zeros behind the used lanes."""
    source = tmp_path / "narrow.c"
    text = headers(HeaderSet("wasm128", "i16", "u8", "s32"))
    source.write_text(f"{text}\n{(ROOT / 'tests/data/conversions_main.c').read_text()}")
    done = wasm.run(wasm.build(tmp_path / "narrow.wasm", [source], "-O2", "-ffp-contract=off"))
    assert (done.returncode, done.stdout) == (0, "right\n")
