"""What tests share: builds, assumed rates, one calibration, golden files, marks of ISAs.

``POLYSCI_ISA`` caps the instruction set of the whole run, which so imitates another CPU.
"""

import fcntl
import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from polysci.runtime import policy
from polysci.target.host import detect
from polysci.target.isas import isa_named
from polysci.target.machine import Machine
from polysci.tune.calibrate import machine_of
from tests.support import exhaustive
from tests.support.caches import enter_cache, write_policy
from tests.support.flags import compiler_at, optimise
from tests.support.judge import Judge
from tests.support.rates import assume_rates_of_all, write_rates

GOLDEN = Path(__file__).parent / "golden"

# No time limit an example: the machine may be shared. In CI the same examples every time.
settings.register_profile("tests", max_examples=50, deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/* anew, then read the diff"
    )
    parser.addoption(
        "--campaign-seed", type=int, metavar="N",
        help="seed of the random campaign, in place of that of the day (YYYYMMDD)",
    )  # fmt: skip
    parser.addoption("--share", metavar="K/N", help="share K of N shares of the tests, K from 0")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported; xdist's workers and other children inherit it."""
    if hasattr(config, "workerinput"):
        return
    path = Path(tempfile.mkdtemp(prefix="polysci-tests-"))
    config.add_cleanup(lambda: shutil.rmtree(path, ignore_errors=True))
    write_policy(path)
    os.environ["POLYSCI_CACHE_DIR"] = str(path)
    os.environ.pop("POLYSCI_NUM_THREADS", None)
    if config.getoption("--campaign-seed") is None:  # one seed for all workers, past midnight too
        config.option.campaign_seed = int(time.strftime("%Y%m%d"))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background


def pytest_report_header(config: pytest.Config) -> str:
    return f"campaign: --campaign-seed {config.getoption('--campaign-seed')}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and modules live to the end: no garbage collection looks at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    exhaustive.mark(items)
    if text := config.getoption("--share"):
        taken = exhaustive.share(items, text)
        config.hook.pytest_deselected(items=[item for item in items if item not in set(taken)])
        items[:] = taken


def pytest_runtest_setup(item: pytest.Item) -> None:
    optimise(exhaustive.level_of(item, item.config.getoption("--campaign-seed")))
    for mark in item.iter_markers("isa"):
        if isa_named(mark.args[0]) not in detect().allowed:
            pytest.skip(f"this CPU, or POLYSCI_ISA, has no {mark.args[0]}")


@pytest.fixture(scope="session")
def shared_cache() -> Path:
    """The cache directory of the session, which all workers build in."""
    return Path(os.environ["POLYSCI_CACHE_DIR"])


@pytest.fixture(scope="session", autouse=True)
def assumed_rates(shared_cache: Path) -> None:
    """Assumed rates for every instruction set: no test measures unless it asks for ``machine``."""
    assume_rates_of_all()


@pytest.fixture(scope="session")
def machine(shared_cache: Path) -> Machine:
    """This machine's rates, measured once by the first worker that asks, in under a minute."""
    folder = shared_cache / "calibrated"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_policy(folder)
        patch.setenv("POLYSCI_CACHE_DIR", str(folder))
        patch.setenv("CC", compiler_at("-O3"))  # the rates that users get
        return machine_of(detect())


@pytest.fixture
def uncapped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the session's cap: for what it hides or forbids, as records and exports of others."""
    if "fresh_cache" in request.fixturenames:
        request.getfixturevalue("fresh_cache")  # first: rates are written to it
    if "POLYSCI_ISA" in os.environ:
        monkeypatch.delenv("POLYSCI_ISA")
        assume_rates_of_all()


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory for one test: no wisdom, assumed rates, the builds of the session."""
    before, path = Path(os.environ["POLYSCI_CACHE_DIR"]), tmp_path / "fresh-cache"
    enter_cache(path, monkeypatch)
    for file in before.glob("machine-*.json"):
        shutil.copy(file, path)
    return path


@pytest.fixture
def users_policy(fresh_cache: Path) -> None:
    """A fresh cache where all is done that is done for users."""
    (fresh_cache / policy.FILE).unlink()


@pytest.fixture
def calibrated_cache(machine: Machine, fresh_cache: Path) -> Path:
    """A fresh cache with this machine's measured rates of f32."""
    write_rates(machine, detect(), "f32")
    return fresh_cache


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
