"""Threads that compile layers and networks at once, and call what others compile."""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import TypeVar

import numpy as np
import pytest

import polysci
from polysci.measure.integer_reference import Arrays
from polysci.runtime.primitive import Primitive
from tests.support.compiling import compiled, saved, tiny

LAYERS = ("mb1ic5ih9oc9kh3ph1", "mb2ic9ih8oc5kh3sh2ph1", polysci.Matmul(5, 13, 9, constant="b"))
T = TypeVar("T")


@pytest.fixture(autouse=True)
def short_turns() -> Iterator[None]:
    """Threads change places every few instructions, where there is a lock of the interpreter."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """Return what the works return, each of which begins when all threads are there."""
    start = Barrier(len(works))

    def begin(work: Callable[[], T]) -> T:
        start.wait(60)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [*pool.map(begin, works)]


def is_exact(primitive: Primitive) -> bool:
    """Tell whether a primitive computes what its problem's reference does."""
    arrays = Arrays.of(primitive.problem, 0)
    x, w = arrays.inputs["x"], arrays.inputs["w"]
    return np.array_equal(primitive(x, primitive.pack_weights(w)), arrays.plain)


def test_threads_compile_different_layers() -> None:
    made = at_once([partial(polysci.compile, it, "estimate") for it in LAYERS])
    again = [polysci.compile(it, "estimate") for it in LAYERS]
    assert [str(it.source) for it in made] == [str(it.source) for it in again]
    assert all(map(is_exact, made))


@pytest.mark.exhaustive
def test_threads_compile_the_same_layer() -> None:
    made = at_once([lambda: polysci.compile("mb1ic6ih7oc10kh3ph1", "estimate")] * 3)
    assert len({str(it.source) for it in made}) == 1 and all(map(is_exact, made))


@pytest.mark.exhaustive
def test_a_thread_calls_while_another_one_compiles() -> None:
    first = polysci.compile("mb1ic5ih9oc9kh3ph1", "estimate")

    def compile_others() -> bool:
        layers = ("mb1ic5ih10oc9kh3ph1", "mb1ic5ih11oc9kh3ph1")
        return all(is_exact(polysci.compile(it, "estimate")) for it in layers)

    assert all(at_once([compile_others, lambda: all(is_exact(first) for _ in range(50))]))


def test_threads_compile_different_networks(tmp_path: Path) -> None:
    paths = [saved(tiny(batch=batch), tmp_path / f"n{batch}.onnx") for batch in (1, 2)]
    made = at_once([partial(compiled, it) for it in paths])
    again = [*map(compiled, paths)]
    assert [it.source for it in made] == [it.source for it in again]
    for one, other in zip(made, again, strict=True):
        x = np.random.default_rng(0).standard_normal(one.inputs[0].shape).astype(np.float32)
        assert np.array_equal(one(x), other(x))
