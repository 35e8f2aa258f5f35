"""Helium code on a Cortex-M55 that qemu imitates: every kernel between canaries, whole layers."""

from functools import partial
from pathlib import Path

import pytest

from tests.support import boards, emulated
from tests.support.kernelunit import Group

FLAGS = ("-O1", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
KERNELS, SMALL = emulated.of_machine("arm")


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    boards.need()


def driver(folder: Path, group: Group, fault: tuple[str, str] = ("", "")) -> Path:
    """The program that checks the kernels of a group."""
    source = emulated.source_of(folder, group, "unguarded.c", fault)
    return boards.build(source.with_suffix(".elf"), [source], *FLAGS)


@pytest.fixture(scope="module")
def drivers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[Group, Path]:
    folder = tmp_path_factory.mktemp("kernels")
    return emulated.build_chosen(request, [*KERNELS, *SMALL], partial(driver, folder))


@pytest.mark.sampled
@pytest.mark.parametrize("group", [*KERNELS, *SMALL], ids=str)
def test_kernels_are_exact_and_write_nothing_else(drivers: dict[Group, Path], group: Group) -> None:
    emulated.check_program(boards.run(drivers[group]), group)
