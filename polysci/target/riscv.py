"""The extensions of a RISC-V CPU that Linux names, and the length of its vectors."""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import struct
from collections.abc import Callable
from typing import Final

# vsetvli a0, zero, e32, m1, ta, ma: the lanes of a register, none in drafts of the vectors; ret
LANES: Final = struct.pack("<II", 0x0D007557, 0x00008067)
# Documentation/arch/riscv/vector.rst; the call that makes new code visible to all CPUs.
_VECTORS_OF, _STATE, _WITHHELD, _FLUSH = 70, 3, 1, 259


def extensions(isa: str) -> list[str]:
    """Return what the line ``isa`` of cpuinfo names, as ``rv64imafdcv_zicsr_zvl256b``."""
    match = re.fullmatch(r"rv64([a-z]+)((?:_[a-z0-9]+)*)", isa)
    return [*match[1], *match[2].split("_")[1:]] if match else []


def with_vectors(features: list[str], bits: int) -> list[str]:
    """Return the features of a CPU whose registers have ``bits``: ``zvl256b`` for 256 or more.

    Without ``v`` where they have too few: none can be used then.
    """
    lengths = [f"zvl{length}b" for length in (128, 256, 512, 1024) if length <= bits]
    return [*(word for word in features if lengths or word != "v"), *lengths]


def vector_bits() -> int:
    """Ask this CPU, which has vectors, how long they are; 0 where a process cannot use them."""
    ask: Callable[..., int] = ctypes.CDLL(None).prctl
    if ask(_VECTORS_OF) & _STATE == _WITHHELD:
        return 0
    try:
        return 32 * run_code(LANES)
    except OSError:  # no memory for code: every version 1.0 has these
        return 128


def run_code(code: bytes) -> int:
    """Return what machine code without arguments returns. Raises OSError: no memory for code."""
    rights = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    with mmap.mmap(-1, mmap.PAGESIZE, prot=rights) as page:
        page.write(code)
        first = ctypes.c_char.from_buffer(page)
        address = ctypes.addressof(first)
        if platform.machine() == "riscv64":
            call: Callable[..., int] = ctypes.CDLL(None).syscall
            call(_FLUSH, ctypes.c_long(address), ctypes.c_long(address + len(code)), 0)
        result: int = ctypes.CFUNCTYPE(ctypes.c_long)(address)()
        del first  # a page that is referred to cannot be closed
    return result
