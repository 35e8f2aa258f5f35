"""The report: a page that is whole, self-contained and escaped, whatever the layers are called."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci import tune
from polysci.cli import main
from polysci.errors import CheckError
from polysci.ops import parse_problem
from polysci.report import layer_of, page
from polysci.report.figures import Log, PlotArea, document, labels, tag
from polysci.tune import Result
from tests.support.command import polysci
from tests.support.reports import report_of, result_of

SCRIPT = "<script>alert(1)</script>"
HOSTILE = f'mb1ic3ih8oc8kh3ph1n"{SCRIPT}"'
PLAIN = 'mb1ic16ih10oc24kh1n"b&amp;c*3"'
VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """Elements, attributes and text of a page; asserts that every element is closed in turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags = list[str](), list[str]()
        self.attributes, self.text = list[tuple[str, str, str]](), list[str]()
        self.ids, self.targets = list[str](), list[str]()
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.targets.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def sound(text: str) -> Page:
    """A page that needs nothing from outside and runs nothing."""
    assert text.startswith("<!DOCTYPE html>")
    found = Page(text)
    assert found.tags.count("html") == found.tags.count("body") == found.tags.count("style") == 1
    assert not {"script", "link", "iframe", "object", "embed", "img", "base"} & set(found.tags)
    for element, name, value in found.attributes:
        assert not name.startswith("on"), (element, name)
        assert name not in ("src", "srcset", "action", "data")
        if name.endswith("href"):
            assert value.startswith("#")
        assert name == "xmlns" or "://" not in value
    assert "@import" not in text and "url(" not in text
    assert len(set(found.ids)) == len(found.ids)
    assert {target[1:] for target in found.targets} <= set(found.ids)
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(picture)
    return found


@pytest.mark.exhaustive
def test_a_page_of_two_layers(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    ran = polysci("report", HOSTILE, PLAIN, "--level", "estimate", "-o", path)
    assert ran.returncode == 0, ran.stderr
    assert "[2/2]" in ran.stderr and str(path) in ran.stderr
    text = path.read_text(encoding="utf-8")
    found = sound(text)
    said = " ".join(found.text)
    assert SCRIPT in said and "b&amp;c" in said and "×3" in said
    assert SCRIPT not in text
    assert "Roofline" in said and "Rank scatter" not in said  # nothing was run
    assert "Nothing was run" in said and "brgemm" in said
    assert found.ids == ["layer-1", "layer-2"]


@pytest.mark.exhaustive
def test_a_measured_layer_has_rates_and_ranks() -> None:
    result, context = result_of('mb1ic64ih28oc64kh3ph1n"b*3"', 30)
    assert len({trial.predicted for trial in result.trials}) > 5
    layer = layer_of("b", result.problem, result, "", context, {})
    report = report_of(layer)
    seconds = 2 * result.predicted
    assert layer.seconds == seconds and layer.tau == pytest.approx(1.0)
    assert report.network_seconds == pytest.approx(3 * seconds)  # the network has it three times
    assert report.network_gflops == pytest.approx(result.problem.flops / seconds * 1e-9)
    assert report.bias == pytest.approx(0.5)
    text = page(report)
    said = " ".join(sound(text).text)
    assert "Rank scatter" in said and "Kendall" in said and "30 schedules tried" in said
    assert text.count('class="tried"') == 2 * 29 and str(result.schedule) in said
    assert page(report) == text


def test_a_share_of_the_peak_leaves_out_taps_in_the_padding() -> None:
    """Half of what the nest of a small image names are zeros around it."""
    result, context = result_of("mb1ic64ih2oc64kh3ph1", 2)
    problem = result.problem
    assert problem.multiplied_flops * 9 == problem.flops * 4
    at_peak = problem.multiplied_flops / (context.peak * 1e9)
    assert result.measurement is not None
    measured = replace(result.measurement, seconds=(at_peak,))
    layer = layer_of("b", problem, replace(result, measurement=measured), "", context, {})
    report = report_of(layer)
    assert report.peak_share == pytest.approx(1) and report.network_gflops is not None
    assert report.network_gflops == pytest.approx(9 / 4 * report.peak)
    text = page(report)
    assert '<span class="share" style="--share:100.0%">100</span>' in text
    assert "leave out taps in the padding" in text


def test_recorded_trials_count_once_and_bad_ones_not_at_all() -> None:
    result, context = result_of(PLAIN, 4)
    recorded = {str(result.schedule): 9.0, "p q:2 > brgemm_avx512_f32_2x16": 2e-5, "not one": 1.0,
                "zz:3 > brgemm_avx512_f32_2x16": 1.0}  # fmt: skip
    layer = layer_of("b", result.problem, result, "", context, recorded)
    times = {str(trial.schedule): trial.seconds for trial in layer.trials}
    assert len(layer.trials) == len(times) == 5
    assert times[str(result.schedule)] == layer.seconds != 9.0


def test_a_layer_that_failed_appears_with_its_error() -> None:
    problem = parse_problem(HOSTILE, "nhwc")
    bad = layer_of(SCRIPT, problem, None, f"no luck: {SCRIPT}\nsecond line", None, {})
    text = page(report_of(bad, planned=3))
    said = " ".join(sound(text).text)
    assert f"no luck: {SCRIPT}" in said and "second line" in said and "1 failed" in said
    assert "2 of 3 layers are missing" in said and SCRIPT not in text
    assert "<svg" not in text


def test_the_command_keeps_what_is_there_after_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    search, path = tune.optimize, tmp_path / "report.html"

    def interrupted(problem: Any, *args: Any, **options: Any) -> Result:
        if problem.name == "second":
            raise KeyboardInterrupt
        return search(problem, *args, **options)

    monkeypatch.setattr(tune, "optimize", interrupted)
    words = ["report", PLAIN, 'mb1ic8ih6oc8kh1n"second"', "--level", "estimate", "-o", str(path)]
    assert main(words) == 130
    said = " ".join(sound(path.read_text(encoding="utf-8")).text)
    assert "1 of 2 layers are missing" in said and "interrupted" in capsys.readouterr().err


def test_the_command_fails_with_a_layer_and_still_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, path = tune.optimize, tmp_path / "report.html"

    def failing(problem: Any, *args: Any, **options: Any) -> Result:
        if problem.name == "second":
            raise CheckError("it computed nonsense")
        return search(problem, *args, **options)

    monkeypatch.setattr(tune, "optimize", failing)
    words = ["report", PLAIN, 'mb1ic8ih6oc8kh1n"second"', "--level", "estimate", "-o", str(path)]
    assert main(words) == 1
    found = sound(path.read_text(encoding="utf-8"))
    assert "it computed nonsense" in " ".join(found.text) and len(found.ids) == 2


def test_a_batch_of_no_images_has_a_section(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert main(["report", "mb0ic3ih8oc8kh3ph1", "--level", "estimate", "-o", str(path)]) == 0
    assert sound(path.read_text(encoding="utf-8")).ids == ["layer-1"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([PLAIN], "-o"),
        ([PLAIN, "-o", "/no/such/folder/x.html"], "no folder"),
        ([PLAIN, "-o", "."], "folder"),
        (["mb1icX", "-o", "x.html"], "icX"),
        ([PLAIN, "--ranker", "luck", "-o", "{}/x.html"], "ranker 'luck'"),
    ],
)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    try:
        status = main(["report", *(word.format(tmp_path) for word in words)])
    except SystemExit as left:  # argparse
        status = int(str(left.code))
    assert status == 2 and told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@given(st.text(st.characters(), max_size=30), st.text(st.characters(), max_size=30))
def test_any_text_survives_in_text_and_attributes(text: str, value: str) -> None:
    whole = document(tag("html", tag("p", text, tag("b", "x"), text, title=value)))
    whole.encode("utf-8")
    found = Page(whole)
    clean = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
    assert "".join(found.text).strip() == f"{clean}x{clean}".strip()
    assert found.tags == ["html", "p", "b"]


@given(st.floats(1e-9, 1e9), st.floats(1.03, 1e6), st.integers(3, 9))
def test_ticks_are_round_few_and_inside(low: float, ratio: float, most: int) -> None:
    axis = Log(low, low * ratio, 10.0, 500.0)
    ticks = axis.ticks(most)
    assert 1 <= len(ticks) <= most + 1 and all(axis.holds(value) for value in ticks)
    assert ticks == sorted(set(ticks))
    places = [axis.at(value) for value in ticks]
    assert places == sorted(places) and 10 <= places[0] <= places[-1] <= 500
    assert axis.at(axis.low) == 10 and axis.at(axis.high) == 500


def test_labels_of_crowded_points_keep_apart() -> None:
    points = [(300.0 + 4 * (i % 5), 200.0 + 4 * (i // 5)) for i in range(20)]
    texts = [str(i + 1) for i in range(20)]
    frame = PlotArea(0, 0, 600, 400)
    places = labels(points, texts, frame)
    assert len(set(places)) == len(places)
    boxes = [PlotArea(x - 6, y - 5, x + 6, y + 5) for x, y in places]
    crossed = sum(one.overlap(two) > 20 for at, one in enumerate(boxes) for two in boxes[at + 1 :])
    assert crossed <= 4
    assert all(0 <= x <= 600 and 0 <= y <= 400 for x, y in places)
