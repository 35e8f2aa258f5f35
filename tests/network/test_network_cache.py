"""Networks that a process finds in the cache as another one left them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polysci import notation
from polysci.network import compiled
from polysci.network.cache import FOLDER
from polysci.network.compiled import Network, compile_network
from polysci.network.prepare import graph_of
from polysci.numerics.dtypes import to_bf16
from polysci.runtime.build.folder import cache_dir
from polysci.runtime.measurement import host_of
from polysci.target.machine import assume_rates
from polysci.tune.wisdom import Wisdom
from tests.support.compiling import ISA
from tests.support.onnxmodels import model, node, reals

DENORMAL = np.float32(1e-41)  # which counts as 0
X = reals(1, 4, 6, 6, seed=1)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for all tests, which build the same libraries."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where networks are kept, empty yet; on a machine that is not measured for it."""
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(root))
    monkeypatch.setattr("polysci.tune.context.machine_of", lambda target, *_: assume_rates(target))
    shutil.rmtree(root / FOLDER, ignore_errors=True)
    return cache_dir() / FOLDER


def made(number: float = DENORMAL, turn: bool = False, **options: object) -> Network:
    """A convolution and a sum; ``number`` is one of its weights.

    With ``turn`` its graph has tensors in another order, as in a process with other hashes.
    """
    weights = {"w": reals(8, 4, 3, 3), "b": reals(8)}
    weights["w"][0, 0, 0, 0] = number
    nodes = [node("Conv", "x w b", "c", pads=[1, 1, 1, 1]), node("Add", "c c", "y")]
    graph = graph_of(model(nodes, {"x": (1, 4, 6, 6)}, {"y": None}, weights).SerializeToString())
    if turn:
        graph = replace(graph, tensors=dict(reversed(graph.tensors.items())))
    return compile_network(graph, "estimate", isa=ISA, **options)  # type: ignore[arg-type]


def product(alpha: float = 1.0, weight: float = 1.0, width: int = 4, dtype: str = "f32") -> Network:
    """Two products by constants, which layers read transposed, the first of them a part of one.

    ``alpha`` is a factor of the second, ``weight`` one of its weights, ``width`` decides shapes.
    """
    weights = {"w": reals(4, 6), "v": reals(8, 4), "rows": np.array([-1, width], np.int64)}
    weights["v"][0, 0] = weight
    nodes = [
        node("MatMul", "x w", "a"),
        node("Reshape", "a rows", "b"),
        node("Gemm", "b v", "y", alpha=alpha) if width == 8 else
        node("Gemm", "b v", "y", alpha=alpha, transB=1),
    ]  # fmt: skip
    graph = graph_of(model(nodes, {"x": (4, 4)}, {"y": None}, weights).SerializeToString())
    return compile_network(graph, "estimate", dtype=dtype, isa=ISA)


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no network be planned any more."""
    monkeypatch.setattr(compiled, "build_network", lambda *_, **__: pytest.fail("planned"))


def test_a_second_process_plans_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made()
    refuse(monkeypatch)
    second = made(turn=True)
    assert second.runner.library.path == first.runner.library.path
    assert np.array_equal(second(X), first(X))
    assert (second.inputs, second.outputs) == (first.inputs, first.outputs)
    assert second.known == first.summary and second.summary == first.summary
    assert second.code.files == first.code.files  # planned now, for who looks at it
    assert second.ir == first.ir and second.flags is None
    assert second.schedules == first.schedules and second.summary.stages == len(
        second.prepared.program.stages
    )


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, False),
        pytest.param({"weight": DENORMAL}, False, marks=pytest.mark.exhaustive),
        pytest.param({"dtype": "bf16"}, False, marks=pytest.mark.exhaustive),
        ({"alpha": 2.0}, True),
    ],
)
def test_weights_that_lie_in_constants_are_not_kept(
    folder: Path, options: dict[str, Any], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, x = product(**options), reals(4, 4, seed=1)
    (home,) = folder.iterdir()
    assert bool((home / "weights").stat().st_size) == kept
    refuse(monkeypatch)
    second = product(**options)
    assert second.known and np.array_equal(second(x), first(x))
    assert bytes(second.runner.packed_weights()) == bytes(first.runner.packed_weights())


@pytest.mark.exhaustive
def test_networks_with_too_many_other_weights_are_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polysci.network.kept_weights.MOST_BYTES", 8 * 4 * 4 - 1)
    product(alpha=2.0)
    assert not folder.exists() or not [*folder.iterdir()]


@pytest.mark.exhaustive
def test_other_constants_are_other_networks() -> None:
    """A weight changes the results, and one that decides shapes changes those."""
    x = reals(4, 4, seed=1)
    first, other, wide = product(), product(weight=2.0), product(width=8)
    assert first(x).shape == other(x).shape == (6, 8) and wide(x).shape == (3, 4)
    rows = (x @ reals(4, 6)).reshape(-1, 4)
    np.testing.assert_allclose(other(x) - first(x), np.outer(rows[:, 0], np.eye(8)[0]), atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"number": 2.0}, {"name": "other"}, {"fuse": False}, {"threads": 2},
                {"flags": ["-O1"]}, {"flush_denormals": False}],
)  # fmt: skip
def test_other_networks_are_others(
    options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made()
    refuse(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match="planned"):
        made(**options)  # type: ignore[arg-type]


def test_records_of_its_layers_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wisdom = Wisdom(tmp_path / "own.sqlite")
    first = made(wisdom=wisdom)
    (key, schedule), *_ = first.schedules.items()
    target = first.options.target

    def record(problem: str, seconds: float, threads: int = 1) -> None:
        wisdom.record(
            problem, threads, target.isa.features, "measure", str(schedule), seconds,
            host=host_of(target), isa=target.isa.name,
        )  # fmt: skip

    record("matmul m=8 n=8 k=8", 1e-6)
    record(key, 1e-6, threads=3)
    with monkeypatch.context() as context:
        refuse(context)
        made(wisdom=wisdom)
    record(key, 1e-6)
    with monkeypatch.context() as context, pytest.raises(pytest.fail.Exception, match="planned"):
        refuse(context)
        made(wisdom=wisdom)
    assert made(wisdom=wisdom).results[key].measurement
    record(key, 2e-6)  # the same schedule, measured again
    refuse(monkeypatch)
    made(wisdom=wisdom)


@pytest.mark.sampled
@pytest.mark.parametrize("damage", ["entry.json", "weights", "library", "{}", "[]", "null"])
def test_damaged_entries_are_made_again(
    folder: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, x = (partial(product, 2.0), reals(4, 4)) if damage == "weights" else (made, X)
    first = make()
    (home,) = folder.iterdir()
    if damage == "library":
        shutil.rmtree(first.runner.library.path.parent)
    elif damage in ("entry.json", "weights"):
        (home / damage).write_bytes((home / damage).read_bytes()[:-1])
    else:
        (home / "entry.json").write_text(damage)
    assert np.array_equal(make()(x), first(x))
    refuse(monkeypatch)
    assert np.array_equal(make()(x), first(x))


@pytest.mark.exhaustive
def test_tensors_of_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f(bf16(M,K) A, bf16(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"
    sizes, arrays = {"M": 5, "K": 18, "N": 9}, (to_bf16(reals(5, 18)), to_bf16(reals(9, 18)))
    first = notation.compile(text, sizes, level="estimate", isa=ISA)
    refuse(monkeypatch)
    second = notation.compile(text, sizes, level="estimate", isa=ISA)
    assert [port.dtype for port in second.network.inputs] == ["bf16", "bf16"]
    assert np.array_equal(second(*arrays), first(*arrays))
