"""Winograd convolutions as run: every padding and tail, both layouts, threads, guard pages."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polysci.errors import CheckError
from polysci.export import ExportedLayer, export_c
from polysci.lower.winograd.integers import exact_inputs
from polysci.lower.winograd.tiles import convolution, tile_of
from polysci.measure.bench import bound_of
from polysci.numerics.filtering import OUTPUTS
from polysci.ops.convolutions import Conv1d, Conv2d, Conv3d
from polysci.polyhedral.tile_schedule import Loop
from polysci.runtime.build import cache
from polysci.runtime.build.library import load
from polysci.runtime.build.process import Child
from polysci.runtime.primitive import Primitive
from polysci.runtime.source import Source, assemble
from polysci.space.schedule import Schedule, Transform, parse
from polysci.target import microkernels
from polysci.target.host import detect
from polysci.target.target import HOST
from polysci.tune import EmitOptions, emit
from tests.support.flags import QUICK

BEST = detect().isa.name
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
Convolved = Conv1d | Conv2d | Conv3d
CHANNELS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 32, 48)


def sizes() -> list[Conv2d]:
    """Every height and width from 1 to 9 in some problem, with every padding that may meet it."""
    found = []
    for at, (size, pad) in enumerate(product(range(1, 10), range(3))):
        high, wide = size, 1 + (size * 4 + pad) % 9
        if min(high, wide) + 2 * pad < 3:
            continue
        found.append(
            Conv2d(
                N=1 + at % 2, C=CHANNELS[at % 13], H=high, W=wide, K=CHANNELS[at * 5 % 13],
                R=3, S=3, pad=(pad, (pad + at) % 3 if wide >= 3 else pad),
                layout=("nhwc", "nchw")[at // 2 % 2],
            )
        )  # fmt: skip
    return found


PROBLEMS = [
    *sizes(),
    Conv2d(N=1, C=6, H=9, W=40, K=5, R=3, S=3, pad=1, layout="nchw"),
    Conv2d(N=1, C=4, H=9, W=9, K=8, R=3, S=3, pad=1, P=12, Q=11),
    Conv2d(N=1, C=4, H=12, W=12, K=10, R=3, S=3, pad=1, P=5, Q=7, layout="nchw"),
    Conv2d(N=3, C=33, H=5, W=6, K=34, R=3, S=3, pad=4),
    Conv2d(N=3, C=33, H=5, W=6, K=34, R=3, S=3, pad=4, layout="nchw"),
]
FILTERS = [
    (taps, numbers)
    for taps in (*((1, several) for several in OUTPUTS[1]), *product(OUTPUTS[1], repeat=2))
    for numbers in product(*(OUTPUTS[1][own] for own in taps if own > 1))
    if numbers and (taps, set(numbers)) not in [((3, 3), {2}), ((3, 3), {4})]
]


def others() -> list[tuple[Convolved, tuple[int, ...]]]:
    """Every filter and tile but those above: of few pixels or many, each with some padding.

    Filters of one row are those of a single axis every other time.
    """
    found: list[tuple[Convolved, tuple[int, ...]]] = []
    for at, ((taps, numbers), turn) in enumerate(product(FILTERS, range(3))):
        pads = [(at + own) % (own + 1) for own in taps]
        sizes = (1 + at % 9, (4 + at * 5 % 9, 37, 9)[turn])
        high, wide = (
            max(own - 2 * pad, size) for own, pad, size in zip(taps, pads, sizes, strict=True)
        )
        shape = {"N": 1 + at % 2, "C": CHANNELS[at % 13], "K": CHANNELS[at * 5 % 13]}
        layout = ("nhwc", "nchw")[at // 2 % 2]
        if taps[0] == 1 and at % 2:
            line = Conv1d(**shape, W=wide, S=taps[1], pad=pads[1], layout=layout)
            found.append((line, numbers))
            continue
        found.append((
            Conv2d(**shape, H=high, W=wide, R=taps[0], S=taps[1], pad=tuple(pads), layout=layout),
            numbers,
        ))  # fmt: skip
    return found


GROUPED: list[tuple[Convolved, tuple[int, ...]]] = [
    (Conv2d(N=2, C=18, H=7, W=6, K=64, R=3, S=3, pad=1, groups=2), (4,)),
    (Conv2d(N=1, C=30, H=6, W=9, K=96, R=5, S=3, pad=1, groups=3, layout="nchw"), (2, 4)),
    (Conv1d(N=2, C=36, W=19, K=64, S=7, pad=3, groups=2), (2,)),
    (Conv1d(N=1, C=32, W=21, K=128, S=3, pad=1, groups=4, layout="nchw"), (4,)),
]
# Every size from below a step on, with pads up to the filter's span, and steps of one axis alone.
DILATED: list[tuple[Convolved, tuple[int, ...]]] = [
    *(
        (
            Conv2d(
                N=1 + at % 2, C=CHANNELS[at % 13], K=CHANNELS[at * 5 % 13], H=max(1, at), W=11 - at,
                R=3, S=3, pad=(4, at), dilation=(2, 1 + at % 3),
            ),
            (2 + at % 2 * 2,),
        )
        for at in range(10)
    ),
    (
        Conv2d(N=2, C=17, H=13, W=37, K=20, R=5, S=3, pad=(4, 1), dilation=(3, 1), layout="nchw"),
        (4, 2),
    ),
    (Conv2d(N=1, C=9, H=13, W=6, K=33, R=3, S=1, pad=(5, 0), dilation=(4, 1), layout="nchw"), (4,)),
    (Conv2d(N=1, C=18, H=9, W=9, K=64, R=3, S=3, pad=2, dilation=2, groups=2), (2,)),
    (Conv1d(N=2, C=17, W=41, K=20, S=7, pad=15, dilation=5), (2,)),
]  # fmt: skip
# Planes: pads and steps that leave the image, few planes or many, filters of one row.
DEEP: list[tuple[Convolved, tuple[int, ...]]] = [
    (
        Conv3d(N=1 + at % 2, C=CHANNELS[(at + 5) % 13], D=1 + at, H=5, W=8 - at, K=20, T=1 + at % 4,
               R=(3, 1)[at % 2], S=3, pad=(at, 1 - at % 2, 1),
               stride=(1 + at % 3, 1, 1), dilation=(1 + at // 3, 1, 1),
               layout=("nhwc", "nchw")[at // 2 % 2]),
        (2 + at % 2 * 2,),
    )
    for at in range(6)
]  # fmt: skip
DEEP += [(Conv3d(N=1, C=5, D=4, H=6, W=7, K=9, T=3, R=5, S=3, pad=(1, 2, 1)), (4, 2))]
# Strides of 2: every pair of filters, with every tile along one axis in turns, of sizes from the
# least on, with pads up to a filter; then a stride along one axis alone, groups and planes.
HALVED: list[tuple[Convolved, tuple[int, ...]]] = [
    (
        Conv2d(
            N=1 + at % 2, C=CHANNELS[at % 13], K=CHANNELS[at * 5 % 13], R=taps[0], S=taps[1],
            H=max(1, taps[0] - 2 * (at % (taps[0] + 1))) + at % 11,
            W=max(1, taps[1] - 2 * (at // 2 % (taps[1] + 1))) + at * 7 % 13 + at % 3 * 16,
            pad=(at % (taps[0] + 1), at // 2 % (taps[1] + 1)), stride=2,
            layout=("nhwc", "nchw")[at // 2 % 2],
        ),
        tuple(OUTPUTS[2][own][(at // (1 + axis)) % len(OUTPUTS[2][own])]
              for axis, own in enumerate(taps) if own > 1),
    )
    for at, taps in enumerate([it for it in product(OUTPUTS[2], repeat=2) if it != (1, 1)])
]  # fmt: skip
HALVED += [
    (Conv2d(N=1, C=17, H=12, W=9, K=20, R=3, S=3, pad=1, stride=(2, 1), P=4), (4,)),
    (Conv2d(N=2, C=7, H=5, W=40, K=9, R=5, S=3, pad=1, stride=(1, 2), layout="nchw"), (2, 4)),
    (Conv2d(N=1, C=9, H=11, W=19, K=5, R=3, S=6, pad=2, stride=(1, 2), dilation=(2, 1)), (4,)),
    (Conv2d(N=2, C=18, H=9, W=10, K=64, R=3, S=3, pad=1, groups=2, stride=2), (4,)),
    (Conv2d(N=1, C=36, H=8, W=9, K=64, R=3, S=3, groups=2, stride=2, layout="nchw"), (2, 4)),
    (Conv1d(N=2, C=17, W=41, K=20, S=7, pad=3, stride=2), (2,)),
    (Conv1d(N=1, C=5, W=75, K=33, S=3, pad=1, stride=2, layout="nchw"), (4,)),
    (Conv3d(N=1, C=6, D=5, H=9, W=8, K=9, T=3, R=3, S=3, pad=1, stride=2), (4,)),
    (Conv3d(N=2, C=5, D=3, H=7, W=37, K=6, T=2, R=3, S=4, pad=1, stride=2, layout="nchw"), (2,)),
]  # fmt: skip
OTHERS = [*others(), *GROUPED, *DILATED, *DEEP]
PARTS = 4  # of the strided ones, each a file of its own


def plan_of(
    problem: Convolved, numbers: tuple[int, ...], isa: str, threads: int, form: int
) -> Schedule:
    """One of the forms of loops around and inside the transform, with blocks that leave tails."""
    lanes, conv = microkernels.lanes(isa), convolution(problem)
    problem, tiles = conv, tile_of(conv, numbers).tiles(conv)
    cols = lanes * (2 if form % 2 and lanes < problem.K else 1)
    filters = -(-problem.K // cols) * cols
    (way,) = microkernels.ways("brgemm", isa, "f32")
    kernels = {kernel.rows: str(kernel) for kernel in way if kernel.cols == cols}
    t = max(1, min(tiles - 1, (tiles + 2) // 2 if form % 3 else 5))
    rows = max(1, min(t, max(kernels), 2 + form % 4))
    shared, word = threads > 1, Transform("winograd", numbers)
    over_t = [Loop("t", t, shared)] if t < tiles else []
    over_k = [Loop("k", cols, shared)] if cols < filters else []
    serial = [Loop("k", cols)] if cols < filters else []
    orders: Sequence[tuple[Any, ...]] = (
        (*over_t, word, *serial),
        (word, *over_k, *over_t),
        (word, *over_t, *serial),
        (word,),
    )
    steps = orders[form % 4]
    return Schedule(steps, kernels[min(rows, tiles)])


class Judge:
    """One worker process for all problems: bound mode between guard pages, or exact mode."""

    def __init__(self) -> None:
        self._child = Child([sys.executable, "-m", "polysci.measure.worker", HOST])

    def prepare(self, problem: Convolved) -> None:
        if not self._child.alive:
            self._child.restart()
        self.ask(op="prepare", problem=str(problem), layout=problem.layout, seed=0)

    def ask(self, **question: Any) -> dict[str, Any]:
        answer = self._child.ask(question, 60)
        if "fault" in answer:
            raise CheckError(answer["fault"])
        return answer

    def close(self) -> None:
        self._child.close()


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    found = Judge()
    yield found
    found.close()


def sources_of(isa: str, m: int) -> list[Source]:
    """The problems' code for an instruction set: for the best one that runs here all of them."""
    sources = []
    for at, problem in enumerate(PROBLEMS):
        if (isa != BEST and at % 4) or (m == 2 and at % 3):
            continue
        threads = 1 + (at + m // 2) % 2
        plan = plan_of(problem, (m,), isa, threads, at // 2 + m)
        sources.append(emit(problem, plan, threads, EmitOptions(f"p{at}_{m}")))
    return sources


@pytest.mark.exhaustive
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(
    "isa", [pytest.param(isa, marks=pytest.mark.isa(isa)) for isa in ("portable", "avx2", "avx512")]
)
def test_results_are_within_the_bound_between_guard_pages(judge: Judge, isa: str, m: int) -> None:
    sources = sources_of(isa, m)
    path = cache.build(assemble(sources), flags=QUICK)
    for source in sources:
        problem = PROBLEMS[int(source.symbol[1:-2])]
        judge.prepare(problem)
        binary = {"so": str(path), "symbol": source.symbol}
        worst = judge.ask(op="bound", **binary, **bound_of(source.schedule))["worst"]
        assert worst <= 1, f"{problem} {source.schedule}"
        judge.ask(op="check", **binary, exact=asdict(exact_inputs(problem)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "isa", [pytest.param(isa, marks=pytest.mark.isa(isa)) for isa in ("portable", "avx2", "avx512")]
)
def test_other_filters_are_within_the_bound_between_guard_pages(judge: Judge, isa: str) -> None:
    chosen = [
        (at, *case)
        for at, case in enumerate(OTHERS)
        if isa == BEST or at % 5 == 0 or case in GROUPED + DILATED + DEEP
    ]
    check_all(judge, isa, chosen)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    "isa", [pytest.param(isa, marks=pytest.mark.isa(isa)) for isa in ("portable", "avx2", "avx512")]
)
def test_strides_are_within_the_bound_between_guard_pages(
    judge: Judge, isa: str, part: int
) -> None:
    every = [(at, *case) for at, case in enumerate(HALVED)][part::PARTS]
    check_all(judge, isa, every if isa == BEST else every[::4])


def check_all(
    judge: Judge, isa: str, chosen: Sequence[tuple[int, Convolved, tuple[int, ...]]]
) -> None:
    """Check each case's bound and its exact results; they are compiled together."""
    sources = []
    for at, problem, numbers in chosen:
        threads = 1 + at // 2 % 2
        plan = plan_of(problem, numbers, isa, threads, at // 3 + at)
        sources.append(emit(problem, plan, threads, EmitOptions(f"p{at}")))
    path = cache.build(assemble(sources), flags=QUICK)
    for (_, problem, _), source in zip(chosen, sources, strict=True):
        judge.prepare(problem)
        binary = {"so": str(path), "symbol": source.symbol}
        worst = judge.ask(op="bound", **binary, **bound_of(source.schedule))["worst"]
        assert worst <= 1, f"{problem} {source.schedule}"
        judge.ask(op="check", **binary, exact=asdict(exact_inputs(problem)))


def primitive(problem: Conv2d, text: str) -> Primitive:
    source = emit(problem, parse(text))
    library = load(cache.build(source.file, flags=QUICK), source.declarations)
    return Primitive(problem, source.schedule, source, library, "primitive")


@pytest.mark.exhaustive
@pytest.mark.isa("avx2")
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_weights_that_24_divides_twice_give_exact_results(layout: str) -> None:
    problem = Conv2d(N=1, C=9, H=9, W=10, K=11, R=3, S=3, pad=1, layout=layout)
    random = np.random.default_rng(3)
    x = random.integers(-1, 2, problem.x_shape).astype(np.float32)
    w = 576 * random.integers(-1, 2, problem.w_shape).astype(np.float32)
    run = primitive(problem, "t:4 winograd(4) k:8 > brgemm_avx2_f32_3x8")
    assert (run(x, run.pack_weights(w)) == problem.reference(x, w)).all()


@pytest.mark.exhaustive
@pytest.mark.isa("avx2")
@pytest.mark.parametrize(
    ("taps", "stride"), [(own, stride) for stride, rows in OUTPUTS.items() for own in rows]
)
def test_every_subset_of_the_epilogue(taps: int, stride: int) -> None:
    problem = Conv2d(
        N=1, C=5, H=6 * stride, W=7 * stride, K=11, R=3, S=taps, pad=(1, taps // 2), stride=stride
    )
    random = np.random.default_rng(5)
    x, w, residual = (
        random.standard_normal(shape, np.float32)
        for shape in (problem.x_shape, problem.w_shape, problem.y_shape)
    )
    bias = random.standard_normal(problem.K, np.float32)
    for layout in ("nhwc", "nchw"):
        turned = problem.with_(layout=layout)
        numbers = ",".join(str(OUTPUTS[stride][own][-1]) for own in (3, taps) if own > 1)
        run = primitive(turned, f"winograd({numbers}) > brgemm_avx2_f32_4x16")
        axes = (0, 1, 2, 3) if layout == "nhwc" else (0, 3, 1, 2)
        move = [np.ascontiguousarray(a.transpose(axes)) for a in (x, residual)]
        wp = run.pack_weights(w)
        for chosen in product((False, True), repeat=3):
            options: dict[str, Any] = {"bias": bias, "residual": move[1], "clamp": (-0.25, 1.0)}
            options = {k: v for (k, v), on in zip(options.items(), chosen, strict=True) if on}
            expected = turned.reference(move[0].astype(float), w.astype(float), **options)
            assert np.allclose(run(move[0], wp, **options), expected, atol=1e-4), options


@pytest.mark.exhaustive
@pytest.mark.isa("avx2")
def test_a_nan_reaches_its_tile_and_no_other() -> None:
    problem = Conv2d(N=1, C=3, H=12, W=12, K=4, R=3, S=3, pad=1)
    run = primitive(problem, "winograd(4) > brgemm_avx2_f32_3x8")
    x = np.ones(problem.x_shape, np.float32)
    x[0, 5, 5, 1] = np.nan
    y = run(x, run.pack_weights(np.ones(problem.w_shape, np.float32)), activation="relu")
    assert np.isnan(y[0, 4:7, 4:7]).all()
    assert not np.isnan(y[0, :3]).any() and not np.isnan(y[0, :, 9:]).any()


# Changes of the headers that must be noticed, or the tests above prove nothing.
FAULTS = {
    "a wrong constant into V": ("ps_splat(-5.0f), d[2]", "ps_splat(-5.001f), d[2]"),
    "a wrong constant of U": ("points == 6 ? 1.0 / 24", "points == 6 ? 1.001 / 24"),
    "a wrong constant back": ("ps_splat(8.0f)", "ps_splat(8.004f)"),
    "reads past the channels": (
        "part->lanes == PS_LANES ? ps_load(x + at) : ps_load_first(x + at, part->lanes)",
        "ps_load(x + at)",
    ),
    "writes past the filters": ("ps_store_first(y + at, x, to.lanes)", "ps_store(y + at, x)"),
    "reads above the image": ("part->rows >> i & ", ""),
    "writes below the image": ("if (row >= to.rows)", "if (0)"),
    "forgets the bias": ("ps_fma(x, scale, bias) : ps_add(x, bias)", "x : x"),
}
# Those that only filters of 5 taps show.
FAULTS_OF_FIVE = {
    "a wrong constant into V": ("near = ps_splat(-4.25f)", "near = ps_splat(-4.251f)"),
    "a wrong constant of a half": ("part = ps_splat(0.5f)", "part = ps_splat(0.501f)"),
    "a wrong constant of U": ("32.0 / 45", "32.01 / 45"),
    "a wrong constant back": ("ps_splat(0.125f)", "ps_splat(0.126f)"),
    "points in another order": ("i == 3 ? 7 : i", "i"),
}
# Those that a stride of 2 shows.
FAULTS_OF_STRIDES = {
    "odd pixels in the place of even ones": ("t, d + half, ps", "t, d, ps"),
    "a wrong constant into V": ("ps_splat(3.0f), ps_minus(d[1], d[2])", "ps_splat(3.01f), d[1]"),
    "a wrong constant of U": ("j == 2 ? -1.0 / 6", "j == 2 ? -1.001 / 6"),
    "taps in the place of others": ("tap % 2 != odd", "tap % 2 == odd"),
    "forgets odd pixels": ("t[i] = ps_add(t[i], more[i]);", "(void)more;"),
    "tiles a pixel apart": ("ps_tile_row(g, tile) * g.tall_stride - g.top", "ps_tile_row(g, tile)"),
}


@pytest.mark.exhaustive
@pytest.mark.isa("avx2")
@pytest.mark.parametrize(
    ("taps", "stride", "faults"),
    [(3, 1, FAULTS), (5, 1, FAULTS_OF_FIVE), (3, 2, FAULTS_OF_STRIDES)],
)
def test_faults_are_noticed(
    judge: Judge, taps: int, stride: int, faults: dict[str, tuple[str, str]]
) -> None:
    size = 6 * stride
    problem = Conv2d(N=1, C=11, H=size, W=size, K=13, R=taps, S=taps, pad=taps // 2, stride=stride)
    source = emit(problem, parse("winograd(4) > brgemm_avx2_f32_4x16"))
    texts = []
    for before, after in faults.values():
        assert before in source.file
        texts.append(source.file.replace(before, after))
    paths = cache.build_many(texts, flags=QUICK)
    judge.prepare(problem)
    for fault, path in zip(faults, paths, strict=True):
        question = {"op": "bound", "so": str(path), "symbol": "primitive"}
        try:
            judge.ask(**question, **bound_of(source.schedule))
        except CheckError:
            judge.prepare(problem)  # the worker may have crashed
        else:
            pytest.fail(f"not noticed: {fault}")


@pytest.mark.exhaustive
def test_a_workspace_is_v_and_m_once_a_thread() -> None:
    problem = Conv2d(N=1, C=16, H=8, W=8, K=32, R=3, S=3, pad=1)
    kernel, points = "brgemm_avx512_f32_2x16", 36
    tiles, block, depth, width = 4, 2, 16, 16
    expected = {
        ("winograd(4)", 1): tiles * (depth + 32),
        ("t:2 winograd(4) k:16", 1): block * (depth + width),
        ("t:2* winograd(4) k:16", 3): 3 * block * (depth + width),
        ("winograd(4) k:16* t:2", 2): tiles * depth + 2 * block * width,
    }
    for (words, threads), size in expected.items():
        text = emit(problem, parse(f"{words} > {kernel}"), threads).text
        assert f"return {4 * points * size};" in text, words
    assert f"return {4 * points * prod((16, 32))};" in text


EXPORTS = [("portable", "-O1 -fsanitize=address,undefined", "gcc"), ("portable", "-O1", "clang")]
EXPORTS += [("avx2", "-O1", cc) for cc in ("gcc", "clang")]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("isa", "flags", "cc"), EXPORTS)
def test_exported_layers_pass_their_own_test(tmp_path: Path, isa: str, flags: str, cc: str) -> None:
    if not shutil.which(cc) or isa not in {runs.name for runs in detect().allowed}:
        pytest.skip(f"no {cc}, or no CPU with {isa}")
    lanes = microkernels.lanes(isa)
    conv = Conv2d(N=2, C=17, H=9, W=8, K=lanes + 3, R=3, S=3, pad=1)
    layers = [
        ExportedLayer(conv, parse(f"t:5 winograd(4) k:{lanes} > brgemm_{isa}_f32_4x{lanes}")),
        ExportedLayer(
            conv.with_(layout="nchw"), parse(f"winograd(4) t:4 > brgemm_{isa}_f32_3x{lanes}")
        ),
        ExportedLayer(
            conv.with_(layout="nchw"),
            parse(f"winograd(2) ahead(B) > brgemm_{isa}_f32_4x{2 * lanes}"),
        ),
        ExportedLayer(
            conv.with_(R=5, S=5, pad=2), parse(f"winograd(4) > brgemm_{isa}_f32_3x{lanes}")
        ),
        ExportedLayer(
            conv.with_(S=4, stride=2, layout="nchw"),
            parse(f"winograd(2,4) > brgemm_{isa}_f32_3x{lanes}"),
        ),
        ExportedLayer(conv, parse(f"winograd_f16(4) ahead(B) > brgemm_{isa}_f32_3x{lanes}")),
        ExportedLayer(
            Conv3d(N=2, C=18, D=4, H=6, W=7, K=5, T=3, R=3, S=3, pad=1),
            parse(f"winograd(4) > brgemm_{isa}_f32_3x{lanes}"),
        ),
        ExportedLayer(
            Conv1d(N=1, C=19, W=21, K=5, S=7, pad=6, dilation=2, layout="nchw"),
            parse(f"winograd(2) > brgemm_{isa}_f32_3x{lanes}"),
        ),
    ]
    export_c(layers, tmp_path / "net", name="net")
    files = sorted(path.name for path in (tmp_path / "net").glob("*.c"))
    words = [cc, *STRICT, *flags.split(), *files, "-o", "selftest", "-lm"]
    built = subprocess.run(words, cwd=tmp_path / "net", capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    ran = subprocess.run(["./selftest"], cwd=tmp_path / "net", capture_output=True, text=True)
    told = [f"{isa}: 14 passed, 0 failed", f"{isa}_f16: 2 passed, 0 failed", "16 passed, 0 failed"]
    assert (ran.returncode, ran.stdout.splitlines()) == (0, told), ran.stderr
