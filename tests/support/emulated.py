"""Programs that check the kernels of a machine, which an emulator or an engine runs."""

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from polysci.target.isas import ISAS
from tests.support import kernelunit
from tests.support.exhaustive import selected
from tests.support.kernelunit import ROOT, Group, groups, portable_first, small_groups


def source_of(folder: Path, group: Group, reserve: str, fault: tuple[str, str] = ("", "")) -> Path:
    """The source of a program; ``reserve`` names the file that places operands in memory."""
    source, data = folder / f"{group}.c", ROOT / "tests/data"
    main = [(data / name).read_text() for name in (reserve, "driver_main.c")]
    source.write_text("\n".join([kernelunit.text(group, fault=fault), *main]))
    return source


def of_machine(machine: str, but: str = "none") -> tuple[list[Group], list[Group]]:
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


def build_chosen(
    request: pytest.FixtureRequest, every: Sequence[Group], build: Callable[[Group], Path]
) -> dict[Group, Path]:
    """The programs of those groups whose tests will run."""
    chosen = [group for group in every if group in selected(request.session, "group", Group)]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(chosen, pool.map(build, chosen), strict=True))


def check_program(done: subprocess.CompletedProcess[str], group: Group) -> None:
    """Fail unless a program went through all kernels of a group."""
    assert done.returncode == 0, f"{done.stdout[-600:]}{done.stderr[-600:]}"
    others = ["ps_pack_row"] * group.small + ["ps_slide"] * len(group.slid)
    assert done.stdout.split() == [*(str(kernel) for kernel in group.kernels), *others]
