"""Large initialisers of a file, which are read past the parser: as the parser reads them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest

from polysci.errors import PolysciError
from polysci.frontends.onnx import large_tensors
from polysci.frontends.onnx.importer import load
from polysci.frontends.onnx.model_file import read, read_apart
from polysci.graph.graph import Graph
from tests.support.onnxmodels import model, node, reals

WEIGHTS = {
    "a": reals(4, 8),
    "small": reals(2),
    "b": np.arange(40, dtype=np.int64),
    "c": reals(30).astype(np.float64),
    "h": reals(40).astype(np.float16),
    "i": np.arange(-20, 20, dtype=np.int8),
    "empty": reals(0),
}


@pytest.fixture(autouse=True)
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of some numbers are large."""
    monkeypatch.setattr(large_tensors, "LEAST", 32)


def whole(name: str = "a") -> onnx.ModelProto:
    made = model([node("Identity", name, "y"), node("MatMul", "x a", "z")], {"x": (2, 4)},
                 {"y": None, "z": None}, WEIGHTS)  # fmt: skip
    made.graph.doc_string = "text " * 20
    return made


def is_same(graph: Graph, other: Graph) -> bool:
    """Tell whether graphs are the same, and so are the bits of their constants."""
    pairs = [(graph.constants[name], array) for name, array in other.constants.items()]
    return (
        (graph.nodes, graph.tensors, [*graph.constants])
        == (other.nodes, other.tensors, [*other.constants])
        and all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)
    )  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_file_has_the_graph_of_its_bytes(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(whole(name).SerializeToString())
    parsed, arrays = read_apart(path)
    assert [*arrays] == ["a", "b", "c", "i"]
    assert {tensor.name: len(tensor.raw_data) for tensor in parsed.graph.initializer} == {
        "a": 0, "small": 8, "b": 0, "c": 0, "h": 80, "i": 0, "empty": 0,
    }  # fmt: skip
    assert all(array.ctypes.data % 64 == 0 for array in arrays.values())
    assert read(path) == whole(name)
    assert is_same(load(path), load(whole(name)))


def test_large_tensors_of_other_files(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(whole(), path, save_as_external_data=True, location="w", size_threshold=0)
    parsed, arrays = read_apart(path, external=True)
    assert not any(tensor.raw_data for tensor in parsed.graph.initializer if tensor.name in arrays)
    assert is_same(load(path, external=True), load(whole()))


def test_a_pipe_has_the_graph_of_its_bytes() -> None:
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as file:
            file.write(whole().SerializeToString())

    thread = threading.Thread(target=write)
    thread.start()
    assert is_same(load(f"/dev/fd/{reading}"), load(whole()))
    thread.join()
    os.close(reading)


def outcome(source: Path | bytes) -> Graph | str:
    try:
        return load(source)
    except PolysciError as error:
        return str(error).replace(str(source), "model in memory")


def test_damaged_files_are_what_their_bytes_are(tmp_path: Path) -> None:
    """Of every other length, with tensors of the wrong size, with fields that occur twice."""
    path, good = tmp_path / "m.onnx", whole()
    wrong, twice = whole(), good.SerializeToString()
    wrong.graph.initializer[0].dims[0] = 5
    twice += onnx.ModelProto(graph=onnx.GraphProto(initializer=[
        onnx.numpy_helper.from_array(reals(40), "late")
    ])).SerializeToString()  # fmt: skip
    data = good.SerializeToString()
    at = data.index(good.graph.initializer[0].SerializeToString())
    cases = [data[:size] for size in range(1, len(data), 7)]
    cases += [data[:at] + bytes([data[at] | 7]) + data[at + 1 :], wrong.SerializeToString(), twice]
    for case in cases:
        path.write_bytes(case)
        actual, expected = outcome(path), outcome(case)
        if isinstance(expected, Graph):
            assert isinstance(actual, Graph) and is_same(actual, expected)
        else:
            assert actual == expected
