"""Images read between their pixels, against ONNX's reference."""

from itertools import product

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.graph.operators.lower import lower
from polysci.graph.passes.table import simplify
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals
from tests.support.operatorcases import OperatorCase, faults, joined

pytestmark = pytest.mark.sampled

PADDINGS = ("zeros", "border", "reflection")


def samples(modes: tuple[str, ...], shape: tuple[int, ...], points: tuple[int, ...],
            dtype: str = "float32") -> list[OperatorCase]:  # fmt: skip
    """Points inside, outside, and on the edges of pixels."""
    grid = 1.6 * reals(shape[0], *points, len(points), seed=3)
    grid.reshape(-1)[::7] = np.resize([-1, 1, 0], grid.reshape(-1)[::7].shape)
    inputs = {"x": reals(*shape).astype(dtype), "g": grid.astype(dtype)}
    return [
        OperatorCase("GridSample", "x g", inputs,
                     words={"mode": mode, "padding_mode": padding, "align_corners": aligned})
        for mode, padding, aligned in product(modes, PADDINGS, (0, 1))
    ]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_points_of_images(threads: int) -> None:
    cases = samples(("nearest", "linear", "cubic"), (2, 2, 5, 4), (3, 5))[threads - 1 :: 2]
    assert not faults(cases, 20, threads, tolerance=3e-5)


@pytest.mark.exhaustive
def test_points_of_rows_of_volumes_and_of_doubles() -> None:
    cases = samples(("nearest", "linear"), (1, 2, 3, 4, 3), (2, 2, 3))
    cases += samples(("linear", "cubic"), (2, 1, 6), (5,))
    cases += samples(("linear",), (1, 1, 4, 4), (2, 4), "float64")
    cases += samples(("linear",), (1, 1, 1, 4), (2, 4))[::2]
    assert not faults(cases, 20, tolerance=3e-5)


@pytest.mark.exhaustive
def test_modes_of_opset_16() -> None:
    assert not faults(samples(("bilinear", "nearest"), (1, 1, 4, 3), (2, 2)), 16, tolerance=3e-5)


@pytest.mark.exhaustive
def test_points_keep_their_digits_in_bf16() -> None:
    """A grid that layers compute names points of a wide image to less than a pixel."""
    nodes = [node("Conv", "g w", "c"), node("Transpose", "c", "t", perm=[0, 2, 3, 1]),
             node("GridSample", "x t", "y", align_corners=1)]  # fmt: skip
    image = np.arange(512, dtype=np.float32).reshape(1, 1, 1, 512) / 512
    graph = read(model(nodes, {"x": [1, 1, 1, 512], "g": [1, 2, 6, 5]}, {"y": None},
                       {"w": np.eye(2, dtype=np.float32).reshape(2, 2, 1, 1)}))  # fmt: skip
    grid = np.round(reals(1, 2, 6, 5) * 128) / 128  # numbers that bf16 holds
    results = network_of(graph, dtype="bf16")({"x": image, "g": grid})
    assert isinstance(results, dict)
    wanted = (grid[:, :1] + 1) / 2 * 511 / 512
    np.testing.assert_allclose(results["y"], wanted, atol=2e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf, 1e30])
def test_wild_points_read_nothing_outside(wild: float) -> None:
    for case in samples(("linear", "nearest"), (1, 1, 3, 3), (1, 2)):
        inputs = {"c0_x": case.inputs["x"], "c0_g": np.full((1, 1, 2, 2), wild, np.float32)}
        results = network_of(read(joined([case], 20)))(inputs)
        assert isinstance(results, dict) and results["c0_y"].shape == (1, 1, 1, 2)


def test_grids_of_affine_maps() -> None:
    cases = [
        OperatorCase("AffineGrid", "t s", {"t": reals(*theta)}, {"s": np.array(size)},
                     {"align_corners": aligned})
        for theta, size in (((2, 2, 3), [2, 3, 4, 5]), ((1, 3, 4), [1, 2, 3, 2, 4]))
        for aligned in (0, 1)
    ]  # fmt: skip
    assert not faults(cases, 20)


def test_other_modes_are_refused() -> None:
    inputs = {"x": reals(1, 1, 4, 4), "g": reals(1, 2, 2, 2)}
    case = OperatorCase("GridSample", "x g", inputs, words={"mode": "quadratic"})
    with pytest.raises(UnsupportedError, match="mode quadratic with padding_mode zeros"):
        lower(simplify(read(joined([case], 20))))
