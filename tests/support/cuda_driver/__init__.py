"""A driver of CUDA whose device is this CPU, for tests of all that calls the driver.

``driver.cpp`` becomes ``libcuda.so.1``. What NVRTC compiles is also compiled for the CPU, as the
emulation has it, and noted by the checksum of the image that the driver will be given. Tests that
need the driver in Python run in one process that was started with it: ``with_driver``.
"""

import ctypes
import importlib
import multiprocessing
import os
import re
import subprocess
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path

from polysci.runtime.backends import nvrtc
from polysci.runtime.build.folder import cache_dir
from tests.support.cuda_emulation import COMPILER, compile_kernels

SOURCE = Path(__file__).with_name("driver.cpp")
FLAGS = ("-std=c++20", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
_KERNEL = re.compile(r"__global__[^{;]*?\bvoid (\w+)\(")
_COMPILE = nvrtc.compile_text


@cache
def folder() -> Path:
    """The folder that holds ``libcuda.so.1``, built once."""
    path = cache_dir() / "driver" / "libcuda.so.1"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f"{os.getpid()}.so")
    command = [COMPILER or "g++", *FLAGS, "-Wl,-soname,libcuda.so.1", SOURCE, "-o", aside]
    subprocess.run(command, check=True)
    aside.replace(path)
    return path.parent


def variables(**more: str) -> dict[str, str]:
    """What a program's environment needs to have the driver."""
    code = cache_dir() / "driver"
    return {"LD_LIBRARY_PATH": str(folder()), "CUDA_CODE": str(code), **more}


def checksum(image: bytes) -> str:
    """The name of an image's code, as the driver has it: FNV-1a, of text without its end."""
    total = 14695981039346656037
    for byte in image if image.startswith(b"\x7fELF") else image.rstrip(b"\0"):
        total = (total ^ byte) * 1099511628211 & (1 << 64) - 1
    return f"{total:016x}"


def note(image: bytes, text: str, code: Path | None = None) -> None:
    """Compile CUDA C++ for the CPU, as what the driver runs where it is given an image.

    ``code`` is the folder of CUDA_CODE.
    """
    library = compile_kernels(text, list(dict.fromkeys(_KERNEL.findall(text))))
    link = (code or Path(os.environ.get("CUDA_CODE") or folder())) / f"{checksum(image)}.so"
    aside = link.with_name(f"{link.name}.{os.getpid()}")
    aside.symlink_to(library)
    aside.replace(link)


def note_project(path: Path, text: str | None = None, code: Path | None = None) -> None:
    """Note both images of an exported project; ``text`` stands for that of its kernels.

    ``path`` is that of its files without their endings.
    """
    words = re.findall(r"0x([0-9a-f]{16})", Path(f"{path}_binary.h").read_text())
    binary = b"".join(int(word, 16).to_bytes(8, "little") for word in words)
    size = int.from_bytes(binary[32:40], "little") + 56 * int.from_bytes(binary[56:58], "little")
    strings = Path(f"{path}_kernels.h").read_text().rstrip("\n").split("\n")
    lines = [literal_eval(line.rstrip(",")) for line in strings]
    source = Path(f"{path}.cu").read_text() if text is None else text
    for image in (binary[:size], "".join(lines).encode()):
        note(image, source, code)


def compile_both(
    text: str, architecture: str, options: Sequence[str], name: str
) -> tuple[bytes, str]:
    """What NVRTC returns, noted for the driver."""
    image, log = _COMPILE(text, architecture, options, name)
    note(image, text)
    return image, log


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables of this process and of those that it starts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def calls(function: str) -> int:
    """How often the driver's function was called in this process."""
    return int(ctypes.CDLL("libcuda.so.1").emulated_calls(function.encode()))


def alive() -> tuple[int, int]:
    """The driver's objects of this process, and the bytes of memory that are reserved."""
    driver = ctypes.CDLL("libcuda.so.1")
    return int(driver.emulated_objects()), int(driver.emulated_bytes())


def _begin() -> None:
    """Note all that is compiled; what others compiled before is not noted, and compiled again."""
    own = cache_dir() / "driven"
    own.mkdir(mode=0o700, exist_ok=True)
    os.environ["POLYSCI_CACHE_DIR"] = str(own)
    nvrtc.compile_text = compile_both


@cache
def _process() -> ProcessPoolExecutor:
    with environment(variables()):
        pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin)
        pool.submit(int).result()  # it starts now
    return pool


def _run(module: str, name: str) -> None:
    importlib.import_module(module)
    getattr(sys.modules[module], name).__wrapped__()


def with_driver(test: Callable[[], None]) -> Callable[[], None]:
    """The test, run in a process that has the driver."""

    @wraps(test)
    def run() -> None:
        _process().submit(_run, test.__module__, test.__name__).result()

    return run
