"""The state of a module, to notice changes: weights, buffers and submodules."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import is_not, itemgetter
from typing import Any, Final

import torch

from polysci.torch.tensor_state import TensorState

_OWNERS: Final = ("_modules", "_parameters", "_buffers")
_training: Final = itemgetter("training")


class ModuleState:
    """The submodules, parameters, buffers and other tensors of a module, as they were."""

    def __init__(self, module: Any) -> None:
        parts = [*module.modules()]
        owners = [own for part in parts for own in (part._modules, part._parameters, part._buffers)]
        self._values = [own.values() for own in owners if own]
        self._attributes = [
            (vars(part), name) for part in parts for name, x in vars(part).items()
            if name not in _OWNERS and any(isinstance(leaf, torch.Tensor) for leaf in _leaves(x))
        ]  # fmt: skip
        self._flags = [vars(part) for part in parts]
        self._training = [*map(_training, self._flags)]
        self._members = self._list_members()
        self._tensors = TensorState(x for x in self._members if isinstance(x, torch.Tensor))

    def _list_members(self) -> list[Any]:
        others = [leaf for own, name in self._attributes for leaf in _leaves(own.get(name))]
        return [*chain.from_iterable(self._values), *others]

    def has_changed(self) -> bool:
        """Whether anything was replaced, added or written to since, or begins to learn."""
        members = self._list_members()
        return (
            self._training != [*map(_training, self._flags)]
            or len(members) != len(self._members)
            or any(map(is_not, members, self._members))
            or self._tensors.has_changed()
        )


def _leaves(value: Any) -> Iterator[Any]:
    """A value, or those in lists, tuples and dictionaries of it."""
    if not isinstance(value, list | tuple | dict):
        yield value
        return
    for part in value.values() if isinstance(value, dict) else value:
        yield from _leaves(part)
