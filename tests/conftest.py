"""What tests share: a cache directory, one calibration, golden files, marks for what a CPU has."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
from hypothesis import settings

from polysci.numerics.dtypes import PRECISIONS
from polysci.target.host import detect
from polysci.target.isas import isa_named
from polysci.target.machine import Machine, assume_rates
from polysci.tune.calibrate import machine_of, machine_path
from tests.support.judge import Judge

GOLDEN = Path(__file__).parent / "golden"
INPUTS = sorted({row.x.name for row in PRECISIONS.values()})

# No time limit an example: the machine may be shared. In CI the same examples every time.
settings.register_profile("tests", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/* anew, then read the diff"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported; child processes inherit it."""
    path = tempfile.mkdtemp(prefix="polysci-tests-")
    config.add_cleanup(lambda: shutil.rmtree(path, ignore_errors=True))
    os.environ["POLYSCI_CACHE_DIR"] = path
    for name in ("POLYSCI_ISA", "POLYSCI_NUM_THREADS"):
        os.environ.pop(name, None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("isa"):
        if not isa_named(mark.args[0]).runs_on(detect().features):
            pytest.skip(f"this CPU lacks {mark.args[0]}")


@pytest.fixture(scope="session", autouse=True)
def lesser_machines() -> None:
    """Assumed rates for all but f32 on the best instruction set: no other test measures."""
    best = detect()
    for isa, x in product(best.runnable, INPUTS):
        if (isa, x) != (best.isa, "f32"):
            target = detect(isa)
            machine_path(target, x).write_text(assume_rates(target).to_json(), encoding="utf-8")


@pytest.fixture(scope="session")
def machine() -> Machine:
    """This machine's rates, measured by the first test that asks, in under a minute."""
    return machine_of(detect())


@pytest.fixture
def fresh_cache(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory for one test, empty but for the machine's rates."""
    path = tmp_path / "fresh-cache"
    path.mkdir(mode=0o700)
    for isa, x in product(detect().runnable, INPUTS):
        shutil.copy(machine_path(detect(isa), x), path)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(path))
    return path


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """A process that says whether compiled code is right."""
    judge = Judge()
    yield judge
    judge.close()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: the text is that of tests/golden/NAME, or becomes it on update."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        hint = f"pytest --update-golden {request.node.nodeid}"
        assert path.exists(), f"no {path}; to write it: {hint}"
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; if it should: {hint}"

    return compare
