"""The process that loads untrusted binaries: ``python -m polysci.measure.worker BACKEND``.

JSON lines in and out: the questions are the public methods of ``Worker``. Buffers lie between two
inaccessible pages: an access outside of one crashes or leaves a trace.
"""

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil, prod
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from polysci.errors import CheckError
from polysci.loop_ir.interface import ALIGNMENT, NO_ISA, OK
from polysci.lower.algorithm import ExactInputs
from polysci.lower.registry import ALGORITHMS, DEFAULT
from polysci.lower.registry import load as load_algorithm
from polysci.measure.disturbance import ReferenceLoop, observe, watches_samples
from polysci.measure.error_bound import Reals
from polysci.measure.integer_reference import Array, Arrays
from polysci.measure.timed_calls import PAGE_OFFSETS, Timed, count_copies
from polysci.numerics import arrays as aligned
from polysci.numerics.dtypes import precision_named
from polysci.ops import parse_problem
from polysci.ops.problem import Problem
from polysci.printers import interface
from polysci.runtime.backend import Backend, DeviceLibrary, LoadedFunctions, bind
from polysci.runtime.backends import backend_named
from polysci.runtime.build.library import Library
from polysci.runtime.worker_process import serve

Side = Literal["start", "end"]

_PROT_NONE: Final = 0
_CANARY: Final = 0xA5


class Guarded:
    """``size`` bytes that start right behind one guard page or end right before the other.

    With ``align`` (bytes) the end may stay up to ``align - 1`` bytes short of the guard page; what
    lies between buffer and guard pages is filled with a pattern that ``first_trespass`` verifies.
    ``array`` is the buffer as f32 elements, ``raw`` as bytes; both keep the memory alive.
    """

    __slots__ = ("_after", "_before", "_body", "_pages", "array", "raw")

    def __init__(self, size: int, side: Side, align: int = 4) -> None:
        page = mmap.PAGESIZE
        self._body = max(-(-size // page), 1) * page
        # The mapping belongs to the arrays made from it and goes with the last of them.
        self._pages = np.frombuffer(mmap.mmap(-1, self._body + 2 * page), np.uint8)
        self._protect(0, page, _PROT_NONE)
        self._protect(page + self._body, page, _PROT_NONE)
        first = page + (0 if side == "start" else (self._body - size) // align * align)
        self.raw: NDArray[np.uint8] = self._pages[first : first + size]
        self.array: NDArray[np.float32] = self.raw[: size // 4 * 4].view(np.float32)
        self._before = self._pages[page:first]
        self._after = self._pages[first + size : page + self._body]
        self._before[:] = self._after[:] = _CANARY

    def first_trespass(self) -> str | None:
        """Return where someone wrote outside the buffer but inside its pages, or None."""
        for where, slack in (("after the end", self._after), ("before the start", self._before)):
            touched = np.flatnonzero(slack != _CANARY)
            if touched.size:
                far = touched[-1] + 1 if slack is self._after else slack.size - touched[0]
                return f"as far as {far} bytes {where}"
        return None

    def freeze(self) -> None:
        """Make the buffer read-only: a write crashes."""
        self._protect(mmap.PAGESIZE, self._body, mmap.PROT_READ)

    def _protect(self, offset: int, size: int, protection: int) -> None:
        address = ctypes.c_void_p(self._pages.ctypes.data + offset)
        if _libc.mprotect(address, ctypes.c_size_t(size), ctypes.c_int(protection)):
            code = ctypes.get_errno()
            raise OSError(code, f"mprotect: {os.strerror(code)}")


_libc = ctypes.CDLL(None, use_errno=True)


OPERATIONS: Final = (
    *("prepare", "check", "prepare_bound", "bound"),
    *("load", "watch", "sample", "unload", "probe"),
)

_PROBE_RUNS: Final = 5
_CLOCK_ROUNDS: Final = 2000  # of 32 cycles or so: 20 microseconds
_ENDLESS: Final = 1 << 50  # iterations of a loop that does something
_UNSET: Final = 0xFF  # every byte of a buffer before a run, which makes f32 NaN


def main() -> None:
    """Answer questions until stdin ends."""
    serve(Worker(backend_named(sys.argv[1])), OPERATIONS)


def _stage(text: str) -> None:
    """Leave word of what runs now: the parent shows the end of stderr after a crash."""
    try:
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)
    except OSError:
        return  # a terminal or a pipe: the worker was started by hand
    os.write(2, text.encode())


@dataclass(slots=True)
class _NativeLoop:
    """``double symbol(int64_t iterations)`` of a library, which stays loaded with it."""

    library: DeviceLibrary
    run: Callable[[int], float]
    iterations: int = 1000

    def time(self, iterations: int = 0) -> tuple[float, float]:
        """Seconds of one run, and what it returns; of the usual number of iterations if 0."""
        start = time.perf_counter_ns()
        amount = self.run(iterations or self.iterations)
        return (time.perf_counter_ns() - start) * 1e-9, amount


def _rounds(clock: _NativeLoop | None) -> float:
    """Rounds that a clock's loop makes in a second, the better of two; without one 1."""
    runs = [clock.time(_CLOCK_ROUNDS) for _ in range(2)] if clock else [(1.0, 1.0)]
    return max(rounds / seconds for seconds, rounds in runs)


class Worker:
    """The operations; they raise ``CheckError`` for a candidate's fault."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._problem: tuple[Problem, int]
        self._arrays: Arrays
        self._special: tuple[ExactInputs, Arrays | Reals] | None = None
        self._reals: Arrays | Reals | None = None
        self._bound: tuple[str, tuple[int, ...]]  # of the reals: an algorithm and its numbers
        self._guarded: dict[tuple[int, str, Side], Guarded] = {}
        self._copies: list[tuple[Array, Array]] = []
        self._timed: list[tuple[Timed, int, bool]] = []
        self._warm: int | None = None  # the last function that was timed
        self._reference: ReferenceLoop | None = None
        self._loops: dict[tuple[str, str], _NativeLoop] = {}

    def prepare(self, problem: str, layout: str, seed: int, dtype: str = "f32") -> dict[str, Any]:
        """Make inputs and references of a problem; forgets the previous one."""
        self._problem = parse_problem(problem, layout, dtype), seed
        self._arrays, self._special, self._reals = Arrays.of(*self._problem), None, None
        self._guarded = {}
        return self.unload()

    def check(
        self, so: str, symbol: str, exact: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Compare with the references, bit for bit, between guard pages: both ends of buffers.

        ``exact`` are the fields of ``ExactInputs``.
        """
        for _ in self._verify(so, symbol, self._integers(ExactInputs(**exact))):
            pass
        return {}

    def prepare_bound(
        self, algorithm: str = ALGORITHMS[DEFAULT].location, numbers: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Make random reals and their float64 references, if they are not there."""
        problem, seed = self._problem
        bound = algorithm, tuple(numbers)
        if self._reals is None or self._bound != bound:
            self._guarded, self._bound = {}, bound
            if precision_named(problem.dtype).integer:  # nothing is rounded: other numbers
                self._reals = Arrays.of(problem, seed + 1)
            else:
                self._reals = Reals.of(problem, seed, load_algorithm(algorithm), numbers)
        return {}

    def bound(self, so: str, symbol: str, **terms: Any) -> dict[str, Any]:
        """Compare random reals with float64; ``worst`` is the largest share of the error bound.

        ``terms`` as ``prepare_bound`` takes them.
        """
        self.prepare_bound(**terms)
        assert self._reals is not None
        results = self._verify(so, symbol, self._reals)
        return {"worst": max(self._reals.worst(variant, y) for variant, y in results)}

    def load(
        self,
        so: str,
        symbol: str,
        cold_bytes: int,
        min_sample_s: float,
        weights_only: bool = False,
    ) -> dict[str, Any]:
        """Pack weights, warm up and decide how many calls make a sample; answers a handle.

        With ``cold_bytes`` successive calls use other buffers, of at least so many bytes in all;
        with ``weights_only`` other packed weights alone.
        """
        functions = self._bind(so, symbol)
        # The largest problems need the memory now.
        self._guarded, self._special, self._reals = {}, None, None
        _stage(f"timing {symbol}")
        timed = self._ready(functions, cold_bytes, weights_only)
        self._timed.append((timed, timed.calls(min_sample_s), cold_bytes > 0))
        self._warm = None
        return {"handle": len(self._timed) - 1}

    def sample(self, handle: int, warm_up_s: float = 0.0) -> dict[str, Any]:
        """Return a sample, in seconds a call; where caches shall be warm, after an untimed call.

        There is none right behind a sample of the same function. The untimed calls last at least
        ``warm_up_s``; with cold caches they use other buffers too. The other members are those of
        ``Sample``.
        """
        timed, calls, cold = self._timed[handle]
        if warm_up_s or not (cold or self._warm == handle):
            timed.warm_up(warm_up_s)
        self._warm = handle
        seconds, _, shares = self._observe(lambda: (timed.seconds(calls) * calls, calls))
        return {"seconds": seconds / calls, **shares}

    def _observe(
        self, work: Callable[[], tuple[float, float]]
    ) -> tuple[float, float, dict[str, float]]:
        """Return the seconds and amount that ``work`` returns, and the shares of a ``Sample``."""
        speed = self._speed()
        (seconds, amount), shares = observe(work)
        return seconds, amount, shares | {"speed": min(speed, self._speed())}

    def watch(self, so: str, symbol: str, least: float) -> dict[str, Any]:
        """Run a loop of known work, ``double symbol(int64_t iterations)``, around every sample.

        It is known to have returned ``least`` a second.
        """
        if not watches_samples():
            return {}
        _stage(f"timing {symbol}")
        self._reference = ReferenceLoop(self._loop(so, symbol).run, least)
        for _ in range(_PROBE_RUNS):
            self._reference.speed()
        return {}

    def _speed(self) -> float:
        return self._reference.speed() if self._reference else 1.0

    def _loop(self, so: str, symbol: str) -> _NativeLoop:
        """``double symbol(int64_t iterations)``, loaded until the worker ends."""
        if (so, symbol) not in self._loops:
            library = self._backend.load(Path(so), f"double {symbol}(int64_t iterations);")
            self._loops[so, symbol] = _NativeLoop(library, library.function(symbol))
        return self._loops[so, symbol]

    def unload(self) -> dict[str, Any]:
        """Free the buffers of everything loaded."""
        self._timed, self._copies, self._warm = [], [], None
        return {}

    def probe(
        self, so: str, symbol: str, run_s: float, clock: tuple[str, str] | None = None
    ) -> dict[str, Any]:
        """Some runs of ``double symbol(int64_t iterations)``, of at least ``run_s`` seconds.

        Each has the members of a ``Sample``, in seconds for a unit of what the loop returns.
        ``clock`` is the library and symbol of a loop of that kind whose rounds tell the clock. It
        runs behind each, where the core's clock is what multiplying made it; the median counts.
        """
        _stage(f"timing {symbol}")
        loop, runs = self._loop(so, symbol), list[dict[str, float]]()
        tick, rates = self._loop(*clock) if clock else None, list[float]()
        while len(runs) < _PROBE_RUNS:
            seconds, amount, shares = self._observe(loop.time)
            rates.append(_rounds(tick))
            if not amount > 0 or loop.iterations > _ENDLESS:
                raise CheckError(f"{symbol}({loop.iterations}): did nothing, returned {amount}")
            if seconds < run_s:
                loop.iterations *= 2
            else:
                runs.append({"seconds": seconds / amount, **shares})
        return {"runs": [run | {"clock": median(rates)} for run in runs]}

    def _integers(self, exact: ExactInputs) -> Arrays | Reals:
        """Exact inputs with their results; those of one algorithm beside the usual ones."""
        activated = bool(self._problem[0].activation)
        if exact == ExactInputs() and not activated:
            return self._arrays
        if self._special is None or self._special[0] != exact:
            arrays = Arrays.of(*self._problem, exact)
            reference = Reals.of_integers(self._problem[0], arrays) if activated else arrays
            self._special, self._guarded = (exact, reference), {}
        return self._special[1]

    def _verify(
        self, so: str, symbol: str, reference: Arrays | Reals
    ) -> Iterator[tuple[str, Array]]:
        """Yield every variant and its checked result, with buffers at either guard page."""
        functions = self._bind(so, symbol)
        yield from self._results(symbol, functions, reference, "end", ("plain", "fused"))
        yield from self._results(symbol, functions, reference, "start", ("fused",))

    def _results(
        self,
        symbol: str,
        functions: LoadedFunctions,
        reference: Arrays | Reals,
        side: Side,
        variants: tuple[str, ...],
    ) -> Iterator[tuple[str, Array]]:
        pointer = _pointers(functions)
        shape, y_type = self._problem[0].y_shape, precision_named(self._problem[0].dtype).y
        zero, to = _quantities(functions, reference, side)
        where = f"with the {side} of every buffer at a guard page"
        _stage(f"{symbol}_pack_weights, {where}")
        packed = _unset(functions.packed_size, side, ALIGNMENT)
        w = self._input(reference, "w", side)
        functions.pack(pointer(w.raw), pointer(packed.raw), *zero)
        _expect_intact(f"{symbol}_pack_weights", packed=packed)
        packed.freeze()
        for variant in variants:
            what = f"{symbol}, {'bias + residual + clamp' if variant == 'fused' else 'plain'} call"
            _stage(f"{what}, {where}")
            y = _unset(y_type.bytes * prod(shape), side, y_type.bytes)
            workspace = _unset(functions.workspace_size, side, ALIGNMENT)
            optional = [
                pointer(self._input(reference, name, side).raw if variant == "fused" else None)
                for name in ("bias", "residual", "clamp")
            ]
            x = pointer(self._input(reference, "x", side).raw)
            status = functions.run(
                x, pointer(packed.raw), pointer(y.raw), *optional, *to[:1], pointer(workspace.raw)
            )
            _expect_ok(what, status)
            _expect_intact(what, y=y, workspace=workspace)
            result = y.raw.view(y_type.numpy).reshape(shape)
            if fault := reference.fault(variant, result):
                raise CheckError(f"{what}: wrong result: {fault}")
            yield variant, result

    def _bind(self, so: str, symbol: str) -> LoadedFunctions:
        _stage(f"loading {symbol}")
        precision = precision_named(self._problem[0].dtype)
        library = self._backend.load(Path(so), interface.declarations(symbol, precision))
        return bind(library, symbol)

    def _input(self, reference: Arrays | Reals, name: str, side: Side) -> Guarded:
        """Return an input in read-only memory, made once for each placement."""
        key = id(reference), name, side
        if key not in self._guarded:
            array = reference.inputs[name]
            guarded = Guarded(array.nbytes, side, array.itemsize)
            guarded.raw[:] = array.reshape(-1).view(np.uint8)
            guarded.freeze()
            self._guarded[key] = guarded
        return self._guarded[key]

    def _ready(self, functions: LoadedFunctions, cold_bytes: int, weights_only: bool) -> Timed:
        pointer, (of_x, of_y, of_w, of_workspace) = _pointers(functions), PAGE_OFFSETS
        x, y = self._arrays.inputs["x"], self._arrays.plain
        size = functions.packed_size + (0 if weights_only else x.nbytes + y.nbytes)
        count = count_copies(size, cold_bytes)
        pairs = 1 if weights_only else count
        while len(self._copies) < pairs:
            self._copies.append((aligned.reserve_copy(x, of_x), aligned.reserve_copy(y, of_y)))
        packed = [aligned.reserve([ceil(functions.packed_size / 4)], of_w)]
        w = aligned.copy(self._arrays.inputs["w"])  # a name: a pointer does not keep it alive
        zero, to = _quantities(functions, self._arrays)
        timed = (0,) * len(zero)  # as after a ReLU
        functions.pack(pointer(w), pointer(packed[0]), *timed)
        packed += [aligned.reserve_copy(packed[0], of_w) for _ in range(count - 1)]
        workspace = aligned.reserve([ceil(functions.workspace_size / 4)], of_workspace)
        fixed = (*[pointer(None)] * 3, *to[:1], pointer(workspace))
        calls = [
            (pointer(x), pointer(p), pointer(y), *fixed)
            for (x, y), p in zip(cycle(self._copies[:pairs]), packed, strict=False)
        ]
        _expect_ok("timed call", functions.run(*calls[0]))
        kept = (functions, packed, workspace, to)
        return Timed(self._backend, functions.run, cycle(calls), kept)


def _ffi_of(functions: LoadedFunctions) -> Any:
    """Return what makes the pointers of a library of the host."""
    assert isinstance(functions.library, Library)
    return functions.library.ffi


def _pointers(functions: LoadedFunctions) -> Callable[[Array | None], Any]:
    ffi = _ffi_of(functions)
    return lambda array: ffi.cast("void *", 0 if array is None else array.ctypes.data)


def _quantities(
    functions: LoadedFunctions, reference: Arrays | Reals, side: Side = "end"
) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Return packing's arguments behind its pointers, and the scales for C with their memory."""
    if isinstance(reference, Reals) or reference.x_zero is None:
        return (), ()
    zero, scales = (reference.x_zero,), reference.scales
    if scales is None:
        return zero, ()
    ffi = _ffi_of(functions)
    channels = reference.inputs["bias"].size
    guarded = Guarded(4 * channels, side)
    guarded.array[:] = scales.by_channel(channels)
    guarded.freeze()
    struct = ffi.new("polysci_scales *")
    struct.scale = ffi.cast("float *", guarded.array.ctypes.data)
    struct.residual_scale, struct.y_zero = scales.residual_scale, scales.y_zero
    struct.residual_zero = scales.residual_zero
    return zero, (struct, guarded)


def _unset(size: int, side: Side, align: int) -> Guarded:
    guarded = Guarded(size, side, align)
    guarded.raw[:] = _UNSET
    return guarded


def _expect_ok(what: str, status: int) -> None:
    if status == NO_ISA:
        raise CheckError(f"{what}: this CPU lacks the instruction set it was generated for")
    if status != OK:
        raise CheckError(f"{what}: returned {status}, expected {OK}")


def _expect_intact(what: str, **buffers: Guarded) -> None:
    for name, buffer in buffers.items():
        if where := buffer.first_trespass():
            raise CheckError(f"{what}: wrote outside {name}: {where}")


if __name__ == "__main__":
    main()
