"""Measurements as numbers and text, and the bench that survives every kind of candidate."""

import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.errors import SpecError
from polysci.measure.bench import Bench, CandidateError
from polysci.measure.samples import LEAST_SAMPLES, MOST_TURNS, Sample, Samples
from polysci.measure.worker import Worker
from polysci.ops.convolutions import Conv2d
from polysci.runtime import measurement as measurement_module
from polysci.runtime.backends.host import Host
from polysci.runtime.build.cache import build
from polysci.runtime.measurement import Measurement, host_digest
from tests.support import naive
from tests.support.command import started

SMALL = Conv2d(N=1, C=3, H=6, W=6, K=4, R=3, S=3, pad=1, name='evil "; name', multiplicity=2)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYSCI_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench(SMALL, timeout=5) as bench:
        yield bench


def sound() -> Path:
    return naive.compiled(SMALL)


numbers = st.floats(1e-9, 1e3)
measurements = st.builds(
    Measurement, st.lists(numbers, min_size=1).map(tuple), st.integers(0, 2**62), st.text(),
    st.text(), st.integers(1, 99), st.text(), st.none() | numbers,
)  # fmt: skip


@given(measurements)
def test_parse_reads_what_str_writes(measurement: Measurement) -> None:
    assert measurement_module.parse(str(measurement)) == measurement
    assert "\n" not in str(measurement)
    assert measurement.min <= measurement.median <= max(measurement.seconds)
    assert measurement.spread >= 0


def test_the_figures_of_a_measurement() -> None:
    seconds = (4e-3, 1e-3, 2e-3, 9e-1, 3e-3)
    one = Measurement(seconds, 6_000_000, "p > k", "warm", 1, "host", 4.0)
    assert (one.min, one.median, one.gflops) == (1e-3, 3e-3, pytest.approx(2.0))
    assert one.peak_fraction == pytest.approx(0.5)
    assert replace(one, multiplied=3_000_000).peak_fraction == pytest.approx(0.25)
    assert replace(one, multiplied=3_000_000).gflops == pytest.approx(2.0)
    assert one.spread == pytest.approx(2 / 3)
    assert Measurement((1.0, 3.0), 1, "", "", 1, "").median == 2.0
    assert Measurement((1.0,), 1, "", "", 1, "").peak_fraction is None


@pytest.mark.parametrize("seconds", [(), (0.0,), (-1.0,), (math.nan,), (math.inf,)])
def test_seconds_are_positive_numbers(seconds: tuple[float, ...]) -> None:
    with pytest.raises(SpecError, match="seconds: expected positive numbers"):
        Measurement(seconds, 1, "", "", 1, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "expected the members seconds, flops"),
        ("{}", "expected the members"),
        ('"flops": 1.5', "flops: unexpected 1.5"),
        ('"threads": true', "threads: unexpected True"),
        ('"seconds": ["1"]', "seconds: unexpected"),
        ('"seconds": []', "seconds: expected positive"),
        ('"more": 1', "expected the members"),
    ],
)
def test_bad_text_is_refused(text: str, message: str) -> None:
    if text.startswith('"'):  # a change of a good line
        text = f"{str(Measurement((1.0,), 1, '', '', 1, ''))[:-1]}, {text}}}"
    with pytest.raises(SpecError, match=message):
        measurement_module.parse(text)


def test_a_host_digest_is_short_and_stable() -> None:
    assert host_digest("avx2 fma cores=2") == host_digest("avx2 fma cores=2")
    assert host_digest("avx2 fma cores=4") != host_digest("avx2 fma cores=2")
    assert host_digest("").isalnum()


def test_a_protocol_has_words() -> None:
    assert measurement_module.protocol(10) == "warm alternating 10x2ms"
    assert measurement_module.protocol(3, 1e-4, cold=True) == "cold alternating 3x0.1ms"


def test_candidates_are_checked_and_timed_in_turns(bench: Bench) -> None:
    bench.check(sound(), "naive")
    other = naive.compiled(SMALL, "other", fault="slow")
    fast, slow = bench.time([(sound(), "naive"), (other, "other")], samples=4, min_sample_s=1e-4)
    assert len(fast.taken) >= 4 and len(slow.taken) >= 4
    assert min(slow.seconds) > 10 * min(fast.seconds) > 0


def test_never_fewer_than_three_samples(bench: Bench) -> None:
    options = {"budget_s": 0.0, "min_sample_s": 1e-5}
    (late,) = bench.time([(sound(), "naive")], samples=50, **options)
    assert len(late.taken) == LEAST_SAMPLES
    (few,) = bench.time([(sound(), "naive")], samples=1, min_sample_s=1e-5)
    assert LEAST_SAMPLES <= len(few.taken) <= MOST_TURNS * LEAST_SAMPLES
    assert bench.time([]) == []


@pytest.mark.exhaustive
def test_cold_samples(bench: Bench) -> None:
    (samples,) = bench.time([(sound(), "naive")], samples=3, cold=True, min_sample_s=1e-4)
    assert len(samples.seconds) >= 3 and min(samples.seconds) > 0


def test_the_peak_of_a_counting_loop(bench: Bench) -> None:
    assert 0.01 < 1e-9 / bench.peak(build(naive.PEAK), "peak").seconds < 100


def test_a_disturbed_peak_is_repeated_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow clean run counts, not the fast disturbed one; without a clean one the fastest."""
    turns = iter([[Sample(1.0, waited=0.5), Sample(2.0, stolen=0.1)], [Sample(3.0)]])
    monkeypatch.setattr(bench, "probe", lambda *_: Samples(next(turns)))
    assert bench.peak(Path("so"), "peak") == Sample(3.0)
    again = iter([[Sample(5.0, waited=0.5)], [Sample(4.0, waited=0.5)], [Sample(6.0, waited=0.5)]])
    monkeypatch.setattr(bench, "probe", lambda *_: Samples(next(again)))
    run = bench.peak(Path("so"), "peak")
    assert (run.seconds, run.disturbed) == (4.0, True) and next(again, None) is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["segfault", "wrong", "write_after", "exit", "no_isa"])
def test_after_a_faulty_candidate_the_next_one_works(bench: Bench, fault: str) -> None:
    faulty = naive.compiled(SMALL, fault=fault)
    with pytest.raises(CandidateError, match=r"naive in .*\.so: ") as caught:
        bench.check(faulty, "naive")
    assert caught.value.candidate == (faulty, "naive")
    bench.check(sound(), "naive")


@pytest.mark.exhaustive
def test_the_faulty_one_among_timed_candidates_is_named(bench: Bench) -> None:
    faulty = naive.compiled(SMALL, "bad", fault="segfault")
    with pytest.raises(CandidateError, match=r"bad in .* SIGSEGV") as caught:
        bench.time([(sound(), "naive"), (faulty, "bad")], samples=3)
    assert caught.value.candidate == (faulty, "bad")
    assert len(bench.time([(sound(), "naive")], samples=3, min_sample_s=1e-5)) == 1


@pytest.mark.exhaustive
def test_an_endless_loop_ends_at_the_time_limit() -> None:
    with Bench(SMALL, timeout=1) as bench:
        start = time.monotonic()
        with pytest.raises(CandidateError, match="longer than 1 s and was killed"):
            bench.check(naive.compiled(SMALL, fault="loop"), "naive")
        assert time.monotonic() - start < 10
        bench.check(sound(), "naive")


@pytest.mark.exhaustive
def test_a_killed_worker_costs_one_error(bench: Bench) -> None:
    bench.check(sound(), "naive")
    pid = bench.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(CandidateError, match="SIGKILL"):
        bench.check(sound(), "naive")
    bench.check(sound(), "naive")


@pytest.mark.exhaustive
def test_modules_of_the_current_directory_do_not_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    with Bench(SMALL) as bench:
        bench.check(sound(), "naive")


INTERRUPTED = """
import sys
from pathlib import Path
from polysci.measure.bench import Bench
from polysci.ops import parse_problem
with Bench(parse_problem(sys.argv[1]), timeout=60) as bench:
    bench.prepare()
    print(bench.pid, flush=True)
    try:
        bench.check(Path(sys.argv[2]), "naive")
    except KeyboardInterrupt:
        print("interrupted", bench.alive, flush=True)
        raise
"""


def test_ctrl_c_kills_the_worker_and_propagates() -> None:
    loop = naive.compiled(SMALL, fault="loop")
    with started(sys.executable, "-c", INTERRUPTED, str(SMALL), str(loop)) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.5)
        parent.send_signal(signal.SIGINT)
        out, err = parent.communicate(timeout=20)
    assert out == "interrupted False\n" and "KeyboardInterrupt" in err
    assert parent.returncode == -signal.SIGINT
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.exhaustive
def test_a_sample_behind_another_of_the_same_needs_no_warm_up(bench: Bench) -> None:
    worker = Worker(Host())
    worker.prepare(str(SMALL), SMALL.layout, 0)
    so = str(sound())
    first, second = (worker.load(so, "naive", 0, 1e-5)["handle"] for _ in range(2))
    counts = []
    for handle in (first, first, second, first):
        timed, calls, cold = worker._timed[handle]
        made = [0]

        def run(*words: object, made: list[int] = made) -> int:
            made[0] += 1
            return 0

        worker._timed[handle] = replace(timed, run=run), calls, cold
        worker.sample(handle)
        counts.append(made[0] - calls)
    assert counts == [1, 0, 1, 1]
