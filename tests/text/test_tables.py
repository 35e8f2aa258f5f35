"""Tables that fit: columns drop by importance, then cells are cut."""

import pytest

from polysci.text.tables import columns, fit

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
