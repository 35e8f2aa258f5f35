"""The contents of a pickled optimized module: the module itself, and its compiled networks."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from polysci.frontends.pytorch.program import read_file
from polysci.torch.variants import capture


@dataclass(frozen=True, slots=True)
class StoredModule:
    """A module to be pickled; one that torch.export made goes as its program."""

    module: Any
    examples: tuple[Any, ...]
    free: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> StoredModule:
        values = copy.deepcopy((self.module, self.examples, self.free), memo)
        return StoredModule(*values)

    def __reduce__(self) -> tuple[Any, ...]:
        if not isinstance(self.module, torch.fx.GraphModule):
            return StoredModule, (self.module, self.examples, self.free)
        (args, kwargs), file = self.examples, io.BytesIO()
        exported = capture(self.module, args, kwargs, self.free)
        torch.export.save(exported, file)
        return _restore_module, (file.getvalue(), self.examples, self.free)


def _restore_module(program: bytes, examples: tuple[Any, ...], free: Any) -> StoredModule:
    return StoredModule(read_file(torch, io.BytesIO(program)).module(), examples, free)


@dataclass(frozen=True, slots=True)
class StoredVariants:
    """Compiled networks to be pickled, all at once, before the module that they are of.

    Picklers of processes move a module's tensors to shared memory, while networks still read their
    constants where these lay.
    """

    variants: Mapping[Any, Any]

    def __deepcopy__(self, memo: dict[int, Any]) -> StoredVariants:
        return StoredVariants(copy.deepcopy(self.variants, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_variants, (pickle.dumps(self.variants),)


def _restore_variants(data: bytes) -> StoredVariants:
    return StoredVariants(pickle.loads(data))
