"""Reproducible sums: any number of threads gives the same bits."""

import numpy as np
import pytest

import polysci
from polysci.lower.choice import key_of, parse_record_key, reproducible_schedule
from polysci.numerics.dtypes import precision_named, to_stored
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.space.directives import Private
from polysci.space.summation import SummationOrder
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.tune import Result

CASES = {
    "product": ("mm:24x700x40", "", "f32", "direct"),
    "forward": ("mb2ic70ih9oc40kh3ph1", "nhwc", "f32", "direct"),
    "forward, planes": ("mb1ic70ih9oc40kh3ph1", "nchw", "f32", "direct"),
    "narrow": ("mb1ic70ih9oc40kh1", "nhwc", "bf16", "direct"),
    "half": ("mb1ic70ih9oc40kh1", "nhwc", "f16", "direct"),
    "whole": ("mb1ic70ih9oc40kh3ph1", "nhwc", "u8:s8:s32", "direct"),
    "winograd": ("mb1ic70ih14oc40kh3ph1", "nhwc", "f32", "winograd"),
    "depthwise": ("g48mb1ic48ih14oc48kh3ph1", "nhwc", "f32", "direct"),
    "groups": ("g8mb1ic32ih14oc32kh3ph1", "nhwc", "f32", "direct"),
    "filters": ("bwd_w mb4ic40ih9oc24kh3ph1", "nhwc", "f32", "direct"),
    "narrow filters": ("bwd_w mb4ic40ih9oc24kh3ph1", "nhwc", "bf16", "direct"),
    "inputs": ("bwd_d mb2ic40ih9oc24kh3sh2ph1", "nhwc", "f32", "auto"),
    "long product": ("mm:4x60000x16", "", "f32", "direct"),
    "rows of both factors": ("mm:8x48x40 tb", "", "f32", "direct"),
    "narrow product": ("mm:24x700x40", "", "bf16", "direct"),
}


def case(name: str) -> tuple[Problem, str]:
    text, layout, dtype, algorithm = CASES[name]
    return parse_problem(text, layout, dtype), algorithm


def estimate(problem: Problem, threads: int, algorithm: str = "direct") -> Result:
    """The model's choice for assumed rates, which take no calibration."""
    return polysci.optimize(
        problem, "estimate", threads, machine=assume_rates(detect()), algorithm=algorithm,
        reproducible=True,
    )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_all_threads_give_the_same_bits(name: str) -> None:
    problem, algorithm = case(name)
    random, kinds = np.random.default_rng(0), precision_named(problem.dtype)
    x, w = (
        random.integers(-9, 10, shape).astype(dtype.numpy)
        if dtype.integer
        else to_stored(random.standard_normal(shape).astype(np.float32), dtype)
        for shape, dtype in ((problem.x_shape, kinds.x), (problem.w_shape, kinds.w))
    )
    results = []
    for threads in (1, 2, 3):
        primitive = estimate(problem, threads, algorithm).primitive()
        packed = primitive.pack_weights(w) if problem.w_kind == "constant" else w
        results.append(primitive(x, packed))
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_order_does_not_depend_on_rates_or_threads(threads: int) -> None:
    problem, _ = case("long product")
    kept = reproducible_schedule(problem, detect())
    assert kept.has(Private)
    roles = model_of(problem)[1]
    result = estimate(problem, threads)
    assert SummationOrder.of(roles, result.schedule) == SummationOrder.of(roles, kept)
    assert result.any_order and result.any_order.cost(result) >= 1


@pytest.mark.exhaustive
def test_a_search_stays_in_the_order() -> None:
    problem, _ = case("filters")
    roles = model_of(problem)[1]
    order = SummationOrder.of(roles, reproducible_schedule(problem, detect()))
    result = polysci.optimize(problem, "measure", 2, reproducible=True)
    assert {SummationOrder.of(roles, trial.schedule) for trial in result.trials} == {order}
    assert len(result.trials) > 1
    again = polysci.optimize(problem, "measure", 2, reproducible=True)
    assert result.measurement and again.measurement
    assert again.measurement.recorded or result.measurement.disturbed  # those are taken again


def test_orders_differ_where_sums_do() -> None:
    roles = model_of(parse_problem("mm:24x700x40"))[1]
    kernel = "> brgemm_portable_f32_4x8"

    def order(loops: str) -> SummationOrder:
        return SummationOrder.of(roles, polysci.Schedule.parse(f"{loops} {kernel}"))

    assert order("k:350 j:8 i:4") == order("j:8* k:350 i:4 ahead(B)") != order("j:8 i:4")
    assert order("private(C) k:350* j:8 i:4") != order("k:350 j:8 i:4") != order("k:175 j:8 i:4")


def test_records_are_apart() -> None:
    problem, _ = case("forward")
    key = key_of(problem, "winograd", reproducible=True)
    assert key == f"{problem.key} winograd reproducible"
    assert parse_record_key(key) == (problem, "winograd")


def test_an_option_that_is_none() -> None:
    with pytest.raises(TypeError, match="reproducible"):
        polysci.optimize(case("forward")[0], reproducible=1)  # type: ignore[arg-type]
