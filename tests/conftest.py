"""What every test shares: a cache directory of its own, one calibration, golden files, ISA marks."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Set before anything imports polysci, and inherited by every child process.
_CACHE = Path(tempfile.mkdtemp(prefix="polysci-tests-"))
os.environ["POLYSCI_CACHE_DIR"] = str(_CACHE)
for _name in ("POLYSCI_ISA", "POLYSCI_NUM_THREADS"):
    os.environ.pop(_name, None)

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/* anew, then read the diff"
    )


def pytest_unconfigure() -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    from polysci.target import detect, isa_named

    features = detect().features
    for mark in item.iter_markers("isa"):
        if not isa_named(mark.args[0]).runs_on(features):
            pytest.skip(f"this CPU lacks {mark.args[0]}")


@pytest.fixture(scope="session", autouse=True)
def other_machines() -> None:
    """Assumed rates for the lesser instruction sets: a test that caps the ISA calibrates nothing."""
    from polysci.calibrate import stored
    from polysci.machine import assumed
    from polysci.target import detect

    best = detect()
    for isa in best.runnable:
        if isa != best.isa:
            target = detect(isa)
            stored(target).write_text(assumed(target).to_json(), encoding="utf-8")


@pytest.fixture(scope="session")
def machine() -> object:
    """This machine's rates; measured (some 15 s) by the first test that needs them."""
    from polysci.calibrate import machine_of
    from polysci.target import detect

    return machine_of(detect())


@pytest.fixture
def fresh_cache(
    machine: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A cache directory for this test alone, empty but for the machine's rates."""
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    for rates in _CACHE.glob("machine-*.json"):
        shutil.copy(rates, path)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(path))
    return path


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: the text is that of tests/golden/NAME, or becomes it when updating."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        hint = f"pytest --update-golden {request.node.nodeid}"
        assert path.exists(), f"no {path}; to write it: {hint}"
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; if it should: {hint}"

    return compare
