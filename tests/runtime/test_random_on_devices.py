"""Random problems, and every listed one made tiny: exact on devices, reals within their bounds.

On PoCL as a device with groups of work-items, between poisoned margins; and as CUDA on this CPU,
threads in three orders. Forward and gradients, both layouts, with and without epilogues.
"""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from polysci.measure.check import check
from polysci.ops import layer_lists
from polysci.ops.problem import Problem
from polysci.runtime.backends.opencl import OpenCL, devices
from polysci.target.isas import DEVICE_ISAS
from polysci.target.target import Memory
from tests.support.cuda_emulation import emulated
from tests.support.device_problems import (
    drawn_schedule,
    emulated_faults,
    listed_cases,
    random_case,
    whole_case,
)

Run = Callable[[Iterable[tuple[int, Problem]]], list[str]]
RANDOM = 200
SHARE = 4  # problems of a test
SHARES = [
    pytest.param(at, marks=[pytest.mark.exhaustive] * (at != 5) + [pytest.mark.slow] * (at > 9))
    for at in range(RANDOM // SHARE)
]
WHOLE_SHARES = 10  # of 8-bit numbers
NETWORKS = [pytest.param(name, marks=pytest.mark.slow) for name in layer_lists.names()]


def seeds(share: int) -> range:
    return range(share * SHARE, (share + 1) * SHARE)


def on_pocl(cases: Iterable[tuple[int, Problem]]) -> list[str]:
    """The faults of drawn schedules on the device, which counts as none of CPUs."""
    pytest.importorskip("pyopencl", reason="OpenCL: pyopencl is not installed")
    if not devices():
        pytest.skip("OpenCL: there is no device")
    (target,), faults = OpenCL().targets(), list[str]()
    memories = (*target.memories, Memory("local", 48 << 10, kind="local"))
    grouped = replace(target, isa=DEVICE_ISAS["opencl4"], memories=memories)
    for seed, problem in cases:
        schedule = drawn_schedule(problem, grouped, seed)
        verdicts = check(problem, [schedule], 1, seed=seed, backend=OpenCL())
        faults += [f"{verdict} {verdict.fault}" for verdict in verdicts if not verdict.passed]
    return faults


def on_emulation(cases: Iterable[tuple[int, Problem]]) -> list[str]:
    """The faults of drawn schedules as CUDA on this CPU."""
    if shutil.which("g++") is None:
        pytest.skip("the emulation of CUDA: g++ is not installed")
    with emulated() as backend:
        return [
            fault for seed, problem in cases for fault in emulated_faults(problem, seed, backend)
        ]


@pytest.mark.parametrize("run", [on_pocl, on_emulation])
@pytest.mark.parametrize("share", SHARES)
def test_random_problems_are_right(share: int, run: Run) -> None:
    faults = run([(seed, random_case(seed)) for seed in seeds(share)])
    assert not faults, "\n".join(faults)


@pytest.mark.exhaustive
@pytest.mark.parametrize("run", [on_pocl, on_emulation])
@pytest.mark.parametrize("share", range(WHOLE_SHARES))
def test_random_problems_of_8_bits_are_right(share: int, run: Run) -> None:
    faults = run([(seed, whole_case(seed)) for seed in seeds(share)])
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("run", [on_pocl, on_emulation])
@pytest.mark.parametrize("network", NETWORKS)
def test_listed_problems_are_right(network: str, run: Run) -> None:
    faults = run(enumerate(listed_cases(network)))
    assert not faults, "\n".join(faults)
