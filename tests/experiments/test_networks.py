"""The networks that are timed beside other libraries: they can be read, and names are checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from polysci.graph.operators.lower import lower
from polysci.network.prepare import graph_of
from tests.support.scripts import run_script

FOLDER = Path(__file__).parents[2] / "experiments"


@pytest.fixture(name="models")
def fixture_models(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    monkeypatch.syspath_prepend(FOLDER)
    import image_models

    return image_models.MODELS


@pytest.mark.parametrize(
    ("name", "layers", "shape"),
    [
        ("espcn", 3, (1, 1, 672, 672)),
        ("mobilenet_v3_small", 54, (1, 1000)),
        ("yolo", 64, (1, 84, 2100)),
    ],
)
def test_networks_made_here(
    models: Mapping[str, Any], name: str, layers: int, shape: tuple[int, ...]
) -> None:
    program = lower(graph_of(models[name]()))
    assert len(program.layers()) == layers
    assert program.values[program.outputs[0]].shape == shape


def test_random_weights_instead_of_one_value(models: Mapping[str, Any]) -> None:
    model = models["squeezenet"]()
    onnx.checker.check_model(model)
    weights = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    assert not weights.keys() & {item.name for item in model.graph.input}
    assert not any(node.op_type == "ConstantOfShape" for node in model.graph.node)
    filters = [weights[node.input[1]] for node in model.graph.node if node.op_type == "Conv"]
    for w in filters:
        assert abs(np.std(w) / np.sqrt(2 * len(w) / w.size) - 1) < 0.1


def test_a_network_that_is_none() -> None:
    ran = run_script(FOLDER / "networks.py", "lenet")
    assert ran.returncode == 2 and "network 'lenet': expected one of bvlc_alexnet" in ran.stderr


def test_what_times_webassembly_names_what_lacks(tmp_path: Path) -> None:
    for words, reason in (
        (["no_such"], "no_such: no network of this script"),
        (["yolo"], "has no node_modules/onnxruntime-web"),
    ):
        told = run_script(FOLDER / "web.py", *words, "--npm", tmp_path, "--output", tmp_path)
        assert told.returncode == 2 and reason in told.stderr, told.stderr
