"""The process that loads untrusted binaries: ``python -m polysci.measure.worker BACKEND``.

JSON lines in and out: the questions are the public methods of ``Worker``.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from polysci.errors import CheckError
from polysci.lower.algorithm import ExactInputs
from polysci.lower.registry import ALGORITHMS, DEFAULT
from polysci.lower.registry import load as load_algorithm
from polysci.measure.checked_call import OPTIONAL, CheckedCall, expect_ok
from polysci.measure.disturbance import ReferenceLoop, observe, watches_samples
from polysci.measure.error_bound import Reals
from polysci.measure.integer_reference import Array, Arrays
from polysci.measure.operands import CheckedOperand, CheckMemory, Guarded, Side, check_memory
from polysci.measure.timed_calls import PAGE_OFFSETS, Timed, count_copies
from polysci.numerics import arrays as aligned
from polysci.numerics.dtypes import precision_named
from polysci.ops import parse_problem
from polysci.ops.problem import Problem
from polysci.printers import interface
from polysci.runtime.backend import Argument, Backend, DeviceLibrary, LoadedFunctions, bind
from polysci.runtime.backends import backend_named
from polysci.runtime.build.library import Library
from polysci.runtime.worker_process import serve
from polysci.target.target import HOST

OPERATIONS: Final = (
    *("prepare", "check", "prepare_bound", "bound"),
    *("load", "watch", "sample", "unload", "probe", "probe_device"),
)

_PROBE_RUNS: Final = 5
_CLOCK_ROUNDS: Final = 2000  # of 32 cycles or so: 20 microseconds
_ENDLESS: Final = 1 << 50  # iterations of a loop that does something


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
    os.write(2, f"{text}\n".encode())  # what a driver says of its end is a line of its own


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
        self._inputs: dict[tuple[int, str, Side], CheckedOperand] = {}
        self._copies: list[tuple[Argument, Argument, tuple[Array, Array]]] = []
        self._timed: list[tuple[Timed, int, bool]] = []
        self._warm: int | None = None  # the last function that was timed
        self._reference: ReferenceLoop | None = None
        self._loops: dict[tuple[str, str], _NativeLoop] = {}
        self._device: tuple[Any, Callable[..., Any], list[Argument]] | None = None

    def prepare(self, problem: str, layout: str, seed: int, dtype: str = "f32") -> dict[str, Any]:
        """Make inputs and references of a problem; forgets the previous one."""
        self._problem = parse_problem(problem, layout, dtype), seed
        self._arrays, self._special, self._reals = Arrays.of(*self._problem), None, None
        self._inputs = {}
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
            self._inputs, self._bound = {}, bound
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
        self._inputs, self._special, self._reals = {}, None, None
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
        """Return the seconds and amount that ``work`` returns, and the shares of a ``Sample``.

        Those of a device are by its own clock, which no thread that waits here changes.
        """
        if self._backend.name != HOST:
            return *work(), {}
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
        self._timed, self._copies, self._warm, self._device = [], [], None, None
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

    def probe_device(
        self, so: str, symbol: str, sizes: Sequence[int], run_s: float, turns: int = 0
    ) -> dict[str, Any]:
        """Some runs of a device's loop ``symbol(turns, buffers...)``, in seconds.

        They have ``turns``, or if that is 0 as many as take ``run_s`` seconds. Buffers of ``sizes``
        bytes hold floats of 0.5. Times are by this process's clock: a device's may begin late where
        other work holds its driver back.
        """
        _stage(f"timing {symbol}")
        run, buffers = self._device_loop(so, symbol, tuple(sizes))

        def seconds(count: int) -> float:
            start = time.perf_counter()
            run(count, *buffers)
            return time.perf_counter() - start

        count = turns or 1
        while True:
            runs = [seconds(count) for _ in range(_PROBE_RUNS)]
            if turns or min(runs) >= run_s:
                return {"turns": count, "runs": runs}
            if count > _ENDLESS:
                raise CheckError(f"{symbol}: {count} turns take no time")
            count *= 2

    def _device_loop(
        self, so: str, symbol: str, sizes: tuple[int, ...]
    ) -> tuple[Callable[..., Any], list[Argument]]:
        """Return a device's loop, which has run once, and its buffers; those of the last loop."""
        if self._device is None or self._device[0] != (so, symbol, sizes):
            self._device = None  # its buffers give room to the next ones
            library = self._backend.load(Path(so), "")
            run, copy = library.function(symbol), library.copy_in("float32")
            buffers = [copy(np.full(ceil(size / 4), 0.5, np.float32)) for size in sizes]
            run(1, *buffers)
            self._device = (so, symbol, sizes), run, buffers
        _, run, buffers = self._device
        return run, buffers

    def _integers(self, exact: ExactInputs) -> Arrays | Reals:
        """Exact inputs with their results; those of one algorithm beside the usual ones."""
        activated = bool(self._problem[0].activation)
        if exact == ExactInputs() and not activated:
            return self._arrays
        if self._special is None or self._special[0] != exact:
            arrays = Arrays.of(*self._problem, exact)
            reference = Reals.of_integers(self._problem[0], arrays) if activated else arrays
            self._special, self._inputs = (exact, reference), {}
        return self._special[1]

    def _verify(
        self, so: str, symbol: str, reference: Arrays | Reals
    ) -> Iterator[tuple[str, Array]]:
        """Yield every variant and its checked result, with buffers at either guard page."""
        functions = self._bind(so, symbol)
        for side in check_memory(functions.library).sides:
            variants = ("plain", "fused") if side == "end" else ("fused",)
            yield from self._results(symbol, functions, reference, side, variants)

    def _results(
        self,
        symbol: str,
        functions: LoadedFunctions,
        reference: Arrays | Reals,
        side: Side,
        variants: tuple[str, ...],
    ) -> Iterator[tuple[str, Array]]:
        memory = check_memory(functions.library)
        zero, to = _quantities(functions, reference, side)
        call = CheckedCall(symbol, functions, memory, side, self._problem[0], zero, to[:1])
        where = memory.words(side)
        _stage(f"{symbol}_pack_weights, {where}")
        w = self._input(memory, reference, "w", side)
        packed = call.pack(w)
        for variant in variants:
            what = f"{symbol}, {'bias + residual + clamp' if variant == 'fused' else 'plain'} call"
            _stage(f"{what}, {where}")
            names = ("x", *OPTIONAL) if variant == "fused" else ("x",)
            operands = {name: self._input(memory, reference, name, side) for name in names}
            result = call.run(what, operands, packed)
            if fault := reference.fault(variant, result):
                cause = call.cause(what, operands, w, result)
                raise CheckError(f"{what}: wrong result: {fault}{cause}")
            yield variant, result

    def _bind(self, so: str, symbol: str) -> LoadedFunctions:
        _stage(f"loading {symbol}")
        precision = precision_named(self._problem[0].dtype)
        library = self._backend.load(Path(so), interface.declarations(symbol, precision))
        return bind(library, symbol)

    def _input(
        self, memory: CheckMemory, reference: Arrays | Reals, name: str, side: Side
    ) -> CheckedOperand:
        """Return an input in memory to read, made once for each placement."""
        key = id(reference), name, side
        if key not in self._inputs:
            self._inputs[key] = memory.keep(reference.inputs[name], side)
        return self._inputs[key]

    def _ready(self, functions: LoadedFunctions, cold_bytes: int, weights_only: bool) -> Timed:
        library, (of_x, of_y, of_w, of_workspace) = functions.library, PAGE_OFFSETS
        place = check_memory(library).place
        x, y = self._arrays.inputs["x"], self._arrays.plain
        size = functions.packed_size + (0 if weights_only else x.nbytes + y.nbytes)
        count = count_copies(size, cold_bytes)
        pairs = 1 if weights_only else count
        while len(self._copies) < pairs:
            pair = aligned.reserve_copy(x, of_x), aligned.reserve_copy(y, of_y)
            self._copies.append((*map(place, pair), pair))
        packed = aligned.reserve([ceil(functions.packed_size / 4)], of_w)
        w = aligned.copy(self._arrays.inputs["w"])  # a name: a pointer does not keep it alive
        zero, to = _quantities(functions, self._arrays)
        timed = (0,) * len(zero)  # as after a ReLU
        first = place(packed)
        functions.pack(place(w), first, *timed)
        if library.copy_out:
            library.copy_out(first, packed)
        copies = [packed, *(aligned.reserve_copy(packed, of_w) for _ in range(count - 1))]
        workspace = aligned.reserve([ceil(functions.workspace_size / 4)], of_workspace)
        fixed = (*[library.null] * 3, *to[:1], place(workspace))
        calls = [
            (x, p, y, *fixed)
            for (x, y, _), p in zip(
                cycle(self._copies[:pairs]), [first, *map(place, copies[1:])], strict=False
            )
        ]
        expect_ok("timed call", functions.run(*calls[0]))
        kept = (functions, copies, workspace, to)
        return Timed(self._backend, functions.run, cycle(calls), kept)


def _quantities(
    functions: LoadedFunctions, reference: Arrays | Reals, side: Side = "end"
) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Return packing's arguments behind its pointers, and the scales for C with their memory."""
    if isinstance(reference, Reals) or reference.x_zero is None:
        return (), ()
    zero, scales = (reference.x_zero,), reference.scales
    if scales is None:
        return zero, ()
    channels = reference.inputs["bias"].size
    if not isinstance(functions.library, Library):
        return zero, (functions.library.scales(scales, scales.by_channel(channels)),)
    ffi = functions.library.ffi
    guarded = Guarded(4 * channels, side)
    guarded.array[:] = scales.by_channel(channels)
    guarded.freeze()
    struct = ffi.new("polysci_scales *")
    struct.scale = ffi.cast("float *", guarded.array.ctypes.data)
    struct.residual_scale, struct.y_zero = scales.residual_scale, scales.y_zero
    struct.residual_zero = scales.residual_zero
    return zero, (struct, guarded)


if __name__ == "__main__":
    main()
