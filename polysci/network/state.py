"""Tensors that a run of a network leaves to the next one, by name, to read and to replace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.errors import SpecError
from polysci.network.runner import Runner, StatePort
from polysci.numerics.dtypes import array_type
from polysci.text.names import suggest


class NetworkState(Mapping[str, NDArray[Any]]):
    """The state of a sequence of runs, which lies in its context.

    An item is a copy; to set one replaces it for the next run. Elements of bf16 are its bits.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._ports = {port.name: port for port in runner.state}

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._memory(self._ports[name]).copy()

    def __setitem__(self, name: str, value: object) -> None:
        """Replace a tensor. Raises SpecError for another name, shape or type."""
        port = self._ports.get(name)
        if port is None:
            raise SpecError(f"{name!r:.80}: no state{suggest(name, self._ports)}")
        array, kind = np.asarray(value), array_type(port.dtype)
        if array.shape != port.shape or array.dtype != kind:
            raise SpecError(
                f"{name}: expected {kind}{list(port.shape)}, got {array.dtype}{list(array.shape)}"
            )
        self._memory(port)[...] = array

    def __iter__(self) -> Iterator[str]:
        return iter(self._ports)

    def __len__(self) -> int:
        return len(self._ports)

    def __repr__(self) -> str:
        rows = (f"{port.name} {port.dtype}{[*port.shape]}" for port in self._ports.values())
        return f"NetworkState({', '.join(rows)})"

    def _memory(self, port: StatePort) -> NDArray[Any]:
        return self._runner.state_array(port)
