"""Generated convolutions in every precision: schedules that are written by hand."""

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from polysci.errors import UnsupportedError
from polysci.numerics.dtypes import COMPUTES, PRECISIONS
from polysci.ops.convolutions import Conv2d
from polysci.runtime.source import Source
from polysci.space.schedule import parse
from polysci.target import microkernels
from polysci.target.host import detect
from polysci.target.microkernels import Microkernel
from polysci.tune import EmitOptions, emit
from tests.support.judge import Judge, build

# Of sets with vectors, whose tiles have as many rows as the schedules here.
ISAS = [isa.name for isa in detect().allowed if isa.lanes_f32 > 1]
# Blocks, merged rows, packing at every depth, loops shared by three threads; those behind the line
# leave sums in y, which then must hold them.
BY_HAND = """
n p k:{v} > {kernel}_3x{v}
n k:{v} p:2 > {kernel}_6x{v}
pack(A) n p k:{v} > {kernel}_3x{v}
n pack(A)+16 p k:{v} > {kernel}_3x{v}
n p:5 pack(A) p k:{v} q:2 > {kernel}_2x{v}
n* p* k:{v} > {kernel}_3x{v}
n* k:{w}* pack(A) p k:{v} > {kernel}_3x{v}
pack(A)+3 n* p:3* p k:{w} q:2 > {kernel}_2x{w}
---
n c:8 p k:{v} > {kernel}_3x{v}
c:8 n k:{w} p:3 p k:{v} q:2 > {kernel}_2x{v}
n p c:12 pack(A) k:{v} q:1 > {kernel}_1x{v}
p:4 n c:12 c:4 pack(A) p:2 k:{v} > {kernel}_6x{v}
k:{w}* p:2* n c:8 pack(A) k:{v} p q:2 > {kernel}_2x{v}
"""
TILES = Conv2d(N=2, C=20, H=7, W=3, K=38, R=3, S=3, pad=1)


def hand_written(problem: Conv2d, isa: str) -> list[Source]:
    """Sources of BY_HAND with the kernels of every way that the instruction set has."""
    ways = microkernels.ways("brgemm", isa, PRECISIONS[problem.dtype].x.name)
    return [source for way in ways for source in _by_kernel(problem, way[0])]


def _by_kernel(problem: Conv2d, kernel: Microkernel) -> list[Source]:
    row = PRECISIONS[problem.dtype]
    words = {"v": kernel.lanes, "w": 2 * kernel.lanes}
    name = f"brgemm_{kernel.isa}_{kernel.compute}"
    whole, split = BY_HAND.format(kernel=name, **words).split("---")
    lines = (whole + split if row.split else whole).split("\n")
    plans = [parse(line) for line in lines if line]
    sources = []
    for index, plan in enumerate(plans):
        near = kernel.compute != "f32" and problem.layout == "nchw" and not plan.pack
        if near:  # words are not neighbours in memory
            continue
        sources.append(emit(problem, plan, 3, EmitOptions(f"line_{index}")))
    return sources


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("dtype", "isa", "layout"),
    [
        (dtype, ISAS[-1 - j % len(ISAS)], ("nhwc", "nchw")[j // 2 % 2])
        for j, dtype in enumerate([name for name in PRECISIONS if name != "f32"])
    ],
)
def test_schedules_written_by_hand(judge: Judge, dtype: str, isa: str, layout: str) -> None:
    problem = TILES.with_(dtype=dtype, layout=layout)
    by_unit: defaultdict[object, list[Source]] = defaultdict(list)
    for source in hand_written(problem, isa):
        by_unit[source.header_set].append(source)
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(build, by_unit.values()))
    for path, sources in zip(paths, by_unit.values(), strict=True):
        for source in sources:
            judge.judge(problem, path, source.symbol)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", [name for name in ISAS if name != "amx"])
@pytest.mark.parametrize("channels", [1, 3])
def test_words_of_few_channels_hold_several_taps(judge: Judge, isa: str, channels: int) -> None:
    """The last word of a line of taps is read whole: between guard pages, at the copy's end too."""
    problem = Conv2d(N=1, C=channels, H=9, W=9, K=20, R=5, S=5, pad=2, dtype="u8:s8:s32")
    for kernel, *_ in microkernels.ways("brgemm", isa, "u8"):
        word = COMPUTES[kernel.compute].vnni_factor
        name = f"brgemm_{kernel.isa}_{kernel.compute}_3x{kernel.lanes}"
        text = f"pack(A) p k:{kernel.lanes} q:3 > {name}"
        source = emit(problem, parse(text), 1, EmitOptions("few"))
        assert "ps_run_part(acc, t, 0x7u" not in source.text
        assert f", {-(-5 * channels // word)}, {word});" in source.text
        judge.judge(problem, build([source]), source.symbol)


STACKED = "stacked_avx512vnni_i8"
STACKS = [
    (Conv2d(N=2, C=40, H=7, W=9, K=40, R=3, S=3, pad=1, groups=40), "n p g:16 q:5", "5x16"),
    (Conv2d(N=1, C=40, H=7, W=9, K=40, R=3, S=3, groups=40), "p* g:32 q:4", "4x32"),
    (Conv2d(N=1, C=33, H=9, W=9, K=33, R=5, S=5, stride=2, pad=2, groups=33), "g:16 p", "5x16"),
    (Conv2d(N=1, C=24, H=4, W=8, K=24, R=5, S=5, pad=4, groups=24), "p g:16 q:4", "4x16"),
    (Conv2d(N=1, C=16, H=9, W=9, K=16, R=7, S=7, dilation=2, pad=6, groups=16), "p", "9x16"),
    (Conv2d(N=1, C=20, H=9, W=8, K=20, R=4, S=2, stride=3, pad=1, groups=20), "g:16 p", "3x16"),
    (Conv2d(N=1, C=20, H=9, W=8, K=20, R=8, S=1, pad=(3, 0), groups=20), "g:16 p q:7", "7x16"),
    (Conv2d(N=1, C=20, H=9, W=8, K=20, R=3, S=3, pad=1, groups=20), "pack(A) g:16 p", "8x16"),
    (Conv2d(N=1, C=20, H=9, W=8, K=20, R=3, S=3, pad=1, groups=20), "g:16 p q:1", "1x16"),
]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.isa("avx512vnni")
@pytest.mark.parametrize("dtype", ["u8:s8:u8", "s8:s8:s8", "u8:s8:s32"])
@pytest.mark.parametrize(("problem", "loops", "tile"), STACKS, ids=str)
def test_words_of_taps_above_each_other(
    judge: Judge, problem: Conv2d, loops: str, tile: str, dtype: str
) -> None:
    """Rows of the filter that are no multiple of a word, cut above, below and at both ends."""
    plan = parse(f"{loops} > {STACKED}_{tile}")
    source = emit(problem.with_(dtype=dtype), plan, 2, EmitOptions("stacked"))
    judge.judge(problem.with_(dtype=dtype), build([source]), source.symbol)


def test_words_of_taps_take_one_row_of_the_image() -> None:
    for pad in (0, 1):
        problem = Conv2d(N=1, C=16, H=6, W=6, K=16, R=3, S=3, pad=pad, groups=16, dtype="u8:s8:u8")
        with pytest.raises(UnsupportedError, match="computes one row of the image a call"):
            emit(problem, parse(f"p:2 > {STACKED}_12x16"), 1, EmitOptions("several"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "u8:s8:u8", "s8:s8:s32"])
@pytest.mark.parametrize("isa", ISAS)
def test_weights_ahead(judge: Judge, isa: str, dtype: str) -> None:
    """Prefetches, past the end of the weights too, change no result and touch no guard page."""
    problem = Conv2d(N=1, C=24, H=5, W=5, K=40, R=3, S=3, pad=1, dtype=dtype)
    ways = microkernels.ways("brgemm", isa, PRECISIONS[dtype].x.name)
    kernel = next(way[0] for way in ways if not way[0].tile_registers)
    v, name = kernel.lanes, f"brgemm_{kernel.isa}_{kernel.compute}_5x{kernel.lanes}"
    for index, text in enumerate([f"k:{v} p ahead(B) > {name}", f"k:{v}* p:4 p ahead(B) > {name}"]):
        source = emit(problem, parse(text), 2, EmitOptions(f"next_{index}"))
        judge.judge(problem, build([source]), source.symbol)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("isa", ISAS)
def test_narrow_results_are_streamed_in_whole_lines(judge: Judge, isa: str, dtype: str) -> None:
    """By every way to multiply; single vectors, and other instruction sets, are refused."""
    problem = Conv2d(N=2, C=8, H=6, W=5, K=64, R=1, S=1, dtype=dtype)
    for way in microkernels.ways("brgemm", isa, dtype):
        kernel = way[0]
        v, name = kernel.lanes, f"brgemm_{kernel.isa}_{kernel.compute}_5x"
        texts = [f"n* p:4* pack(A) k:{2 * v} p stream(C) > {name}{2 * v}"]
        wrong = f"n pack(A) p k:{v} stream(C) > {name}{v}"
        wrong_texts = [wrong] if v == 16 else [wrong, *texts]
        for text in wrong_texts:
            with pytest.raises(UnsupportedError, match="not written once in whole aligned"):
                emit(problem, parse(text), 2, EmitOptions("refused"))
        for text in [text for text in texts if text not in wrong_texts]:
            source = emit(problem, parse(text), 2, EmitOptions("line"))
            judge.judge(problem, build([source]), source.symbol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["bf16:bf16:f32", "f16:f16:f32", "u8:s8:s32", "s8:s8:s32"])
@pytest.mark.parametrize("isa", ISAS)
def test_streamed_output(judge: Judge, isa: str, dtype: str) -> None:
    problem = Conv2d(N=2, C=8, H=6, W=5, K=48, R=1, S=1, dtype=dtype)
    kernel = microkernels.ways("brgemm", isa, PRECISIONS[dtype].x.name)[0][0]
    v, name = kernel.lanes, f"brgemm_{kernel.isa}_{kernel.compute}_5x{kernel.lanes}"
    texts = [f"n p k:{v} stream(C) > {name}", f"n* p:4* pack(A) k:{v} p stream(C) > {name}"]
    for index, text in enumerate(texts):
        source = emit(problem, parse(text), 2, EmitOptions(f"line_{index}"))
        judge.judge(problem, build([source]), source.symbol)
