"""The cost model: one schedule or thousands, what it must and must not depend on, its speed."""

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysci.cost import Context, Estimate, traffic
from polysci.cost.shortlist import (
    as_family,
    choices,
    distinct,
    form_from_afar,
    other_form,
    predict_seconds,
)
from polysci.errors import UnsupportedError
from polysci.ops.convolutions import Conv2d
from polysci.ops.layer_lists import load
from polysci.space.directives import Ahead
from polysci.space.enumerate import Family
from polysci.space.schedule import parse
from polysci.target.coefficients import FITTED
from tests.support import samples

LAYER = Conv2d(N=1, C=64, H=28, W=28, K=96, R=3, S=3, pad=1)
PARTS = ("seconds", "compute", "calls", "packing", "transfer", "imbalance")


def all_of(context: Context) -> np.ndarray:
    """Predicted seconds of a whole space."""
    rank = traffic
    return np.concatenate([rank(context, family).seconds for family in samples.families(context)])


@pytest.mark.exhaustive
@settings(max_examples=25)
@given(samples.convolutions(most=24, layouts=("nhwc", "nchw")), st.integers(1, 3), st.data())
def test_a_family_is_ranked_as_its_members_are(
    problem: Conv2d, threads: int, data: st.DataObject
) -> None:
    context = samples.fixed_context(problem, threads)
    family = data.draw(st.sampled_from(samples.families(context)))
    together = traffic(context, family)
    for index in data.draw(st.lists(st.integers(0, len(family) - 1), min_size=1, max_size=4)):
        schedule = family.schedule(index)
        if not samples.fits(context, schedule):
            continue
        single = traffic(*as_family(context, schedule))
        for part in PARTS:
            both = [getattr(estimate, part) for estimate in (together, single)]
            assert both[0][index] == pytest.approx(both[1][0], rel=1e-9), (part, str(schedule))
        for many, one in zip(together.levels, single.levels, strict=True):
            whole = np.broadcast_to(many.total, len(family))
            assert whole[index] == pytest.approx(float(one.total[0]), rel=1e-9), str(schedule)
        assert predict_seconds(context, schedule) == pytest.approx(together.seconds[index])


def estimates(context: Context) -> list[tuple[Family, Estimate]]:
    return [(f, traffic(context, f)) for f in samples.families(context)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("threads", [1, 2])
def test_estimates_are_finite_and_no_part_is_negative(layout: str, threads: int) -> None:
    for layer in load("resnet50")[::5] + load("mobilenet_v1")[1:4]:
        context = samples.fixed_context(layer.with_(layout=layout), threads)
        for family, estimate in estimates(context):
            for part in PARTS:
                values = getattr(estimate, part)
                assert values.shape == (len(family),)
                assert np.isfinite(values).all() and (values >= 0).all(), part
            assert (estimate.seconds > 0).all() and (estimate.imbalance >= 1).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("rate", ["peak", "l2"])
def test_a_faster_machine_is_never_slower(rate: str) -> None:
    context = samples.fixed_context(LAYER)
    faster = replace(context.machine, **{rate: 2 * getattr(context.machine, rate)})
    before, after = all_of(context), all_of(replace(context, machine=faster))
    assert (after <= before * (1 + 1e-12)).all()
    assert (after < before).any()


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", ["l3", "memory"])
def test_far_levels_matter_when_caches_are_cold(level: str) -> None:
    context = replace(samples.fixed_context(LAYER), cold=True)
    rates = {name: 2 * getattr(context.machine, name) for name in (level, f"{level}_all")}
    before = all_of(context)
    after = all_of(replace(context, machine=replace(context.machine, **rates)))
    assert (after <= before * (1 + 1e-12)).all() and (after < before).any()
    assert (all_of(replace(context, cold=False)) <= before).all()


# By LAYER: no weights ahead, nor weights beyond L2, and compute hides L2.
UNUSED = ("prefetch_ns", "beside_l3", "first_reads")


@pytest.mark.sampled(every=36)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("price", [name for name in FITTED if name not in UNUSED])
def test_higher_prices_are_never_cheaper(price: str, layout: str) -> None:
    context = replace(samples.fixed_context(LAYER.with_(layout=layout)), cold=True)
    machine = context.machine
    dearer = machine.with_coefficients({price: 3 * machine.coefficient(price)})
    before, after = all_of(context), all_of(replace(context, machine=dearer))
    assert (after >= before).all()
    copies = {"copy_ns": "nchw", "gather_ns": "nhwc"}.get(price)  # each layout has one of the two
    assert (after > before).any() == (layout != copies)


@pytest.mark.exhaustive
@pytest.mark.parametrize("cache", ["L1", "L2", "L3"])
def test_a_larger_cache_is_never_slower(cache: str) -> None:
    context = samples.fixed_context(load("resnet50")[2])
    larger = samples.resized(context.target, **{cache: 4 * context.target.memory(cache).size})
    before, after = all_of(context), all_of(replace(context, target=larger))
    assert (after <= before * (1 + 1e-12)).all()


def test_twice_the_batch_is_twice_the_compute() -> None:
    plan = "n k:32 p > brgemm_avx512_f32_14x32"
    pair = [
        traffic(*as_family(context, parse(plan)))
        for context in (
            samples.fixed_context(Conv2d(N=n, C=32, H=14, W=14, K=64, R=1, S=1)) for n in (2, 4)
        )
    ]
    assert pair[1].compute == pytest.approx(2 * pair[0].compute)
    assert pair[1].calls == pytest.approx(2 * pair[0].calls)


def test_compute_counts_what_the_vectors_do() -> None:
    """33 columns cost 48 lanes; the peak bounds everything."""
    for K, lanes in ((32, 32), (33, 48), (48, 48)):
        problem = Conv2d(N=1, C=64, H=14, W=14, K=K, R=1, S=1)
        context = samples.fixed_context(problem)
        plan = parse("p k:16 > brgemm_avx512_f32_14x16")
        estimate = traffic(*as_family(context, plan))
        flops = 2 * 14 * 14 * 64 * lanes
        rate = context.machine.of_kernel("brgemm_avx512_f32_14x16", 14, 1)
        assert estimate.compute[0] == pytest.approx(flops / (context.machine.peak * rate * 1e9))


def test_uneven_shares_of_threads_are_seen() -> None:
    problem = Conv2d(N=1, C=64, H=14, W=14, K=64, R=1, S=1)
    context = samples.fixed_context(problem, 2)
    two, three = (
        traffic(*as_family(context, parse(text)))
        for text in (
            "p:7* k:32 p > brgemm_avx512_f32_14x32",
            "p:5* k:32 p > brgemm_avx512_f32_14x32",
        )
    )
    assert two.imbalance[0] == pytest.approx(1.0)
    assert three.imbalance[0] > 1.2  # 10 rows of 14 are one thread's
    assert three.seconds[0] > two.seconds[0]


@pytest.mark.parametrize(
    ("text", "busiest"),
    [
        # Of 1000 columns, 13 rows: (336, 12), (336, 1), (336, 12) beside (336, 1), (328, 13).
        ("k:336* p:12* k:16 p > brgemm_avx512_f32_13x16", 336 * 25),
        ("k:512* p k:16 > brgemm_avx512_f32_13x16", 512 * 13),
        ("p:3* k:16 p > brgemm_avx512_f32_13x16", 1000 * 9),
        ("p:7* k:400* k:16 p > brgemm_avx512_f32_13x16", 1000 * 7),
    ],
)
def test_the_busiest_thread_is_that_of_the_tiles_it_runs(text: str, busiest: int) -> None:
    context = samples.fixed_context(Conv2d(N=1, C=64, H=13, W=13, K=1000, R=1, S=1), 2)
    estimate = traffic(*as_family(context, parse(text)))
    assert estimate.imbalance[0] == pytest.approx(2 * busiest / 13000)


def test_marks_cost_nothing_where_one_thread_runs() -> None:
    context, one = (samples.fixed_context(LAYER, threads) for threads in (2, 1))
    text = "p:7 k:48 p q:14 > brgemm_avx512_f32_14x16"
    serial, marked = text.replace("k:48 ", "k:16 "), text.replace("p:7 k:48 ", "p:7* k:16* ")
    assert predict_seconds(one, parse(serial)) == predict_seconds(one, parse(marked))
    assert predict_seconds(context, parse(marked)) < predict_seconds(context, parse(serial))


def test_packing_is_charged_and_may_pay() -> None:
    """1x1 with stride 2 over 1024 channels: rows of A 8 KB apart crowd into one cache set."""
    context = samples.fixed_context(Conv2d(N=1, C=1024, H=14, W=14, K=512, R=1, S=1, stride=2))
    plain, packed = (
        traffic(*as_family(context, parse(f"{text} > brgemm_avx512_f32_14x32")))
        for text in ("p:2 k:32", "pack(A)+16 p:2 k:32")
    )
    assert plain.packing[0] == 0 < packed.packing[0]
    assert packed.seconds[0] < plain.seconds[0]


@pytest.mark.exhaustive
def test_weights_beyond_the_cache_are_waited_for_unless_prefetched() -> None:
    context = samples.fixed_context(Conv2d(N=1, C=512, H=7, W=7, K=512, R=3, S=3, pad=1))
    plain, ahead = (
        parse(f"k:32 p:2 {mark}> brgemm_avx512_f32_14x32") for mark in ("", "ahead(B) ")
    )
    assert predict_seconds(context, ahead) < predict_seconds(context, plain)
    large = replace(context, target=samples.resized(context.target, L2=16 << 20))
    assert predict_seconds(large, ahead) == predict_seconds(large, plain)
    dear = replace(context, machine=context.machine.with_coefficients({"prefetch_ns": 20.0}))
    assert (
        predict_seconds(dear, ahead)
        > predict_seconds(dear, plain)
        == predict_seconds(context, plain)
    )
    wide = [parse(f"k:64 p {mark}> brgemm_avx512_f32_7x64") for mark in ("", "ahead(B) ")]
    assert predict_seconds(context, wide[0]) < predict_seconds(context, wide[1])  # no room for two
    assert choices(context, 1)[0].schedule.has(Ahead)
    assert not choices(large, 1)[0].schedule.has(Ahead)


def test_the_other_form_of_a_schedule_prefetches_or_does_not() -> None:
    context = samples.fixed_context(Conv2d(N=1, C=512, H=7, W=7, K=512, R=3, S=3, pad=1))
    plain, ahead = (
        parse(f"k:32 p:2 {mark}> brgemm_avx512_f32_14x32") for mark in ("", "ahead(B) ")
    )
    assert other_form(context, plain) == ahead and other_form(context, ahead) == plain
    assert other_form(samples.fixed_context(LAYER), plain) is None  # its weights fit


def test_weights_from_afar_are_prefetched_though_they_fit() -> None:
    """Panels that several calls read, before the next one; a call of one row waits for its own."""
    problem = Conv2d(N=1, C=128, H=14, W=14, K=128, R=1, S=1)
    context = samples.fixed_context(problem)
    plain, ahead = (
        parse(f"k:16 p:2 {mark}> brgemm_avx512_f32_28x16") for mark in ("", "ahead(B) ")
    )
    assert other_form(context, plain) is None and form_from_afar(context, plain) == ahead
    assert form_from_afar(context, ahead) is None
    one = samples.fixed_context(Conv2d(N=1, C=128, H=1, W=1, K=128, R=1, S=1))
    assert form_from_afar(one, parse("k:32 > brgemm_avx512_f32_1x32")) is None


@pytest.mark.perf
def test_a_hundred_thousand_schedules_a_second() -> None:
    layer = load("resnet50")[2]
    context, best = samples.fixed_context(layer), 0.0
    families = samples.families(context, tiles=14, blocks=3)
    for _ in range(5):
        start = time.perf_counter()
        count = sum(len(traffic(context, family).seconds) for family in families)
        best = max(best, count / (time.perf_counter() - start))
    assert best >= 100_000, f"{best:.0f} schedules a second"


def test_an_empty_space_is_refused_with_the_statement_and_a_reason() -> None:
    empty = distinct(samples.fixed_context(LAYER), [], [], costs_are_seconds=True)
    with pytest.raises(UnsupportedError, match=r"^no schedule fits O\[.* \+= .*: no order of its"):
        next(empty)
