"""A compiled problem whose arguments are addresses; calls by what decides them."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import RLock
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from polysci.api import compile
from polysci.errors import PolysciError, UnsupportedError
from polysci.numerics import arrays
from polysci.ops.problem import Problem
from polysci.printers.interface import declarations
from polysci.runtime.backend import bind
from polysci.runtime.build.library import load
from polysci.runtime.primitive import Primitive
from polysci.torch import settings

PRECISIONS: Final = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
MOST: Final = 2048  # calls of other shapes

_lock = RLock()  # one search or build at a time


def _renew_lock() -> None:
    """A child of fork may have a copy that another thread held."""
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_renew_lock)


class Kernel:
    """The C function of a primitive, whose arguments are addresses; may run in several threads.

    Nothing is checked: callers pass contiguous memory of the problem's shapes and types. ``idle``
    are workspaces, a lone call's memory: (the memory, its address).
    """

    __slots__ = (
        "_pack", "_packed_size", "_type", "_workspace_size", "ffi", "idle", "primitive", "run"
    )  # fmt: skip

    def __init__(self, primitive: Primitive) -> None:
        source = primitive.source
        text = declarations(primitive.symbol, source.precision, addresses=True)
        library = load(primitive.library.path, text)  # tensors lie in the host's memory
        functions = bind(library, primitive.symbol)
        self.primitive, self.ffi = primitive, library.ffi
        precisions = {name: kind for kind, name in PRECISIONS.items()}
        self._type = precisions[primitive.problem.dtype]
        self.run, self._pack = functions.run, functions.pack
        self._packed_size, self._workspace_size = functions.packed_size, functions.workspace_size
        self.idle: list[tuple[Any, int]] = []

    def pack(self, w: Tensor) -> tuple[Any, int]:
        """Weights in the kernel's order, and where they are. Of any strides and real type."""
        plain = w.detach().resolve_neg().to(self._type).contiguous()
        packed = _reserve(self._packed_size)
        self._pack(plain.data_ptr(), packed[1])
        return packed

    def __call__(self, x: int, w: int, y: int) -> None:
        """Compute y, where w is no constant. Raises PolysciError for what cannot be."""
        try:
            workspace = self.idle.pop()
        except IndexError:  # more calls are under way than ever before
            workspace = self.reserve()
        status = self.run(x, w, y, 0, 0, 0, workspace[1])
        self.idle.append(workspace)
        if status:
            raise self.failure(status)

    def reserve(self) -> tuple[Any, int]:
        """A workspace and its address."""
        return _reserve(self._workspace_size)

    def failure(self, status: int) -> PolysciError:
        """The error of a call that returned this."""
        return PolysciError(f"{self.primitive!r}: {self.primitive.symbol} returned {status}")


def _reserve(size: int) -> tuple[Any, int]:
    memory = arrays.reserve((size,), dtype=np.dtype(np.uint8))
    return memory, memory.ctypes.data


def precision(name: str, x: Tensor) -> str:
    """Return the precision of a tensor. Raises UnsupportedError for a type that has none."""
    if x.dtype not in PRECISIONS:
        known = ", ".join(map(str, PRECISIONS))
        raise UnsupportedError(f"polysci.torch.{name}: input: expected {known}, got {x.dtype}")
    return PRECISIONS[x.dtype]


def check_operands(name: str, x: Tensor, **others: Tensor) -> None:
    """Raise UnsupportedError, TypeError or ValueError for other types of elements or devices."""
    precision(name, x)
    for what, tensor in others.items():
        if tensor.dtype != x.dtype:
            raise TypeError(
                f"polysci.torch.{name}: {what}: expected {x.dtype} as the input, got {tensor.dtype}"
            )
        if tensor.device != x.device:
            raise ValueError(
                f"polysci.torch.{name}: {what}: expected a tensor on {x.device} as the input, got "
                f"one on {tensor.device}"
            )


def compile_kernel(problem: Problem) -> Kernel:
    """Search, build and load by the settings. Raises what ``polysci.compile`` raises."""
    chosen, threads = settings.current(), settings.threads()
    with _lock:
        return Kernel(compile(
            problem, chosen.level, threads, algorithm=chosen.algorithm,
            reproducible=chosen.reproducible,
        ))  # fmt: skip


class Calls:
    """Compiled calls by what decides them, as many as ``MOST``; the oldest are dropped."""

    def __init__(self) -> None:
        self._calls: dict[Any, Any] = {}
        self.get = self._calls.get

    def add(self, key: Any, make: Callable[[], Any]) -> Any:
        """The call of a key, made now unless another thread has made it meanwhile."""
        with _lock:
            call = self._calls.get(key)
            if call is None:
                call = make()
                self.put(key, call)
        return call

    def put(self, key: Any, call: Any) -> None:
        """Keep this call for a key, in the place of any other."""
        with _lock:
            while len(self._calls) >= MOST:
                self._calls.pop(next(iter(self._calls)), None)
            self._calls[key] = call
