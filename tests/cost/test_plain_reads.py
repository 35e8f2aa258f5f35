"""B read where it lies: what that costs, and which schedules are tried."""

from __future__ import annotations

import pytest

from polysci.cost.call_forms import plain_forms
from polysci.cost.shortlist import plain_choices, predict_seconds
from polysci.explain.terms import terms_of
from polysci.ops.matmul import Matmul
from polysci.space.schedule import Schedule
from tests.support import samples

ROWS, DEEP = 16, 4096
DOTS = samples.fixed_context(Matmul(ROWS, DEEP, 256, transposed="b"))
COLUMNS = samples.fixed_context(Matmul(ROWS, 1024, DEEP))


def seconds(text: str) -> float:
    return predict_seconds(DOTS, Schedule.parse(text))


def test_rows_that_l1_does_not_hold_come_from_l2_for_every_block_of_sums() -> None:
    whole, cut = (
        seconds(f"plain(B) {block}j:64 i:8 j:32 > brgemm_avx512_f32_8x32")
        for block in ("", "k:512 ")
    )  # 128 KiB and 16 KiB of rows of A
    assert 1.15 * cut < whole
    short = samples.fixed_context(Matmul(ROWS, 512, 256, transposed="b"))
    kept, more = (
        predict_seconds(short, Schedule.parse(f"plain(B) {block}i:8 j:32 > brgemm_avx512_f32_8x32"))
        for block in ("", "k:128 ")
    )  # L1 holds them, and every cut adds sums over lanes
    assert kept < more


def test_reductions_are_cut_to_what_l1_holds() -> None:
    best, *_ = sorted(
        plain_choices(DOTS, 4, tiles=8, blocks=2), key=lambda form: predict_seconds(DOTS, form)
    )
    (cut,) = [loop.step for loop in best.loops if loop.dim == "k"]
    tile = best.tile({d.name: d.extent for d in DOTS.contraction.dims})
    assert cut % 16 == 0 and cut < DEEP
    assert 4 * cut * (tile["i"] + 1) <= DOTS.target.memory("L1").size


def test_calls_have_as_many_rows_as_save_a_pass() -> None:
    text = "pack(A)+16 j:96 i:4 j:48 > brgemm_avx512_f32_4x48"
    forms = [str(form) for form in plain_forms(COLUMNS, iter([Schedule.parse(text)]))]
    assert f"plain(B) {text}" in forms
    assert "plain(B) pack(A)+16 j:96 i:8 j:48 > brgemm_avx512_f32_8x48" in forms  # not 9x48
    assert "plain(B) k:64 j:48 i:8 > brgemm_avx512_f32_8x48" in forms


def test_an_explanation_has_the_time_that_the_search_saw() -> None:
    form = Schedule.parse("plain(B) j:64 i:8 j:32 > brgemm_avx512_f32_8x32")
    terms = terms_of(DOTS, form)
    assert terms.seconds == predict_seconds(DOTS, form)
    assert sum(share for _, share in terms.shares) + terms.other == pytest.approx(terms.seconds)


@pytest.mark.parametrize("transposed", ["", "b"])
def test_two_threads_halve_what_b_costs(transposed: str) -> None:
    problem = Matmul(ROWS, DEEP, 1024, transposed=transposed)
    one, two = (samples.fixed_context(problem, threads) for threads in (1, 2))
    shared, serial = (
        Schedule.parse(f"plain(B) j:64{mark} i:8 j:32 > brgemm_avx512_f32_8x32")
        for mark in ("*", "")
    )
    alone, half, whole = (
        predict_seconds(context, form)
        for context, form in ((one, shared), (two, shared), (two, serial))
    )
    assert 0.5 * alone <= half < 0.75 * alone and whole >= alone


ONE_ROW = Matmul(1, 4096, 4096)  # B comes from memory


def plain_times(threads: int, *texts: str) -> list[float]:
    context = samples.fixed_context(ONE_ROW, threads)
    kernel = "brgemm_avx512_f32_1x64"
    return [
        predict_seconds(context, Schedule.parse(f"plain(B) {text} > {kernel}")) for text in texts
    ]


def test_few_rows_side_by_side_are_streams() -> None:
    few, more, columns, again = plain_times(1, "k:8 j:64", "k:64 j:64", "j:64", "j:64 k:8 j:64")
    assert few < more < columns  # prefetched; not prefetched; each row is another page too
    assert again > more  # the rows begin anew in each block of columns


def test_each_thread_reads_one_share_of_the_columns() -> None:
    context = samples.fixed_context(ONE_ROW, 2)
    forms = [
        str(form)
        for text in ("j:64*", "j:128* j:64")
        for form in plain_forms(context, iter([Schedule.parse(f"{text} > brgemm_avx512_f32_1x64")]))
    ]
    assert forms.count("plain(B) j:2048* k:8 j:64 > brgemm_avx512_f32_1x64") == 2
    wide, narrow = plain_times(2, "j:2048* k:8 j:64", "j:128* k:8 j:64")
    assert wide < narrow
    best, *_ = sorted(
        plain_choices(context, 4, tiles=8, blocks=2),
        key=lambda form: predict_seconds(context, form),
    )
    assert "j:2048* k:8" in str(best)
