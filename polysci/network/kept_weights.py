"""The weights of a network in the cache: where they lie in constants of its graph, or their bytes.

The key of an entry stands for the graph with its constants. So an entry need not hold what lies in
their memory, in whatever order, nor what is rounded from it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from polysci.lower.weights_file import WeightsFile, WeightsPart, convert, pieces_of
from polysci.numerics.arrays import Array, reserve_copy, round_up

MOST_BYTES: Final = 1 << 25  # of weights that lie in no constant


@dataclass(frozen=True, slots=True)
class ConstantPart:
    """Elements of a constant that are an array of the weights; ``offset``, ``strides``: bytes.

    ``flushed`` and ``dtype`` are as ``WeightsPart`` has them.
    """

    constant: str
    offset: int
    shape: Sequence[int]
    strides: Sequence[int]
    flushed: bool
    dtype: str

    def read(self, constants: Mapping[str, Array]) -> Array:
        """Return the array. Raises KeyError or ValueError for other constants."""
        held = constants[self.constant]
        if not held.flags.c_contiguous:
            raise ValueError(f"{self.constant}: its elements are in another order")
        source = np.ndarray(self.shape, held.dtype, held, self.offset, self.strides)
        return convert(source, self.flushed, self.dtype)


class ConstantMemory:
    """Constants by their addresses."""

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self._constants = sorted(
            (array.__array_interface__["data"][0], name, array)
            for name, array in constants.items() if array.nbytes and array.flags.c_contiguous
        )  # fmt: skip
        self._starts = [start for start, *_ in self._constants]

    def find(self, part: WeightsPart) -> ConstantPart | None:
        """Return where the source of a part lies, if it does in a constant of its type."""
        source = part.source
        first, end = _bounds(source)
        at = bisect_right(self._starts, first) - 1
        if at < 0:
            return None
        start, name, held = self._constants[at]
        if end > start + held.nbytes or source.dtype != held.dtype:
            return None
        offset = source.__array_interface__["data"][0] - start
        return ConstantPart(name, offset, source.shape, source.strides, part.flushed, part.dtype)


def _bounds(array: Array) -> tuple[int, int]:
    """Return the addresses of an array's first byte and behind its last one, whatever its order."""
    steps = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
    start: int = array.__array_interface__["data"][0]
    before, behind = sum(min(0, it) for it in steps), sum(max(0, it) for it in steps)
    return start + before, start + behind + array.itemsize


def describe_weights(
    file: WeightsFile, constants: Mapping[str, Array]
) -> tuple[list[Any], bytes] | None:
    """Return the parts of weights as JSON has them, and the bytes of those in no constant.

    Each is a ``ConstantPart``, or its size in bytes. None where there are too many bytes.
    """
    memory, parts, others = ConstantMemory(constants), list[Any](), bytearray()
    for part in file.parts:
        if place := memory.find(part):
            parts.append(asdict(place))
            continue
        if len(others) + part.array.nbytes > MOST_BYTES:
            return None
        flat = np.ascontiguousarray(part.array).reshape(-1).view(np.uint8).data
        parts.append(flat.nbytes)
        others += b"".join(pieces_of(flat))
    return parts, bytes(others)


def read_weights(
    parts: Sequence[Any], others: bytes, constants: Mapping[str, Array]
) -> list[Array]:
    """Return the arrays that ``describe_weights`` told of, contiguous.

    Raises KeyError, TypeError or ValueError for parts that do not fit the constants.
    """
    arrays, at = list[Array](), 0
    for part in parts:
        if isinstance(part, int):
            arrays.append(np.frombuffer(others, np.uint8, part, at))
            at += round_up(part)
        else:
            array = ConstantPart(**part).read(constants)
            arrays.append(array if array.flags.c_contiguous else reserve_copy(array))
    return arrays
