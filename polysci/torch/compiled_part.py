"""Compiled networks as modules that read and write PyTorch's tensors, and reports on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch

from polysci.errors import UnsupportedError
from polysci.graph.refusals import NodeRefusal
from polysci.network.compiled import Network
from polysci.text.tables import time_text
from polysci.torch.devices import TensorDevice
from polysci.tune.result import cost_text


@dataclass(frozen=True, slots=True)
class PartReport:
    """A part of a module that is one compiled network.

    ``calls`` of ATen's operators became ``stages``; ``error`` is the largest difference from eager
    in f64 on the example inputs, over the largest number or 1, of an output that is nearest to its
    ``bound``; from eager itself where that is a few units of rounding. ``predicted`` seconds are
    those of its layers by the cost model or as measured, None where it has none. ``reason``: why it
    was left to PyTorch after all, of a part without stages because it does not compile.
    ``any_order_cost``: of reproducible sums, the most that one of its layers takes, over its time
    in any order. ``bytes``: what its library holds, weights and the memory of a run.
    """

    calls: int
    stages: int = 0
    error: float = 0.0
    bound: float = 0.0
    predicted: float | None = None
    reason: str = ""
    any_order_cost: float | None = None
    bytes: int = 0

    def __str__(self) -> str:
        if not self.stages:
            return f"{self.calls} calls; left to PyTorch: {self.reason}"
        spent = "" if self.predicted is None else f", layers {time_text(self.predicted)}"
        error = f"error {self.error:.1e} of {self.bound:.1e} allowed"
        cost = "" if self.any_order_cost is None else f", {cost_text(self.any_order_cost)}"
        text = f"{self.calls} calls as {self.stages} stages, {error}{spent}{cost}"
        return f"{text}; left to PyTorch: {self.reason}" if self.reason else text


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """Parts of a module, calls that PyTorch computes, with reasons, and seconds of both, if timed.

    ``reason``: why the module as a whole is left to PyTorch; empty where it is not. ``ranges``: the
    sizes that one library is for, and what it consists of; empty where each has its own. ``held``:
    what those of several sizes hold together.
    """

    parts: tuple[PartReport, ...]
    refused: tuple[NodeRefusal, ...] = ()
    eager_seconds: float | None = None
    own_seconds: float | None = None
    reason: str = ""
    ranges: str = ""
    held: str = ""

    @property
    def bytes(self) -> int:
        """Return how much the libraries of its parts hold."""
        return 0 if self.reason else sum(part.bytes for part in self.parts if not part.reason)

    @property
    def gain(self) -> float | None:
        """Return how many times faster than eager it is, measured on the example inputs."""
        if self.eager_seconds is None or not self.own_seconds:
            return None
        return self.eager_seconds / self.own_seconds

    def __str__(self) -> str:
        lines = [f"compiled: {part}" for part in self.parts]
        if self.ranges:
            lines.append(f"one library for all sizes {self.ranges}")
        if self.held:
            lines.append(self.held)
        lines += [f"PyTorch: {call.op} ({call.node}): {call.reason}" for call in self.refused]
        if self.eager_seconds is not None and self.own_seconds is not None:
            lines.append(
                f"eager {time_text(self.eager_seconds)}, now {time_text(self.own_seconds)}: "
                f"{self.gain:.2f} times as fast"
            )
        if self.reason:
            lines.append(f"left to PyTorch as a whole: {self.reason}")
        return "\n".join(lines)


# Of operators that take places: which argument is the table, which the places, which the axis.
_READERS: Final = MappingProxyType(
    {
        "embedding": (0, 1, None),
        **dict.fromkeys(("index_select", "gather", "scatter", "scatter_add"), (0, 2, 1)),
    }
)
_INDEXED: Final = ("index", "index_put")  # whose places may count from the end
_MOVING: Final = frozenset(
    ("view", "reshape", "flatten", "unsqueeze", "squeeze", "transpose", "permute", "t", "expand",
     "clone", "contiguous", "alias", "detach", "_to_copy", "to")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlaceRange:
    """The numbers from ``low`` to below ``end``."""

    low: int
    end: int

    def check(self, name: str, x: Any) -> None:
        """Raise IndexError for a tensor with other numbers."""
        if not x.numel():
            return
        least, largest = (int(extreme) for extreme in torch.aminmax(x))
        if least < self.low or largest >= self.end:
            wrong = least if least < self.low else largest
            raise IndexError(
                f"{name}: index out of range: expected {self.low} to {self.end - 1}, got {wrong}"
            )


def range_of(node: Any) -> PlaceRange | None:
    """Return the numbers that an integer tensor may hold, by the calls that index with it."""
    if not _is_whole(node):
        return None
    ranges = [*_ranges(node)]
    if not ranges:
        return None
    return PlaceRange(max(row.low for row in ranges), min(row.end for row in ranges))


def _ranges(node: Any) -> Iterator[PlaceRange]:
    for reader in node.users:
        name = getattr(reader.target, "_opname", "")
        if name in _MOVING and reader.args[0] is node:
            if _is_whole(reader):
                yield from _ranges(reader)
        elif name in _INDEXED:
            for axis, places in enumerate(reader.args[1]):
                if places is node:
                    size = reader.args[0].meta["val"].shape[axis]
                    yield PlaceRange(-size, size)
        elif name in _READERS:
            table, places, dim = _READERS[name]
            shape = reader.args[table].meta["val"].shape
            if reader.args[places] is node and shape:
                yield PlaceRange(0, shape[0 if dim is None else reader.args[dim]])


def _is_whole(node: Any) -> bool:
    """Tell whether a node makes a tensor of whole numbers wide enough for places."""
    return getattr(node.meta.get("val"), "dtype", None) in (torch.int32, torch.int64)


_empty_like = torch.empty_like  # so many look-ups less a call
PLAIN = (torch.Tensor, torch.nn.Parameter)  # no subclass that computes otherwise
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True, slots=True)
class PartTensor:
    """An input or output of a part: a dense tensor, whose channels may be its last axis.

    ``indices``: which numbers an input may hold that are places in tables.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    channels_last: bool
    indices: PlaceRange | None = None

    @staticmethod
    def of(node: Any) -> PartTensor:
        """Return the tensor that a node makes; strides that are not dense become contiguous."""
        value = node.meta["val"]
        order = CHANNELS_LAST.get(value.dim())
        last = order is not None and value.is_contiguous(memory_format=order)
        return PartTensor(
            node.name, tuple(value.shape), value.dtype, last and not value.is_contiguous(),
            range_of(node),
        )  # fmt: skip

    @property
    def memory_format(self) -> Any:
        rank = len(self.shape)
        return CHANNELS_LAST[rank] if self.channels_last else torch.contiguous_format

    @property
    def order(self) -> tuple[int, ...]:
        """Return the axes in memory, the outermost first."""
        axes = range(len(self.shape))
        return (0, *axes[2:], 1) if self.channels_last else tuple(axes)

    def dense(self, x: Any, device: TensorDevice) -> Any:
        """Return the tensor itself or a copy, as a network of a device reads it.

        Raises TypeError or ValueError for a tensor of another type, device or shape.
        """
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{self.name}: expected a tensor, got {type(x).__name__}")
        if not device.is_here(x) or x.layout != torch.strided or is_fake(x):
            place = "the CPU" if device.place.type == "cpu" else device.place
            raise TypeError(f"{self.name}: expected a dense tensor on {place}, got {kind_of(x)}")
        if x.shape != self.shape:
            raise ValueError(
                f"{self.name}: expected shape {list(self.shape)}, got {list(x.shape)}; the module "
                "was optimized for the former"
            )
        if x.dtype != self.dtype:
            raise TypeError(f"{self.name}: expected {self.dtype}, got {x.dtype}")
        dense = x.contiguous(memory_format=self.memory_format).resolve_conj().resolve_neg()
        return device.align(dense)


def is_fake(x: Any) -> bool:
    """Tell whether it is a tensor without memory, as tracers use."""
    return isinstance(x, torch._subclasses.FakeTensor)


def kind_of(x: Any) -> str:
    return f"{type(x).__name__} of {x.layout} on {x.device}"


class CompiledPart(torch.nn.Module):  # type: ignore[misc]
    """Runs a network on tensors; several threads may call it at once."""

    def __init__(
        self, network: Network, inputs: Sequence[PartTensor], outputs: Sequence[PartTensor]
    ) -> None:
        super().__init__()
        self.network, self.inputs, self.outputs = network, tuple(inputs), tuple(outputs)
        self._device = TensorDevice.of(network.options.target.backend)
        self._reads = [(port, port.shape, port.dtype, port.memory_format) for port in inputs]
        self._writes = [
            torch.empty(
                port.shape,
                dtype=port.dtype,
                memory_format=port.memory_format,
                device=self._device.place,
            )
            for port in outputs
        ]  # to make others like them: memory that nobody touches
        self._indices = [(at, port.name, port.indices) for at, port in enumerate(inputs)
                         if port.indices]  # fmt: skip
        self._run, self._is_ready = self._device.bind(network.runner), self._device.is_ready

    def __deepcopy__(self, memo: Any) -> CompiledPart:
        """Return another part with the same network, which never changes."""
        return CompiledPart(self.network, self.inputs, self.outputs)

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledPart, (self.network, self.inputs, self.outputs)

    def forward(self, *tensors: Any) -> list[Any]:
        """Compute new tensors from tensors, contiguous or with channels last.

        Raises TypeError, ValueError or IndexError for wrong ones.
        """
        ready = self._is_ready
        read = [
            x if type(x) in PLAIN and x.dtype is dtype and x.shape == shape
            and ready(x) and x.is_contiguous(memory_format=order) and not x.is_neg()
            else port.dense(x, self._device)
            for (port, shape, dtype, order), x in zip(self._reads, tensors, strict=True)
        ]  # fmt: skip
        results = [_empty_like(x) for x in self._writes]
        try:
            places = [x.data_ptr() for x in read + results]
        except RuntimeError:
            raise UnsupportedError(
                "a compiled network reads tensors with memory: it runs in no transform of "
                "torch.func and can be traced by no tool; use the module that it was made of there"
            ) from None
        for at, name, indices in self._indices:
            indices.check(name, read[at])
        self._run(places)
        return results
