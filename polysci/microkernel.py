"""The registry of microkernels, read from ``microkernels/kernels.def``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from polysci.errors import SpecError, UnsupportedError
from polysci.models import resource

_LINE = re.compile(r"KERNEL\((\w+), (\w+), (\w+), (\d+), (\d+)\)")


@dataclass(frozen=True, slots=True)
class Microkernel:
    """One register tile of one family: ``rows`` x ``cols`` of C held in registers.

    ``family`` is ``brgemm`` (A is broadcast along the columns) or ``depthwise`` (A is a vector
    along them).
    """

    family: str
    isa: str
    dtype: str
    rows: int
    cols: int

    def __str__(self) -> str:
        return f"{self.family}_{self.isa}_{self.dtype}_{self.rows}x{self.cols}"

    @property
    def lanes(self) -> int:
        return lanes(self.isa)

    @property
    def vecs(self) -> int:
        return self.cols // self.lanes


@cache
def lanes(isa: str) -> int:
    """f32 lanes of a vector of an ISA, as its header says."""
    found = re.search(r"PS_LANES = (\d+)", header(f"isa_{isa}"))
    if found is None:
        raise UnsupportedError(f"microkernels/isa_{isa}.h does not define PS_LANES")
    return int(found[1])


@cache
def header(name: str) -> str:
    """C text of ``microkernels/NAME.h``. Raises UnsupportedError where there is none."""
    path = resource("microkernels", f"{name}.h")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnsupportedError(f"no microkernel source {path}: {error.strerror}") from None


@cache
def registry() -> Mapping[str, Microkernel]:
    """Every kernel of kernels.def by name, in the order of the file."""
    kernels: dict[str, Microkernel] = {}
    text = resource("microkernels", "kernels.def").read_text(encoding="utf-8")
    for found in _LINE.finditer(text):
        family, isa, dtype, rows, cols = found.groups()
        kernel = Microkernel(family, isa, dtype, int(rows), int(cols))
        kernels[str(kernel)] = kernel
    return MappingProxyType(kernels)


def find(name: str) -> Microkernel:
    """The kernel called ``name``; SpecError if kernels.def has none."""
    try:
        return registry()[name]
    except KeyError:
        raise SpecError(f"microkernel {name!r} is not in microkernels/kernels.def") from None


def family(name: str, isa: str, dtype: str) -> tuple[Microkernel, ...]:
    """All register tiles of a family on an ISA."""
    return tuple(
        kernel
        for kernel in registry().values()
        if (kernel.family, kernel.isa, kernel.dtype) == (name, isa, dtype)
    )
