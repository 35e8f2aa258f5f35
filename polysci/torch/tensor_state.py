"""The state of tensors, to notice when somebody replaces or writes to one of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, is_not
from typing import Any, Final

import numpy as np
import torch

SAMPLE: Final = 4  # elements by which writes are noticed that PyTorch does not count
_version: Final = attrgetter("_version")
_address: Final = torch.Tensor.data_ptr
_strides: Final = torch.Tensor.stride


class TensorState:
    """Tensors as they were: the objects, where they lie, what was written to them.

    Writes that PyTorch does not count, through ``x.data``, a NumPy view or to tensors of inference
    mode, are noticed if they change the first or last element of a tensor or one of two between.
    """

    def __init__(self, tensors: Iterable[Any]) -> None:
        self._tensors = [*tensors]
        self._counted = [x for x in self._tensors if not x.is_inference()]  # others have no version
        self._strided = [x for x in self._tensors if x.layout == torch.strided]
        self._kept = [x.untyped_storage() for x in self._strided]
        self._take = _reader([at for x in self._tensors for at in _sample(x)])
        self._counts, self._bits = self._count(), self._take()

    def _count(self) -> list[Any]:
        """How often each was changed in place, and where and how each lies."""
        return [
            *map(_version, self._counted), *map(_address, self._strided),
            *map(_strides, self._strided),
        ]  # fmt: skip

    def is_of(self, tensors: Sequence[Any]) -> bool:
        """Whether these are the tensors, in this order, and hold what they held."""
        return not any(map(is_not, tensors, self._tensors)) and not self.has_changed()

    def has_changed(self) -> bool:
        """Whether any of them was written to or lies elsewhere."""
        return self._counts != self._count() or self._bits != self._take()


def _sample(x: Any) -> list[int]:
    """Addresses of the bytes of ``SAMPLE`` elements, of tensors in one piece of a CPU's memory."""
    dense = x.layout == torch.strided and torch.ops.aten.is_non_overlapping_and_dense(x)
    if not (dense and x.is_cpu and x.numel() and type(x) in (torch.Tensor, torch.nn.Parameter)):
        return []
    last = x.numel() - 1
    elements = {at * last // (SAMPLE - 1) for at in range(SAMPLE)}
    size, start = x.element_size(), x.data_ptr()
    return [start + at * size + byte for at in sorted(elements) for byte in range(size)]


def _reader(addresses: Sequence[int]) -> Callable[[], bytes]:
    """A function that reads bytes of memory: all by one call, as their lines come from far away."""
    if not addresses:
        return bytes
    low = min(addresses)
    span: Any = (ctypes.c_uint8 * (max(addresses) + 1 - low)).from_address(low)
    memory = np.frombuffer(span, np.uint8)  # most of it is not ours, and never read
    places = np.array(addresses) - low
    return lambda: memory.take(places).tobytes()
