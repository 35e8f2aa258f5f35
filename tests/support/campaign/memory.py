"""Memory of a call between guard pages, every byte of it set before: nothing is 0 by chance."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from polysci.measure.operands import Guarded, Side
from polysci.numerics import arrays

UNSET = 0xFF  # every byte of a buffer that nobody wrote: as f32 a NaN


class Memory:
    """The buffers of one call."""

    def __init__(self, side: Side) -> None:
        self.side, self._buffers = side, list[tuple[str, Guarded]]()

    def empty(
        self, name: str, shape: Sequence[int], dtype: np.dtype[Any], align: int = 0
    ) -> np.ndarray[Any, Any]:
        size = prod(shape) * dtype.itemsize
        guarded = Guarded(size, self.side, align or dtype.itemsize)
        guarded.raw[:] = UNSET
        self._buffers.append((name, guarded))
        return guarded.raw.view(dtype).reshape(shape)

    def hold(self, name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A copy that a write to crashes."""
        held = self.empty(name, array.shape, array.dtype)
        held[...] = array
        self._buffers[-1][1].freeze()
        return held

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Packed weights and workspaces lie here too while this lasts."""
        usual = arrays.reserve

        def reserve(
            shape: Sequence[int], page_offset: int | None = None, dtype: Any = arrays.F32
        ) -> np.ndarray[Any, Any]:
            return self.empty("packed weights or workspace", shape, dtype, arrays.ALIGNMENT)

        arrays.reserve = reserve
        try:
            yield
        finally:
            arrays.reserve = usual

    def trespass(self) -> str:
        """What was written outside of a buffer; empty if nothing was."""
        found = ((name, buffer.first_trespass()) for name, buffer in self._buffers)
        return "; ".join(f"{name}: written {where}" for name, where in found if where)
