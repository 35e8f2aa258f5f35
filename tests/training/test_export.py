"""A step of training as C: its self-test, its example, and a program of one's own around it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from polysci import layers
from polysci.errors import SpecError
from polysci.training import SGD, Adam, Trainer, compile_training
from tests.support.exported import cmake_built, cmake_installed
from tests.support.flags import QUICK

STRICT = "CFLAGS=-O1 -Wall -Wextra -Werror -Wconversion"
MLP = [layers.Linear(6, 8), layers.Tanh(), layers.Linear(8, 3)]
CNN = [
    layers.Conv2d(1, 4, 3, padding=1), layers.BatchNorm2d(4), layers.ReLU(), layers.MaxPool2d(2),
    layers.Dropout(0.3), layers.Conv2d(4, 6, 3, stride=2), layers.AdaptiveAvgPool2d(1),
    layers.Flatten(), layers.Linear(6, 3),
]  # fmt: skip
X = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
CLASSES = np.array([0, 2, 1, 1, 0])


def _trainer(source: object = MLP, shape: tuple[int, ...] = (5, 6), **options: object) -> Trainer:
    words = {"level": "estimate", "isa": "portable", "flags": QUICK, **options}
    return compile_training(source, shape, **words)  # type: ignore[arg-type]


def _run(folder: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("source", "shape", "options"),
    [
        (MLP, (5, 6), {"optimizer": Adam(lr=0.25), "threads": 2}),
        (MLP, (5, 6), {"loss": "mse", "clip_norm": 0.5}),
        (CNN, (3, 1, 10, 10), {"optimizer": SGD(lr=0.1, momentum=0.9)}),
        ([layers.LSTM(4, 5, last=True), layers.Linear(5, 2)], (3, 2, 4), {"dtype": "bf16"}),
    ],
    ids=["mlp", "mse", "cnn", "lstm-bf16"],
)
def test_an_export_checks_itself(
    source: object, shape: tuple[int, ...], options: dict[str, object], tmp_path: Path
) -> None:
    trainer = _trainer(source, shape, name="net", **options)
    before = {name: value.copy() for name, value in trainer.parameters.items()}
    trainer.export(tmp_path)
    for name, value in trainer.parameters.items():
        assert np.array_equal(value, before[name]), "the trainer learned from the self-test"
    code, told = _run(tmp_path, "make", STRICT, "all", "check", "example")
    assert code == 0, told
    assert ", 0 failed" in told and "step 2: loss" in told
    code, told = _run(tmp_path, "./example", "4")
    assert code == 0 and told.count("loss") == 4 and "norm of y" in told
    readme = (tmp_path / "README.md").read_text()
    assert "`net_step`, a step of training" in readme and "| a run replaces step |" in readme
    trainer.export(tmp_path)  # over what building left behind


@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_cmake_installs_the_interface_and_the_first_state(tmp_path: Path) -> None:
    out, build = tmp_path / "net", tmp_path / "build"
    _trainer(name="net").export(out)
    cmake_built(out, build, "-DCMAKE_BUILD_TYPE=Debug")
    code, told = _run(tmp_path, "ctest", "--test-dir", str(build))
    assert code == 0, told
    files = cmake_installed(build, tmp_path / "own")
    assert {"include/net.h", "include/net_step.h", "share/net/net.state"} < files
    text = (tmp_path / "own/lib/cmake/net/netConfig.cmake").read_text()
    assert "POLYSCI_STATE" in text and "POLYSCI_WEIGHTS" in text


@pytest.mark.exhaustive
@pytest.mark.parametrize("file", ["net.state", "selftest.data"])
def test_the_self_test_notices_other_numbers(file: str, tmp_path: Path) -> None:
    _trainer(name="net").export(tmp_path)
    data = bytearray((tmp_path / file).read_bytes())
    data[64 + 3] ^= 0x41  # the sign and the exponent of a number of the parameters, or of x
    (tmp_path / file).write_bytes(data)
    code, told = _run(tmp_path, "make", STRICT, "check")
    assert code != 0 and "FAILED a loss differs from the reference" in told
    (tmp_path / file).write_bytes(data[:-1])
    code, told = _run(tmp_path, "make", STRICT, "check")
    assert code != 0 and "FAILED: the files of the self-test are not whole" in told


@pytest.mark.exhaustive
def test_where_an_export_goes(tmp_path: Path) -> None:
    trainer = _trainer()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SpecError, match=r"holds other files \('notes.txt'\)"):
        trainer.export(tmp_path)
    with pytest.raises(TypeError, match="out: expected"):
        trainer.export(3)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


MAIN = r"""
#include "model_step.h"
#include <stdio.h>
#include <stdlib.h>
static void take(const char *path, void *to, size_t bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file || fread(to, 1, bytes, file) != bytes)
        exit(2);
    fclose(file);
}
int main(void)
{
    static float x[MODEL_X0_COUNT];
    static int64_t target[MODEL_X1_COUNT];
    void *state = aligned_alloc(64, MODEL_STATE_SIZE);
    take("model.state", state, MODEL_STATE_SIZE);
    take("x", x, sizeof x);
    take("target", target, sizeof target);
    model_model *model = model_load("model.weights", 0);
    model_context *context = model ? model_new(model) : 0;
    if (!context)
        return 3;
    for (int i = 0; i < 3; ++i)
        printf("%a\n", (double)model_step(context, state, x, target, 0.25f));
    model_free(context);
    model_unload(model);
    free(state);
    return 0;
}
"""


@pytest.mark.exhaustive
def test_an_exported_step_goes_on_where_python_is(tmp_path: Path) -> None:
    trainer = _trainer(optimizer=Adam(lr=0.25))
    trainer.step(X, CLASSES)
    trainer.export(tmp_path)
    (tmp_path / "main.c").write_text(MAIN)
    (tmp_path / "x").write_bytes(X.tobytes())
    (tmp_path / "target").write_bytes(CLASSES.tobytes())
    warned = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror"]
    link = [*warned, "-o", "main", "main.c", "libmodel.a", "-lm"]
    for words in (["make", "CFLAGS=-O1", "libmodel.a"], link):
        code, told = _run(tmp_path, *words)
        assert code == 0, told
    done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=False)
    losses = [float.fromhex(line) for line in done.stdout.split()]
    assert losses == pytest.approx([trainer.step(X, CLASSES) for _ in range(3)], rel=1e-6)
    assert "(0.weight.exp_avg)" in (tmp_path / "model_step.h").read_text()
