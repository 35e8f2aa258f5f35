"""What the functions of one C file share: instruction set, element types, way to multiply."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from polysci.errors import UnsupportedError
from polysci.numerics.dtypes import COMPUTES, DTYPES
from polysci.target.isa import Isa
from polysci.target.isas import isa_named
from polysci.target.microkernels import Microkernel, header

_FLAGS = re.compile(r"^/\* compile with: ([-\w=+. ]+) \*/\n#define PS_TARGET", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HeaderSet:
    """The hand-written headers of a C file: ``avx512`` for f32, ``avx512vnni_i8_u8_s8``.

    ``packed_copy``: kernels read a converted copy of x, not x itself; true where both are the same.
    """

    isa: str
    compute: str = "f32"
    x: str = "f32"
    y: str = "f32"
    packed_copy: bool = True

    def __str__(self) -> str:
        if {self.compute, self.x, self.y} == {"f32"}:
            return self.isa
        return "_".join(
            [self.isa, self.compute, self.x, self.y, *([] if self.packed_copy else ["x"])]
        )


def header_set_of(kernel: Microkernel, x: str, y: str, *, packed: bool) -> HeaderSet:
    """The unit of a kernel for these types of x and y; ``packed``: it reads a copy of A."""
    narrow = DTYPES[x].bytes < COMPUTES[kernel.compute].bytes
    return HeaderSet(
        kernel.isa, kernel.compute, x, y,
        packed_copy=not narrow or (packed and kernel.family == "brgemm"),
    )  # fmt: skip


@cache
def headers(unit: HeaderSet) -> str:
    """C text: vector operations, element types, the microkernel, packing."""
    isa, compute = isa_named(unit.isa), COMPUTES[unit.compute]
    kind = "f32" if compute.converts else compute.name
    narrow = {unit.compute, unit.x, unit.y} != {"f32"}
    chain = list(reversed(isa.chain))
    way = "boxed" if unit.packed_copy else "direct"
    names = ["prelude", *(["scalar"] if narrow else []), *(f"isa_{name}" for name in chain)]
    names += [f"narrow_{name}" for name in chain if narrow and _exists(f"narrow_{name}")]
    names += [f"x_{unit.x}", f"y_{unit.y}", f"sum_{compute.sum}"]
    names.append(_first([*(f"dot_{kind}_{name}" for name in isa.chain), f"dot_{kind}"]))
    names.append(_first([f"a_{kind}", f"a_{kind}_{way}"]))
    names += ["brgemm", "sliding", "grouped", _end(unit)]
    stacked = [f"stacked_{name}" for name in isa.chain if compute.name == "i8"]
    names += [name for name in stacked if _exists(name)]
    names += [*(isa.tile_registers.headers if isa.tile_registers else ()), "pack", "panels"]
    names += ["pairs"] * (compute.name == "bf16")
    if not narrow:
        names += [_first([*(f"gaps_{name}" for name in isa.chain), "gaps"]), "swapped", "stencil"]
    texts = [header(name) for name in names]
    return "\n".join([target_lines(isa), *texts])


def target_lines(isa: Isa) -> str:
    """The first lines of C for an instruction set: its compiler flags if any, its attribute.

    The flags stand in the text, so that whatever compiles it reads them there (``flags_in``).
    """
    define = f"#define PS_TARGET {isa.attribute}".rstrip()
    return f"/* compile with: {' '.join(isa.flags)} */\n{define}" if isa.flags else define


def flags_in(text: str) -> tuple[str, ...]:
    """The compiler flags that a C text asks for, those of all its instruction sets."""
    return tuple(dict.fromkeys(flag for line in _FLAGS.findall(text) for flag in line.split()))


def _end(unit: HeaderSet) -> str:
    """The epilogue: of f32 sums, of whole ones, of whole ones scaled to 8 bits."""
    if not COMPUTES[unit.compute].sum.integer:
        return "end_f32"
    return "end_s32" if unit.y == "s32" else "end_scaled"


def _exists(name: str) -> bool:
    try:
        return bool(header(name))
    except UnsupportedError:
        return False


def _first(names: list[str]) -> str:
    """The first header that exists; the last one names the error."""
    return next((name for name in names if _exists(name)), names[-1])
