"""Models that are not files, and networks that travel as pickles."""

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import polysci
from polysci.frontends.onnx import importer
from polysci.network.compiled import Network
from polysci.target.host import detect
from polysci.target.isas import isa_named
from tests.support.flags import QUICK
from tests.support.onnxmodels import model, node, reals

MODEL = model(
    [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("MaxPool", "r", "y", kernel_shape=[2, 2], strides=[2, 2]),
    ],
    {"x": [1, 3, 6, 6]},
    {"y": None},
    {"w": reals(8, 3, 3, 3)},
)
X = reals(1, 3, 6, 6, seed=1)


def compile_small(source: Any) -> Network:
    return polysci.compile_network(source, "estimate", isa="portable", flags=QUICK)


@pytest.fixture(scope="module")
def network() -> Network:
    return compile_small(MODEL)


# ------------------------------------------------------------------------------ where models are


def test_a_model_its_bytes_and_its_file_give_the_same(network: Network, tmp_path: Path) -> None:
    before = MODEL.SerializeToString()
    path = tmp_path / "small.onnx"
    path.write_bytes(before)
    for source, name in ((before, "network"), (path, "small"), (str(path), "small")):
        other = compile_small(source)
        assert other.name == name and np.array_equal(other(X), network(X))
    assert network.name == "network" and MODEL.SerializeToString() == before


@pytest.mark.exhaustive
def test_its_name_can_be_chosen() -> None:
    net = polysci.compile_network(MODEL, "estimate", isa="portable", name="mine", flags=QUICK)
    assert net.name == "mine"


@pytest.mark.parametrize("source", [5, None, ["x.onnx"], MODEL.graph])
def test_what_is_no_model_is_refused(source: object) -> None:
    told = f"model: expected a path, an onnx.ModelProto or its bytes, got {type(source).__name__}"
    with pytest.raises(TypeError, match=told):
        compile_small(source)


@pytest.mark.parametrize("source", [b"", b"no model", MODEL.SerializeToString()[:-9]])
def test_broken_bytes_are_refused(source: bytes) -> None:
    with pytest.raises(polysci.errors.SpecError, match="model in memory: no ONNX model"):
        importer.load(source)


def test_external_data_needs_a_path() -> None:
    outside = onnx.ModelProto()
    outside.CopyFrom(MODEL)
    (weights,) = outside.graph.initializer
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="weights.bin")
    with pytest.raises(polysci.errors.SpecError, match="'w' lies in another file; give the path"):
        importer.load(outside, external=True)


# --------------------------------------------------------------------------------------- pickles


@pytest.mark.exhaustive
def test_a_pickled_network_computes_the_same(network: Network) -> None:
    data = pickle.dumps(network)
    again = pickle.loads(data)
    assert b"\x7fELF" not in data
    assert np.array_equal(again(X), network(X)) and repr(again) == repr(network)
    assert again.code.files == network.code.files and again.schedules == network.schedules
    assert again.options == network.options and again.seconds == network.seconds
    assert len(again.report().rows) == len(network.report().rows)


def test_another_version_is_refused(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("polysci.network.compiled.__version__", "0.0.1")
        data = pickle.dumps(network)
    told = re.escape("pickled network 'network': written by polysci 0.0.1, and this is ")
    with pytest.raises(polysci.errors.SpecError, match=told):
        pickle.loads(data)


def test_a_cpu_without_the_instruction_set_is_told(network: Network) -> None:
    foreign = "avx512" if detect().has("asimd") else "neon"
    target = replace(network.options.target, isa=isa_named(foreign))
    data = pickle.dumps(replace(network, options=replace(network.options, target=target)))
    told = f"pickled network 'network' needs {foreign}, which this CPU does not run; compile it"
    with pytest.raises(polysci.errors.UnsupportedError, match=told):
        pickle.loads(data)
