"""``--device``: what it is refused with, and what it prints where there is a device."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from polysci.cli.optimize import _rates_of
from polysci.runtime.backends import backend_named
from polysci.runtime.backends.opencl import devices
from polysci.target.machine import Machine, assume_rates
from polysci.target.machine_file import read
from polysci.tune import calibrate
from tests.support.command import done, polysci
from tests.support.compiling import saved, tiny

LAYER = "mb1ic4ih6oc8kh3ph1"


def error_of(*words: str | Path, status: int = 1) -> str:
    """Return the one line that a command ends with."""
    ran = polysci(*words)
    assert ran.returncode == status and ran.stdout == ""
    (line,) = ran.stderr.splitlines()
    return line


def test_an_unknown_backend_is_one_clear_error() -> None:
    assert error_of("optimize", LAYER, "--device", "vulkan:0") == (
        "polysci: error: no backend 'vulkan:0'; known: host, opencl:0 and so on, cuda:0 and so on, "
        "cuda:sm_80"
    )


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    devices.cache_clear()
    assert "OpenCL: import of pyopencl halted" in error_of("rank", LAYER, "--device", "opencl:0")
    devices.cache_clear()


def error_or_table(*words: str) -> str:
    """Return what a command prints whose layer failed."""
    ran = polysci(*words)
    assert ran.returncode == 1
    return ran.stdout


@pytest.mark.parametrize("option", ["--isa=portable", "--machine=m.toml"])
def test_a_device_has_its_own_description(option: str) -> None:
    name = option.partition("=")[0]
    assert error_of("optimize", LAYER, "--device", "opencl:0", option, status=2) == (
        f"polysci: error: --device opencl:0: it has its own description; leave out {name}"
    )


@pytest.mark.parametrize("words", [("bench", "--against", "x"), ("check",)])
def test_commands_that_run_no_device_lack_the_option(words: tuple[str, ...]) -> None:
    ran = polysci(*words, LAYER, "--device", "opencl:0")
    assert ran.returncode == 2 and "unrecognized arguments: --device opencl:0" in ran.stderr


@pytest.mark.exhaustive
def test_the_host_is_a_device() -> None:
    assert done("rank", LAYER, "--device", "host") == done("rank", LAYER)


class TestOnADevice:
    """Where pyopencl and a driver are installed."""

    @pytest.fixture(autouse=True)
    def device(self) -> None:
        pytest.importorskip("pyopencl", reason="OpenCL: pyopencl is not installed")
        if not devices():
            pytest.skip("OpenCL: there is no device")

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        return saved(tiny(), tmp_path / "tiny.onnx")

    def test_an_unknown_number_lists_the_devices(self) -> None:
        said = error_of("explain", LAYER, "--device", "opencl:97")
        assert said.startswith("polysci: error: no device opencl:97; there are: opencl:0 ")

    @pytest.mark.parametrize("command", ["optimize --level=estimate", "rank", "explain"])
    def test_schedules_are_of_its_kernels(self, command: str) -> None:
        assert "brgemm_opencl" in done(*command.split(), LAYER, "--device", "opencl:0")

    def test_a_record_of_the_device_is_found_again(self) -> None:
        on, recorded = (
            ("optimize", LAYER, "--device", "opencl:0", "--json"),
            ["--level=wisdom-only"],
        )
        assert "FAILED" in error_or_table("optimize", LAYER, *on[2:4], *recorded)
        row, _ = map(json.loads, done(*on, "--time-limit=1").splitlines())
        assert row["gflops"] > 0 and row["peak_fraction"] is None and not row["disturbed"]
        again, _ = map(json.loads, done(*on, *recorded).splitlines())
        assert again["recorded"] and again["schedule"] == row["schedule"]
        table = done("optimize", LAYER, *on[2:4], *recorded)
        assert "predicted: with assumed rates; those of opencl:0 are not measured" in table
        assert "FAILED" in error_or_table("optimize", LAYER, *recorded)

    def test_a_network_reports_its_stages(self, model: Path) -> None:
        printed = done("compile", model, "--device", "opencl:0", "--level", "estimate")
        assert printed.startswith("group") and "whole network: " in printed

    @pytest.mark.parametrize("option", ["--compare=onnxruntime", "--tuner=random"])
    def test_what_needs_c_is_refused(self, model: Path, option: str) -> None:
        said = error_of("compile", model, "--device", "opencl:0", option, status=2)
        name = option.partition("=")[0]
        assert said.startswith("polysci: error: --device opencl:0: ")
        assert said.endswith(f"; leave out {name}")

    @pytest.mark.parametrize("option", ["--python", "--freestanding", "--isas=avx2", "--isa=avx2",
                                        "--packed-weights", "--threads=pthread:2"])  # fmt: skip
    def test_forms_of_c_alone_are_refused(self, model: Path, tmp_path: Path, option: str) -> None:
        on = ("--device", "opencl:0", "-o", tmp_path / "out", option)
        name = option.partition("=")[0]
        pattern = rf"polysci: error: --device opencl:0: .*; leave out {name}( pthread)?"
        assert re.fullmatch(pattern, error_of("compile", model, *on, status=2))
        if name in ("--python", "--isas", "--isa"):
            assert re.fullmatch(pattern, error_of("export", LAYER, *on, status=2))
        assert not (tmp_path / "out").exists()

    def test_a_model_is_written_as_a_project(self, model: Path, tmp_path: Path) -> None:
        printed = done("compile", model, "--device", "opencl:0", "-o", tmp_path / "out")
        assert {"tiny.cl", "tiny.weights"} < {Path(line).name for line in printed.splitlines()}

    def test_a_layer_is_written_as_a_project(self, tmp_path: Path) -> None:
        done("export", LAYER, "--device", "opencl:0", "-o", tmp_path / "net")
        assert "net_layer_1_k0" in (tmp_path / "net" / "net.cl").read_text()
        for dtype, out in (("bf16", tmp_path / "narrow"), ("u8:s8:s8", tmp_path / "bytes")):
            estimate = ("--level", "estimate", "--dtype", dtype, "-o", out)
            done("export", LAYER, "--device", "opencl:0", *estimate)
            subprocess.run(["make", "-C", out, "check"], check=True)

    @pytest.mark.parametrize("option", ["--debug-layers", "--check"])
    def test_every_tensor_beside_the_reference(self, model: Path, option: str) -> None:
        said = done("compile", model, "--device", "opencl:0", option)
        assert "all 5 tensors are right" in said

    def test_bytes_have_kernels_and_winograd_none(self) -> None:
        on = ("--device", "opencl:0")
        ran = polysci("optimize", LAYER, *on, "--algorithm", "winograd")
        assert ran.returncode == 1
        assert "algorithm winograd: no tiles of groups for opencl" in ran.stdout
        assert re.search(r"_opencl\d+_i16_", done("rank", LAYER, *on, "--dtype", "u8:s8:s8"))

    @pytest.fixture
    def measured(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
        """Some figures of the device in a cache of the test's own."""
        tmp_path.chmod(0o700)
        monkeypatch.setenv("POLYSCI_CACHE_DIR", str(tmp_path))
        (target,) = backend_named("opencl:0").targets()
        machine = replace(
            assume_rates(target), peak=77.0, errors={"peak": 1.5}, measured=True,
            efficiency={f"brgemm_{target.isa}_f32_4x{target.isa.lanes_f32}": 0.5},
        )  # fmt: skip
        calibrate._store(calibrate.machine_path(target), machine)
        return machine

    def test_a_device_says_what_of_it_is_measured(self, measured: Machine) -> None:
        shown = done("machine", "--device", "opencl:0", "--wide")
        assert re.search(r"FMA peak of one core, f32 +77 GFLOP/s \(± 1.5, measured\)", shown)
        assert re.search(r"memory reads by one core +\S+ GB/s \(assumed\)", shown)
        assert re.search(r"not measured +\d+ of \d+ figures; again: polysci machine", shown)
        assert "rates measured" in done("machine", "--wide")
        assert _rates_of("opencl:0") == "predicted: with rates measured on opencl:0"

    def test_a_machine_file_of_a_device_has_its_figures(
        self, measured: Machine, tmp_path: Path
    ) -> None:
        done("machine", "--device", "opencl:0", "-o", tmp_path / "d.toml")
        assert read(tmp_path / "d.toml").machine == measured


def test_an_architecture_is_assumed() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA: cuda-bindings is not installed")
    shown = done("machine", "--device", "cuda:sm_80", "--wide")
    assert re.search(r"FMA peak of one core, f32 +\S+ GFLOP/s \(assumed\)", shown)
    assert error_of("machine", "--device", "cuda:sm_80", "--calibrate") == (
        "polysci: error: cuda:sm_80: an architecture runs nothing; measure a device"
    )
