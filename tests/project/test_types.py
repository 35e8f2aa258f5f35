"""Users' programs check with mypy --strict: the README's example, the tutorial's, the examples."""

import re
from pathlib import Path

import pytest
from mypy import api as mypy

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/tutorial.md"]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
OPTIONS = (
    "--strict", "--allow-subclassing-any", "--follow-imports=silent", "--ignore-missing-imports",
)  # fmt: skip
ABSENT = "[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n"  # PyTorch need not be installed


def check(*files: Path, cache: Path) -> str:
    """What mypy says of programs that import this checkout; empty where it finds nothing."""
    settings = cache.with_suffix(".ini")
    settings.write_text(ABSENT, encoding="utf-8")
    places = f"--cache-dir={cache}", f"--config-file={settings}"
    report, errors, status = mypy.run([*OPTIONS, *places, *map(str, files)])
    return f"{report}{errors}" if status else ""


@pytest.fixture
def programs(tmp_path: Path) -> list[Path]:
    """The Python blocks of each page, in one file a page."""
    files = []
    for page in PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
        files.append(tmp_path / f"{page.stem.lower()}_blocks.py")
        files[-1].write_text("\n".join(blocks), encoding="utf-8")
    return files


@pytest.mark.exhaustive
def test_users_programs_pass_mypy_strict(
    programs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import polysci\npolysci.compile(3).schedule.loops.none\n", encoding="utf-8")
    cache = tmp_path / "cache"
    assert check(*programs, *EXAMPLES, cache=cache) == ""
    told = check(wrong, cache=cache)
    assert "arg-type" in told and "attr-defined" in told  # types are seen, not Any
