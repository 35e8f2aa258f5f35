"""Bytes of the record file that are not what polysci wrote: named, and repaired on request."""

from pathlib import Path

import pytest

from polysci.errors import WisdomError
from polysci.tune.wisdom import Wisdom
from tests.support.records import put


@pytest.fixture
def wisdom(tmp_path: Path) -> Wisdom:
    return Wisdom(tmp_path / "wisdom.sqlite")


def damage(path: Path, words: bytes) -> None:
    """Replace the first byte of ``words`` in a file by one that is not UTF-8."""
    data = path.read_bytes()
    assert words in data
    path.write_bytes(data.replace(words, b"\xff" + words[1:], 1))


@pytest.mark.parametrize(
    "words", [b"tablerecords", b"CREATE TABLE", b"PRIMARY KEY", b"gflops REAL"]
)
def test_a_bad_byte_in_the_schema_hides_no_record(wisdom: Wisdom, words: bytes) -> None:
    mine = {put(wisdom), put(wisdom, "mb1ic65")}
    damage(wisdom.path, words)
    for use in (wisdom.list, lambda: put(wisdom)):
        with pytest.raises(WisdomError, match=r"damaged .*polysci wisdom repair"):
            use()
    assert wisdom.repair().kept == 2
    assert set(wisdom.list()) == mine


def test_any_flipped_byte_of_the_first_page_is_read_or_named(wisdom: Wisdom) -> None:
    put(wisdom)
    page = wisdom.path.read_bytes()
    for at in [*range(0, 120, 3), *range(4096 - 480, 4096, 7)]:
        wisdom.path.write_bytes(page[:at] + bytes([page[at] ^ 0xFF]) + page[at + 1 :])
        try:
            assert len(wisdom.list()) <= 1
        except WisdomError as error:
            assert str(wisdom.path) in str(error)


def test_what_is_known_of_a_measurement_survives_a_repair(wisdom: Wisdom) -> None:
    mine = wisdom.record(
        "mb1", 1, "fma", "measure", "p > k", 1e-3, host="h", dropped=0.9, speed=0.2
    )
    damage(wisdom.path, b"CREATE TABLE")
    assert wisdom.repair().kept == 1
    assert wisdom.list() == (mine,)
