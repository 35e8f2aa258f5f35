"""PyTorch as a peer: what it computes, by which calls."""

import importlib.util
import json
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from polysci.errors import CheckError, UnsupportedError
from polysci.numerics.scalar_functions import ACTIVATIONS
from polysci.peers import PEERS
from polysci.peers.example_inputs import example_inputs
from polysci.peers.process import LayerRival
from polysci.peers.pytorch import service
from polysci.peers.pytorch.service import PyTorch
from polysci.target.machine import Machine
from tests.peers.test_peers import FLOATS, SHAPES, WHOLE

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("shape", SHAPES)
def test_pytorch_computes_it(dtype: str, layout: str, shape: str) -> None:
    peer = PyTorch()
    answer = peer.prepare(str(SHAPES[shape]), layout, dtype, 1, 3)
    assert answer["paths"]
    chosen = peer.load(1e-5)
    assert chosen["path"] in answer["paths"] and peer.sample(0.0)["seconds"] > 0
    for name in answer["paths"]:
        assert ("padded ahead" in name) is (shape == "lopsided")


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("word", ["bwd_d", "bwd_w"])
@pytest.mark.parametrize("shape", SHAPES)
def test_pytorch_computes_gradients(word: str, layout: str, shape: str) -> None:
    peer, text = PyTorch(), f"{word} {SHAPES[shape]}"
    if (word, shape) == ("bwd_d", "lopsided"):
        with pytest.raises(UnsupportedError, match="alike on both sides"):
            peer.prepare(text, layout, "f32", 1, 3)
        return
    answer = peer.prepare(text, layout, "f32", 1, 3)
    assert any("convolution_backward" in name for name in answer["paths"])
    assert (word == "bwd_d") is any("transpose_pointwise" in name for name in answer["paths"])
    assert peer.load(1e-5)["path"] in answer["paths"] and peer.sample(0.0)["seconds"] > 0


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("words", ["ic16id5ih6iw7oc32kd3kh3kw3pd1ph1pw1", "g4ic16id7oc32od3kd3sd2"])
def test_pytorch_computes_three_axes(words: str, layout: str) -> None:
    for word in ("", "bwd_d ", "bwd_w "):
        if word == "bwd_d " and "sd2" in words:  # the last row of x is not read
            continue
        answer = PyTorch().prepare(f"{word}conv3d mb1{words}", layout, "f32", 1, 3)
        assert answer["paths"]


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_pytorch_computes_activations(name: str, layout: str) -> None:
    answer = PyTorch().prepare(f"mb1ic16ih6oc32kh3ph1 act={name}", layout, "f32", 1, 3)
    assert any("pointwise" in path for path in answer["paths"]) or name in ("softplus", "mish")
    assert PyTorch().prepare(f"mm:9x48x36 tb b=constant act={name}", "", "f32", 1, 3)["paths"]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("mm:24x47x65", ["eager matmul"]),
        ("mm:3:24x17x33 b=constant", ["eager matmul"]),
        ("mm:9x48x36 a=constant", ["eager matmul"]),
        ("mm:9x48x36 b=constant", ["eager", "mkldnn._linear", "oneDNN Graph", "torch.compile"]),
    ],
)
def test_pytorch_multiplies_matrices(dtype: str, text: str, ways: list[str]) -> None:
    peer = PyTorch()
    answer = peer.prepare(text, "", dtype, 1, 3)
    for way in ways:
        assert any(name.startswith(way) for name in answer["paths"]) or dtype != "f32", answer
    assert peer.load(1e-5, 1 << 16)["path"] in answer["paths"]
    assert peer.sample(0.0, cold=True)["seconds"] > 0


def test_pytorch_lacks_integer_products() -> None:
    with pytest.raises(UnsupportedError, match="expected a convolution"):
        PyTorch().prepare("mm:9x48x36 b=constant", "", "u8:s8:s32", 1, 3)


@pytest.mark.parametrize(("dtype", "change"), [("f32", 9), ("bf16", 9), ("u8:s8:u8", 2)])
def test_pytorch_is_found_wrong(monkeypatch: pytest.MonkeyPatch, dtype: str, change: int) -> None:
    def falsified(*args: Any) -> Any:
        found = example_inputs(*args)
        found.expected[0, 0, 0, np.argmax(found.expected[0, 0, 0] > 1)] += change
        return found

    monkeypatch.setattr(service, "example_inputs", falsified)
    with pytest.raises(CheckError, match="differs from the reference"):
        PyTorch().prepare(str(SHAPES["dense"]), "nhwc", dtype, 1, 3)


@pytest.mark.parametrize(
    ("dtype", "convolution"),
    [("bf16", "src:bf16.* wei:bf16.* dst:bf16"), ("int8", "src:u8.* wei:s8.* dst:u8")],
)
def test_onednn_computes_in_the_precision(
    monkeypatch: pytest.MonkeyPatch, dtype: str, convolution: str
) -> None:
    monkeypatch.setenv("ONEDNN_VERBOSE", "1")
    words = {"problem": str(SHAPES["dense"]), "layout": "nhwc", "dtype": dtype}
    question = json.dumps({"op": "prepare", "threads": 1, "seed": 0, **words})
    ran = subprocess.run(
        [sys.executable, "-m", "polysci.peers", "torch"],
        input=question, capture_output=True, text=True,
    )  # fmt: skip
    assert json.loads(ran.stdout)["paths"], ran.stderr
    if dtype == "bf16" and re.search(r"cpu,isa:Intel AVX2$", ran.stderr, re.MULTILINE):
        convolution = "src:f32.* wei:f32.* dst:f32"  # oneDNN has none of bf16 there
    assert re.search(f",convolution,.*{convolution}", ran.stderr), ran.stderr[-2000:]


def test_a_rival() -> None:
    with LayerRival(PEERS["torch"]) as rival:
        path, version, paths = rival.prepare(SHAPES["dense"])
        assert min(paths, key=paths.__getitem__) == path and version.split(".")[0].isdigit()
        assert rival.sample().seconds > 0


@pytest.mark.slow
def test_bench(machine: Machine) -> None:
    command = [sys.executable, "-m", "polysci", "bench", "mb1ic16ih8oc16oh8kh3ph1"]
    ran = subprocess.run(
        [*command, "--against", "torch", "--level", "estimate", "--rounds", "9", "--json"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    row, summary = map(json.loads, ran.stdout.splitlines())
    assert row["dtype"] == "f32" and row["peak_unit"] == "FMA" and row["ratio"] > 0
    assert summary["summary"]["layers"] == 1 and summary["summary"]["failed"] == 0
