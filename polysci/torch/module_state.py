"""What a module computes with, to notice where it changed: weights, buffers and submodules."""

from __future__ import annotations

from operator import is_not
from typing import Any, Final

import torch

SAMPLE: Final = 4  # elements by which writes are noticed that PyTorch does not count


class ModuleState:
    """The submodules, parameters, buffers and other tensors of a module, as they were.

    Writes that PyTorch does not count, through ``x.data`` or to tensors of inference mode, are
    noticed if they change the first or last element of a tensor or one of two between.
    """

    def __init__(self, module: Any) -> None:
        parts = [*module.modules()]
        owners = [own for part in parts for own in (part._modules, part._parameters, part._buffers)]
        self._owners = [own for own in owners if own]
        self._attributes = [
            (vars(part), name) for part in parts for name, x in vars(part).items()
            if isinstance(x, torch.Tensor)
        ]  # fmt: skip
        self._flags, self._training = vars(module), module.training
        self._members = self._list_members()
        self._tensors = [x for x in self._members if isinstance(x, torch.Tensor)]
        self._counted = [x for x in self._tensors if not x.is_inference()]  # others have no version
        self._samples = [sample for x in self._tensors for sample in _sample(x)]
        self._versions = self._count()

    def _list_members(self) -> list[Any]:
        others = [own.get(name) for own, name in self._attributes]
        return [x for own in self._owners for x in own.values()] + others

    def _count(self) -> list[Any]:
        """Where each tensor lies, how often it was changed in place, and some of its elements."""
        return [
            *[x._version for x in self._counted], *[x.data_ptr() for x in self._tensors],
            *[x.tobytes() for x in self._samples],
        ]  # fmt: skip

    def has_changed(self) -> bool:
        """Whether anything was replaced, added or written to since, or begins to learn."""
        members = self._list_members()
        return (
            self._flags["training"] is not self._training
            or len(members) != len(self._members)
            or any(map(is_not, members, self._members))
            or self._versions != self._count()
        )


def _sample(x: Any) -> list[Any]:
    """Bits of ``SAMPLE`` elements, where they lie; of tensors in one piece of a CPU's memory."""
    dense = x.layout == torch.strided and torch.ops.aten.is_non_overlapping_and_dense(x)
    if not (dense and x.is_cpu and x.numel() and type(x) in (torch.Tensor, torch.nn.Parameter)):
        return []
    step = max(1, (x.numel() - 1) // (SAMPLE - 1))
    count = min(SAMPLE, (x.numel() - 1) // step + 1)
    own = x.detach().as_strided((count, 1), (step, 1))
    return [own.view(torch.uint8).numpy()]
