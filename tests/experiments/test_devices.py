"""The comparisons of devices, as they run beside PyTorch on a GPU: here PyTorch is on the CPU."""

import csv
import importlib
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polysci.ops import parse_problem
from polysci.runtime.backends.opencl import OpenCL, devices
from tests.support.cuda_driver import with_driver
from tests.support.scripts import run_script

pytest.importorskip("pyopencl", reason="OpenCL: pyopencl is not installed")
if not devices():
    pytest.skip("OpenCL: there is no device", allow_module_level=True)

FOLDER = Path(__file__).parents[2] / "experiments"
LAYER, PRODUCT = "mb1ic6ih9oc20oh9kh3ph1", "mm:24x16x32 b=constant"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("devices")


def arguments(folder: Path, *layers: str) -> Namespace:
    return Namespace(layers=[*layers], layout="nhwc", quick=True, output=folder)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("text", "layout"), [(LAYER, "nchw"), ("g4mb2ic8ih7oc8oh4kh3ph1sh2", "nchw"), (PRODUCT, "nhwc")]
)
def test_naive_kernels_are_exact(script: Any, text: str, layout: str) -> None:
    problem = parse_problem(text, layout)
    (device,) = OpenCL().targets()
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, it).astype(np.float32) for it in (problem.x_shape, problem.w_shape))
    sample, y = script.naive_timer(problem, device, x, w)
    assert np.array_equal(y, problem.reference(x, w)) and sample() > 0


@pytest.mark.exhaustive
def test_the_command_compares_with_the_cpu(tmp_path: Path) -> None:
    words = ("--device", "opencl:0", "--samples", "1", "--output", tmp_path, LAYER)
    ran = run_script(FOLDER / "devices.py", *words)
    assert ran.returncode == 0, ran.stderr
    assert "device/naive: geomean" in ran.stdout
    (row,) = rows_of(tmp_path / "devices.csv")
    assert float(row["over_naive"]) > 0 and float(row["ratio"]) > 0


def test_without_a_device_one_line_says_so(tmp_path: Path) -> None:
    ran = run_script(FOLDER / "devices.py", "--device", "opencl:97", "--output", tmp_path, LAYER)
    assert ran.returncode == 1 and not ran.stdout
    (line,) = ran.stderr.splitlines()
    assert line.startswith("devices: error: no device: no device opencl:97; there are: ")


def test_layers_are_compared_with_torch(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same code as on a GPU; what the device has no kernels of is refused in a row."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (device,) = OpenCL().targets()
    budget = script.Budget(time.monotonic() + 60, 1)
    own = arguments(tmp_path, LAYER, PRODUCT)
    there = script.TorchDevice.of("cpu")
    assert script.beside_torch(own, device, there, budget)
    rows = rows_of(tmp_path / "devices-torch-quick.csv")
    assert len(rows) == 2 * len(script.KINDS)
    for row in rows:
        if row["kind"].startswith("f32"):
            assert float(row["ratio"]) > 0 and float(row["gflops"]) > 0
        elif not row["ratio"]:
            assert row["note"].startswith("refused: ")
    told = capsys.readouterr().out
    assert "f32: geomean " in told and "at 0.8 or more; 0 of 2 refused or wrong" in told


def test_a_wrong_result_is_a_row(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (device,) = OpenCL().targets()
    there = script.TorchDevice.of("cpu")
    monkeypatch.setattr(
        script.TorchDevice, "result", lambda *_: np.zeros((1, 9, 9, 20), np.float32)
    )
    pair = parse_problem(LAYER), "f32"
    row = script.torch_row(pair, device, there, script.Budget(0.0, 1), 1.0)
    assert row["note"].startswith("wrong: ") and row["ratio"] == ""


def test_the_time_limit_keeps_rows(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    budget = script.Budget(time.monotonic() + 0.05, 1)
    steps = [lambda limit: time.sleep(0.06) or limit] * 3
    (first,) = budget.rows(steps, 3)
    assert 0 < first < 0.05 / 3 + 1e-6
    assert capsys.readouterr().err == "time limit: 2 of 3 rows are left out\n"


@pytest.mark.exhaustive
def test_chains_are_compared_with_torch(script: Any) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    (device,) = OpenCL().targets()
    there = script.TorchDevice.of("cpu")
    for name in script.chains(torch):
        budget = script.Budget(time.monotonic() + 60, 1)
        row = script.chain_row(name, device, there, budget, 1.0, "eager")
        assert row["ratio"] != "" and row["ratio"] > 0, row


@pytest.mark.exhaustive
@with_driver
def test_cuda_devices_are_compared_with_torch() -> None:
    """All of the way but the GPU: kernels run by a driver whose device is this CPU."""
    sys.path.insert(0, str(FOLDER))
    script = importlib.import_module("devices")
    device, there = script.device_of("cuda:0"), script.TorchDevice.of("cpu")
    budget = script.Budget(time.monotonic() + 60, 1)
    for kind in script.KINDS:
        row = script.torch_row((parse_problem(LAYER), kind), device, there, budget, 1.0)
        assert row["ratio"] != "" or row["note"].startswith("refused: "), row
        assert row["ratio"] != "" or not kind.startswith("f32"), row
