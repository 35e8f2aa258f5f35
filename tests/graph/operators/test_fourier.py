"""Discrete Fourier transforms against ONNX's reference and NumPy."""

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.graph.operators.lower import lower
from polysci.graph.passes.table import simplify
from polysci.program.stages import LayerStage
from tests.support.networks import read
from tests.support.onnxmodels import reals
from tests.support.operatorcases import OperatorCase, faults, joined

pytestmark = pytest.mark.sampled


def transforms() -> list[OperatorCase]:
    settings = [
        ((2, 8, 1), None, None, {}), ((2, 8, 2), None, None, {}),
        ((2, 7, 1), None, None, {"onesided": 1}),
        ((2, 8, 1), None, None, {"onesided": 1}), ((3, 5, 2), None, None, {"inverse": 1}),
        ((2, 6, 4, 1), None, 1, {}), ((2, 6, 4, 2), None, -3, {"inverse": 1}),
        ((2, 6, 1), 9, None, {}),
        ((2, 6, 2), 4, 1, {}), ((1, 40, 1), None, None, {"onesided": 1}), ((5, 1), None, 0, {}),
        ((2, 5, 2), None, None, {"inverse": 1, "onesided": 1}),
        ((2, 4, 2), 7, None, {"inverse": 1, "onesided": 1}),
    ]  # fmt: skip
    cases = list[OperatorCase]()
    for shape, length, axis, words in settings:
        weights = {"n": np.array(length)} if length is not None else {}
        weights |= {"a": np.array(axis)} if axis is not None else {}
        names = f"x {'n' if length is not None else '-'} {'a' if axis is not None else '-'}"
        names = names.removesuffix(" -").removesuffix(" -")
        cases.append(OperatorCase("DFT", names, {"x": reals(*shape)}, weights, words))
    cases.append(OperatorCase("DFT", "x", {"x": reals(3, 4, 1).astype(np.float64)}))
    return cases


def frames() -> list[OperatorCase]:
    window = np.hanning(8).astype(np.float32)
    step = {"s": np.array(4)}
    x = {"x": reals(2, 24, 1)}
    return [
        OperatorCase("STFT", "x s w", x, step | {"w": window}, {"onesided": 1}),
        OperatorCase("STFT", "x s w", x, step | {"w": window}, {"onesided": 0}),
        OperatorCase("STFT", "x s w", x, step | {"w": window}),
        OperatorCase("STFT", "x s - n", x, {"s": np.array(5), "n": np.array(7)},
                     {"onesided": 1}),
        OperatorCase("STFT", "x s w n", {"x": reals(1, 24, 2)},
                     step | {"w": window, "n": np.array(8)}, {"onesided": 0}),
        OperatorCase("STFT", "x s w", x | {"w": window}, step, {"onesided": 0}),
        OperatorCase("STFT", "x s w", {"x": reals(1, 33, 1).astype(np.float64)},
                     step | {"w": window.astype(np.float64)}, {"onesided": 1}),
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_transforms() -> None:
    assert not faults(transforms(), 20)


@pytest.mark.exhaustive
def test_transforms_of_frames() -> None:
    assert not faults(frames(), 20, 2)


@pytest.mark.exhaustive
def test_transforms_of_opset_17() -> None:
    """Where the axis is an attribute."""
    cases = [OperatorCase("DFT", "x", {"x": reals(2, 6, 3, 1)}, words={"axis": axis})
             for axis in (0, 1, 2, -2)]  # fmt: skip
    assert not faults(cases, 17)


def test_a_transform_is_a_layer() -> None:
    """A searched primitive computes it, on frames that are not copied."""
    (case, *_) = frames()
    stages = lower(simplify(read(joined([case], 17)))).stages
    assert sum(isinstance(stage, LayerStage) for stage in stages) == 1
    assert {type(stage).__name__ for stage in stages} == {"LayerStage", "ViewStage"}


def test_what_is_refused() -> None:
    large = OperatorCase("DFT", "x", {"x": np.zeros((1, 9000, 1), np.float32)})
    with pytest.raises(UnsupportedError, match=r"a table of .* bytes"):
        lower(simplify(read(joined([large], 20))))
