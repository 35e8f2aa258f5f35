"""Winograd's algorithm with transformed filters in f16: as run, its bound, who takes it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from operator import mul

import numpy as np
import pytest

from polysci import tune
from polysci.cli import main
from polysci.errors import UnsupportedError
from polysci.lower.algorithm import EmitOptions
from polysci.lower.choice import admits, candidates, key_of, parse_record_key, resolve_algorithm
from polysci.lower.registry import algorithm_named
from polysci.lower.winograd.algorithm import estimate
from polysci.lower.winograd.bounds import rounded_sizes
from polysci.lower.winograd.integers import PATTERNS
from polysci.lower.winograd.plan import resolve
from polysci.lower.winograd.tiles import tile_of
from polysci.measure.error_bound import Reals
from polysci.numerics.filtering import OUTPUTS, filtering
from polysci.ops.convolutions import Conv2d
from polysci.runtime.build import cache
from polysci.runtime.build.library import load
from polysci.runtime.primitive import Primitive
from polysci.space.schedule import Schedule, parse
from polysci.target.host import detect
from tests.lower.test_winograd import HALVED, OTHERS, PROBLEMS, Convolved, plan_of
from tests.support.flags import QUICK
from tests.support.judge import Judge, build
from tests.support.samples import fixed_context

BEST = detect().isa.name
ISAS = [pytest.param(isa, marks=pytest.mark.isa(isa)) for isa in ("portable", "avx2", "avx512")]
CONV = Conv2d(N=1, C=16, H=8, W=8, K=48, R=3, S=3, pad=1)
EVERY: Sequence[tuple[Convolved, tuple[int, ...]]] = [
    *((problem, (2 + at % 2 * 2,)) for at, problem in enumerate(PROBLEMS)), *OTHERS, *HALVED,
]  # fmt: skip
PARTS = 4  # of the cases, each a file of its own


def rounded(schedule: Schedule) -> Schedule:
    """The schedule with U in f16."""
    return parse(str(schedule).replace("winograd(", "winograd_f16("))


def check_all(judge: Judge, isa: str, chosen: Sequence[int]) -> None:
    """Check exact results and the bound of some cases, which are compiled together."""
    sources = []
    for at in chosen:
        problem, numbers = EVERY[at]
        threads = 1 + at // 2 % 2
        schedule = rounded(plan_of(problem, numbers, isa, threads, at // 3 + at))
        sources.append(tune.emit(problem, schedule, threads, EmitOptions(f"p{at}")))
    path = build(sources)
    for at, source in zip(chosen, sources, strict=True):
        judge.judge(EVERY[at][0], path, source.symbol, source.schedule)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("isa", ISAS)
def test_results_are_within_the_bound_between_guard_pages(
    judge: Judge, isa: str, part: int
) -> None:
    every = range(part, len(EVERY), PARTS)
    check_all(judge, isa, every[::2] if isa == BEST else every[::7])


@pytest.mark.parametrize("isa", ISAS)
def test_some_results_are_within_the_bound(judge: Judge, isa: str) -> None:
    check_all(judge, isa, [len(PROBLEMS) - 2, len(EVERY) - 1])


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_filters_are_rounded_to_the_nearest(layout: str) -> None:
    """Of one panel, and nothing but its rounding exceeds the bound of f32."""
    problem = Conv2d(N=1, C=5, H=8, W=9, K=4, R=3, S=3, pad=1, layout=layout)
    source = tune.emit(problem, parse("winograd_f16(4) > brgemm_portable_f32_3x4"))
    library = load(cache.build(source.file, flags=QUICK), source.declarations)
    run = Primitive(problem, source.schedule, source, library, "primitive")
    reals = Reals.of(problem, 3, algorithm_named("winograd_f16"), (4,))
    packed = run.pack_weights(reals.inputs["w"])
    u = np.einsum("ir,kcrs,js->ijck", *(
        filtering(4, 3).matrices[1], reals.inputs["w"].astype(np.float64),
        filtering(4, 3).matrices[1],
    ))  # fmt: skip
    size, (_, exponents) = 36 * 5 * 4, np.frexp(abs(u).max((0, 1, 2)))
    stored = packed.array.view(np.float16)[:size].reshape(u.shape)
    assert packed.array.nbytes == 2 * size + 4 * 4
    assert (packed.array[-4:] == np.exp2(exponents - 8)).all()
    assert (stored == np.ldexp(u, 8 - exponents).astype(np.float32).astype(np.float16)).all()
    assert (abs(stored).max((0, 1, 2)) >= 128).all() and (abs(stored) <= 256).all()
    y = run(reals.inputs["x"], packed)
    assert not reals.fault("plain", y)
    assert Reals.of(problem, 3, algorithm_named("winograd"), (4,)).fault("plain", y)


def test_f16_holds_transformed_filters_of_exact_inputs() -> None:
    values = [
        [float(sum(map(mul, row, taps))) for row in filtering(m, len(taps), stride).filter]
        for stride, patterns in PATTERNS.items()
        for taps in patterns for m in OUTPUTS[stride][len(taps)]
    ]  # fmt: skip
    for down, across in product(values, repeat=2):
        u = np.multiply.outer(down, across).astype(np.float32)
        assert (u.astype(np.float16) == u).all()


@pytest.mark.parametrize("size", [0.0, 1e-35, 1e-20, 1e20, 1e30])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_filters_of_any_size_keep_their_bits(size: float, layout: str) -> None:
    """f16 alone would lose all of them."""
    problem = Conv2d(N=1, C=5, H=6, W=6, K=3, R=3, S=3, pad=1, layout=layout)
    source = tune.emit(problem, parse("winograd_f16(2) > brgemm_portable_f32_3x4"))
    library = load(cache.build(source.file, flags=QUICK), source.declarations)
    run = Primitive(problem, source.schedule, source, library, "primitive")
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(it, np.float32) for it in (problem.x_shape, problem.w_shape))
    sizes = np.float32([size, 1, size])[:, None, None, None]
    y = run(x, run.pack_weights(sizes * w), bias=np.float32([0, 1, 0]))
    expected = problem.reference(x.astype(float), (sizes * w).astype(float))
    y, expected = (np.moveaxis(it, 3 if layout == "nhwc" else 1, 0) for it in (y, expected))
    expected[1] += 1
    for own, right in zip(y, expected, strict=True):
        assert abs(own - right).max() <= 4e-3 * abs(right).max()


def test_what_rounding_adds_is_that_of_plain_loops() -> None:
    problem = Conv2d(N=1, C=3, H=6, W=5, K=2, R=3, S=3, pad=1)
    random, tile = np.random.default_rng(0), tile_of(problem, (4,))
    x, w = (random.standard_normal(s) for s in (problem.x_shape, problem.w_shape))
    got, padded = rounded_sizes(problem, x, w, tile), np.zeros((3, 10, 10))
    padded[:, 1:7, 1:6] = x[0].transpose(2, 0, 1)
    b, g, a = tile.down.matrices
    for p, q, k in np.ndindex(6, 5, 2):
        top, left = p // 4 * 4, q // 4 * 4
        filters = abs(np.einsum("ir,crs,js->cij", g, w[k], g))
        filters += 2.0**-20 * filters.max()
        tiles = padded[:, top : top + 6, left : left + 6]
        points = sum(filters[c] * abs(b @ tiles[c] @ b.T) for c in range(3))
        assert np.isclose(got[0, p, q, k], (abs(a) @ points @ abs(a).T)[p % 4, q % 4])


def test_only_searches_that_ask_for_it_take_it() -> None:
    context = fixed_context(CONV)
    rounding = parse("winograd_f16(4) > brgemm_avx512_f32_2x16")
    plain = parse("winograd(4) > brgemm_avx512_f32_2x16")
    for algorithm in ("direct", "auto", "winograd", "bilinear"):
        assert not admits(algorithm, rounding)
    for algorithm in ("direct", "auto", "winograd"):
        every = candidates(CONV, context, 40, algorithm)
        assert not any("f16" in str(one.schedule.transform) for one in every)
    assert admits("winograd_f16", rounding) and not admits("winograd_f16", plain)
    assert admits("auto_f16", rounding) and admits("auto_f16", plain)
    every = candidates(CONV, context, 40, "auto_f16")
    names = {one.schedule.transform.name for one in every if one.schedule.transform}
    assert {"winograd", "winograd_f16"} <= names


def test_keys_of_records_say_what_was_asked_for() -> None:
    assert key_of(CONV, "auto_f16") == f"{CONV.key} auto_f16"
    assert parse_record_key(f"{CONV.key} auto_f16") == (CONV, "auto_f16")
    assert resolve_algorithm(CONV.with_(R=1, S=1, pad=0), "auto_f16") == "auto"
    assert resolve_algorithm(CONV.with_(stride=3), "auto_f16") == "direct"
    bf16 = CONV.with_(dtype="bf16")
    with pytest.raises(UnsupportedError, match="winograd_f16: dtype=bf16: expected f32"):
        resolve_algorithm(bf16, "winograd_f16")


def test_cold_filters_are_predicted_to_take_less_time_in_f16() -> None:
    deep = Conv2d(N=1, C=256, H=14, W=14, K=256, R=3, S=3, pad=1)
    context = replace(fixed_context(deep), cold=True)
    schedule = parse("t:16 winograd(4) ahead(B) > brgemm_avx512_f32_8x32")
    plain, narrow = (
        estimate(resolve(deep, plan), context) for plan in (schedule, rounded(schedule))
    )
    assert narrow.sizes[1:] == plain.sizes[1:]
    assert narrow.sizes[0] == plain.sizes[0] // 2
    assert narrow.weights < plain.weights and narrow.gemm > plain.gemm


def test_the_commands_know_it(capsys: pytest.CaptureFixture[str]) -> None:
    schedule = "winograd_f16(4) > brgemm_portable_f32_4x4"
    words = ["mb1ic16ih8oc48oh8kh3ph1", "--isa", "portable", "--schedule", schedule]
    assert main(["explain", *words, "--algorithm", "winograd_f16"]) == 0
    assert "transformed and packed ahead in f16" in capsys.readouterr().out
    assert main(["explain", *words, "--algorithm", "auto"]) == 2
    assert "is winograd_f16, and --algorithm asks for auto" in capsys.readouterr().err
