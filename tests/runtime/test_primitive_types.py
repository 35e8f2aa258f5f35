"""The Python callable in every precision: types, scales, zero points; every bad argument named."""

from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

import numpy as np
import pytest

from polysci.measure.error_bound import Reals
from polysci.measure.integer_reference import Arrays
from polysci.numerics.dtypes import DTYPES, PRECISIONS, from_bf16, to_bf16
from polysci.numerics.quantization import Scales
from polysci.ops.convolutions import Conv2d
from polysci.printers import interface
from polysci.runtime.build.library import load
from polysci.runtime.primitive import PackedWeights, Primitive
from polysci.space.schedule import parse
from polysci.tune import EmitOptions, emit
from tests.support.judge import build

PROBLEM = Conv2d(N=2, C=6, H=5, W=4, K=10, R=3, S=3, pad=1)
WHOLE = [name for name, row in PRECISIONS.items() if row.integer]
SCALED = [name for name, row in PRECISIONS.items() if row.scaled]
REAL = [name for name in PRECISIONS if name not in WHOLE]


def made(dtype: str, layout: str = "nhwc") -> Primitive:
    """Of portable code, the input packed."""
    problem = PROBLEM.with_(dtype=dtype, layout=layout)
    compute = "i16" if PRECISIONS[dtype].integer else "f32"
    plan = parse(f"n pack(A) p k:4 > brgemm_portable_{compute}_4x4")
    source = emit(problem, plan, 1, EmitOptions("it"))
    library = load(build([source]), interface.declarations("it", source.precision))
    return Primitive(problem, plan, source, library, "it")


@pytest.fixture(scope="module")
def primitives() -> dict[str, Primitive]:
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(PRECISIONS, pool.map(made, PRECISIONS), strict=True))


def packed(primitive: Primitive, arrays: Arrays) -> PackedWeights:
    return primitive.pack_weights(arrays.inputs["w"], arrays.x_zero or 0)


def fused(arrays: Arrays) -> dict[str, Any]:
    """The optional arguments of the fused result."""
    rest = {name: arrays.inputs[name] for name in ("bias", "residual")}
    return rest | {"clamp": tuple(map(float, arrays.inputs["clamp"])), "scales": arrays.scales}


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_results_are_the_references(primitives: dict[str, Primitive], dtype: str) -> None:
    primitive, arrays = primitives[dtype], Arrays.of(PROBLEM.with_(dtype=dtype), 0)
    wp, x = packed(primitive, arrays), arrays.inputs["x"]
    scales = {"scales": arrays.scales} if arrays.scales else {}
    for _ in range(2):
        got = primitive(x, wp, **scales)
        assert got.dtype == PRECISIONS[dtype].y.numpy and np.array_equal(got, arrays.plain)
        assert got.ctypes.data % 64 == 0
        rest = {name: value for name, value in fused(arrays).items() if value is not None}
        assert np.array_equal(primitive(x, wp, **rest), arrays.fused)
        out = np.empty_like(arrays.fused)
        assert primitive(x, wp, **rest, out=out) is out and np.array_equal(out, arrays.fused)


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_the_other_layout(dtype: str) -> None:
    problem = PROBLEM.with_(dtype=dtype, layout="nchw")
    primitive, arrays = made(problem.dtype, "nchw"), Arrays.of(problem, 0)
    got = primitive(arrays.inputs["x"], packed(primitive, arrays), **fused(arrays))
    assert np.array_equal(got, arrays.fused)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_residual_in_place(primitives: dict[str, Primitive], dtype: str) -> None:
    primitive, arrays = primitives[dtype], Arrays.of(PROBLEM.with_(dtype=dtype), 1)
    rest = fused(arrays)
    y = rest["residual"] = rest["residual"].copy()
    assert primitive(arrays.inputs["x"], packed(primitive, arrays), **rest, out=y) is y
    assert np.array_equal(y, arrays.fused)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_misaligned_arrays_work(primitives: dict[str, Primitive], dtype: str) -> None:
    def moved(array: np.ndarray) -> np.ndarray:
        memory = np.zeros(array.nbytes + 1, np.uint8)
        found = memory[1:].view(array.dtype).reshape(array.shape)
        found[...] = array
        return found

    primitive, arrays = primitives[dtype], Arrays.of(PROBLEM.with_(dtype=dtype), 2)
    wp = primitive.pack_weights(moved(arrays.inputs["w"]), arrays.x_zero or 0)
    rest = fused(arrays)
    rest |= {name: moved(rest[name]) for name in ("bias", "residual")}
    out = moved(np.zeros_like(arrays.fused))
    assert primitive(moved(arrays.inputs["x"]), wp, **rest, out=out) is out
    assert np.array_equal(out, arrays.fused)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_no_images_give_no_results(primitives: dict[str, Primitive], dtype: str) -> None:
    row, primitive = PRECISIONS[dtype], primitives[dtype]
    wp = primitive.pack_weights(np.zeros(PROBLEM.w_shape, row.w.numpy))
    none = np.empty((0, *PROBLEM.x_shape[1:]), row.x.numpy)
    got = primitive(none, wp)
    assert got.shape == (0, *PROBLEM.y_shape[1:]) and got.dtype == row.y.numpy
    assert primitive(none, wp, residual=got, out=got) is got


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_many_threads_at_once(primitives: dict[str, Primitive], dtype: str) -> None:
    primitive, arrays = primitives[dtype], Arrays.of(PROBLEM.with_(dtype=dtype), 3)
    wp, rest, x = packed(primitive, arrays), fused(arrays), arrays.inputs["x"]

    def work(_: int) -> bool:
        return all(np.array_equal(primitive(x, wp, **rest), arrays.fused) for _ in range(20))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(12)))


@pytest.mark.parametrize("name", ["x", "w", "bias", "residual", "out"])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_other_types_are_named(primitives: dict[str, Primitive], name: str, dtype: str) -> None:
    """Argument, expected type and what came, for each type that some other argument has."""
    row, primitive = PRECISIONS[dtype], primitives[dtype]
    kinds = {"x": row.x, "w": row.w, "bias": row.sum, "residual": row.y, "out": row.y}
    good = {each: np.zeros(shape(each), kind.numpy) for each, kind in kinds.items()}
    wp = primitive.pack_weights(good["w"])
    others = {kind.numpy.name for kind in DTYPES.values() if not kind.numpy.fields}
    for other in sorted(others | {"float64", "int16"}):
        if other == kinds[name].numpy.name:
            continue
        bad = good[name].astype(other)
        wanted = kinds[name].numpy.name
        with pytest.raises(TypeError, match=rf"^{name}: expected dtype {wanted} .*got {other} "):
            if name == "w":
                primitive.pack_weights(bad)
            elif name == "x":
                primitive(bad, wp)
            else:
                primitive(good["x"], wp, **{name: bad})


def shape(name: str) -> tuple[int, ...]:
    known = {"x": PROBLEM.x_shape, "w": PROBLEM.w_shape, "bias": (PROBLEM.K,)}
    return known.get(name, PROBLEM.y_shape)


def test_bf16_is_told_how_to_be_made(primitives: dict[str, Primitive]) -> None:
    wrong = np.zeros(PROBLEM.w_shape, np.float32)
    told = (
        r"w: expected dtype uint16 .*\(the bits of bf16; polysci.to_bf16 makes them\), got float32"
    )
    with pytest.raises(TypeError, match=told):
        primitives["bf16"].pack_weights(wrong)
    with pytest.raises(TypeError, match=r"w: .* got float32 .*; use w.astype\(numpy.float16\)"):
        primitives["f16"].pack_weights(wrong)


def test_bf16_by_its_functions(primitives: dict[str, Primitive]) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape(name), dtype=np.float32) for name in "xw")
    primitive = primitives["bf16"]
    y = primitive(to_bf16(x), primitive.pack_weights(to_bf16(w)), activation="relu")
    expected = PROBLEM.reference(from_bf16(to_bf16(x)), from_bf16(to_bf16(w)), clamp=(0, inf))
    assert np.allclose(from_bf16(y), expected, rtol=2.0**-8, atol=1e-5)


def test_another_librarys_bfloat16(primitives: dict[str, Primitive]) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    for dtype in ("bf16", "bf16:bf16:f32"):
        arrays, primitive = Arrays.of(PROBLEM.with_(dtype=dtype), 4), primitives[dtype]
        kinds = PRECISIONS[dtype]
        views = {
            name: array.view(bfloat16) if kind.name == "bf16" else array
            for (name, array), kind in zip(
                arrays.inputs.items(),
                (kinds.x, kinds.w, kinds.sum, kinds.y, kinds.sum),
                strict=True,
            )
        }
        wp = primitive.pack_weights(views["w"])
        rest = {name: views[name] for name in ("bias", "residual")}
        clamp = tuple(map(float, views["clamp"]))
        assert np.array_equal(primitive(views["x"], wp, **rest, clamp=clamp), arrays.fused)
        out = np.empty_like(views["residual"])
        assert primitive(views["x"], wp, **rest, clamp=clamp, out=out) is out
        assert np.array_equal(out.view(arrays.fused.dtype), arrays.fused)
        y = views["residual"].copy()
        got = primitive(views["x"], wp, bias=views["bias"], residual=y, clamp=clamp, out=y)
        assert got is y and np.array_equal(y.view(arrays.fused.dtype), arrays.fused)
        none = np.empty((0, *PROBLEM.x_shape[1:]), bfloat16)
        empty = np.empty((0, *PROBLEM.y_shape[1:]), views["residual"].dtype)
        assert primitive(none, wp, residual=empty, out=empty) is empty


@pytest.mark.parametrize("dtype", REAL)
def test_reals_stay_inside_the_bound(primitives: dict[str, Primitive], dtype: str) -> None:
    reals, primitive = Reals.of(PROBLEM.with_(dtype=dtype), 5), primitives[dtype]
    x, w, bias, residual, clamp = (
        reals.inputs[name] for name in ("x", "w", "bias", "residual", "clamp")
    )
    wp = primitive.pack_weights(w)
    assert reals.fault("plain", primitive(x, wp)) is None
    rest = {"bias": bias, "residual": residual, "clamp": tuple(map(float, clamp))}
    assert reals.fault("fused", primitive(x, wp, **rest)) is None


@pytest.mark.parametrize("dtype", SCALED)
def test_scales_by_default_and_from_call_to_call(
    primitives: dict[str, Primitive], dtype: str
) -> None:
    row, primitive = PRECISIONS[dtype], primitives[dtype]
    x = np.full(PROBLEM.x_shape, 3, row.x.numpy)
    w = np.zeros(PROBLEM.w_shape, np.int8)
    w[:, 0, 1, 1] = 2  # the pixel itself
    wp = primitive.pack_weights(w)
    channels = np.arange(PROBLEM.K, dtype=np.float32)
    assert (primitive(x, wp) == 6).all()
    for _ in range(2):
        assert (primitive(x, wp, scales=Scales(0.5)) == 3).all()
        assert (primitive(x, wp, scales=Scales(channels)) == np.minimum(6 * channels, 255)).all()
        assert (primitive(x, wp, scales=Scales(1.0, y_zero=5)) == 11).all()
        assert (primitive(x, wp) == 6).all()
    minus = primitive(x, wp, scales=Scales(-1.0, y_zero=10), activation="relu")
    assert (minus == 10).all()
    residual = np.full(PROBLEM.y_shape, 4, row.y.numpy)
    added = Scales(1.0, residual_scale=2.0, residual_zero=1)
    assert (primitive(x, wp, residual=residual, scales=added) == 12).all()


@pytest.mark.parametrize("dtype", SCALED)
@pytest.mark.parametrize("y_zero", [-128, 0, 255])
@pytest.mark.parametrize("clamp", [(-1e30, -1e30), (1e30, 1e30), (-inf, inf), (-3.5, 2.5)])
def test_far_limits_saturate_as_the_reference(
    primitives: dict[str, Primitive], dtype: str, y_zero: int, clamp: tuple[float, float]
) -> None:
    problem = PROBLEM.with_(dtype=dtype)
    arrays = Arrays.of(PROBLEM.with_(dtype=dtype.rpartition(":")[0] + ":s32"), 6)
    sums, along = arrays.plain, (1, 1, 1, problem.K)
    scales = Scales(np.linspace(-1e3, 1e3, problem.K), y_zero)
    primitive = primitives[dtype]
    wp = primitive.pack_weights(arrays.inputs["w"], arrays.x_zero or 0)
    expected = scales.result(sums, along, PRECISIONS[dtype].y, clamp=clamp)
    assert np.array_equal(primitive(arrays.inputs["x"], wp, scales=scales, clamp=clamp), expected)


@pytest.mark.parametrize("dtype", WHOLE)
def test_the_zero_point_of_x(primitives: dict[str, Primitive], dtype: str) -> None:
    primitive, limits = primitives[dtype], np.iinfo(PRECISIONS[dtype].x.numpy)
    w = np.ones(PROBLEM.w_shape, np.int8)
    for zero in (limits.min, limits.max, np.int64(7), 0):
        x = np.full(PROBLEM.x_shape, zero, PRECISIONS[dtype].x.numpy)
        assert (primitive(x, primitive.pack_weights(w, zero)) == 0).all()
    for bad in (limits.min - 1, limits.max + 1, 1.5, "1", None):
        told = rf"x_zero: expected {limits.min} to {limits.max}, got {bad!r}"
        with pytest.raises(ValueError, match=told):
            primitive.pack_weights(w, bad)


@pytest.mark.parametrize("dtype", REAL)
def test_reals_have_no_zero_point(primitives: dict[str, Primitive], dtype: str) -> None:
    w = np.zeros(PROBLEM.w_shape, PRECISIONS[dtype].w.numpy)
    primitives[dtype].pack_weights(w, 0)
    with pytest.raises(ValueError, match=f"x_zero: expected 0 for {dtype}, got 3"):
        primitives[dtype].pack_weights(w, 3)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_bad_scales_are_named(primitives: dict[str, Primitive], dtype: str) -> None:
    primitive, arrays = primitives[dtype], Arrays.of(PROBLEM.with_(dtype=dtype), 0)
    x, wp = arrays.inputs["x"], packed(primitive, arrays)
    if dtype not in SCALED:
        with pytest.raises(ValueError, match=f"scales: {dtype} has no scaled results, got Scales"):
            primitive(x, wp, scales=Scales())
        return
    with pytest.raises(TypeError, match=r"scales: expected polysci.Scales, got float"):
        primitive(x, wp, scales=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"scale: expected shape \(10,\), got \(3,\)"):
        primitive(x, wp, scales=Scales([1.0, 2.0, 3.0]))


def test_weights_of_another_precision_are_refused(primitives: dict[str, Primitive]) -> None:
    w, x = np.zeros(PROBLEM.w_shape, np.int8), np.zeros(PROBLEM.x_shape, np.uint8)
    wp = primitives["u8:s8:s8"].pack_weights(w)
    with pytest.raises(ValueError, match=r"wp: expected weights packed for '.* u8:s8:u8 n pack"):
        primitives["u8:s8:u8"](x, wp)
