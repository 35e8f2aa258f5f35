"""The documents tell the truth: their Python runs; commands, options, files and names exist."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest

from polysci.cli import parser
from polysci.ops import parse_problem
from polysci.ops.layer_lists import load, names
from polysci.tune import LEVELS
from tests.support.command import polysci
from tests.support.rates import assume_all_rates

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / folder / "README.md" for folder in ("models", "microkernels", "experiments")),
    *sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts),
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
UNIX = {"cd", "cmake", "ctest", "git", "grep"}  # not ours: their words are not checked
NOT_RUN = {  # they install, or take minutes
    *("python3 -m venv .venv", ". .venv/bin/activate", "pip install '.[onnx]'"),
    *("make resnet50", "make test"),
    "polysci compile resnet50.onnx -o resnet50 --level estimate",
}
README_LINES, README_COLUMNS = 150, 100


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """The command lines of a page, without what becomes of their output."""
    lines = "".join(blocks(page, "console")).splitlines()
    asked = [re.sub(' > [^"]*$', "", line[2:]) for line in lines if line.startswith("$ ")]
    return [part for line in asked for part in line.split(" && ")]


@pytest.mark.sampled
@pytest.mark.measured
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=title)
def test_python(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run one after the other, in one namespace, on one line count."""
    if "import polysci.torch" in text_of(page):
        pytest.importorskip("torch")
    assume_all_rates(tmp_path / "cache", monkeypatch)
    monkeypatch.chdir(tmp_path)
    document = ModuleType("document")
    document.__file__ = str(tmp_path / "document.py")
    monkeypatch.setitem(sys.modules, "document", document)  # where torch.compile looks names up
    for block in blocks(page, "python"):
        line = text_of(page)[: text_of(page).index(block)].count("\n")
        tree = ast.increment_lineno(ast.parse(block), line)
        exec(compile(tree, title(page), "exec"), document.__dict__)


def exists(command: str) -> bool:
    """Whether the program would take this command line; nothing is run."""
    program, *words = shlex.split(command)
    match Path(program).name:
        case "make":
            return has_target(words)
        case "polysci":
            ends = words[0] in ("--version", "--print-completion")
            asked = Namespace() if ends else parser().parse_args(words)
            described = getattr(asked, "machine", None)
            return all(map(is_layer, getattr(asked, "layers", []))) and (
                not described or "/" not in described or (ROOT / described).exists()
            )
        case "pip":
            extras = re.findall(r"\w+", "".join(re.findall(r"\[(.*)\]", words[-1])))
            known = set(PROJECT["optional-dependencies"])
            return words[0] == "install" and set(extras) <= known
        case "python" | "python3" if words[0] == "-m":
            paths = [word for word in words[2:] if "/" in word]
            return all((ROOT / path.split("::")[0]).exists() for path in paths)
        case "python":
            return (ROOT / words[0]).exists()
        case name if name in {"ruff", "mypy", "lint-imports", "pre-commit", "pytest"}:
            return all((ROOT / word).exists() for word in words if "/" in word)
    return program in UNIX or (ROOT / program).exists()


def run_command(command: str, folder: Path) -> None:
    """Run a command of the README in ``folder``; what takes minutes has only its files checked."""
    program, *words = shlex.split(command)
    for file in (word for word in words if word.endswith(".onnx") and program == "polysci"):
        assert (folder / file).exists(), f"{command}: no command before makes {file}"
    if command in NOT_RUN:
        return
    if program == "polysci":
        ran = polysci(*words)
        assert ran.returncode == 0 or words == ["doctor"], ran.stderr
        return
    known = {"python": sys.executable, "make": shutil.which("make") or pytest.skip("no make")}
    ended = subprocess.run([known[program], *words], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.exhaustive
def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, in a folder that holds the examples and nothing else."""
    assume_all_rates(tmp_path / "cache", monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    written = commands(ROOT / "README.md")
    assert set(written) > NOT_RUN
    for command in written:
        run_command(command, tmp_path)


def has_target(words: list[str]) -> bool:
    """Whether make knows the target, here or in an exported project."""
    make = shutil.which("make") or pytest.skip("make is not installed")
    if "-C" in words:
        template = text_of(ROOT / "polysci/export/templates/makefile.mk")
        targets = [word for word in words[words.index("-C") + 2 :] if "=" not in word]
        return all(re.search(rf"^{target}:", template, re.MULTILINE) for target in targets)
    asked = [make, "-n", *words]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0


def is_layer(layer: str) -> bool:
    """Whether a layer is one, or a list that is here; the reader's own files need not be."""
    if layer.endswith((".c", ".onnx")) or layer in names():
        return True
    return bool(load(ROOT / layer) if "/" in layer else parse_problem(layer))


@pytest.mark.parametrize(
    "command", sorted({command for page in PAGES for command in commands(page)})
)
def test_command(command: str) -> None:
    assert exists(command)


def test_there_are_blocks_of_both_kinds() -> None:
    assert blocks(ROOT / "README.md", "python")
    assert {"make resnet50", "make test"} <= set(commands(ROOT / "README.md"))
    assert sum(len(blocks(page, "python")) for page in PAGES) > 10
    assert sum(len(commands(page)) for page in PAGES) > 40


def test_the_readme_is_short() -> None:
    lines = text_of(ROOT / "README.md").splitlines()
    assert len(lines) <= README_LINES
    assert not [line for line in lines if len(line) > README_COLUMNS]


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text_of(page))
    local = [link for link in links if "://" not in link]
    assert not [link for link in local if not (page.parent / link).exists()]


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = re.findall(r"^[\w/-]+$", text_of(DOCS / "index.md"), re.MULTILINE)
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES if DOCS in page.parents}
    assert pages - {"index"} == set(contents)


def test_environment_variables_are_those_that_are_read() -> None:
    text = text_of(DOCS / "reference/environment.md")
    told = set(re.findall(r"^\| `([A-Z_]+)` \|", text, re.MULTILINE))
    read = {"CC"}
    for path in (ROOT / "polysci").rglob("*.py"):
        code = re.sub(r"#(ifndef|define) \w+", "", text_of(path))  # guards in C
        read |= set(re.findall(r"\bPOLYSCI_[A-Z_]+\b", code))
    assert told == read


def test_levels_are_those_that_exist() -> None:
    section = text_of(DOCS / "howto/search.md").split("## Search levels")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+)`", section, re.MULTILINE)) == set(LEVELS)


def test_rankers_are_those_that_exist() -> None:
    from polysci.cost import RANKERS

    section = text_of(DOCS / "model.md").split("## Other rankers")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == set(RANKERS)


def test_the_citation_is_of_this_version() -> None:
    from polysci import __version__

    assert f"\nversion: {__version__}\n" in text_of(ROOT / "CITATION.cff")
    assert f"\n## {__version__}" in text_of(ROOT / "CHANGELOG.md")
