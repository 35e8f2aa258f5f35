"""Networks for several sizes in Python: entries of a library share weights, on devices too."""

import gc
import pickle
from typing import Any

import numpy as np
import onnx
import pytest

import polysci
from polysci.errors import SpecError
from polysci.network.sizes import SizedNetwork, compile_sizes
from polysci.runtime.backends import backend_named
from tests.support.any_device import DEVICES, at_hand
from tests.support.onnxmodels import model, node, reals

LAYERS = "mlp:1x24x40x16 act=relu"
ROWS = (3, 8)


def compile_rows(device: str | None) -> SizedNetwork:
    return compile_sizes(LAYERS, {"rows": ROWS}, "estimate", device=device)


@pytest.mark.parametrize(
    "device",
    [pytest.param(it, marks=[pytest.mark.exhaustive] * (it != DEVICES[0]))
     for it in (None, *DEVICES)],
)  # fmt: skip
def test_entries_compute_what_networks_of_one_size_do(device: str | None) -> None:
    with at_hand(device or DEVICES[0]):
        whole = compile_rows(device)
        assert whole.sizes == tuple({"rows": rows} for rows in ROWS)
        runners = [whole.entry(rows=rows).runner for rows in ROWS]
        assert runners[0].library is runners[1].library
        assert runners[0].model_bytes == runners[1].model_bytes > 0
        for turn, rows in enumerate((8, 3, 8)):  # in turns, in the same memory
            alone = polysci.compile_network(LAYERS, "estimate", dims={"rows": rows})
            x = reals(rows, 24, seed=turn)
            assert np.allclose(whole(x), alone(x), rtol=1e-5, atol=1e-6)
            out = {alone.outputs[0].name: np.empty((rows, 16), np.float32)}
            whole({alone.inputs[0].name: x}, out)
            assert np.array_equal(out[alone.outputs[0].name], whole(x))


@pytest.mark.exhaustive
def test_weights_are_packed_once(opencl: str) -> None:
    """A library of both sizes holds no more of them than one of a single size."""
    whole = compile_rows(opencl).entry(rows=8)
    alone = polysci.compile_network(LAYERS, "estimate", dims={"rows": 8}, device=opencl)
    assert whole.runner.model_bytes == alone.runner.model_bytes
    assert len(whole.runner.packed_weights()) == whole.runner.model_bytes
    assert whole.runner.packed_weights() == alone.runner.packed_weights()


def tagger() -> onnx.ModelProto:
    """Attention over a free number of tokens, the best of them, and a sum that scans them all."""
    nodes = [
        node("MatMul", "x q", "a"), node("MatMul", "x k", "b"), node("Transpose", "b", "c",
                                                                     perm=[0, 2, 1]),
        node("MatMul", "a c", "s"), node("Softmax", "s", "p", axis=-1), node("MatMul", "p x", "z"),
        node("ReduceMean", "z", "m", axes=[2], keepdims=0), node("TopK", "m three", "best place"),
        node("CumSum", "z along", "sums"),
    ]  # fmt: skip
    weights = {"q": reals(6, 5, seed=1), "k": reals(6, 5, seed=2), "three": np.int64([3]),
               "along": np.int64(1)}  # fmt: skip
    outputs = {"best": None, "place": None, "sums": None}
    return model(nodes, {"x": ["N", "T", 6]}, outputs, weights)


@pytest.mark.exhaustive
@pytest.mark.parametrize("device", DEVICES)
def test_sizes_of_several_dimensions_on_devices(device: str) -> None:
    with at_hand(device):
        whole = compile_sizes(tagger(), {"N": [1, 2], "T": [5, 9]}, "estimate", device=device)
        for sizes in whole.sizes:
            x = reals(sizes["N"], sizes["T"], 6, seed=sizes["T"])
            expected = polysci.compile_network(tagger(), "estimate", dims=sizes)({"x": x})
            for name, array in whole({"x": x}).items():
                assert array.dtype == expected[name].dtype
                assert np.allclose(array, expected[name], rtol=1e-5, atol=1e-6)
        entry = whole.entry(N=2, T=9)
        assert entry.report().rows and pickle.loads(pickle.dumps(entry)).inputs == entry.inputs


def test_what_has_no_entry_is_told() -> None:
    whole = compile_rows(None)
    name = whole.entry(rows=3).inputs[0].name
    said = rf"^no entry has inputs {name} \[4, 24\]; known: rows=3; rows=8$"
    with pytest.raises(ValueError, match=said):
        whole(reals(4, 24))
    with pytest.raises(SpecError, match=r"^no entry of rows=4; known: rows=3; rows=8$"):
        whole.entry(rows=4)
    with pytest.raises(ValueError, match="expected"):
        whole({"other": reals(3, 24)})
    with pytest.raises(SpecError, match="none has several sizes; use compile_network"):
        compile_sizes(LAYERS, {"rows": 3}, "estimate")
    with pytest.raises(SpecError, match="compile_sizes"):
        polysci.compile_network(LAYERS, "estimate", dims={"rows": [3, 8]})


def test_sizes_are_whole_numbers_of_any_type() -> None:
    whole = compile_sizes(LAYERS, {"rows": np.array([3, 8])}, "estimate")
    assert whole.sizes == ({"rows": 3}, {"rows": 8})
    free = model([node("Relu", "x", "y")], {"x": ["T", 4]}, {"y": ["T", 4]}, {})
    one = polysci.compile_network(free, "estimate", dims={"T": np.int64(3)})
    assert one(reals(3, 4)).shape == (3, 4)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([3, "8"], "expected a whole number, got '8'"),
        ([True, 8], "expected a whole number, got True"),
        ("38", "expected a size or several, got '38'"),
        (None, "expected a size or several, got None"),
        ([], "no size is given"),
        ([0, 8], "=0: expected a whole number of at least 1, below 2"),
    ],
)
def test_sizes_that_are_none(sizes: Any, said: str) -> None:
    with pytest.raises((SpecError, TypeError), match=f"^dims: 'rows'(: )?{said}"):
        compile_sizes(LAYERS, {"rows": sizes}, "estimate")


def test_devices_have_no_ranges() -> None:
    said = "^device opencl:0: its code is of one size; list sizes in dims$"
    with pytest.raises(SpecError, match=said):
        compile_sizes(LAYERS, {"rows": range(3, 9)}, "estimate", device="opencl:0")


@pytest.mark.exhaustive
def test_entries_outlive_the_others() -> None:
    entry = compile_rows(None).entry(rows=3)
    gc.collect()
    assert entry(reals(3, 24)).shape == (3, 16)


@pytest.fixture
def opencl() -> str:
    with at_hand("opencl:0") as name:
        return backend_named(name).name
