"""Products of f32 rows by weights of bf16 and of blocks, on every tail, between guard pages."""

from dataclasses import dataclass

import numpy as np
import pytest

import polysci
from polysci.errors import UnsupportedError
from polysci.numerics.blocks import decode_blocks, make_blocks
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

ISAS = [isa.name for isa in detect().allowed if isa.name in ("portable", "avx2", "avx512")]
WEIGHTS = ("bf16", "s4x16", "u4x32", "s8x64", "u8x16")


@dataclass(frozen=True)
class Tail:
    """A product whose last register tile has some of the rows and lanes of a kernel."""

    problem: Problem
    source: Source

    @classmethod
    def of(cls, kernel: Microkernel, weights: str, rows: int, lanes: int) -> "Tail":
        columns = kernel.cols + (kernel.vecs - 1) * kernel.lanes + lanes
        words = f"linear:{kernel.rows + rows}x128x{columns}"
        problem = parse_problem(words, "", f"f32:{weights}:f32")
        plan = parse(f"i:{kernel.rows} j:{kernel.cols} > {kernel}")
        return cls(problem, emit(problem, plan, 1, EmitOptions(f"t{kernel.cols}_{rows}_{lanes}")))


def largest(isa: str) -> list[Microkernel]:
    """The kernels of most rows, one of each width."""
    (way,) = microkernels.ways("brgemm", isa, "f32")
    return list({kernel.vecs: kernel for kernel in way}.values())


def check(judge: Judge, tails: list[Tail]) -> None:
    path = build([tail.source for tail in tails])
    for tail in tails:
        judge.judge(tail.problem, path, tail.source.symbol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("isa", ISAS)
def test_all_tails(judge: Judge, isa: str, weights: str) -> None:
    for kernel in largest(isa):
        lanes = range(1, kernel.lanes + 1)
        rows = [1 + at % kernel.rows for at in range(max(kernel.lanes, kernel.rows))]
        check(judge, [Tail.of(kernel, weights, row, lanes[at % len(lanes)])
                      for at, row in enumerate(rows)])  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("weights", WEIGHTS)
def test_tails_of_one_kernel(judge: Judge, weights: str) -> None:
    kernel = largest("portable")[-1]
    check(judge, [Tail.of(kernel, weights, 1 + at % kernel.rows, 1 + at) for at in range(4)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(
    "loops", ["k:2 j:{v} i:2", "i:2* j:{v} k:1", "private(C) k:2* j:{v}", "j:{v}* j:{v} i:3"]
)
def test_loops_around_blocks(judge: Judge, loops: str, weights: str) -> None:
    """Blocks of the reduction, threads that share it, and several rows."""
    isa = ISAS[-1]
    problem = parse_problem(f"linear:5x256x{5 * microkernels.lanes(isa)}", "", f"f32:{weights}:f32")
    kernel = f"brgemm_{isa}_f32_5x{microkernels.lanes(isa)}"
    plan = parse(f"{loops.format(v=microkernels.lanes(isa))} > {kernel}")
    source = emit(problem, plan, 2, EmitOptions("around"))
    judge.judge(problem, build([source]), source.symbol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("weights", ["s4x32", "u4x128", "s8x256", "u8x32"])
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
    bound = 514 * 2.0**-24 * (abs(x).astype(float) @ abs(dense).T + abs(bias))
    assert (abs(y - (x.astype(float) @ dense.T + bias)) <= bound).all()
    with pytest.raises(TypeError):
        prim.pack_weights(dense.astype(np.float32))


def test_x_is_read_where_it_lies() -> None:
    problem = parse_problem("linear:3x64x40", "", "f32:s4x32:f32")
    for words in ("pack(A) j:16", "j:16 ahead(B)"):
        with pytest.raises(UnsupportedError, match="block"):
            emit(problem, parse(f"{words} > brgemm_avx512_f32_3x16"), 1, EmitOptions("other"))
