"""Templates: placeholders, and parts that are repeated or stand there under a condition."""

from pathlib import Path

import pytest

from polysci.text import templates

TEXT = """\
# @NAME@@?SHARED@ and lib@NAME@.so@/SHARED@
@?SHARED@
shared: @NAME@
@/SHARED@
@!SHARED@
static: @NAME@
@/SHARED@
all: $@
"""


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"SHARED": "yes"}, "# net and libnet.so\nshared: net\nall: $@\n"),
        ({"SHARED": ""}, "# net\nstatic: net\nall: $@\n"),
        ({}, "# net\nstatic: net\nall: $@\n"),
    ],
)
def test_parts_stand_under_their_conditions(
    values: dict[str, str], text: str, tmp_path: Path
) -> None:
    (tmp_path / "template").write_text(TEXT)
    assert templates.fill(tmp_path / "template", {"NAME": "net", **values}) == text


def test_a_part_is_repeated_for_each_row(tmp_path: Path) -> None:
    text = "@*ROWS@\n@?SHARED@\n@NAME@: @ROW@\n@/SHARED@\n@/ROWS@\nend\n"
    (tmp_path / "template").write_text(text)
    values = {"NAME": "net", "SHARED": "yes"}
    rows = [{"ROW": "a"}, {"ROW": "b"}]
    filled = templates.fill(tmp_path / "template", values, {"ROWS": rows})
    assert filled == "net: a\nnet: b\nend\n"
    assert templates.fill(tmp_path / "template", {}, {"ROWS": ()}) == "end\n"
    with pytest.raises(KeyError, match="ROWS"):
        templates.fill(tmp_path / "template", values, {"OTHERS": rows})


def test_a_placeholder_without_a_value_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "template").write_text("@?SHARED@@OTHER@@/SHARED@@NAME@")
    with pytest.raises(KeyError, match="NAME"):
        templates.fill(tmp_path / "template", {})
