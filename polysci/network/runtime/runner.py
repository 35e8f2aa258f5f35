"""A compiled network as a Python callable: NumPy in, NumPy out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.errors import PolysciError
from polysci.numerics import arrays as aligned
from polysci.numerics.dtypes import C_TYPES
from polysci.runtime.arguments import plain
from polysci.runtime.backend import CPU
from polysci.runtime.build.library import Library

Array = NDArray[Any]
# Of the library of a network NAME: it defines NAME_load, and so on.
FUNCTIONS: Final = (
    *("load", "load_parts", "unload", "model_size", "model_data"),
    *("new", "free", "run", "context_size"),
)


@dataclass(frozen=True, slots=True)
class TensorPort:
    """An input or output: its name in the model, shape and NumPy's element type."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Runner:
    """A loaded library of a network: checked calls, one context for each that is under way.

    ``weights`` are their file, or its arrays one by one.
    """

    def __init__(
        self,
        library: Path,
        name: str,
        declarations: str,
        weights: Sequence[Array] | Path,
        inputs: Sequence[TensorPort],
        outputs: Sequence[TensorPort],
    ) -> None:
        self.name, self.inputs, self.outputs = name, tuple(inputs), tuple(outputs)
        self.library: Library = CPU.load(library, declarations)
        self._ffi, lib = self.library.ffi, self.library.lib
        self._run = getattr(lib, f"{name}_run")
        self._new, self._free = getattr(lib, f"{name}_new"), getattr(lib, f"{name}_free")
        why = self._ffi.new("const char **")
        if isinstance(weights, Path):
            model = getattr(lib, f"{name}_load")(str(weights).encode(), why)
        else:
            data = [self._ffi.from_buffer(array) for array in weights]
            parts = self._ffi.new("const void *[]", data)
            model = getattr(lib, f"{name}_load_parts")(parts, why)
        if model == self._ffi.NULL:
            raise PolysciError(f"{name}: {self._ffi.string(why[0]).decode()}")
        unload = getattr(lib, f"{name}_unload")
        self._model = self._ffi.gc(model, partial(_end, unload, (self.library,)))
        self.model_bytes = int(getattr(lib, f"{name}_model_size")())
        self.context_bytes = int(getattr(lib, f"{name}_context_size")())
        self._idle: list[Any] = []
        # A buffer of cffi's keeps its array alive; so many look-ups of types less a call.
        self._pointers = [
            partial(self._ffi.from_buffer, self._ffi.typeof(f"{C_TYPES[port.dtype]}[]"))
            for port in (*self.inputs, *self.outputs)
        ]
        self._results = [
            (port.shape, kind, prod(port.shape) * kind.itemsize + aligned.ALIGNMENT - 1)
            for port in self.outputs for kind in (np.dtype(port.dtype),)
        ]  # fmt: skip

    def packed_weights(self) -> memoryview:
        """Constants and packed weights, as the library reads them; valid as long as this object."""
        data = getattr(self.library.lib, f"{self.name}_model_data")(self._model)
        return memoryview(self._ffi.buffer(data, self.model_bytes))

    def context(self) -> Any:
        """A context that nobody uses; give it back to ``release``."""
        try:  # a suppress() takes half a microsecond
            return self._idle.pop()
        except IndexError:  # more runs are under way than ever before
            pass
        made = self._new(self._model)
        if made == self._ffi.NULL:
            raise MemoryError(f"{self.context_bytes} bytes for the tensors of a network")
        return self._ffi.gc(made, partial(_end, self._free, (self.library, self._model)))

    def release(self, context: Any) -> None:
        self._idle.append(context)

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Outputs in order, for inputs in order."""
        results = self.results()
        self.into(arrays, results)
        return results

    def results(self) -> list[Array]:
        """Arrays for the outputs of a run."""
        return [_new_array(*result) for result in self._results]

    def into(self, arrays: Sequence[Array], results: Sequence[Array]) -> None:
        """The same into arrays that are there; both of the right shapes and types."""
        context = self.context()
        try:
            every = zip(self._pointers, (*arrays, *results), strict=True)
            self._run(context, *[pointer(array) for pointer, array in every])
        finally:
            self._idle.append(context)

    def run_in(self, context: Any, arrays: Sequence[Array], results: Sequence[Array]) -> None:
        """The same in a given context."""
        self.bind(context, arrays, results)()

    def bind(
        self, context: Any, arrays: Sequence[Array], results: Sequence[Array]
    ) -> Callable[[], None]:
        """What runs the network on these very arrays, each time it is called."""
        every = zip(self._pointers, (*arrays, *results), strict=True)
        return partial(self._run, context, *[pointer(array) for pointer, array in every])

    def stage_seconds(self, context: Any, stages: int) -> list[float]:
        """Seconds of each stage in the context's last run; the code must time itself."""
        times = getattr(self.library.lib, f"{self.name}_times")(context)
        return [times[at + 1] - times[at] for at in range(stages)]


def _end(function: Any, _used: tuple[Any, ...], memory: Any) -> None:
    """Give memory back with a function of a library; what that uses lives until then."""
    function(memory)


def _new_array(shape: tuple[int, ...], dtype: np.dtype[Any], room: int) -> Array:
    """``aligned.empty`` in half of its time; ``room`` is in bytes."""
    memory = np.empty(room, np.uint8)
    start = memory.__array_interface__["data"][0]
    return np.ndarray(shape, dtype, memory, -start % aligned.ALIGNMENT)


def check_inputs(port: TensorPort, value: object) -> Array:
    """The array of an input, C-contiguous. Raises TypeError or ValueError that name it."""
    array = plain(port.name, value, "a NumPy array")
    if array.dtype != np.dtype(port.dtype):
        raise TypeError(f"{port.name}: expected dtype {port.dtype}, got {array.dtype}")
    if array.shape != port.shape:
        raise ValueError(f"{port.name}: expected shape {port.shape}, got {array.shape}")
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.require(array, requirements=("C", "A"))


def order_inputs(ports: Sequence[TensorPort], inputs: object) -> list[Array]:
    """The inputs in order, from one array, or from a mapping by name."""
    if isinstance(inputs, Mapping):
        names = {port.name for port in ports}
        if set(inputs) != names:
            raise ValueError(f"inputs: expected {sorted(names)}, got {sorted(map(str, inputs))}")
        return [check_inputs(port, inputs[port.name]) for port in ports]
    if len(ports) != 1:
        raise TypeError(
            f"inputs: this network has {len(ports)}: give a dict of {[p.name for p in ports]}"
        )
    return [check_inputs(ports[0], inputs)]
