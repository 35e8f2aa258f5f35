"""Bilinear algorithms: the identity, rules, code within the bound, the model's choice."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polysci import tune
from polysci.cli import main
from polysci.errors import CheckError, PolysciError, SpecError, UnsupportedError
from polysci.export import ExportedLayer, export_c
from polysci.lower.algorithm import EmitOptions
from polysci.lower.bilinear.algorithm import EXACT, estimate
from polysci.lower.bilinear.coefficients import (
    OTHERS,
    PRODUCTS,
    SEARCHED,
    STRASSEN,
    BilinearProduct,
    read_algorithm,
)
from polysci.lower.bilinear.plan import resolve
from polysci.lower.bilinear.product import refusal
from polysci.lower.choice import candidates, resolve_algorithm
from polysci.lower.registry import algorithm_named
from polysci.measure.bench import bound_of
from polysci.measure.error_bound import Reals
from polysci.ops import parse_problem
from polysci.ops.matmul import Matmul
from polysci.runtime.build import cache
from polysci.runtime.build.library import load
from polysci.runtime.build.process import Child
from polysci.runtime.primitive import Primitive
from polysci.runtime.source import assemble
from polysci.space.directives import Ahead, Pack, Stream
from polysci.space.schedule import parse
from polysci.target import microkernels
from polysci.target.host import detect
from polysci.target.target import HOST
from polysci.tune import emit
from tests.support.flags import QUICK
from tests.support.samples import FIXED, fixed_context, resized

KERNEL = "brgemm_avx512_f32_8x32"
SQUARE = Matmul(4096, 4096, 4096, constant="b")


@pytest.mark.parametrize("algorithm", PRODUCTS.values(), ids=str)
def test_sums_are_those_of_a_product(algorithm: BilinearProduct) -> None:
    random, (m, k, n) = np.random.default_rng(0), algorithm.size
    a, b = random.integers(-99, 100, (m, k)), random.integers(-99, 100, (k, n))
    products = (algorithm.a @ a.reshape(-1)) * (algorithm.b @ b.reshape(-1))
    assert np.array_equal((algorithm.c @ products).reshape(m, n), a @ b)
    assert algorithm.products < m * k * n


def test_wrong_coefficients_are_refused() -> None:
    for name in "abc":
        wrong = getattr(STRASSEN, name).copy()
        wrong[1, 1] += 1
        with pytest.raises(SpecError, match="<2,2,2;7>: its sums are not those of a product"):
            replace(STRASSEN, **{name: wrong})
    with pytest.raises(SpecError, match="<2,2,2;7>: coefficients of shapes"):
        replace(STRASSEN, b=STRASSEN.b.T)
    with pytest.raises(SpecError, match=r"<2,2,2;1>: its sums are not those of a product"):
        read_algorithm("2 2 2\n+00+ +00+ +00+")
    for text in ("2 2\n+0 +0 +0", "1 1 1\n* + +", "1 1 1\n+ +\n+ + +", "1 1 1", ""):
        with pytest.raises(SpecError, match="bilinear algorithm"):
            read_algorithm(text)


def test_an_algorithm_serves_its_sizes_in_other_orders() -> None:
    assert [str(its) for its in SEARCHED] == ["<2,2,2;7>", "<4,4,4;49>"]
    assert [str(its) for its in OTHERS] == ["<2,2,3;11>", "<3,2,3;15>", "<4,4,2;26>"]
    assert {"<3,2,2;11>", "<3,3,2;15>", "<4,2,4;26>"} < {str(its) for its in PRODUCTS.values()}
    for its in (STRASSEN, *OTHERS):
        again = its.rotated.rotated.rotated
        assert all(np.array_equal(getattr(again, name), getattr(its, name)) for name in "abc")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("bwd_d mb1ic8ih6oc16kh1", "no product of two matrices"),
        ("mb1ic8ih6oc16kh1sh2", "stride=(2, 2): expected (1, 1)"),
        ("g2mb1ic8ih6oc16kh1", "groups=2: expected 1"),
        ("mb1ic8ih6oc16kh1ph1", "pad=(1, 1): expected (0, 0)"),
        ("mb1ic8ih6oc16oh7kh1ph0", "output=(7, 7): expected (6, 6)"),
        ("mm:3:8x8x8", "batch=3: expected one product"),
        ("mm:8x8x8 a=constant", "constant='a': expected 'b' or ''"),
        ("mm:8x8x8 ta", "transposed='a': expected 'b' or ''"),
        ("mm:8x8x1", "N=1: expected 2 or more"),
    ],
)
def test_what_it_refuses_auto_computes_otherwise(words: str, told: str) -> None:
    problem = parse_problem(words)
    assert told in refusal(problem)
    assert resolve_algorithm(problem, "auto") == "direct"
    with pytest.raises(UnsupportedError) as refused:
        tune.optimize(problem, "estimate", algorithm="bilinear", target=detect("portable"))
    assert told in str(refused.value)


def test_other_types_are_refused() -> None:
    for dtype in ("bf16", "int8", "f32:bf16:f32"):
        problem = parse_problem("mm:8x8x8 tb b=constant", dtype=dtype)
        assert f"dtype={problem.dtype}: expected f32" in refusal(problem)


@pytest.mark.parametrize(
    ("words", "error", "told"),
    [
        ("bilinear()", UnsupportedError, "bilinear(2,2,2), bilinear(4,4,4), bilinear(2,2,3), "),
        ("bilinear(3,3,3)", UnsupportedError, "expected one of bilinear(2,2,2)"),
        ("k:8 bilinear(2,2,2)", UnsupportedError, "a loop over i and one over j may enclose"),
        ("bilinear(2,2,2) q", SpecError, "no dimension 'q' among i, j, k"),
        ("i:8 i:4 bilinear(2,2,2)", UnsupportedError, "a loop over i and one over j may enclose"),
        ("i:40 bilinear(2,2,2)", SpecError, "step 40 exceeds the 33 of 'i'"),
        ("j:24 bilinear(2,2,2)", UnsupportedError, "j:24 is no multiple of 16 lanes"),
        ("bilinear(2,2,2) i:8*", UnsupportedError, "inside bilinear(2,2,2) cannot be parallel"),
        ("bilinear(2,2,2) stream(C)", UnsupportedError, "rows of C are no whole aligned vectors"),
        ("private(C) bilinear(2,2,2)", UnsupportedError, "bilinear swaps nothing, packs B itself"),
    ],
)
def test_schedules_that_do_not_fit(words: str, error: type[PolysciError], told: str) -> None:
    with pytest.raises(error) as refused:
        resolve(Matmul(66, 40, 130), parse(f"{words} > {KERNEL}"))
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (EmitOptions(by_rows=True), "its outermost loop is over rows of blocks"),
        (EmitOptions(adds=True), "its epilogue does not add to y"),
        (EmitOptions(strides={"A": (1, 66)}), "elements of a row lie apart"),
    ],
)
def test_code_that_there_is_not(options: EmitOptions, told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        emit(Matmul(66, 40, 130), parse(f"bilinear(2,2,2) j:32 i:3 > {KERNEL}"), 1, options)


def test_rows_that_lie_apart_are_not_stored_past_the_caches() -> None:
    schedule = parse(f"bilinear(2,2,2) j:32 i:3 stream(C) > {KERNEL.replace('8x32', '3x32')}")
    text = emit(Matmul(66, 40, 128), schedule).file
    assert ".stream = 1" in text and ".aligned = ps_is_aligned(y, 64)" in text
    with pytest.raises(UnsupportedError, match=r"no whole aligned vectors, as stream\(C\) asks"):
        emit(Matmul(66, 40, 128), schedule, 1, EmitOptions(strides={"O": (130, 1)}))


def test_packings_of_other_numbers_of_rows_are_the_same() -> None:
    words = f"i:3 j:32 bilinear(2,2,2) j:16 > {KERNEL.replace('8x32', '3x16')}"
    first, other = (emit(Matmul(rows, 40, 130, constant="b"), parse(words)) for rows in (66, 30))
    assert first.packing == other.packing
    wider = emit(Matmul(66, 40, 130, constant="b"), parse(words.replace("j:32", "j:48")))
    assert first.packing != wider.packing


# Sizes that blocks divide and others, blocks that lie outside, every epilogue's factor.
SIZES = (
    ("mm:16x16x32 b=constant", "bilinear(2,2,2)|ahead(B) stream(C)", 1),
    ("mm:17x15x33 b=constant", "i:4 j:16 bilinear(2,2,2)", 1),
    ("mm:2x2x2 tb b=constant", "bilinear(4,4,4)", 1),
    ("mm:5x70x9", "i:2 bilinear(2,2,2)", 1),
    ("mm:31x18x130 tb alpha=-0.5 beta=2", "i:3* bilinear(4,4,4)", 2),
    ("mm:23x21x70 tb b=constant", "i:4 bilinear(4,2,4)", 1),
    ("linear:40x33x97 act=relu", "j:16* i:7 bilinear(2,2,2)", 2),
    ("mm:64x64x65 act=gelu", "i:5* j:16* bilinear(4,4,4)", 2),
    ("mm:29x31x50 b=constant beta=1", "i:4 bilinear(3,2,3)", 1),
    ("mm:15x22x70 act=relu", "i:3* j:16* bilinear(2,2,3)", 2),
    ("mb2ic18ih5oc37kh1 act=relu", "q:4 k:16 bilinear(2,2,2)", 1),
)
ISAS = tuple(
    pytest.param(isa, marks=marks)
    for isa, *marks in (
        ("portable",), ("avx2", pytest.mark.exhaustive, pytest.mark.isa("avx2")),
        ("avx512", pytest.mark.exhaustive, pytest.mark.isa("avx512")),
    )
)  # fmt: skip


@pytest.fixture(scope="module")
def worker() -> Iterator[Child]:
    child = Child([sys.executable, "-m", "polysci.measure.worker", HOST])
    yield child
    child.close()


def ask(worker: Child, **question: Any) -> dict[str, Any]:
    answer = worker.ask(question, 60)
    if "fault" in answer:
        raise CheckError(answer["fault"])
    return answer


@pytest.mark.parametrize("isa", ISAS)
def test_results_are_within_the_bound_between_guard_pages(worker: Child, isa: str) -> None:
    cols = microkernels.lanes(isa)
    sources = []
    for at, (words, around, threads) in enumerate(SIZES):
        problem = parse_problem(words)
        inner = f"c:2 k:{cols} q:1" if words[0:2] == "mb" else f"k:1 j:{cols} i:1"
        before, _, behind = around.partition("|")
        schedule = parse(f"{before} {inner} {behind} > brgemm_{isa}_f32_1x{cols}")
        sources.append(emit(problem, schedule, threads, EmitOptions(f"p{at}")))
    path = cache.build(assemble(sources), flags=QUICK)
    for (words, _, _), source in zip(SIZES, sources, strict=True):
        ask(worker, op="prepare", problem=words, layout="nhwc", seed=0)
        binary = {"so": str(path), "symbol": source.symbol}
        worst = ask(worker, op="bound", **binary, **bound_of(source.schedule))["worst"]
        assert worst <= 1, f"{words} {source.schedule}"
        ask(worker, op="check", **binary, exact=asdict(EXACT))


def test_the_bound_is_that_of_more_and_larger_sums() -> None:
    problem = Matmul(8, 64, 8)
    row = algorithm_named("bilinear")
    direct, one, two = (
        Reals.of(problem, 0, *its)
        for its in ((), (row, (2, 2, 2)), (row, (4, 4, 4)))  # type: ignore[arg-type]
    )
    assert (direct.terms, one.terms, two.terms) == (64, 32 + 2 + 2 + 4, 16 + 4 + 4 + 16)
    assert (direct.sizes <= one.sizes).all() and (one.sizes <= two.sizes).all()
    assert np.array_equal(direct.inputs["x"], one.inputs["x"])


STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
EXPORTS = [("portable", "-O1 -fsanitize=address,undefined", "gcc"), ("avx2", "-O1", "gcc")]
EXPORTS += [("avx2", "-O1", "clang")]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("isa", "flags", "cc"), EXPORTS)
def test_exported_layers_pass_their_own_test(tmp_path: Path, isa: str, flags: str, cc: str) -> None:
    if not shutil.which(cc) or isa not in {runs.name for runs in detect().allowed}:
        pytest.skip(f"no {cc}, or no CPU with {isa}")
    lanes = microkernels.lanes(isa)
    schedules = {
        "mm:19x18x37 tb b=constant": f"i:4 j:{lanes} bilinear(2,2,2) i:2 j:{lanes}",
        "mm:10x33x35": f"i:3 bilinear(4,4,4) j:{lanes}",
        "mb2ic9ih5oc37kh1": f"bilinear(2,2,2) q:4 c:3 k:{lanes}",
    }
    layers = [
        ExportedLayer(parse_problem(words), parse(f"{text} > brgemm_{isa}_f32_4x{lanes}"))
        for words, text in schedules.items()
    ]
    export_c(layers, tmp_path / "net", name="net")
    words = [cc, *STRICT, *flags.split(), "net.c", "selftest.c", "-o", "selftest", "-lm"]
    built = subprocess.run(words, cwd=tmp_path / "net", capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    ran = subprocess.run(["./selftest"], cwd=tmp_path / "net", capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "6 passed, 0 failed\n"), ran.stderr


@pytest.mark.exhaustive
def test_a_nan_reaches_its_rows_of_all_blocks() -> None:
    problem = parse_problem("mm:10x12x16 b=constant")
    source = emit(problem, parse("i:2 bilinear(2,2,2) j:4 > brgemm_portable_f32_2x4"))
    library = load(cache.build(source.file, flags=QUICK), source.declarations)
    run = Primitive(problem, source.schedule, source, library, "primitive")
    x, w = np.ones((10, 12), np.float32), np.ones((12, 16), np.float32)
    x[6, 3] = np.nan
    y = run(x, run.pack_weights(w), activation="relu")
    assert np.isnan(y[6]).all() and not np.isnan(y[[0, 2, 3, 4, 5, 7, 8, 9]]).any()


FAULTS = {
    "a sum of A": ("(float)factor;", "1.0f;"),
    "a sum of B": ("real,\n                        g.v[at + 1]", "real, 1"),
    "reads below A": ("row < g.rows && ", ""),
    "reads past the depth": ("ps_least(g.deep, g.depth - column), g.u", "g.deep, g.u"),
    "reads past B": ("end = ps_least(end, high);", ""),
    "writes below C": ("if (row >= g.rows || real <= 0)", "if (real <= 0)"),
    "writes past the columns": ("ps_store_first(e->y + at + v * PS_LANES, x, lanes)",
                                "ps_store(e->y + at + v * PS_LANES, x)"),
    "forgets the bias": ("if (e->bias)", "if (0)"),
    "forgets beta": ("ps_mul(ps_splat(e->beta), x)", "x"),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.isa("avx2")
def test_faults_are_noticed(worker: Child) -> None:
    words = "mm:21x37x45 b=constant beta=2"
    source = emit(parse_problem(words), parse("i:4 bilinear(2,2,2) j:8 i:4 > brgemm_avx2_f32_4x8"))
    texts = []
    for before, after in FAULTS.values():
        assert before in source.file
        texts.append(source.file.replace(before, after))
    question = {"op": "bound", "symbol": "primitive", **bound_of(source.schedule)}
    prepare = {"op": "prepare", "problem": words, "layout": "", "seed": 0}
    for fault, path in zip(FAULTS, cache.build_many(texts, flags=QUICK), strict=True):
        if not worker.alive:
            worker.restart()
        ask(worker, **prepare)
        with pytest.raises(CheckError):
            ask(worker, so=str(path), **question)
            pytest.fail(f"not noticed: {fault}")
    worker.restart()


def test_the_model_takes_it_where_products_rule() -> None:
    best = candidates(SQUARE, fixed_context(SQUARE), 4, "auto")[0]
    assert str(best.schedule.transform).startswith("bilinear(")
    thin = Matmul(16, 2048, 2048, constant="b")
    for problem in (thin, Matmul(64, 64, 64)):
        every = candidates(problem, fixed_context(problem), 8, "auto")
        assert all(its.schedule.transform is None for its in every)
        assert candidates(problem, fixed_context(problem), 1, "bilinear")[0].schedule.transform


def test_sums_of_b_are_prefetched_and_large_results_pass_the_caches() -> None:
    layer, small = (Matmul(rows, 768, 3072, constant="b") for rows in (512, 64))
    every = candidates(layer, fixed_context(layer), 8, "bilinear")
    assert all(its.schedule.has(Ahead) for its in every)
    assert every[0].schedule.has(Stream) and not every[0].schedule.has(Pack)
    past, kept = (
        estimate(resolve(layer, its), fixed_context(layer))
        for its in (every[0].schedule, every[0].schedule.without(Stream))
    )
    assert 0 < kept.back - past.back < kept.back / 2 and kept.products == past.products
    others = candidates(small, fixed_context(small), 8, "bilinear")
    assert not any(its.schedule.has(Stream) for its in others)


def test_no_product_of_few_rows_reads_far_sums_of_b_again() -> None:
    layer = Matmul(96, 4096, 4096, constant="b")
    context = fixed_context(layer, target=resized(FIXED, L2=256 << 10))
    for its in candidates(layer, context, 4, "bilinear"):
        assert its.schedule.loops[-1].dim == "i", its.schedule


def test_threads_share_the_predicted_work() -> None:
    square = Matmul(512, 512, 512, constant="b")
    one, two = (
        candidates(square, fixed_context(square, threads), 1, "bilinear")[0] for threads in (1, 2)
    )
    assert 0.4 * one.seconds < two.seconds < 0.75 * one.seconds
    assert (
        0 < algorithm_named("bilinear").least_seconds(square, fixed_context(square)) < one.seconds
    )
    assert two.schedule.parallel and not one.schedule.parallel
    predicted = estimate(resolve(square, one.schedule), fixed_context(square))
    assert predicted.seconds == pytest.approx(sum(predicted.parts.values()))
    packed = estimate(resolve(square.with_(constant=""), one.schedule), fixed_context(square))
    assert packed.packing > 0 == predicted.packing


def test_what_is_too_small_to_share_has_one_thread() -> None:
    smallest = Matmul(2, 2, 2, constant="b", transposed="b")
    one, two = (candidates(smallest, fixed_context(smallest, it), 1, "bilinear") for it in (1, 2))
    assert one[0].schedule == two[0].schedule
    told = refusal(parse_problem("mb1ic8ih6oc16kh1sh2ph0"))
    assert told == "stride=(2, 2): expected (1, 1)"


def test_the_commands_know_it(capsys: pytest.CaptureFixture[str]) -> None:
    some = ["mm:64x64x64 b=constant", "--isa", "portable", "--algorithm", "bilinear"]
    assert main(["explain", *some]) == 0
    told = capsys.readouterr().out
    assert "<2,2,2;7>: 7 products of blocks for 8" in told and "sums of A" in told
    assert main(["explain", *some, "--json"]) == 0
    assert '"products": 7' in capsys.readouterr().out
    assert main(["optimize", "mb1ic8ih9oc8kh3ph1", *some[1:], "--level", "estimate"]) == 1
    assert "filter=(3, 3): expected (1, 1)" in capsys.readouterr().out
