"""Tiles of groups in the order of what NVRTC tells of their registers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from polysci.cost import Context
from polysci.errors import UnsupportedError
from polysci.lower import choice
from polysci.lower.algorithm import Candidate
from polysci.ops import parse_problem
from polysci.runtime.backend import Occupancy
from polysci.runtime.backends import backend_named, nvrtc
from polysci.runtime.backends.cuda import Cuda, target_of
from polysci.runtime.backends.occupancy import limits_of
from polysci.runtime.source import emit
from polysci.target.machine import assume_rates
from polysci.tune import Progress, context_of
from polysci.tune.occupancy import describe_registers, refine
from tests.support.command import done

PROBLEM = parse_problem("mm:96x96x8")
SM_80 = target_of("sm_80")


@pytest.mark.parametrize(
    ("architecture", "threads", "registers", "shared", "blocks"),
    [("sm_80", 256, 127, 48 << 10, 2),  # registers
     ("sm_80", 256, 128, 64 << 10, 2), ("sm_80", 256, 129, 1 << 10, 1),
     ("sm_80", 32, 32, 1 << 10, 32), ("sm_75", 32, 32, 1 << 10, 16),  # blocks
     ("sm_86", 256, 32, 1 << 10, 6), ("sm_80", 1024, 32, 0, 2),  # warps
     ("sm_86", 64, 32, 48 << 10, 2), ("sm_89", 64, 32, 64 << 10, 1),  # shared memory
     ("sm_75", 64, 32, 48 << 10, 1), ("sm_120", 64, 32, 48 << 10, 4)],
)  # fmt: skip
def test_blocks_are_held_by_what_they_take(
    architecture: str, threads: int, registers: int, shared: int, blocks: int
) -> None:
    assert limits_of(architecture).blocks_at_a_time(threads, registers, shared) == blocks


def context() -> Context:
    return context_of(PROBLEM, 1, SM_80, machine=assume_rates(SM_80))


def ranked(count: int) -> list[Candidate]:
    return choice.candidates(PROBLEM, context(), count)


@pytest.mark.exhaustive
def test_where_no_compiler_tells_the_order_stays() -> None:
    host = backend_named("host")
    assert refine(PROBLEM, context(), ranked(3), 1, host) == ranked(3)
    assert describe_registers(host) == (
        "registers of work-items are assumed: no compiler tells them"
    )


@dataclass(frozen=True)
class Narrow(Cuda):
    """An architecture where the first kernel that is asked for has too few registers."""

    place: str = "sm_80"
    first: tuple[Path, ...] = ()

    def _occupancy(self, path: Path) -> Occupancy:
        own = super()._occupancy(path)
        return replace(own, spilled=8) if path in self.first else own


class TestCompiled:
    """Where the packages of the extra are installed."""

    @pytest.fixture(autouse=True)
    def packages(self) -> None:
        try:
            nvrtc.version()
        except UnsupportedError as error:
            pytest.skip(str(error))

    def test_the_first_is_the_best_by_what_kernels_take(self) -> None:
        steps, every = list[Progress](), ranked(4)
        lazy = refine(PROBLEM, context(), every, 1, Cuda("sm_80"), steps.append)
        whole = refine(PROBLEM, context(), every, 4, Cuda("sm_80"))
        assert lazy[0] == whole[0] and {it.schedule for it in lazy} == {it.schedule for it in every}
        assert [it.seconds for it in whole] == sorted(it.seconds for it in whole)
        assert steps[0].stage == "compiling" and steps[0].total == 4

    def test_what_spills_falls_out(self) -> None:
        every = ranked(3)
        source = emit(PROBLEM, every[0].schedule, 1)
        path = Cuda("sm_80").build(source.file, symbols=source.symbols)
        refined = refine(PROBLEM, context(), every, 3, Narrow(first=(path,)))
        assert {it.schedule for it in refined} == {it.schedule for it in every[1:]}

    def test_occupancy_is_that_of_the_groups_kernel(self) -> None:
        (first,) = ranked(1)
        source = emit(PROBLEM, first.schedule, 1)
        backend = Cuda("sm_80")
        path = backend.build(source.file, symbols=source.symbols)
        assert backend.occupancy
        taken = backend.occupancy(path)
        assert taken.groups >= 1 and taken.registers > 32 and not taken.spilled
        assert taken.shared > 0 and describe_registers(backend).startswith("registers of work-")

    def test_the_command_ranks_tiles_of_groups(self) -> None:
        text = done("rank", str(PROBLEM), "--device", "cuda:sm_80", "--top", "2", "--json")
        assert text.count('"ranker": "traffic"') == 2 and text.count("fma_cuda4_f32") == 2
        text = done("rank", str(PROBLEM), "--device", "cuda:sm_80", "--top", "1")
        assert "registers of work-items as NVRTC" in text
