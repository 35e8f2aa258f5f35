"""polysci.conv2d: NumPy arrays to their convolution in one line."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import polysci
from polysci import api
from polysci.numerics.dtypes import DTYPES, values
from polysci.runtime.primitive import Primitive

conv2d = partial(polysci.conv2d, isa="portable")


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    api._kept_primitive.cache_clear()
    yield
    api._kept_primitive.cache_clear()


def integers(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, shape).astype(dtype)


X, W = integers(2, 6, 5, 8), integers(4, 8, 3, 3, seed=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_everything_at_once(layout: str) -> None:
    w, bias, residual = integers(6, 4, 3, 2), integers(6), integers(2, 4, 3, 6)
    numbers: dict[str, Any] = {"stride": (1, 2), "pad": (1, 0), "dilation": (2, 1), "groups": 2}
    problem = polysci.Conv2d(2, 8, 6, 6, 6, 3, 2, **numbers)
    x = integers(2, 6, 6, 8)
    residual = integers(*problem.y_shape)
    expected = problem.reference(x, w, bias, residual, (0, 50))
    if layout == "nchw":  # views with gaps
        x, residual = x.transpose(0, 3, 1, 2), residual.transpose(0, 3, 1, 2)
    y = conv2d(x, w, bias, residual, (0, 50), layout=layout, **numbers)
    assert np.array_equal(y.transpose(0, 2, 3, 1) if layout == "nchw" else y, expected)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("x", "w", "y"),
    [
        ("float32", "float32", "float32"),
        ("float16", "float16", "float16"),
        ("uint8", "int8", "int32"),
        ("int8", "int8", "int32"),
    ],
)
def test_dtypes_of_the_arrays_give_the_precision(x: str, w: str, y: str) -> None:
    result = conv2d(X.astype(x), W.astype(w), pad=1)
    expected = polysci.Conv2d(2, 8, 6, 5, 4, 3, 3, pad=1).reference(X, W)
    assert result.dtype == y and np.array_equal(result, expected)


def test_bf16_is_its_bits() -> None:
    x, w = polysci.to_bf16(X / 4), polysci.to_bf16(W)
    y = conv2d(x, w)
    expected = polysci.Conv2d(2, 8, 6, 5, 4, 3, 3).reference(X / np.float32(4), W)
    assert y.dtype == np.uint16 and np.allclose(values(y, DTYPES["bf16"]), expected, rtol=2**-8)


@pytest.mark.exhaustive
def test_a_shape_is_compiled_once_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert conv2d(X, W).shape == (2, 4, 3, 4)
    monkeypatch.setattr(api, "compile", None)
    for _ in range(3):
        assert np.array_equal(conv2d(X, W, clamp=(0, 9)), np.clip(conv2d(X, W), 0, 9))
    kept = api._kept_primitive.cache_info()
    assert (kept.misses, kept.maxsize) == (1, api.KEPT)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The arrays that are packed during the test, and nothing kept before."""
    arrays: list[np.ndarray] = []
    pack = Primitive.pack_weights

    def watched(self: Primitive, w: np.ndarray, x_zero: int = 0) -> Any:
        arrays.append(w)
        return pack(self, w, x_zero)

    monkeypatch.setattr(Primitive, "pack_weights", watched)
    monkeypatch.setattr(api, "_kept_weights", api.KeptWeights())
    return arrays


@pytest.mark.sampled
@pytest.mark.parametrize(("x", "w"), [("float32", "float32"), ("uint8", "int8")])
def test_weights_are_packed_again_only_where_a_byte_changed(
    packed: list[np.ndarray], x: str, w: str
) -> None:
    images, weights = X.astype(x), W.astype(w)
    for changed in [*range(0, W.size, 7), None, None]:  # most lie between the sampled elements
        if changed is not None:
            weights.flat[changed] += 1
        before = len(packed)
        expected = polysci.Conv2d(2, 8, 6, 5, 4, 3, 3).reference(X, weights)
        assert np.array_equal(conv2d(images, weights), expected)
        assert len(packed) == before + (changed is not None)
    assert np.array_equal(conv2d(images, weights.copy()), expected)
    assert len(packed) == before  # other memory, the same bytes


@pytest.mark.exhaustive
def test_weights_kept_belong_to_one_problem(packed: list[np.ndarray]) -> None:
    for pad, expected in ((0, (2, 4, 3, 4)), (1, (2, 6, 5, 4)), (0, (2, 4, 3, 4))):
        assert conv2d(X, W, pad=pad).shape == expected
    assert len(packed) == 2


def test_what_is_refused_is_refused_beside_kept_weights(packed: list[np.ndarray]) -> None:
    conv2d(X, W)
    with pytest.raises(TypeError, match="MaskedArray"):
        conv2d(X, np.ma.masked_equal(W, 0))
    for swapped in (W.astype(">f4"), W.view(">f4")):  # the second has the bytes that are kept
        with pytest.raises((TypeError, ValueError), match="w"):
            conv2d(X, swapped)
    assert packed


def test_few_bytes_of_weights_are_kept(
    packed: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "KEPT_BYTES", 2 * W.nbytes)
    for seed in range(4):
        conv2d(X, integers(4, 8, 3, 3, seed=seed))
    assert api._kept_weights.nbytes == 2 * W.nbytes
    conv2d(X, integers(4, 8, 3, 3, seed=3))
    assert len(packed) == 4
    conv2d(X, integers(4, 8, 3, 3, seed=0))
    assert len(packed) == 5
    monkeypatch.setattr(api, "KEPT_BYTES", 8)
    conv2d(X, W + 1)
    assert len(packed) == 6 and api._kept_weights.nbytes == 2 * W.nbytes


@pytest.mark.exhaustive
def test_threads_call_it_at_once() -> None:
    expected = polysci.Conv2d(2, 8, 6, 5, 4, 3, 3).reference(X, W)
    with ThreadPoolExecutor(4) as pool:
        assert all(np.array_equal(y, expected) for y in pool.map(lambda _: conv2d(X, W), range(40)))


@pytest.mark.exhaustive
def test_no_images() -> None:
    assert conv2d(X[:0], W).shape == (0, 4, 3, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0], W), TypeError, "x: expected a numpy.ndarray, got list"),
        ((X, W[0]), ValueError, r"w: expected 4 axes \(K C/groups R S\), got shape \(8, 3, 3\)"),
        ((X[0], W), ValueError, r"x: expected 4 axes \(N H W C or N C H W\), got shape"),
        ((X.astype(float), W), TypeError, "x, w: expected dtypes .*; got float64 by float32"),
        ((X, W[:, :4]), ValueError, r"w: expected shape \(4, 8, 3, 3\) .* x of 8 channels in nhwc"),
        ((X, W, X), ValueError, r"bias: expected shape \(4,\)"),
        ((X, W, None, X), ValueError, r"residual: expected shape \(2, 4, 3, 4\)"),
        ((X, W, None, None, 6), TypeError, r"clamp: expected two numbers \(lo, hi\), got 6"),
        ((np.ma.masked_array(X), W), TypeError, "x: expected a numpy.ndarray of float32"),
        ((X, W, None, None, None, 1, 0, 1, [1]), TypeError, "groups"),
        ((X[:, :2], W), polysci.errors.SpecError, "Conv2d"),
    ],
)
def test_what_does_not_fit_is_refused(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        conv2d(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "hwc"}, "layout"),
        ({"groups": 3}, "groups"),
        ({"stride": 0}, "stride"),
        ({"threads": 0}, "threads=0: expected 1 to"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(polysci.errors.SpecError, match=message):
        conv2d(X, W, **options)
