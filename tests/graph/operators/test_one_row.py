"""A new scalar function, and a new operator, take one row to reach every front end and gradient."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("kind", ["function", "operator"])
def test_one_row_is_enough(kind: str) -> None:
    words = [sys.executable, "-m", "tests.support.one_row", kind]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
