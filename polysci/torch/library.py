"""The library ``polysci`` of PyTorch's dispatcher, and which calls may go past that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch._C import (
    _autograd,
    _functorch,
    _is_any_autocast_enabled,
    _is_tracing,
    _len_torch_dispatch_stack,
)
from torch.autograd import forward_ad

from polysci.errors import UnsupportedError

LIBRARY: Final = torch.library.Library("polysci", "DEF")
_AUTOCAST: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_is_grad_enabled, _interpreter = torch.is_grad_enabled, _functorch.peek_interpreter_stack
_is_profiled = _autograd._profiler_enabled
_Parameter: Final = torch.nn.Parameter
_STRIDED: Final = torch.strided


def register(
    schema: str, kernel: Callable[..., Any], fake: Callable[..., Any],
    setup: Callable[..., None], backward: Callable[..., Any], narrowed: int | None = None,
    places: Sequence[str] = ("CPU",),
) -> Any:  # fmt: skip
    """Register an operator with a kernel, shapes, gradient and autocast; return the overload.

    The kernel takes tensors in ``places``. Autocast of the CPU casts the first ``narrowed``
    operands, or all of them.
    """
    first, *others = places
    name = define(schema, _without_tangents(kernel), first)
    for place in others:
        LIBRARY.impl(name, _without_tangents(kernel), place)
    torch.library.register_fake(f"polysci::{name}", fake, lib=LIBRARY)
    torch.library.register_autograd(f"polysci::{name}", backward, setup_context=setup, lib=LIBRARY)
    overload = getattr(torch.ops.polysci, name).default
    LIBRARY.impl(name, _with_autocast(overload, narrowed), "AutocastCPU")
    return overload


def define(
    schema: str, kernel: Callable[..., Any], dispatch: str = "CompositeImplicitAutograd"
) -> str:
    """Define an operator, by default an expression of others that have gradients and shapes."""
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    name = schema.partition("(")[0]
    LIBRARY.impl(name, kernel, dispatch)
    return name


def check_tensors(name: str, operands: Mapping[str, Any]) -> None:
    """Raise TypeError for operands that are no tensors."""
    for what, operand in operands.items():
        if not isinstance(operand, Tensor):
            kind = type(operand).__name__
            raise TypeError(f"polysci.torch.{name}: {what}: expected a tensor, got {kind}")


def is_watched() -> bool:
    """Tell whether calls of operators do more than compute: modes, transforms, traces, profiles."""
    return bool(
        _len_torch_dispatch_stack()
        or _interpreter() is not None
        or _is_any_autocast_enabled()
        or _is_tracing()
        or _is_profiled()
        or forward_ad._current_level >= 0
    )


def is_direct(x: Tensor, w: Tensor, bias: Tensor | None) -> bool:
    """Tell whether the dispatcher would only call the CPU kernel: it takes longer than some layers.

    Not for subclasses, other devices and layouts, modes, transforms, traces, profiles, nor
    for gradients.
    """
    kind, weight_kind = type(x), type(w)
    if (
        not (kind is Tensor or kind is _Parameter)
        or not (weight_kind is Tensor or weight_kind is _Parameter)
        or not x.is_cpu
        or not (x.layout is _STRIDED is w.layout)
        or x.is_nested
        or w.is_nested
        or is_watched()
    ):
        return False
    if bias is not None and type(bias) is not _Parameter and type(bias) is not Tensor:
        return False
    return not _is_grad_enabled() or not (
        x.requires_grad or w.requires_grad or (bias is not None and bias.requires_grad)
    )


def _without_tangents(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse forward mode, where PyTorch would take every tangent for zero."""

    def call(*arguments: Any) -> Any:
        if forward_ad._current_level >= 0:
            raise UnsupportedError("polysci.torch has no gradients in forward mode (jvp)")
        return kernel(*arguments)

    return call


def _with_autocast(overload: Any, narrowed: int | None) -> Callable[..., Any]:
    """Return the operator on operands of autocast's type, f32 ones cast to it."""

    def call(*arguments: Any) -> Any:
        kind = torch.get_autocast_dtype("cpu")
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            narrow = (_cast(argument, kind) for argument in arguments[:narrowed])
            return overload(*narrow, *(() if narrowed is None else arguments[narrowed:]))

    return call


def _cast(value: Any, kind: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(kind) if value.dtype is torch.float32 else value
    if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
        return [_cast(tensor, kind) for tensor in value]
    return value
