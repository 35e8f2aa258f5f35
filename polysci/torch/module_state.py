"""What a module computes with, to notice where it changed: weights, buffers and submodules."""

from __future__ import annotations

from itertools import chain
from operator import is_not
from typing import Any

import torch

from polysci.torch.tensor_state import TensorState


class ModuleState:
    """The submodules, parameters, buffers and other tensors of a module, as they were."""

    def __init__(self, module: Any) -> None:
        parts = [*module.modules()]
        owners = [own for part in parts for own in (part._modules, part._parameters, part._buffers)]
        self._values = [own.values() for own in owners if own]
        self._attributes = [
            (vars(part), name) for part in parts for name, x in vars(part).items()
            if isinstance(x, torch.Tensor)
        ]  # fmt: skip
        self._flags, self._training = vars(module), module.training
        self._members = self._list_members()
        self._tensors = TensorState(x for x in self._members if isinstance(x, torch.Tensor))

    def _list_members(self) -> list[Any]:
        others = [own.get(name) for own, name in self._attributes]
        return [*chain.from_iterable(self._values), *others]

    def has_changed(self) -> bool:
        """Whether anything was replaced, added or written to since, or begins to learn."""
        members = self._list_members()
        return (
            self._flags["training"] is not self._training
            or len(members) != len(self._members)
            or any(map(is_not, members, self._members))
            or self._tensors.has_changed()
        )
