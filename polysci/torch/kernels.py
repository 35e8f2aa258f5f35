"""Compiled problems whose arguments are addresses, and images and weights as they read them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


def layout_of(x: Tensor) -> str:
    """Return where channels are, first (nchw) or last (nhwc): in the tensor, or nearest to it."""
    if is_stored(x, "nchw"):
        return "nchw"
    last = is_stored(x, "nhwc") or (x.shape[1] > 1 and x.stride(1) == 1)
    return "nhwc" if last else "nchw"


def is_stored(x: Tensor, layout: str) -> bool:
    """Tell whether the tensor lies in this layout without gaps."""
    return bool((x if layout == "nchw" else x.movedim(1, -1)).is_contiguous())


def store(x: Tensor, layout: str) -> Tensor:
    """Return the tensor in a layout: itself, or a copy."""
    if layout == "nchw":
        return x.resolve_neg().contiguous()
    return x.resolve_neg().movedim(1, -1).contiguous().movedim(-1, 1)


def strides_in(layout: str, shape: Sequence[Any]) -> tuple[Any, ...]:
    """Return the strides in elements, of (N, C, sizes)."""
    order = [*range(len(shape))] if layout == "nchw" else [0, *range(2, len(shape)), 1]
    strides, step = [1] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * shape[axis]
    return tuple(strides)


def new_images(x: Tensor, shape: Sequence[Any]) -> Tensor:
    """Return images in the layout of x, of its type, on its device, with undefined elements."""
    strides = strides_in(layout_of(x), shape)
    return torch.empty_strided(tuple(shape), strides, dtype=x.dtype, device=x.device)


PRECISIONS: Final = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
MOST: Final = 2048  # calls of other shapes

_lock = RLock()  # one search or build at a time


def _renew_lock() -> None:
    """Make a new lock in a child of fork: another thread may have held the copy."""
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
        """Pack weights of any strides and real type; return them and their address."""
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
        """Reserve a workspace; return it and its address."""
        return _reserve(self._workspace_size)

    def failure(self, status: int) -> PolysciError:
        """Return the error of a call that returned this."""
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
        """Return the call of a key, made now unless another thread has made it meanwhile."""
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


KEPT: Final = 8  # packings of one tensor, for as many shapes of x
_SAMPLE: Final = 4  # elements by which writes are noticed that PyTorch does not count
_BITS: Final = {4: "uint32_t *", 2: "uint16_t *"}
_F32: Final = torch.float32
# (shape, strides, dtype) -> memory of a CPU; torch.empty_strided takes three times as long.
new_strided: Final = torch._C._dynamo.guards._empty_strided_cpu


@dataclass(slots=True, eq=False)
class PackedTensor:
    """Calls that read a tensor's present values, packed; by what decides them but the tensor.

    ``storage`` keeps the address from being used again. ``sample`` are some elements' bits:
    writes through ``.data`` or a NumPy view do not raise the version.
    """

    tensor: Callable[[], Any]
    version: int
    address: int
    strides: tuple[int, ...]
    storage: Any
    read: Callable[[], tuple[int, ...]]
    sample: tuple[int, ...]
    calls: dict[Any, Callable[..., Tensor]]

    def is_current(self, w: Tensor) -> bool:
        """Tell whether the tensor is the same one, and nobody has written to it."""
        return (
            self.tensor() is w
            and self.version == w._version
            and self.address == w.data_ptr()
            and self.strides == w.stride()
            and self.sample == self.read()
        )


_tensors: dict[int, PackedTensor] = {}
_entry_of = _tensors.get


def find_call(w: Tensor, key: Any) -> Any:
    """Return the call of ``keep_call``, unless somebody has written to the tensor since."""
    entry = _entry_of(id(w))
    if (
        entry is None
        or entry.tensor() is not w
        or entry.version != w._version
        or entry.address != w.data_ptr()
        or entry.strides != w.stride()
        or entry.sample != entry.read()
    ):
        return None
    return entry.calls.get(key)


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call on x and a bias: a tensor's shape, strides and type.

    ``prepare`` copies an x that does not lie as the kernel reads it; ``channels`` a bias has.
    """

    prepare: Callable[[Tensor], Tensor] | None
    shape: Sequence[int]
    strides: Sequence[int]
    dtype: torch.dtype
    channels: int


def keep_call(
    kernel: Kernel, w: Tensor, key: Any, result: CallResult
) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return the call for these weights, packed now and kept for this key until they change.

    Tensors made inside ``torch.inference_mode`` have no version: they are packed in each call.
    """
    if not w.is_cpu:
        raise ValueError(f"weight: expected a tensor on cpu as the input, got one on {w.device}")
    if w.is_inference():
        return _bind(kernel, kernel.pack(w), result)
    entry = _tensors.get(id(w))
    if entry is None or not entry.is_current(w):
        entry = _remember(w, kernel.ffi)
    call = _bind(kernel, kernel.pack(w), result)
    if entry.is_current(w):  # nobody wrote to it meanwhile
        if len(entry.calls) >= KEPT:
            entry.calls.clear()
        entry.calls[key] = call
    return call


def _bind(
    kernel: Kernel, packed: tuple[Any, int], result: CallResult
) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return a function with all that it needs at hand: its time adds to that of small layers."""
    new, prepare, shape, strides = new_strided, result.prepare, result.shape, result.strides
    run, take, give, dtype = kernel.run, kernel.idle.pop, kernel.idle.append, result.dtype
    channels = torch.Size((result.channels,))

    def call(x: Tensor, bias: Tensor | None) -> Tensor:
        if prepare is not None:
            x = prepare(x)
        y = new(shape, strides, dtype)
        if bias is not None and not _is_plain(bias, channels):
            bias = _convert(bias, channels, dtype)
        try:
            workspace = take()
        except IndexError:  # more calls are under way than ever before
            workspace = kernel.reserve()
        status = run(
            x.data_ptr(), packed[1], y.data_ptr(), 0 if bias is None else bias.data_ptr(), 0, 0,
            workspace[1],
        )  # fmt: skip
        give(workspace)
        if status:
            raise kernel.failure(status)
        return y

    return call


def _remember(w: Tensor, ffi: Any) -> PackedTensor:
    key, last = id(w), w.numel() - 1

    def forget(_: Any) -> None:
        _tensors.pop(key, None)

    places = [_place(at * last // (_SAMPLE - 1), w.shape, w.stride()) for at in range(_SAMPLE)]
    bits = ffi.cast(_BITS[w.element_size()], w.data_ptr())
    a, b, c, d = places

    def read() -> tuple[int, ...]:
        return bits[a], bits[b], bits[c], bits[d]

    entry = PackedTensor(
        weakref.ref(w, forget), w._version, w.data_ptr(), w.stride(), w.untyped_storage(), read,
        read(), {},
    )  # fmt: skip
    _tensors[key] = entry
    return entry


def _place(element: int, shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the place of the element that has this number row by row."""
    place = 0
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        element, index = divmod(element, size)
        place += index * stride
    return place


def _is_plain(bias: Tensor, channels: Sequence[int]) -> bool:
    """Tell whether kernels can read the bias as it lies."""
    return bool(
        bias.dtype is _F32 and bias.shape == channels and bias.is_contiguous() and bias.is_cpu
    )


def _convert(bias: Tensor, channels: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return the bias in f32. Raises TypeError or ValueError for one that does not fit."""
    if bias.dtype not in (dtype, _F32):
        raise TypeError(f"bias: expected {dtype} as the input, got {bias.dtype}")
    if bias.shape != channels or not bias.is_cpu:
        place = f"{tuple(bias.shape)} on {bias.device}"
        raise ValueError(f"bias: expected shape {tuple(channels)} on cpu, got {place}")
    return bias.detach().float().contiguous()
