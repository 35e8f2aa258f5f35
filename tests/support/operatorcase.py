"""A single ONNX operator that is drawn at random, as a small model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

FLOATS, INTEGERS = ("float32", "float32", "float64"), ("int32", "int64", "int8", "uint8")


@dataclass(slots=True)
class OperatorCase:
    """One node: inputs that change, weights that do not, attributes."""

    op: str
    random: np.random.Generator
    opset: int
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    words: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1

    def pick(self, *values: Any) -> Any:
        return values[int(self.random.integers(len(values)))]

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.random.random() < share)

    def size(self, low: int = 1, high: int = 5) -> int:
        return int(self.random.integers(low, high + 1))

    def shape(self, low: int = 1, high: int = 4) -> list[int]:
        return [self.size() for _ in range(self.size(low, high))]

    def axis(self, rank: int) -> int:
        return int(self.random.integers(-rank, rank))

    def axes(self, rank: int) -> list[int]:
        count = self.size(1, rank)
        chosen = sorted(self.random.permutation(rank)[:count])
        return [int(axis) - rank * self.chance(0.3) for axis in chosen]

    def values(self, shape: Sequence[int], dtype: str = "float32", low: float = -2.0,
               high: float = 2.0) -> np.ndarray:  # fmt: skip
        if dtype == "bool":
            return self.random.random(shape) < 0.5
        if "int" in dtype:
            least = max(int(low * 4), 0) if dtype.startswith("u") else int(low * 4)
            return self.random.integers(least, int(high * 4) + 1, shape).astype(dtype)
        return self.random.uniform(low, high, shape).astype(dtype)

    def data(self, shape: Sequence[int], dtype: str = "float32", **bounds: float) -> "OperatorCase":
        """An input that changes, or now and then a weight."""
        name = f"x{len(self.names)}"
        store = self.weights if self.names and self.chance(0.4) else self.inputs
        store[name] = self.values(shape, dtype, **bounds)
        self.names.append(name)
        return self

    def weight(self, value: Any, dtype: str = "int64") -> "OperatorCase":
        """An input that is constant."""
        name = f"w{len(self.names)}"
        self.weights[name] = np.asarray(value, dtype)
        self.names.append(name)
        return self

    def without(self) -> "OperatorCase":
        self.names.append("")
        return self

    def model(self) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype
        names = [f"y{at}" for at in range(self.outputs)]
        node = helper.make_node(self.op, self.names, names, **self.words)
        graph = helper.make_graph(
            [node], "one",
            [helper.make_tensor_value_info(n, kind(v.dtype), v.shape)
             for n, v in self.inputs.items()],
            [helper.make_empty_tensor_value_info(name) for name in names],
            [numpy_helper.from_array(value, name) for name, value in self.weights.items()],
        )  # fmt: skip
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8
        )

    def __str__(self) -> str:
        told = [f"{n}: {v.dtype}{[*v.shape]}" for n, v in {**self.inputs, **self.weights}.items()]
        small = {n: v.tolist() for n, v in self.weights.items() if v.size < 9}
        return f"{self.op}-{self.opset} {self.names} {', '.join(told)} {self.words} {small}"


Draw = Callable[[OperatorCase], None]


def listed_axes(case: OperatorCase, axes: Sequence[int], since: int) -> None:
    """Axes as an attribute, or as an input from an opset on."""
    if case.opset < since:
        case.words["axes"] = list(axes)
    else:
        case.weight(axes)


def dynamic(case: OperatorCase, value: Any, dtype: str = "int64") -> None:
    """An index that changes, or does not."""
    name = f"i{len(case.names)}"
    store = case.inputs if case.chance(0.6) else case.weights
    store[name] = np.asarray(value, dtype)
    case.names.append(name)
