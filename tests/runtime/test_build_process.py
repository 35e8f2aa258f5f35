"""Programs that fail, hang and crash; children that answer, die and are started again."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from polysci.errors import BuildError, CheckError
from polysci.runtime.build.process import Child, exit_text, kill_started_by, run
from tests.support.command import started

ECHO = """
import ctypes, json, os, sys, time
for line in sys.stdin:
    message = json.loads(line)
    if signal := message.get("signal"):
        os.kill(os.getpid(), signal)
    if message.get("loop"):
        while True:
            pass
    if (status := message.get("exit")) is not None:
        print("the reason", file=sys.stderr, flush=True)
        os._exit(status)
    if raw := message.get("raw"):
        print(raw, flush=True)
        continue
    if message.get("close"):
        os.close(1)
        time.sleep(60)
    print(json.dumps({"length": len(message.get("text", "")), "pid": os.getpid()}), flush=True)
"""


@pytest.fixture
def child():
    with Child([sys.executable, "-S", "-c", ECHO]) as made:
        yield made


def running(word):
    """The processes with this word on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in path.read_bytes().decode(errors="replace").split("\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def soon(condition, seconds=10.0):
    """Wait for the condition; False if it does not come true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_run_returns_what_was_said():
    done = run(["sh", "-c", "cat; echo oops >&2; exit 3"], timeout=10, input="text")
    assert (done.code, done.stdout, done.stderr) == (3, "text", "oops\n")
    assert not done.ok and str(done) == "exited with status 3"


def test_run_adds_to_the_environment(tmp_path):
    done = run(
        ["sh", "-c", "echo $A $PWD; test -n $PATH"], timeout=10, cwd=tmp_path, env={"A": "b"}
    )
    assert done.ok and done.stdout == f"b {tmp_path}\n"


def test_run_names_the_signal():
    assert str(run(["sh", "-c", "kill -SEGV $$"], timeout=10)) == "crashed with SIGSEGV"
    assert exit_text(-99) == "crashed with signal 99"


def test_run_of_nothing():
    with pytest.raises(BuildError, match="cannot start /no/such/program: No such file"):
        run(["/no/such/program"], timeout=1)


def test_a_time_limit_ends_the_whole_group():
    start = time.monotonic()
    done = run(["sh", "-c", "sleep 7654.321 & echo early; sleep 7654.321; exit 0"], timeout=0.3)
    assert done.timed_out and not done.ok and done.stdout == "early\n"
    assert str(done) == "ran longer than 0.3 s and was killed"
    assert time.monotonic() - start < 5
    assert soon(lambda: not running("7654.321"))


def test_nothing_is_left_behind_by_a_program_that_ended():
    assert run(["sh", "-c", "sleep 7654.322 >/dev/null 2>&1 &"], timeout=10).ok
    assert soon(lambda: not running("7654.322"))


@pytest.mark.exhaustive
def test_a_process_that_left_the_group_does_not_hold_us():
    start = time.monotonic()
    done = run(["sh", "-c", "setsid sleep 9 & sleep 9"], timeout=0.2)
    assert done.timed_out
    assert time.monotonic() - start < 6


def test_what_other_threads_run_is_left_alone():
    kill_started_by({1, 2, 3})
    assert run(["true"], timeout=10).ok


def test_long_questions_and_many(child):
    assert child.ask({"text": "x" * 1_000_000}, 10)["length"] == 1_000_000
    assert [child.ask({"text": "x" * n}, 10)["length"] for n in range(20)] == list(range(20))
    assert child.alive


def test_a_crash_is_named_and_survived(child):
    first = child.pid
    with pytest.raises(CheckError, match=r"child process python[^ ]* crashed with SIGSEGV"):
        child.ask({"signal": signal.SIGSEGV}, 10)
    assert not child.alive and child.pid is None
    with pytest.raises(CheckError, match="is not running: restart it first"):
        child.ask({}, 10)
    child.restart()
    assert child.ask({}, 10)["pid"] == child.pid != first


def test_its_last_words_are_shown(child):
    with pytest.raises(CheckError, match="exited with status 7; its last words:\nthe reason"):
        child.ask({"exit": 7}, 10)


def test_a_loop_is_killed(child):
    pid = child.pid
    with pytest.raises(CheckError, match=r"ran longer than 0\.2 s and was killed"):
        child.ask({"loop": True}, 0.2)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("raw", ["hello", "[1]", '{"a": 1}\n{"b": 2}'])
def test_an_answer_must_be_one_object(child, raw):
    with pytest.raises(CheckError, match="instead of one JSON object"):
        child.ask({"raw": raw}, 10)


def test_a_closed_output_is_the_end(child):
    with pytest.raises(CheckError, match="closed its output"):
        child.ask({"close": True}, 10)


def test_death_between_questions_shows_at_the_next(child):
    os.kill(child.pid, signal.SIGKILL)
    assert soon(lambda: not child.alive)
    with pytest.raises(CheckError, match="crashed with SIGKILL"):
        child.ask({"text": "x" * 1_000_000}, 10)


def test_a_child_that_reads_nothing_cannot_block_us():
    with (
        Child(["sleep", "60"]) as made,
        pytest.raises(CheckError, match=r"longer than 0\.2 s"),
    ):
        made.ask({"text": "x" * 1_000_000}, 0.2)


def test_a_child_that_cannot_start():
    with pytest.raises(CheckError, match="cannot start /no/such/program"):
        Child(["/no/such/program"])


def test_closing_twice_and_dropping(child):
    pid = child.pid
    child.close()
    child.close()
    assert not Path(f"/proc/{pid}").exists()
    dropped = Child([sys.executable, "-S", "-c", ECHO])
    pid = dropped.pid
    del dropped
    assert not Path(f"/proc/{pid}").exists()


PARENT = """
import os, sys, threading
from polysci.runtime.build.process import Child
child = Child([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
{rest}
"""
LOOP_IN_C = """
import ctypes
from polysci.runtime.build.process import exit_with_parent
exit_with_parent(0.05)
print('{"ready": 1}', flush=True)
while True:
    ctypes.CDLL(None).sleep(1000)
"""


@pytest.fixture
def parent():
    """``parent(rest, code)``: a process, ended with the test, and the id of its child."""
    with contextlib.ExitStack() as stack:

        def start(rest, code):
            made = stack.enter_context(
                started(sys.executable, "-c", PARENT.format(rest=rest), code)
            )
            return made, int(made.stdout.readline())

        yield start


def test_ctrl_c_leaves_no_child(parent):
    made, pid = parent("print('asking', flush=True); child.ask({'loop': True}, 60)", ECHO)
    assert made.stdout.readline() == "asking\n"
    made.send_signal(signal.SIGINT)
    _, err = made.communicate(timeout=10)
    assert "KeyboardInterrupt" in err
    assert soon(lambda: not Path(f"/proc/{pid}").exists())


def test_an_exit_leaves_no_child(parent):
    made, pid = parent("sys.exit(0)", ECHO)
    made.communicate(timeout=10)
    assert made.returncode == 0
    assert soon(lambda: not Path(f"/proc/{pid}").exists())


def test_a_fork_that_exits_does_not_end_its_parents_child(parent):
    rest = """
if os.fork() == 0:
    sys.exit(0)
os.wait()
print(child.ask({}, 10)["pid"], flush=True)
"""
    made, pid = parent(rest, ECHO)
    out, _ = made.communicate(timeout=10)
    assert out == f"{pid}\n"


@pytest.mark.exhaustive
def test_a_killed_parent_takes_its_child_along_even_from_a_loop_in_c(parent):
    made, pid = parent(
        "child.ask({}, 10); print('ready', flush=True); child.ask({}, 60)", LOOP_IN_C
    )
    assert made.stdout.readline() == "ready\n"
    made.kill()
    made.communicate(timeout=10)
    assert soon(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.exhaustive
def test_input_reaches_a_program_that_is_waited_for_twice():
    slow = "import sys, time; time.sleep(0.5)\nwhile time.process_time() < 0.5: pass\n"
    command = [sys.executable, "-S", "-c", f"{slow}print(len(sys.stdin.read()))"]
    done = run(command, timeout=0.9, input="x" * 300_000, working=True)
    assert done.ok and done.stdout == "300000\n"
