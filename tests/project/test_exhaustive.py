"""What make test leaves out: rows that name tests, and cases that it keeps."""

from pathlib import Path

import pytest

from tests.support.exhaustive import share
from tests.support.kept_cases import KEPT_EVERY
from tests.support.left_out import LEFT_OUT

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("file", KEPT_EVERY)
def test_every_row_names_a_test_and_leaves_one(file: str) -> None:
    rows = KEPT_EVERY[file]
    text = (TESTS / file).read_text(encoding="utf-8")
    missing = [name for name in rows if name != "*" and f"def {name}(" not in text]
    assert not missing, f"tests/support/kept_cases.py: {file} has no {missing}"
    assert "*" not in rows or any(distance is not None for distance in rows.values())


@pytest.mark.parametrize("file", LEFT_OUT)
def test_what_is_left_out_exists_and_leaves_tests(file: str) -> None:
    text = (TESTS / file).read_text(encoding="utf-8")
    names = LEFT_OUT[file].split()
    missing = [name for name in names if f"def test_{name}(" not in text]
    assert not missing, f"tests/support/left_out.py: {file} has no {missing}"
    assert len(set(names)) == len(names) < text.count("def test_")


def test_shares_are_all_of_it_once(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    shares = [share(items, f"{number}/3") for number in range(3)]
    assert sorted(map(id, items)) == sorted(id(item) for part in shares for item in part)
    assert all(map(len, shares)) or len(items) < 20


@pytest.mark.parametrize("text", ["", "1", "3/3", "a/b", "-1/3", "0/0"])
def test_other_shares_are_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="--share"):
        share([], text)
