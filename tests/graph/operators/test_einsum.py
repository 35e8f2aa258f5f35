"""Einsum against NumPy in float64."""

import numpy as np
import pytest

from polysci.errors import PolysciError
from polysci.program.stages import LayerStage
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

pytestmark = pytest.mark.sampled

CASES = {
    "product": ("ij,jk->ik", [(5, 7), (7, 6)], 1),
    "transposed": ("ij,kj->ki", [(5, 7), (6, 7)], 1),
    "implicit": ("ij,jk", [(5, 7), (7, 6)], 1),
    "implicit, turned": ("ba", [(5, 7)], 0),
    "attention": ("bhqd,bhkd->bhqk", [(2, 3, 4, 8), (2, 3, 5, 8)], 1),
    "values": ("bhqk,bhkd->bqhd", [(2, 3, 4, 5), (2, 3, 5, 8)], 1),
    "several rows": ("abij,jk->abik", [(2, 3, 4, 5), (5, 6)], 1),
    "several inner": ("aijb,ijc->bac", [(2, 3, 4, 5), (3, 4, 6)], 1),
    "several columns": ("bi,bijk->bjk", [(2, 3), (2, 3, 4, 5)], 1),
    "a sum": ("ijk->j", [(3, 4, 5)], 0),
    "everything": ("ij->", [(3, 4)], 0),
    "a diagonal": ("iji->ij", [(3, 4, 3)], 0),
    "a trace": ("ii", [(5, 5)], 0),
    "diagonals joined": ("bii,bij->bj", [(2, 4, 4), (2, 4, 3)], 1),
    "elements": ("ij,ij->ij", [(3, 4), (3, 4)], 0),
    "outer": ("i,j->ji", [(3,), (4,)], 0),
    "dots": ("i,i", [(9,), (9,)], 1),
    "sums beside": ("ijm,jkn->ik", [(3, 4, 2), (4, 5, 2)], 1),
    "three": ("ij,jk,kl->li", [(3, 4), (4, 5), (5, 6)], 2),
    "three of a label": ("i,i,i->i", [(6,), (6,), (6,)], 0),
    "ellipsis": ("...ij,...jk->...ik", [(2, 1, 3, 4), (2, 5, 4, 6)], 1),
    "ellipsis, implicit": ("...i,i...", [(2, 3), (3, 2)], 1),
    "ellipsis in front": ("i...->...i", [(2, 3, 4)], 0),
    "blanks": (" i j , j k -> i k ", [(2, 3), (3, 4)], 1),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_as_numpy_has_it(name: str) -> None:
    equation, shapes, products = CASES[name]
    arrays = {f"x{at}": reals(*shape, seed=at) for at, shape in enumerate(shapes)}
    nodes = [node("Einsum", " ".join(arrays), "y", equation=equation)]
    exact = np.asarray(np.einsum(equation, *(a.astype(np.float64) for a in arrays.values())))
    ports = {name: array.shape for name, array in arrays.items()}
    network = network_of(read(model(nodes, ports, {"y": None})))
    result = network(arrays)["y"]
    assert result.shape == exact.shape and np.abs(result - exact).max() < 1e-5
    layers = [stage for stage in network.prepared.program.stages if isinstance(stage, LayerStage)]
    assert len(layers) == products


@pytest.mark.parametrize("name", ["transposed", "values", "several inner", "ellipsis"])
def test_of_weights(name: str) -> None:
    equation, shapes, _ = CASES[name]
    x, w = (reals(*shape, seed=at) for at, shape in enumerate(shapes))
    built = model(
        [node("Einsum", "x w", "y", equation=equation)], {"x": x.shape}, {"y": None}, {"w": w}
    )
    exact = np.einsum(equation, x.astype(np.float64), w)
    assert np.abs(network_of(read(built), 2)({"x": x})["y"] - exact).max() < 1e-5


@pytest.mark.parametrize("equation", ["ij,jk->iz", "ij->ii", "ijk,jk->i", "ij", "i1,jk->i"])
def test_refused(equation: str) -> None:
    nodes = [node("Einsum", "x z", "y", equation=equation)]
    with pytest.raises(PolysciError):
        network_of(read(model(nodes, {"x": [3, 3], "z": [3, 3]}, {"y": None})))
