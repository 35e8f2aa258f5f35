"""Ranges of tensors, and what data must be."""

import numpy as np
import pytest

from polysci.errors import SpecError
from polysci.network.runner import TensorPort
from polysci.quantize.ranges import METHODS, LinearRange, Observer
from polysci.quantize.samples import read_arrays, samples_of


def observed(values: np.ndarray) -> Observer:
    observer = Observer("t")
    for part in np.array_split(values, 3):
        observer.see_ends(part)
    for part in np.array_split(values, 3):
        observer.count(part)
    return observer


def test_zero_is_a_number_of_every_range() -> None:
    for low, high in ((-1.0, 3.0), (0.0, 2.0), (-2.0, 0.0), (0.0, 0.0)):
        own = LinearRange(low, high)
        numbers = np.clip(np.rint(np.array([low, 0, high]) / own.scale) + own.zero, 0, 255)
        real = (numbers - own.zero) * own.scale
        assert real[1] == 0
        np.testing.assert_allclose(real, [low, 0, high], atol=float(own.scale) / 2)


def test_minmax_has_all_that_was_seen() -> None:
    own = observed(np.array([0.5, -0.25, 2.0, 1.0])).range_by("minmax", 99)
    assert (own.low, own.high) == (-0.25, 2.0)


def test_a_percentile_leaves_out_the_rest() -> None:
    values = np.concatenate([np.linspace(0, 1, 9_990), np.full(10, 50.0)])
    own = observed(values).range_by("percentile", 99.8)
    assert own.low == 0
    assert 0.9 < own.high < 1.1
    assert observed(values).range_by("percentile", 100).high == 50


def test_entropy_leaves_out_what_is_rare() -> None:
    values = np.random.default_rng(0).normal(size=20_000)
    values[:2] = [40, -40]
    wide, own = (observed(values).range_by(method, 100) for method in ("minmax", "entropy"))
    assert wide.high == 40
    assert 2 < own.high < 20


@pytest.mark.parametrize("method", METHODS)
def test_a_tensor_of_zeros_has_a_range(method: str) -> None:
    own = observed(np.zeros(9)).range_by(method, 99.9)
    assert (own.scale, own.zero) == (1, 0)


def test_numbers_that_are_not_finite_are_refused() -> None:
    with pytest.raises(SpecError, match="tensor 't': the data makes numbers that are not finite"):
        Observer("t").see_ends(np.array([1.0, np.inf]))


PORTS = (TensorPort("x", (2, 3), "float32"), TensorPort("n", (2,), "int64"))


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("shape", [(8, 3), (4, 2, 3)])
def test_arrays_are_cut_into_samples(shape: tuple[int, ...]) -> None:
    samples = samples_of({"x": numbers(*shape), "n": np.arange(2)}, PORTS)
    assert len(samples) == 4
    np.testing.assert_array_equal(samples[1]["x"], numbers(4, 2, 3)[1])
    assert all(sample["n"].tolist() == [0, 1] for sample in samples)


FAULTS = {
    "lacks 'n'; expected arrays": {"x": numbers(2, 3)},
    "has no use for 'z'": {"x": numbers(2, 3), "n": np.arange(2), "z": np.zeros(1)},
    "'x' has shape (3, 3), expected (2, 3) or (SAMPLES, 2, 3)":
        {"x": numbers(3, 3), "n": np.arange(2)},
    "'x' has shape (0, 3): no samples": {"x": numbers(0, 3), "n": np.arange(2)},
    "'n' is of int32, expected int64": {"x": numbers(2, 3), "n": np.arange(2, dtype=np.int32)},
    "'x' has numbers that are not finite": {"x": numbers(2, 3) * np.nan, "n": np.arange(2)},
    "'n' has 2 samples, another input 3": {"x": numbers(6, 3), "n": np.arange(4)},
}  # fmt: skip


@pytest.mark.parametrize("message", FAULTS)
def test_other_data_is_refused(message: str) -> None:
    with pytest.raises(SpecError) as fault:
        samples_of(FAULTS[message], PORTS)
    assert str(fault.value).startswith(f"data: {message}")


def test_a_file_that_holds_no_arrays_is_refused(tmp_path) -> None:
    path = tmp_path / "data.npz"
    path.write_text("no arrays")
    with pytest.raises(SpecError, match=r"data '.*data\.npz': expected an .npz file of arrays"):
        read_arrays(path)
