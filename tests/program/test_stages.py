"""Stages of networks: what is fused and why not, where tensors lie, what waits for what."""

import mmap
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from polysci.errors import PolysciError
from polysci.graph.operators.lower import lower
from polysci.graph.passes.table import simplify
from polysci.loop_ir.expressions import (
    Apply,
    Guard,
    Load,
    Number,
    Reduce,
    Where,
    axis,
    loads,
    shift,
    walk,
)
from polysci.network.build import ports
from polysci.network.prepare import PreparedNetwork, prepare
from polysci.network.runner import Runner
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import ALIGNMENT
from polysci.program.passes.arena import arrange, lives
from polysci.program.passes.buffers import reshape
from polysci.program.passes.fusion import fuse_loops
from polysci.program.passes.relations import iterators, pointwise, reads_once
from polysci.program.stages import LayerStage, LoopStage
from polysci.target.host import detect
from tests.support.networks import given, network_of, read
from tests.support.onnxmodels import model, node, reals
from tests.support.randomgraphs import models

X, Y = {"x": [1, 8, 6, 6]}, {"y": None}
W = {
    "w": reals(8, 8, 3, 3), "b": reals(8), "v": reals(8, 8, 3, 3, seed=1), "m": reals(6, 5),
    "n": reals(5),
}  # fmt: skip
CONV = {"pads": [1, 1, 1, 1]}


def plan_of(one: onnx.ModelProto, dtype: str = "f32") -> PreparedNetwork:
    return prepare(simplify(read(one)), dtype)


def code_of(one: onnx.ModelProto, threads: int) -> str:
    network = network_of(read(one), threads)
    text = network.code.files["small.c"]
    return text[text.index("static void stages") : text.index("struct small_model")]


# ------------------------------------------------------------------ expressions and relations


def test_expressions_are_walked_from_outside_and_rewritten() -> None:
    load = Load("x", (axis(0), Affine((("r", 2),), -1)))
    inside = Where((Guard(load.index[1], 5),), load, Number(0.5))
    whole = Apply("add", (Reduce("max", (("r", 3),), inside), Number(1.0)))
    assert [type(one).__name__ for one in walk(whole)] == [
        "Apply", "Reduce", "Where", "Load", "Number", "Number",
    ]  # fmt: skip
    assert str(whole) == "add(max(r<3: (0 <= 2*r - 1 < 5 ? x[i0, 2*r - 1] : 0.5)), 1)"
    (changed,) = loads(shift(whole, {"i0": Affine((("i1", 3),), 4)}))
    assert str(changed) == "x[3*i1 + 4, 2*r - 1]"


@pytest.mark.parametrize(
    ("index", "shape", "own", "once"),
    [
        ((axis(0), axis(1)), (4, 5), True, True),
        ((axis(1), axis(0)), (4, 5), False, True),
        ((axis(0), Affine((), 0)), (4, 5), False, False),  # broadcast
        ((axis(0), axis(1)), (4, 6), False, True),  # not all are read
        ((axis(0), Affine((("i1", 2),), 1)), (4, 12), False, True),
        ((Affine((("i0", 1), ("i1", 1))), axis(1)), (9, 5), False, True),
        ((Affine((("i0", 1), ("i1", 1))), Affine((), 0)), (9, 1), False, False),
    ],
)
def test_what_isl_says_of_reads(
    index: tuple[Affine, ...], shape: tuple[int, ...], own: bool, once: bool
) -> None:
    domain, load = iterators((4, 5)), Load("x", index)
    assert pointwise(load, domain, shape) is own
    assert reads_once(load, domain, None) is once


# ------------------------------------------------------------------ fusing


def conv(y: str, x: str = "x", w: str = "w") -> onnx.NodeProto:
    return node("Conv", f"{x} {w}", y, **CONV)


RELU = node("Relu", "c", "y")
FUSED = {  # nodes, stages that are left, what the last of them does
    "clamp": ([conv("c"), RELU], 1, "clamp"),
    "residual": ([conv("c"), conv("d", w="v"), node("Add", "c d", "s"), node("Relu", "s", "y")], 2,
                 "residual"),
    "bias": ([node("MatMul", "x m", "c"), node("Add", "n c", "s"), node("Relu", "s", "y")], 1,
             "bias"),
    "bias and residual": (
        [node("MatMul", "x m", "c"), node("MatMul", "x m", "d"), node("Add", "c n", "s"),
         node("Add", "s d", "t"), node("Relu", "t", "y")], 2, "residual"),
    "chain": ([node("Tanh", "x", "a"), node("Sigmoid", "a", "c"), node("Mul", "c x", "y")], 1,
              "loop"),
    "prologue of a sum": ([node("Tanh", "x", "c"), node("ReduceMean", "c", "y")], 1, "loop"),
}  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_what_is_fused(name: str) -> None:
    nodes, count, kind = FUSED[name]
    program, told = fuse_loops(lower(simplify(read(model(nodes, X, Y, W)))))
    assert len(program.stages) == count and any(one.done for one in told)
    last = program.stages[-1]
    if kind == "loop":
        assert isinstance(last, LoopStage)
    else:
        assert isinstance(last, LayerStage) and getattr(last, kind) and last.clamp == (0.0, np.inf)


REFUSED = {
    "it is an output": ([conv("c"), RELU], {"c": None, "y": None}),
    "reads it too": ([conv("c"), node("Relu", "c", "d"), node("Tanh", "c", "e"),
                      node("Add", "d e", "y")], Y),
    "elements would be computed more than once": (
        [node("Tanh", "x", "c"), node("MaxPool", "c", "y", kernel_shape=[3, 3])], Y),
    "one reduction inside another": (
        [node("ReduceMean", "x", "c"), node("ReduceMean", "c", "y", axes=[1])], Y),
    "it adds the result to itself": ([conv("c"), node("Add", "c c", "y")], Y),
    "sums would be computed again": (
        [node("ReduceMean", "x", "c", axes=[1]), node("Mul", "c x", "y")], Y),
    "it reads other elements than those of its own place": (
        [node("GlobalAveragePool", "x", "g"), node("Conv", "g k", "c"),
         node("Add", "c x", "y")], Y),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_fused_and_why(reason: str) -> None:
    nodes, outputs = REFUSED[reason]
    weights = W | {"k": reals(8, 8, 1, 1)}
    _, told = fuse_loops(lower(simplify(read(model(nodes, X, outputs, weights)))))
    assert any(reason in one.refusal for one in told), [one.refusal for one in told]


# ------------------------------------------------------------------ places


def test_parts_are_written_where_they_are_joined() -> None:
    nodes = [conv("c"), conv("d", w="v"), node("Concat", "c d", "e", axis=1),
             node("Tanh", "x", "t"), node("Concat", "e t", "f", axis=1),
             node("MaxPool", "f", "y", kernel_shape=[2, 2])]  # fmt: skip
    prepared = plan_of(model(nodes, X, Y, W))
    places = prepared.placed.places
    assert {places[name].buffer for name in ("c", "d", "e", "t", "f")} == {"f"}
    channel = places["f"].strides[1]
    assert [places[name].first for name in ("c", "d", "t")] == [0, 8 * channel, 16 * channel]
    assert all(places[name].strides == places["f"].strides for name in ("c", "d", "e", "t"))
    assert not any("copy" in stage.output for stage in prepared.program.stages[1:])


def test_views_move_nothing() -> None:
    nodes = [node("Tanh", "x", "t"), node("Transpose", "t", "a", perm=[0, 2, 3, 1]),
             node("Slice", "a from to axis step", "b"), node("Sigmoid", "b", "y")]  # fmt: skip
    told = {"from": np.array([5]), "to": np.array([-9]), "axis": np.array([1]),
            "step": np.array([-2])}  # fmt: skip
    one = model([*nodes[:1], node("Relu", "t", "z"), *nodes[1:]], X, Y | {"z": None}, told)
    prepared = plan_of(one)
    place = prepared.placed.places["b"]
    assert place.buffer == "t" and place.first == 5 * prepared.placed.places["a"].strides[1]
    assert place.strides[1] == -2 * prepared.placed.places["a"].strides[1]
    assert len(prepared.program.stages) == 3


@drawn(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_reshaped_strides_are_those_of_numpy(shape: list[int], data: st.DataObject) -> None:
    size = int(np.prod(shape))
    order = data.draw(st.permutations(range(len(shape))))
    array = np.arange(size, dtype=np.int64).reshape(shape).transpose(order)
    first = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    second = data.draw(st.sampled_from([n for n in range(1, first + 1) if first % n == 0]))
    new = (first // second, second, size // first)
    found = reshape(array.shape, [step // 8 for step in array.strides], new)
    if found is not None:
        base = np.arange(size, dtype=np.int64)
        view = np.lib.stride_tricks.as_strided(base, new, [8 * step for step in found])
        np.testing.assert_array_equal(view, array.reshape(new))
    elif array.flags.c_contiguous:
        raise AssertionError("what lies in order can have any shape")


# ------------------------------------------------------------------ memory and order


@pytest.mark.exhaustive
@settings(max_examples=30, derandomize=True)
@drawn(models(), st.booleans())
def test_buffers_that_live_together_are_apart(one: onnx.ModelProto, apart: bool) -> None:
    prepared = plan_of(one)
    program = prepared.program
    kept = frozenset({*program.inputs, *program.outputs, *program.constants})
    alive, arena = lives(prepared.placed, kept), arrange(prepared.placed, apart=apart)
    spaces = {name: (at, at + program.values[name].bytes) for name, at in arena.offsets.items()}
    for name, (first, end) in spaces.items():
        assert first % ALIGNMENT == 0 and end <= arena.size <= arena.unshared
        for other, (start, stop) in spaces.items():
            if name != other and (apart or alive[name].meets(alive[other])):
                assert end <= start or stop <= first


def test_a_barrier_stands_exactly_where_one_must() -> None:
    nodes = [node("Tanh", "x", "a"), node("Sigmoid", "z", "b"), node("ReduceMean", "a", "c"),
             node("ReduceMean", "b", "d")]  # fmt: skip
    inputs, outputs = {"x": [4, 9], "z": [4, 9]}, dict.fromkeys("abcd")
    found = re.findall(r"barrier|small_s\d(?=\(m\);)", code_of(model(nodes, inputs, outputs), 2))
    assert found == ["small_s0", "small_s1", "barrier", "small_s2", "small_s3"]
    assert "barrier" not in code_of(model(nodes, inputs, outputs), 1)


@pytest.mark.exhaustive
def test_layers_that_share_a_workspace_wait() -> None:
    """Both read an input that lies plane by plane, and pack it."""
    nodes = [conv("y"), conv("q", "z", "v")]
    inputs = {"x": [1, 8, 6, 6], "z": [1, 8, 6, 6]}
    one = model(nodes, inputs, {"y": None, "q": None}, W)
    network = network_of(read(one), 2)
    spaces = [
        range(network.code.arena.offsets[buffer], network.code.arena.offsets[buffer] + size)
        for at, call in network.code.calls.items()
        for buffer, size in ((f"{at} workspace", call.source.workspace),) if size
    ]  # fmt: skip
    shared = len(spaces) == 2 and set(spaces[0]) & set(spaces[1])
    text = code_of(one, 2)
    between = text[text.index("small_l0(") : text.rindex("small_l")]
    assert not shared or "barrier" in between


@pytest.mark.exhaustive
def test_weights_that_are_damaged_or_of_another_network_are_refused(tmp_path: Path) -> None:
    code = network_of(read(model([conv("y")], X, Y, W))).code
    network = network_of(read(model([conv("y")], X, Y, W)))
    library, good = network.runner.library.path, b"".join(code.weights_file.pieces())

    def load(weights: bytes | Path) -> Runner:
        if isinstance(weights, bytes):
            (tmp_path / "changed").write_bytes(weights)
            weights = tmp_path / "changed"
        return Runner(library, code.name, code.declarations, weights, *ports(code))

    assert load(good).model_bytes > 0
    (tmp_path / "weights").write_bytes(good)
    assert load(tmp_path / "weights").model_bytes > 0
    for at, message in ((20, "not the weights of"), (200, "are damaged")):
        bad = bytearray(good)
        bad[at] ^= 1
        with pytest.raises(PolysciError, match=message):
            load(bytes(bad))
    for size in (10, 64, len(good) - 64):
        with pytest.raises(PolysciError, match=r"cut short|not the weights"):
            load(good[:size])
    with pytest.raises(PolysciError, match="cannot be opened"):
        load(tmp_path / "nowhere")


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no huge pages")
def test_large_weights_lie_in_huge_pages() -> None:
    """Whether or not a precompiled header comes before the network's own."""
    network = network_of(read(model([conv("y")], X, Y, W)), isa=detect().isa.name)
    library = network.runner.library.path
    assert b"madvise" in library.read_bytes()


@pytest.mark.exhaustive
def test_the_digest_is_of_all_constants() -> None:
    one = network_of(read(model([conv("y")], X, Y, W))).code.weights_file
    other = network_of(read(model([conv("y")], X, Y, W | {"w": 2 * W["w"]}))).code.weights_file
    assert one.digest != other.digest and len(one.digest) == 16
    assert next(one.pieces())[:32] == b"polysci weights " + one.digest.encode()


# ------------------------------------------------------------------ loops as C

GOLDEN = {
    "threads": ([node("Tanh", "x", "a"), node("Mul", "a v", "y")], {"v": reals(6, 1)}, 2),
    "columns": ([node("ReduceMean", "x", "y", axes=[1])], {}, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_loops(name: str, golden: Callable[[str, str], None]) -> None:
    nodes, weights, threads = GOLDEN[name]
    text = network_of(read(model(nodes, X, Y, weights)), threads).code.files["small.c"]
    first = text.index("} ps_memory;") + len("} ps_memory;\n")
    golden(f"loops_{name}.c", text[text.index("/*", first) : text.index("struct small_model")])


def test_golden_loops_and_files_agree() -> None:
    found = {path.stem.removeprefix("loops_") for path in
             (Path(__file__).parents[1] / "golden").glob("loops_*.c")}  # fmt: skip
    assert found == set(GOLDEN)


def test_random_inputs_differ() -> None:
    graph = read(model([RELU], {"c": [2, 3]}, Y))
    assert len(np.unique(given(graph)["c"])) == 6
