"""``polysci compile``: tables, JSON, explanations, comparisons and what it refuses."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import polysci
from polysci.cli import main
from polysci.network import debug
from tests.support.command import process, started
from tests.support.compiling import FAST, compiled, saved, tiny
from tests.support.onnxmodels import model, node, reals

STAGES = ("copy", "conv", "conv", "max_pool", "global_average_pool", "gemm")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tiny(batch="N"), tmp_path_factory.mktemp("models") / "tiny.onnx")


def test_a_tuner_is_for_what_runs_here(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("POLYSCI_ISA", raising=False)  # a cap refuses instruction sets above it
    words = ["--isas", "avx2,portable", "-o", str(tmp_path / "out"), "--tuner", "genetic"]
    assert main(["compile", str(path), "--dim", "N=1", *words]) == 2
    assert "--tuner: it times the whole network, which runs here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_tuner_that_cannot_be_imported_is_told_first(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    for words in (["compile", str(path), "--dim", "N=1"], ["optimize", "mm:8x8x8"]):
        assert main([*words, "--tuner", "bayesian"]) == 1
        told = capsys.readouterr().err
        assert told.startswith("polysci: error: tuner 'bayesian': optuna cannot be imported")


@pytest.mark.exhaustive
def test_a_table_of_stages(path: Path) -> None:
    ran = process("compile", path, *FAST, "--dim", "N=1", "--wide")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert [word for word in lines[0].split() if word.isalpha()] == [
        "group", "schedule", "time", "share", "of", "peak",
    ]  # fmt: skip
    assert len(lines) == 1 + len(STAGES) + 1 + 5 and lines[-6].startswith("(the rest of a run)")
    assert all(line.startswith(name) for line, name in zip(lines[1:], STAGES, strict=False))
    assert "conv Conv of c + add Add of s + relu Relu of t" in lines[3]
    assert lines[-5].startswith("whole network: ") and lines[-3].startswith("% of peak: ")
    assert lines[-2].endswith("not measured at level estimate")
    assert "shared" in lines[-1] and "packed weights" in lines[-1]
    assert ran.stderr.count("\n") == 4 and "[3/3]" in ran.stderr


@pytest.mark.exhaustive
def test_json_and_a_file(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    words = [*FAST, "--dim", "N=1", "--json", "--output", str(out)]
    assert main(["compile", str(path), *words]) == 0
    assert capsys.readouterr().out == ""
    *rows, whole = map(json.loads, out.read_text().splitlines())
    seconds = sum(row["seconds"] for row in rows) + whole["rest_ms"] / 1e3
    assert len(rows) == len(STAGES) and seconds == pytest.approx(whole["latency_ms"] / 1e3)
    assert all(row["share"] == pytest.approx(row["seconds"] / seconds) for row in rows)
    assert whole["call_ms"] > whole["latency_ms"]
    assert all(row["seconds"] > 0 for row in rows)
    assert whole["latency_ms"] > 0 and whole["sum_of_layers_ms"] is None
    assert whole["level"] == "estimate" and whole["threads"] == 1 and whole["dtype"] == "f32"
    assert 0 < whole["arena_bytes"] <= whole["unshared_bytes"] and whole["packed_bytes"] > 0
    assert whole["compile_seconds"] > 0 and "peers" not in whole


def test_explain(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(path), *FAST, "--dim", "N=1", "--explain"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("6 groups\n") and "3 fusions, which save" in said
    assert "considered and rejected" in said and "one reduction inside another" in said
    assert "bytes stay in the L2 cache" in said  # of what might have run by bands of rows
    assert main(["compile", str(path), *FAST, "--dim", "N=1", "--explain", "--json"]) == 0
    *rows, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [row["fused"] for row in rows].count(True) == 3 and len(last["groups"]) == 6


@pytest.mark.exhaustive
def test_show_passes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compile", str(path), *FAST, "--dim", "N=1", "--show"]
    assert main([*words, "passes"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split() == ["pass", "changed", "left", "function"] and len(rows) >= 24
    assert any(row.split()[:3] == ["fuse", "loops", "yes"] for row in rows)
    assert main([*words, "passes:fuse loops"]) == 0
    assert "\n-Loop " in capsys.readouterr().out
    assert main([*words, "stages"]) == 2
    assert "--show stages: expected ir, c, asm, passes, or passes:NAME" in capsys.readouterr().err


def test_explain_takes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [node("Relu", "x", "a"), node("Sigmoid", "a", "y")]
    path = tmp_path / "two.onnx"
    onnx.save(model(nodes, {"x": [1, 3, 4, 4]}, {"y": None}), path)
    assert main(["explain", str(path), "--isa", "portable"]) == 0
    assert capsys.readouterr().out.startswith("1 group\n")
    assert main(["explain", str(path), "--source"]) == 2
    assert "--source: applies to layers only" in capsys.readouterr().err
    assert main(["explain", str(path), str(path)]) == 2
    assert main(["optimize", str(path)]) == 2
    assert f"polysci compile {path}" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.parametrize(("dtype", "bound"), [("f32", "1.00e-04"), ("bf16", "3.00e-02")])
def test_every_tensor_beside_the_reference(
    path: Path, capsys: pytest.CaptureFixture[str], dtype: str, bound: str
) -> None:
    words = [*FAST, "--dim", "N=2", "--debug-layers", "--dtype", dtype]
    assert main(["compile", str(path), *words]) == 0
    said = capsys.readouterr().out
    assert said.count(bound) == 5 and "all 5 tensors are right" in said
    assert main(["compile", str(path), *words[:-3], "--check", *words[-2:]]) == 0
    said = capsys.readouterr().out
    assert said.count(bound) == (0 if dtype == "f32" else 5) and "all 5 tensors are right" in said


@pytest.mark.exhaustive
def test_errors_that_f32_does_not_explain_are_wrong(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = debug.reference.run

    def wrong(graph: object, inputs: object, dtype: str = "float64") -> dict[str, np.ndarray]:
        found = right(graph, inputs, dtype)  # type: ignore[arg-type]
        return found | {"t": found["t"] * (1 + 4e-5)}

    monkeypatch.setattr(debug.reference, "run", wrong)
    words = [*FAST, "--dim", "N=2", "--json"]
    assert main(["compile", str(path), *words, "--debug-layers"]) == 0
    capsys.readouterr()
    assert main(["compile", str(path), *words, "--check"]) == 1
    *rows, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [row["tensor"] for row in rows if row["wrong"]] == ["t"]
    assert all(row["error"] <= row["bound"] for row in rows if not row["wrong"])
    assert last["first_wrong"].startswith("conv Conv of c")


@pytest.mark.exhaustive
def test_the_first_wrong_stage_is_named(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = debug.reference.run

    def wrong(*given: object, **words: object) -> dict[str, np.ndarray]:
        found = right(*given, **words)
        return found | {"t": found["t"] + 1, "y": found["y"] * np.nan}

    monkeypatch.setattr(debug.reference, "run", wrong)
    words = [*FAST, "--dim", "N=2", "--debug-layers"]
    assert main(["compile", str(path), *words]) == 1
    said = capsys.readouterr().out
    assert said.count("WRONG") == 2
    assert "first wrong stage: conv Conv of c + add Add of s + relu Relu of t" in said
    assert main(["compile", str(path), *words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[0])["bound"] == 1e-4


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for onnxruntime, which child processes find as well."""
    folder = tmp_path / "packages" / "onnxruntime"
    folder.mkdir(parents=True)
    shutil.copy(Path(__file__).parents[1] / "support/referenceruntime.py", folder / "__init__.py")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runtime")
def test_a_comparison(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*FAST, "--dim", "N=1", "--compare", "onnxruntime,openvino", "--rounds", "9"]
    assert main(["compile", str(path), *words, "--json"]) == 0
    said = capsys.readouterr()
    whole = json.loads(said.out.splitlines()[-1])
    fastest = whole["peers"][whole["fastest_peer"]]
    assert whole["ratio"] == pytest.approx(fastest / whole["latency_ms"])
    assert whole["max_error"] < 1e-5 and whole["peers"]["onnxruntime"] > 0
    assert set(whole["peak_bytes"]) >= {"polysci", "onnxruntime"} and whole["rounds"] == 9
    if "openvino" not in whole["peers"]:
        assert "openvino is left out" in said.err and "polysci[peers]" in said.err


@pytest.mark.exhaustive
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="it has bf16 on Arm")
@pytest.mark.usefixtures("runtime")
def test_no_peer_in_bf16(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*FAST, "--dim", "N=1", "--compare", "onnxruntime", "--dtype", "bf16"]
    assert main(["compile", str(path), *words, "--rounds", "9", "--wide"]) == 0
    said = capsys.readouterr().out
    assert "onnxruntime failed: ONNX Runtime computes no network in bf16 on x86 CPUs" in said
    assert "polysci  " in said and "ratio" not in said
    assert main(["compile", str(path), *words, "--rounds", "9", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert whole["latency_ms"] > 0 and whole["peers"] == {} and whole["ratio"] is None
    assert "in bf16 on x86" in whole["failures"]["onnxruntime"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--embed"], "--embed: says what to write; it needs -o DIR"),
        (["--python"], "--python: says what to write"),
        (["--force"], "--force: says what to write"),
        (["-o", "{0}", "--python", "--embed"], "--embed: a Python package"),
        (["-o", "{0}/x", "--python", "--isa", "neon"], "--isa neon: a package holds code"),
        (["--rounds", "9"], "--rounds: turns of a comparison"),
        (["--compare", "nobody"], "'nobody': expected one of onnxruntime, openvino"),
        (["--compare", ""], "'': expected one of onnxruntime, openvino"),
        (["--compare", "torch"], "layers, not networks"),
        (["--compare", "openvino", "--rounds", "3"], "--rounds 3: expected at least 9"),
        (["--compare", "openvino", "--explain"], "--compare: times the network"),
        (["--name", " "], "--name: expected a name"),
        (["-o", "{0}"], "holds other files"),
    ],
)
def test_options_that_do_not_fit(
    path: Path, tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("POLYSCI_ISA", raising=False)  # a cap refuses instruction sets above it
    (tmp_path / "notes.txt").write_text("mine")
    given = [word.format(tmp_path) for word in words]
    assert main(["compile", str(path), "--dim", "N=1", *given]) == 2
    assert said in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


def test_no_peer_at_all(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["compile", str(path), "--compare", "onnxruntime,openvino"]) == 1
    said = capsys.readouterr().err
    assert "no peer to compare with (onnxruntime, openvino): pip install 'polysci[peers]'" in said


@pytest.mark.exhaustive
def test_ctrl_c_keeps_what_was_measured(path: Path) -> None:
    words = [str(path), "--dim", "N=1", "--level", "patient", *FAST[2:]]
    with started(sys.executable, "-m", "polysci", "compile", *words) as search:
        children = Path(f"/proc/{search.pid}/task/{search.pid}/children")
        while search.poll() is None and not children.read_text():  # until something is built
            time.sleep(0.02)
        search.send_signal(signal.SIGINT)
        said = search.communicate(timeout=60)[1]
    assert search.returncode == 130, said
    assert "interrupted; what was measured is kept" in said and "Traceback" not in said


@pytest.mark.exhaustive
def test_the_names_of_the_package(path: Path) -> None:
    net = polysci.compile_network(path, "estimate", isa=FAST[-1], dims={"N": 1})
    assert isinstance(net, polysci.Network)
    x = reals(1, 4, 8, 8)
    y = net(x)
    assert isinstance(y, np.ndarray) and y.shape == (1, 6)
    report = net.report()
    known = any(row.peak_fraction for row in report.rows)
    assert ("taps in the padding do not count" in str(report)) == known
    assert str(report).count("\n") == len(STAGES) + 5 + known
    assert len(report.rows) == len(STAGES)
    assert report.json_rows()[1]["group"].startswith("conv")
    with pytest.raises(ValueError, match=r"x: expected shape \(1, 4, 8, 8\), got \(2, 4, 8, 8\)"):
        net(reals(2, 4, 8, 8))


@pytest.mark.exhaustive
def test_what_reproducible_sums_cost(path: Path) -> None:
    net = polysci.compile_network(path, "estimate", dims={"N": 1}, reproducible=True)
    report = net.report()
    assert report.any_order_cost is not None and report.any_order_cost >= 1
    line = f"reproducible sums: at most {report.any_order_cost:.2f} of the time of any order"
    assert line in report.summary()


def test_a_network_without_layers(tmp_path: Path) -> None:
    made = model([node("Relu", "x", "y")], {"x": (2, 3)}, {"y": (2, 3)})
    report = compiled(saved(made, tmp_path / "m.onnx")).report()
    assert report.sum_of_layers is None and len(report.rows) == 1 and "loops" in str(report)
