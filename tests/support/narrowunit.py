"""Conversions between narrow and 32-bit numbers beside NumPy's, and the process that checks them.

``python -m tests.support.narrowunit UNIT.so`` prints the name of a function before it runs it.
"""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polysci.measure.operands import Guarded
from polysci.numerics.dtypes import from_bf16
from polysci.printers.headers import headers
from polysci.target.isas import isa_named
from polysci.target.microkernels import HeaderSet, header
from tests.support.kernelunit import DATA, ROOT, runnable_text

Array = np.ndarray[Any, Any]
SEED = 5


def text(isa: str, *, stand_in: bool = False, fault: str = "") -> str:
    """A unit's C text: the vector headers of an ISA, and loops around its conversions.

    ``stand_in``: as this CPU can run it. ``fault``: a macro that replaces a conversion.
    """
    shared = headers(HeaderSet(isa, "f32", "f16", "f16"))
    shared = shared[: shared.index(header("x_f16"))]  # what stands before the element types
    if stand_in:
        shared = runnable_text(isa, shared)
    flushes = int("avx512bf16" in isa_named(isa).chain)
    defined = f"#define FLUSHES {flushes}\n#define {fault or 'NO_FAULT'}"
    return "\n".join([shared, defined, (DATA / "narrow.c").read_text(encoding="utf-8")])


def reals() -> Array:
    """f32: every pattern of the high half with low halves near ties, and random ones."""
    rng = np.random.default_rng(SEED)
    high = np.arange(65536, dtype=np.uint32) << 16
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    random = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32)
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # between neighbours in f16: ties
        between = (halves[:-1].astype(np.float64) + halves[1:]).astype(np.float32) / 2
    near = between.view(np.uint32)
    edges = np.array([65504, 65519.996, 65520, 2.0**-24, 2.0**-25, 2.0**-26], np.float32)
    bits = [(high[:, None] | low).ravel(), random, halves.view(np.uint32), near, near + 1, near - 1]
    return np.concatenate([*bits, edges.view(np.uint32)]).astype(np.uint32).view(np.float32)


def moderate() -> Array:
    """f32 below 2^31: ties, their neighbours, whole numbers, random ones."""
    rng = np.random.default_rng(SEED)
    ties = np.arange(-2000, 2000, dtype=np.float32) / 2
    near = [np.nextafter(ties, np.float32(way)) for way in (-np.inf, np.inf)]
    sizes = np.exp2(rng.uniform(-30, 30.99, 4000)).astype(np.float32)
    large = np.array([2**23 - 0.5, 2**23, 2**24 + 2, 2**30, -(2**30), 2147483520], np.float32)
    return np.concatenate([ties, *near, sizes, -sizes, large]).astype(np.float32)


def whole() -> Array:
    """s32: all near the limits of 8 bits, the extremes, random ones."""
    rng = np.random.default_rng(SEED)
    limits = np.iinfo(np.int32)
    far = [limits.min, limits.min + 1, limits.max, 1 << 15, -(1 << 15) - 1, 1 << 16, 1 << 24]
    random = rng.integers(limits.min, limits.max, 3000)
    return np.concatenate([np.arange(-700, 700), far, random]).astype(np.int32)


def bf16_bits(x: Array) -> Array:
    """To the nearest, ties to even, by comparing the two neighbours in f64."""
    down = (x.view(np.uint32) >> 16).astype(np.uint16)
    up = down + np.uint16(1)
    with np.errstate(invalid="ignore"):
        value, below, above = (y.astype(np.float64) for y in (x, from_bf16(down), from_bf16(up)))
        above = np.where(np.isinf(above), np.copysign(2.0**128, value), above)
        far, near = np.abs(value - below), np.abs(above - value)
    chosen = np.where((near < far) | ((near == far) & (down & 1 == 1)), up, down)
    return np.where(np.isnan(x), 0x7FC0, np.where(np.isinf(x), down, chosen)).astype(np.uint16)


def f16_bits(x: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float16).view(np.uint16)


def f16_values(bits: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return bits.view(np.float16).astype(np.float32)


def rounded(x: Array) -> Array:
    return np.rint(x.astype(np.float64)).astype(np.int32)


def saturated(kind: type[np.integer[Any]]) -> Callable[[Array], Array]:
    limits = np.iinfo(kind)
    return lambda x: np.clip(x, limits.min, limits.max).astype(kind)


def halves_of(x: Array) -> Array:
    """Two 16-bit numbers a row; in pairs none is the sum of two (-2^15)^2, which overflows."""
    return x.view(np.int16).reshape(-1, 2).astype(np.int64)


def paired(both: Array) -> Array:
    x, y = np.split(both, 2)
    return ((halves_of(x) * halves_of(y)).sum(axis=1) + 7).astype(np.int32)


def shorts() -> Array:
    """Pairs of numbers of 8 bits or fewer, widened; the extremes among them."""
    rng = np.random.default_rng(SEED)
    x = rng.integers(-128, 256, (4000, 2))
    w = rng.integers(-128, 128, (4000, 2))
    x[:8], w[:8] = 255, -128
    x[8:16], w[8:16] = -128, -128
    return np.concatenate([x, w]).astype(np.int16).view(np.int32).ravel()


def twos(name: str) -> Callable[[Array], Array]:
    def apply(both: Array) -> Array:
        x, y = (part.astype(np.int64) for part in np.split(both, 2))
        found: Array = getattr(np, name)(x, y)
        return found.astype(np.uint64).astype(np.uint32).view(np.int32)

    return apply


def doubled() -> Array:
    one = whole()
    return np.concatenate([one, np.roll(one, 17)])


def flushed(x: Array) -> Array:
    """To bf16 as the instruction does: what is denormal in f32 counts as zero."""
    return bf16_bits(np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x))


def every(kind: Any) -> Callable[[], Array]:
    """Every pattern of an integer type of up to 16 bits."""
    bits = 8 * np.dtype(kind).itemsize
    return lambda: np.arange(1 << bits, dtype=np.uint32).astype(f"uint{bits}").view(kind)


@dataclass(frozen=True, slots=True)
class Check:
    """A function of the unit, what it is given, and the same in NumPy.

    ``parts``: it takes any number of lanes; ``inputs`` elements of input make one of output.
    """

    name: str
    given: Callable[[], Array]
    expected: Callable[[Array], Array]
    parts: bool = True
    inputs: int = 1


CHECKS = (
    Check("bf16_value", every(np.uint16), from_bf16, parts=False),
    Check("f16_value", every(np.uint16), f16_values, parts=False),
    Check("bf16_of", reals, bf16_bits, parts=False),
    Check("f16_of", reals, f16_bits, parts=False),
    Check("splat_f16", every(np.uint16), f16_values, parts=False),
    Check("load_bf16", every(np.uint16), from_bf16),
    Check("load_f16", every(np.uint16), f16_values),
    Check("load_u8", every(np.uint8), lambda x: x.astype(np.int32)),
    Check("load_s8", every(np.int8), lambda x: x.astype(np.int32)),
    Check("load_s32", whole, lambda x: x),
    Check("store_bf16", reals, bf16_bits),
    Check("store_f16", reals, f16_bits),
    Check("store_u8", whole, saturated(np.uint8)),
    Check("store_s8", whole, saturated(np.int8)),
    Check("store_s32", whole, lambda x: x),
    Check("to_int", moderate, rounded),
    Check("to_real", whole, lambda x: x.astype(np.float32)),
    Check("pairs", shorts, paired, inputs=2),
    Check("int_add", doubled, twos("add"), inputs=2),
    Check("int_xor", doubled, twos("bitwise_xor"), inputs=2),
    Check("int_max", doubled, twos("maximum"), inputs=2),
    Check("int_min", doubled, twos("minimum"), inputs=2),
)


def run(so: Path) -> subprocess.CompletedProcess[str]:
    """Check the conversions of a unit in a process of their own."""
    words = [sys.executable, "-m", "tests.support.narrowunit", str(so)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT)


def nans(x: Array, name: str) -> Array:
    """Which elements are NaNs of the type that a function writes."""
    if x.dtype == np.uint16:
        infinite = 0x7F80 if "bf16" in name else 0x7C00
        return (x & 0x7FFF) > infinite
    return np.isnan(x) if x.dtype == np.float32 else np.zeros(x.shape, bool)


def quiet(x: Array, name: str) -> bool:
    """Whether all are quiet, where that is promised."""
    if x.dtype == np.uint16:
        return bool((x & (0x40 if "bf16" in name else 0x200)).all())
    return True


def different(check: Check, got: Array, want: Array, given: Array) -> str | None:
    """The first element that is not as expected."""
    bits = f"u{got.dtype.itemsize}"
    nan = nans(want, check.name)
    alike = np.where(nan, nans(got, check.name), got.view(bits) == want.view(bits))
    if not alike.all():
        at = int(np.flatnonzero(~alike)[0])
        return f"{given[at]!r} at {at}: expected {want[at]!r}, got {got[at]!r}"
    return None if quiet(got[nan], check.name) else "a NaN is not quiet"


def tried(unit: ctypes.CDLL, check: Check, lanes: int, given: Array) -> str | None:
    """What is wrong with ``lanes`` lanes at a time; both operands end before a guard page."""
    count = given.size // check.inputs // lanes * lanes
    shape = [part[:count] for part in np.split(given, check.inputs)]
    given = np.concatenate(shape)
    want = check.expected(given)
    source = Guarded(given.nbytes, "end", align=1)
    source.raw[:] = given.view(np.uint8)
    source.freeze()
    target = Guarded(want.nbytes, "end", align=1)
    function = getattr(unit, check.name)
    pointers = [ctypes.c_void_p(one.raw.ctypes.data) for one in (target, source)]
    steps = ctypes.c_int64(count // lanes)
    if function(*pointers, lanes, steps):
        return "lanes behind the used ones are not zero, or not alike"
    got = target.raw.view(want.dtype)
    return target.first_trespass() or different(check, got, want, given)


def main(so: str) -> int:
    unit = ctypes.CDLL(so)
    for check in CHECKS:
        print(check.name, flush=True)
        if check.name == "store_bf16" and unit.flushes():
            check = replace(check, expected=flushed)
        given = check.given()
        for lanes in range(1, unit.vector_lanes() + 1 if check.parts else 2):
            if wrong := tried(unit, check, lanes, given):
                print(f"{check.name} of {lanes} lanes: {wrong}")
                return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
