"""Programs that check the kernels of a machine, which an emulator or an engine runs."""

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from polysci.cost.shortlist import choices
from polysci.export import ExportedLayer
from polysci.ops import parse_problem
from polysci.printers.headers import headers
from polysci.space.schedule import parse
from polysci.target import microkernels
from polysci.target.host import detect
from polysci.target.isas import ISAS
from polysci.target.microkernels import HeaderSet
from tests.support import kernelunit
from tests.support.exhaustive import selected
from tests.support.kernelunit import ROOT, Group, groups, portable_first, small_groups
from tests.support.samples import fixed_context, members

# 3x3 padded, 1x1 strided, depthwise, grouped, stem, dilated, 5x5 strided, deep, a stencil.
LAYERS = (
    ("mb2ic19ih9oc22kh3ph1", "nhwc"),
    ("ic16ih9oc24kh1sh2", "nchw"),
    ("g13ic13ih11oc13kh3ph1", "nhwc"),
    ("g4ic16ih7oc20kh3ph1", "nhwc"),
    ("ic3ih23oc20kh7sh2ph3", "nchw"),
    ("ic9ih15oc11kh5dh1ph2", "nhwc"),
    ("mb2g9ic9ih10oc9kh5sh2ph2", "nchw"),
    ("ic130ih4oc37kh3ph1", "nhwc"),
    ("mb2g9ic9ih10oc9kh3ph1", "nchw"),
)
PRECISIONS = ("f32", "f16:f16:f32", "bf16", "bf16:bf16:f32", "u8:s8:u8", "s8:s8:s8", "s8:s8:s32")
# Of f32 x by narrow weights: how they are multiplied, and what they are.
ALIKE = [("f32", weights) for weights in ("bf16", "s4x16", "u4x32", "s8x16", "u8x32")]
ROUNDED = [("a8", weights) for weights in ("s4a8x16", "u4a8x32", "s8a8x16", "u8a8x32")]


def source_of(folder: Path, group: Group, reserve: str, fault: tuple[str, str] = ("", "")) -> Path:
    """The source of a program; ``reserve`` names the file that places operands in memory."""
    source, data = folder / f"{group}.c", ROOT / "tests/data"
    main = [(data / name).read_text() for name in (reserve, "driver_main.c")]
    source.write_text("\n".join([kernelunit.text(group, fault=fault), *main]))
    return source


def of_machine(
    machine: str, but: str | tuple[str, ...] = "none"
) -> tuple[list[Group], list[Group]]:
    """The groups of a machine's instruction sets: of every kernel, and small ones of all types.

    Those whose name begins with ``but`` are left out.
    """
    names = [isa.name for isa in ISAS.values() if isa.machine == machine]
    return of_isas([name for name in names if not name.startswith(but)])


def of_isas(names: Sequence[str]) -> tuple[list[Group], list[Group]]:
    """The same of some instruction sets."""
    kernels, small = sorted(groups(), key=portable_first), small_groups()
    every = ([it for it in its if it.unit.isa in names] for its in (kernels, small))
    return next(every), next(every)


@dataclass(frozen=True)
class Drivers:
    """Programs that check kernels; ``build`` makes one of a source, which it lies beside.

    ``need`` skips tests where the tools lack; ``reserve`` is that of ``source_of``.
    """

    need: Callable[[], None]
    reserve: str
    build: Callable[[Path, Group], Path]

    def driver(self, folder: Path, group: Group, fault: tuple[str, str] = ("", "")) -> Path:
        """The program that checks the kernels of a group."""
        return self.build(source_of(folder, group, self.reserve, fault), group)

    def fixtures(self, every: Sequence[Group]) -> tuple[Any, Any]:
        """The fixtures of a file: of its tools, and of programs by those groups that will run."""

        @pytest.fixture(scope="module", autouse=True)
        def tools() -> None:
            self.need()

        @pytest.fixture(scope="module")
        def drivers(
            request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
        ) -> dict[Group, Path]:
            chosen = [it for it in every if it in selected(request.session, "group", Group)]
            build = partial(self.driver, tmp_path_factory.mktemp("kernels"))
            with ThreadPoolExecutor(2) as pool:
                return dict(zip(chosen, pool.map(build, chosen), strict=True))

        return tools, drivers

    def faulty(self, folder: Path, fault: tuple[HeaderSet, str, str]) -> tuple[Path, Group]:
        """The program of the first small group of a unit whose header has a faulty macro."""
        unit, header, macro = fault
        group = next(group for group in small_groups() if group.unit == unit)
        return self.driver(folder, group, (header, macro)), group


def check_program(done: subprocess.CompletedProcess[str], group: Group) -> None:
    """Fail unless a program went through all kernels of a group."""
    assert done.returncode == 0, f"{done.stdout[-600:]}{done.stderr[-600:]}"
    others = ["ps_pack_row"] * group.small + ["ps_slide"] * len(group.slid)
    assert done.stdout.split() == [*(str(kernel) for kernel in group.kernels), *others]


def conversions(folder: Path, isa: str) -> Path:
    """The source of a program that compares conversions of vectors with those of one number."""
    source = folder / "narrow.c"
    text = headers(HeaderSet(isa, "i16", "u8", "s32"))
    source.write_text(f"{text}\n{(ROOT / 'tests/data/conversions_main.c').read_text()}")
    return source


def headers_alone(folder: Path, unit: HeaderSet) -> Path:
    """The source of a program of a unit's headers and of those that measure; it does nothing."""
    source = folder / "headers.c"
    probes = "\n".join(map(microkernels.header, ("probe", "probe_clock", "probe_read")))
    source.write_text(f"{headers(unit)}\n{probes}\nint main(void) {{ return 0; }}\n")
    return source


def planned(dtype: str, isa: str) -> list[ExportedLayer]:
    """The layers by turns under the model's choice and under one that it would not make."""
    target = replace(detect(), isa=ISAS[isa], features=ISAS[isa].features)
    layers = []
    for position, (words, layout) in enumerate(LAYERS[: len(LAYERS) if dtype == "f32" else 5]):
        problem = parse_problem(words, layout).with_(dtype=dtype)
        context = fixed_context(problem, 1, target)
        if position % 2:
            (plan,) = members(context, 1, seed=position)
        else:
            plan = choices(context, 1)[0].schedule
        layers.append(ExportedLayer(problem, plan, 1))
    return layers


def narrow_weights(isa: str, compute: str, weights: str) -> list[ExportedLayer]:
    """Products by narrow weights, in tiles of two vectors: ragged ones, and whole ones."""
    columns = 2 * ISAS[isa].lanes_f32
    loops = {f"linear:5x64x{columns + 3}": "i:2", f"linear:2x64x{2 * columns}": "k:1"}
    kernel = f"brgemm_{isa}_{compute}_2x{columns}"
    return [
        ExportedLayer(
            parse_problem(words, dtype=f"f32:{weights}:f32"),
            parse(f"{its} j:{columns} > {kernel}"), 1,
        )
        for words, its in loops.items()
    ]  # fmt: skip
