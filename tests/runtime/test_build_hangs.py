"""Compilers that hang: how long they are waited for, and that it happens once."""

import time
from pathlib import Path

import pytest

from polysci.measure import trials
from polysci.runtime.build import cache, calls, process
from polysci.runtime.build.calls import CompileTimeoutError
from polysci.runtime.build.compiler import default_flags
from tests.support import fakecompiler
from tests.support.fakecompiler import text, value

PLAIN = default_flags(openmp=False)
pytestmark = pytest.mark.usefixtures("root")


def test_a_compiler_that_hangs_is_not_called_again(root, fake):
    fake(f"{fakecompiler.NO_HEADER}\nsleep 100")
    with pytest.raises(CompileTimeoutError, match=r"longer than 0\.2 s .*\nto repeat: "):
        cache.build(text(112), flags=PLAIN, timeout=0.2)
    start = time.monotonic()
    for number in (112, 113):
        with pytest.raises(CompileTimeoutError, match=r"longer than 0\.2 s and was killed; name"):
            cache.build(text(number), flags=PLAIN, timeout=20)
    assert time.monotonic() - start < 5
    fake("true")  # repaired
    assert value(cache.build(text(112), flags=PLAIN)) == 112


def test_a_slow_network_says_nothing_of_the_compiler(fake, monkeypatch):
    monkeypatch.setattr(calls, "CANDIDATE_S", 0.1)
    fake('case "$*" in *source0.c*) sleep 100;; esac')
    with pytest.raises(CompileTimeoutError, match=r"longer than 0\.2 s"):
        cache.build([text(114), "int x;\n"], flags=PLAIN, timeout=0.2)
    assert value(cache.build(text(114), flags=PLAIN)) == 114


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
