"""A verified shared object -> callable functions, through cffi's ABI mode."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from threading import RLock
from typing import Any

import _cffi_backend
import cffi
import numpy as np

from polysci.errors import BuildError
from polysci.numerics import arrays
from polysci.numerics.arrays import Array
from polysci.numerics.quantization import Scales
from polysci.printers.c_values import c_type
from polysci.runtime.build.elf import verify_shared_object

_RTLD_NODELETE = getattr(os, "RTLD_NODELETE", 0)
_RTLD_NOLOAD = getattr(os, "RTLD_NOLOAD", 0)
_RUNTIME = re.compile(r"lib(gomp|omp|iomp5)\b[^/]*\.so[^/]*$")
# How many loops a waiting thread of GNU's OpenMP spins before it sleeps, read while it is loaded.
# Its own milliseconds keep a core from the thread that is waited for where another process has a
# core as well: a call then takes a slice of the scheduler's.
_SPIN = "GOMP_SPINCOUNT"
_SPIN_LOOPS = "4000"  # some 80 us: a turn takes 19 ns on Zen 4
_SPIN_LOOPS_BESIDE_OTHERS = "1000"
_pinned: set[str] = set()
_loading = RLock()  # by one thread at a time: the variable is the whole process's


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """A loaded shared object: ``lib`` has its functions, ``ffi`` makes their arguments.

    It is unloaded once nothing refers to ``lib`` or ``ffi`` any more.
    """

    path: Path
    ffi: Any
    lib: Any

    def __str__(self) -> str:
        return str(self.path)

    @property
    def null(self) -> Any:
        """The pointer of an operand that is left out."""
        return self.ffi.NULL

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of the library. Raises BuildError where it lacks that."""
        try:
            function: Callable[..., Any] = getattr(self.lib, name)
        except AttributeError as error:
            raise BuildError(f"{self}: {error}") from error
        return function

    def copy_in(self, kind: str) -> Callable[[Array], Any]:
        """Return what makes a pointer to the elements of an array, which it keeps alive.

        It is the function behind ``ffi.from_buffer``, which spends as long again on its arguments.
        """
        return partial(_cffi_backend.from_buffer, self.ffi.typeof(f"{c_type(kind)}[]"))

    def allocator(
        self, shape: tuple[int, ...], dtype: Any, kind: str
    ) -> Callable[[Any], tuple[Array, Any]]:
        """Return what makes arrays for results and pointers to them, aligned.

        It takes a third less time than ``arrays.empty``. To be written while the buffer at its
        argument is read, a result starts BEHIND that in its page.
        """
        cast = partial(self.ffi.cast, self.ffi.typeof("uintptr_t"))
        count = prod(shape) + arrays.PAGE // dtype.itemsize - 1
        return partial(_allocate, cast, self.copy_in(kind), count, shape, dtype)

    @property
    def copy_out(self) -> None:
        """None: results lie where the code wrote them."""

    @property
    def write(self) -> None:
        """None: arguments lie where their arrays do."""

    def part(self, argument: Any, start: int, size: int) -> Any:
        """Return the address of bytes of a buffer, which it does not keep alive."""
        return self.ffi.cast("char *", argument) + start

    def scales(self, scales: Scales, by_channel: Array) -> Any:
        """Return the struct of an integer result's scales, which keeps none of them alive."""
        struct = self.ffi.new("polysci_scales *")
        struct.scale = self.ffi.cast("float *", by_channel.ctypes.data)
        struct.residual_scale = scales.residual_scale
        struct.residual_zero, struct.y_zero = scales.residual_zero, scales.y_zero
        return struct


def load(path: Path, cdefs: str) -> Library:
    """Load a shared object whose functions ``cdefs`` declares.

    BuildError: incomplete file, a missing symbol or dependency, a directory that forbids
    execution, or declarations that are not C.
    """
    verify_shared_object(path)
    try:
        ffi = _declare(cdefs)
    except (cffi.CDefError, cffi.FFIError) as error:
        raise BuildError(f"declarations for {path}: {error}") from error
    try:
        with _bounded_spinning():
            lib = ffi.dlopen(str(path), ffi.RTLD_NOW | ffi.RTLD_LOCAL)
    except OSError as error:
        raise BuildError(f"cannot load {path}: {error}{_hint(path, str(error))}") from error
    pin_openmp()
    return Library(path, ffi, lib)


def _allocate(
    cast: Callable[[Any], Any], pointer: Callable[[Array], Any], count: int,
    shape: tuple[int, ...], dtype: Any, beside: Any,
) -> tuple[Array, Any]:  # fmt: skip
    """Make one array, as ``Library.allocator`` says."""
    memory = np.empty(count, dtype)
    start = pointer(memory)
    line = int(cast(beside)) // arrays.ALIGNMENT * arrays.ALIGNMENT
    skip = (line - arrays.BEHIND - int(cast(start))) % arrays.PAGE
    return np.ndarray(shape, dtype, memory, skip), start + skip // dtype.itemsize


def float_pointer(array: Any) -> Any:
    """Return a pointer to a NumPy array of f32, which it keeps alive."""
    return cffi.FFI().from_buffer("float[]", array)


@contextlib.contextmanager
def _bounded_spinning() -> Iterator[None]:
    """Bound how long waiting threads spin, unless the user's environment says it.

    Processes that are started later do not inherit it: other libraries keep their own.
    """
    with _loading:
        if {_SPIN, "OMP_WAIT_POLICY"} & os.environ.keys():
            yield
            return
        os.environ[_SPIN] = _SPIN_LOOPS_BESIDE_OTHERS if _others_run() else _SPIN_LOOPS
        try:
            yield
        finally:
            del os.environ[_SPIN]


def _others_run() -> bool:
    """Return whether other threads than this one are running or ready to run just now."""
    try:
        running, _, _ = Path("/proc/loadavg").read_text().split()[3].partition("/")
        return int(running) > 1
    except (OSError, ValueError, IndexError):
        return False


def openmp_runtimes() -> tuple[str, ...]:
    """Return the files of the OpenMP runtimes that this process has loaded, in text order."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return ()
    files = {line.split(maxsplit=5)[5] for line in lines if line.count(" ") >= 5 and "/" in line}
    return tuple(sorted(file for file in files if _RUNTIME.search(file)))


def pin_openmp() -> None:
    """Keep the loaded OpenMP runtimes loaded for good.

    Unloading the last library that needs one would unmap it under its own waiting threads, which
    crashes at random; call this after loading such a library.
    """
    for file in openmp_runtimes():
        if file in _pinned:
            continue
        try:
            ctypes.CDLL(file, mode=os.RTLD_NOW | _RTLD_NODELETE | _RTLD_NOLOAD)
        except OSError as error:
            raise BuildError(f"cannot keep the OpenMP runtime {file} loaded: {error}") from error
        _pinned.add(file)


def _stay_serial() -> None:
    """A child of fork has none of its parent's threads, for which GNU's OpenMP would wait."""
    for file in _pinned:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(file, mode=os.RTLD_NOW | _RTLD_NOLOAD).omp_set_max_active_levels(0)


os.register_at_fork(after_in_child=_stay_serial)
os.register_at_fork(  # a child finds it free, and the variable as it was
    before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release
)


def _declare(cdefs: str) -> Any:
    ffi = cffi.FFI()  # one for each library, because it keeps what it has loaded
    ffi.cdef(cdefs)
    return ffi


def _hint(path: Path, message: str) -> str:
    if "failed to map" in message or "Operation not permitted" in message:
        return f"; is {path.parent} mounted noexec? Set POLYSCI_CACHE_DIR to another directory"
    return ""
