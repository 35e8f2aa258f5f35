"""A cache directory and a compiler that a test of builds may spoil."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polysci.runtime.build import precompiled
from tests.support import fakecompiler


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache directory of the test's own, and the machine's compiler."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    shutil.rmtree(tmp_path / "cache/headers", ignore_errors=True)  # 25 MB a test
    precompiled.forget_all()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Make CC a shell script in front of the real compiler: its body is given."""

    def make(body: str) -> Path:
        path = fakecompiler.write(tmp_path, body)
        monkeypatch.setenv("CC", str(path))
        return path

    return make
