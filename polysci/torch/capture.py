"""Programs of torch.export for the inputs of one call."""

from __future__ import annotations

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
    return torch.export.export(module, args, words, dynamic_shapes=dynamic_shapes)


def _is_marked(x: Any) -> bool:
    return type(x) is torch.Tensor and any("dynamic" in name for name in vars(x))
