"""Element types, precisions (types of input, weights and result), and ways to sum products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from polysci.border.arguments import check_type, describe
from polysci.errors import SpecError
from polysci.numerics.blocks import block_dtype, decode_blocks, encode_blocks
from polysci.text.names import suggest


def array_type(dtype: str) -> np.dtype[Any]:
    """The type of NumPy's arrays that hold elements of a tensor's type: of bf16 its bits."""
    return np.dtype("uint16" if dtype == "bf16" else dtype)


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    NumPy has no bfloat16: ``numpy`` is then the integer type that holds its bits. An element of
    weights may be a ``block`` of several numbers: ``polysci.numerics.blocks`` says of which. Where
    it ``rounds_x``, kernels round the f32 inputs beside it to 8 bits, by blocks as well.
    """

    name: str
    numpy: np.dtype[Any]
    bytes: int
    integer: bool = False
    block: int = 1
    rounds_x: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def stored(self) -> str:
        """The type of buffers of loop IR that hold elements: bits of bf16, bytes of blocks."""
        return "uint8" if self.block > 1 else self.numpy.name


_TYPES = (
    DType("f32", np.dtype("float32"), 4),
    DType("bf16", np.dtype("uint16"), 2),
    DType("f16", np.dtype("float16"), 2),
    DType("s8", np.dtype("int8"), 1, integer=True),
    DType("u8", np.dtype("uint8"), 1, integer=True),
    DType("s32", np.dtype("int32"), 4, integer=True),
)
BLOCKS: Final = (16, 32, 64, 128, 256)  # numbers of k that may share a scale


def _block_types() -> Iterator[DType]:
    """Yield the types of blocks: ``s4x32`` is 32 numbers of 4 bits with a scale.

    Unsigned ones, ``u4x32``, have a zero point as well. ``s4a8x32`` multiplies inputs of 8 bits.
    """
    for bits in (4, 8):
        for sign in "su":
            for block in BLOCKS:
                numpy = block_dtype(bits, block, signed=sign == "s")
                row = DType(f"{sign}{bits}x{block}", numpy, numpy.itemsize, block=block)
                yield row
                yield replace(row, name=f"{sign}{bits}a8x{block}", rounds_x=True)


BLOCK_TYPES: Mapping[str, DType] = MappingProxyType({row.name: row for row in _block_types()})
DTYPES: Mapping[str, DType] = MappingProxyType(
    {row.name: row for row in (*_TYPES, *BLOCK_TYPES.values())}
)
F32 = DTYPES["f32"]


@dataclass(frozen=True, slots=True)
class Precision:
    """The element types of input, weights and result, as benchdnn writes them: ``u8:s8:u8``.

    Floating-point products are summed in f32, integer ones in s32; the bias has the sums' type.
    """

    x: DType
    w: DType
    y: DType

    def __str__(self) -> str:
        names = [self.x.name, self.w.name, self.y.name]
        alike = len(set(names)) == 1 and not self.integer
        return names[0] if alike else ":".join(names)

    @property
    def integer(self) -> bool:
        """Tell whether sums are integers."""
        return self.x.integer

    @property
    def sum(self) -> DType:
        return DTYPES["s32" if self.integer else "f32"]

    @property
    def scaled(self) -> bool:
        """Tell whether sums are scaled to 8-bit results."""
        return self.integer and self.y.bytes == 1

    @property
    def split(self) -> bool:
        """Tell whether y can hold a partial sum, to which a later call adds."""
        return self.y == self.sum


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        str(row): row
        for row in (
            Precision(*(DTYPES[name] for name in names.split()))
            for names in (
                *("f32 f32 f32", "bf16 bf16 bf16", "bf16 bf16 f32", "f16 f16 f16", "f16 f16 f32"),
                *("u8 s8 u8", "u8 s8 s8", "u8 s8 s32", "s8 s8 s8", "s8 s8 u8", "s8 s8 s32"),
            )
        )
    }
)
# Narrow weights of f32 inputs; those of blocks are for products of matrices alone.
WEIGHT_ONLY: Mapping[str, Precision] = MappingProxyType(
    {
        str(row): row
        for row in (Precision(F32, w, F32) for w in (DTYPES["bf16"], *BLOCK_TYPES.values()))
    }
)
ALIASES: Mapping[str, str] = MappingProxyType({"int8": "u8:s8:u8"})
SPELLINGS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("fp32", "float32", "float"), "f32"),
        "bfloat16": "bf16",
        **dict.fromkeys(("fp16", "float16", "half"), "f16"),
    }
)


@cache
def _precisions() -> Mapping[str, Precision]:
    """Return the precisions by all of their names."""
    rows = {f"{row.x}:{row.w}:{row.y}": row for row in PRECISIONS.values()} | dict(WEIGHT_ONLY)
    other = {**ALIASES, **SPELLINGS}
    return {**rows, **PRECISIONS, **{alias: PRECISIONS[full] for alias, full in other.items()}}


def precision_named(name: str) -> Precision:
    """The precision of a name or alias, in any case. Raises SpecError listing those that exist."""
    try:
        return _precisions()[name.lower()]
    except KeyError:
        blocks = "s4, u4, s8 or u8 in blocks of 16 to 256; s4a8x32: inputs of 8 bits"
        narrow = "f32:bf16:f32", f"f32:s4x32:f32 ({blocks})"
        known = ", ".join([*PRECISIONS, *narrow, *(f"{a} ({p})" for a, p in ALIASES.items())])
        hint = suggest(name, [*PRECISIONS, *ALIASES, *SPELLINGS])
        raise SpecError(f"dtype {name!r}: expected one of {known}{hint}") from None


@dataclass(frozen=True, slots=True)
class ComputeType:
    """How a microkernel multiplies; ``bytes`` are those of an element of A and B as it reads them.

    ``vnni_factor`` neighbours along k share a 32-bit lane; ``sum`` is the type that it accumulates.
    ``converts``: the kernel reads x itself and converts it to f32 as it loads it. ``bytes_of_x``:
    it multiplies so many numbers of 8 bits in place of each number of x, 0 that of x.
    """

    name: str
    bytes: int
    vnni_factor: int
    sum: DType
    converts: bool = False
    bytes_of_x: int = 0


COMPUTES: Mapping[str, ComputeType] = MappingProxyType(
    {
        row.name: row
        for row in (
            ComputeType("f32", 4, 1, DTYPES["f32"]),
            ComputeType("f16", 4, 1, DTYPES["f32"], converts=True),
            ComputeType("bf16", 2, 2, DTYPES["f32"]),
            ComputeType("i8", 1, 4, DTYPES["s32"]),
            ComputeType("i16", 2, 2, DTYPES["s32"]),
            ComputeType("a8", 4, 1, DTYPES["f32"], bytes_of_x=1),
            ComputeType("a24", 4, 1, DTYPES["f32"], bytes_of_x=3),
        )
    }
)


def computes(x: str, family: str) -> tuple[str, ...]:
    """Return the ways to multiply inputs of type ``x``; which is fastest depends on the CPU.

    ``a8`` stands for f32 inputs that kernels round to 8 bits, beside weights in blocks, and ``a24``
    for those that they may round to 24 bits: about as exact as sums in f32 are.

    All give the precision's result: sums are f32 or s32. Sums in f16, as AVX512-FP16 has them, are
    no such way: with 11 bits they keep neither the error bound nor integers above 2048. Vectors of
    channels are widened, but for those of groups, which have neighbours along k.
    Stencils read f32 alone, stacked words are of 8-bit numbers.
    """
    if x == "a8":
        return ("a8",) if family == "brgemm" else ()
    if x == "a24":
        return ("f32", "a24") if family == "brgemm" else computes("f32", family)
    if family == "mma" and not DTYPES[x].integer:
        return (x,) if x in ("bf16", "f16") else ()
    if family.startswith("stencil"):
        return ("f32",) if x == "f32" else ()
    if family == "stacked":
        return ("i8",) if DTYPES[x].integer else ()
    if family in ("fma", "mma") and DTYPES[x].integer:
        return ("i8",)
    grouped = family.startswith("grouped")
    if DTYPES[x].integer:
        return ("i8", "i16") if family == "brgemm" or grouped else ("i16",)
    own = x == "bf16" if grouped else x in ("bf16", "f16") and family == "brgemm"
    return (x, "f32") if own else ("f32",)


def to_bf16(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the bits (uint16) of f32 values rounded to bf16, to the nearest, ties to even.

    Raises TypeError for what holds no real numbers.
    """
    try:
        bits = np.asarray(array, np.float32).view(np.uint32)
    except Exception:  # of NumPy, or whatever a caller's own object raises
        raise TypeError(f"array: expected real numbers, got {describe(array)}") from None
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
    quiet = (bits | np.uint32(0x400000)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, quiet, rounded).astype(np.uint16)


def from_bf16(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the f32 values of bf16 bits. Raises TypeError for another dtype than uint16."""
    check_type("bits", bits, np.ndarray, np.generic)
    if bits.dtype != np.uint16:
        raise TypeError(f"bits: expected dtype uint16, got {bits.dtype}")
    values: np.ndarray[Any, Any] = (bits.astype(np.uint32) << 16).view(np.float32)
    return values


def to_stored(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Values in the memory format of a type: rounded to the nearest, integers saturated.

    Blocks are those of the last axis.
    """
    if dtype.block > 1:
        return encode_blocks(array, dtype.numpy)
    if dtype.name == "bf16":
        return to_bf16(array)
    if dtype.integer:
        limits = np.iinfo(dtype.numpy)
        array = np.clip(np.rint(array), limits.min, limits.max)
    stored: np.ndarray[Any, Any] = array.astype(dtype.numpy)
    return stored


def values(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Return the values of an array in the memory format of a type."""
    if dtype.block > 1:
        return decode_blocks(array)
    return from_bf16(array) if dtype.name == "bf16" else array
