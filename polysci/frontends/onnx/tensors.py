"""Types and values of a model's tensors while it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from polysci.errors import SpecError
from polysci.graph.graph import Tensor
from polysci.numerics.arrays import Array

MOST_BYTES = 1 << 36  # of one tensor
MOST_DIMS = 16


@dataclass(slots=True)
class TensorTable:
    """Types (``TypeProto``) and values by name; ``opset`` is the version of ONNX's operators.

    ``file_opset`` is that of the file, which may be older than all that are computed.
    """

    onnx: Any
    where: str
    opset: int
    file_opset: int
    types: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)

    def learn(self, name: str, value: Array) -> None:
        """Note a tensor's value, and with it its type."""
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        self.types[name] = self.onnx.helper.make_tensor_type_proto(kind, value.shape)
        self.values[name] = value

    def array(self, tensor: Any) -> Array:
        """Return the value of a tensor of the file."""
        try:
            if any(size < 0 for size in tensor.dims) or prod(tensor.dims) > MOST_BYTES:
                raise ValueError(f"shape {list(tensor.dims)}")
            array: Array = self.onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # onnx has many, for many kinds of damage
            raise SpecError(f"{self.where}: tensor {tensor.name!r:.200}: {error}") from None
        return array

    def tensor(self, name: str) -> Tensor:
        """Return the tensor of a name."""
        return self.tensor_of(name, self.types[name])

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensor(name).shape

    def tensor_of(self, name: str, kind: Any) -> Tensor:
        """Return a type of one shape as a Tensor."""
        shape = tuple(int(dim.dim_value) for dim in kind.tensor_type.shape.dim)
        dtype = self.onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
        self.check(name, shape, dtype)
        return Tensor(name, shape, np.dtype(dtype).name)

    def check(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        """Raise for a shape that no memory holds."""
        bad = len(shape) > MOST_DIMS or any(size < 0 for size in shape)
        if bad or prod(shape) * np.dtype(dtype).itemsize > MOST_BYTES:
            raise SpecError(f"{self.where}: tensor {name!r:.200} has shape {list(shape)}")


def is_fixed(kind: Any) -> bool:
    """Tell whether a type says one shape."""
    shape = kind.tensor_type.shape
    sized = all(dim.HasField("dim_value") for dim in shape.dim)
    return bool(kind.tensor_type.HasField("shape") and sized)
