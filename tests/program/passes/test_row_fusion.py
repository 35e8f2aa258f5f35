"""Stages that run together, some rows at a time: what is read, what is refused, and the results."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polysci import layers, training
from polysci.cost.fusion import FusedWork, FusionCosts
from polysci.errors import UnsupportedError
from polysci.frontends.onnx import importer, reference
from polysci.graph.graph import Graph
from polysci.graph.passes.table import simplify
from polysci.loop_ir.expressions import Guard, Load, Reduce
from polysci.lower.layer_calls import by_rows
from polysci.lower.stages import row_fusion as row_fusion_stages
from polysci.network import compiled, prepare, tuning
from polysci.numerics.affine import Affine
from polysci.program.passes import row_fusion
from polysci.program.passes.operands import Rows, RowWindow, rows_read
from polysci.program.passes.row_fusion import (
    RIVALS,
    Chain,
    FusionVerdict,
    Run,
    Setting,
    cheapest_divisions,
    fuse_rows,
)
from polysci.program.stages import LoopStage, RowFusion
from polysci.space import schedule
from polysci.target.host import detect
from tests.support.flags import QUICK
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals
from tests.support.rates import assume_all_rates, fuse_rows_everywhere


def inverted_bottleneck(size: int, stride: int) -> Graph:
    """Pointwise, depthwise, pointwise with the input added again, then a pool."""
    nodes = [
        node("Conv", "x w1 b1", "e"),
        node("Clip", "e zero six", "e6"),
        node("Conv", "e6 w2", "d", group=24, pads=[1, 1, 1, 1], strides=[stride, stride]),
        node("Relu", "d", "r"),
        node("Conv", "r w3", "p"),
    ]
    out = "p"
    if stride == 1:
        nodes.append(node("Add", "p x", "s"))
        out = "s"
    nodes.append(node("MaxPool", out, "m", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]))
    nodes.append(node("Conv", "m w4", "y"))
    weights = {
        "w1": reals(24, 8, 1, 1, seed=1), "b1": reals(24, seed=2),
        "w2": reals(24, 1, 3, 3, seed=3), "w3": reals(8, 24, 1, 1, seed=4),
        "w4": reals(4, 8, 1, 1, seed=5),
        "zero": np.float32(0), "six": np.float32(6),
    }  # fmt: skip
    one = model(nodes, {"x": [1, 8, size, size]}, {"y": None}, weights)
    return simplify(importer.graph_of(one))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("size", "stride", "threads", "dtype", "ring"),
    [(21, 1, 1, "f32", 0), (22, 2, 2, "f32", 0), (21, 1, 2, "bf16", 1 << 16), (13, 2, 2, "f32", 0)],
)
def test_results(
    size: int, stride: int, threads: int, dtype: str, ring: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rings that move after every call, threads that begin in the middle, both precisions."""
    monkeypatch.setattr(row_fusion_stages, "RING", ring)
    fuse_rows_everywhere(monkeypatch)
    graph, target = inverted_bottleneck(size, stride), detect()
    options = prepare.PlanOptions("estimate", threads, dtype, "direct", target)
    net = compiled.build_network(
        prepare.prepare(graph, dtype, target=target), options, "bands", flags=QUICK
    )
    found = [stage for stage in net.code.placed.program.stages if isinstance(stage, RowFusion)]
    assert [len(stage.members) for stage in found] == [5], net.prepared.fusions  # with a copy of x
    x = reals(1, 8, size, size, seed=9)
    expected = reference.run(graph, {"x": x})["y"]
    error = np.abs(net(x) - expected).max() / np.abs(expected).max()
    assert error < (1e-5 if dtype == "f32" else 3e-2)


@pytest.mark.exhaustive
def test_divisions_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chain is divided as took least time, whatever the model prefers."""
    fuse_rows_everywhere(monkeypatch)
    graph, target = inverted_bottleneck(21, 1), detect()
    options = prepare.PlanOptions("measure", 1, "f32", "direct", target)
    net = compiled.build_network(
        prepare.prepare(graph, target=target), options, "timed", flags=QUICK
    )
    timed = [group for group in net.prepared.fusion_groups if group.measured]
    assert timed or any(its.refusal.startswith("measured") for its in net.prepared.fusions)
    found = [its.internal for its in net.code.placed.program.stages if isinstance(its, RowFusion)]
    assert len(found) == sum(group.done for group in timed)
    x = reals(1, 8, 21, 21, seed=9)
    expected = reference.run(graph, {"x": x})["y"]
    assert np.abs(net(x) - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.exhaustive
def test_no_division_holds_a_layer_without_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is timed beside the cheapest division has code too."""
    assume_all_rates(tmp_path / "cache", monkeypatch)
    fuse_rows_everywhere(monkeypatch)

    def threes(costs: FusionCosts, work: FusedWork) -> float:
        """Prefer three members that end with a loop, then three others."""
        return -1.0 - (work.members[-1].least == 0) if len(work.members) == 3 else 1e3

    monkeypatch.setattr(FusionCosts, "together", threes)
    target = detect("portable")
    options = prepare.PlanOptions("estimate", 1, "f32", "direct", target)
    prepared = prepare.prepare(inverted_bottleneck(21, 1), target=target)
    results = prepare.search_schedules(prepared, options)
    schedules = {key: result.schedule for key, result in results.items()}
    seconds = {key: result.predicted for key, result in results.items()}
    setting = prepare.setting_of(schedules, seconds, options)

    def held(setting: Setting) -> set[str]:
        space = fuse_rows(prepared.placed, setting)
        return {layer.weights for layer, _ in space.layers()}

    assert held(setting) == {"w1", "w2", "w3"}
    refusing = replace(setting, refuse_code=lambda layer, *_: "no" * (layer.weights == "w1"))
    assert held(refusing) == {"w2", "w3"}


def test_verdicts_follow_the_clock() -> None:
    """The division of least time wins; tensors of the others say what both took."""
    members = tuple(LoopStage(name, name, Load(name, ())) for name in "abc")
    whole, pair = (Run(0, 3, 1),), (Run(0, 2, 1), Run(2, 3))
    chain = Chain(members, (whole, pair, tuple(Run(at, at + 1) for at in range(3))))
    apart = {"a": 3e-6, "b": 3e-6, "c": 3e-6}
    spent = [{"c": 8e-6}, {"b": 4e-6, "c": 3e-6}, apart]
    times = tuning.times_of(chain, spent)
    assert times == {("a", "b"): (8e-6, 9e-6), ("a",): (4e-6, 6e-6)}
    verdicts = tuning.verdicts_of(chain, spent, times)
    assert verdicts["a"] == FusionVerdict("")
    assert verdicts["b"] == FusionVerdict("measured 8 us together, 9 us apart")
    spent = [{"c": 10e-6}, {"b": 7e-6, "c": 3e-6}, apart]
    verdicts = tuning.verdicts_of(chain, spent, tuning.times_of(chain, spent))
    assert all(its.refusal for its in verdicts.values()) and len(verdicts) == 2


@pytest.mark.exhaustive
def test_a_gradient_and_its_update_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The update replaces the weights in place, of which nothing before makes rows."""
    parts = [
        layers.Conv2d(4, 16, 1), layers.AdaptiveAvgPool2d(1), layers.Flatten(),
        layers.Linear(16, 64),
    ]  # fmt: skip
    x, target, losses = reals(4, 4, 6, 6), np.arange(4), []
    for together in (False, True):
        if together:
            fuse_rows_everywhere(monkeypatch)
        trainer = training.compile_training(parts, x.shape, level="estimate", flags=QUICK)
        stages = trainer.network.prepared.program.stages
        fused = [str(its.name) for its in stages if isinstance(its, RowFusion)]
        assert any("gemm" in name and "sub" in name for name in fused) is together, fused
        losses.append([trainer.step(x, target) for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1])


@pytest.mark.exhaustive
def test_what_stays_in_the_cache_stays_apart() -> None:
    """The reason is kept for whoever asks."""
    graph, target = inverted_bottleneck(12, 1), detect()
    options = prepare.PlanOptions("estimate", 1, "f32", "direct", target)
    net = compiled.build_network(
        prepare.prepare(graph, target=target), options, "apart", flags=QUICK
    )
    assert not any(isinstance(stage, RowFusion) for stage in net.code.placed.program.stages)
    assert any("stay in the L2 cache" in one.refusal for one in net.prepared.fusions)


IMAGE = {"w": reals(24, 8, 1, 1, seed=1), "v": reals(8, 24, 3, 3, seed=2)}
OTHER_ROWS = {
    "loops inside": (
        [node("Conv", "x w", "a"), node("Gelu", "a", "g"),
         node("Conv", "g v", "b", pads=[1, 1, 1, 1]), node("Gelu", "b", "y")],
        [1, 8, 9, 9], IMAGE, 2,
    ),
    "images": (
        [node("Conv", "x w", "a"), node("Gelu", "a", "g"),
         node("Conv", "g v", "y", pads=[1, 1, 1, 1])],
        [5, 8, 6, 6], IMAGE, 3,
    ),
    "rows of images": (
        [node("Conv", "x w", "a"), node("Gelu", "a", "g"),
         node("Conv", "g v", "b", pads=[1, 1, 1, 1], strides=[2, 2]), node("Relu", "b", "r"),
         node("MaxPool", "r", "p", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
         node("Conv", "p w", "c"), node("Add", "c c", "y")],
        [3, 8, 20, 12], IMAGE, 5,
    ),
    "rows that do not run on": (
        [node("Conv", "x w", "a"), node("Gelu", "a", "g"), node("Conv", "g v", "b"),
         node("Gelu", "b", "y")],
        [3, 8, 9, 9], IMAGE, 2,
    ),
    "tokens of sequences": (
        [node("MatMul", "x w", "a"), node("Gelu", "a", "g"), node("MatMul", "g v", "b"),
         node("LayerNormalization", "b scale", "y", axis=-1)],
        [3, 25, 8], {"w": reals(8, 24, seed=1), "v": reals(24, 8, seed=2), "scale": reals(8)}, 3,
    ),
    "tokens": (
        [node("MatMul", "x w", "a"), node("Gelu", "a", "g"), node("MatMul", "g v", "b"),
         node("LayerNormalization", "b scale", "y", axis=-1)],
        [1, 75, 8], {"w": reals(8, 24, seed=1), "v": reals(24, 8, seed=2), "scale": reals(8)}, 3,
    ),
    "rows of a matrix": (
        [node("MatMul", "x w", "a"), node("Tanh", "a", "t"), node("MatMul", "t v", "y")],
        [71, 8], {"w": reals(8, 24, seed=1), "v": reals(24, 8, seed=2)}, 2,
    ),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", OTHER_ROWS)
def test_other_rows(
    case: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops between layers, and rows that are images, tokens or rows of a matrix."""
    assume_all_rates(tmp_path / "cache", monkeypatch)
    fuse_rows_everywhere(monkeypatch)
    nodes, shape, weights, inside = OTHER_ROWS[case]
    graph = read(model(nodes, {"x": shape}, {"y": None}, weights))
    network = network_of(graph, threads)
    found = [its for its in network.code.placed.program.stages if isinstance(its, RowFusion)]
    assert sum(len(its.internal) for its in found) >= inside, network.prepared.fusions
    x = reals(*shape, seed=9)
    expected = reference.run(graph, {"x": x})["y"]
    np.testing.assert_allclose(network(x), expected, rtol=1e-4, atol=1e-5 * abs(expected).max())


FILTERS = {
    "w": reals(8, 8, 3, 3, seed=1) / 4, "v": reals(8, 8, 3, 3, seed=2) / 4,
    "u": reals(8, 8, 1, 1, seed=3), "t": reals(8, 8, 1, 1, seed=4),
}  # fmt: skip


def heads(mask: str = "") -> list[Any]:
    """Attention of two heads."""
    split = [
        part for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
        for part in (node("MatMul", f"x {name}", f"x{name}"),
                     node("Reshape", f"x{name} split", f"y{name}"),
                     node("Transpose", f"y{name}", f"z{name}", perm=perm))
    ]  # fmt: skip
    return [
        *split, node("MatMul", "zq zk", "m" if mask else "s"),
        *([node("Add", f"m {mask}", "s")] if mask else []), node("Softmax", "s", "a", axis=-1),
        node("MatMul", "a zv", "z"), node("Transpose", "z", "t", perm=[0, 2, 1, 3]),
        node("Reshape", "t whole", "p"), node("MatMul", "p o", "y"),
    ]  # fmt: skip


HEADS = {"split": np.array([0, 0, 2, 4]), "whole": np.array([0, 0, 8])}
SQUARES = {name: reals(8, 8, seed=at) for at, name in enumerate("qkvo")}
MATRICES = {"m": reals(8, 24, seed=4), "n": reals(24, 8, seed=6), "scale": reals(24)}
SEVERAL_READERS = {
    "residual": (
        [node("Conv", "x u", "a"), node("Conv", "a w", "b", pads=[1, 1, 1, 1]),
         node("Relu", "b", "c"), node("Conv", "c v", "d", pads=[1, 1, 1, 1]),
         node("Add", "d a", "e"), node("Conv", "e w", "f", pads=[1, 1, 1, 1]),
         node("Add", "f e", "g"), node("Conv", "g t", "y")],
        [1, 8, 19, 11], FILTERS, 4,
    ),
    "branches": (
        [node("Conv", "x w", "a", pads=[1, 1, 1, 1]), node("Conv", "a v", "b", pads=[1, 1, 1, 1]),
         node("MaxPool", "a", "p", kernel_shape=[5, 5], pads=[2, 2, 2, 2]),
         node("Conv", "a u", "q"), node("Add", "b p", "c"), node("Add", "c q", "d"),
         node("Conv", "d t", "y", strides=[2, 2])],
        [1, 8, 19, 11], FILTERS, 4,
    ),
    "gate": (
        [node("Conv", "x w", "a", pads=[1, 1, 1, 1]), node("Conv", "a v", "b", pads=[1, 1, 1, 1]),
         node("Sigmoid", "b", "g"), node("Mul", "a g", "c"), node("Conv", "c u", "y")],
        [1, 8, 19, 11], FILTERS, 3,
    ),
    "layer norm": (
        [node("MatMul", "x m", "a"), node("LayerNormalization", "a scale", "b", axis=-1),
         node("Add", "a b", "c"), node("MatMul", "c n", "y")],
        [1, 37, 8], MATRICES, 4,
    ),
    "softmax": (
        [node("MatMul", "x m", "a"), node("Softmax", "a", "b", axis=-1),
         node("MatMul", "b n", "y")],
        [1, 37, 8], MATRICES, 5,
    ),
    "attention": (
        [*(node("MatMul", f"x {name}", f"x{name}") for name in "qkv"),
         node("Transpose", "xk", "kt", perm=[0, 2, 1]), node("MatMul", "xq kt", "s"),
         node("Mul", "s third", "t"), node("Softmax", "t", "a", axis=-1),
         node("MatMul", "a xv", "z"), node("MatMul", "z o", "p"), node("Add", "p x", "y")],
        [1, 37, 8], {**SQUARES, "third": np.float32(1 / 3)}, 7,
    ),
    "causal heads": (
        heads("causal"), [2, 37, 8],
        {**SQUARES, **HEADS, "causal": np.where(np.tri(37), 0, -1e9).astype(np.float32)}, 7,
    ),
    "heads": (heads(), [1, 37, 8], {**SQUARES, **HEADS}, 6),
    "heads of images": (heads(), [2, 37, 8], {**SQUARES, **HEADS}, 6),
}  # fmt: skip


def run_by_rows(
    case: tuple[list[Any], list[int], dict[str, np.ndarray], int], threads: int,
    folder: Path, patch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Compare a network with its reference; rings have room for what waits, and nothing else."""
    assume_all_rates(folder / "cache", patch)
    fuse_rows_everywhere(patch)
    patch.setattr(row_fusion_stages, "RING", 0)
    nodes, shape, weights, inside = case
    network = network_of(read(model(nodes, {"x": shape}, {"y": None}, weights)), threads)
    found = [its for its in network.code.placed.program.stages if isinstance(its, RowFusion)]
    assert sum(len(its.internal) for its in found) == inside, network.prepared.fusions
    x = reals(*shape, seed=9)
    expected = reference.run(network.prepared.graph, {"x": x})["y"]
    np.testing.assert_allclose(network(x), expected, rtol=1e-4, atol=1e-5 * abs(expected).max())


def test_a_tensor_that_several_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What two filters, a pool and a sum read, each some rows later, waits for the last."""
    run_by_rows(SEVERAL_READERS["branches"], 3, tmp_path, monkeypatch)


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [2, 1])
@pytest.mark.parametrize("height", [16, 1, 64])
def test_rows_of_heads(
    height: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns of 37 rows a head, of any height, give the bits that stages by themselves give."""
    assume_all_rates(tmp_path / "cache", monkeypatch)
    nodes, shape, weights, inside = SEVERAL_READERS["causal heads"]
    graph = read(model(nodes, {"x": shape}, {"y": None}, weights))
    apart = network_of(graph, threads)
    fuse_rows_everywhere(monkeypatch)
    monkeypatch.setattr(row_fusion_stages, "RING", 0)
    monkeypatch.setattr(row_fusion, "HEIGHTS", (height,))
    network = network_of(graph, threads)
    placed = network.code.placed
    stages = [its for its in placed.program.stages if isinstance(its, RowFusion)]
    assert sum(len(its.internal) for its in stages) == inside
    rows = [placed.rows_of(name) for its in stages for name in its.internal]
    assert sum(its is not None and its.height == 2 * 2 * 37 for its in rows) == 6
    assert not any(isinstance(its, RowFusion) for its in apart.code.placed.program.stages)
    x = reals(*shape, seed=9)
    np.testing.assert_array_equal(network(x), apart(x))


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", SEVERAL_READERS)
def test_tensors_that_several_read(
    case: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums with what layers began with, gates, and loops that read a row several times."""
    run_by_rows(SEVERAL_READERS[case], threads, tmp_path, monkeypatch)


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_division(seed: int) -> None:
    """Dynamic programming finds what trying all divisions does."""
    random = np.random.default_rng(seed)
    length = int(random.integers(1, 9))
    costs = {
        (start, end): float(random.random()) for start in range(length)
        for end in range(start + 1, length + 1) if end == start + 1 or random.random() < 0.7
    }  # fmt: skip

    def price(start: int, end: int) -> tuple[float, Run] | None:
        return (costs[start, end], Run(start, end)) if (start, end) in costs else None

    divided = cheapest_divisions(length, price)
    every = []
    for number in range(2 ** (length - 1)):
        ends = [at for at in range(1, length) if number >> (at - 1) & 1]
        runs = list(pairwise([0, *ends, length]))
        if all(its in costs for its in runs):
            every.append((sum(costs[its] for its in runs), runs))
    best = [runs for _, runs in sorted(every)[:RIVALS]]
    assert [[(run.start, run.end) for run in its] for its in divided] == best


def loops(row: Affine, guards: tuple[Guard, ...] = ()) -> LoopStage:
    """A reduction over r of rows of t."""
    index = (Affine((("i0", 1),)), Affine((("i1", 1),)), row, Affine((("i3", 1),)))
    return LoopStage("pool", "y", Reduce("max", (("r", 3),), Load("t", index), guards))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Affine((("i2", 2), ("r", 1)), -1), RowWindow(2, -1, 1, 11)),
        (Affine((("i2", 1), ("r", -1)), 2), RowWindow(1, 0, 2, 11)),
        (Affine((("i2", 1), ("r", 4))), RowWindow(1, 0, 8, 11)),
        (Affine((("r", 1),)), None),
        (Affine((("i2", -1),), 10), None),
        (Affine((("i2", 1), ("i3", 1))), None),
    ],
)
def test_rows_read(row: Affine, expected: RowWindow | None) -> None:
    """A window that moves on with the rows, or nothing."""
    source, result = Rows((1, 4, 11, 11), (2,)), Rows((1, 4, 5, 5), (2,))
    assert rows_read(loops(row, (Guard(row, 11),)), "t", source, result) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p:3 k:64 q:7 > brgemm_avx512_f32_7x64", "p:3 k:64 q:7 > brgemm_avx512_f32_7x64"),
        ("k:64* p q:7 > brgemm_avx512_f32_7x64", "p:2 k:64 p q:7 > brgemm_avx512_f32_7x64"),
        ("p:24 k:64 p q:7 > brgemm_avx512_f32_7x64", "p:2 k:64 p q:7 > brgemm_avx512_f32_7x64"),
        ("k:64 p:4 q:7 > brgemm_avx512_f32_7x64", "p:4 k:64 q:7 > brgemm_avx512_f32_7x64"),
        (
            "pack(A) k:64 p q:7 > brgemm_avx512_f32_7x64",
            "p:2 pack(A) k:64 p q:7 > brgemm_avx512_f32_7x64",
        ),
    ],
)
def test_by_rows(text: str, expected: str) -> None:
    """The loop over rows moves out, packing stays inside it."""
    assert str(by_rows(schedule.parse(text), "p", 2)) == expected


def test_no_loop_over_rows() -> None:
    """A call that takes all rows, or Winograd's tiles, cannot run by rows."""
    for text in ("k:64 > brgemm_avx512_f32_7x64", "t:16 winograd(4) > brgemm_avx512_f32_16x32"):
        with pytest.raises(UnsupportedError, match="no loop over rows"):
            by_rows(schedule.parse(text), "p", 2)


def cheapest_of_all(chain: Chain, together: Mapping[tuple[str, ...], float]) -> float:
    """Return the least seconds of all divisions; ``together`` are those of runs, by what is inside.

    Stages by themselves are free.
    """
    ends, names = range(1, len(chain.members)), [member.output for member in chain.members]
    divisions = (
        pairwise([0, *inner, len(names)])
        for count in range(len(names)) for inner in combinations(ends, count)
    )  # fmt: skip
    return min(
        sum(together.get(tuple(names[start : end - 1]), np.inf) for start, end in division)
        for division in divisions
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(5))
def test_the_division_is_the_cheapest_of_all(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all ways to divide stages, whatever runs cost; one result alone leaves each run."""
    assume_all_rates(tmp_path / "cache", monkeypatch)
    fuse_rows_everywhere(monkeypatch)
    random = np.random.default_rng(seed)
    monkeypatch.setattr(FusionCosts, "together", lambda *_: -float(random.uniform(1, 2)))
    monkeypatch.setattr(FusionCosts, "bound", lambda *_: -2.0)
    monkeypatch.setattr(FusionCosts, "hurdle", lambda *_: 0.0)
    monkeypatch.setattr(FusionCosts, "loop", lambda *_: 0.0)
    nodes, shape, weights, _ = SEVERAL_READERS["residual"]
    graph = simplify(read(model(nodes, {"x": shape}, {"y": None}, weights)))
    options = prepare.PlanOptions("estimate", 1, "f32", "direct", detect("portable"))
    prepared = prepare.prepare(graph, target=options.target)
    schedules = {
        key: its.schedule for key, its in prepare.search_schedules(prepared, options).items()
    }
    setting = prepare.setting_of(schedules, dict.fromkeys(schedules, 0.0), options)
    space, readers = fuse_rows(prepared.placed, setting), prepared.placed.program.readers()
    together = {inside: its.together for inside, its in space.groups.items() if not its.refusal}
    assert space.chains and len(together) > 3
    for chain in space.chains:
        found = sum(together[its.internal] for its in chain.fusions(0))
        assert np.isclose(found, cheapest_of_all(chain, {(): 0.0, **together}))
        for fusion in chain.fusions(0):
            assert all(
                reader in fusion.members for name in fusion.internal for reader in readers[name]
            )
