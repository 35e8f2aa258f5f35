"""Arguments of a compiled primitive; errors name argument, expected and got."""

from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.border.arguments import check_clamp, describe
from polysci.numerics import arrays
from polysci.numerics.dtypes import F32, DType

Array = NDArray[Any]


def check_array(name: str, array: Any, expected: str) -> Array:
    """The memory of an array or of a subclass as NumPy's own class, whatever the subclass says.

    Raises ``TypeError`` for no array, a masked one, or a class that reports another shape or type.
    """
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        kind = f"{type(array).__module__}.{type(array).__qualname__}"
        raise TypeError(f"{name}: expected {expected}, got {kind}")
    if type(array) is np.ndarray:
        return array
    memory: Array = np.ndarray.view(array, np.ndarray)
    if (array.shape, array.dtype) != (memory.shape, memory.dtype):
        raise TypeError(
            f"{name}: expected an array of {memory.shape} {memory.dtype}, as its memory is; "
            f"{type(array).__qualname__} reports {array.shape} {array.dtype}"
        )
    return memory


def view_bits(array: Any, dtype: DType) -> Any:
    """Return the array itself; one of another library's bfloat16 as its bits."""
    if dtype.name == "bf16" and isinstance(array, np.ndarray) and array.dtype.name == "bfloat16":
        return np.ndarray.view(array, np.uint16)
    return array


def check_input(
    name: str, array: Any, shape: tuple[int, ...], axes: str, dtype: DType = F32
) -> Array:
    """Return an array of ``shape`` as C code can read it; a misaligned one is copied.

    Raises ``TypeError`` for no NumPy array, another dtype or byte order, ``ValueError`` for another
    shape (whose ``axes`` are named, as ``N H W C``) or gaps between elements.
    """
    array, kind = view_bits(array, dtype), dtype.numpy.name
    array = check_array(name, array, f"a numpy.ndarray of {kind}")
    if array.dtype != dtype.numpy:
        bits = " (the bits of bf16; polysci.to_bf16 makes them)" if dtype.name == "bf16" else ""
        remedy = "" if bits else f"; use {name}.astype(numpy.{kind})"
        raise TypeError(
            f"{name}: expected dtype {kind} in native byte order ({dtype.numpy.str}){bits}, got "
            f"{array.dtype} ({array.dtype.str}){remedy}"
        )
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape} ({axes}), got {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{name}: expected a C-contiguous array, got strides {array.strides} bytes for shape "
            f"{shape}; use numpy.ascontiguousarray({name})"
        )
    return array if array.flags.aligned else arrays.copy(array)


def check_output(
    name: str, array: Any, shape: tuple[int, ...], axes: str, dtype: DType = F32
) -> Array:
    """Return the memory of an array that may be written to, in its own type.

    Raises as ``check_input`` does, and ``ValueError`` for a read-only array.
    """
    check_input(name, array, shape, axes, dtype)
    memory: Array = np.ndarray.view(array, np.ndarray)
    if not memory.flags.writeable:
        raise ValueError(f"{name}: expected a writable array, got a read-only one")
    return memory


def overlap_error(name: str) -> ValueError:
    """Return the error for an ``out`` that shares memory with the argument ``name``."""
    return ValueError(
        f"out: expected memory apart from {name}, got an overlap; pass another array or no out"
    )


def merge_clamps(clamp: Any, activation: Any) -> tuple[float, float]:
    """Return the bounds of the result that either argument asks for."""
    if activation is not None:
        if clamp is not None:
            raise ValueError("activation: expected either clamp or activation, got both")
        if not isinstance(activation, str) or activation != "relu":
            raise ValueError(f"activation: expected 'relu' or None, got {describe(activation)}")
        return 0.0, inf
    return check_clamp(clamp)
