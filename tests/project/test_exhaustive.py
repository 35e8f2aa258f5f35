"""What make test leaves out: rows that name tests, and cases that it keeps."""

from pathlib import Path

import pytest

from tests.support.exhaustive import KEPT_EVERY

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("file", KEPT_EVERY)
def test_every_row_names_a_test_and_leaves_one(file: str) -> None:
    rows = KEPT_EVERY[file]
    text = (TESTS / file).read_text(encoding="utf-8")
    missing = [name for name in rows if name != "*" and f"def {name}(" not in text]
    assert not missing, f"tests/support/exhaustive.py: {file} has no {missing}"
    assert "*" not in rows or any(distance is not None for distance in rows.values())
