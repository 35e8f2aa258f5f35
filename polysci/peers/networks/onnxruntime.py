"""ONNX Runtime on CPUs: a sequential session with spinning threads and all buffers bound ahead."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from polysci.errors import UnsupportedError
from polysci.measure.network_samples import LoadedModel, Way
from polysci.peers.networks.service import Service, TimingRequest

# ORT_ENABLE_ALL blocks channels for convolutions, at the price of reordering around them.
_LEVELS: Final = ("ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
_WEIGHTS: Final = "session.model_external_initializers_file_folder_path"
_BF16: Final = "mlas.enable_gemm_fastmath_arm64_bfloat16"
_PROVIDERS: Final = ("CPUExecutionProvider",)
_ERRORS: Final = 3  # a severity: hides warnings, which are meant for authors of models


class OnnxRuntime(Service):
    """A model at the faster of two levels of optimisation."""

    package = "onnxruntime"

    def ways(self, library: Any, request: TimingRequest) -> Mapping[str, Way]:
        """Each level; bf16 exists only for matrix products on Arm."""
        if request.dtype == "bf16" and platform.machine() not in ("aarch64", "arm64"):
            raise UnsupportedError("ONNX Runtime computes no network in bf16 on x86 CPUs")
        return {level: partial(_load, library, request, level) for level in _LEVELS}


def _load(ort: Any, request: TimingRequest, level: str) -> LoadedModel:
    session = _session(ort, request, level, request.dims)
    request.expect([node.name for node in session.get_inputs()])
    free = _free(session, request)
    shared = any(len(sizes) > 1 for sizes in free.values())
    if free:
        del session  # both at once would count as memory that is needed
        sizes = {name: sizes[0] for name, sizes in free.items() if len(sizes) == 1}
        session = _session(ort, request, level, {**request.dims, **sizes}, shared)
    binding = session.io_binding()
    for node in session.get_inputs():
        value = ort.OrtValue.ortvalue_from_numpy(request.inputs[node.name])
        binding.bind_ortvalue_input(node.name, value)
    names = [node.name for node in session.get_outputs()]
    for name in names:
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    values = binding.get_outputs()  # from here on every run writes into these
    for name, value in zip(names, values, strict=True):
        binding.bind_ortvalue_output(name, value)
    return LoadedModel(
        partial(session.run_with_iobinding, binding),
        lambda: [value.numpy().copy() for value in values],
    )


def _session(
    ort: Any, request: TimingRequest, level: str, dims: Mapping[str, int], fix: bool = False
) -> Any:
    """A session with sizes for names of dimensions; ``fix`` writes them into the inputs' shapes."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = request.threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.log_severity_level = _ERRORS
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    if request.dtype == "bf16":
        options.add_session_config_entry(_BF16, "1")
    for name, size in dims.items():
        options.add_free_dimension_override_by_name(name, size)
    model: str | bytes = request.model
    if fix:  # else it looks for weights beside a model that has no path
        options.add_session_config_entry(_WEIGHTS, str(Path(request.model).resolve().parent))
        model = _with_shapes(request)
    return ort.InferenceSession(model, options, providers=list(_PROVIDERS))


def _free(session: Any, request: TimingRequest) -> dict[str, list[int]]:
    """The sizes of dimensions that have a name and none, as of those bound as ``INPUT.AXIS``.

    A name may have several: ``?``, as Paddle calls them, is no name.
    """
    sizes = dict[str, list[int]]()
    for node in session.get_inputs():
        for dim, size in zip(node.shape, request.inputs[node.name].shape, strict=True):
            if isinstance(dim, str) and dim and size not in sizes.setdefault(dim, []):
                sizes[dim].append(size)
    return sizes


def _with_shapes(request: TimingRequest) -> bytes:
    """The model with the shapes of its inputs: overrides by name would give all one size."""
    import onnx

    model = onnx.load(request.model, load_external_data=False)
    for port in model.graph.input:
        dims = port.type.tensor_type.shape.dim
        for dim, size in zip(dims, request.inputs.get(port.name, np.zeros(0)).shape, strict=False):
            dim.dim_value = size
    data: bytes = model.SerializeToString()
    return data
