"""A loaded oneDNN: descriptors, memory and primitives, freed with the objects that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.errors import BuildError, UnsupportedError
from polysci.numerics import arrays
from polysci.peers.onednn import declarations as api
from polysci.peers.onednn.discovery import REMEDY, find_library
from polysci.runtime.build import cache
from polysci.runtime.build.library import load, openmp_runtimes

Handle = Any
_MAJOR: Final = 3
_GNU: Final = "libgomp"
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

    ``library`` as ``find_library`` takes it. Raises UnsupportedError where there is none, and for
    another version than 3 or threads other than OpenMP's; of a file that was not named, GNU's.
    """

    def __init__(self, library: str | None = None) -> None:
        path = find_library(library)
        try:
            loaded = load(path, api.FUNCTIONS)
        except BuildError as error:
            raise UnsupportedError(f"oneDNN: {error}: {REMEDY}") from error
        self.ffi, self.lib = loaded.ffi, loaded.lib
        self.version = f"{_version(path, self.lib)} ({path}, {_runtime(path, library is not None)})"
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

    def attributes(
        self, scratchpad: int, scales: Mapping[int, int], zeros: Sequence[int], activation: str
    ) -> Handle:
        """Attributes: the mask of an argument's scales, and which arguments have a zero point.

        ``activation`` names a row of ELTWISE, or is empty.
        """
        attributes = self.create("primitive_attr", "primitive_attr_create")
        prefix = "primitive_attr_set"
        self._call(f"{prefix}_scratchpad_mode", attributes, scratchpad)
        for argument, mask in scales.items():
            self._call(f"{prefix}_scales_mask", attributes, argument, mask)
        for argument in zeros:
            self._call(f"{prefix}_zero_points_mask", attributes, argument, 0)
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
        """Whether two memory descriptors are equal."""
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
        return self._placed(form, arrays.reserve_copy(data, page_offset))

    def room(self, form: Handle, page_offset: int | None = None) -> DnnlMemory:
        """Memory that is not set."""
        return self._placed(form, arrays.reserve([self.size(form)], page_offset, _BYTE))

    def _placed(self, form: Handle, data: NDArray[Any]) -> DnnlMemory:
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


def _version(path: Path, lib: Any) -> str:
    try:
        about = lib.dnnl_version()
    except AttributeError as error:
        raise UnsupportedError(f"oneDNN: {path} has no dnnl_version: {REMEDY}") from error
    version = f"{about.major}.{about.minor}.{about.patch}"
    if about.major != _MAJOR:
        expected = f"expected {_MAJOR}.x: {REMEDY}"
        raise UnsupportedError(f"oneDNN: {path} is version {version}: {expected}")
    if about.cpu_runtime != api.OPENMP:
        runtime = api.RUNTIMES.get(about.cpu_runtime, str(about.cpu_runtime))
        raise UnsupportedError(f"oneDNN: {path} runs on {runtime}: expected OpenMP: {REMEDY}")
    return version


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
