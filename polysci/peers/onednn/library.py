"""A loaded oneDNN: descriptors, memory and primitives, freed with the objects that hold them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.errors import BuildError, UnsupportedError
from polysci.numerics import arrays
from polysci.peers.onednn import declarations as api
from polysci.peers.onednn.discovery import REMEDY, find_libraries
from polysci.runtime.build import cache
from polysci.runtime.build.library import Library, load, openmp_runtimes

Handle = Any
_MAJOR: Final = 3
_GNU: Final = "libgomp"
_YEARS: Final = {(3, 2): 2023}  # of versions that wheels hold
_NAMES: Final = tuple(dict.fromkeys(re.findall(r"\b(dnnl_\w+)\(", api.FUNCTIONS)))
_BYTE: Final = np.dtype(np.uint8)
# All primitives of a layer in one call from Python, as ours has.
_EXECUTE: Final = """
typedef struct { const void *primitive; const void *arguments; int count; } polysci_execution;
int polysci_execute(void *execute, void *stream, const polysci_execution *steps, int count);
"""
_EXECUTE_C: Final = (
    _EXECUTE
    + """
typedef int (*execute_function)(const void *, void *, int, const void *);

int polysci_execute(void *execute, void *stream, const polysci_execution *steps, int count) {
    int status = 0;
    for (int i = 0; i < count && status == 0; i++)
        status = ((execute_function)execute)(
            steps[i].primitive, stream, steps[i].count, steps[i].arguments);
    return status;
}
"""
)


@dataclass(frozen=True, slots=True, eq=False)
class DnnlMemory:
    """Memory of oneDNN's: its handle, and the bytes that it describes."""

    handle: Handle
    data: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Execution:
    """A primitive and its arguments by their numbers."""

    primitive: Handle
    arguments: Mapping[int, DnnlMemory]


class Dnnl:
    """oneDNN's functions on one CPU engine; a status that is not success raises UnsupportedError.

    ``library`` as ``find_libraries`` takes it; of several the newest. Raises UnsupportedError where
    there is none, and for another version than 3, a missing function or threads other than
    OpenMP's; of a file that was not named, GNU's.
    """

    def __init__(self, library: str | None = None) -> None:
        opened = _open(find_libraries(library), library is not None)
        self.ffi, self.lib = opened.loaded.ffi, opened.loaded.lib
        self.version = str(opened)
        self._loop = load(cache.build(_EXECUTE_C, symbols=("polysci_execute",)), _EXECUTE)
        self.execute = self._loop.lib.polysci_execute
        self.engine = self.create("engine", "engine_create", api.CPU_ENGINE, 0)
        self._stream = self.create("stream", "stream_create", self.engine, api.IN_ORDER)

    def create(self, kind: str, function: str, *arguments: Any) -> Handle:
        """The handle that ``dnnl_FUNCTION`` makes, destroyed with the object that is returned."""
        handle = self.ffi.new("void **")
        self.expect(function, getattr(self.lib, f"dnnl_{function}")(handle, *arguments))
        return self.ffi.gc(handle[0], getattr(self.lib, f"dnnl_{kind}_destroy"))

    def any_format(self, dims: Sequence[int], element: str) -> Handle:
        """A memory descriptor whose format the library chooses."""
        code = api.TYPES[element]
        tag = "memory_desc_create_with_tag"
        return self.create("memory_desc", tag, len(dims), list(dims), code, api.ANY)

    def dense_format(self, dims: Sequence[int], element: str, order: Sequence[int]) -> Handle:
        """A dense memory descriptor; ``order`` names the axes from the outermost to the innermost.

        Dimensions are in oneDNN's order, whatever the order of memory.
        """
        strides, step = [0] * len(dims), 1
        for axis in reversed(order):
            strides[axis], step = step, step * dims[axis]
        function, code = "memory_desc_create_with_strides", api.TYPES[element]
        return self.create("memory_desc", function, len(dims), list(dims), code, strides)

    def attributes(self, scratchpad: int, scales: Mapping[int, int], activation: str) -> Handle:
        """Attributes, with the mask of an argument's scales, and a row of ELTWISE or none."""
        attributes = self.create("primitive_attr", "primitive_attr_create")
        prefix = "primitive_attr_set"
        self._call(f"{prefix}_scratchpad_mode", attributes, scratchpad)
        for argument, mask in scales.items():
            self._call(f"{prefix}_scales_mask", attributes, argument, mask)
        if activation:
            post_ops = self.create("post_ops", "post_ops_create")
            self._call("post_ops_append_eltwise", post_ops, *api.ELTWISE[activation])
            self._call(f"{prefix}_post_ops", attributes, post_ops)
        return attributes

    def format_of(self, descriptor: Handle, which: int) -> Handle:
        """The memory descriptor that a primitive descriptor asks for; it lives as long."""
        return self.lib.dnnl_primitive_desc_query_md(descriptor, which, 0)

    def held_format(self, memory: DnnlMemory) -> Handle:
        """The memory descriptor of memory; it lives as long."""
        form = self.ffi.new("const void **")
        self._call("memory_get_memory_desc", memory.handle, form)
        return form[0]

    def same(self, left: Handle, right: Handle) -> bool:
        """Return whether two memory descriptors are equal."""
        return bool(self.lib.dnnl_memory_desc_equal(left, right))

    def implementation(self, descriptor: Handle) -> str:
        """The library's name of what runs, as ``brgconv:avx512_core``."""
        text = self.ffi.new("const char **")
        self._call("primitive_desc_query", descriptor, api.IMPLEMENTATION, 0, text)
        return str(self.ffi.string(text[0]).decode())

    def size(self, form: Handle) -> int:
        """Bytes of a memory descriptor."""
        return int(self.lib.dnnl_memory_desc_get_size(form))

    def memory(
        self, form: Handle, data: NDArray[Any], page_offset: int | None = None
    ) -> DnnlMemory:
        """A copy of an array as memory; ``page_offset`` as in ``arrays.reserve``."""
        return self._wrap_memory(form, arrays.reserve_copy(data, page_offset))

    def room(self, form: Handle, page_offset: int | None = None) -> DnnlMemory:
        """Memory that is not set."""
        return self._wrap_memory(form, arrays.reserve([self.size(form)], page_offset, _BYTE))

    def _wrap_memory(self, form: Handle, data: NDArray[Any]) -> DnnlMemory:
        pointer = self.ffi.cast("void *", data.ctypes.data)
        return DnnlMemory(self.create("memory", "memory_create", form, self.engine, pointer), data)

    def primitive(self, descriptor: Handle) -> Handle:
        """The primitive of a primitive descriptor."""
        return self.create("primitive", "primitive_create", descriptor)

    def reorder(self, source: Handle, target: Handle) -> Handle:
        """The primitive that copies from one format to another."""
        formats, none = (source, self.engine, target, self.engine), self.ffi.NULL
        function = "reorder_primitive_desc_create"
        return self.primitive(self.create("primitive_desc", function, *formats, none))

    def call(self, steps: Sequence[Execution]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The arguments of ``execute`` for some primitives, and what must live as long as they."""
        arguments = [
            self.ffi.new(
                "dnnl_exec_arg_t[]",
                [(number, memory.handle) for number, memory in step.arguments.items()],
            )
            for step in steps
        ]
        ours = self._loop.ffi
        pairs = zip(steps, arguments, strict=True)
        packed = ours.new(
            "polysci_execution[]",
            [(step.primitive, of_step, len(of_step)) for step, of_step in pairs],
        )
        function = self.ffi.cast("void *", self.lib.dnnl_primitive_execute)
        return (function, self._stream, packed, len(steps)), (steps, arguments)

    def _call(self, function: str, *arguments: Any) -> None:
        self.expect(function, getattr(self.lib, f"dnnl_{function}")(*arguments))

    @staticmethod
    def expect(function: str, status: int) -> None:
        """Raise UnsupportedError unless a function of oneDNN's returned success."""
        if status:
            known = status < len(api.STATUSES)
            text = api.STATUSES[status] if known else f"status {status}"
            raise UnsupportedError(f"dnnl_{function}: {text}")


@dataclass(frozen=True, slots=True)
class _Opened:
    """A loaded library that can be used; its text is the version, the file and the runtime."""

    loaded: Library
    numbers: tuple[int, int, int]
    runtime: str

    def __str__(self) -> str:
        year = f" of {_YEARS[self.numbers[:2]]}" if self.numbers[:2] in _YEARS else ""
        version = ".".join(map(str, self.numbers))
        return f"{version}{year} ({self.loaded.path}, {self.runtime})"


def _open(paths: Sequence[Path], named: bool) -> _Opened:
    """The newest that can be used. Raises UnsupportedError, of the first, where none can."""
    opened, refused = list[_Opened](), list[UnsupportedError]()
    for path in paths:
        try:
            loaded = load(path, api.FUNCTIONS)
            opened.append(_Opened(loaded, _version(path, loaded.lib), _runtime(path, named)))
        except UnsupportedError as error:
            refused.append(error)
        except BuildError as error:
            refused.append(UnsupportedError(f"oneDNN: {error}: {REMEDY}"))
    if not opened:
        raise refused[0]
    return max(opened, key=lambda it: it.numbers)


def _version(path: Path, lib: Any) -> tuple[int, int, int]:
    """Its numbers. Raises UnsupportedError unless it is version 3, on OpenMP, of all functions."""
    missing = [name for name in _NAMES if not hasattr(lib, name)]
    lacking = f"oneDNN: {path} has no {missing and missing[0]}: {REMEDY}"
    if "dnnl_version" in missing:
        raise UnsupportedError(lacking)
    about = lib.dnnl_version()
    version = f"{about.major}.{about.minor}.{about.patch}"
    if about.major != _MAJOR:
        expected = f"expected {_MAJOR}.x: {REMEDY}"
        raise UnsupportedError(f"oneDNN: {path} is version {version}: {expected}")
    if about.cpu_runtime != api.OPENMP:
        runtime = api.RUNTIMES.get(about.cpu_runtime, str(about.cpu_runtime))
        raise UnsupportedError(f"oneDNN: {path} runs on {runtime}: expected OpenMP: {REMEDY}")
    if missing:
        raise UnsupportedError(lacking)
    return about.major, about.minor, about.patch


def _runtime(path: Path, named: bool) -> str:
    """The OpenMP runtime's file name: GNU's, which ours uses, unless the library was named."""
    names = [Path(file).name for file in openmp_runtimes()]
    gnu = [name for name in names if name.startswith(_GNU)]
    if not (gnu or named):
        raise UnsupportedError(
            f"oneDNN: {path} runs on {', '.join(names)}: expected {_GNU}; name the library to "
            f"compare all the same: --library {path}"
        )
    return ", ".join(gnu or names)
