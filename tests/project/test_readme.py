"""The README tells the truth: its Python runs; its commands, options, files and names exist."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from polysci.cli import parser
from polysci.ops import parse_problem
from polysci.ops.layer_lists import load
from polysci.target.machine import Machine
from polysci.tune import LEVELS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


COMMANDS = [
    shlex.split(line.removeprefix("$ "))
    for block in blocks("console")
    for line in block.splitlines()
    if line.startswith("$ ")
]


@pytest.mark.parametrize("block", blocks("python"))
def test_python(
    block: str, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def exists(words: list[str]) -> bool:
    """Whether the program would take this command line; nothing is run."""
    program, command, *rest = words
    match Path(program).name:
        case "make":
            asked = [shutil.which("make") or pytest.skip("make is not installed"), "-n", command]
            return subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0
        case "polysci":
            asked = parser().parse_args(words[1:])
            return all(map(given, getattr(asked, "layers", [])))
        case "pip":
            extras = re.findall(r"\w+", "".join(re.findall(r"\[(.*)\]", rest[-1])))
            return command == "install" and set(extras) <= set(PROJECT["optional-dependencies"])
    return False


def given(layer: str) -> bool:
    """Whether a layer is one, or a file that is here; the reader's own .c file need not be."""
    return layer.endswith(".c") or bool(
        load(ROOT / layer) if "/" in layer else parse_problem(layer)
    )


@pytest.mark.parametrize("words", COMMANDS, ids=shlex.join)
def test_command(words: list[str]) -> None:
    assert exists(words)


def test_there_are_blocks_of_both_kinds() -> None:
    assert len(blocks("python")) >= 1 and len(COMMANDS) > 10
    assert ["make", "resnet50"] in COMMANDS and ["make", "test"] in COMMANDS


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links and not [
        link for link in links if "://" not in link and not (ROOT / link).exists()
    ]


def test_environment_variables_are_those_that_are_read() -> None:
    told = set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) & set(re.findall("[A-Z_]+", TEXT))
    read = {"CC"}
    for path in (ROOT / "polysci").rglob("*.py"):
        text = re.sub(r"#(ifndef|define) \w+", "", path.read_text(encoding="utf-8"))  # guards in C
        read |= set(re.findall(r"\bPOLYSCI_[A-Z_]+\b", text))
    assert told == read


def test_levels_are_those_that_exist() -> None:
    section = TEXT.split("## How hard it looks")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+)`", section, re.MULTILINE)) == set(LEVELS)
