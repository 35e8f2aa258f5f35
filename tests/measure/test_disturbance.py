"""Other work on the machine is noticed: by the kernel's counters, and by a loop of known work."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

from polysci.measure.bench import Bench
from polysci.measure.disturbance import Counters, ReferenceLoop
from polysci.ops.convolutions import Conv2d
from tests.support import naive
from tests.support.load import busy

PROBLEM = Conv2d(N=1, C=4, H=6, W=6, K=4, R=3, S=3, pad=1)


@pytest.fixture
def first_processor() -> Iterator[None]:
    """This process, and what it starts, on the first processor alone."""
    allowed = os.sched_getaffinity(0)
    if 0 not in allowed:
        pytest.skip("the first processor is not ours")
    os.sched_setaffinity(0, {0})
    yield
    os.sched_setaffinity(0, allowed)


@pytest.mark.exhaustive
def test_waiting_for_a_processor_is_counted(first_processor: None) -> None:
    with busy(0, 0):
        before, end = Counters.now(), time.monotonic() + 0.3
        while time.monotonic() < end:
            pass
        waited = Counters.now().wait_since(before)
    assert 0.05 < waited < 0.35


@pytest.mark.exhaustive
def test_a_thread_that_ends_hides_no_wait(first_processor: None) -> None:
    """It takes its number away; what another thread waits meanwhile is still counted."""
    ending = threading.Event()

    def wait_long() -> None:
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            pass
        ending.wait()

    thread = threading.Thread(target=wait_long)
    with busy(0, 0):
        thread.start()
        time.sleep(0.5)
        before = Counters.now()
        assert before.waits[thread.native_id or 0] > 0.1
        ending.set()
        thread.join()
        end = time.monotonic() + 0.15
        while time.monotonic() < end:
            pass
        assert 0.02 < Counters.now().wait_since(before) < 0.2


def test_a_new_thread_counts_in_all_even_with_an_old_number() -> None:
    before = Counters({1: 1.0, 2: 5.0}, 2.0)
    after = Counters({1: 1.5, 2: 0.25, 3: 0.125}, 2.5)
    assert after.wait_since(before) == 0.5 + 0.25 + 0.125
    assert after.stolen_since(before) == 0.5


@pytest.mark.exhaustive
def test_a_bench_drops_what_was_disturbed(first_processor: None, users_policy: None) -> None:
    sound = naive.compiled(PROBLEM)
    sample_s = 0.05  # many time slices: a process that just slept may run one undisturbed
    with Bench(PROBLEM) as bench, busy(0, 0):
        (its,) = bench.time([(sound, "naive")], samples=3, min_sample_s=sample_s)
    assert its.dropped > 0


def test_a_slower_loop_shows_as_speed() -> None:
    factor = [1]

    def work(iterations: int) -> float:
        for _ in range(iterations * factor[0]):
            pass
        return iterations

    reference = ReferenceLoop(work)
    assert max(reference.speed() for _ in range(20)) == 1
    factor[0] = 10
    assert reference.speed() < 0.5


def test_a_loop_that_is_known_to_be_faster_shows_as_slow() -> None:
    reference = ReferenceLoop(lambda iterations: sum(range(iterations)) * 0.0 + iterations)
    usual = max(reference.speed() * reference.best for _ in range(20))
    slow = ReferenceLoop(reference.run, 10 * usual)
    assert slow.speed() < 0.5


def test_one_wait_is_no_slow_core() -> None:
    calls = []

    def work(iterations: int) -> float:
        calls.append(iterations)
        time.sleep(1e-3 if len(calls) % 4 else 5e-3)
        return iterations

    reference = ReferenceLoop(work)
    assert min(reference.speed() for _ in range(20)) > 0.5


def test_a_short_burst_of_the_clock_is_no_measure() -> None:
    clock, now = [1.0], [0.0]

    def work(iterations: int) -> float:
        now[0] += iterations / clock[0] * 1e-7
        return iterations

    reference = ReferenceLoop(work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.perf_counter_ns", lambda: int(now[0] * 1e9))
        for _ in range(100):
            assert reference.speed() == pytest.approx(1.0, rel=0.01)
        clock[0] = 1.2
        assert reference.speed() == 1.0
        clock[0] = 1.0
        assert reference.speed() == pytest.approx(1.0, rel=0.01)
        clock[0] = 0.5
        assert [reference.speed() for _ in range(20)] == pytest.approx([0.5] * 20, rel=0.01)
