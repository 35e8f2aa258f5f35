"""Tables in a pipe have 80 columns, ``--wide`` ones all; progress vanishes from a terminal."""

import io
import re
import shutil
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

from polysci.cli import learn
from polysci.cli.compile_output import comparison_lines
from polysci.cli.display import Display
from polysci.network.report import NetworkReport, StageRow
from polysci.ops import parse_problem
from polysci.tune import Progress
from polysci.tune.result import describe_calibration
from polysci.tune.training import Judgement
from polysci.tune.wisdom import Wisdom
from tests.support.command import done, polysci
from tests.support.records import put
from tests.support.terminal import shown_on_terminal

LAYERS = ('mb1ic8ih10oc24oh10kh3ph1n"a_layer_with_a_long_name"', "mb1ic16ih20oc32oh20kh3ph1dh0")
pytestmark = pytest.mark.usefixtures("fresh_cache", "uncapped")


def widest(text: str) -> int:
    """Characters of the longest line; long paths, which cannot be broken, are left out."""
    return max(map(len, re.sub(r"/\S{30,}", "", text).splitlines()))


COMMANDS = {  # and what only --wide shows: nothing where tables wrap
    "optimize": ((*LAYERS, "--level", "estimate"), "predicted"),
    "rank": (("mb1ic512ih28oc512kh3ph1", "--ranker", "polydl", "--threads", "2"), "cost"),
    "rank --list": ((), ""),
    "explain": ((LAYERS[0], "--threads", "2"), "kept for the next"),
    "explain --algorithm winograd": ((LAYERS[0],), ""),
    "wisdom list": ((), "date"),
    "doctor": ((), ""),
    "machine": ((), ""),
    "machine --kernels": ((), ""),
}


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("command", COMMANDS)
def test_tables_fit_a_pipe(command: str) -> None:
    words, dropped = COMMANDS[command]
    if command == "wisdom list":
        put(Wisdom(), "mb1ic64ih56oc64oh56kh3ph1", schedule=" ".join(["k:64"] * 30) + " > kernel")
        put(Wisdom(), "mb1ic65", schedule="p > kernel", dropped=0.9)
    narrow, wide = done(*command.split(), *words), done(*command.split(), *words, "--wide")
    assert widest(narrow) <= 80 < widest(wide)
    assert "\x1b" not in narrow + wide
    assert dropped in wide and (not dropped or dropped not in narrow)


def test_a_list_of_records_says_which_are_disturbed() -> None:
    put(Wisdom(), "mb1ic64", schedule="k:64 > kernel")
    put(Wisdom(), "mb1ic65", schedule="p > kernel", dropped=0.9)
    _, clean, disturbed = done("wisdom", "list").splitlines()
    assert "disturbed" not in clean and disturbed.endswith("  disturbed: 90 % dropped")


def test_tables_of_stages_peers_and_training_fit_as_well() -> None:
    stage = StageRow("a_node " * 9, "p:4* k:32 " * 9, 1e-3, 0.5, 99.5, 0.5, 1e-3, True, True)
    report = NetworkReport(
        "net", (stage,) * 9, 123e-3, 124e-3, 123e-3, 1 << 30, 1 << 31, 1 << 29, "measure"
    )
    judged = Judgement(100, 1000, (0.9, 0.8), (0.9, 0.8), (0.9, 0.8))
    for table in (report.text, partial(learn._table, {"a network of many letters " * 2: judged})):
        assert widest(table(80)) <= 80 < widest(table(None))


def test_a_comparison_of_networks_fits() -> None:
    run = {"seconds": (1e-3,) * 15, "peak_bytes": 1 << 30, "choice": "a setting " * 9}
    rival = SimpleNamespace(version="2026.1.0." * 9, latency_ms=1.5, difference="1.0e-06", **run)
    comparison: Any = SimpleNamespace(
        latency_ms=1.0, ours=SimpleNamespace(**run), rivals={"openvino": rival},
        fastest="a library of " * 5, ratio=1.5, failures={},
    )  # fmt: skip
    narrow, wide = ("\n".join(comparison_lines(comparison, 1e-3, w)) for w in (80, None))
    assert widest(narrow) <= 80 < widest(wide)


@pytest.mark.exhaustive
def test_a_wide_terminal_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "200")
    from polysci.cli import main

    assert main(["optimize", *LAYERS, "--level", "estimate"]) == 0
    assert widest(screen.getvalue()) > 80 and "predicted" in screen.getvalue()
    assert shutil.get_terminal_size().columns == 200


def test_a_failure_is_told_below_the_table() -> None:
    ran = polysci("optimize", LAYERS[0], "--level", "wisdom-only")
    _, row, fault = ran.stdout.splitlines()
    assert "FAILED" in row and widest(row) <= 80 and "no record for" in fault


def progress(stream: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a search of one layer shows on ``stream``, before and after a table."""
    monkeypatch.setattr(sys, "stderr", stream)
    problem = parse_problem(LAYERS[0])
    with Display(1) as display:
        for at in range(3):
            display.watch(problem, Progress("calibrating", at, 3))
        display.done("one layer is done [bold]")


def test_progress_in_a_pipe_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    progress(stream, monkeypatch)
    assert stream.getvalue().splitlines() == [
        describe_calibration("f32"),
        "[1/1] one layer is done [bold]",
    ]


def test_every_calibration_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, problem = io.StringIO(), parse_problem(LAYERS[0])
    monkeypatch.setattr(sys, "stderr", stream)
    stages = ["ranking", *["calibrating"] * 3, "measuring", "ranking", *["calibrating"] * 2]
    with Display(2) as display:
        for at, stage in enumerate(stages):
            display.watch(problem, Progress(stage, at, len(stages)))
    assert stream.getvalue().splitlines() == [describe_calibration("f32")] * 2


def test_progress_on_a_terminal_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = shown_on_terminal(lambda stream: progress(stream, monkeypatch))
    assert "one layer is done [bold]" in shown
    assert shown.rstrip().endswith("\x1b[2K") and "\x1b[1A" in shown  # its lines are erased
