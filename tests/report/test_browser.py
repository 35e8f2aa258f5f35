"""Report pages in Chromium: no console message, no overflow, readable, in light and in dark."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from polysci.report import layer_of, page
from polysci.runtime.measurement import RECORDED
from tests.support import chromium
from tests.support.chromium import SCHEMES, Browser
from tests.support.command import done
from tests.support.reports import report_of, result_of

WIDTHS = (420, 1280)
NAMES = ("command", "network", "measured", "model")
pytestmark = pytest.mark.skipif(
    chromium.executable() is None, reason=f"none of {', '.join(chromium.NAMES)} is installed"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium.browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


def written(folder: Path, body: str, style: str = "") -> Path:
    path = folder / "page.html"
    head = f'<meta charset="utf-8"><style>:root {{ color-scheme: light dark }} {style}</style>'
    path.write_text(f"<!DOCTYPE html><html><head>{head}</head><body>{body}</body></html>")
    return path


@pytest.mark.exhaustive
@pytest.mark.parametrize(("scheme", "width"), [*product(SCHEMES, WIDTHS)])
def test_a_plain_page_has_no_fault(
    browser: Browser, tmp_path: Path, scheme: str, width: int
) -> None:
    body = "<p>text</p><div style='overflow-x: auto'><p style='width: 2000px'>wide</p></div>"
    assert browser.faults(written(tmp_path, body), width, scheme) == []


PICTURE = "<svg width='90' height='40'><text x='60' y='20'>a long text</text></svg>"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("body", "style", "widths", "schemes", "fault"),
    [
        ("<p>text</p>", "p { width: 600px }", (420,), SCHEMES, "overflow"),
        ("<p>text</p>", "p { width: 2000px }", WIDTHS, SCHEMES, "overflow"),
        ("<p><b>a_long_word</b></p>", "p { width: 9px; overflow: hidden } b { display: block }",
         WIDTHS, SCHEMES, "overflow"),
        (PICTURE, "text { fill: CanvasText }", WIDTHS, SCHEMES, "clipped"),
        ("<script>console.log('told')</script>", "", WIDTHS, SCHEMES, "console"),
        ("<script>nothing.here()</script>", "", WIDTHS, SCHEMES, "console"),
        ("<img src='file:///no/such.png'>", "", WIDTHS, SCHEMES, "console"),
        ("<p>grey</p>", "p { color: #999 }", WIDTHS, ("light",), "contrast"),
        ("<p>grey</p>", "p { color: #444 }", WIDTHS, ("dark",), "contrast"),
        ("<p>text</p>", "p { background: linear-gradient(black, transparent) }", WIDTHS, ("light",),
         "contrast"),
        (PICTURE.replace("60", "1").replace("a long", ""), "text { fill: #444 }", WIDTHS, ("dark",),
         "contrast"),
    ],
)  # fmt: skip
def test_faults_are_noticed(
    browser: Browser, tmp_path: Path, body: str, style: str, widths: tuple[int, ...],
    schemes: tuple[str, ...], fault: str,
) -> None:  # fmt: skip
    path = written(tmp_path, body, style)
    for width, scheme in product(WIDTHS, SCHEMES):
        noticed = {text.partition(":")[0] for text in browser.faults(path, width, scheme)}
        assert noticed == ({fault} if width in widths and scheme in schemes else set())


LONG = "a_layer_with_a_name_that_has_no_space_and_goes_on_" * 3
LAYERS = (
    f'mb1ic3ih112oc32oh56kh3sh2ph1n"{LONG}"', 'mb1ic64ih28oc64oh28kh3ph1n"conv <b> & more*3"',
    "mb1ic256ih14oc1024oh14kh1",
)  # fmt: skip


def measured_page() -> str:
    """Layers timed: one from a record, one disturbed, one faster than the peak; and two faults."""
    qualities = ({"protocol": RECORDED}, {"dropped": 0.9, "speed": 0.5}, {"seconds": (4e-4,)})
    layers = []
    for text, quality in zip(LAYERS, qualities, strict=True):
        result, context = result_of(text, 6, **quality)
        layers.append(layer_of(result.problem.name, result.problem, result, "", context, {}))
    faults = ("cc1: error: " + LONG, "two lines\nwith a file /" + LONG)
    layers += [layer_of(LONG, layers[0].problem, None, fault, None, {}) for fault in faults]
    return page(report_of(*layers, planned=9))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in NAMES}
    small = ("mm:24x16x32", "bwd_w mb1ic16ih8oc16oh8kh3ph1", "mb0ic3ih8oc8kh3ph1", *LAYERS)
    command = ("report", "--level", "estimate", "-o")
    done(*command, paths["command"], *small, "--threads", "2")
    done(*command, paths["network"], "resnet50", "--isa", "portable")
    done(*command, paths["model"], "lstm:T4xN2xC8xK16 layers=2", "--threads", "2")
    paths["measured"].write_text(measured_page(), encoding="utf-8")
    return paths


@pytest.mark.exhaustive
@pytest.mark.parametrize(("scheme", "width"), [*product(SCHEMES, WIDTHS)])
@pytest.mark.parametrize("name", NAMES)
def test_report_pages(
    browser: Browser, pages: dict[str, Path], name: str, scheme: str, width: int
) -> None:
    assert browser.faults(pages[name], width, scheme) == []
