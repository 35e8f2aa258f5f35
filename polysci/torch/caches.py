"""The caches of keys and values that models of the package `transformers` return.

PyTorch sees an object of an unknown class in them. Here they become containers of their tensors, as
lists and dictionaries are: torch.export can then capture the model, and a compiled one returns the
same kind of object.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils import _pytree as pytree

CLASSES = tuple(  # those that grow by new tensors; the others are written in place
    (f"transformers.{module}", name)
    for module, name in (
        ("cache_utils", "DynamicCache"),
        ("cache_utils", "EncoderDecoderCache"),
        ("cache_utils", "DynamicLayer"),
        ("cache_utils", "DynamicSlidingWindowLayer"),
        ("models.mamba.modeling_mamba", "MambaCache"),
        ("models.mamba2.modeling_mamba2", "Mamba2Cache"),
    )
)


def register_caches() -> None:
    """Register the classes of caches that are imported and that nobody registered yet."""
    for kind in _imported_classes():
        if kind not in pytree.SUPPORTED_NODES:
            pytree.register_pytree_node(
                kind, _flatten, lambda children, kept, kind=kind: _unflatten(kind, children, kept),
                serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
                flatten_with_keys_fn=_flatten_with_keys,
            )  # fmt: skip


def has_cache(inputs: Any) -> bool:
    """Tell whether a cache stands among the inputs of a module, which then writes to it."""
    kinds = tuple(_imported_classes())
    leaves = pytree.tree_leaves(inputs, is_leaf=lambda x: isinstance(x, kinds))
    return any(isinstance(x, kinds) for x in leaves)


def _imported_classes() -> list[type]:
    classes = (getattr(sys.modules.get(module), name, None) for module, name in CLASSES)
    return [kind for kind in classes if kind is not None]


def _flatten(cache: Any) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the attributes with tensors in them, and (their names, the others) as the context."""
    attributes = vars(cache)
    names = [name for name, value in attributes.items() if _holds_tensors(value)]
    others = {name: value for name, value in attributes.items() if name not in names}
    return [attributes[name] for name in names], (tuple(names), others)


def _flatten_with_keys(cache: Any) -> tuple[list[Any], tuple[Any, ...]]:
    children, context = _flatten(cache)
    keys = (pytree.GetAttrKey(name) for name in context[0])
    return list(zip(keys, children, strict=True)), context


def _unflatten(kind: type, children: Any, context: tuple[Any, ...]) -> Any:
    names, others = context
    cache: Any = object.__new__(kind)
    vars(cache).update(others)
    vars(cache).update(zip(names, children, strict=True))
    return cache


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(value))
