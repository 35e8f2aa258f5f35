"""Parallel loops over reductions: private copies of the result, and their sum at the end."""

import numpy as np
import pytest

import polysci
from polysci.errors import IllegalScheduleError, SpecError, UnsupportedError
from polysci.explain import loop_comments
from polysci.measure.check import check
from polysci.numerics.dtypes import precision_named, to_stored
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.space.directives import Private
from polysci.space.directives.private import dense_strides
from polysci.space.schedule import Schedule

KERNEL = "> brgemm_portable_f32_4x8"
# Problem, layout, dtype and loops: parts of reductions with and without loops inside, beside tiles
# of the result that threads share, sums narrowed at the end, copies in another order of axes.
CASES = {
    "images": ("bwd_w mb4ic5ih7oc9kh3ph1", "nhwc", "f32", "n:2* k:8 c:4 r s"),
    "images and rows": ("bwd_w mb4ic5ih7oc9kh3ph1", "nhwc", "f32", "n:2* p:3* n:1 k:8 c:4 r s"),
    "hybrid": ("bwd_w mb4ic5ih7oc9kh3ph1", "nchw", "f32", "k:8* n:2* c:4 r s"),
    "narrow hybrid": ("bwd_w mb4ic5ih7oc9kh3ph1", "nhwc", "bf16", "p:3* c:4* k:8 r s"),
    "one filter": ("bwd_w mb4ic5ih7oc1kh3ph1", "nhwc", "f32", "n:2* c:4 r s"),
    "split k": ("mm:24x96x16", "", "f32", "k:32* i:4 j:8"),
    "factors": ("mm:24x96x16 alpha=0.3 beta=2", "", "f32", "k:32* k:16 i:4 j:8"),
    "narrow split k": ("mm:24x96x16", "", "bf16", "i:8* k:32* k:16 i:4 j:8"),
    "half split k": ("mm:24x90x13", "", "f16", "k:32* k:16 j:8 i:4"),
    "no loop is shared": ("mm:5x90x13", "", "f16", "k:32 k:16 j:8 i:4"),
    "channels": ("mb2ic40ih7oc9kh3ph1", "nhwc", "f32", "c:16* n p q:4 k:8"),
    "activation": ("mb1ic40ih7oc9kh3ph1 act=gelu", "nhwc", "bf16", "c:16* p q:4 k:8"),
    "channels, planes": ("mb2ic40ih7oc9kh3ph1", "nchw", "f32", "c:16* k:8* n p q:2"),
}  # fmt: skip


def case(name: str) -> tuple[Problem, Schedule]:
    text, layout, dtype, loops = CASES[name]
    return parse_problem(text, layout, dtype), Schedule.parse(f"private(C) {loops} {KERNEL}")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_sums_are_right_and_the_same_for_all_threads(name: str) -> None:
    problem, schedule = case(name)
    for threads in (1, 2):
        for verdict in check(problem, [schedule], threads):
            assert verdict.passed, verdict.fault
    random, kinds = np.random.default_rng(0), precision_named(problem.dtype)
    shapes = problem.x_shape, problem.w_shape, problem.y_shape
    x, w, residual = (
        to_stored(random.standard_normal(shape).astype(np.float32), dtype)
        for shape, dtype in zip(shapes, (kinds.x, kinds.w, kinds.y), strict=True)
    )
    bias = random.standard_normal(problem.y_shape[problem.bias_axis]).astype(np.float32)
    results = []
    for threads in (1, 2, 3):
        primitive = polysci.compile(problem, threads=threads, schedule=schedule)
        packed = primitive.pack_weights(w) if problem.w_kind == "constant" else w
        named = {"bias": bias, "residual": residual, "clamp": (-2.0, 3.0)}
        results.append(primitive(x, packed, **named))
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize(
    ("problem", "loops", "error", "message"),
    [
        ("mm:24x96x16", "k:32* i:4 j:8", IllegalScheduleError, "carries a dependence"),
        ("mm:24x96x16", "private(C) i:4* j:8", UnsupportedError, "no parallel loop runs over a r"),
        ("mm:24x96x16", "private(C) i:4* k:2* j:8", UnsupportedError, "48 private copies of O"),
        ("mm:24x96x16", "k:32* private(C) i:4 j:8", SpecError, "is neither a loop"),
        ("mb1ic8ih9oc16kh3ph1", "private(C) winograd(2) c:4* k:8", UnsupportedError, "one result"),
    ],
)
def test_what_does_not_fit_is_refused(
    problem: str, loops: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        polysci.compile(problem, schedule=f"{loops} {KERNEL}")


def test_whole_numbers_have_no_private_copies() -> None:
    with pytest.raises(UnsupportedError, match="private copies hold sums of reals"):
        polysci.compile(
            "mb1ic64ih9oc16kh1", dtype="u8:s8:s32",
            schedule="private(C) c:32* p q:4 k:4 > brgemm_portable_i16_4x4",
        )  # fmt: skip


def test_copies_are_dense_in_the_order_of_storage() -> None:
    assert dense_strides((2, 3, 4), (120, 1, 7)) == (12, 1, 3)
    assert dense_strides((5, 1, 4), (4, 4, 1)) == (4, 4, 1)


@pytest.mark.exhaustive
def test_a_search_finds_them_where_the_result_is_small() -> None:
    result = polysci.optimize(parse_problem("mm:4x60000x16"), "estimate", 2)
    assert result.schedule.has(Private)
    _, roles, _ = model_of(result.problem)
    (whole, *_) = loop_comments(roles, result.schedule, (32 << 10, 1 << 20, 8 << 20))
    assert whole.endswith("each turn over k sums into a copy of y of its own")
