"""Generated convolutions in every precision, on every instruction set, against exact references.

Every layer meets every precision; instruction sets, layouts and threads rotate, so that every pair
of them occurs.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from polysci.codegen.emit import Source
from polysci.errors import UnsupportedError
from polysci.numerics.dtypes import COMPUTES, PRECISIONS
from polysci.ops.conv2d import Conv2d
from polysci.polyhedral.schedule import parse
from polysci.target import microkernels
from polysci.target.host import detect
from polysci.target.microkernels import Microkernel
from polysci.tune import EmitOptions, emit
from tests.support import samples
from tests.support.exhaustive import selected
from tests.support.judge import Judge, build

LAYERS = {
    "3x3": Conv2d(N=1, C=16, H=7, W=8, K=24, R=3, S=3, pad=1),
    "1x1": Conv2d(N=2, C=40, H=5, W=6, K=48, R=1, S=1),
    "strided 1x1": Conv2d(N=1, C=20, H=9, W=8, K=18, R=1, S=1, stride=2),
    "dilated 5x5": Conv2d(N=1, C=6, H=11, W=10, K=17, R=5, S=5, dilation=2, pad=4),
    "stem": Conv2d(N=1, C=3, H=13, W=15, K=20, R=7, S=7, stride=2, pad=3),
    "one channel": Conv2d(N=1, C=1, H=9, W=7, K=9, R=3, S=3, pad=1),
    "odd channels": Conv2d(N=1, C=37, H=5, W=5, K=33, R=3, S=3, pad=1),
    "more padding at the end": Conv2d(N=1, C=7, H=6, W=6, K=10, R=3, S=3, pad=(0, 1), P=6, Q=8),
    "cropped": Conv2d(N=2, C=5, H=10, W=9, K=12, R=3, S=3, pad=1, P=4, Q=5),
    "unequal strides": Conv2d(N=1, C=9, H=9, W=12, K=14, R=3, S=2, stride=(2, 3), pad=(1, 0)),
    "all padding": Conv2d(N=1, C=5, H=3, W=2, K=6, R=2, S=3, pad=(2, 3), P=6, Q=8),
    "depthwise 3x3": Conv2d(N=2, C=20, H=7, W=8, K=20, R=3, S=3, pad=1, groups=20),
    "depthwise 5x5": Conv2d(N=1, C=33, H=9, W=9, K=33, R=5, S=5, stride=2, pad=2, groups=33),
    "depthwise 7x7": Conv2d(N=1, C=16, H=9, W=11, K=16, R=7, S=7, dilation=2, pad=6, groups=16),
    "depth multiplier": Conv2d(N=1, C=5, H=6, W=7, K=15, R=3, S=3, pad=1, groups=5),
    "groups of 3": Conv2d(N=1, C=12, H=6, W=7, K=12, R=3, S=3, pad=1, groups=4),
    "groups of 4": Conv2d(N=1, C=32, H=7, W=6, K=32, R=3, S=3, stride=2, pad=1, groups=8),
    "groups of 5": Conv2d(N=2, C=10, H=6, W=5, K=14, R=3, S=3, pad=1, groups=2),
    "groups of 8": Conv2d(N=1, C=24, H=5, W=7, K=48, R=1, S=3, pad=(0, 1), groups=3),
}  # fmt: skip
ISAS = [isa.name for isa in detect().allowed]
# Layout and threads; five, because that is prime.
SETTINGS = [("nhwc", 1), ("nchw", 1), ("nhwc", 2), ("nchw", 2), ("nhwc", 1)]


@dataclass(frozen=True, slots=True)
class Case:
    """A layer in a precision, and what rotates."""

    name: str
    dtype: str
    isa: str
    layout: str
    threads: int
    seed: int

    def __str__(self) -> str:
        return f"{self.name} {self.layout}, {self.dtype}, {self.isa}, {self.threads}"

    @property
    def symbol(self) -> str:
        return f"case_{self.seed}"

    @property
    def problem(self) -> Conv2d:
        return LAYERS[self.name].with_(layout=self.layout, dtype=self.dtype)

    def source(self) -> Source:
        """A random schedule."""
        context = samples.fixed_context(self.problem, self.threads, detect(self.isa))
        (plan,) = samples.members(context, 1, self.seed)
        return emit(self.problem, plan, self.threads, EmitOptions(self.symbol))


def cases(isas: Sequence[str]) -> list[Case]:
    """Layer i in precision j on instruction set i + j, in setting i + 2j of five.

    As many rounds over the precisions as let every layer meet every instruction set. Settings
    i + 2j differ along every row, column and diagonal of five, as 5 is prime: so each value of the
    three meets them all.
    """
    rounds = -(-len(isas) // len(PRECISIONS))
    return [
        Case(
            name, dtype, isas[-1 - (i + j) % len(isas)], *SETTINGS[(i + 2 * j) % len(SETTINGS)],
            rounds * len(PRECISIONS) * i + j,
        )
        for i, name in enumerate(LAYERS)
        for j, dtype in enumerate([*PRECISIONS] * rounds)
    ]  # fmt: skip


@pytest.mark.parametrize("count", range(1, 21))
def test_every_pair_occurs(count: int) -> None:
    """Whatever CPU runs the tests: on as many instruction sets as it may have."""
    isas = [f"isa{number}" for number in range(count)]
    chosen = cases(isas)
    assert {(case.name, case.dtype) for case in chosen} == set(product(LAYERS, PRECISIONS))
    assert {(case.name, case.isa) for case in chosen} == set(product(LAYERS, isas))
    assert {(case.dtype, case.isa) for case in chosen} == set(product(PRECISIONS, isas))
    for attribute, values in (("name", LAYERS), ("dtype", PRECISIONS), ("isa", isas)):
        met = {(getattr(case, attribute), case.layout, case.threads) for case in chosen}
        assert met == {(value, *setting) for value in values for setting in SETTINGS}
    assert len({str(case) for case in chosen}) == len({case.symbol for case in chosen})
    assert len(chosen) == (209 if count <= len(PRECISIONS) else 418)


Built = dict[Case, Future[Path] | Exception]


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest) -> Iterator[Built]:
    """The code of all cases that will run, those of one unit in one file; two compilers at work."""
    paths: Built = {}
    files: defaultdict[object, list[tuple[Case, Source]]] = defaultdict(list)
    for case in selected(request.session, "case", Case):
        try:
            source = case.source()
        except Exception as error:  # the fault of one case is for its own test
            paths[case] = error
        else:
            files[source.header_set].append((case, source))
    with ThreadPoolExecutor(2) as pool:
        for together in files.values():
            path = pool.submit(build, [source for _, source in together])
            paths |= {case: path for case, _ in together}
        yield paths


@pytest.mark.parametrize("case", cases(ISAS), ids=str)
def test_random_schedules_are_right(built: Built, judge: Judge, case: Case) -> None:
    path = built[case]
    if isinstance(path, Exception):
        raise path
    judge.judge(case.problem, path.result(), case.symbol)


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
