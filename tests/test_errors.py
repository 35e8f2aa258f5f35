"""Messages that repeat a text of any length."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import polysci
from polysci.cli import main
from polysci.errors import LONGEST, PolysciError, cut, cut_message
from polysci.space.schedule import Schedule

LONG = "x" * (1 << 20)


def test_a_cut_text_tells_its_length() -> None:
    assert cut("x" * LONGEST) == "x" * LONGEST
    assert cut(LONG) == "x" * LONGEST + f"... ({1 << 20} characters)"


def test_a_cut_message_keeps_what_is_wrong_and_the_rule() -> None:
    assert cut_message("short\nlines") == "short\nlines"
    for quoted in (repr(LONG), f'"{LONG}"'):
        quote, told = quoted[0], f"{quoted[: LONGEST + 1]}{quoted[0]}... ({1 << 20} characters)"
        message = cut_message(f"layout={quoted} is none of 'nhwc', \"nchw\"\nsecond")
        assert message == f"layout={told} is none of 'nhwc', \"nchw\"\nsecond", quote
        assert cut_message(message) == message
    message = cut_message(f"no layer {LONG}: not one of PyTorch's; a user's layers' names")
    told = f"{LONG[:LONGEST]}... ({1 << 20} characters)"
    assert message == f"no layer {told}: not one of PyTorch's; a user's layers' names"
    assert cut_message(message) == message


OURS = "PyTorch's layers' names are 'a', \"b\" or '+'; it's the peers' own (see 'polysci --help'). "


@given(
    st.lists(st.sampled_from([OURS, "a plain word", "'-'", "(x=3)", "\n", "'", '"']), max_size=9)
)
def test_sentences_are_never_cut(parts: list[str]) -> None:
    """Only what is quoted, or has no blank, counts as somebody's text."""
    text = " ".join(parts)
    quoted = re.findall(r"""(?<!\w)(?:'[^'\n]{201,}'|"[^"\n]{201,}")(?!\w)""", text)
    if not quoted and len(text) <= 1000:
        assert cut_message(text) == text


@given(
    st.lists(
        st.one_of(
            st.text("ab'\" \n\\.", max_size=40),
            st.builds(
                lambda part, n: part * n, st.text("a'\" \n\\:", max_size=3), st.integers(1, 9000)
            ),
        ),
        max_size=6,
    )
)
def test_no_text_of_a_message_is_longer(parts: list[str]) -> None:
    message = cut_message("".join(parts))
    assert len(message) <= 8000 and all(len(line) <= 1000 for line in message.split("\n"))
    assert not re.search(r"\S{251,}", message)


@pytest.mark.sampled
@pytest.mark.parametrize("unit", ["'", '"', "\\'", "'\"", " '", "\n'", "x'", "''x", "' \""])
def test_hostile_quotes_take_no_time(unit: str) -> None:
    start = time.process_time()
    assert len(cut_message(unit * (1 << 20))) <= 8000
    assert time.process_time() - start < 2


def test_every_error_of_ours_is_cut() -> None:
    error = PolysciError(f"{LONG}: refused")
    assert len(str(error)) < 250 and str(error).endswith(": refused")


def test_a_schedule_of_too_many_words() -> None:
    with pytest.raises(PolysciError, match="500001 words; expected at most 100"):
        Schedule.parse("p " * 500_001 + "> brgemm_portable_f32_4x8")


@pytest.mark.sampled
@pytest.mark.parametrize(
    "words",
    [
        ["optimize", LONG], ["rank", f"mm:{LONG}"], ["compile", LONG], [LONG], [f"--{LONG}"],
        ["optimize", "resnet50", "--threads", LONG], ["compile", "mlp:5x5", "--dim", LONG],
        ["optimize", "resnet50", "--isa", LONG], ["farm", LONG], ["wisdom", LONG],
        ["wisdom", "import", LONG], ["bench", "resnet50", "--against", LONG],
        ["compile", "mlp:5x5", "-o", LONG], ["compile", "mlp:5x5", "--value", f"{LONG}=3"],
    ],
    ids=lambda words: " ".join(words)[:40],
)  # fmt: skip
def test_the_command_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(words)
    except SystemExit as error:
        status = int(str(error.code))
    said = capsys.readouterr().err
    assert status in (1, 2) and "error: " in said and len(said) < 2000


@pytest.mark.parametrize(
    "text", [LONG, f"mm:{LONG}", f'mm:4x4x4n"{LONG}" x', f"mb1ic{'9' * 99_999}"]
)
def test_problems(text: str) -> None:
    with pytest.raises(PolysciError) as caught:
        polysci.parse_problem(text)
    assert len(str(caught.value)) < 2000
