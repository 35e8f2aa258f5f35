"""Compilers that hang: how long they are waited for, how often, and at which texts."""

import time
from pathlib import Path

import pytest

from polysci.measure import trials
from polysci.runtime.build import cache, process
from polysci.runtime.build.compiler import CompileTimeoutError, default_flags
from tests.support import fakecompiler
from tests.support.fakecompiler import text, value

PLAIN = default_flags(openmp=False)
pytestmark = pytest.mark.usefixtures("root")


def count(folder):
    """A line of a compiler's script, and what says how often it was reached."""
    path = folder / "calls"
    return f'echo >> "{path}"', lambda: len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("hangs", "spent"),
    [("sleep 100", "without working"), ("while :; do :; done", "of CPU time")],
)
def test_a_text_at_which_the_compiler_hangs_is_refused_alone(root, fake, tmp_path, hangs, spent):
    note, calls_of = count(tmp_path)
    at_text = f"case $word in *.c) if grep -q 112 $word; then {note}; {hangs}; fi;; esac"
    fake(f"{fakecompiler.NO_HEADER}\nfor word; do {at_text}; done")
    said = rf"longer than 0\.2 s {spent} and was killed, 2 times; name"
    with pytest.raises(CompileTimeoutError, match=rf"{said} .*\nto repeat: "):
        cache.build(text(112), flags=PLAIN, timeout=0.2)
    assert calls_of() == 2
    start = time.monotonic()
    with pytest.raises(CompileTimeoutError, match=said):
        cache.build(text(112), flags=PLAIN, timeout=5)
    assert time.monotonic() - start < 5 and calls_of() == 2
    assert value(cache.build(text(113), flags=PLAIN)) == 113
    fake("true")  # repaired
    assert value(cache.build(text(112), flags=PLAIN)) == 112


@pytest.mark.exhaustive
def test_a_compiler_that_hangs_at_the_least_text_is_not_called_again(root, fake, tmp_path):
    note, calls_of = count(tmp_path)
    fake(f"{fakecompiler.NO_HEADER}\n{note}\nsleep 100")
    for number in (112, 113):
        with pytest.raises(CompileTimeoutError, match="without working and was killed, 2 times"):
            cache.build(text(number), flags=PLAIN, timeout=0.2)
    assert calls_of() == 3
    fake("true")  # repaired
    assert value(cache.build(text(112), flags=PLAIN)) == 112


def test_a_compiler_that_hangs_once_is_called_again(root, fake, tmp_path):
    note, calls_of = count(tmp_path)
    fake(f'{fakecompiler.NO_HEADER}\n{note}\n[ $(wc -l < "{tmp_path}/calls") = 1 ] && sleep 100')
    assert value(cache.build(text(115), flags=PLAIN, timeout=0.3)) == 115
    assert calls_of() == 2


def test_a_compiler_that_is_stopped_for_a_while_does_not_hang(root, fake, tmp_path):
    """As on a machine that has no core for it: three limits pass before it may go on."""
    note, calls_of = count(tmp_path)
    fake(f"{fakecompiler.NO_HEADER}\n{note}\n(sleep 1; kill -CONT $$) &\nkill -STOP $$")
    assert value(cache.build(text(116), flags=PLAIN, timeout=0.3)) == 116
    assert calls_of() == 1


@pytest.mark.exhaustive
def test_a_compiler_that_never_goes_on_is_killed(root, fake):
    fake(f"{fakecompiler.NO_HEADER}\nkill -STOP $$")
    start = time.monotonic()
    with pytest.raises(CompileTimeoutError, match=r"longer than 0\.1 s and was killed, 2 times"):
        cache.build(text(117), flags=PLAIN, timeout=0.1)
    assert 2 <= time.monotonic() - start < 20


def test_processes_that_share_the_work_share_the_limit():
    spin = "while :; do :; done"
    done = process.run(["sh", "-c", f"{spin} & {spin} & wait"], timeout=0.4, working=True)
    assert str(done) == "ran longer than 0.4 s of CPU time and was killed"


@pytest.mark.exhaustive
def test_a_header_at_which_the_compiler_hangs_is_left_out(root, fake, monkeypatch):
    monkeypatch.setattr(cache, "PROBE_S", 0.2)
    fake('case "$*" in *c-header*) sleep 100;; esac')
    with pytest.raises(CompileTimeoutError):
        cache.build(fakecompiler.INTRINSICS + text(118), flags=PLAIN)
    assert value(cache.build(fakecompiler.INTRINSICS + text(118), flags=PLAIN)) == 118


@pytest.mark.exhaustive
def test_a_slow_network_says_nothing_of_its_layers(fake):
    fake('case "$*" in *source0.c*) sleep 100;; esac')
    with pytest.raises(CompileTimeoutError, match=r"longer than 0\.2 s"):
        cache.build([text(114), "int x;\n"], flags=PLAIN, timeout=0.2)
    assert value(cache.build(text(114), flags=PLAIN)) == 114


@pytest.mark.exhaustive
def test_how_long_compilers_may_run(root, monkeypatch):
    """A minute for a layer, 20 seconds for what comes before it, five minutes for networks."""
    limits, run = {}, process.run

    def record(command, *, timeout, **options):
        limits.update(dict.fromkeys((Path(word).name for word in command), timeout))
        return run(command, timeout=timeout, **options)

    monkeypatch.setattr(process, "run", record)
    cache.build_many([fakecompiler.INTRINSICS + text(131)])
    assert limits["c-header"] == 20 and limits.pop("source.c") == 60
    cache.build(text(132))
    assert limits["source.c"] == 60
    cache.build([text(131), "int x;\n"])
    assert limits["source0.c"] == limits["source1.c"] == 300


def test_a_hanging_compiler_ends_a_search_at_once(monkeypatch):
    class Hanging:
        def build_many(self, texts, **options):
            raise CompileTimeoutError("ran longer than 60 s and was killed")

    with pytest.raises(CompileTimeoutError, match="ran longer"):
        trials._compile({}, 1, 1, Hanging())
