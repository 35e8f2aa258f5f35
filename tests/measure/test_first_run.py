"""The first run of code on a machine: checked once, remembered, and never handed out wrong."""

import json
import logging
import os
import signal
import threading

import numpy as np
import pytest

import polysci
from polysci import notation
from polysci.errors import CheckError
from polysci.measure import first_run
from polysci.measure.bench import Bench
from polysci.measure.first_run import has_run, note_run
from polysci.network import build
from polysci.ops import parse_problem
from polysci.tune import optimize
from tests.support import fakecompiler

LAYER = "mb1ic5ih9oc7oh9kh3ph1"
PROGRAM = "def f(float(6) A) -> (O) { O(i) = A(i) + 1.0 }"
# What a compiler makes of the end of a tile.
WRONG = "s/ps_end(acc, t/if (t.rows > 64) ps_end(acc, t/"
CRASH = "s/ps_end(acc, t/__builtin_trap(); ps_end(acc, t/"


@pytest.fixture
def cache(tmp_path, monkeypatch, shared_cache):
    """A cache without builds, with the session's rates."""
    for file in shared_cache.glob("machine-*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tmp_path.chmod(0o700)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def checks(monkeypatch):
    """The symbols of what a worker checked."""
    checked, check = [], Bench.check

    def record(self, *words):
        checked.append(words[0])
        check(self, *words)

    monkeypatch.setattr(Bench, "check", record)
    return checked


@pytest.fixture
def spoil(tmp_path_factory, monkeypatch):
    """A compiler that changes the C first, by a command of sed."""

    def use(command):
        change = f"case $word in *.c) sed -i '{command}' $word;; esac"
        path = fakecompiler.write(tmp_path_factory.mktemp("cc"), f"for word; do {change}; done")
        monkeypatch.setenv("CC", str(path))

    return use


def test_code_is_checked_once(cache, checks):
    primitive = polysci.compile(LAYER, "estimate")
    assert len(checks) == 1 and has_run(primitive.library.path)
    polysci.compile(LAYER, "estimate")
    optimize(parse_problem(LAYER), "estimate")
    assert len(checks) == 1
    worker = first_run._kept.benches["host"].pid
    polysci.compile(LAYER, "estimate", schedule=str(primitive.schedule), flush_denormals=False)
    same = first_run._kept.benches["host"].pid == worker  # other code, the same process
    assert len(checks) == 2 and same


@pytest.mark.exhaustive
def test_an_option_turns_it_off(cache, checks):
    polysci.compile(LAYER, "estimate", verify=False)
    assert not checks
    with pytest.raises(TypeError, match="verify: expected"):
        polysci.compile(LAYER, "estimate", verify=1)


@pytest.mark.exhaustive
def test_what_was_measured_is_not_checked_again(cache, checks):
    result = optimize(parse_problem(LAYER), "measure", time_limit=1)
    count = len(checks)
    result.primitive()
    assert len(checks) == count


@pytest.mark.exhaustive
@pytest.mark.parametrize("mark", [b"", b"{", b"0" * 64])
def test_damaged_notes_mean_that_it_is_checked_again(cache, checks, mark):
    path = polysci.compile(LAYER, "estimate").library.path
    path.with_name("has_run").write_bytes(mark)
    assert not has_run(path)
    polysci.compile(LAYER, "estimate")
    assert len(checks) == 2 and has_run(path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("command", "said"), [(WRONG, "wrong result"), (CRASH, "crashed with SIG(ILL|TRAP)")]
)
def test_faulty_code_is_an_error(cache, spoil, caplog, command, said):
    spoil(command)
    with pytest.raises(CheckError, match=f"(?s){LAYER}: .* > .*{said}.*\nto repeat: polysci check"):
        polysci.compile(LAYER, "estimate")
    tried = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert 1 < len(tried) <= 5


@pytest.mark.exhaustive
def test_a_schedule_that_was_asked_for(cache, spoil):
    chosen = str(optimize(parse_problem(LAYER), "estimate").schedule)
    spoil(WRONG)
    with pytest.raises(CheckError, match="wrong result"):
        polysci.compile(LAYER, schedule=chosen)


@pytest.mark.exhaustive
def test_the_next_choice_is_taken(cache, monkeypatch, caplog):
    check, faults = first_run._Kept.check, []

    def refuse_first(self, path, *words):
        if not faults:
            faults.append(path)
            raise first_run.CandidateError((path, "f"), "wrong result")
        check(self, path, *words)

    best = optimize(parse_problem(LAYER), "estimate", verify=False).schedule
    monkeypatch.setattr(first_run._Kept, "check", refuse_first)
    result = optimize(parse_problem(LAYER), "estimate")
    assert result.schedule != best and not has_run(faults[0])
    assert f"{LAYER}: {best}: its first run failed" in caplog.text


@pytest.mark.exhaustive
def test_threads_take_turns(cache, checks):
    layers = [f"mb1ic{c}ih9oc7kh3ph1" for c in (3, 5, 6)]
    done = []
    threads = [
        threading.Thread(target=lambda it=it: done.append(polysci.compile(it, "estimate")))
        for it in layers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == len(checks) == 3


@pytest.mark.exhaustive
def test_a_worker_that_died_is_started_again(cache, checks):
    polysci.compile(LAYER, "estimate")
    os.kill(first_run._kept.benches["host"].pid, signal.SIGKILL)
    polysci.compile("mb1ic6ih9oc7kh3ph1", "estimate")
    assert len(checks) == 2


@pytest.mark.exhaustive
def test_no_worker_is_said_so(cache, monkeypatch):
    def fail(self, *words):
        raise CheckError("cannot start python: Permission denied")

    monkeypatch.setattr(first_run._Kept, "check", fail)
    with pytest.raises(
        CheckError, match=r"no process to check .* Permission denied; .*verify=False"
    ):
        polysci.compile(LAYER, "estimate")


@pytest.mark.exhaustive
def test_a_network_runs_first_in_a_process_of_its_own(cache, monkeypatch):
    begun, start = [], build.NetworkProcess.__init__

    def record(self, *words):
        begun.append(words)
        start(self, *words)

    monkeypatch.setattr(build.NetworkProcess, "__init__", record)
    a = np.arange(6, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(notation.compile(PROGRAM, level="estimate")(a), a + 1)
    assert len(begun) == 1


@pytest.mark.exhaustive
def test_a_network_that_crashes_is_an_error(cache, spoil):
    spoil(
        "s/^static void stages(const ps_memory \\*m)$/&;&/;s/^    f_s0(m);$/    __builtin_trap();/"
    )
    message = "network f: its first run, in a process of its own, failed: .*crashed with SIG"
    with pytest.raises(CheckError, match=message):
        notation.compile(PROGRAM, level="estimate")


@pytest.mark.exhaustive
def test_a_note_is_of_one_shared_object(cache):
    path = polysci.compile(LAYER, "estimate", verify=False).library.path
    assert not has_run(path)
    note_run(path)
    assert has_run(path)
    entry = json.loads(path.with_name("entry.json").read_text())
    path.with_name("entry.json").write_text(json.dumps(entry | {"sha256": "0" * 64}))
    assert not has_run(path)
