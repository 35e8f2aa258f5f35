"""The process that loads untrusted binaries: ``python -m polysci.worker``, JSON lines in and out.

One question a line, ``{"op": "check", "so": ..., "symbol": ...}``: the public methods of
``Worker``. One answer a line; a candidate's fault that the process survives is ``{"fault": text}``.
Whatever the loaded code prints goes to stderr.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from math import ceil, inf
from pathlib import Path
from typing import IO, Any, Final

from polysci import abi, aligned
from polysci.build.library import load
from polysci.build.process import exit_with_parent
from polysci.errors import CheckError, PolysciError
from polysci.exact import Arrays, Floats, difference
from polysci.guard import Guarded, Side
from polysci.ops import parse_problem

OPERATIONS: Final = ("prepare", "check", "load", "sample", "unload", "peak")

_WARM_UP_S: Final = 5e-3
_PEAK_RUNS: Final = 7
_PEAK_RUN_S: Final = 10e-3
_COPIES: Final = 1 << 14  # problems of under 4 KiB stay in some cache
_UNSET: Final = 0xFF  # every byte of a buffer before a run, which makes f32 NaN


def main() -> None:
    """Answer questions until stdin ends."""
    exit_with_parent()
    questions, answers = _private_pipes()
    worker = Worker()
    for line in questions:
        question = json.loads(line)
        op = question.pop("op")
        if op not in OPERATIONS:
            raise ValueError(f"op: expected one of {', '.join(OPERATIONS)}, got {op!r}")
        try:
            answer = getattr(worker, op)(**question)
        except PolysciError as error:
            answer = {"fault": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _private_pipes() -> tuple[IO[str], IO[str]]:
    """Take stdin and stdout away from the code that will be loaded: its stdout joins stderr."""
    questions = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return questions, answers


def _stage(text: str) -> None:
    """Leave word of what runs now: the parent shows the end of stderr after a crash."""
    try:
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)
    except OSError:
        return  # a terminal or a pipe: the worker was started by hand
    os.write(2, text.encode())


@dataclass(frozen=True, slots=True)
class Timed:
    """A candidate ready to be timed: its function, and the arguments of successive calls.

    ``keep`` holds the memory that the arguments point to.
    """

    run: Callable[..., int]
    arguments: Iterator[tuple[Any, ...]]
    keep: tuple[Any, ...]

    def seconds(self, calls: int) -> float:
        """Mean time of one of several calls in a row; the Python loop adds 0.3 us to each."""
        run, arguments = self.run, list(islice(self.arguments, calls))
        start = time.perf_counter_ns()
        for each in arguments:
            run(*each)
        return (time.perf_counter_ns() - start) / calls * 1e-9


class Worker:
    """The operations; they raise ``CheckError`` for a candidate's fault."""

    def __init__(self) -> None:
        self._arrays: Arrays
        self._guarded: dict[tuple[str, Side], Guarded] = {}
        self._copies: list[tuple[Floats, Floats]] = []
        self._timed: list[tuple[Timed, int, bool]] = []

    def prepare(self, problem: str, layout: str, seed: int) -> dict[str, Any]:
        """Make inputs and references of a problem; forgets the previous one."""
        self._arrays = Arrays.of(parse_problem(problem, layout), seed)
        self._guarded = {}
        return self.unload()

    def check(self, so: str, symbol: str) -> dict[str, Any]:
        """Compare with the references, bit for bit, between guard pages: both ends of buffers."""
        functions = _bind(so, symbol)
        self._check(symbol, functions, "end", ("plain", "fused"))
        self._check(symbol, functions, "start", ("fused",))
        return {}

    def load(self, so: str, symbol: str, cold_bytes: int, min_sample_s: float) -> dict[str, Any]:
        """Pack weights, warm up and decide how many calls make a sample; answers a handle.

        With ``cold_bytes`` successive calls use other buffers, of at least so many bytes in all.
        """
        functions = _bind(so, symbol)
        self._guarded = {}  # the largest problems need the memory now
        _stage(f"timing {symbol}")
        timed = self._ready(functions, cold_bytes)
        least = max(min_sample_s, 100 * time.get_clock_info("perf_counter").resolution)
        spent, calls, once = 0.0, 0, inf
        while calls < 2 or (spent < _WARM_UP_S and calls < 1000):
            seconds = timed.seconds(1)
            spent, calls, once = spent + seconds, calls + 1, min(once, seconds)
        self._timed.append((timed, ceil(least / once), cold_bytes > 0))
        return {"handle": len(self._timed) - 1}

    def sample(self, handle: int) -> dict[str, Any]:
        """One sample, in seconds a call; where caches shall be warm, after an untimed call."""
        timed, calls, cold = self._timed[handle]
        if not cold:
            timed.seconds(1)
        return {"seconds": timed.seconds(calls)}

    def unload(self) -> dict[str, Any]:
        """Free the buffers of everything loaded."""
        self._timed, self._copies = [], []
        return {}

    def peak(self, so: str, symbol: str) -> dict[str, Any]:
        """GFLOP/s of ``double symbol(int64_t iterations)``, which returns the flops it did."""
        _stage(f"timing {symbol}")
        library = load(Path(so), f"double {symbol}(int64_t iterations);")
        run: Callable[[int], float] = getattr(library.lib, symbol)
        iterations, rates = 1000, [0.0]
        while len(rates) <= _PEAK_RUNS and iterations < 1 << 50:
            start = time.perf_counter_ns()
            flops = run(iterations)
            seconds = (time.perf_counter_ns() - start) * 1e-9
            if seconds < _PEAK_RUN_S:
                iterations *= 2
            else:
                rates.append(flops / seconds * 1e-9)
        return {"gflops": max(rates)}

    def _check(
        self, symbol: str, functions: abi.Functions, side: Side, variants: tuple[str, ...]
    ) -> None:
        pointer = _pointers(functions)
        where = f"with the {side} of every buffer at a guard page"
        _stage(f"{symbol}_pack_weights, {where}")
        packed = _unset(functions.packed_size, side, abi.ALIGNMENT)
        functions.pack(pointer(self._input("w", side).array), pointer(packed.array))
        _expect_intact(f"{symbol}_pack_weights", packed=packed)
        packed.freeze()
        for variant in variants:
            what = f"{symbol}, {'bias + residual + clamp' if variant == 'fused' else 'plain'} call"
            _stage(f"{what}, {where}")
            expected: Floats = getattr(self._arrays, variant)
            y = _unset(expected.nbytes, side, 4)
            workspace = _unset(functions.workspace_size, side, abi.ALIGNMENT)
            optional = [
                pointer(self._input(name, side).array) if variant == "fused" else pointer(None)
                for name in ("bias", "residual", "clamp")
            ]
            x = pointer(self._input("x", side).array)
            status = functions.run(
                x, pointer(packed.array), pointer(y.array), *optional, pointer(workspace.array)
            )
            _expect_ok(what, status)
            _expect_intact(what, y=y, workspace=workspace)
            if fault := difference(y.array.reshape(expected.shape), expected):
                raise CheckError(f"{what}: wrong result: {fault}")

    def _input(self, name: str, side: Side) -> Guarded:
        """An input in read-only memory, made once for each placement."""
        if (name, side) not in self._guarded:
            array = self._arrays.inputs[name]
            guarded = Guarded(array.nbytes, side)
            guarded.array[:] = array.ravel()
            guarded.freeze()
            self._guarded[name, side] = guarded
        return self._guarded[name, side]

    def _ready(self, functions: abi.Functions, cold_bytes: int) -> Timed:
        pointer = _pointers(functions)
        x, y = self._arrays.inputs["x"], self._arrays.plain
        each = x.nbytes + y.nbytes + functions.packed_size
        count = 1 + min(cold_bytes // max(each, 1), _COPIES)
        while len(self._copies) < count:
            self._copies.append((aligned.copy(x), aligned.copy(y)))
        packed = [aligned.empty([ceil(functions.packed_size / 4)])]
        functions.pack(pointer(aligned.copy(self._arrays.inputs["w"])), pointer(packed[0]))
        packed += [aligned.copy(packed[0]) for _ in range(count - 1)]
        workspace = aligned.empty([ceil(functions.workspace_size / 4)])
        fixed = (*[pointer(None)] * 3, pointer(workspace))
        calls = [
            (pointer(x), pointer(p), pointer(y), *fixed)
            for (x, y), p in zip(self._copies[:count], packed, strict=True)
        ]
        _expect_ok("timed call", functions.run(*calls[0]))
        return Timed(functions.run, cycle(calls), (functions, packed, workspace))


def _bind(so: str, symbol: str) -> abi.Functions:
    _stage(f"loading {symbol}")
    return abi.bind(load(Path(so), abi.declarations(symbol)), symbol)


def _pointers(functions: abi.Functions) -> Callable[[Floats | None], Any]:
    ffi: Any = functions.library.ffi
    return lambda array: ffi.cast("float *", 0 if array is None else array.ctypes.data)


def _unset(size: int, side: Side, align: int) -> Guarded:
    guarded = Guarded(size, side, align)
    guarded.raw[:] = _UNSET
    return guarded


def _expect_ok(what: str, status: int) -> None:
    if status == abi.NO_ISA:
        raise CheckError(f"{what}: this CPU lacks the instruction set it was generated for")
    if status != abi.OK:
        raise CheckError(f"{what}: returned {status}, expected {abi.OK}")


def _expect_intact(what: str, **buffers: Guarded) -> None:
    for name, buffer in buffers.items():
        if where := buffer.trespassed():
            raise CheckError(f"{what}: wrote outside {name}: {where}")


if __name__ == "__main__":
    main()
