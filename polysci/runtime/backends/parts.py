"""The parts that each kind of device needs: packages, compilers, drivers, and the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from polysci.errors import PolysciError, UnsupportedError
from polysci.runtime.backends import cuda, nvrtc, opencl
from polysci.target.target import Target


@dataclass(frozen=True, slots=True)
class DevicePart:
    """A part by its name, what it is, and how to get it where it is missing.

    ``target`` describes a part that is a device.
    """

    name: str
    detail: str
    remedy: str = ""
    target: Target | None = None

    def __str__(self) -> str:
        return f"{self.detail}: {self.remedy}" if self.remedy else self.detail


def device_parts() -> list[DevicePart]:
    """Return the parts of every kind; behind one that is missing come none of its kind."""
    return [*_present(_opencl_parts), *_present(_cuda_parts)]


def _present(parts: Callable[[], Iterator[DevicePart]]) -> Iterator[DevicePart]:
    """Yield parts up to the first that is missing."""
    for part in parts():
        yield part
        if part.remedy:
            return


def _package(title: str, package: str, install: str) -> DevicePart:
    try:
        return DevicePart(f"{title} package", f"{package} {version(package)}")
    except PackageNotFoundError:
        return DevicePart(f"{title} package", f"no {package}", install)


def _device(target: Target) -> DevicePart:
    detail = f"{target.model_name}, {target.cores} units, {target.isa}"
    return DevicePart(target.backend, detail, target=target)


def _opencl_parts() -> Iterator[DevicePart]:
    """Yield pyopencl, its drivers, and their devices."""
    yield _package("OpenCL", "pyopencl", opencl.INSTALL)
    try:
        devices = opencl.devices()
    except UnsupportedError as error:  # the package does not load
        yield DevicePart("OpenCL package", _fault(error, "OpenCL", opencl.INSTALL), opencl.INSTALL)
        return
    if not devices:
        yield DevicePart("OpenCL driver", "no driver, or no device of one", opencl.DRIVERS)
        return
    platforms = dict.fromkeys(device.platform.name.strip() for device in devices)
    yield DevicePart("OpenCL driver", ", ".join(platforms))
    yield from (_device(opencl.target_of(it, number)) for number, it in enumerate(devices))


def _cuda_parts() -> Iterator[DevicePart]:
    """Yield cuda-bindings, NVRTC, the driver, and its devices."""
    yield _package("CUDA", "cuda-bindings", nvrtc.INSTALL)
    try:
        major, minor = nvrtc.version()
    except UnsupportedError as error:
        yield DevicePart("CUDA compiler", _fault(error, "CUDA", nvrtc.INSTALL), nvrtc.INSTALL)
        return
    yield DevicePart("CUDA compiler", f"NVRTC {major}.{minor}")
    try:
        count = cuda.device_count()
        targets = [cuda.stream_of(number).target(number) for number in range(count)]
    except PolysciError as error:
        yield DevicePart("CUDA driver", _fault(error, "CUDA", cuda.DRIVER), cuda.DRIVER)
        return
    yield DevicePart("CUDA driver", f"libcuda.so.1, {count} device{'s' * (count != 1)}")
    yield from map(_device, targets)


def _fault(error: PolysciError, title: str, remedy: str) -> str:
    """Return what an error says between the name of its kind and the remedy."""
    return str(error).removeprefix(f"{title}: ").removesuffix(remedy).rstrip(":; ")
