"""Every command beside a C compiler that misbehaves: one error, which names the compiler."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from polysci.runtime.build import process
from polysci.target.host import detect
from tests.support import fakecompiler
from tests.support.command import polysci
from tests.support.compiling import saved, tiny

LAYER = "mb1ic8ih10oc24oh10kh3ph1"
Compiler = Callable[[str], Path]
ANYTHING = "#!/bin/sh\nsleep 100\n"
BUILDS = '#!/bin/sh\ncase "$*" in --version | -dumpmachine) exec cc "$@";; esac\nsleep 100\n'


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_cache: Path) -> Compiler:
    """Make CC a compiler that does something first."""

    def make(body: str) -> Path:
        path = fakecompiler.write(tmp_path, body)
        monkeypatch.setenv("CC", str(path))
        return path

    return make


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any package passes for PyTorch, which starts after the builds."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tiny(), tmp_path / "tiny.onnx")


def commands(model: Path, out: Path) -> dict[str, tuple[str | Path, ...]]:
    layers = (LAYER, "mb1ic8ih12oc24oh12kh3ph1", "mb1ic8ih14oc24oh14kh3ph1")
    return {
        "estimate": ("optimize", *layers, "--level", "estimate"),
        "measure": ("optimize", *layers, "--level", "measure"),
        "compile": ("compile", model, "--level", "estimate"),
        "export": ("export", *layers, "--level", "estimate", "-o", out),
        "package": ("export", *layers, "--level", "estimate", "--python", "-o", out),
        "bench": ("bench", *layers, "--against", "torch"),
        "check": ("check", *layers, "--all", "1"),
    }


COMMANDS = tuple(commands(Path(), Path()))


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", COMMANDS)
def test_a_library_without_symbols(fake: Compiler, model: Path, tmp_path: Path, command: str):
    path = fake(fakecompiler.EMPTY)
    ran = polysci(*commands(model, tmp_path / "out")[command])
    assert ran.returncode == 1
    message = f"the C compiler {path} wrote no usable shared object: it does not define "
    assert message in ran.stdout + ran.stderr


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits that a compiler reached, which are shorter than they say."""
    reached, run = [], process.run

    def hurry(command: Sequence[str], *, timeout: float, **options: Any) -> process.Completed:
        asked = {"--version", "-dumpmachine"} & {*command}
        done = run(command, timeout=timeout / (20 if asked else 50), **options)
        reached.extend([timeout] * done.timed_out)
        return replace(done, seconds=timeout) if done.timed_out else done

    monkeypatch.setattr(process, "run", hurry)
    return reached


@pytest.mark.sampled
@pytest.mark.parametrize("command", COMMANDS)
def test_a_compiler_that_hangs(
    fake: Compiler, model: Path, tmp_path: Path, waits: list[float], fresh_cache: Path,
    command: str,
) -> None:  # fmt: skip
    (fresh_cache / "headers").unlink()  # other workers compile headers in the shared folder
    path = fake("sleep 100")
    ran = polysci(*commands(model, tmp_path / "out")[command])
    assert ran.returncode == 1 and ran.stdout == ""
    (error,) = (line for line in ran.stderr.splitlines() if "error" in line)
    said = f"the C compiler {path} ran longer than {waits[0]:g} s without working and was killed"
    assert error == f"polysci: error: {said}, 2 times; name another one in CC"
    assert waits == [20] * 3 or detect().isa.name == "portable"  # no headers are compiled ahead


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", COMMANDS)
def test_a_compiler_that_hangs_at_some_texts(
    fake: Compiler, model: Path, tmp_path: Path, waits: list[float], command: str
) -> None:
    path = fake('case "$*" in *c-header*) exit 1;; *) sleep 100;; esac')
    ran = polysci(*commands(model, tmp_path / "out")[command])
    assert ran.returncode == 1
    limit = 300 if command == "compile" else 60  # of a network's stages, of a layer
    assert f"the C compiler {path} ran longer than {limit} s without working" in ran.stderr
    assert waits[0] == limit and len(waits) in (3, 6)  # one text, or two beside each other


@pytest.mark.exhaustive
def test_a_compiler_that_hangs_where_nothing_was_calibrated(
    fake: Compiler, model: Path, tmp_path: Path, waits: list[float], fresh_cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    for file in fresh_cache.glob("machine-*"):
        file.unlink()
    path = fake("sleep 100")
    words = commands(model, tmp_path / "out")["estimate"]
    limit = 60 if detect().isa.name == "portable" else 20  # there no header is compiled ahead
    assert polysci("rank", LAYER, words[2]).returncode == 0
    reached = [*waits]
    assert reached[0] == limit and len(reached) in (3, 6)  # one text, or two beside each other
    assert [record.getMessage().partition("\n")[0] for record in caplog.records] == [
        f"calibration failed, using assumed rates: the C compiler {path} ran longer than {limit} s "
        "without working and was killed, 2 times; name another one in CC"
    ]
    ran = polysci(*words)
    assert ran.returncode == 1 and ran.stderr.count(f"error: the C compiler {path} ran") == 1
    assert waits == reached


@pytest.mark.sampled
@pytest.mark.parametrize(("body", "check"), [(BUILDS, "builds"), (ANYTHING, "compiler")])
def test_doctor_and_a_compiler_that_hangs(
    fake: Compiler, waits: list[float], body: str, check: str
) -> None:
    path = fake("")
    path.write_text(body)
    ran = polysci("doctor", "--wide")
    assert ran.returncode == 1 and {*waits} == {20}
    assert [line for line in ran.stdout.splitlines() if str(path) in line and "BAD" in line] == [
        f"BAD {check}: the C compiler {path} ran longer than 20 s without working and was killed, "
        "2 times; name another one in CC"
    ]
