"""Programs of torch.export for the inputs of one call."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree


def capture(
    module: Any, args: tuple[Any, ...], words: Mapping[str, Any], dynamic_shapes: Any = None
) -> Any:
    """The program of a module, for these very sizes unless ``dynamic_shapes`` leaves some free.

    A tensor that is given twice is two inputs, which torch.export would take for one. Marks of
    ``torch._dynamo.mark_dynamic``, which would leave sizes free, do not count.
    """
    known = set[int]()

    def separate(x: Any) -> Any:
        again = id(x) in known
        known.add(id(x))
        return x.detach() if again or _is_marked(x) else x

    args, words = pytree.tree_map_only(torch.Tensor, separate, (args, dict(words)))
    return torch.export.export(_twin(module), args, words, dynamic_shapes=dynamic_shapes)


def _twin(module: Any) -> Any:
    """Another module with the same tensors; the module itself where it cannot be copied.

    While torch.export traces a module, its weights are fake ones, with which no other thread may
    compute.
    """
    own = [x for part in module.modules() for x in pytree.tree_leaves(
        (vars(part), dict(part._parameters), dict(part._buffers))
    )]  # fmt: skip
    memo = {id(x): x for x in own if isinstance(x, torch.Tensor)}
    try:
        return copy.deepcopy(module, memo)
    except Exception:  # of many kinds
        return module


def _is_marked(x: Any) -> bool:
    return type(x) is torch.Tensor and any("dynamic" in name for name in vars(x))
