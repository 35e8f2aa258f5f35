"""Element types agree with C and NumPy; precisions are named; bf16 is rounded as IEEE 754 says."""

import ctypes
import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.errors import SpecError
from polysci.numerics.dtypes import (
    ALIASES,
    COMPUTES,
    DTYPES,
    F32,
    PRECISIONS,
    SPELLINGS,
    DType,
    computes,
    from_bf16,
    precision_named,
    to_bf16,
    to_stored,
    values,
)
from polysci.printers.c_values import c_type
from polysci.target import microkernels
from polysci.target.isas import ISAS

C_TYPES = {
    "float": ctypes.c_float,
    "uint16_t": ctypes.c_uint16,
    "int8_t": ctypes.c_int8,
    "uint8_t": ctypes.c_uint8,
    "int32_t": ctypes.c_int32,
}
BITS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("dtype", [it for it in DTYPES.values() if it.block == 1], ids=str)
def test_sizes_agree(dtype: DType) -> None:
    assert dtype.bytes == dtype.numpy.itemsize == ctypes.sizeof(C_TYPES[c_type(dtype.stored)])
    assert dtype.integer == (dtype.name in ("s8", "u8", "s32"))


@pytest.mark.parametrize("dtype", [it for it in DTYPES.values() if it.block == 1], ids=str)
def test_is_found_by_its_text(dtype: DType) -> None:
    assert DTYPES[str(dtype)] is dtype


def test_f32() -> None:
    assert (F32.numpy, F32.stored) == (np.dtype(np.float32), "float32")


def test_the_tables_are_read_only() -> None:
    for table in (DTYPES, PRECISIONS, COMPUTES, ALIASES):
        with pytest.raises(TypeError):
            table["f64"] = F32  # type: ignore[index]


@pytest.mark.parametrize("compute", COMPUTES.values(), ids=lambda row: row.name)
def test_words_fill_32_bits(compute) -> None:
    assert compute.vnni_factor * compute.bytes == 4 == compute.sum.bytes


def test_names_of_precisions() -> None:
    assert list(PRECISIONS) == [
        *("f32", "bf16", "bf16:bf16:f32", "f16", "f16:f16:f32"),
        *("u8:s8:u8", "u8:s8:s8", "u8:s8:s32", "s8:s8:s8", "s8:s8:u8", "s8:s8:s32"),
    ]
    for name, row in PRECISIONS.items():
        assert str(row) == name and precision_named(name) is row
        parts = name.split(":") * (3 if ":" not in name else 1)
        assert [row.x.name, row.w.name, row.y.name] == parts


@pytest.mark.parametrize("row", PRECISIONS.values(), ids=str)
def test_properties_of_precisions(row) -> None:
    assert row.integer == row.x.integer == row.w.integer == row.y.integer
    assert row.sum is DTYPES["s32" if row.integer else "f32"]
    assert row.scaled == (row.y.name in ("u8", "s8"))
    assert row.split == (row.y.name in ("f32", "s32"))


def test_aliases() -> None:
    assert {alias: str(precision_named(alias)) for alias in ALIASES} == {"int8": "u8:s8:u8"}
    assert {name: str(precision_named(name)) for name in SPELLINGS} == SPELLINGS
    assert precision_named("FP32") is precision_named("f32")
    assert precision_named("BF16:bf16:F32") is PRECISIONS["bf16:bf16:f32"]


@pytest.mark.parametrize("name", ["f32", "bf16", "f16"])
def test_the_three_types_are_a_name_as_well(name: str) -> None:
    assert precision_named(f"{name}:{name}:{name}") == precision_named(name)


@pytest.mark.parametrize("name", ["", "f64", "BF-16", "s8", "s8:s8", "u8:u8:u8", "f32 "])
def test_unknown_precisions_are_answered_with_the_known(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        precision_named(name)
    blocks = "s4, u4, s8 or u8 in blocks of 16 to 256; s4a8x32: inputs of 8 bits"
    narrow = "f32:bf16:f32", f"f32:s4x32:f32 ({blocks})"
    known = ", ".join([*PRECISIONS, *narrow])
    expected = f"dtype {name!r}: expected one of {known}, int8 (u8:s8:u8)"
    assert str(caught.value).split("; did you mean")[0] == expected


@pytest.mark.parametrize("family", ["brgemm", "depthwise"])
@pytest.mark.parametrize("x", sorted({row.x.name for row in PRECISIONS.values()}))
def test_some_kernel_multiplies_every_type_on_every_isa(family: str, x: str) -> None:
    """And with sums of the right type, in every way that some instruction set of its chain has."""
    for isa in ISAS.values():
        listed = [way[0].compute for way in microkernels.ways(family, isa.name, x)]
        chain = {kernel.compute for name in isa.chain for kernel in _tiles(family, name)}
        portable = {kernel.compute for kernel in _tiles(family, "portable")}
        possible = computes(x, family)
        assert listed == [c for c in possible if c in (chain & set(possible) or portable)]
        for way in microkernels.ways(family, isa.name, x):
            assert COMPUTES[way[0].compute].sum.integer == DTYPES[x].integer
            assert len({(kernel.isa, kernel.compute) for kernel in way}) == 1
            assert {kernel.isa for kernel in way} <= {*isa.chain, "portable"}


def _tiles(family: str, isa: str) -> list[microkernels.Microkernel]:
    """All register tiles that an instruction set adds to a family."""
    kernels = microkernels.registry().values()
    return [kernel for kernel in kernels if (kernel.family, kernel.isa) == (family, isa)]


def test_bf16_is_multiplied_by_dot_products_or_widened() -> None:
    """By the rounding instruction's instruction set, not the one that only has f32."""
    dot, widened = microkernels.ways("brgemm", "avx512fp16", "bf16")
    assert {str(dot[0]), str(widened[0])} == {
        "brgemm_avx512bf16_bf16_1x16",
        "brgemm_avx512bf16_f32_1x16",
    }
    converting, widened = microkernels.ways("brgemm", "avx512fp16", "f16")
    assert converting[0].compute == "f16" and widened[0].isa == "avx512"


def real(bits: int) -> float:
    """The f32 value of 32 bits."""
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def nearest_bf16(value: float) -> int:
    """By exact arithmetic: of the bf16 below and above, the nearer one, or the even one."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    low = bits >> 16
    if math.isinf(value) or bits & 0xFFFF == 0:
        return low
    exact, down = Fraction(value), Fraction(real(low << 16))
    above = (low + 1) << 16
    up = Fraction(2) ** 128 * (1 if value > 0 else -1) if math.isinf(real(above)) else real(above)
    to_down, to_up = abs(exact - down), abs(Fraction(up) - exact)
    if to_down == to_up:
        return low if low % 2 == 0 else low + 1
    return low if to_down < to_up else low + 1


@given(st.lists(BITS, min_size=1, max_size=20))
def test_bf16_is_the_nearest_or_the_even_one(words: list[int]) -> None:
    array = np.array(words, np.uint32).view(np.float32)
    for value, got in zip(array.tolist(), to_bf16(array).tolist(), strict=True):
        if math.isnan(value):
            assert math.isnan(real(got << 16))
        else:
            assert got == nearest_bf16(value), value


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x3F800000, 0x3F80),
        (0x3F808000, 0x3F80),  # a tie, down to the even one
        (0x3F818000, 0x3F82),  # a tie, up to the even one
        (0x3F808001, 0x3F81),
        (0x80000000, 0x8000),
        (0x7F7FFFFF, 0x7F80),  # beyond the largest: infinite
        (0x7F7F7FFF, 0x7F7F),
        (0xFF800000, 0xFF80),
        (0x00000001, 0x0000),
        (0x00008001, 0x0001),  # a denormal
        (0x7F800001, 0x7FC0),  # NaNs become quiet, never infinite
        (0xFFFFFFFF, 0xFFFF),
    ],
)
def test_bf16_at_the_edges(bits: int, expected: int) -> None:
    assert to_bf16(np.array([bits], np.uint32).view(np.float32)).tolist() == [expected]


def test_bf16_and_back_is_the_same() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    back = to_bf16(from_bf16(bits))
    quiet = np.where(np.isnan(from_bf16(bits)), bits | 0x40, bits)
    assert np.array_equal(back, quiet)


def test_bf16_keeps_shapes_and_takes_other_floats() -> None:
    for array in (np.ones((2, 3, 4)), np.ones((2, 0), np.float16), np.float32(1.0)):
        assert to_bf16(array).shape == np.shape(array) and to_bf16(array).dtype == np.uint16
    strided = np.arange(12, dtype=np.float32).reshape(3, 4).T
    assert np.array_equal(from_bf16(to_bf16(strided)), strided)
    assert from_bf16(to_bf16(strided)).dtype == np.float32


def test_only_bits_are_taken_for_bits() -> None:
    with pytest.raises(TypeError, match="bits: expected dtype uint16, got float32"):
        from_bf16(np.ones(2, np.float32))


@pytest.mark.parametrize("name", ["u8", "s8", "s32"])
def test_whole_numbers_are_rounded_and_saturated(name: str) -> None:
    dtype = DTYPES[name]
    limits = np.iinfo(dtype.numpy)
    given_, expected = [0.5, 1.5, 2.5, 3.49, 1e12, -1e12], [0, 2, 2, 3, limits.max, limits.min]
    got = to_stored(np.array(given_), dtype)
    assert got.dtype == dtype.numpy and got.tolist() == expected


def test_floats_are_stored_rounded() -> None:
    array = np.array([1.0, 1 + 2.0**-9, -3.25], np.float32)
    assert to_stored(array, F32) is not array and np.array_equal(to_stored(array, F32), array)
    assert to_stored(array, DTYPES["f16"]).tolist() == [1.0, 1 + 2.0**-9, -3.25]
    assert values(to_stored(array, DTYPES["bf16"]), DTYPES["bf16"]).tolist() == [1.0, 1.0, -3.25]
    assert values(array, F32) is array
