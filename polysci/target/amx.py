"""AMX, the tile registers of x86: what its row in the table of instruction sets holds."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from polysci.target.isa import Permission, TileRegisters

# Linux lends the tile registers to a process that asks, unless it was told not to: then cpuinfo's
# flags are of no use. Documentation/arch/x86/xstate.rst.
_SYS_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP, _XFEATURE_TILEDATA = 158, 0x1021, 18


def read_components() -> int:
    """The bits of the register sets that the kernel lends; 0 where it cannot be asked."""
    mask = ctypes.c_ulong(0)
    ask: Callable[..., int] = ctypes.CDLL(None).syscall
    refused = ask(_SYS_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP, ctypes.byref(mask))
    return 0 if refused else mask.value


def tiles_granted() -> bool:
    """Whether the kernel lets a process have the tile registers."""
    return bool(read_components() >> _XFEATURE_TILEDATA & 1)


PERMISSION = Permission(
    prefix="amx",
    granted=tiles_granted,
    title="AMX",
    allowed="the kernel grants tiles on request",
    denied="the CPU has tiles, the kernel withholds them: unused",
    remedy="use Linux 5.16 or newer, and allow a guest its tiles",
)
REGISTERS = TileRegisters(
    rows=16,
    sums=4,
    words=16,
    speed=7.5,  # a bf16 peak of 3200 beside 2 * 213 GFLOP/s
    headers=("tiles_amx", "grid_amx", "brgemm_amx"),
    probe="probe_amx",
    state="tiles",
    configure="ps_tiles_configure",
    release="ps_tiles_release",
)
