"""Lists of layers as PyTorch's modules, timed beside ours."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from polysci import compile_network, layers
from polysci.errors import UnsupportedError
from polysci.frontends.layers.model import build_model
from polysci.peers.networks.service import TimingRequest
from polysci.peers.networks.torch_modules import TorchModules, as_module
from tests.support.command import done, polysci

torch_only = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)
MODELS = {
    "images": (
        [
            layers.Conv2d(3, 8, 3, padding=1, bias=False), layers.BatchNorm2d(8), layers.ReLU(),
            layers.Residual(
                [layers.Conv2d(8, 16, 3, stride=2, padding=1), layers.GELU("tanh")],
                [layers.Conv2d(8, 16, 1, stride=2)],
            ),
            layers.MaxPool2d(2), layers.Flatten(), layers.Linear(64, 10), layers.Softmax(),
        ],
        (2, 3, 8, 8),
    ),
    "sequences": (
        [layers.LSTM(5, 6, num_layers=2, bidirectional=True), layers.GRU(12, 7, last=True)],
        (4, 3, 5),
    ),
    "functions": (
        [layers.Linear(6, 9), layers.SiLU(), layers.LayerNorm(9), layers.ELU(0.5), layers.Mish()],
        (2, 6),
    ),
}  # fmt: skip


@torch_only
@pytest.mark.parametrize("name", MODELS)
def test_modules_compute_what_layers_do(name: str) -> None:
    import torch

    parts, shape = MODELS[name]
    model = build_model(parts, shape, seed=3)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    network = compile_network(model, "estimate")
    with torch.inference_mode():
        expected = as_module(torch, parts, model).eval()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(network(x), expected, rtol=1e-4, atol=1e-5)


@torch_only
@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["mlp:4x16x24x8 act=gelu", "lstm:T3xN2xC5xK6 dirs=2", "gru:T3xN2xC5xK6 bwd"]
)
def test_words_are_compared(words: str) -> None:
    options = ("--compare", "torch.nn", "--level", "estimate", "--rounds", "9", "--threads", "1")
    summary = json.loads(done("compile", words, *options, "--json").splitlines()[-1])
    told = json.dumps(summary)
    ways = ("eager", "compiled", "scripted")  # the fastest is told of
    assert '"torch.nn"' in told and any(way in told for way in ways)
    assert summary["max_error"] < 1e-4


def test_files_are_for_other_peers() -> None:
    with pytest.raises(UnsupportedError, match="and no ONNX files"):
        TorchModules().ways(None, TimingRequest("model.onnx", {}, {}, 1, "f32"))
    ran = polysci("compile", "mlp:4x8x8", "--compare", "openvino")
    assert ran.returncode == 2 and "--compare openvino: this model is for torch.nn" in ran.stderr
    ran = polysci("compile", "model.onnx", "--compare", "torch.nn")
    assert ran.returncode == 2 and "is for onnxruntime and openvino" in ran.stderr


@pytest.mark.exhaustive
def test_torch_is_imported_late() -> None:
    code = "import polysci.peers.networks.torch_modules, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
