"""OpenVINO on CPUs: one stream for latency, shapes fixed, all tensors made ahead."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from polysci.errors import UnsupportedError
from polysci.peers.networks.service import Array, LoadedModel, Service, TimingRequest, Way

_DEVICE: Final = "CPU"
_PINNED: Final = MappingProxyType({"threads not pinned": False, "threads pinned": True})


class OpenVINO(Service):
    """A model with its threads bound to cores or not, whichever is faster."""

    package = "openvino"

    def ways(self, library: Any, asked: TimingRequest) -> Mapping[str, Way]:
        """Both; bf16 where the CPU has instructions for it."""
        core = library.Core()
        # Asked for in f32 as well: it loads the plugin, which is no part of a model's memory.
        has = core.get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES")
        if asked.dtype == "bf16" and "BF16" not in has:
            raise UnsupportedError("OpenVINO computes no network in bf16 on this CPU")
        return {name: partial(_loaded, library, core, asked, on) for name, on in _PINNED.items()}


def _loaded(ov: Any, core: Any, asked: TimingRequest, pinned: bool) -> LoadedModel:
    model = core.read_model(asked.model)
    names = [_name(port, asked) for port in model.inputs]
    asked.expect(names)
    if model.is_dynamic():
        model.reshape({name: list(asked.inputs[name].shape) for name in names})
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": asked.threads,
        "ENABLE_HYPER_THREADING": True,  # else it may take fewer threads than it is given
        "ENABLE_CPU_PINNING": pinned,
        "INFERENCE_PRECISION_HINT": asked.dtype,
    }
    compiled = core.compile_model(model, _DEVICE, settings)
    request = compiled.create_infer_request()
    for index, (name, port) in enumerate(zip(names, compiled.inputs, strict=True)):
        request.set_input_tensor(index, _tensor(ov, port, asked.inputs[name]))
    request.infer(share_outputs=True)
    tensors = [request.get_output_tensor(index) for index in range(len(compiled.outputs))]
    return LoadedModel(
        partial(request.infer, share_outputs=True),
        lambda: [tensor.data.copy() for tensor in tensors],
    )


def _name(port: Any, asked: TimingRequest) -> str:
    """The name by which the input was given: OpenVINO may know more of them."""
    names = sorted(map(str, port.get_names()))
    return next((name for name in names if name in asked.inputs), (names or [""])[0])


def _tensor(ov: Any, port: Any, array: Array) -> Any:
    """A copy in OpenVINO's own memory: NumPy's may start at 16 bytes."""
    tensor = ov.Tensor(port.element_type, ov.Shape(array.shape))
    tensor.data[...] = array
    return tensor
