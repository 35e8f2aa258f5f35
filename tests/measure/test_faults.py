"""Faulty code in every precision: the worker notices; sound code it times."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache as cache_of_calls
from math import prod
from pathlib import Path
from typing import Any

import pytest

from polysci.measure.bench import Bench, CandidateError
from polysci.numerics.dtypes import PRECISIONS
from polysci.ops.convolutions import Conv2d
from polysci.runtime.build import cache
from polysci.runtime.source import Source
from polysci.space.schedule import Schedule, parse
from polysci.tune import EmitOptions, emit
from tests.support.flags import QUICK
from tests.support.naive import with_text

PROBLEM = Conv2d(N=1, C=6, H=5, W=4, K=9, R=3, S=3, pad=1)
# C before the entry point's last statement; @x and the like are bytes of operands.
FAULTS = {
    "wrong": ("((uint8_t *)y)[@y - 1] ^= 0x40;", "1 of 180 elements"),
    "unwritten": ("__builtin_memset((uint8_t *)y + @y / 2, 0xff, 4 * @item);", "elements"),
    "writes behind y": ("((volatile uint8_t *)y)[@y] = 0;", "SIGSEGV"),
    "writes before y": ("((volatile uint8_t *)y)[-1] = 0;", "wrote outside y"),
    "reads behind x": ("(void)((const volatile uint8_t *)x)[@x];", "SIGSEGV"),
    "reads before x": ("(void)((const volatile uint8_t *)x)[-1];", "SIGSEGV"),
    "reads behind the bias": ("if (bias) (void)((const volatile uint8_t *)bias)[36];", "SIGSEGV"),
    "reads behind the residual": (
        "if (residual) (void)((const volatile uint8_t *)residual)[@y];", "SIGSEGV",
    ),
    "reads behind the scales": ("(void)((const volatile float *)to->scale)[9];", "SIGSEGV"),
    "writes weights": ("((volatile uint8_t *)(uintptr_t)packed)[0] = 0;", "SIGSEGV"),
    "forgets the clamp": ("", "clamp call: wrong result"),
    "forgets the offsets": ("", "wrong result"),
    "forgets the zero point of y": ("", "wrong result"),
}  # fmt: skip
# Where the fault is no statement more, but one changed.
CHANGES = {
    "forgets the clamp": {".clamp = clamp": ".clamp = 0", "(limits, clamp,": "(limits, 0,"},
    "forgets the offsets": {"((uint32_t)(x_zero + PS_FLIP)) * sum": "0 * sum"},
    "forgets the zero point of y": {
        "args.to = to": "polysci_scales without = *to; without.y_zero = 0; args.to = &without",
    },
}  # fmt: skip
NEEDS = {"forgets the offsets": "integer"}
NEEDS |= dict.fromkeys(("reads behind the scales", "forgets the zero point of y"), "scaled")


# One precision for each pair of sizes of x and y, and both kinds of integer sums: make test-all.
ALL_FAULTS = ("f32", "bf16", "bf16:bf16:f32", "u8:s8:u8", "s8:s8:s32")


def cases() -> list[Any]:
    return [
        pytest.param(
            dtype, fault, marks=[pytest.mark.slow] * (bool(fault) and dtype not in ALL_FAULTS)
        )
        for dtype, row in PRECISIONS.items()
        for fault in ("", *FAULTS)
        if not fault or fault not in NEEDS or getattr(row, NEEDS[fault])
    ]


def symbol(fault: str) -> str:
    return f"it_{[*FAULTS, ''].index(fault)}"


def faulty(problem: Conv2d, plan: Schedule, fault: str) -> Source:
    """The code of a problem with one of FAULTS; the sound code for none."""
    source = emit(problem, plan, 1, EmitOptions(symbol(fault)))
    if fault in CHANGES:
        text = source.text
        for right, wrong in CHANGES[fault].items():
            text = text.replace(right, wrong)
        assert text != source.text
        return with_text(source, text)
    statement, row = FAULTS[fault][0] if fault else "", source.precision
    sizes = {"x": problem.x_shape, "y": problem.y_shape}
    for name, shape in sizes.items():
        statement = statement.replace(f"@{name}", str(prod(shape) * getattr(row, name).bytes))
    statement = statement.replace("@item", str(row.y.bytes))
    head, end, tail = source.text.partition("return 0;")
    assert end and "}" in tail
    return with_text(source, f"{head}{statement}\n  {end}{tail}")


def build(dtype: str, fault: str) -> Path:
    """The shared object of the problem in a precision with one of FAULTS, or none."""
    compute = "i16" if PRECISIONS[dtype].integer else "f32"
    plan = parse(f"pack(A) p k:4 > brgemm_portable_{compute}_4x4")
    return cache.build(faulty(PROBLEM.with_(dtype=dtype), plan, fault).file, flags=QUICK)


@pytest.fixture(scope="module")
def benches() -> Iterator[Callable[[str], Bench]]:
    """``benches(dtype)``: a worker each, started anew after a fault that ends it."""
    with ExitStack() as stack:
        yield cache_of_calls(
            lambda dtype: stack.enter_context(Bench(PROBLEM.with_(dtype=dtype), timeout=60))
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize(("dtype", "fault"), cases())
def test_faults_are_noticed(benches: Callable[[str], Bench], dtype: str, fault: str) -> None:
    """Wrong results in both modes."""
    candidate, bench = (build(dtype, fault), symbol(fault)), benches(dtype)
    if not fault:
        bench.check(*candidate)
        assert bench.bound(*candidate) <= 1
        return
    message = FAULTS[fault][1]
    with pytest.raises(CandidateError, match=message):
        bench.check(*candidate)
    if "SIGSEGV" not in message:
        with pytest.raises(CandidateError, match=message):
            bench.bound(*candidate)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_samples_are_seconds_a_call(benches: Callable[[str], Bench], dtype: str) -> None:
    sound = build(dtype, ""), symbol("")
    for cold in (False, True):
        (times,) = benches(dtype).time([sound], samples=1, cold=cold, min_sample_s=1e-4)
        assert len(times.seconds) >= 3
        assert all(1e-7 < seconds < 1 for seconds in times.seconds)
