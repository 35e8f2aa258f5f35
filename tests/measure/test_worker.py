"""The worker process and its parts: exact inputs, guarded memory, questions and answers."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from math import prod
from pathlib import Path

import numpy as np
import pytest

from polysci.errors import BuildError, CheckError, SpecError
from polysci.measure import integer_reference
from polysci.measure import worker as worker_module
from polysci.measure.operands import Guarded
from polysci.ops.convolutions import Conv2d
from polysci.printers import interface
from polysci.runtime.backend import bind
from polysci.runtime.backends.host import Host
from polysci.runtime.build.cache import build
from polysci.runtime.build.process import Child
from polysci.target.target import HOST
from tests.support import naive

SMALL = Conv2d(N=2, C=3, H=9, W=8, K=5, R=3, S=3, pad=1, stride=(2, 1))
COMMAND = (sys.executable, "-m", "polysci.measure.worker", HOST)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYSCI_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def shared_worker() -> Iterator[Child]:
    with Child(COMMAND) as child:
        yield child


@pytest.fixture
def worker(shared_worker: Child) -> Child:
    if not shared_worker.alive:
        shared_worker.restart()
    prepare(shared_worker, SMALL)
    return shared_worker


def prepare(worker: Child, problem: Conv2d) -> None:
    words = {"problem": str(problem), "layout": problem.layout, "dtype": problem.dtype}
    assert worker.ask({"op": "prepare", **words, "seed": 0}, 60) == {}


def check(worker: Child, so: Path, symbol: str = "naive") -> dict[str, str]:
    return worker.ask({"op": "check", "so": str(so), "symbol": symbol}, 60)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "problem",
    [
        SMALL,
        SMALL.with_(layout="nchw"),
        Conv2d(N=1, C=4, H=6, W=7, K=6, R=2, S=3, pad=(2, 1), dilation=2, groups=2),
        Conv2d(N=1, C=1, H=1, W=1, K=1, R=1, S=1),
        Conv2d(N=1, C=8, H=5, W=5, K=8, R=3, S=3, P=4, Q=4, groups=8, layout="nchw"),
    ],
    ids=str,
)
def test_plain_loops_pass(worker: Child, problem: Conv2d) -> None:
    prepare(worker, problem)
    assert check(worker, naive.compiled(problem)) == {}


def test_prints_go_to_stderr_and_stdin_is_empty(worker: Child) -> None:
    for fault in ("prints", "reads_stdin"):
        assert check(worker, naive.compiled(SMALL, fault=fault)) == {}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("wrong", r"plain call: wrong result: 1 of 400 elements differ, the first at \[1, 0,"),
        ("unwritten", r"1 of 400 elements differ, the first at \[1, 4, 7, 4\]: .*, got nan"),
        ("ignores_clamp", r"bias \+ residual \+ clamp call: wrong result: "),
        ("write_before", "wrote outside y: as far as 4 bytes before the start"),
        ("no_isa", "lacks the instruction set"),
        ("bad_status", "returned 7, expected 0"),
    ],
)  # fmt: skip
def test_faults_that_the_worker_survives(worker: Child, fault: str, message: str) -> None:
    answer = check(worker, naive.compiled(SMALL, fault=fault))
    with pytest.raises(CheckError, match=message):
        raise CheckError(answer["fault"])
    assert check(worker, naive.compiled(SMALL)) == {}


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("segfault", "SIGSEGV.*\n.*plain call, with the end"),
        ("abort", "SIGABRT"),
        ("exit", "exited with status 0"),
        ("write_after", "SIGSEGV.*\n.*plain call, with the end"),
        ("read_after", "SIGSEGV.*\n.*plain call, with the end"),
        ("read_before", "SIGSEGV.*\n.*clamp call, with the start"),
        ("write_input", "SIGSEGV.*\n.*plain call, with the end"),
        ("workspace_after", "SIGSEGV.*\n.*plain call, with the end"),
    ],
)
def test_faults_that_kill_the_worker(worker: Child, fault: str, message: str) -> None:
    with pytest.raises(CheckError, match=message):
        check(worker, naive.compiled(SMALL, fault=fault))


def test_a_library_without_the_symbol_or_with_odd_sizes_is_a_fault(worker: Child) -> None:
    assert "other" in check(worker, naive.compiled(SMALL), "other")["fault"]
    assert "C identifier" in check(worker, naive.compiled(SMALL), "no-name")["fault"]
    odd = naive.text(SMALL).replace("return WSSIZE * 4", "return -1")
    assert "negative size of workspace (-1)" in check(worker, build(odd))["fault"]
    assert "ELF" in check(worker, Path(__file__))["fault"]


@pytest.mark.exhaustive
def test_an_unknown_question_ends_the_worker(worker: Child) -> None:
    with pytest.raises(CheckError, match=r"(?s)exited with status 1.*expected one of prepare"):
        worker.ask({"op": "main"}, 60)


def test_samples_are_seconds_a_call(worker: Child) -> None:
    question = {"op": "load", "so": str(naive.compiled(SMALL)), "symbol": "naive"}
    for handle, cold_bytes in enumerate((0, 1 << 20)):
        options = {"cold_bytes": cold_bytes, "min_sample_s": 1e-4}
        assert worker.ask(question | options, 60) == {"handle": handle}
        seconds = worker.ask({"op": "sample", "handle": handle}, 60)["seconds"]
        assert 1e-7 < seconds < 1e-1
    assert worker.ask({"op": "unload"}, 60) == {}


def test_copies_of_the_weights_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_stage", lambda text: None)  # it empties stderr
    worker = worker_module.Worker(Host())
    worker.prepare(str(SMALL), SMALL.layout, 0)
    size = 4 * SMALL.K * SMALL.C * SMALL.R * SMALL.S
    options = {"cold_bytes": 20 * size, "min_sample_s": 1e-5}
    places = []
    for weights_only in (True, False):
        worker.load(str(naive.compiled(SMALL)), "naive", **options, weights_only=weights_only)
        calls = list(islice(worker._timed[-1][0].arguments, 50))
        places.append([len({str(words[at]) for words in calls}) for at in range(3)])
    (x, w, y), other = places
    assert (x, w, y) == (1, 21, 1) and len(set(other)) == 1 < other[0] < 21


def test_the_worker_ends_with_its_parent() -> None:
    script = (
        "import sys, os\n"
        "from polysci.runtime.build.process import Child\n"
        f"child = Child({COMMAND!r})\n"
        "child.ask({'op': 'unload'}, 60)\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    # Its pipes are closed, so it ends on its own; where it is already gone there is no such file.
    stat = Path(f"/proc/{done.stdout.strip()}/stat")
    for _ in range(100):
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    pytest.fail(f"the worker still runs: {stat}")


def test_inputs_are_as_large_as_exactness_allows() -> None:
    assert integer_reference.largest_value(SMALL) == 4
    assert integer_reference.largest_value(SMALL.with_(C=1 << 18, groups=1)) == 2
    assert integer_reference.largest_value(SMALL.with_(C=1 << 20, groups=1)) == 1
    for seed in range(3):
        arrays = integer_reference.Arrays.of(SMALL, seed)
        assert set(np.unique(arrays.inputs["x"])) == set(range(-4, 5))
        doubles = [arrays.inputs[name].astype(np.float64) for name in ("x", "w")]
        assert np.array_equal(SMALL.reference(*doubles), arrays.plain)
        low, high = arrays.inputs["clamp"]
        rest = [arrays.inputs[name] for name in ("bias", "residual", "clamp")]
        assert np.array_equal(
            SMALL.reference(*(arrays.inputs[n] for n in "xw"), *rest), arrays.fused
        )
        assert 0.05 < np.isin(arrays.fused, (low, high)).mean() < 0.8


def test_the_same_seed_gives_the_same_inputs() -> None:
    one, same, other = (integer_reference.Arrays.of(SMALL, seed).inputs["x"] for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


def test_a_difference_counts_and_locates() -> None:
    expected = np.zeros((2, 3), np.float32)
    assert integer_reference.difference(expected.copy(), expected) is None
    got = expected.copy()
    got[1, 0], got[1, 2] = np.nan, -1
    assert integer_reference.difference(got, expected) == (
        "2 of 6 elements differ, the first at [1, 0]: expected 0.0, got nan"
    )


GUARDED = """
import sys
from polysci.measure.operands import Guarded
buffer = Guarded(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
if sys.argv[5] == "frozen":
    buffer.freeze()
base = buffer.array.ctypes.data
import ctypes
ctypes.memset(base + int(sys.argv[4]), 0, 1)
print(buffer.first_trespass())
"""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("size", "side", "align", "at", "state", "outcome"),
    [
        (100, "end", 4, 99, "", "None"),
        (100, "end", 4, 100, "", -signal.SIGSEGV),
        (100, "end", 4, -1, "", "as far as 1 bytes before the start"),
        (100, "end", 64, 100, "", "as far as 1 bytes after the end"),
        (100, "end", 64, 128, "", -signal.SIGSEGV),
        (100, "start", 4, -1, "", -signal.SIGSEGV),
        (100, "start", 4, 103, "", "as far as 4 bytes after the end"),
        (4096, "start", 4, 4096, "", -signal.SIGSEGV),
        (0, "end", 64, 0, "", -signal.SIGSEGV),
        (100, "end", 4, 0, "frozen", -signal.SIGSEGV),
    ],
)
def test_guards(size: int, side: str, align: int, at: int, state: str, outcome: int | str) -> None:
    words = [sys.executable, "-c", GUARDED, str(size), side, str(align), str(at), state]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.stdout.strip() or done.returncode) == outcome


@pytest.mark.parametrize("size", [0, 4, 60, 64, 4092, 4096, 5000])
def test_guarded_buffers_are_aligned_and_sized(size: int) -> None:
    for side in ("start", "end"):
        buffer = Guarded(size, side, 64)
        assert buffer.array.ctypes.data % 64 == 0 or not size
        assert prod(buffer.array.shape) == size // 4 and buffer.raw.size == size
        buffer.array[:] = 1
        assert buffer.first_trespass() is None


def test_symbols_must_be_identifiers() -> None:
    for symbol in ("", "1a", "a b", "a;", "ä"):
        with pytest.raises(SpecError, match="C identifier"):
            interface.declarations(symbol)


@pytest.mark.exhaustive
def test_run_by_hand_it_speaks_json_lines() -> None:
    questions = json.dumps({"op": "unload"}) + "\n"
    done = subprocess.run(COMMAND, input=questions, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{}\n", "")


def test_a_missing_function_is_a_build_error() -> None:
    from polysci.runtime.build.library import load

    so = build(naive.text(SMALL).replace("naive_packed_size", "naive_size"))
    with pytest.raises(BuildError, match="naive_packed_size"):
        bind(load(so, interface.declarations("naive")), "naive")


@pytest.mark.exhaustive
def test_it_starts_without_what_generates_code() -> None:
    """A search starts a worker after every fault of a candidate: isl would double that time."""
    code = "import sys, polysci.measure.worker; print({'islpy', 'cgen'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
