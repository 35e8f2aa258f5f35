"""Completion scripts: made of the parser, read by a shell, refused clearly without shtab."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from polysci.cli import SHELLS
from tests.support.command import done, polysci


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_reads_the_script(shell: str, tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    script = done("--print-completion", shell)
    for word in ("optimize", "--print-completion", "--time-limit", "avx512", "u8:s8:s8", "repair"):
        assert word in script
    program = shutil.which(shell) or pytest.skip(f"{shell} is not installed")
    file = tmp_path / "script"
    file.write_text(script)
    ran = subprocess.run([program, "-n", str(file)], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_bash_completes_commands_and_names(tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    bash = shutil.which("bash") or pytest.skip("bash is not installed")
    file = tmp_path / "script"
    file.write_text(done("--print-completion", "bash"))
    for words, expected in ((["opt"], "optimize"), (["rank", "--ranker", "traf"], "traffic")):
        text = " ".join(["polysci", *words])
        ask = (
            f"source {file}; COMP_WORDS=({text}); COMP_CWORD={len(words)}; COMP_LINE='{text}'; "
            f"COMP_POINT={len(text)}; _shtab_polysci; echo ${{COMPREPLY[*]}}"
        )
        ran = subprocess.run([bash, "--norc", "-c", ask], capture_output=True, text=True)
        assert ran.stdout.split() == [expected], ran.stderr


def test_without_shtab_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    ran = polysci("--print-completion", "bash")
    assert ran.returncode == 1 and ran.stdout == ""
    assert "pip install 'polysci[completion]'" in ran.stderr and ran.stderr.count("\n") == 1


def test_an_unknown_shell_is_refused() -> None:
    ran = polysci("--print-completion", "zhs")
    assert ran.returncode == 2 and "did you mean 'zsh'?" in ran.stderr
