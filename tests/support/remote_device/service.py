"""The device's own process: ``python -m tests.support.remote_device.service``."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polysci.numerics import arrays
from polysci.numerics.arrays import Array
from polysci.runtime.backends.host import Host, HostNetwork
from polysci.runtime.build.library import Library
from polysci.runtime.worker_process import serve

OPERATIONS = (
    *("allocate", "free", "copy_in", "copy_out", "load", "call"),
    *("load_network", "context", "run", "packed_weights", "stage_times"),
)
Operand = Mapping[str, int] | int | None


class Device:
    """The operations; memory is what this process has, named by numbers."""

    def __init__(self) -> None:
        self._memory: dict[int, Array] = {}
        self._next = 1000  # no place in memory
        self._libraries: list[Library] = []
        self._networks: list[tuple[HostNetwork, list[Array]]] = []
        self._contexts: list[Any] = []

    def allocate(self, size: int) -> dict[str, Any]:
        """Reserve bytes that hold no numbers yet."""
        self._next += 1
        self._memory[self._next] = arrays.reserve((size,), dtype=np.dtype(np.uint8))
        self._memory[self._next][:] = 0xFF
        return {"handle": self._next}

    def free(self, handle: int) -> dict[str, Any]:
        """Give a buffer back."""
        del self._memory[handle]
        return {}

    def copy_in(self, handle: int, data: str) -> dict[str, Any]:
        """Fill a buffer."""
        self._memory[handle][:] = np.frombuffer(b64decode(data), np.uint8)
        return {}

    def copy_out(self, handle: int) -> dict[str, Any]:
        """Return what a buffer holds."""
        return {"data": b64encode(self._memory[handle].tobytes()).decode()}

    def load(self, path: str, declarations: str) -> dict[str, Any]:
        """Load a shared object."""
        self._libraries.append(Host().load(Path(path), declarations))
        return {"library": len(self._libraries) - 1}

    def call(self, library: int, name: str, arguments: Sequence[Operand]) -> dict[str, Any]:
        """Call a function of a library."""
        loaded = self._libraries[library]
        places = [
            value if isinstance(value, int) else loaded.ffi.cast("void *", self._address(value))
            for value in arguments
        ]
        return {"result": loaded.function(name)(*places)}

    def load_network(
        self, path: str, name: str, declarations: str, weights: Sequence[int]
    ) -> dict[str, Any]:
        """Load a network with weights from buffers, which the host may free."""
        data = [self._memory[handle] for handle in weights]
        network = Host().load_network(Path(path), name, declarations, data)
        self._networks.append((network, data))
        sizes = {"model_bytes": network.model_bytes, "context_bytes": network.context_bytes}
        return {"number": len(self._networks) - 1, **sizes}

    def context(self, network: int) -> dict[str, Any]:
        """Make memory for the tensors of a run."""
        self._contexts.append(self._networks[network][0].context())
        return {"context": len(self._contexts) - 1}

    def run(self, network: int, context: int, arguments: Sequence[Operand]) -> dict[str, Any]:
        """Run a network on buffers."""
        addresses = map(self._address, arguments)
        return {"result": self._networks[network][0].run_at(self._contexts[context], *addresses)}

    def packed_weights(self, network: int) -> dict[str, Any]:
        """Return constants and packed weights of a network."""
        return {"data": b64encode(self._networks[network][0].packed_weights()).decode()}

    def stage_times(self, network: int, context: int, stages: int) -> dict[str, Any]:
        """Return the marks of a context's last run."""
        return {"times": self._networks[network][0].stage_times(self._contexts[context], stages)}

    def _address(self, operand: Operand) -> int:
        """Return where a buffer lies in this process; 0 for none."""
        if operand is None:
            return 0
        assert isinstance(operand, Mapping)
        return int(self._memory[operand["handle"]].ctypes.data)


if __name__ == "__main__":
    serve(Device(), OPERATIONS)
