"""Element types: how C, NumPy and the vector units see each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One element type; ``vnni`` consecutive values along k share a 32-bit lane.

    NumPy has no bfloat16: ``numpy`` is then the integer type that holds its bits.
    """

    name: str
    c_type: str
    numpy: np.dtype[Any]
    bytes: int
    vnni: int = 1

    def __str__(self) -> str:
        return self.name


_ROWS = (
    DType("f32", "float", np.dtype("float32"), 4),
    DType("bf16", "uint16_t", np.dtype("uint16"), 2, vnni=2),
    DType("s8", "int8_t", np.dtype("int8"), 1, vnni=4),
    DType("u8", "uint8_t", np.dtype("uint8"), 1, vnni=4),
    DType("s32", "int32_t", np.dtype("int32"), 4),
)
DTYPES: Mapping[str, DType] = MappingProxyType({row.name: row for row in _ROWS})
F32 = DTYPES["f32"]
