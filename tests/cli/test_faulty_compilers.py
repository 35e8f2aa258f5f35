"""Every command beside a C compiler that misbehaves: one error, which names the compiler."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import fakecompiler
from tests.support.command import polysci
from tests.support.compiling import saved, tiny

LAYER = "mb1ic8ih10oc24oh10kh3ph1"
Compiler = Callable[[str], Path]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_cache: Path) -> Compiler:
    """Make CC a compiler that does something first."""

    def make(body: str) -> Path:
        path = fakecompiler.write(tmp_path, body)
        monkeypatch.setenv("CC", str(path))
        return path

    return make


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tiny(), tmp_path / "tiny.onnx")


def commands(model: Path, out: Path) -> dict[str, tuple[str | Path, ...]]:
    return {
        "estimate": ("optimize", LAYER, "--level", "estimate"),
        "measure": ("optimize", LAYER, "--level", "measure"),
        "compile": ("compile", model, "--level", "estimate"),
        "export": ("export", LAYER, "--level", "estimate", "--python", "-o", out),
        "check": ("check", LAYER, "--all", "1"),
    }


@pytest.mark.parametrize("command", ["estimate", "measure", "compile", "export", "check"])
def test_a_library_without_symbols(fake: Compiler, model: Path, tmp_path: Path, command: str):
    path = fake(fakecompiler.EMPTY)
    ran = polysci(*commands(model, tmp_path / "out")[command])
    said = ran.stdout + ran.stderr
    assert ran.returncode == 1
    assert f"the C compiler {path} wrote no usable shared object: it does not define " in said
