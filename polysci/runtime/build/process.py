"""Programs that may fail, hang or crash: one-shot runs, several at a time, JSON-speaking children.

Every program gets its own session, so that a time limit, an error or Ctrl-C in the parent ends the
whole group: a compiler driver never leaves its compiler proper behind.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import shlex
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, get_ident
from typing import IO, Any, Final, TypeVar, cast

from polysci.errors import BuildError, CheckError


@dataclass(frozen=True, slots=True)
class Completed:
    """End of a program; ``code`` is negative for a signal.

    ``over`` says what the time was of after which it was killed, empty by the clock.
    """

    cmd: tuple[str, ...]
    code: int
    stdout: str
    stderr: str
    seconds: float
    over: str | None = None

    @property
    def timed_out(self) -> bool:
        return self.over is not None

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.timed_out

    @property
    def command(self) -> str:
        """The command line, quoted for a shell."""
        return shlex.join(self.cmd)

    def __str__(self) -> str:
        if self.timed_out:
            return f"ran longer than {self.seconds:.3g} s{self.over} and was killed"
        return exit_text(self.code)


def exit_text(code: int) -> str:
    """Return what an exit status means: ``crashed with SIGSEGV``, ``exited with status 1``."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"crashed with {signal.Signals(-code).name}"
    except ValueError:
        return f"crashed with signal {-code}"


def run(
    cmd: Sequence[str],
    *,
    timeout: float,
    cwd: Path | None = None,
    input: str | None = None,  # noqa: A002 - the name that subprocess uses
    env: Mapping[str, str] | None = None,
    working: bool = False,
) -> Completed:
    """Run to the end or for ``timeout`` seconds; ``env`` is added to the environment.

    ``working``: these are of CPU time, so that a busy machine ends no sound program; one that
    sleeps instead is ended soon after so many seconds by the clock.
    BuildError: the program cannot be started. A failing program is a value, not an exception.
    """
    start = time.monotonic()
    try:
        # A pipe would do for one communicate() alone: the next does not go on writing.
        with Path(os.devnull).open("r+b") if input is None else tempfile.TemporaryFile() as file:
            file.write((input or "").encode())
            file.seek(0)
            process = subprocess.Popen(
                list(cmd),
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
    except OSError as error:
        raise BuildError(f"cannot start {cmd[0]}: {error.strerror or error}") from error
    over = None
    _running[process] = threading.get_ident()
    try:
        out, err, over = _communicate(process, timeout, working)
    finally:
        del _running[process]
        _kill_group(process)  # also what the program itself left behind
    return Completed(
        tuple(cmd),
        process.returncode,
        out.decode(errors="replace"),
        err.decode(errors="replace"),
        time.monotonic() - start if over is None else timeout,
        over,
    )


def _communicate(
    process: subprocess.Popen[bytes], timeout: float, working: bool
) -> tuple[bytes, bytes, str | None]:
    """Return what it wrote, and after what time it was killed, as ``Completed.over`` has it."""
    limit, wait = WorkLimit(process.pid, timeout), timeout
    while True:
        try:
            return *process.communicate(timeout=wait), None
        except subprocess.TimeoutExpired:
            over = limit.passed() if working else ""
        if over is not None:
            _kill_group(process)
            return *_drain(process), over
        wait = min(0.2, timeout)


def kill_started_by(threads: Collection[int]) -> None:
    """Kill what these threads, named by their identifiers, are running; :func:`run` returns."""
    for process, thread in _running.copy().items():
        if thread in threads and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


_running: dict[subprocess.Popen[bytes], int] = {}


class Child:
    """A long-lived program that answers one JSON line on stdout to each JSON line on stdin.

    ``env`` is added to the environment. Not answering is fatal for the program, never for us:
    it is killed with its group, a CheckError says why, and :meth:`restart` starts it again.
    """

    def __init__(self, cmd: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.cmd = tuple(cmd)
        self._env = {**os.environ, **(env or {})}
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._start()

    def _start(self) -> None:
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the program
        try:
            self._process = subprocess.Popen(
                list(self.cmd),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self._env,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            stderr.close()
            raise CheckError(f"cannot start {self.cmd[0]}: {error.strerror or error}") from error
        self._stderr = stderr
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        _CHILDREN.add(self)

    @property
    def alive(self) -> bool:
        """Tell whether the program runs."""
        return self._process is not None and _exit_code(self._process, wait=0) is None

    @property
    def pid(self) -> int | None:
        """The process id, which is also its group's; None after the end."""
        return self._process.pid if self._process is not None else None

    def ask(self, message: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Send one message and return the answer.

        CheckError: it crashed, ran longer than ``timeout`` seconds or did not answer in JSON; the
        group is killed before the error is raised. One question at a time: threads wait.
        """
        with self._lock:
            if self._process is None:
                raise CheckError(f"{self._name} is not running: restart it first")
            try:
                line = self._exchange(json.dumps(message).encode() + b"\n", timeout)
                return self._answer(line)
            except BaseException:  # an answer may still be under way: never read it as another's
                self._end()
                raise

    def _exchange(self, data: bytes, timeout: float) -> bytes:
        """Write ``data`` and read one line; both may block on the other, so both are polled."""
        process = cast("subprocess.Popen[bytes]", self._process)
        stdin, stdout = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        deadline = time.monotonic() + timeout
        received = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(stdin, selectors.EVENT_WRITE)
            selector.register(stdout, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                events = selector.select(max(0.0, deadline - time.monotonic()))
                if not events:
                    raise CheckError(f"{self._name} ran longer than {timeout:g} s and was killed")
                for key, _ in events:
                    if key.fileobj is stdin:
                        data = _write_some(stdin, data)
                        if not data:
                            selector.unregister(stdin)
                    elif part := os.read(stdout.fileno(), 1 << 16):
                        received += part
                    else:
                        raise CheckError(self._post_mortem(bytes(received)))
        return bytes(received)

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise CheckError(f"{self._name} answered {line[:200]!r} instead of one JSON object")
        return answer

    def _post_mortem(self, received: bytes) -> str:
        code = _exit_code(cast("subprocess.Popen[bytes]", self._process), wait=1)
        if code is None:
            return f"{self._name} closed its output after {received[:200]!r} and was killed"
        return f"{self._name} {exit_text(code)}{self._stderr_tail()}"

    def _stderr_tail(self) -> str:
        if self._stderr is None:
            return ""
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - 2000))
        text = self._stderr.read().decode(errors="replace").strip()
        return f"; its last words:\n{text}" if text else ""

    @property
    def _name(self) -> str:
        return f"child process {Path(self.cmd[0]).name}"

    def restart(self) -> None:
        """End the program if it runs, and start it afresh."""
        with self._lock:
            self._end()
            self._start()

    def close(self) -> None:
        """Kill the program and its group; any number of times, from any state."""
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if os.getpid() == self._owner:  # a fork of ours shares the pipes, not the program
                _kill_group(process)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None
        _CHILDREN.discard(self)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._end()


_CHILDREN: weakref.WeakSet[Child] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for child in list(_CHILDREN):
        child.close()


def exit_with_parent(interval: float = 1.0) -> None:
    """End this child process soon after its parent did, even inside a loop in C.

    A thread looks for a new parent every ``interval`` seconds; C code called through cffi or
    ctypes lets it run. (PR_SET_PDEATHSIG would fire when the *thread* that started us ends.)
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(interval)
        os.killpg(0, signal.SIGKILL) if os.getpgrp() == os.getpid() else os._exit(1)

    threading.Thread(target=watch, daemon=True, name="exit-with-parent").start()


def _write_some(pipe: IO[bytes], data: bytes) -> bytes:
    """Write what fits now and return the rest; nothing is left for a reader that is gone."""
    try:
        return data[os.write(pipe.fileno(), data) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:  # its end will show on its stdout
        return b""


def _drain(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return what a killed program wrote; empty if a process outside the group has the pipes."""
    try:
        return process.communicate(timeout=2)
    except subprocess.TimeoutExpired:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        return b"", b""


def _exit_code(process: subprocess.Popen[bytes], wait: float) -> int | None:
    """The exit status, negative for a signal; None while it runs, looking for ``wait`` seconds.

    The process stays unreaped: its id, which is its group's too, cannot go to a stranger before
    the group is killed.
    """
    deadline = time.monotonic() + wait
    while True:
        state = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if state is not None:
            return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.01)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the session's whole group and reap the leader."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


MOST_OF_CLOCK: Final = 10  # limits that a program may take by the clock, on whatever machine
ASLEEP_S: Final = 5.0  # without work, once the limit has passed by the clock
_TICK: Final = 1 / os.sysconf("SC_CLK_TCK")
_ASLEEP: Final = "SIZX"  # states of processes that wait for no core, no disk and no signal


@dataclass(slots=True)
class WorkLimit:
    """Limit of the time that a session's processes may work, in seconds; it begins with them."""

    session: int
    seconds: float
    start: float = field(default_factory=time.monotonic)
    _worked: float = 0.0
    _awake: float = 0.0  # when they last did something

    def passed(self) -> str | None:
        """Name what they had too much of, empty for time by the clock; None while they may go on.

        Ask several times a second once ``seconds`` are over.
        """
        now, worked, asleep = time.monotonic(), 0.0, True
        for state, spent in _processes(self.session):
            worked += spent
            asleep &= state in _ASLEEP
        if worked >= self.seconds:
            return " of CPU time"
        if worked > self._worked or not asleep or not self._awake:
            self._worked, self._awake = max(worked, self._worked), now
        if now - self._awake >= min(ASLEEP_S, self.seconds):
            return " without working"
        return "" if now - self.start >= MOST_OF_CLOCK * self.seconds else None


def _processes(session: int) -> Iterator[tuple[str, float]]:
    """State, and CPU time of its own and of the children that it waited for, of each."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_bytes().rpartition(b")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[3]) == session:
            yield fields[0].decode(), sum(map(int, fields[11:15])) * _TICK


T = TypeVar("T")
_alone: set[int] = set()  # threads that run one program at a time


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Have ``together`` make its calls in this thread, one after the other, inside the block."""
    _alone.add(get_ident())
    try:
        yield
    finally:
        _alone.discard(get_ident())


def together(
    calls: Iterable[Callable[[], T]], jobs: int, meanwhile: Callable[[], None] = lambda: None
) -> list[T]:
    """The results of all calls, ``jobs`` at a time, in their order; this thread does ``meanwhile``.

    The error of the first that fails, after those under way have ended; Ctrl-C kills what they run,
    at whatever moment it comes.
    """
    if get_ident() in _alone:
        meanwhile()
        return [call() for call in calls]
    starting = Lock()
    interrupted = False
    under_way: set[int] = set()  # the threads that run a call now

    def one(call: Callable[[], T]) -> T:
        with starting:
            if interrupted:
                raise CancelledError
            under_way.add(get_ident())
        try:
            return call()
        finally:
            under_way.discard(get_ident())

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        try:
            futures = [pool.submit(one, call) for call in calls]
            meanwhile()
            return [future.result() for future in futures]
        except BaseException as error:
            if not isinstance(error, Exception):
                with starting:
                    interrupted = True
            pool.shutdown(wait=False, cancel_futures=True)
            while interrupted and under_way:  # Ctrl-C does not wait for a hanging compiler
                with contextlib.suppress(KeyboardInterrupt):  # pressed again
                    kill_started_by(under_way)
                    time.sleep(0.02)
            raise
