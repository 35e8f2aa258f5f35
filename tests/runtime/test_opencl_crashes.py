"""Drivers of OpenCL that end their process: an error of one line, and this process goes on."""

import re
from pathlib import Path

import numpy as np
import pytest

from polysci.errors import BuildError, CheckError
from polysci.measure.first_run import has_run
from polysci.network import build
from polysci.network.compiled import compile_network
from polysci.network.options import CompileOptions
from polysci.runtime.backends import opencl
from polysci.runtime.backends.opencl import OpenCL, devices
from polysci.runtime.worker_process import WorkerProcess
from tests.support.device_cases import two_layers

pytest.importorskip("pyopencl", reason="OpenCL: pyopencl is not installed")
if not devices():
    pytest.skip("OpenCL: there is no device", allow_module_level=True)

ABORTS = """\
import os
input()
os.write(2, b"driver.cc:346: Assertion `exit != NULL' failed.\\n")
os.abort()
"""
TEXT = """\
// launches: [["f",["x"],[["f_k0",1,["x"],1]],0]]
__kernel void f_k0(__global float *x) { x[0] = 7; }
"""


@pytest.fixture
def crashing_driver(
    fresh_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> WorkerProcess:
    """A driver whose compiler aborts whatever it is asked."""
    (tmp_path / "aborting_driver.py").write_text(ABORTS)
    env = {"PYTHONPATH": str(tmp_path)}
    driver = WorkerProcess("aborting_driver", threads=1, env=env, timeout=60)
    monkeypatch.setattr(opencl, "_driver_of", lambda number: driver)
    return driver


def test_a_driver_that_aborts_costs_one_line(crashing_driver: WorkerProcess) -> None:
    said = r"the driver's compiler: .*crashed with SIGABRT; .* Assertion `exit != NULL' failed\.$"
    for _ in range(2):  # the process is started again
        with pytest.raises(BuildError, match=said) as raised:
            OpenCL().build(TEXT, symbols=("f",))
        assert len(str(raised.value).splitlines()) == 1
    crashing_driver.close()


@pytest.mark.exhaustive
def test_a_driver_compiles_in_one_process(fresh_cache: Path) -> None:
    backend, x = OpenCL(), np.zeros(1, np.float32)
    library = backend.load(backend.build(TEXT, symbols=("f",)), "")
    first = opencl._driver_of(0).pid
    buffer = library.queue.copy_in(x)
    library.function("f")(buffer)
    library.copy_out(buffer, x)
    assert x[0] == 7
    backend.build(TEXT.replace("7", "8"))
    assert opencl._driver_of(0).pid == first is not None


@pytest.mark.exhaustive
def test_a_network_runs_first_in_a_process_of_its_own(users_policy: None) -> None:
    """Drivers compile kernels for good when they first run: a crash there is an error too."""
    (target,) = OpenCL().targets()
    network = compile_network(two_layers(), CompileOptions("estimate", target=target))
    library = network.runner.library.path
    assert has_run(library)
    library.with_name("has_run").unlink()
    crash = re.sub(
        r"(__kernel [^{]*\{)", r"\1 *(volatile __global int *)8 = 1;", library.read_text()
    )
    library.with_suffix(".bin").write_bytes(opencl.compile_here(0, crash, ()))
    said = "its first run, in a process of its own, failed: .*crashed with SIGSEGV"
    with pytest.raises(CheckError, match=said):
        build.check_first_run(network.code, library, 1)
