"""The package as users import it: its public names, how fast it comes, compile, threads."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest

import polysci
from polysci.measure.integer_reference import Arrays
from polysci.target.host import detect
from polysci.tune import calibrate, search

PUBLIC = """
    PRECISIONS CompileOptions Conv1d Conv1dBackwardData Conv1dBackwardWeights Conv2d
    Conv2dBackwardData Conv2dBackwardWeights Conv3d Conv3dBackwardData Conv3dBackwardWeights
    ConvTranspose2d Generation Matmul Nest Network Primitive Result Scales Schedule SearchOptions
    SizedNetwork Target TunerOptions Wisdom compile compile_network compile_sizes conv2d detect
    einsum errors extract from_bf16 layers notation optimize parse_problem to_bf16 training
"""
CLOCK = "from time import perf_counter as now; start = now(); import polysci; print(now() - start)"


def ask(code: str) -> str:
    """What a new interpreter prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_import_takes_less_than_300_ms() -> None:
    assert min(float(ask(CLOCK)) for _ in range(5)) < 0.3


def test_the_import_loads_nothing_large() -> None:
    loaded = ask("import sys, polysci; print(*sys.modules)").split()
    assert not {"numpy", "islpy", "cgen", "cffi", "scipy", "rich"} & set(loaded)


def test_the_public_names_are_these_and_all_exist() -> None:
    assert polysci.__all__ == PUBLIC.split()
    assert set(polysci.__all__) <= set(dir(polysci))
    assert all(getattr(polysci, name) is not None for name in polysci.__all__)
    assert isinstance(polysci.errors, ModuleType) and callable(polysci.extract.extract)


@pytest.mark.exhaustive
def test_a_name_means_the_same_whatever_was_imported_before() -> None:
    code = "import polysci.tune, polysci; print(polysci.extract, polysci.compile)"
    first, second = ask(code).split(">", 1)
    assert "module 'polysci.polyhedral.extract'" in first and "function compile" in second


@pytest.mark.exhaustive
def test_star_import_and_unknown_names() -> None:
    assert ask("from polysci import *; print(Conv2d.__name__, compile.__module__)").split() == [
        "Conv2d",
        "polysci.api",
    ]
    with pytest.raises(AttributeError, match="module 'polysci' has no attribute 'conv9d'"):
        polysci.conv9d  # type: ignore[attr-defined]  # noqa: B018


def inputs(problem: polysci.Conv2d) -> tuple[np.ndarray, ...]:
    """Small integers, whose sums f32 holds exactly: x, w, bias, residual."""
    rng = np.random.default_rng(0)
    shapes = (problem.x_shape, problem.w_shape, (problem.K,), problem.y_shape)
    return tuple(rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)


@pytest.mark.exhaustive
@pytest.mark.measured
def test_compile_measures_and_the_primitive_says_how_it_works() -> None:
    problem = polysci.Conv2d(
        N=1, C=16, H=8, W=8, K=24, R=3, S=3, stride=1, pad=1, dilation=1, groups=1, layout="nhwc"
    )
    prim = polysci.compile(problem, level="measure", threads=1)
    x, w, bias, residual = inputs(problem)
    wp = prim.pack_weights(w)
    y = prim(x, wp, bias=None, residual=None, out=None)
    assert np.array_equal(y, problem.reference(x, w))
    out = np.empty(problem.y_shape, np.float32)
    assert prim(x, wp, bias=bias, residual=residual, out=out) is out
    assert np.array_equal(out, problem.reference(x, w, bias, residual))
    assert prim.measurement is not None and prim.measurement.gflops > 0
    assert prim.measurement.schedule == str(prim.schedule)
    assert str(prim.schedule) in prim.source.file.splitlines()[0]


@pytest.mark.exhaustive
def test_compile_takes_words_and_a_layout() -> None:
    prim = polysci.compile("mb1ic8ih5oc8kh3ph1", "estimate", layout="nchw")
    assert prim.problem == polysci.parse_problem("mb1ic8ih5oc8kh3ph1", "nchw")
    assert prim.measurement is None
    x, w, *_ = inputs(prim.problem)
    assert np.array_equal(prim(x, prim.pack_weights(w)), prim.problem.reference(x, w))


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("dtype", polysci.PRECISIONS)
def test_compile_takes_a_precision(dtype: str, layout: str) -> None:
    prim = polysci.compile("mb1ic12ih5oc20kh3ph1", "estimate", layout=layout, dtype=dtype)
    assert prim.problem.dtype == dtype and prim.problem.layout == layout
    arrays = Arrays.of(prim.problem, 0)
    wp = prim.pack_weights(arrays.inputs["w"], x_zero=arrays.x_zero or 0)
    options = {"scales": arrays.scales} if arrays.scales else {}
    assert np.array_equal(prim(arrays.inputs["x"], wp, **options), arrays.plain)


@pytest.mark.exhaustive
def test_int8_is_a_name_for_u8_by_s8() -> None:
    prim = polysci.compile("mb1ic8ih4oc8kh1", "estimate", dtype="int8")
    assert prim.problem.dtype == "u8:s8:u8"
    x, w = np.full((1, 4, 4, 8), 3, np.uint8), np.full((8, 8, 1, 1), 2, np.int8)
    y = prim(x, prim.pack_weights(w, x_zero=1), scales=polysci.Scales(0.5, y_zero=100))
    assert y.dtype == np.uint8 and (y == 116).all()


def test_compile_refuses_an_unknown_precision() -> None:
    with pytest.raises(polysci.errors.SpecError, match="dtype 'f64': expected one of f32, bf16"):
        polysci.compile("mb1ic8ih4oc8kh1", "estimate", dtype="f64")
    problem = polysci.Conv2d(N=1, C=8, H=5, W=5, K=8, R=1, S=1, dtype="bf16")
    with pytest.raises(polysci.errors.SpecError, match="'bf16', got 'int8' beside it"):
        polysci.compile(problem, dtype="int8")


PLAN = "p q:4 > brgemm_portable_f32_4x8"
FOREIGN = f"brgemm_{'avx2_f32_4x16' if detect().has('asimd') else 'neon_f32_4x8'}"


@pytest.mark.sampled
@pytest.mark.parametrize("schedule", [PLAN, polysci.Schedule.parse(PLAN)])
def test_compile_builds_the_schedule_of_another_tuner(
    schedule: str | polysci.Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "calibrate", None)  # nothing is measured
    monkeypatch.setattr(search, "_ScheduleSearch", None)  # nor searched
    prim = polysci.compile("mb1ic8ih5oc8kh3ph1", "measure", schedule=schedule)
    assert str(prim.schedule) == PLAN and prim.measurement is None
    assert prim.source.file.startswith(f"/* {PLAN} */")
    x, w, *_ = inputs(prim.problem)
    assert np.array_equal(prim(x, prim.pack_weights(w)), prim.problem.reference(x, w))
    empty = polysci.compile("mb0ic8ih5oc8kh3ph1", schedule=schedule)
    assert str(empty.schedule) == PLAN


def test_optimize_predicts_a_schedule_that_is_given() -> None:
    problem = polysci.parse_problem("mb1ic8ih5oc8kh3ph1")
    result = polysci.optimize(problem, schedule=PLAN, threads=2)
    assert result.measurement is None and 0 < result.predicted < 1 and result.trials == ()
    assert result.primitive().threads == 2


@pytest.mark.parametrize(
    ("schedule", "error", "message"),
    [
        ("p q:4", polysci.errors.SpecError, "expected 'LOOPS > KERNEL'"),
        ("p z > brgemm_portable_f32_4x8", polysci.errors.SpecError, "no dimension 'z' among"),
        ("p q:9 > brgemm_portable_f32_4x8", polysci.errors.SpecError, "step 9 exceeds the 5"),
        ("p q:4 > brgemm_none_f32_4x8", polysci.errors.SpecError, "'brgemm_none_f32_4x8' is not"),
        ("c* p > brgemm_portable_f32_4x8", polysci.errors.IllegalScheduleError, "carries a"),
        (f"q > {FOREIGN}", polysci.errors.UnsupportedError, f"schedule: {FOREIGN} needs "),
        ("winograd(9) > brgemm_portable_f32_4x8", polysci.errors.PolysciError, "winograd"),
        (5, TypeError, "schedule: expected a Schedule or its text, got 5"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(
    schedule: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        polysci.compile("mb1ic8ih5oc8kh3ph1", schedule=schedule)


def test_a_schedule_of_another_algorithm_or_above_the_cap_is_refused() -> None:
    with pytest.raises(polysci.errors.SpecError, match="not one of the algorithm winograd"):
        polysci.compile("mb1ic8ih5oc8kh3ph1", schedule=PLAN, algorithm="winograd")
    if not detect().has("avx2"):
        pytest.skip("needs AVX2")
    with pytest.raises(polysci.errors.UnsupportedError, match="is above portable, to which"):
        polysci.compile("mb1ic8ih5oc8kh3ph1", schedule="p q > brgemm_avx2_f32_4x16", isa="portable")


@pytest.mark.exhaustive
def test_no_images_give_an_empty_result() -> None:
    problem = polysci.Conv2d(N=0, C=8, H=5, W=5, K=8, R=3, S=3)
    prim = polysci.compile(problem, "estimate")
    x, w, *_ = inputs(problem)
    assert prim(x, prim.pack_weights(w)).shape == problem.y_shape == (0, 3, 3, 8)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_no_images_give_zeros_for_gradients_of_filters(dtype: str) -> None:
    made = polysci.compile("bwd_w mb0ic8ih5oc8kh3ph1", "estimate", dtype=dtype)
    kind = np.float32 if dtype == "f32" else np.uint16
    for prim in (made, pickle.loads(pickle.dumps(made))):
        x, dy = (np.empty(s, kind) for s in (prim.problem.x_shape, prim.problem.w_shape))
        assert (x.shape[0], dy.shape[0]) == (0, 0)
        out = np.full(prim.problem.y_shape, 3, kind)
        assert prim(x, dy, out=out) is out and not out.any()
        assert (prim(x, dy, bias=np.ones(8, np.float32)) != 0).all()
        with pytest.raises(ValueError, match="w: expected shape"):
            prim(x, np.ones((1, 5, 5, 8), kind))


def test_compile_refuses_what_it_cannot_mean() -> None:
    problem = polysci.Conv2d(N=1, C=8, H=5, W=5, K=8, R=1, S=1)
    with pytest.raises(TypeError, match=r"^problem: expected Problem or str, got \{"):
        polysci.compile({"N": 1})  # type: ignore[arg-type]
    with pytest.raises(polysci.errors.SpecError, match="'nhwc', got 'nchw' beside it"):
        polysci.compile(problem, layout="nchw")
    with pytest.raises(polysci.errors.SpecError, match=r"expected one of .*patient"):
        polysci.compile(problem, "quick")
    with pytest.raises(ValueError, match="threads=0: expected 1 to 1024"):
        polysci.compile(problem, threads=0)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"threads": 1.5}, "threads: expected int, got 1.5"),
        ({"threads": True}, "threads: expected int, got True"),
        ({"isa": 3}, "isa: expected str or None, got 3"),
        ({"target": "avx2"}, "target: expected Target or None, got 'avx2'"),
        ({"wisdom": "x"}, "wisdom: expected Wisdom or None, got 'x'"),
    ],
)
def test_compile_refuses_other_types(argument: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        polysci.compile("mb1ic8ih5oc8kh1", "estimate", **argument)  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_call_one_primitive_at_once(threads: int) -> None:
    problem = polysci.Conv2d(N=1, C=16, H=28, W=28, K=32, R=3, S=3, stride=2, pad=1)
    prim = polysci.compile(problem, "estimate")
    x, w, bias, residual = inputs(problem)
    wp = prim.pack_weights(w)

    def images(seed: int) -> bool:
        mine = x + np.float32(seed)
        expected = problem.reference(mine, w, bias, residual)
        calls = (prim(mine, wp, bias=bias, residual=residual) for _ in range(50))
        return all(np.array_equal(y, expected) for y in calls)

    with ThreadPoolExecutor(threads) as pool:
        assert all(pool.map(images, range(12)))
