"""The classifier of shapes: what it learns, and its page in a browser."""

import os
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from tests.support import chromium, wasm
from tests.support.rates import assume_all_rates
from tests.support.scripts import run_script
from tests.support.serving import served

MAKE = Path(__file__).parents[2] / "examples/browser/make.py"
NEEDED = 0.95


def test_pictures_show_shapes() -> None:
    """The area of each is that of its polygon; pictures are of all shapes."""
    names = runpy.run_path(str(MAKE))
    side = (np.arange(-150, 150) + 0.5) / 100
    for name, corners in names["SHAPES"].items():
        x, y = corners.T
        area = 0.5 * float(x @ np.roll(y, -1) - y @ np.roll(x, -1))
        inside = names["depth"](corners, *np.meshgrid(side, side)) > 0
        assert inside.sum() / 1e4 == pytest.approx(abs(area), rel=0.02), name
    pictures, kinds = names["draw"](np.random.default_rng(0), 64)
    assert pictures.shape == (64, 1, 32, 32) and pictures.dtype == np.float32
    assert pictures.min() >= 0 and pictures.max() <= 1 and {*kinds} == {*range(6)}


@pytest.mark.skipif("POLYSCI_ISA" in os.environ, reason="code above a cap is refused")
@pytest.mark.exhaustive
@pytest.mark.skipif(chromium.executable() is None, reason="no Chromium")
def test_the_page_classifies_what_it_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wasm.need()
    assume_all_rates(tmp_path / "cache", monkeypatch)
    done = run_script(MAKE, tmp_path / "page")
    assert done.returncode == 0, done.stderr
    part = re.match(r"([\d.]+)% of 1024 new pictures are right", done.stdout)
    assert part and float(part[1]) >= 100 * NEEDED, done.stdout
    with served(tmp_path / "page") as address, chromium.browser(tmp_path / "profile") as browser:
        said = browser.text_after(f"{address}/index.html", "#summary", "Counting ...")
        counted = re.search(r"(\d+) of (\d+) frames are right", said)
        assert counted and int(counted[2]) >= 12, said
        assert int(counted[1]) >= NEEDED * int(counted[2]), said
        script = "[...document.querySelectorAll('td')].map((cell) => cell.textContent)"
        answer = browser.ask("Runtime.evaluate", expression=script, returnByValue=True)
        *times, rate = answer["result"]["value"]
        assert len(times) == 5 and all(re.fullmatch(r"[\d.]+ ms", time) for time in times), times
        assert int(rate) > 0
        assert browser.console() == []
