"""The head of a GGUF file: metadata, and where its tensors lie.

Of the format (docs/gguf.md of ggml) versions 2 and 3 are read, whose numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any, Final

from polysci.errors import PolysciError
from polysci.numerics.arrays import Array

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
ALIGNMENT: Final = 32  # bytes, where metadata says no other
MOST_AXES: Final = 4
LONGEST_LIST: Final = 1024  # elements of a list of metadata that is kept
STRING, LIST = 8, 9
# Types of values by their numbers, as the module struct names them.
NUMBERS: Final[Mapping[int, str]] = MappingProxyType(
    dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?")))
    | {10: "<Q", 11: "<q", 12: "<d"}
)
_NAMES = (
    "F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS "
    "IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0_4_4 Q4_0_4_8 "
    "Q4_0_8_8 TQ1_0 TQ2_0 IQ4_NL_4_4 IQ4_NL_4_8 IQ4_NL_8_8 MXFP4"
)
TENSOR_FORMATS: Final = tuple(_NAMES.split())  # ggml_type by number


class FormatError(PolysciError):
    """Bytes that are not those of a GGUF file."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """The format of a tensor, its shape, neighbours along the last axis, and its first byte."""

    format: str
    shape: tuple[int, ...]
    first: int


@dataclass(frozen=True, slots=True)
class GgufHead:
    """Metadata but for long lists, as those of tokens, and tensors, by name."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]


def read_head(data: Array) -> GgufHead:
    """Return the head of a file's bytes. Raises FormatError for others."""
    cursor = _Cursor(data.data)
    if bytes(data[:4]) != MAGIC:
        raise FormatError(f"it begins with {bytes(data[:4])!r}, not {MAGIC!r}")
    cursor.skip(4)
    if (version := cursor.number("<I")) not in VERSIONS:
        raise FormatError(f"version {version}: expected one of {VERSIONS}")
    tensors, count = cursor.number("<Q"), cursor.number("<Q")
    metadata = dict[str, Any]()
    for _ in range(count):
        name, kind = cursor.text(), cursor.number("<I")
        value = cursor.value(kind)
        if value is not None:
            metadata[name] = value
    entries = dict[str, TensorEntry]()
    for _ in range(tensors):
        name, entry = cursor.text(), cursor.tensor()
        if name in entries:
            raise FormatError(f"two tensors are named {name!r:.80}")
        entries[name] = entry
    step = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(step, int) or step < 1:
        raise FormatError(f"general.alignment {step!r:.40}: expected a whole number from 1")
    first = -(-cursor.place // step) * step
    placed = {
        name: TensorEntry(own.format, own.shape, own.first + first) for name, own in entries.items()
    }
    return GgufHead(metadata, placed)


@dataclass(slots=True)
class _Cursor:
    """A place in a file's bytes that goes forward."""

    data: memoryview
    place: int = field(default=0)

    def skip(self, size: int) -> int:
        """Go over so many bytes, and return where they begin."""
        first = self.place
        if size > len(self.data) - first:
            raise FormatError("it ends within its head")
        self.place += size
        return first

    def number(self, kind: str) -> Any:
        return struct.unpack_from(kind, self.data, self.skip(struct.calcsize(kind)))[0]

    def text(self) -> str:
        size = self.number("<Q")
        first = self.skip(size)
        return bytes(self.data[first : first + size]).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """Return a value; None of a list that is long."""
        if kind == STRING:
            return self.text()
        if kind != LIST:
            return self.number(self._number_kind(kind))
        own, count = self.number("<I"), self.number("<Q")
        if count <= LONGEST_LIST and own != LIST:
            return [self.value(own) for _ in range(count)]
        if own != STRING:
            self.skip(count * struct.calcsize(self._number_kind(own)))
            return None
        for _ in range(count):
            self.skip(self.number("<Q"))
        return None

    def tensor(self) -> TensorEntry:
        axes = self.number("<I")
        if axes > MOST_AXES:
            raise FormatError(f"a tensor of {axes} axes: expected at most {MOST_AXES}")
        shape = tuple(self.number("<Q") for _ in range(axes))
        kind, first = self.number("<I"), self.number("<Q")
        if prod(shape) >= 1 << 60:
            raise FormatError(f"a tensor of shape {list(shape)}")
        known = kind < len(TENSOR_FORMATS)
        return TensorEntry(TENSOR_FORMATS[kind] if known else f"type {kind}", shape[::-1], first)

    @staticmethod
    def _number_kind(kind: int) -> str:
        if kind not in NUMBERS:
            raise FormatError(f"a value of type {kind}")
        return NUMBERS[kind]
