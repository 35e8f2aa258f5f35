"""Weights that stay packed while nobody writes to them, and biases as kernels take them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from polysci.torch.kernels import Kernel

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
        """Whether the tensor is the same one, and nobody has written to it."""
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
    """The call that ``keep_call`` was given, unless somebody has written to the tensor since."""
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
    """The call for these weights, packed now and kept for this key while nobody writes to them.

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
    """A function with all that it needs at hand: its time adds to that of small layers."""
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
    """Whether kernels can read the bias as it lies."""
    return bool(
        bias.dtype is _F32 and bias.shape == channels and bias.is_contiguous() and bias.is_cpu
    )


def _convert(bias: Tensor, channels: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The bias in f32. Raises TypeError or ValueError for what is no bias of such results."""
    if bias.dtype not in (dtype, _F32):
        raise TypeError(f"bias: expected {dtype} as the input, got {bias.dtype}")
    if bias.shape != channels or not bias.is_cpu:
        place = f"{tuple(bias.shape)} on {bias.device}"
        raise ValueError(f"bias: expected shape {tuple(channels)} on cpu, got {place}")
    return bias.detach().float().contiguous()
