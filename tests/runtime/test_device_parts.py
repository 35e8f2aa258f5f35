"""What devices need, and what is said where it is missing: one line each, and no error."""

import sys
from importlib.util import find_spec

import pytest

from polysci.runtime.backends import cuda, opencl, parts
from polysci.runtime.backends.parts import DevicePart, device_parts
from tests.support.command import done
from tests.support.cuda_driver import with_driver


def by_name() -> dict[str, DevicePart]:
    return {part.name: part for part in device_parts()}


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(package: str) -> str:
        raise parts.PackageNotFoundError(package)

    monkeypatch.setattr(parts, "version", refuse)
    assert by_name() == {
        "OpenCL package": DevicePart("OpenCL package", "no pyopencl", opencl.INSTALL),
        "CUDA package": DevicePart(
            "CUDA package", "no cuda-bindings", "pip install 'polysci[cuda]'"
        ),
    }


def test_packages_that_do_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "version", lambda package: "1.0")
    monkeypatch.setattr(opencl, "devices", opencl.devices.__wrapped__)
    for name in ("pyopencl", "cuda.bindings.nvrtc"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("OpenCL package", "CUDA compiler"):
        assert by_name()[name].remedy and ": " in str(by_name()[name])


def test_a_driver_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyopencl", reason="OpenCL: pyopencl is not installed")
    monkeypatch.setattr(opencl, "devices", lambda: ())
    assert str(by_name()["OpenCL driver"]) == (
        "no driver, or no device of one: install the driver of the device, such as "
        "pocl-opencl-icd for CPUs"
    )


def test_no_driver_of_cuda() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA: cuda-bindings is not installed")
    part = by_name()["CUDA driver"]
    if not part.remedy:
        pytest.skip("CUDA: there is a driver")
    assert part == DevicePart("CUDA driver", "no driver: libcuda.so.1 is missing", cuda.DRIVER)
    told = " ".join(done("machine", "--wide").split())
    assert f"CUDA driver {part}" in told


@pytest.mark.skipif(not find_spec("cuda"), reason="CUDA: cuda-bindings is not installed")
@with_driver
def test_devices_of_a_driver() -> None:
    its = by_name()
    assert str(its["CUDA driver"]) == "libcuda.so.1, 1 device"
    assert str(its["cuda:0"]).startswith("a CPU in place of a GPU (sm_80), 2 units, cuda")
