"""Libraries for single sizes of a range, which a thread compiles behind other runs."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from polysci.errors import BuildError, SpecError
from polysci.network.runner import Runner
from polysci.network.sizes import SizedNetwork, compile_sizes
from polysci.network.specialized import SpecializedSizes
from tests.support.onnxmodels import model, node, reals

MANY = 1 << 30


def doubled() -> onnx.ModelProto:
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "y")]
    return model(nodes, {"x": ["T", 8]}, {"y": None}, {"w": reals(8, 3)})


@pytest.fixture(scope="module")
def network() -> SizedNetwork:
    made = compile_sizes(doubled(), {"T": range(5, 9)}, "estimate", specialize_bytes=MANY)
    made.specialized.close()  # each test has libraries of its own
    return made


class Builder:
    """Hands out runners of the generic code, or what it is told to, and notes sizes."""

    def __init__(self, network: SizedNetwork) -> None:
        self.network, self.asked = network, list[int]()
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()

    def __call__(self, sizes: Mapping[str, int]) -> Runner:
        self.asked.append(sizes["T"])
        self.begun.set()
        assert self.go.wait(60)
        if sizes["T"] == 7:
            raise BuildError("no compiler\nat all")
        return self.network.entry(**sizes).runner


def with_libraries(network: SizedNetwork, most: int = MANY) -> tuple[SizedNetwork, Builder]:
    build = Builder(network)
    store = SpecializedSizes(build, most)
    return SizedNetwork(network.entries, network.dims, store), build


def taken(network: SizedNetwork) -> int:
    """The bytes of one library."""
    runner = network.entry(T=5).runner
    return runner.library.path.stat().st_size + runner.model_bytes + runner.context_bytes


def test_a_size_that_was_asked_for_has_a_library_from_the_next_run_on() -> None:
    whole = compile_sizes(doubled(), {"T": range(5, 9)}, "estimate", specialize_bytes=MANY)
    store, x = whole.specialized, reals(6, 8)
    first = whole({"x": x})["y"]
    assert store.wait(300) and store.bytes > 0, store.report()
    second, out = whole({"x": x})["y"], {"y": np.empty((6, 3), np.float32)}
    whole({"x": x}, out)
    assert np.allclose(first, second, rtol=1e-5, atol=1e-6) and np.array_equal(second, out["y"])
    runner = store.find((("T", 6),))
    assert runner.library is not whole.entry(T=6).runner.library
    assert "specialised: T=6 (3 runs): 3 hits" in whole.report()
    with pytest.raises(ValueError, match="no entry has inputs"):
        whole({"x": reals(9, 8)})


def test_a_model_that_changed_has_no_library() -> None:
    changing = doubled()
    whole = compile_sizes(changing, {"T": range(5, 9)}, "estimate", specialize_bytes=MANY)
    changing.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(reals(8, 3, seed=9), "w"))
    before = whole({"x": reals(6, 8)})["y"]
    assert whole.specialized.wait(300)
    assert "not specialised: T=6: SpecError: the model has changed since" in whole.report()
    assert np.array_equal(whole({"x": reals(6, 8)})["y"], before)


def test_the_generic_code_goes_on_where_a_build_fails(network: SizedNetwork) -> None:
    whole, build = with_libraries(network)
    for _ in range(3):
        assert np.array_equal(whole({"x": reals(7, 8)})["y"], network({"x": reals(7, 8)})["y"])
        assert whole.specialized.wait(60)
    assert build.asked == [7]
    assert "not specialised: T=7: BuildError: no compiler at all" in whole.report()


def test_the_size_that_was_asked_for_longest_ago_leaves(network: SizedNetwork) -> None:
    whole, build = with_libraries(network, 2 * taken(network))
    for rows in (5, 6, 5, 8, 5, 6):
        whole({"x": reals(rows, 8)})
        assert whole.specialized.wait(60)
    assert build.asked == [5, 6, 8, 6]
    assert whole.specialized.dropped == 2 and whole.specialized.bytes <= 2 * taken(network)
    small, build = with_libraries(network, 100)
    for _ in range(2):
        small({"x": reals(5, 8)})
        assert small.specialized.wait(60)
    assert build.asked == [5] and not small.specialized.bytes
    assert "T=5: it takes" in small.report()


def test_calls_do_not_wait_and_threads_may_call(network: SizedNetwork) -> None:
    whole, build = with_libraries(network)
    build.go.clear()
    inputs = {rows: reals(rows, 8, seed=rows) for rows in (5, 6, 8)}
    expected = {rows: network({"x": x})["y"] for rows, x in inputs.items()}
    wrong = list[int]()

    def call() -> None:
        for at in range(300):
            rows = (5, 6, 8)[at % 3]
            if not np.allclose(whole({"x": inputs[rows]})["y"], expected[rows], atol=1e-6):
                wrong.append(rows)
            if at == 100:
                build.go.set()

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert whole.specialized.wait(60)
    assert not wrong and sorted(build.asked) == [5, 6, 8]  # once each
    assert "to compile" not in whole.report()


def test_closing_ends_what_is_under_way(network: SizedNetwork) -> None:
    whole, build = with_libraries(network)
    build.go.clear()
    for rows in (5, 6):
        whole({"x": reals(rows, 8)})
    assert build.begun.wait(60) and not whole.specialized.wait(0.01)
    assert "to compile: T=5; T=6" in whole.report()
    threading.Timer(0.1, build.go.set).start()
    whole.specialized.close()
    assert whole.specialized.wait(60)
    whole({"x": reals(8, 8)})
    assert build.asked == [5]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_of_fork_goes_on(network: SizedNetwork) -> None:
    whole, build = with_libraries(network)
    build.go.clear()
    whole({"x": reals(5, 8)})
    assert build.begun.wait(60)
    child = os.fork()
    if not child:
        build.go.set()
        whole({"x": reals(6, 8)})
        os._exit(0 if whole.specialized.wait(30) and build.asked == [5, 6] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    build.go.set()
    assert whole.specialized.wait(60)


EXIT = """
import os, subprocess, time
from polysci.network.specialized import SpecializedSizes
from polysci.runtime.build.process import run, together

def build(sizes):
    together([lambda: run(["sleep", "60"], timeout=90)] * 2, 2)
    print("went on")

def children():
    command = ["pgrep", "-P", str(os.getpid()), "sleep"]
    return subprocess.run(command, capture_output=True, text=True).stdout.split()

store = SpecializedSizes(build, 1 << 20)
store.find((("T", 5),))
while not children():
    time.sleep(0.01)
print(*children())
"""


def test_a_process_that_ends_leaves_nothing_behind() -> None:
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert time.monotonic() - start < 30 and "went on" not in done.stdout
    assert done.stdout.split()
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in done.stdout.split())


def test_wrong_options() -> None:
    with pytest.raises(TypeError, match="specialize_bytes: expected int, got"):
        compile_sizes(doubled(), {"T": range(5, 9)}, specialize_bytes="1M")
    with pytest.raises(SpecError, match="specialize_bytes=-1: expected a whole number of at least"):
        compile_sizes(doubled(), {"T": range(5, 9)}, specialize_bytes=-1)
    with pytest.raises(SpecError, match="specialize_bytes: dims has no range"):
        compile_sizes(doubled(), {"T": [5, 9]}, "estimate", specialize_bytes=MANY)
