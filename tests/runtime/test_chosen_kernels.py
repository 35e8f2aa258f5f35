"""What is chosen for networks' layers on each architecture: no register spills, and all fit."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import polysci
from polysci.errors import UnsupportedError
from polysci.ops import parse_problem
from polysci.ops.layer_lists import load
from polysci.ops.problem import Problem
from polysci.printers.launches import read_launches
from polysci.runtime.backends import nvrtc
from polysci.runtime.backends.cuda import ARCHITECTURES, Cuda, resources, target_of
from polysci.runtime.backends.occupancy import REGISTERS, limits_of
from polysci.target.target import Target

MOST_REGISTERS = 255  # of a thread, on every architecture
WARPS = 4  # that a multiprocessor should hold at the least: one for each of its schedulers


def listed() -> Iterator[Problem]:
    """Every layer of ResNet-50, of Boda's list, and the products of BERT-base, once."""
    seen = set[str]()
    for name in ("resnet50", "boda", "gemm"):
        for problem in load(name):
            if problem.key not in seen and (name != "gemm" or 'n"bert' in str(problem)):
                seen.add(problem.key)
                yield problem


LAYERS = tuple(listed())
DEFAULT = {(0, "sm_80"), (len(LAYERS) - 1, "sm_90")}


def marks_of(at: int, architecture: str) -> list[pytest.MarkDecorator]:
    """Each case compiles candidates for some seconds."""
    long = (at, architecture) not in DEFAULT
    others = long and architecture != "sm_80"
    return [pytest.mark.exhaustive] * long + [pytest.mark.slow] * others


@pytest.fixture(autouse=True)
def packages() -> None:
    try:
        nvrtc.version()
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("at", "architecture"),
    [pytest.param(*case, marks=marks_of(*case),
                  id=f"{LAYERS[case[0]].name or case[0]}-{case[1]}")
     for case in product(range(len(LAYERS)), ARCHITECTURES)],
)  # fmt: skip
def test_chosen_kernels_fit(at: int, architecture: str) -> None:
    problem, target = LAYERS[at], target_of(architecture)
    result = polysci.optimize(problem, "estimate", target.cores, target=target)
    backend = Cuda(architecture)
    path = backend.build(result.source.file, symbols=result.source.symbols)
    for row in resources(path):
        assert not row.spilled and not row.stack, row
        assert row.registers <= MOST_REGISTERS, row
    assert result.schedule.mapped, result.schedule
    taken, items = backend.occupancy(path), items_of(path)
    assert taken.groups * items * taken.registers <= REGISTERS
    assert taken.groups >= most_of(path, target) or taken.groups * items >= 32 * WARPS
    assert taken.shared <= 48 << 10
    assert taken.groups <= limits_of(architecture).blocks


def most_of(path: Path, target: Target) -> int:
    """Groups of the busiest multiprocessor: a small layer may have no more than it holds."""
    functions = read_launches(path.read_text()).values()
    (groups,) = (step.items for function in functions for step in function.kernel_launches()
                 if step.group > 1)  # fmt: skip
    return -(-groups // target.cores)


def items_of(path: Path) -> int:
    """Threads of a block, as the code says."""
    (items,) = map(int, re.findall(r"PS_GROUP\((\d+)\)", path.read_text()))
    return items


def test_the_log_says_what_the_binary_holds() -> None:
    """The registers that a candidate is ranked by are those of the machine code."""
    pathfinder = pytest.importorskip("cuda.pathfinder", reason="CUDA: no cuda-pathfinder")
    program = pathfinder.find_nvidia_binary_utility("cuobjdump")
    if program is None:
        pytest.skip("CUDA: cuobjdump is not installed")
    target = target_of("sm_86")
    source = polysci.optimize(parse_problem("mm:64x64x64"), "estimate", target=target).source
    path = Cuda("sm_86").build(source.file, symbols=source.symbols)
    command = [program, "--dump-resource-usage", path.with_suffix(".cubin")]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    pattern = r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)"
    held = {name: tuple(map(int, numbers)) for name, *numbers in re.findall(pattern, text)}
    assert {row.kernel for row in resources(path)} == held.keys()
    for row in resources(path):
        registers, stack, shared = held[row.kernel]
        assert (row.registers, row.stack) == (registers, stack)
        assert 0 <= shared - row.shared <= 1024  # what the driver keeps for itself
