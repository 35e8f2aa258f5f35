"""The host: C with OpenMP, compiled by this machine's compiler, called through cffi."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polysci.errors import PolysciError
from polysci.loop_ir.nodes import EMPTY, LoopModule
from polysci.numerics.arrays import Array
from polysci.runtime.build import cache, library
from polysci.runtime.build.compiler import find_compiler
from polysci.runtime.build.library import Library
from polysci.target.host import detect
from polysci.target.target import HOST, Target


@dataclass(frozen=True, slots=True)
class Host:
    """The CPUs of this machine, whose memory is that of NumPy's arrays."""

    name: str = HOST
    measured: bool = True
    occupancy: None = None

    @property
    def compiler(self) -> str:
        """The C compiler. Raises NoCompilerError."""
        return find_compiler().identity

    def targets(self) -> tuple[Target, ...]:
        """Return this machine."""
        return (detect(),)

    def build(
        self,
        text: str | Sequence[str],
        *,
        flags: Sequence[str] | None = None,
        symbols: Sequence[str] = (),
        timeout: float | None = None,
        module: LoopModule = EMPTY,
    ) -> Path:
        """Return the shared object, as ``cache.build`` makes it of C. Raises BuildError."""
        return cache.build(text, flags=flags, symbols=symbols, timeout=timeout)

    def build_many(
        self,
        texts: Sequence[str],
        *,
        jobs: int = 2,
        symbols: Sequence[Sequence[str]] = (),
        meanwhile: Callable[[], None] = lambda: None,
        modules: Sequence[LoopModule] = (),
    ) -> list[Path]:
        """Return the shared objects. Raises BuildError of the first text that fails."""
        return cache.build_many(texts, jobs=jobs, symbols=symbols, meanwhile=meanwhile)

    def assemble(self, texts: Sequence[str], *, flags: Sequence[str] | None = None) -> list[str]:
        """Return what the C compiler makes of the texts. Raises BuildError."""
        return cache.assemble(texts, flags=flags)

    def load(self, path: Path, declarations: str) -> Library:
        """Return the shared object, loaded in this process. Raises BuildError."""
        return library.load(path, declarations)

    def load_network(
        self, path: Path, name: str, declarations: str, weights: Sequence[Array] | Path
    ) -> HostNetwork:
        """Return a network of a shared object. Raises BuildError, or PolysciError for weights."""
        loaded = library.load(path, declarations)
        ffi, lib = loaded.ffi, loaded.lib
        why = ffi.new("const char **")
        if isinstance(weights, Path):
            model = getattr(lib, f"{name}_load")(str(weights).encode(), why)
        else:
            data = [ffi.from_buffer(array) for array in weights]
            model = getattr(lib, f"{name}_load_parts")(ffi.new("const void *[]", data), why)
        if model == ffi.NULL:
            raise PolysciError(f"{name}: {ffi.string(why[0]).decode()}")
        unload = partial(_end, getattr(lib, f"{name}_unload"), (loaded,))
        return HostNetwork(loaded, name, ffi.gc(model, unload))

    def is_argument(self, argument: Any) -> bool:
        """Return whether it is a pointer of cffi."""
        return type(argument).__module__ == "_cffi_backend"

    def restore(self, array: Array) -> Any:
        """Return a pointer to packed weights, which it keeps alive."""
        return library.float_pointer(array)

    def time(self, run: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> float:
        """Return mean seconds by the process's clock; the Python loop adds 0.3 us to each call."""
        start = time.perf_counter_ns()
        for operands in arguments:
            run(*operands)
        return (time.perf_counter_ns() - start) / len(arguments) * 1e-9


class HostNetwork:
    """A network of a shared object; what it makes lives until nothing refers to it."""

    def __init__(self, library: Library, name: str, model: Any) -> None:
        self.library, self._name, self._model = library, name, model
        self.model_bytes = int(self._function("model_size")())
        self.context_bytes = int(self._function("context_size")())
        self._new, self._free = self._function("new"), self._function("free")
        self._bind(name)

    def _bind(self, symbol: str, sizes: Sequence[int] = ()) -> None:
        """Take the runs of a program, which are told sizes."""
        ffi = self.library.ffi
        self.run = run = getattr(self.library.lib, f"{symbol}_run")
        operands = len(ffi.typeof(run).args) - 1 - len(sizes)
        types = f"{', int64_t' * len(sizes)}{', uintptr_t' * operands}"
        self.run_at = run_at = ffi.cast(f"void (*)(void *{types})", run)
        if sizes:
            self.run = lambda context, *arrays: run(context, *sizes, *arrays)
            self.run_at = lambda context, *places: run_at(context, *sizes, *places)

    def _function(self, name: str) -> Any:
        return getattr(self.library.lib, f"{self._name}_{name}")

    def entry(self, symbol: str, sizes: Sequence[int] = ()) -> HostNetwork:
        """Return the network with the runs of a program of the library, of these sizes."""
        other = copy(self)
        other._bind(symbol, sizes)
        return other

    def on(self, stream: int) -> HostNetwork:
        """Return the network itself: threads have no queue."""
        return self

    def context(self) -> Any:
        """Return memory for the tensors of one run at a time. Raises MemoryError."""
        context = self._new(self._model)
        if context == self.library.null:
            raise MemoryError(f"{self.context_bytes} bytes for the tensors of a network")
        return self.library.ffi.gc(context, partial(_end, self._free, (self.library, self._model)))

    def packed_weights(self) -> memoryview:
        """Return constants and packed weights; valid as long as this object."""
        data = self._function("model_data")(self._model)
        return memoryview(self.library.ffi.buffer(data, self.model_bytes))

    def reset(self, context: Any) -> None:
        """Give the state of a context the values that it has before the first run."""
        self._function("reset")(context)

    def state(self, context: Any, size: int) -> Array:
        """Return the first bytes of a context's state where they lie, valid with it."""
        memory = self._function("state")(context)
        return np.frombuffer(self.library.ffi.buffer(memory, size), np.uint8)

    def tensors(self, context: Any, size: int) -> Array | None:
        """Return a copy of a context's tensors; None where they share memory."""
        memory = getattr(self.library.lib, f"{self._name}_memory", None)
        if memory is None:
            return None
        return np.frombuffer(self.library.ffi.buffer(memory(context), size), np.uint8).copy()

    def stage_times(self, context: Any, stages: int) -> list[float]:
        """Return the marks of the context's last run; the code must time itself."""
        times = self._function("times")(context)
        return [float(times[at]) for at in range(stages + 1)]


def _end(function: Any, _used: tuple[Any, ...], memory: Any) -> None:
    """Give memory back with a function of a library; what that uses lives until then."""
    function(memory)
