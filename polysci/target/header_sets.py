"""The set of hand-written headers that the functions of a C file share."""

from __future__ import annotations

from dataclasses import dataclass

from polysci.numerics.dtypes import COMPUTES, DTYPES
from polysci.target.microkernels import Microkernel


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
    """Return the headers of a kernel for types of x and y; ``packed``: it reads a copy of A."""
    narrow = DTYPES[x].bytes < COMPUTES[kernel.compute].bytes
    return HeaderSet(
        kernel.isa, kernel.compute, x, y,
        packed_copy=not narrow or (packed and kernel.family == "brgemm"),
    )  # fmt: skip
