"""As much of ONNX Runtime as its peer's worker calls: a model is JSON that says what goes wrong."""

import json
import os
import time
from pathlib import Path

import numpy as np

__version__ = "9.9-made-up"


class SessionOptions:
    def __init__(self):
        self.entries, self.dims = {}, {}

    def add_session_config_entry(self, key, value):
        self.entries[key] = value

    def add_free_dimension_override_by_name(self, name, size):
        self.dims[name] = size


class ExecutionMode:
    ORT_SEQUENTIAL = "sequential"


class GraphOptimizationLevel:
    ORT_ENABLE_ALL, ORT_ENABLE_EXTENDED = 99, 2


class OrtValue:
    def __init__(self, array):
        self.array = array

    @staticmethod
    def ortvalue_from_numpy(array):
        return OrtValue(array.copy())

    def numpy(self):
        return self.array


class Port:
    def __init__(self, name, shape=()):
        self.name, self.shape = name, shape


class Binding:
    def __init__(self):
        self.inputs, self.outputs = {}, {}

    def bind_ortvalue_input(self, name, value):
        self.inputs[name] = value.array

    def bind_output(self, name, device):
        self.outputs[name] = None

    def bind_ortvalue_output(self, name, value):
        self.outputs[name] = value

    def get_outputs(self):
        return list(self.outputs.values())[self.lost :]


class InferenceSession:
    def __init__(self, path, options, providers):
        self.told = told = json.loads(Path(path).read_text())
        self.options, self.level = options, options.graph_optimization_level
        assert providers == ["CPUExecutionProvider"] and options.execution_mode == "sequential"
        assert options.entries["session.intra_op.allow_spinning"] == "1"
        print("chatter on stdout")
        if told.get("fault") == "crash":
            os.abort()
        if told.get("fault") == "hang":
            time.sleep(60)
        if told.get("fault") == "refuse":
            raise RuntimeError("no kernel\n for  Foo")

    def get_inputs(self):
        free = [self.options.dims.get(dim, dim) for dim in self.told.get("shape", ["n", 3])]
        return [Port("a/x", free), Port("file", [2])]

    def get_outputs(self):
        return [Port("sum"), Port("settings")]

    def io_binding(self):
        binding = Binding()
        binding.lost = self.told.get("fault") == "lost"
        return binding

    def run_with_iobinding(self, binding):
        time.sleep(self.told.get("slow", {}).get(str(self.level), 0))
        sums = binding.inputs["a/x"].sum() + binding.inputs["file"].sum()
        n = self.options.dims.get("n", -1)
        words = [self.level, self.options.intra_op_num_threads, n]
        if self.told.get("fault") == "text":
            words = ["text"]
        for name, found in (("sum", [sums]), ("settings", words)):
            value = binding.outputs[name]
            if value is None:
                binding.outputs[name] = OrtValue(np.array(found))
            else:
                value.array[...] = found
