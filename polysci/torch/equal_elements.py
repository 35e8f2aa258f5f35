"""Operators that order elements, and leave open which of equal ones comes first: here the first.

Networks take that one. PyTorch takes any, another one in each instruction set: what is computed of
a permutation of experts' tokens may then differ in every row, and both are right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

aten = torch.ops.aten
Operators = Mapping[Any, Callable[..., Any]]  # by what they take the place of


def _sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    return torch.sort(x, dim=dim, descending=descending, stable=True)


def _stable_sort(
    x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    return _sort(x, dim, descending)


def _argsort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    return _sort(x, dim, descending)[1]


def _top(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:  # noqa: A002
    if not x.dim():
        return aten.topk.default(x, k, dim, largest, sorted)
    return tuple(part.narrow(dim, 0, k).contiguous() for part in _sort(x, dim, largest))


FIRST_OF_EQUAL: Final[Operators] = MappingProxyType(
    {
        aten.sort.default: _sort,
        aten.sort.stable: _stable_sort,
        aten.argsort.default: _argsort,
        aten.topk.default: _top,
    }
)
AS_PYTORCH: Final[Operators] = MappingProxyType({})
