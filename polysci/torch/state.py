"""The state of tensors and modules, to notice changes, and the sizes that were compiled."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter, is_not, itemgetter
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
        plain = [part for x in self._tensors for part in plain_tensors(x)]
        self._counted = [x for x in plain if not x.is_inference()]  # others have no version
        self._strided = [x for x in plain if x.layout == torch.strided]
        self._kept = [x.untyped_storage() for x in self._strided]
        self._take = _reader([at for x in plain for at in _sample(x)])
        self._counts, self._bits = self._count(), self._take()

    def _count(self) -> list[Any]:
        """Return how often each was changed in place, and its address and strides."""
        return [
            *map(_version, self._counted), *map(_address, self._strided),
            *map(_strides, self._strided),
        ]  # fmt: skip

    def is_of(self, tensors: Sequence[Any]) -> bool:
        """Tell whether these are the tensors, in this order, and hold what they held."""
        return not any(map(is_not, tensors, self._tensors)) and not self.has_changed()

    def has_changed(self) -> bool:
        """Tell whether any of them was written to or lies elsewhere."""
        return self._counts != self._count() or self._bits != self._take()


def is_wrapper(x: Any) -> bool:
    """Tell whether a tensor holds others, such as the numbers and scales of quantised weights."""
    return hasattr(x, "__tensor_flatten__")


def plain_tensors(x: Any) -> Iterator[Any]:
    """Yield a tensor, or those inside of one that wraps others."""
    if not is_wrapper(x):
        yield x
        return
    for name in x.__tensor_flatten__()[0]:
        yield from plain_tensors(getattr(x, name))


def _sample(x: Any) -> list[int]:
    """Return the addresses of ``SAMPLE`` elements' bytes; none of a tensor with gaps."""
    dense = x.layout == torch.strided and torch.ops.aten.is_non_overlapping_and_dense(x)
    if not (dense and x.is_cpu and x.numel() and type(x) in (torch.Tensor, torch.nn.Parameter)):
        return []
    last = x.numel() - 1
    elements = {at * last // (SAMPLE - 1) for at in range(SAMPLE)}
    size, start = x.element_size(), x.data_ptr()
    return [start + at * size + byte for at in sorted(elements) for byte in range(size)]


def _reader(addresses: Sequence[int]) -> Callable[[], bytes]:
    """Return a function that reads bytes of memory by one call, as their lines are far away."""
    if not addresses:
        return bytes
    low = min(addresses)
    span: Any = (ctypes.c_uint8 * (max(addresses) + 1 - low)).from_address(low)
    memory = np.frombuffer(span, np.uint8)  # most of it is not ours, and never read
    places = np.array(addresses) - low
    return lambda: memory.take(places).tobytes()


_OWNERS: Final = ("_modules", "_parameters", "_buffers")
_training: Final = itemgetter("training")


class ModuleState:
    """The submodules, parameters, buffers and other tensors of a module, as they were."""

    def __init__(self, module: Any) -> None:
        parts = [*module.modules()]
        tables = [getattr(part, name) for part in parts for name in _OWNERS]
        self._values = [table.values() for table in tables if table]
        self._attributes = [
            (vars(part), name) for part in parts for name, x in vars(part).items()
            if name not in _OWNERS and any(isinstance(leaf, torch.Tensor) for leaf in _leaves(x))
        ]  # fmt: skip
        self._flags = [vars(part) for part in parts]
        self._training = [*map(_training, self._flags)]
        self._members = self._list_members()
        self._tensors = TensorState(x for x in self._members if isinstance(x, torch.Tensor))

    def _list_members(self) -> list[Any]:
        others = [leaf for owner, name in self._attributes for leaf in _leaves(owner.get(name))]
        return [*chain.from_iterable(self._values), *others]

    def has_changed(self) -> bool:
        """Tell whether anything was replaced, added or written to since, or begins to learn."""
        members = self._list_members()
        return (
            self._training != [*map(_training, self._flags)]
            or len(members) != len(self._members)
            or any(map(is_not, members, self._members))
            or self._tensors.has_changed()
        )


def _leaves(value: Any) -> Iterator[Any]:
    """Yield a value, or those in lists, tuples and dictionaries of it."""
    if not isinstance(value, list | tuple | dict):
        yield value
        return
    for part in value.values() if isinstance(value, dict) else value:
        yield from _leaves(part)


COUNT: Final = 3  # compiles that differ in one size
_AXIS: Final = ", axis "
_log = logging.getLogger(__name__)
_told = set[str]()  # what was said


class SizeWatch:
    """The compiles of one module or graph, whose inputs have ``names``."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = [*names]
        self._keys = list[Sequence[Any]]()

    def note(self, key: Sequence[Any], seconds: float) -> None:
        """Note a compile for inputs that ``key_of`` or their numbers tell apart, and its time.

        Warns, once in a process, where one size alone made the last ones differ.
        """
        self._keys = [*self._keys, key][-COUNT:]
        places = self._changing() if len(self._keys) == COUNT else {}
        if not places or _told:
            return
        (name, sizes), more = next(iter(places.items())), len(places) - 1
        others = f" (and of {more} more)" if more else ""
        text = (
            f"compiled for size {', '.join(map(str, sizes))} of {name}{others}: each new size is "
            f"compiled anew, the last one in {seconds:.1f} s. Keep the size: a cache of fixed "
            "length, written in place (transformers: cache_implementation='static'), inputs "
            "padded to a few lengths, or polysci.torch.optimize(..., ranges=True)"
        )
        _told.add(text)
        _log.warning("%s", text)

    def _changing(self) -> dict[str, list[int]]:
        """Return the places of the size that changes; none where anything else changes too."""
        places = dict[str, list[Any]]()
        for name, values in zip(self._names, zip(*self._keys, strict=True), strict=True):
            if len({*values}) > 1:
                places |= _differences(name, values)
        whole = all(type(size) is int for sizes in places.values() for size in sizes)
        if not whole or any(len({*sizes}) < COUNT for sizes in places.values()):
            return {}
        steps = {tuple(size - sizes[0] for size in sizes) for sizes in places.values()}
        if len(steps) != 1:
            return {}
        axes = {place: sizes for place, sizes in places.items() if _AXIS in place}
        return axes or places


def _differences(name: str, values: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the sizes of an input that differ, or the values of a number."""
    shapes = [value for value in values if isinstance(value, tuple)]
    if len(shapes) < len(values) or len({len(shape) for shape in shapes}) > 1:
        return {name: [*values]}
    if isinstance(shapes[0][0], type):  # a number: its type, and itself
        return {name: [number for _, number in shapes]}
    return {
        f"{name}{_AXIS}{axis}": [*sizes] for axis, sizes in enumerate(zip(*shapes, strict=True))
        if len({*sizes}) > 1
    }  # fmt: skip
