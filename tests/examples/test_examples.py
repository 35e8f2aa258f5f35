"""The examples, as people start them; each checks its own result."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.support.rates import assume_all_rates
from tests.support.scripts import STRICT, run_script

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {
    "layer.py": "largest difference from NumPy",
    "onnx_network.py": "whole network:",
    "own_nest.py": "equal to einsum",
    "own_ranker.py": "Kendall's tau",
}


@pytest.fixture(autouse=True)
def assumed_rates(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assume_all_rates(tmp_path_factory.mktemp("examples") / "cache", monkeypatch)


def run(script: str, *words: object) -> str:
    """What an example prints; it must succeed without a warning."""
    done = run_script(EXAMPLES / script, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.sampled
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_checks_its_own_result(script: str) -> None:
    words = ["estimate"] if "[LEVEL]" in (EXAMPLES / script).read_text() else []
    assert SCRIPTS[script] in run(script, *words)


@pytest.mark.exhaustive
def test_a_language_model_writes_in_python_and_in_c(tmp_path: Path) -> None:
    out = tmp_path / "writer"
    assert "between learning and writing" in run("language_model.py", 3, out)
    compiler = shlex.split(os.environ.get("CC", "cc"))
    subprocess.run(["make", "-s", "libwriter.a", "CFLAGS=-O1"], cwd=out, check=True)
    strict = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "write.c", "libwriter.a", "-lm"]
    subprocess.run([*compiler, *strict, "-o", "write"], cwd=out, check=True)
    done = subprocess.run(["./write", "The "], cwd=out, capture_output=True, check=True)
    assert done.stdout.startswith(b"The ") and len(done.stdout) == 128 + 2  # the last is not read
    done = subprocess.run(["./write", ""], cwd=out, capture_output=True, check=False)
    assert done.returncode == 1 and b"the prompt is empty" in done.stdout


@pytest.mark.exhaustive
def test_the_microcontroller_needs_nothing_but_a_compiler(tmp_path: Path) -> None:
    build = [sys.executable, *STRICT, EXAMPLES / "microcontroller" / "build.py", tmp_path]
    built = subprocess.run(build, capture_output=True, text=True, check=False)
    assert built.returncode == 0 and "0 of 512 results are wrong" in built.stdout, built.stderr
    compiler = shlex.split(os.environ.get("CC", "cc"))
    strict = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-nostdlib"]
    link = [*compiler, *strict, "-shared", "-fPIC", "-Wl,--no-undefined", "net.c", "-o", "net.so"]
    done = subprocess.run(link, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # not even memcpy is called
    sizes = re.findall(r"#define (net_\w+_SIZE) ", (tmp_path / "net.h").read_text())
    main = (tmp_path / "main.c").read_text()
    assert len(sizes) == 10 and all(size in main for size in sizes)


@pytest.mark.exhaustive
def test_resnet50_is_written_as_a_model(tmp_path: Path) -> None:
    """25.5 million weights without batch normalisation and biases, and 53 convolutions."""
    file = tmp_path / "resnet50.onnx"
    assert f"written: {file}" in run("resnet50.py", file)
    kinds = [node.op_type for node in onnx.load(file, load_external_data=False).graph.node]
    assert (kinds.count("Conv"), kinds.count("Add"), kinds[-1]) == (53, 16, "Gemm")
    assert file.stat().st_size == pytest.approx(4 * 25.5e6, rel=0.01)


@pytest.mark.exhaustive
def test_a_model_learns() -> None:
    printed = run("train.py", "mlp", 60)
    assert re.search(r"mlp: loss 2\.\d+, after 60 steps 1\.", printed), printed


@pytest.mark.exhaustive
def test_two_processes_learn_as_one_does() -> None:
    pytest.importorskip("torch")
    script = [sys.executable, "-W", "ignore", str(EXAMPLES / "two_processes.py")]
    root = str(EXAMPLES.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        script, capture_output=True, text=True, check=False, timeout=600,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    losses = [float(number) for number in re.findall(r"\d\.\d{3}", done.stdout)]
    difference = float(done.stdout.split()[-1])
    assert losses[1] < losses[0] and difference < 1e-5


def test_every_example_is_listed_and_run() -> None:
    files = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__"}
    others = {"language_model.py", "write.c", "resnet50.py", "train.py", "two_processes.py"}
    assert files == {*SCRIPTS, *others, "browser", "microcontroller"}
    text = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}" in text for name in files)
