"""The inputs of a model: free dimensions get a size, and inputs that are bound a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from shlex import quote
from typing import Any

import numpy as np

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.onnx.model_file import NEWEST, ModelSource, onnx_module, read
from polysci.frontends.onnx.tensors import TensorTable
from polysci.numerics.arrays import Array

_FLOAT, _FLOAT16 = 1, 10  # numbers of element types
NO_NAME = "?"  # Paddle calls all of its free dimensions so
SIDE, WORDS = 224, 128  # sizes that examples give to images and texts


@dataclass(frozen=True, slots=True)
class FreeDimension:
    """The place of a dimension that has no size, and a usual size for it."""

    place: str
    example: int

    def option(self, name: str) -> str:
        """Return the option of the command line that binds it."""
        return f"--dim {quote(f'{name}={self.example}')}"


@dataclass(slots=True)
class InputBinder:
    """Binds ``dims`` by name or as ``INPUT.AXIS``, and ``values`` by the name of an input."""

    table: TensorTable
    dims: Mapping[str, int]
    values: Mapping[str, Any]
    used: set[str] = field(default_factory=set)  # names of ``dims``
    free: dict[str, FreeDimension] = field(default_factory=dict)  # by name, of no size

    def bind(self, graph: Any) -> None:
        """Learn the type of every input of ``graph`` that is no weight. Raise for what is free."""
        where = self.table.where
        for name, size in self.dims.items():
            if not isinstance(size, int) or not 0 < size < 1 << 31:
                raise SpecError(f"{where}: dimension {name}={size}: expected 1 to 2^31 - 1")
        inputs = [tensor for tensor in graph.input if tensor.name not in self.table.values]
        self._check_values(inputs)
        for tensor in inputs:
            kind = self._type_of(tensor)
            if tensor.name in self.values:
                self.table.learn(tensor.name, self._value(tensor.name, kind))
            else:
                self._bind_all(tensor.name, kind)
                self.table.types[tensor.name] = kind
        if unused := [name for name in self.dims if name not in self.used]:
            raise SpecError(
                f"{where}: dimension {unused[0]!r:.200}: no input has a free one of that name"
            )
        if self.free:
            lines = [
                f"{dim.place} ({name!r:.200}) is free; bind it, as in {dim.option(name)}"
                for name, dim in self.free.items()
            ]
            options = " ".join(dim.option(name) for name, dim in self.free.items())
            lines += [f"all at once: {options}"] if len(lines) > 1 else []
            raise SpecError(f"{where}: " + "\n  ".join(lines))

    def _check_values(self, inputs: list[Any]) -> None:
        names = [tensor.name for tensor in inputs]
        if unknown := [name for name in self.values if name not in names]:
            raise SpecError(
                f"{self.table.where}: value of {unknown[0]!r:.200}: no input has that name; "
                f"expected one of {', '.join(names)!r:.300}"
            )

    def _type_of(self, proto: Any) -> Any:
        """Copy an input's type. Raises UnsupportedError for what is no tensor."""
        kind = self.table.onnx.TypeProto()
        kind.CopyFrom(proto.type)
        tensor = kind.HasField("tensor_type")
        if not tensor or not (kind.tensor_type.HasField("shape") or proto.name in self.values):
            raise UnsupportedError(
                f"{self.table.where}: input {proto.name!r:.200} is no tensor of known rank"
            )
        return kind

    def _bind_all(self, name: str, kind: Any) -> None:
        """Give free dimensions their size, or note them."""
        names = [dim.dim_param for dim in kind.tensor_type.shape.dim]
        for axis, dim in enumerate(kind.tensor_type.shape.dim):
            if not _is_free(dim):
                continue
            if (size := self._size(name, axis, dim)) is None:
                own = dim.dim_param not in ("", NO_NAME) and names.count(dim.dim_param) == 1
                label = dim.dim_param if own else f"{name}.{axis}"
                place = f"input {name!r:.200}: dimension {axis}"
                size_like = _example(kind.tensor_type, axis)
                self.free.setdefault(label, FreeDimension(place, size_like))
            dim.dim_value = size or 1

    def _size(self, name: str, axis: int, dim: Any) -> int | None:
        """Return what a free dimension is bound to; its own place counts more than a name."""
        for label in (f"{name}.{axis}", dim.dim_param):
            if label and label in self.dims:
                self.used |= {label, *({dim.dim_param} & self.dims.keys())}
                return self.dims[label]
        return None

    def _value(self, name: str, kind: Any) -> Array:
        """Return the value of an input, of its type and shape."""
        onnx, bound = self.table.onnx, np.asarray(self.values[name])
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
        if bound.dtype.kind not in "biuf" or np.dtype(dtype).kind not in "biuf":
            raise self._fault(name, f"{self.values[name]!r:.80} is no number of type {dtype}")
        with np.errstate(all="ignore"):
            value = bound.astype(dtype)
        if value.dtype.kind != "f" and not np.array_equal(value, bound):
            raise self._fault(name, f"{self.values[name]!r:.80} is no {dtype}")
        shape = self._shape(name, kind, value)
        if value.size != prod(shape) and value.ndim:
            raise self._fault(name, f"{value.size} numbers for the shape {list(shape)}")
        self.table.check(name, shape, value.dtype)
        return value.reshape(shape) if value.ndim else np.broadcast_to(value, shape)

    def _shape(self, name: str, kind: Any, value: Array) -> tuple[int, ...]:
        """Return the shape of the input; where free dimensions are not bound, that of the value."""
        dims = kind.tensor_type.shape.dim
        if not kind.tensor_type.HasField("shape"):
            return value.shape
        sizes = [
            self._size(name, axis, dim) if _is_free(dim) else dim.dim_value
            for axis, dim in enumerate(dims)
        ]
        if None in sizes and len(sizes) == value.ndim:
            sizes = [
                actual if size is None else size
                for size, actual in zip(sizes, value.shape, strict=True)
            ]
        if None in sizes:
            raise self._fault(name, f"its shape {value.shape} has not the rank {len(sizes)}")
        return tuple(size for size in sizes if size is not None)

    def _fault(self, name: str, reason: str) -> SpecError:
        return SpecError(f"{self.table.where}: value of {name!r:.200}: {reason}")


def bound_inputs(
    model: ModelSource, dims: Mapping[str, int], values: Mapping[str, Any]
) -> dict[str, Array]:
    """Return the inputs that ``values`` binds as arrays of the model's types and shapes."""
    table = TensorTable(onnx_module(), str(model)[:200], NEWEST, NEWEST)
    graph = read(model, external=True).graph
    InputBinder(table, dims, values).bind(graph)
    return {name: table.values[name] for name in values}


def _example(tensor: Any, axis: int) -> int:
    """Return an example size of a free dimension: one image or text, of a usual size."""
    rank, real = len(tensor.shape.dim), tensor.elem_type in (_FLOAT, _FLOAT16)
    if axis == 0 or rank not in (2, 4) or (rank == 2 and real):
        return 1
    return SIDE if rank == 4 else WORDS


def _is_free(dim: Any) -> bool:
    """Tell whether the model leaves the size open: it has a name, -1, or nothing."""
    return not dim.HasField("dim_value") or dim.dim_value < 0
