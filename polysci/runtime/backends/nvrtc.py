"""CUDA C++ compiled by NVRTC, which needs no driver: binaries, assembly, resources of kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from polysci.errors import BuildError, UnsupportedError
from polysci.runtime.backends.queued import errors_in

INSTALL: Final = "pip install 'polysci[cuda]'"
# Sums are fused where code says so alone, as C's are.
OPTIONS: Final = (
    "-std=c++20", "-fmad=false", "-default-device", "-w", "--ptxas-options=-v"
)  # fmt: skip
FLUSH: Final = "-ftz=true"
_KERNEL: Final = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?:[^\n]*?(?P<shared>\d+) bytes smem)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Resources:
    """Registers of a thread, and memory in bytes, that a kernel takes.

    ``spilled`` is what registers do not hold, loads and stores; ``stack`` the memory of a thread
    with that and its arrays; ``shared`` that of a block.
    """

    kernel: str
    registers: int
    spilled: int
    stack: int
    shared: int

    def __str__(self) -> str:
        return (
            f"{self.kernel}: {self.registers} registers, {self.spilled} bytes spilled, "
            f"{self.stack} bytes of stack, {self.shared} bytes shared"
        )


def parse_resources(log: str) -> tuple[Resources, ...]:
    """Return the resources of all kernels, out of the log of their compilation."""
    return tuple(
        Resources(
            match["kernel"], int(match["registers"]), int(match["stores"]) + int(match["loads"]),
            int(match["stack"]), int(match["shared"] or 0),
        )
        for match in _KERNEL.finditer(log)
    )  # fmt: skip


def import_cuda(name: str) -> Any:
    """Return a module of cuda.bindings. Raises UnsupportedError where it is not installed."""
    try:
        return __import__(f"cuda.bindings.{name}", fromlist=[name])
    except ImportError as error:
        raise UnsupportedError(f"CUDA: {error}: {INSTALL}") from None


def version() -> tuple[int, int]:
    """Return the version of NVRTC. Raises UnsupportedError where it is not installed."""
    nvrtc = import_cuda("nvrtc")
    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError:  # the library is not found
        raise UnsupportedError(f"CUDA: NVRTC is not installed: {INSTALL}") from None
    return int(major), int(minor)


def compile_text(
    text: str, architecture: str, options: Sequence[str], name: str
) -> tuple[bytes, str]:
    """Return the binary of CUDA C++ and the log; of ``compute_80`` it is PTX, of ``sm_80`` code.

    Raises BuildError with the log.
    """
    nvrtc = import_cuda("nvrtc")
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], [])
    words = [word.encode() for word in (f"-arch={architecture}", *options)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
    log = _output(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
    said = log.decode(errors="replace").rstrip("\0 \n")
    if int(status):
        nvrtc.nvrtcDestroyProgram(program)
        said = said or nvrtc.nvrtcGetErrorString(status)[1].decode()
        raise BuildError(f"{architecture}: NVRTC refuses the code: {errors_in(said)}")
    is_code = architecture.startswith("sm_")
    size, get = (
        (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN) if is_code
        else (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    )  # fmt: skip
    binary = _output(size, get, program)
    nvrtc.nvrtcDestroyProgram(program)
    return binary, said


def _output(size: Callable[..., Any], get: Callable[..., Any], program: Any) -> bytes:
    """Return what a program has, by the functions that tell its size and copy it."""
    count = int(size(program)[1])
    memory = bytes(count)
    get(program, memory)
    return memory
