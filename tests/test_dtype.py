"""Element types agree with C and NumPy about their sizes."""

import ctypes

import numpy as np
import pytest

from polysci.dtype import DTYPES, F32, DType

C_TYPES = {
    "float": ctypes.c_float,
    "uint16_t": ctypes.c_uint16,
    "int8_t": ctypes.c_int8,
    "uint8_t": ctypes.c_uint8,
    "int32_t": ctypes.c_int32,
}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_sizes_agree(dtype: DType) -> None:
    assert dtype.bytes == dtype.numpy.itemsize == ctypes.sizeof(C_TYPES[dtype.c_type])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_is_found_by_its_text(dtype: DType) -> None:
    assert DTYPES[str(dtype)] is dtype


@pytest.mark.parametrize("name", ["bf16", "s8", "u8"])
def test_vnni_fills_32_bits(name: str) -> None:
    assert DTYPES[name].vnni * DTYPES[name].bytes == 4


def test_f32() -> None:
    assert (F32.numpy, F32.c_type, F32.vnni) == (np.dtype(np.float32), "float", 1)


def test_the_table_is_read_only() -> None:
    with pytest.raises(TypeError):
        DTYPES["f64"] = F32  # type: ignore[index]
