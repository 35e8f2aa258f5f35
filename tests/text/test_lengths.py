"""Messages that repeat a text of any length."""

import pytest

import polysci
from polysci.cli import main
from polysci.errors import PolysciError
from polysci.polyhedral.schedule import Schedule
from polysci.text.lengths import LONGEST, cut, cut_message

LONG = "x" * (1 << 20)


def test_a_cut_text_tells_its_length() -> None:
    assert cut("x" * LONGEST) == "x" * LONGEST
    assert cut(LONG) == "x" * LONGEST + f"... ({1 << 20} characters)"


def test_a_cut_message_keeps_what_is_wrong_and_the_rule() -> None:
    assert cut_message("short\nlines") == "short\nlines"
    message = cut_message(f"layout {LONG!r} is none of nhwc, nchw\nsecond")
    assert message.startswith("layout 'xxx") and message.endswith("of nhwc, nchw\nsecond")
    assert (
        f"({len(f'layout {LONG!r} is none of nhwc, nchw')} characters)" in message
        and len(message) < 1100
    )


def test_every_error_of_ours_is_cut() -> None:
    error = PolysciError(f"{LONG}: refused")
    assert len(str(error)) <= 1000 and str(error).endswith(": refused")


def test_a_schedule_of_too_many_words() -> None:
    with pytest.raises(PolysciError, match="500001 words; expected at most 100"):
        Schedule.parse("p " * 500_001 + "> brgemm_portable_f32_4x8")


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
