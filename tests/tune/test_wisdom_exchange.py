"""Export and import of records: what comes back, what wins, and what changes nothing."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.errors import SpecError, WisdomError
from polysci.tune.wisdom import LEVELS, Record, Wisdom
from polysci.tune.wisdom.exchange import dump, read
from tests.support.records import SAMPLE, put


@pytest.fixture
def wisdom(tmp_path: Path) -> Wisdom:
    return Wisdom(tmp_path / "deep" / "wisdom.sqlite")


texts = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
records = st.builds(
    Record, texts, st.integers(1, 256), texts, texts, st.sampled_from(LEVELS), texts,
    st.floats(1e-9, 1e6), st.floats(0, 1e7), texts, texts, texts, st.just("2025-01-31T12:00:00Z"),
)  # fmt: skip


@pytest.mark.exhaustive
@given(st.lists(records, max_size=4))
def test_what_is_exported_is_read_back(found: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exported.json"
        path.write_text(dump(found))
        assert read(path, str) == tuple(found)


def test_export_is_deterministic_and_import_restores_it(wisdom: Wisdom, tmp_path: Path) -> None:
    for name in ("b > k", "a > k"):
        put(wisdom, schedule=name)
    assert wisdom.export(tmp_path / "one.json") == 2
    other = Wisdom(tmp_path / "other.sqlite")
    seen: list[Record] = []
    assert other.import_(tmp_path / "one.json", seen.append) == 2
    assert other.import_(tmp_path / "one.json", seen.append) == 0
    assert tuple(seen[:2]) == other.list() == wisdom.list()
    other.export(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_import_never_replaces_a_newer_record(wisdom: Wisdom, tmp_path: Path) -> None:
    old = Record(**SAMPLE | {"compiler": "", "timestamp": "2001-01-01T00:00:00Z"})
    new = Record(**SAMPLE | {"compiler": "", "timestamp": "2901-01-01T00:00:00Z"})
    mine = put(wisdom)
    (tmp_path / "old.json").write_text(dump([old]))
    (tmp_path / "new.json").write_text(dump([new]))
    assert wisdom.import_(tmp_path / "old.json", str) == 0
    assert wisdom.list() == (mine,)
    assert wisdom.import_(tmp_path / "new.json", str) == 1
    assert wisdom.list() == (new,)


GOOD = {"format": "polysci-wisdom", "schema": 1, "records": [SAMPLE]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"format": 1, "format": 2}', "given twice"),
        ("[]", "expected an object"),
        ({"format": "other"}, "expected an object with"),
        (GOOD | {"schema": 3}, "expected schema 1 or 2, got 3"),
        (GOOD | {"flags": "-O3"}, "exactly the members"),
        (GOOD | {"records": {}}, "exactly the members"),
        (GOOD | {"records": [SAMPLE, 7]}, "record 1: expected problem, "),
        (GOOD | {"records": [SAMPLE, SAMPLE | {"cflags": "-O3"}]}, "record 1: expected problem, "),
        (GOOD | {"records": [SAMPLE, SAMPLE | {"threads": "1"}]}, "record 1: threads"),
        (GOOD | {"records": [SAMPLE, SAMPLE | {"seconds": -1}]}, "record 1: seconds"),
        (GOOD | {"records": [SAMPLE, SAMPLE | {"seconds": float("inf")}]}, "Infinity"),
        (GOOD | {"records": [SAMPLE, SAMPLE | {"schedule": "bad"}]}, "record 1: no arrow"),
        (b"\xff\xfe", "not valid JSON"),
    ],
)
def test_a_bad_import_changes_nothing(
    wisdom: Wisdom, tmp_path: Path, content: object, message: str
) -> None:
    def validate(record: Record) -> None:
        if ">" not in record.schedule:
            raise SpecError("no arrow")

    mine = put(wisdom, schedule="mine > k")
    path = tmp_path / "bad.json"
    path.write_bytes(
        content if isinstance(content, bytes)
        else (content if isinstance(content, str) else json.dumps(content)).encode()
    )  # fmt: skip
    with pytest.raises(WisdomError, match=message) as caught:
        wisdom.import_(path, validate)
    assert str(path) in str(caught.value) and "nothing was imported" in str(caught.value)
    assert wisdom.list() == (mine,)


def test_the_best_few_of_each_machine(wisdom: Wisdom, tmp_path: Path) -> None:
    times = {("a > k", "h"): 3e-3, ("b > k", "h"): 1e-3, ("c > k", "h"): 2e-3, ("a > k", "i"): 1e-4}
    for (schedule, host), seconds in times.items():
        put(wisdom, schedule=schedule, host=host, seconds=seconds)
    put(wisdom, schedule="b > k", host="h", seconds=9e-3, level="estimate")
    best = [(record.host, record.schedule) for record in wisdom.best_k(2)]
    assert best == [("h", "b > k"), ("h", "c > k"), ("i", "a > k")]
    with pytest.raises(ValueError, match="count: expected a whole number above 0, got 0"):
        wisdom.best_k(0)
    wisdom.export(tmp_path / "all.json")
    for count in (4, 0):  # merged twice: nothing doubles, and each host keeps its own times
        other = Wisdom(tmp_path / "merged.sqlite")
        assert other.import_(tmp_path / "all.json", str) >= count
        assert other.best_k(9) == wisdom.best_k(9) and other.list() == wisdom.list()
