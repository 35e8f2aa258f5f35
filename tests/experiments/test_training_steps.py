"""Experiments beside PyTorch: models and programs are those that they name; names are checked."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from math import prod
from pathlib import Path
from string import ascii_letters

import pytest

from polysci.frontends.layers.model import build_model
from polysci.frontends.notation.elaborate import elaborate
from polysci.frontends.notation.ranges import infer_shapes
from polysci.notation import parse
from tests.support.scripts import run_script

FOLDER = Path(__file__).parents[2] / "experiments"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "parameters", "result"),
    [
        ("mlp", 669_706, (128, 10)),
        ("lstm", 528_906, (32, 10)),
        ("resnet18", 11_689_512, (8, 1000)),  # as torchvision counts them
        ("resnet50", 25_557_032, (8, 1000)),
    ],
)
def test_models(
    name: str, parameters: int, result: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    import training_steps

    layers, shape, _ = training_steps.MODELS[name]()
    model = build_model(layers, shape)
    assert sum(prod(value.shape) for value in model.parameters.values()) == parameters
    assert model.graph.outputs[0].shape == result


def test_models_are_named() -> None:
    ran = run_script(FOLDER / "training_steps.py", "resnet")
    assert ran.returncode == 2 and "expected one of mlp, lstm, resnet18" in ran.stderr


@pytest.mark.exhaustive
def test_attention_of_a_few_keys(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ("16", "--rounds", "1", "--output", str(tmp_path))
    ran = run_script(FOLDER / "attention.py", *words)
    assert ran.returncode == 0, ran.stderr
    rows = (tmp_path / "attention.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "keys,causal,threads,polysci ms,PyTorch ms,ratio" and len(rows) == 3


@pytest.mark.exhaustive
def test_a_decoder_of_a_gguf_file(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    words = ("--quick", "--format", "Q4_0", "--rounds", "1", "--output", str(tmp_path))
    ran = run_script(FOLDER / "language_models.py", *words)
    assert ran.returncode == 0, ran.stderr
    rows = (tmp_path / "language_models-quick.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0].startswith("model,task,threads,polysci /s,polysci a8 /s,reads GB/s")
    assert [row.split(",")[:3] for row in rows[1:]] == [
        ["small-Q4_0", "write", "1"], ["small-Q4_0", "read", "1"]
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_a_library_for_all_lengths(tmp_path: Path) -> None:
    for name in ("torch", "onnxruntime", "onnxscript"):
        pytest.importorskip(name)
    ran = run_script(FOLDER / "any_size.py", "3", "--rounds", "1", "--output", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    rows = (tmp_path / "any_size.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "tokens,threads,all ms,alone ms,onnxruntime ms,alone,ratio"
    assert rows[1].startswith("3,1,") and len(rows) == 2


@pytest.mark.exhaustive
def test_programs_fit_their_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run_script(FOLDER / "notation.py", "wavenet")
    assert ran.returncode == 2 and "expected one of tmm 128x32x256, " in ran.stderr
    spec = spec_from_file_location("programs", FOLDER / "notation.py")
    assert spec and spec.loader
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setitem(sys.modules, "programs", module := module_from_spec(spec))
    spec.loader.exec_module(module)
    for program in module.PROGRAMS.values():
        if not program.text:
            assert len(program.extents) == len({*program.equation} & {*ascii_letters})
            continue
        whole = elaborate(parse(program.text))
        inference = infer_shapes(whole, program.extents)
        assert all(inference.shape(name) for name in whole.comprehension.outputs)
