"""Values of tensors that a module makes of numbers alone, for the branches that they decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

_MOST: Final = 1 << 12  # elements of a tensor whose values are noted
_COMPARISONS: Final = ("gt", "ge", "lt", "le", "eq", "ne")
# Functions whose results are noted: they make new tensors, or views.
_NOTED: Final = frozenset(
    ("arange", "__getitem__", "any", "all", *_COMPARISONS, *(f"__{it}__" for it in _COMPARISONS))
)
_ASKED: Final = frozenset(("__bool__", "__int__", "__float__", "__index__", "item", "tolist"))
_IN_PLACE: Final = frozenset(
    ("__setitem__", *(f"__i{it}__" for it in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift",
        "rshift",
    )))
)  # fmt: skip
_PLAIN: Final = (int, float, bool, str, slice, type(None), type(Ellipsis), torch.dtype,
                 torch.device, torch.layout)  # fmt: skip


class KnownNumbers(TorchFunctionMode):  # type: ignore[misc]
    """While torch.export traces: ``if positions[0] > 0`` is decided where no input is in it.

    torch.export knows no values of tensors, not even those of ``torch.arange(4)``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known = dict[int, tuple[Any, Any]]()  # by id: the tensor, and one with its values
        self._derived = dict[int, Any]()  # tensors computed of these, which may be views

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in _ASKED and id(args[0]) in self._known:
            return _compute(func, (self._known[id(args[0])][1], *args[1:]), kwargs)
        if self._known and _writes(func, name, kwargs):
            self._forget(args if hasattr(func, "_schema") else args[:1], kwargs)
        result = func(*args, **kwargs)
        if name in _NOTED:
            self._note(func, args, kwargs, result)
        if self._known and any(map(self._is_related, pytree.tree_leaves((args, kwargs)))):
            made = (x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor))
            self._derived |= {id(x): x for x in made}
        return result

    def _is_related(self, x: Any) -> bool:
        return id(x) in self._known or id(x) in self._derived

    def _forget(self, *written: Any) -> None:
        """Forget all values where one of them may lie in a tensor that is written to."""
        if any(map(self._is_related, pytree.tree_leaves(written))):
            self._known.clear()
            self._derived.clear()

    def _note(
        self, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Compute the result from known values, if all that it depends on is known."""
        leaves = pytree.tree_leaves((args, dict(kwargs)))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        plain = all(isinstance(x, (*_PLAIN, torch.Tensor)) for x in leaves)
        if not plain or not isinstance(result, torch.Tensor):
            return
        if any(id(x) not in self._known for x in tensors):
            return
        if not all(isinstance(size, int) for size in result.shape) or result.numel() > _MOST:
            return
        values = pytree.tree_map_only(
            torch.Tensor, lambda x: self._known[id(x)][1], (args, dict(kwargs))
        )
        self._known[id(result)] = (result, _compute(func, *values))


def _compute(func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Call a function with tensors that have memory, of which no trace hears."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return func(*args, **kwargs)


def _writes(func: Any, name: str, kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a function may write to its operands."""
    schema = getattr(func, "_schema", None)
    in_place = name.endswith("_") and not name.endswith("__")
    return bool(
        name in _IN_PLACE or in_place or kwargs.get("out") is not None
        or (schema is not None and schema.is_mutable)
    )  # fmt: skip
