"""Winograd's algorithm for filters dilated along rows of pixels whose channels lie apart."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from polysci import tune
from polysci.lower.algorithm import EmitOptions
from polysci.lower.choice import candidates
from polysci.lower.winograd.algorithm import BOX, RUN, estimate, turned_pixels
from polysci.lower.winograd.plan import resolve
from polysci.ops.convolutions import Conv1d, Conv2d, Conv3d
from polysci.ops.problem import Problem
from polysci.runtime.build import cache
from polysci.space.schedule import parse
from polysci.target.host import detect
from tests.lower.test_winograd import CHANNELS, Convolved, plan_of
from tests.lower.test_winograd_f16 import rounded
from tests.support.flags import QUICK
from tests.support.judge import Judge, build
from tests.support.samples import fixed_context

BEST = detect().isa.name
ISAS = [pytest.param(isa, marks=pytest.mark.isa(isa)) for isa in ("portable", "avx2", "avx512")]
STEPS = (2, 3, 4, 5, 6, 8, 9, 18, 3, 2)  # groups of as many tiles, of which a box holds some
CASES: list[tuple[Convolved, tuple[int, ...]]] = [
    *(
        (
            Conv2d(
                N=1 + at % 2, C=CHANNELS[at * 3 % 13], K=CHANNELS[at * 5 % 13], H=7,
                W=1 + 2 * step + at * 7 % 31, R=(3, 1, 5)[at % 3], S=3,
                pad=((1, 0, 2)[at % 3], step - at % 2), dilation=(1, step), layout="nchw",
            ),
            ((2, 4)[at // 2 % 2], 4) if at % 3 != 1 else (2 + at % 4 // 2 * 2,),
        )
        for at, step in enumerate(STEPS)
    ),
    (
        Conv2d(N=2, C=17, H=13, W=37, K=20, R=5, S=7, pad=(4, 9), dilation=(2, 3), layout="nchw"),
        (4, 2),
    ),
    (Conv2d(N=1, C=4, H=6, W=5, K=3, R=3, S=3, pad=(1, 7), dilation=(1, 7), layout="nchw"), (4,)),
    (
        Conv2d(N=1, C=18, H=9, W=29, K=64, R=3, S=3, pad=5, dilation=5, groups=2, layout="nchw"),
        (4,),
    ),
    (
        Conv2d(
            N=1, C=9, H=9, W=14, K=20, R=6, S=5, pad=2, stride=(2, 1), dilation=(1, 2),
            layout="nchw",
        ),
        (4,),
    ),
    (Conv1d(N=2, C=17, W=91, K=20, S=3, pad=2, dilation=2, layout="nchw"), (4,)),
    (Conv1d(N=1, C=36, W=61, K=64, S=5, pad=12, dilation=6, groups=2, layout="nchw"), (4,)),
    (
        Conv3d(N=2, C=5, D=3, H=7, W=17, K=6, T=2, R=3, S=3, pad=2, dilation=2, layout="nchw"),
        (2, 4),
    ),
]  # fmt: skip


def check_all(judge: Judge, isa: str, chosen: Sequence[int], *, narrow: bool = False) -> None:
    """Check exact results and the bound of some cases, in one thread and in two.

    ``narrow``: transformed filters are f16.
    """
    sources = []
    for at in chosen:
        problem, numbers = CASES[at]
        threads = 1 + at // 2 % 2
        schedule = plan_of(problem, numbers, isa, threads, at // 3 + at)
        schedule = rounded(schedule) if narrow else schedule
        sources.append(tune.emit(problem, schedule, threads, EmitOptions(f"p{at}")))
    path = build(sources)
    for at, source in zip(chosen, sources, strict=True):
        judge.judge(CASES[at][0], path, source.symbol, source.schedule)


def test_some_results_are_within_the_bound(judge: Judge) -> None:
    """Of groups that fit into a box, and of larger ones; blocks cut both."""
    check_all(judge, "portable", [1, 6])


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ISAS)
def test_results_are_within_the_bound_between_guard_pages(judge: Judge, isa: str) -> None:
    check_all(judge, isa, range(len(CASES)))
    check_all(judge, isa, range(2, len(CASES), 4), narrow=True)


# Changes of the headers that must be noticed.
FAULTS = {
    "takes a part of a group for all": (
        "run % g.wide_step == 0 ? g.wide_step : run",
        "g.wide_step",
    ),
    "runs beyond a group": ("ps_least(run, step - col % step)", "run"),
    "reads neighbours": ("col += g.wide_step, to +=", "col += piece, to +="),
    "writes neighbours": ("j += piece, col += g.wide_step)", "j += piece, col += piece)"),
    "reads left of the image": ("low = ps_least(ps_most(0, -col), piece)", "low = 0"),
    "writes right of the image": ("real = ps_least(piece, end - col)", "real = piece"),
    "tiles of a box in another order": ("ps_tile_start(j, g.wide, side)", "j * g.wide"),
}


@pytest.mark.exhaustive
def test_faults_are_noticed(judge: Judge) -> None:
    problem = Conv2d(N=1, C=11, H=6, W=32, K=13, R=3, S=3, pad=3, dilation=3, layout="nchw")
    source = tune.emit(problem, parse("t:5 winograd(4) > brgemm_portable_f32_4x4"))
    texts = []
    for before, after in FAULTS.values():
        assert before in source.file
        texts.append(source.file.replace(before, after))
    paths = cache.build_many([source.file, *texts], flags=QUICK)
    judge.judge(problem, paths[0], "primitive", source.schedule)
    for fault, path in zip(FAULTS, paths[1:], strict=True):
        try:
            judge.judge(problem, path, "primitive", source.schedule)
        except Exception:  # a wrong result, or a worker that ended
            continue
        pytest.fail(f"not noticed: {fault}")


def turned(problem: Problem, text: str) -> Any:
    """The pixels of x and of y that are turned for a row of a tile, nearly."""
    plan = resolve(problem, parse(f"{text} > brgemm_avx512_f32_1x16"))
    read, written = turned_pixels(plan)
    return pytest.approx((read / plan.tile.down.points, written / plan.tile.down.m))


def test_turned_pixels_are_those_of_groups_and_of_their_parts() -> None:
    line: dict[str, Any] = {"N": 1, "C": 16, "W": 960, "K": 16, "S": 3, "layout": "nchw"}
    dense, two, eight, ten = (Conv1d(**line, pad=step, dilation=step) for step in (1, 2, 8, 10))
    assert turned(dense, "t:7 winograd(4)") == (4 + 2 / RUN, 4)
    assert turned(two, "t:8 winograd(4)") == (4 + 2 / 4, 4)
    assert turned(two, "t:9 winograd(4)") == (4 + 2 / 4 + 16 * 6 / 9, 4 + 16 * 4 / 9)
    assert turned(eight, "winograd(4)") == (4 + 2, 4)
    assert turned(ten, "winograd(4)") == (16 * 6 * 2 / 10, 16 * 4 * 2 / 10)
    assert turned(ten, "t:5 winograd(4)") == (16 * 6 / 5, 16 * 4 / 5)
    assert turned(eight, "winograd(4) t:4") == (4 + 2, 16 * 4 / 4)
    assert turned(dense.with_(layout="nhwc"), "winograd(4)") == (0, 0)
    square = Conv2d(N=1, C=16, H=64, W=64, K=16, R=5, S=5, pad=8, dilation=4, layout="nchw")
    assert BOX // 8 // 4 - 4 == 5 and turned(square, "winograd(4)") == (4 + 4, 4)


def test_blocks_that_cut_groups_are_predicted_to_take_longer() -> None:
    problem = Conv2d(N=1, C=64, H=33, W=33, K=64, R=3, S=3, pad=6, dilation=6, layout="nchw")
    context = fixed_context(problem)
    plan = resolve(problem, parse("t:12 winograd(4) > brgemm_avx512_f32_6x64"))
    whole, cut = (estimate(replace(plan, t=tiles), context).into for tiles in (12, 11))
    assert cut > 1.1 * whole


def test_auto_takes_it_where_many_channels_meet() -> None:
    problem = Conv2d(N=1, C=256, H=65, W=65, K=256, R=3, S=3, pad=4, dilation=4, layout="nchw")
    best, *_ = candidates(problem, fixed_context(problem), 1, "auto")
    assert best.schedule.transform and best.schedule.transform.name == "winograd"
