"""Tensors that stay in the memory of a device from one run of a network to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polysci.numerics import arrays as aligned
from polysci.numerics.arrays import Array
from polysci.runtime.backend import Argument, DeviceLibrary


@dataclass(frozen=True, slots=True)
class ResidentTensors(Mapping[str, Array]):
    """Tensors by their names, and ``arguments``: where they lie in the memory of a device.

    Of a device that shares the host's memory an item is the tensor itself, which may be written to;
    of another one it is a copy of what it holds now, which may not. Runs write to ``arguments``.
    """

    library: DeviceLibrary
    arguments: Mapping[str, Argument]
    arrays: Mapping[str, Array]  # the tensors, or arrays of their shapes and types

    @classmethod
    def of(cls, library: DeviceLibrary, values: Mapping[str, Array]) -> ResidentTensors:
        """Copy arrays to the device. Raises MemoryError where it has no room."""
        own = {name: aligned.reserve_copy(value) for name, value in values.items()}
        arguments = {name: library.copy_in(array.dtype.name)(array) for name, array in own.items()}
        if library.copy_out is not None:
            own = {name: np.broadcast_to(x.dtype.type(0), x.shape) for name, x in own.items()}
        return cls(library, arguments, own)

    def __getitem__(self, name: str) -> Array:
        array = self.arrays[name]
        if self.library.copy_out is None:
            return array
        copy: Array = np.empty(array.shape, array.dtype)
        self.library.copy_out(self.arguments[name], copy)
        copy.flags.writeable = False
        return copy

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def write(self, name: str, value: Any) -> None:
        """Replace the elements of a tensor by those of an array of its shape and type."""
        array = self.arrays[name]
        if self.library.write is None:
            array[...] = value
        else:
            self.library.write(
                self.arguments[name], np.broadcast_to(np.asarray(value, array.dtype), array.shape)
            )
