"""Tiny layers in Oclgrind, which finds races, overruns and reads of what nothing wrote."""

from pathlib import Path

import pytest

from tests.support import simulated_opencl
from tests.support.simulated_opencl import simulate

pytest.importorskip("pyopencl", reason="OpenCL: pyopencl is not installed")
if simulated_opencl.PROGRAM is None:
    pytest.skip("Oclgrind is not installed", allow_module_level=True)

PRODUCT = (
    *("mm:8x9x12 b=constant", "nhwc"),
    "i:8@by j:8@bx k:4 copy(A,B)x2+4 i:4@ty j:4@tx > fma_opencl4_f32_4x4",
)
CASES = (
    PRODUCT,
    ("mm:7x5x9", "nhwc", "i:4@by j:8@bx k:2 copy(A,B)x1 i:2@ty j:4@tx > fma_opencl4_f32_2x4"),
    ("mb1ic3ih4oc6oh4kh3ph1", "nhwc",
     "npq:8@by k:8@bx rsc:9 copy(A,B)x2+4 npq:4@ty k:4@tx > fma_opencl4_f32_4x4"),
    ("mb1ic8ih4oc5oh2kh1sh2ph0", "nchw",
     "npq:4@by k:8@bx c:4 copy(A,B)x2 npq:2@ty k:8@tx > fma_opencl4_f32_2x8"),
    ("bwd_w mb1ic2ih4oc4oh4kh3ph1", "nchw",
     "crs:8@by k:4@bx pqn:4 copy(A,B)x2+4 crs:4@ty k:4@tx > fma_opencl4_f32_4x4"),
    ("bwd_d mb1ic3ih4oc4oh4kh3ph1", "nhwc",
     "nhw:8@by c:4@bx rsk:6 copy(A,B)x1+4 nhw:4@ty c:4@tx > fma_opencl4_f32_4x4"),
)  # fmt: skip
FAULTS = (
    ("PS_BARRIER();", ";", "data race"),
    ("+ own_row,", "+ own_row + 4096,", "Invalid read"),
    ("x[x_at[i]", "x[4096 + x_at[i]", "Invalid read"),
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case[0], marks=[pytest.mark.exhaustive] * (case != PRODUCT))
             for case in CASES],
)  # fmt: skip
def test_layers_are_clean(case: tuple[str, str, str], tmp_path: Path) -> None:
    ran = simulate(tmp_path / "log", *case)
    assert (ran.returncode, ran.stdout) == (0, "exact\nexact\n"), ran.stderr
    log = tmp_path / "log"
    assert not log.exists() or not log.read_text().strip(), log.read_text()


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, id=fault[0], marks=[pytest.mark.exhaustive] * (at > 0))
              for at, fault in enumerate(FAULTS)],
)  # fmt: skip
def test_faults_are_found(fault: tuple[str, str, str], tmp_path: Path) -> None:
    old, new, message = fault
    simulate(tmp_path / "log", *PRODUCT, old, new)
    assert message in (tmp_path / "log").read_text()
