"""The driver: levels, records, time limits, Ctrl-C, and candidates of every kind of badness."""

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polysci import tune
from polysci.cost.shortlist import choices
from polysci.errors import BuildError, CheckError, SpecError, WisdomError
from polysci.measure.bench import Bench
from polysci.measure.integer_reference import Arrays
from polysci.ops import parse_problem
from polysci.ops.convolutions import Conv2d
from polysci.runtime.build import cache
from polysci.runtime.measurement import host_digest
from polysci.runtime.source import Source
from polysci.space.schedule import Schedule, parse
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.target.target import Target
from polysci.tune import LEVELS, Progress, Result
from polysci.tune.calibrate import machine_path
from polysci.tune.wisdom import Wisdom
from tests.support import naive
from tests.support.command import started

# The least instruction set: its rates need no calibration in tests, its code compiles fast.
TARGET = detect("portable")
TINY = Conv2d(N=1, C=5, H=6, W=6, K=8, R=3, S=3, pad=1)
MEASURED = LEVELS["measure"].measured


@pytest.fixture
def wisdom(tmp_path: Path) -> Wisdom:
    return Wisdom(tmp_path / "wisdom.sqlite")


optimize = partial(tune.optimize, target=TARGET)


def right(result: Result) -> bool:
    """Whether the primitive computes what it should."""
    exact, primitive = Arrays.of(result.problem, 1), result.primitive()
    inputs = exact.inputs
    wp = primitive.pack_weights(inputs["w"])
    plain = primitive(inputs["x"], wp)
    low, high = map(float, inputs["clamp"])
    fused = primitive(
        inputs["x"], wp, bias=inputs["bias"], residual=inputs["residual"], clamp=(low, high)
    )
    return np.array_equal(plain, exact.plain) and np.array_equal(fused, exact.fused)


def test_estimate_runs_nothing(wisdom: Wisdom) -> None:
    stages: list[str] = []
    result = optimize(
        TINY, "estimate", wisdom=wisdom, progress=lambda step: stages.append(step.stage)
    )
    assert (result.measurement, result.trials, result.interrupted) == (None, (), False)
    assert (result.level, result.threads, result.problem) == ("estimate", 1, TINY)
    assert result.predicted > 0 and 0 < result.spent < 30
    assert stages == ["ranking", "compiling"]
    assert wisdom.list() == ()
    ranked = choices(tune.context_of(TINY, 1, TARGET), 5)
    assert (result.schedule, result.predicted) == (ranked[0].schedule, ranked[0].seconds)
    assert right(result)


@pytest.mark.exhaustive
def test_measure_tries_the_best_few_and_remembers(wisdom: Wisdom) -> None:
    steps: list[Progress] = []
    result = optimize(TINY, wisdom=wisdom, progress=steps.append)
    assert 1 < len(result.trials) <= MEASURED
    assert all(trial.seconds and not trial.fault for trial in result.trials)
    assert result.schedule in [trial.schedule for trial in result.trials]
    assert result.measurement is not None
    assert result.measurement.schedule == str(result.schedule) == str(result.source.schedule)
    assert result.measurement.flops == TINY.flops and len(result.measurement.seconds) >= 3
    assert result.measurement.peak_gflops and result.measurement.peak_gflops > 0
    fastest = min(trial.seconds for trial in result.trials if trial.seconds)
    # A tie, or the noise between two rounds, may give it to another one that is nearly as fast.
    assert result.measurement.median < 3 * fastest
    stages = [step.stage for step in steps if step.stage != "repeating"]  # beside other work
    assert list(dict.fromkeys(stages)) == ["ranking", "measuring", "comparing"]
    assert all(step.total >= len(result.trials) for step in steps if step.stage == "measuring")
    assert right(result)
    (record,) = [r for r in wisdom.list() if r.level != "trial"]
    assert (record.problem, record.schedule, record.level) == (
        TINY.key, str(result.schedule), "measure",
    )  # fmt: skip
    assert record.seconds == result.measurement.median
    reused(result, wisdom)


def reused(first: Result, wisdom: Wisdom) -> None:
    """Records answer for this level and those below it; nothing is measured again."""
    named = TINY.with_(name="other", multiplicity=3)
    for level in ("measure", "estimate", "wisdom-only"):
        start = time.monotonic()
        again = optimize(named, level, wisdom=wisdom)
        assert again.trials == () and time.monotonic() - start < 2
        assert again.schedule == first.schedule and again.source == first.source
        assert again.measurement is not None and again.measurement.protocol == "recorded"
        assert again.problem == named
    with pytest.raises(WisdomError, match="no record"):
        optimize(TINY, "wisdom-only", 2, wisdom=wisdom)
    with pytest.raises(WisdomError, match="no record"):
        optimize(TINY.with_(layout="nchw"), "wisdom-only", wisdom=wisdom)


def test_wisdom_only_without_a_record(wisdom: Wisdom) -> None:
    with pytest.raises(WisdomError, match=r"no record for mb1ic5.*1 thread\(s\).*polysci optimize"):
        optimize(TINY, "wisdom-only", wisdom=wisdom)
    assert not wisdom.path.exists()


@pytest.mark.exhaustive
def test_a_time_limit_ends_the_search(wisdom: Wisdom) -> None:
    start = time.monotonic()
    result = optimize(TINY, "patient", wisdom=wisdom, time_limit=0.5)
    assert time.monotonic() - start < 20
    assert 0 < len(result.trials) < LEVELS["patient"].measured
    assert right(result)
    (record,) = [r for r in wisdom.list() if r.level != "trial"]
    assert record.level == "estimate"  # it shall not pass for a patient search


@pytest.mark.exhaustive
def test_two_threads(wisdom: Wisdom) -> None:
    problem = Conv2d(N=1, C=32, H=24, W=24, K=32, R=3, S=3, pad=1)  # worth a second thread
    result = optimize(problem, threads=2, wisdom=wisdom, time_limit=0.5)
    assert "num_threads(2)" in result.source.text
    assert result.schedule.parallel and right(result)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": "hard"}, "level 'hard': expected one of wisdom-only, estimate, measure"),
        ({"threads": 0}, "threads=0: expected 1 to 1024"),
        ({"time_limit": 0}, "time_limit=0: expected a positive number"),
        ({"time_limit": float("nan")}, "time_limit=nan"),
        ({"ranker": "oracle"}, "ranker 'oracle'"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: dict[str, object], message: str, wisdom: Wisdom
) -> None:
    with pytest.raises(SpecError, match=message):
        optimize(TINY, **{"level": "estimate", "wisdom": wisdom} | arguments)


def test_a_problem_beyond_memory_is_refused(wisdom: Wisdom) -> None:
    huge = Conv2d(N=1 << 20, C=1 << 10, H=56, W=56, K=1, R=1, S=1)
    with pytest.raises(SpecError, match=r"beyond the .* bytes of memory"):
        optimize(huge, "estimate", wisdom=wisdom)


def test_an_empty_batch_gives_empty_results(wisdom: Wisdom) -> None:
    result = optimize(TINY.with_(N=0), wisdom=wisdom)
    assert (result.problem.N, result.level, result.trials) == (0, "measure", ())
    primitive = result.primitive()
    wp = primitive.pack_weights(np.ones(TINY.w_shape, np.float32))
    assert primitive(np.ones((0, 6, 6, 5), np.float32), wp).shape == (0, 6, 6, 8)


# --- candidates that misbehave -----------------------------------------------------------------

Sabotage = Callable[..., list[Schedule]]


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Sabotage:
    """``sabotage({2: "segfault"}, others)``: the model's third choice becomes faulty code."""
    ranked = [c.schedule for c in choices(tune.context_of(TINY, 1, TARGET), MEASURED)]

    def replaced(faults: dict[int, str], others: str = "") -> list[Schedule]:
        broken = {ranked[index]: fault for index, fault in faults.items()}
        assert len(broken) == len(faults)

        def emit(problem: Conv2d, plan: Schedule, *words: Any) -> Source:
            source = tune.emit(problem, plan, *words)
            fault = broken.get(plan, others)
            if not fault:
                return source
            if fault in naive.FAULTS:
                return naive.with_text(source, naive.text(problem, source.symbol, fault))
            return naive.with_text(source, f"{fault}\n{source.text}")

        for module in ("measure.trials", "tune.search", "tune.trials"):
            monkeypatch.setattr(f"polysci.{module}.emit", emit)
        monkeypatch.setattr("polysci.tune.runner.Bench", partial(Bench, timeout=2))
        return list(broken)

    return replaced


@pytest.mark.exhaustive
def test_faulty_candidates_fall_out(
    sabotage: Sabotage, wisdom: Wisdom, caplog: pytest.LogCaptureFixture
) -> None:
    told = {
        "segfault": "SIGSEGV",
        "wrong": "wrong result",
        "loop": "longer than 2 s",
        "write_after": "wrote outside|SIGSEGV",
        "exit": "exited|ended",
        "this is no C": "error",
    }
    broken = sabotage(dict(enumerate(told)))
    with caplog.at_level(logging.WARNING):
        result = optimize(TINY, wisdom=wisdom)
    assert result.schedule not in broken and right(result)
    trials = {trial.schedule: trial for trial in result.trials}
    for plan, words in zip(broken, told.values(), strict=True):
        assert trials[plan].seconds is None
        assert any(word in trials[plan].fault for word in words.split("|")), trials[plan].fault
        assert str(plan) in caplog.text or "error" in words
    assert len(broken) < len(trials) <= MEASURED
    assert all(trial.seconds for plan, trial in trials.items() if plan not in broken)
    (record,) = [r for r in wisdom.list() if r.level != "trial"]
    assert record.schedule == str(result.schedule)


@pytest.mark.exhaustive
def test_a_candidate_that_fails_at_last_does_not_win(
    sabotage: Sabotage, wisdom: Wisdom, tmp_path: Path
) -> None:
    """It passes its check and its first timing, and crashes when the best are compared."""
    loads, size = tmp_path / "loads", f"{tune.SYMBOL}_workspace_size"
    (broken,) = sabotage(
        {
            0: f"""
#include <stdio.h>
#include <stdlib.h>
static int64_t {size}_of_the_sound_one(void);
int64_t {size}(void);
int64_t {size}(void)
{{
    FILE *file = fopen("{loads}", "a");
    fputc('x', file);
    if (ftell(file) > 2) abort();
    fclose(file);
    return {size}_of_the_sound_one();
}}
#define {size} static {size}_of_the_sound_one
"""
        }
    )
    result = optimize(TINY, wisdom=wisdom, time_limit=0.01)  # as many as are compared at last
    assert loads.read_text().startswith("xx"), "it was not among the best: no test"
    trials = {trial.schedule: trial for trial in result.trials}
    assert len(trials) == LEVELS["measure"].finalists
    assert "SIGABRT" in trials[broken].fault and trials[broken].seconds is None
    assert result.schedule != broken and right(result)


@pytest.mark.exhaustive
def test_no_candidate_survives(sabotage: Sabotage, wisdom: Wisdom) -> None:
    sabotage({}, "wrong")
    with pytest.raises(CheckError, match=r"no candidate survived: .*wrong result"):
        optimize(TINY, wisdom=wisdom)
    assert wisdom.list() == ()


@pytest.mark.parametrize("level", ["estimate", "measure"])
def test_without_a_compiler(level: str, wisdom: Wisdom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nonexistent/cc")
    with pytest.raises(BuildError, match="CC='/nonexistent/cc': no such program; install one"):
        optimize(TINY.with_(K=9), level, wisdom=wisdom)


# --- records -----------------------------------------------------------------------------------


def host_of(target: Target) -> str:
    return host_digest(f"{target} {target.features}")


def put(wisdom: Wisdom, target: Target, schedule: str, host: str | None = None) -> None:
    wisdom.record(
        TINY.key, 1, target.isa.features, "patient", schedule, 1e-9,
        host=host or host_of(target), isa=target.isa.name,
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "p > brgemm_avx512_f32_6x16",  # an instruction set that this machine lacks
        "p > brgemm_portable_f32_99x99",  # a kernel of some other version
        "z > brgemm_portable_f32_6x4",
        "hilbert(C) k p > brgemm_portable_f32_6x4",  # a directive of another version
        "c* > brgemm_portable_f32_6x4",  # illegal
        "no schedule",
    ],
)
def test_a_useless_record_is_ignored(
    text: str, wisdom: Wisdom, caplog: pytest.LogCaptureFixture
) -> None:
    old = replace(TARGET, features=())
    machine_path(old).write_text(assume_rates(old).to_json())
    put(wisdom, old, text)
    with caplog.at_level(logging.WARNING):
        result = optimize(TINY, "estimate", target=old, wisdom=wisdom)
    assert "_portable_" in result.schedule.kernel and right(result)
    assert f"ignoring the record {text}" in caplog.text
    with pytest.raises(WisdomError, match="no record"):
        optimize(TINY, "wisdom-only", target=old, wisdom=wisdom)


@pytest.mark.exhaustive
def test_a_record_of_another_machine_is_tried_not_trusted(wisdom: Wisdom) -> None:
    seed = parse("p:5 q:2 k:4 p > brgemm_portable_f32_2x4")
    put(wisdom, TARGET, str(seed), host="elsewhere")
    with pytest.raises(WisdomError, match="no record"):
        optimize(TINY, "wisdom-only", wisdom=wisdom)
    result = optimize(TINY, wisdom=wisdom, time_limit=0.5)
    trial = next(trial for trial in result.trials if trial.schedule == seed)
    assert trial.seconds and trial.seconds > 1e-9


@pytest.mark.exhaustive
def test_a_result_survives_a_wisdom_file_that_cannot_be_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    wisdom = Wisdom(tmp_path / "file" / "wisdom.sqlite")
    with caplog.at_level(logging.WARNING):
        result = optimize(TINY, wisdom=wisdom, time_limit=0.5)
    assert result.measurement is not None and right(result)
    assert "continuing without records" in caplog.text
    assert "the result is not recorded" in caplog.text
    caplog.clear()
    with pytest.raises(WisdomError, match="no record for mb1"):
        optimize(TINY, "wisdom-only", wisdom=wisdom)
    assert "continuing without records" in caplog.text and "cannot be opened" in caplog.text


# --- Ctrl-C ------------------------------------------------------------------------------------

PATIENT = """
import sys
from pathlib import Path
from typing import Any
from polysci.ops import parse_problem
from polysci.target.host import detect
from polysci.tune import optimize
from polysci.tune.wisdom import Wisdom

result = optimize(
    parse_problem(sys.argv[1]), "patient", target=detect("portable"), wisdom=Wisdom(sys.argv[2]),
    progress=lambda step: print(step.stage, step.done, flush=True),
)
measured = sum(trial.seconds is not None for trial in result.trials)
print("result", result.interrupted, measured, result.measurement.seconds[0] > 0, flush=True)
"""


@pytest.fixture
def search(wisdom: Wisdom) -> Iterator[subprocess.Popen[str]]:
    """A patient search under way."""
    with started(sys.executable, "-c", PATIENT, str(TINY), str(wisdom.path)) as search:
        yield search


@pytest.mark.exhaustive
def test_ctrl_c_keeps_what_was_measured(wisdom: Wisdom, search: subprocess.Popen[str]) -> None:
    assert search.stdout is not None
    for line in search.stdout:
        stage, done = line.split()
        if stage == "measuring" and int(done) > 0:
            break
    start = time.monotonic()
    search.send_signal(signal.SIGINT)
    out, err = search.communicate(timeout=30)
    assert time.monotonic() - start < 15  # a patient search takes minutes
    assert search.returncode == 0, err
    words = out.splitlines()[-1].split()
    assert (words[:2], words[3:]) == (["result", "True"], ["True"])
    assert 0 < int(words[2]) < LEVELS["patient"].measured
    (record,) = [r for r in wisdom.list() if r.level != "trial"]
    assert record.level == "estimate"


@pytest.mark.exhaustive
def test_ctrl_c_before_anything_was_measured_propagates(
    wisdom: Wisdom, search: subprocess.Popen[str]
) -> None:
    assert search.stdout is not None
    assert search.stdout.readline() == "ranking 0\n"
    search.send_signal(signal.SIGINT)
    _, err = search.communicate(timeout=30)
    assert "KeyboardInterrupt" in err and search.returncode != 0
    assert wisdom.list() == ()


@pytest.mark.exhaustive
def test_weights_of_many_megabytes_are_timed() -> None:
    """Memory this large is unmapped when it is freed: a pointer that outlives it crashes."""
    problem = Conv2d(N=1, C=1024, H=3, W=3, K=1024, R=3, S=3, pad=1)
    result = optimize(problem, "estimate")
    with Bench(problem) as bench:
        (samples,) = bench.time([(cache.build(result.source.file), tune.SYMBOL)], samples=3)
    assert len(samples.seconds) >= 3


@pytest.mark.parametrize("weights", ["s4a8x32", "s4x32"])
def test_products_by_blocks_are_measured(weights: str) -> None:
    """Their peak is that of products of bytes, or of f32."""
    problem = parse_problem("linear:4x64x32", "", f"f32:{weights}:f32")
    result = tune.optimize(problem, target=TARGET, time_limit=5)
    assert result.measurement is not None and result.measurement.peak_gflops
