"""A stand-in for the module onnxruntime that computes with ONNX's reference implementation."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

__version__ = "9.9"
ExecutionMode = SimpleNamespace(ORT_SEQUENTIAL=0)
GraphOptimizationLevel = SimpleNamespace(ORT_ENABLE_EXTENDED=2, ORT_ENABLE_ALL=99)


class SessionOptions:
    def add_session_config_entry(self, name: str, value: str) -> None:
        pass

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        pass


class OrtValue:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @classmethod
    def ortvalue_from_numpy(cls, array: np.ndarray) -> "OrtValue":
        return cls(array)

    def numpy(self) -> np.ndarray:
        return self.array


class Binding:
    def __init__(self) -> None:
        self.inputs: dict[str, np.ndarray] = {}
        self.outputs: list[np.ndarray] = []

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self.inputs[name] = value.numpy()

    def bind_output(self, name: str, device: str) -> None:
        pass

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        pass

    def get_outputs(self) -> list[OrtValue]:
        return [OrtValue(one) for one in self.outputs]


class InferenceSession:
    def __init__(self, path: str, options: SessionOptions, providers: list[str]) -> None:
        model = onnx.load(path)
        self.graph, self.evaluator = model.graph, ReferenceEvaluator(model)

    def get_inputs(self) -> list[Any]:
        found = []
        for one in self.graph.input:
            dims = one.type.tensor_type.shape.dim
            shape = [dim.dim_param or dim.dim_value for dim in dims]
            found.append(SimpleNamespace(name=one.name, shape=shape))
        return found

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name=one.name) for one in self.graph.output]

    def io_binding(self) -> Binding:
        return Binding()

    def run_with_iobinding(self, binding: Binding) -> None:
        binding.outputs = self.evaluator.run(None, binding.inputs)
