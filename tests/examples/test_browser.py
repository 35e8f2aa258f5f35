"""The classifier of shapes: what it learns, and its page in a browser."""

import os
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support import browsers, wasm
from tests.support.browsers import Page
from tests.support.rates import assume_all_rates
from tests.support.scripts import run_script

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


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that the example writes."""
    wasm.need()
    folder = tmp_path_factory.mktemp("shapes")
    with pytest.MonkeyPatch.context() as patch:
        assume_all_rates(folder / "cache", patch)
        done = run_script(MAKE, folder / "page")
    assert done.returncode == 0, done.stderr
    part = re.match(r"([\d.]+)% of 1024 new pictures are right", done.stdout)
    assert part and float(part[1]) >= 100 * NEEDED, done.stdout
    yield folder / "page"


@pytest.mark.skipif("POLYSCI_ISA" in os.environ, reason="code above a cap is refused")
@pytest.mark.exhaustive
@pytest.mark.parametrize("browser", browsers.parameters())
def test_the_page_classifies_what_it_draws(browser: str, page: Path, tmp_path: Path) -> None:
    cells = "[...document.querySelectorAll('td')].map((cell) => cell.textContent)"
    seen = browsers.look(
        browser, Page(page, "#summary", "Counting ...", cells), tmp_path / "profile"
    )
    counted = re.search(r"(\d+) of (\d+) frames are right", seen.text)
    assert counted and int(counted[2]) >= 12, seen.text
    assert int(counted[1]) >= NEEDED * int(counted[2]), seen.text
    *times, rate = seen.value
    assert len(times) == 5 and all(re.fullmatch(r"[\d.]+ ms", time) for time in times), times
    assert int(rate) > 0
    assert seen.faults == []


@pytest.mark.skipif("POLYSCI_ISA" in os.environ, reason="code above a cap is refused")
def test_what_lacks_is_told_before_it_learns(tmp_path: Path) -> None:
    """Learning takes most of a minute."""
    done = run_script(MAKE, tmp_path / "page", env={"POLYSCI_WASM_CC": "no-such"})
    assert done.returncode == 1 and done.stdout == "", done.stdout
    assert "POLYSCI_WASM_CC='no-such': no such program" in done.stderr
    (tmp_path / "page/net").mkdir(parents=True)
    (tmp_path / "page/net/own.txt").touch()
    wasm.need()
    done = run_script(MAKE, tmp_path / "page")
    assert done.returncode == 1 and "holds other files ('own.txt')" in done.stderr, done.stderr
