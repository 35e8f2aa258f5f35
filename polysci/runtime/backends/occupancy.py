"""How many blocks a multiprocessor of an NVIDIA architecture holds at a time.

Limits are those of the CUDA C++ Programming Guide, technical specifications and throughput of
instructions by compute capability; registers and shared memory are given out in the units of the
occupancy calculator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

WARP: Final = 32
REGISTERS: Final = 65536  # of a multiprocessor, 32 bits each
REGISTER_UNIT: Final = 256  # registers that a warp takes are a multiple of it
PARTITIONS: Final = 4  # of the registers; warps are spread over them evenly
RESERVED: Final = 1024  # bytes of shared memory that a block takes beside its own, from sm_80 on
SHARED_UNIT: Final = 256  # bytes; 128 from sm_80 on, which RESERVED outweighs


@dataclass(frozen=True, slots=True)
class UnitLimits:
    """Warps and blocks that a multiprocessor holds at most, and its shared memory in bytes.

    ``lanes``: its multiplications of f32 a clock.
    """

    warps: int
    blocks: int
    shared: int
    lanes: int

    def blocks_at_a_time(self, threads: int, registers: int, shared: int) -> int:
        """Return the blocks held of so many threads; registers are those of one thread."""
        warps = -(-threads // WARP)
        own = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        by_registers = REGISTERS // own // PARTITIONS * PARTITIONS // warps
        taken = -(-shared // SHARED_UNIT) * SHARED_UNIT + RESERVED
        return min(self.warps // warps, self.blocks, by_registers, self.shared // taken)


_LIMITS: Mapping[int, UnitLimits] = MappingProxyType({
    75: UnitLimits(32, 16, 64 << 10, 64),
    80: UnitLimits(64, 32, 164 << 10, 64),
    86: UnitLimits(48, 16, 100 << 10, 128),
    89: UnitLimits(48, 24, 100 << 10, 128),
    90: UnitLimits(64, 32, 228 << 10, 128),
})  # fmt: skip


def limits_of(architecture: str) -> UnitLimits:
    """Return the limits of an architecture, as ``sm_80``; of one not listed, the next older's."""
    number = int(architecture.removeprefix("sm_"))
    known = [it for it in _LIMITS if it <= number] or [min(_LIMITS)]
    return _LIMITS[max(known)]
