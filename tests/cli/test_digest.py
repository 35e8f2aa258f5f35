"""``polysci digest``: what it prints, what it compares, and what it refuses."""

from pathlib import Path

import onnx
import pytest

from polysci.cli import main
from tests.support.compiling import FAST, saved, tiny


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tiny(batch="N"), tmp_path_factory.mktemp("models") / "tiny.onnx")


def digest(path: Path, *words: str | Path) -> int:
    return main(["digest", str(path), *FAST, "--dim", "N=1", *map(str, words)])


@pytest.fixture(scope="module")
def kept(path: Path) -> Path:
    out = path.with_suffix(".txt")
    assert digest(path, "-o", out) == 0
    return out


@pytest.mark.exhaustive
def test_a_digest_agrees_with_itself(
    path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert digest(path) == 0
    assert capsys.readouterr().out == kept.read_text()
    assert kept.read_text().startswith('polysci-digest 1 model "tiny" dtype f32 graph ')
    assert digest(path, "--against", kept) == 0
    assert capsys.readouterr().out == f"all 6 tensors agree with {kept}\n"


def test_the_first_wrong_tensor_is_the_likely_cause(
    path: Path, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = kept.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith('tensor "t"'))
    lines[at + 5] = "  stride 2: 1.5 732"
    lines[-1] = "  elements: -6.452378273 0 7.98165226 -2.962376356 6.909207821 4.225310326"
    other = tmp_path / "other.txt"
    other.write_text("\n".join(lines))
    assert digest(path, "--against", other) == 1
    first, second, last = capsys.readouterr().out.splitlines()
    made = "made by conv Conv of c + add Add of s + relu Relu of t"
    assert first.startswith(f"t, {made}: the sum at stride 2 from 1 is 350.6")
    assert first.endswith("2 of 33 entries differ; the first that is wrong: the likely cause")
    assert (
        second.startswith("y, made by gemm Gemm of y: element 1 is -0.7366")
        and "cause" not in second
    )
    assert last == f"2 of 6 tensors differ with {other}"


def test_tensors_that_one_run_fuses_are_counted(
    path: Path, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = kept.read_text().replace('tensor "p"', 'tensor "q"')
    other = tmp_path / "other.txt"
    other.write_text(text)
    assert digest(path, "--against", other) == 0
    said = f"all 5 tensors agree with {other}; fused otherwise: 1 only here, 1 only there\n"
    assert capsys.readouterr().out == said


def test_another_digest_is_refused_by_name(
    path: Path, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny(batch="N")
    model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
    other = tmp_path / "other.onnx"
    onnx.save(model, other)
    broken = tmp_path / "broken.txt"
    broken.write_text("numbers")
    for words, told in (
        ((other, "--against", kept), f"--against {kept}: it is of model 'tiny', graph and "),
        ((path, "--against", kept, "--dtype", "bf16"), f"--against {kept}: it is of --dtype f32, "),
        ((path, "--against", broken), f"digest {str(broken)!r}: line 1: expected 'polysci-digest"),
        ((path, "--against", tmp_path / "no.txt"), f"{tmp_path / 'no.txt'}: cannot be read: No "),
        ((path, "-o", tmp_path), f"-o {tmp_path}: cannot be written: it is a folder"),
    ):  # fmt: skip
        assert digest(*words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"polysci: error: {told}")
