"""Products of f32 rows by weights of bf16 and of blocks, on every tail, between guard pages."""

from dataclasses import dataclass

import numpy as np
import pytest

import polysci
from polysci.errors import UnsupportedError
from polysci.numerics.blocks import WIDEST, decode_blocks, make_blocks, round_blocks
from polysci.numerics.dtypes import BLOCK_TYPES
from polysci.ops import parse_problem
from polysci.ops.problem import Problem
from polysci.runtime.source import Source
from polysci.space.schedule import parse
from polysci.target import microkernels
from polysci.target.host import detect
from polysci.target.microkernels import Microkernel
from polysci.tune import EmitOptions, emit
from tests.support.judge import Judge, build

NAMES = ("portable", "avx2", "avx512", "avx2vnni", "avx512vnni")
ISAS = [isa.name for isa in detect().allowed if isa.name in NAMES]
WEIGHTS = ("bf16", "s4x16", "u4x32", "s8x64", "u8x16")
ROUNDED = ("s4a8x16", "u4a8x32", "s8a8x64", "u8a8x128")
SPLIT = ("s4x16", "u4x32", "s8x64", "u8x128")  # beside three bytes of each number of x
WAYS = [
    pytest.param(weights, compute, id=f"{weights} {compute}")
    for compute, names in (("f32", WEIGHTS), ("a8", ROUNDED), ("a24", SPLIT))
    for weights in names
]


@dataclass(frozen=True)
class Tail:
    """A product whose last register tile has some of the rows and lanes of a kernel."""

    problem: Problem
    source: Source

    @classmethod
    def of(cls, kernel: Microkernel, weights: str, rows: int, lanes: int, copy: str = "") -> "Tail":
        columns = kernel.cols + (kernel.vecs - 1) * kernel.lanes + lanes
        words = f"linear:{kernel.rows + rows}x128x{columns}"
        problem = parse_problem(words, "", f"f32:{weights}:f32")
        plan = parse(f"{copy} i:{kernel.rows} j:{kernel.cols} > {kernel}")
        return cls(problem, emit(problem, plan, 1, EmitOptions(f"t{kernel.cols}_{rows}_{lanes}")))


def largest(isa: str, compute: str) -> list[Microkernel]:
    """The kernels of most rows, one of each width, of the best ISA up to this one."""
    ways = microkernels.ways("brgemm", isa, compute)
    kernels = [kernel for way in ways for kernel in way if kernel.compute == compute]
    if not kernels:
        pytest.skip(f"{isa} has no kernels of {compute}")
    return list({kernel.vecs: kernel for kernel in kernels}.values())


def check(judge: Judge, tails: list[Tail]) -> None:
    path = build([tail.source for tail in tails])
    for tail in tails:
        judge.judge(tail.problem, path, tail.source.symbol)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("weights", "compute"), WAYS)
@pytest.mark.parametrize("isa", ISAS)
def test_all_tails(judge: Judge, isa: str, weights: str, compute: str) -> None:
    for kernel in largest(isa, compute):
        lanes = range(1, kernel.lanes + 1)
        rows = [1 + at % kernel.rows for at in range(max(kernel.lanes, kernel.rows))]
        check(judge, [Tail.of(kernel, weights, row, lanes[at % len(lanes)])
                      for at, row in enumerate(rows)])  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize(("weights", "compute"), WAYS)
def test_tails_of_one_kernel(judge: Judge, weights: str, compute: str) -> None:
    kernel = largest(ISAS[-1] if compute == "a24" else "portable", compute)[-1]
    check(judge, [Tail.of(kernel, weights, 1 + at % kernel.rows, 1 + at) for at in range(4)])


@pytest.mark.exhaustive
@pytest.mark.parametrize(("weights", "compute"), WAYS)
@pytest.mark.parametrize(
    "loops", ["k:1 j:{v} i:2", "i:2* j:{v} k:1", "private(C) k:1* j:{v}", "j:{v}* j:{v} i:3"]
)
def test_loops_around_blocks(judge: Judge, loops: str, weights: str, compute: str) -> None:
    """Blocks of the reduction, threads that share it, and several rows."""
    isa, rows = largest(ISAS[-1], compute)[0].isa, 5 if compute == "f32" else 3
    words = f"linear:{rows}x256x{5 * microkernels.lanes(isa)}"
    problem = parse_problem(words, "", f"f32:{weights}:f32")
    if weights == "bf16":  # steps of one number, not of a block
        loops = loops.replace("k:1*", "k:64*")
    kernel = f"brgemm_{isa}_{compute}_{rows}x{microkernels.lanes(isa)}"
    plan = parse(f"{loops.format(v=microkernels.lanes(isa))} > {kernel}")
    source = emit(problem, plan, 2, EmitOptions("around"))
    judge.judge(problem, build([source]), source.symbol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("weights", "compute"), WAYS[len(WEIGHTS) :])
def test_all_tails_of_rounded_copies(judge: Judge, weights: str, compute: str, isa: str) -> None:
    for kernel in largest(isa, compute):
        check(judge, [Tail.of(kernel, weights, 1 + at % kernel.rows, 1 + at, "pack(A)")
                      for at in range(0, kernel.lanes, 3)])  # fmt: skip


@pytest.mark.parametrize("loops", [
    "pack(A) j:{v} i:2", "pack(A)+16 k:2 j:{v} i:2", "i:2* pack(A)+16 j:{v}",
    "j:{v}* pack(A) k:1 i:1", "k:2 pack(A) j:{v} i:2", "private(C) k:2* pack(A) j:{v} i:1",
])  # fmt: skip
@pytest.mark.parametrize(("weights", "compute"), [("u4a8x32", "a8"), ("u4x32", "a24")])
def test_rows_are_rounded_as_they_are_packed(
    judge: Judge, loops: str, weights: str, compute: str
) -> None:
    """Whole copies, which threads share, and parts of rows and of blocks."""
    isa = largest(ISAS[-1], compute)[0].isa
    lanes = microkernels.lanes(isa)
    problem = parse_problem(f"linear:5x128x{3 * lanes + 1}", "", f"f32:{weights}:f32")
    plan = parse(f"{loops.format(v=lanes)} > brgemm_{isa}_{compute}_2x{lanes}")
    source = emit(problem, plan, 2, EmitOptions("rounded"))
    judge.judge(problem, build([source]), source.symbol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("weights", ["s4x32", "u4x128", "s8x256", "u8x32", "u4a8x32", "s8a8x256"])
def test_any_scale_and_zero(weights: str) -> None:
    """Scales and zeros that are no powers of two, in the order in which they are stored."""
    random, row = np.random.default_rng(0), BLOCK_TYPES[weights]
    prim = polysci.compile("linear:3x512x50", "estimate", dtype=f"f32:{weights}:f32")
    bits, signed = int(weights[1]), weights[0] == "s"
    low, shape = -(2 ** (bits - 1)) if signed else 0, prim.problem.w_shape
    numbers = random.integers(low, low + 2**bits, (50, 512))
    scale = random.random(shape).astype(np.float32)
    zero = None if signed else (random.random(shape) * 2**bits).astype(np.float32)
    w = make_blocks(row.numpy, numbers, scale, zero)
    x = random.standard_normal((3, 512)).astype(np.float32)
    bias = random.random(50).astype(np.float32)
    y, dense = prim(x, prim.pack_weights(w), bias=bias), decode_blocks(w)
    x = round_blocks(x, row.block) if row.rounds_x else x
    bound = 514 * 2.0**-24 * (abs(x).astype(float) @ abs(dense).T + abs(bias))
    assert (abs(y - (x.astype(float) @ dense.T + bias)) <= bound).all()
    with pytest.raises(TypeError):
        prim.pack_weights(dense.astype(np.float32))


def primitive_of(words: str, weights: str, compute: str) -> polysci.Primitive:
    kernel = largest(ISAS[-1], compute)[1]
    plan = f"i:1 > brgemm_{kernel.isa}_{compute}_1x{kernel.cols}"
    return polysci.compile(words, "estimate", dtype=f"f32:{weights}:f32", schedule=plan)


@pytest.mark.parametrize(("weights", "compute"), [("s4a8x32", "a8"), ("s4x32", "a24")])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_none(number: float, weights: str, compute: str) -> None:
    """Rounding by blocks hides neither infinity nor what is no number, in one row alone."""
    prim = primitive_of("linear:2x64x5", weights, compute)
    w = make_blocks(BLOCK_TYPES["s4x32"].numpy, np.full((5, 64), 3), np.ones((5, 2), np.float32))
    x = np.ones((2, 64), np.float32)
    x[1, 40] = number
    y = prim(x, prim.pack_weights(w))
    assert (y[0] == 192).all() and not np.isfinite(y[1]).any()


@pytest.mark.parametrize(("weights", "compute"), [("s4a8x32", "a8"), ("s4x32", "a24")])
def test_tiny_blocks_are_zero(weights: str, compute: str) -> None:
    prim = primitive_of("linear:1x32x3", weights, compute)
    w = make_blocks(BLOCK_TYPES["s4x32"].numpy, np.full((3, 32), 7), np.ones((3, 1), np.float32))
    for size, there in ((2.0**-101, False), (2.0**-90, True), (0.0, False)):
        y = prim(np.full((1, 32), size, np.float32), prim.pack_weights(w))
        assert (y != 0).all() == there


def test_small_inputs_meet_small_scales() -> None:
    """A step of three bytes times a scale of weights is no denormal number, which would be 0."""
    prim = primitive_of("linear:1x32x3", "s4x32", "a24")
    scale = np.full((3, 1), 2.0**-18, np.float32)
    w = make_blocks(BLOCK_TYPES["s4x32"].numpy, np.full((3, 32), 4), scale)
    y = prim(np.full((1, 32), 2.0**-99, np.float32), prim.pack_weights(w))
    assert (y == 2.0**-110).all()


def test_three_bytes_hold_24_bits() -> None:
    """Weights that pick one number each show what inputs become: as rounded in NumPy."""
    prim = primitive_of("linear:64x32x16", "s8x32", "a24")
    w = make_blocks(BLOCK_TYPES["s8x32"].numpy, np.eye(16, 32), np.ones((16, 1), np.float32))
    random = np.random.default_rng(0)
    x = random.standard_normal((64, 32)) * np.exp2(random.integers(-60, 60, (64, 1)))
    x *= np.exp2(random.integers(-30, 1, x.shape))
    x[::3] *= 127 * 65793 / 2**22 / abs(x[::3]).max(-1, keepdims=True)
    x[1] = np.float32(3.4e38) / np.arange(1, 33)
    x = x.astype(np.float32)
    y, most = prim(x, prim.pack_weights(w)), abs(x).max(-1, keepdims=True).astype(float)
    assert (y == round_blocks(x, 32, 3)[:, :16].astype(np.float32)).all()
    assert (abs(y.astype(float) - x[:, :16]) <= most / WIDEST).all()


def test_x_is_read_where_it_lies() -> None:
    problem = parse_problem("linear:3x64x40", "", "f32:s4x32:f32")
    for words in ("pack(A) j:16", "j:16 ahead(B)"):
        with pytest.raises(UnsupportedError, match="block"):
            emit(problem, parse(f"{words} > brgemm_avx512_f32_3x16"), 1, EmitOptions("other"))
