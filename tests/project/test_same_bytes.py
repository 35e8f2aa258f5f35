"""Artefacts are the same bytes whoever writes them: what memory held before is in none of them."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from polysci.target.host import detect
from tests.support.compiling import saved
from tests.support.onnxmodels import model, node, reals
from tests.support.rates import assume_all_rates

# The C library fills memory with a byte that follows from MALLOC_PERTURB_ when it hands it out and
# when it takes it back.
PROCESSES = [
    {"MALLOC_PERTURB_": "85", "PYTHONHASHSEED": "1"},
    {"MALLOC_PERTURB_": "170", "PYTHONHASHSEED": "2"},
]
SEVERAL = ",".join(isa.name for isa in detect().allowed[-1:-3:-1])
LAYERS = ["mb1ic5ih6oc17kh3ph1", "mm:3:4x9x35 b=constant"]
NETWORKS = {
    "C": [],
    "embedded": ["--embed"],
    "several threads": ["--threads", "pthread:2"],
    "packed ahead": ["--packed-weights"],
    "freestanding": ["--freestanding"],
    "Python": ["--python"],
    "bf16": ["--freestanding", "--dtype", "bf16"],
    "several instruction sets": ["--isas", SEVERAL, "--isa", SEVERAL.split(",")[0]],
}
ESTIMATE = ["--level", "estimate", "--isa", "portable"]
EXPORTS = {
    "words, freestanding": ["compile", "mlp:5x17x33x9 act=silu", *ESTIMATE, "--freestanding"],
    "layers, C": ["export", *LAYERS, *ESTIMATE],
    "layers, int8": ["export", *LAYERS, *ESTIMATE, "--dtype", "int8"],
    "layers, Python": ["export", *LAYERS, *ESTIMATE, "--python"],
    **{
        f"network, {form}": ["compile", "ragged.onnx", *ESTIMATE, "--dim", "n=3", *words]
        for form, words in NETWORKS.items()
    },
    "network, several sizes": ["compile", "ragged.onnx", *ESTIMATE, "--dim", "n=1,3"],
}
COMMAND = "import sys; from polysci.cli import main; sys.exit(main(sys.argv[1:]))"
TRAINING = """
import sys
import numpy as np
from polysci import layers
from polysci.training import Adam, compile_training
from tests.support.flags import QUICK

model = [layers.Linear(5, 17), layers.Tanh(), layers.Linear(17, 3)]
trainer = compile_training(model, (3, 5), level="estimate", isa="portable", flags=QUICK,
                           optimizer=Adam(lr=0.25))
trainer.step(np.ones((3, 5), np.float32), np.array([0, 2, 1]))
trainer.export(sys.argv[-1])
"""


def ragged() -> onnx.ModelProto:
    """Nothing in it fills whole lines: constants, panels of reals, panels of 8 bits, a filter."""
    nodes = [
        node("Gemm", "x w1 b1", "a"), node("Tanh", "a", "t"),
        node("DynamicQuantizeLinear", "t", "q scale zero"),
        node("MatMulInteger", "q w2 zero", "i"), node("Cast", "i", "f", to=1),
        node("Mul", "f scale", "g"), node("Add", "g b2", "h"),
        node("Reshape", "h shape", "image"), node("Conv", "image w3", "c", pads=[1, 1, 1, 1]),
        node("ConvTranspose", "c w4", "y", strides=[2, 2]),
    ]  # fmt: skip
    weights = {
        "w1": reals(5, 17), "b1": reals(17), "b2": reals(27), "w3": reals(7, 3, 3, 3),
        "w2": np.random.default_rng(0).integers(-128, 128, (17, 27)).astype(np.int8),
        "w4": reals(7, 2, 3, 3), "shape": np.array([-1, 3, 3, 3]),
    }  # fmt: skip
    return model(nodes, {"x": ("n", 5)}, {"y": None}, weights)


def artefacts(folder: Path, words: Sequence[str], env: dict[str, str]) -> dict[str, bytes]:
    """What a process of its own writes."""
    folder.mkdir()
    saved(ragged(), folder / "ragged.onnx")
    path = os.pathsep.join(map(str, (Path(__file__).parents[2], *sys.path)))
    done = subprocess.run(
        [sys.executable, "-c", *words, "made"], cwd=folder, capture_output=True, text=True,
        timeout=300, check=False, env={**os.environ, "PYTHONPATH": path, **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    files = [file for file in sorted((folder / "made").rglob("*")) if file.is_file()]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.fixture(params=[*EXPORTS, "training"])
def words(request: pytest.FixtureRequest) -> list[str]:
    """The Python of a process and its arguments, but for the folder, which comes last."""
    if request.param == "training":
        return [TRAINING]
    return [COMMAND, *EXPORTS[request.param], "-o"]


@pytest.mark.exhaustive
def test_two_processes_write_the_same_bytes(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for number, env in enumerate(PROCESSES):
        with monkeypatch.context() as patch:  # what one keeps helps no other
            assume_all_rates(tmp_path / f"cache{number}", patch)
            made.append(artefacts(tmp_path / f"process{number}", words, env))
    first, second = made
    assert first and [*first] == [*second]
    assert not [name for name, content in first.items() if content != second[name]]
