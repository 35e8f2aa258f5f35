"""The interface that ONNX's own test suite drives: ``onnx.backend.base.Backend``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx.backend.base import Backend, BackendRep

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.onnx import importer, model_file
from polysci.graph.operators.lower import SUPPORTED
from polysci.graph.passes.table import simplify
from polysci.network.compiled import Network, compile_network
from polysci.numerics.arrays import Array

if TYPE_CHECKING:
    import onnx


class PolysciRep(BackendRep):  # type: ignore[misc]
    """A model that is ready to run."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """Outputs in order, for inputs in order, one array, or a mapping by name."""
        ports = self.network.inputs
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if not isinstance(inputs, dict):
            inputs = {
                port.name: np.asarray(array) for port, array in zip(ports, inputs, strict=True)
            }
        outputs = self.network(inputs)
        assert isinstance(outputs, dict)
        return tuple(outputs.values())


class PolysciBackend(Backend):  # type: ignore[misc]
    """Models whose operators polysci has, on the CPU."""

    @classmethod
    def prepare(
        cls,
        model: onnx.ModelProto,
        device: str = "CPU",
        *,
        fixed: Mapping[str, Array] | None = None,
        **options: Any,
    ) -> PolysciRep:
        """Compile a model; ``options`` are those of ``compile_network``.

        ``fixed`` are inputs that will always have these values, such as those that say a shape.

        Raises SpecError for another device and what ``compile_network`` raises.
        """
        if not cls.supports_device(device):
            raise SpecError(f"device {device!r}: expected 'CPU'")
        model_file.check_model(model, "model")
        graph = importer.graph_of(model, values=fixed, supported=SUPPORTED)
        return PolysciRep(compile_network(simplify(graph), **options))

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> bool:
        """Return whether all operators are supported."""
        try:
            model_file.check_model(model, "model")
            importer.graph_of(model, supported=SUPPORTED)
        except (SpecError, UnsupportedError):
            return False
        return cls.supports_device(device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.partition(":")[0] == "CPU"
