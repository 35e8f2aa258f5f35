"""Devices by the names that tests give them: what ``opencl:0`` and the emulation of CUDA need."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from polysci.runtime.backends.opencl import devices
from tests.support.cuda_emulation import COMPILER, NAME, emulated

DEVICES = ("opencl:0", NAME)


@contextmanager
def at_hand(name: str) -> Iterator[str]:
    """The name, inside of which the device is there; skips the test where it cannot be."""
    if name == NAME:
        if COMPILER is None:
            pytest.skip("the emulation of CUDA: g++ is not installed")
        with emulated():
            yield name
        return
    pytest.importorskip("pyopencl", reason="OpenCL: pyopencl is not installed")
    if not devices():
        pytest.skip("OpenCL: there is no device")
    yield name
