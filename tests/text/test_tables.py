"""Tables that fit: columns drop by importance, then cells are cut."""

import pytest

from polysci.text.tables import columns, fit, pairs, paragraph

ROWS = [("layer", "schedule", "speed", "spent"), ("res2a", "p q:4 > " + "k" * 30, "117.0", "1.0 s")]
ALL = columns(ROWS, (0, 1), "")
OPTIONS = {"drop": ("spent", "speed"), "clip": ("schedule",), "left": ("layer", "schedule")}


@pytest.mark.parametrize("width", [None, 1000, max(map(len, ALL.splitlines()))])
def test_what_fits_is_whole(width: int | None) -> None:
    assert fit(ROWS, width, **OPTIONS) == ALL  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("width", "head"),
    [(58, "layer schedule speed"), (51, "layer schedule"), (30, "layer schedule")],
)
def test_columns_drop_in_order_and_then_cells_are_cut(width: int, head: str) -> None:
    text = fit(ROWS, width, **OPTIONS)  # type: ignore[arg-type]
    assert text.split("\n")[0].split() == head.split()
    assert max(map(len, text.splitlines())) <= width
    assert ("..." in text) == (width == 30)


def test_short_rows_and_columns_that_are_not_there() -> None:
    text = fit([*ROWS, ("res2b",)], 30, drop=("no", "spent", "speed"), clip=("schedule", "no"))
    assert text.splitlines()[-1] == "res2b"


TALL = [
    ("layer", "schedule", "why"),
    ("res2a", "p q:4 > " + "k" * 30, "it needs fewer bytes of L1"),
]


@pytest.mark.parametrize("width", [72, 70, 65])
def test_cells_go_on_below_and_no_word_is_lost_or_broken(width: int) -> None:
    text = fit(TALL, width, wrap=("schedule", "why"), left=("layer", "schedule", "why"))
    lines = text.splitlines()
    assert max(map(len, lines)) <= width and len(lines) > 2
    assert sorted(text.split()) == sorted(" ".join(map(" ".join, TALL)).split())
    start = lines[0].index("why")
    assert all(line[start - 1 : start].strip() == "" for line in lines)


def test_the_widest_column_gives_first() -> None:
    text = fit(TALL, 70, wrap=("schedule", "why"), left=("layer", "schedule", "why"))
    assert "it needs fewer bytes of L1" in text and "q:4 > " + "k" * 30 not in text


def test_a_word_that_is_too_long_stays_whole() -> None:
    text = pairs([("a name", "a " + "w" * 90), ("another", "short")], 40)
    assert "w" * 90 in text and text.splitlines()[-1] == "  another  short"


def test_pairs_and_paragraphs() -> None:
    assert pairs([("a", "one two three four five six")], 24).splitlines() == [
        "  a  one two three four",
        "     five six",
    ]
    assert paragraph("one two three", 9, "  ", "* ") == "* one two\n  three"
    assert paragraph("one two three", None) == "  one two three"
