"""OpenVINO on CPUs: one stream for latency, shapes fixed, all tensors made ahead."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from polysci.errors import UnsupportedError
from polysci.measure.network_samples import LoadedModel, Way
from polysci.peers.networks.service import Array, Service, TimingRequest

_DEVICE: Final = "CPU"
_PINNED: Final = MappingProxyType({"threads not pinned": False, "threads pinned": True})


class OpenVINO(Service):
    """A model with its threads bound to cores or not, whichever is faster."""

    package = "openvino"

    def ways(self, library: Any, request: TimingRequest) -> Mapping[str, Way]:
        """Both; bf16 where the CPU has instructions for it."""
        core = library.Core()
        # Asked for in f32 as well: it loads the plugin, which is no part of a model's memory.
        has = core.get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES")
        if request.dtype == "bf16" and "BF16" not in has:
            raise UnsupportedError("OpenVINO computes no network in bf16 on this CPU")
        return {name: partial(_load, library, core, request, on) for name, on in _PINNED.items()}


def _load(ov: Any, core: Any, request: TimingRequest, pinned: bool) -> LoadedModel:
    model = core.read_model(request.model)
    names = [_name(port, request) for port in model.inputs]
    request.expect(names)
    if model.is_dynamic():
        model.reshape({name: list(request.inputs[name].shape) for name in names})
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": request.threads,
        "ENABLE_HYPER_THREADING": True,  # else it may take fewer threads than it is given
        "ENABLE_CPU_PINNING": pinned,
        "INFERENCE_PRECISION_HINT": request.dtype,
    }
    compiled = core.compile_model(model, _DEVICE, settings)
    inference = compiled.create_infer_request()
    for index, (name, port) in enumerate(zip(names, compiled.inputs, strict=True)):
        inference.set_input_tensor(index, _tensor(ov, port, request.inputs[name]))
    inference.infer(share_outputs=True)
    tensors = [inference.get_output_tensor(index) for index in range(len(compiled.outputs))]
    return LoadedModel(
        partial(inference.infer, share_outputs=True),
        lambda: [tensor.data.copy() for tensor in tensors],
    )


def _name(port: Any, request: TimingRequest) -> str:
    """The name by which the input was given: OpenVINO may know more of them."""
    names = sorted(map(str, port.get_names()))
    return next((name for name in names if name in request.inputs), (names or [""])[0])


def _tensor(ov: Any, port: Any, array: Array) -> Any:
    """A copy in OpenVINO's own memory: NumPy's may start at 16 bytes."""
    tensor = ov.Tensor(port.element_type, ov.Shape(array.shape))
    tensor.data[...] = array
    return tensor
