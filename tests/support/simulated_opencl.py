"""Kernels of OpenCL in Oclgrind, which simulates a device: LAYER LAYOUT SCHEDULE [OLD NEW].

It finds races between work-items, accesses outside of buffers, and reads of memory that nothing
wrote (without the compiler's optimisations, which read more than code does). NEW stands for OLD in
the code.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polysci.ops import parse_problem
from polysci.runtime import backends
from polysci.runtime.backends.opencl import OpenCL
from polysci.runtime.primitive import load_primitive
from polysci.runtime.source import emit
from polysci.space.schedule import parse
from tests.support.device_cases import integers

PROGRAM = shutil.which("oclgrind")
CHECKS = ("--data-races", "--uninitialized", "--build-options", "-cl-opt-disable")
NAME = "simulated"


@dataclass(frozen=True)
class SimulatedOpenCL(OpenCL):
    """The first device, with a fault in its code."""

    fault: tuple[str, str] = ("", "")

    @property
    def name(self) -> str:
        return NAME

    def build(self, text: str | Sequence[str], **options: Any) -> Path:
        source, (old, new) = text if isinstance(text, str) else "\n".join(text), self.fault
        assert old in source
        source = source.replace("always_inline, ", "")  # leaves intrinsics that it does not know
        return super().build(source.replace(old, new, 1) if old else source, **options)


def simulate(log: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run this module in Oclgrind; ``log`` gets what it finds."""
    command = [PROGRAM or "oclgrind", *CHECKS, "--log", str(log)]
    return subprocess.run(
        [*command, sys.executable, "-m", "tests.support.simulated_opencl", *words],
        capture_output=True, text=True,
    )  # fmt: skip


def main(text: str, layout: str, schedule: str, *fault: str) -> None:
    """Compare results with the reference, with and without an epilogue."""
    problem, (old, new) = parse_problem(text, layout), fault or ("", "")
    backends.BACKENDS = {**backends.BACKENDS, NAME: SimulatedOpenCL(fault=(old, new))}
    primitive = load_primitive(problem, emit(problem, parse(schedule), 1), 1, backend=NAME)
    x, w = integers(problem.x_shape, 1), integers(problem.w_shape, 2)
    bias = integers((problem.y_shape[problem.bias_axis],), 3)
    packed = primitive.pack_weights(w) if problem.w_kind == "constant" else w
    for words in ({}, {"bias": bias, "residual": integers(problem.y_shape, 4)}):
        result = primitive(x, packed, **words)
        print("exact" if np.array_equal(result, problem.reference(x, w, **words)) else "wrong")


if __name__ == "__main__":
    main(*sys.argv[1:])
