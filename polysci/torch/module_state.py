"""What a module computes with, to notice where it changed: weights, buffers and submodules."""

from __future__ import annotations

from operator import is_not
from typing import Any

import torch


class ModuleState:
    """The submodules, parameters and buffers of a module, as they were.

    Changes of elements through ``x.data`` go unnoticed, as PyTorch does not count them.
    """

    def __init__(self, module: Any) -> None:
        owners = [own for part in module.modules()
                  for own in (part._modules, part._parameters, part._buffers)]  # fmt: skip
        self._owners = [own for own in owners if own]
        self._members = [x for own in self._owners for x in own.values()]
        tensors = [x for x in self._members if isinstance(x, torch.Tensor)]
        self._tensors = [x for x in tensors if not x.is_inference()]  # others have no version
        self._versions = self._count()

    def _count(self) -> list[int]:
        """Where each tensor lies, and how often it was changed in place."""
        tensors = self._tensors
        return [*[x._version for x in tensors], *[x.data_ptr() for x in tensors]]

    def has_changed(self) -> bool:
        """Whether anything was replaced, added or changed in place since."""
        members = [x for own in self._owners for x in own.values()]
        return (
            len(members) != len(self._members)
            or any(map(is_not, members, self._members))
            or self._versions != self._count()
        )
