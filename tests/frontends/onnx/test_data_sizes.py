"""Sizes that data decides and an option bounds, against ONNX's reference."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from polysci.cli import main
from polysci.errors import SizeError, SpecError, UnsupportedError
from polysci.network.build import store
from polysci.network.compiled import Network, compile_network
from polysci.network.runner import cut_results, restore
from polysci.network.sizes import compile_sizes
from polysci.program.stages import RepeatStage
from tests.frontends.onnx.test_loops import B, F, L, graph, looped
from tests.support.networks import network_of, read
from tests.support.onnxmodels import node, reals

GROWS = (node("Add", "s one", "s2"), node("Mul", "s2 s2", "row"))
NUMBERS = {
    "one": np.float32([1, 2]), "zero": np.int64(0), "step": np.int64(1), "axis": np.int64([0]),
    "four": np.int64([4]), "at": np.int64([1]), "lows": np.float32([0]),
    "nine": np.arange(9, dtype=np.float32),
}  # fmt: skip


def bounded(made: onnx.ModelProto, threads: int = 1, **most: int) -> Network:
    return network_of(read(made, most=most), threads)


def agree(network: Network, made: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    feeds = {name: np.asarray(value) for name, value in feeds.items()}
    wanted = ReferenceEvaluator(made).run(None, feeds)
    results = network(feeds)
    assert [*results] == [tensor.name for tensor in made.graph.output]
    for (name, result), expected in zip(results.items(), wanted, strict=True):
        assert result.shape == expected.shape and result.dtype == expected.dtype, name
        assert np.allclose(result, expected, 1e-5, 1e-5), (name, feeds)


def loop(by_condition: bool, words: str) -> onnx.ModelProto:
    """A Loop that counts, stacks rows, and may end where the sum of its state reaches a limit."""
    goes_on = [node("Identity", "on", "on2")]
    if by_condition:
        goes_on = [node("ReduceSum", "s2", "sum", keepdims=0), node("Less", "sum limit", "on2")]
    inputs = {"s0": (F, [2]), **({"n": (L, [])} if "n" in words else {}),
              **({"limit": (F, [])} if by_condition else {})}  # fmt: skip
    return looped([*GROWS, *goes_on], {"s": (F, [2])}, ["row"], inputs, f"{words} s0", "last rows",
                  {"one": NUMBERS["one"]})  # fmt: skip


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_count_that_is_data(threads: int) -> None:
    made = loop(False, "n yes")
    with pytest.raises(UnsupportedError, match="most there may be, as in --most rows=1000; bind"):
        read(made)
    network, feeds = bounded(made, threads, rows=4), {"s0": reals(2)}
    for count in (1, 3, 4):
        agree(network, made, {**feeds, "n": count})
    none = network({**feeds, "n": np.array(-1)})
    assert none["rows"].shape == (0, 2) and np.array_equal(none["last"], feeds["s0"])
    hint = r": compile it for more, as with most=\{'rows': 5\}"
    for count, words in ((5, hint), (2**63 - 1, "")):
        wrong = f"rows: this run needs at least {count}, and most is 4{words}$"
        with pytest.raises(SizeError, match=wrong):
            network({**feeds, "n": np.array(count)})
    agree(network, made, {**feeds, "n": 2})


@pytest.mark.parametrize("words", ["n yes", "- yes"])
def test_a_condition_that_is_data(words: str) -> None:
    made = loop(True, words)
    network, feeds = bounded(made, rows=4), {"s0": np.zeros(2, np.float32)}
    feeds |= {"n": np.array(100)} if "n" in words else {}
    for limit in (0, 3.5, 6, 8.5, 11.9, 12):  # the sum grows by 3 in each step
        agree(network, made, {**feeds, "limit": np.float32(limit)})
    with pytest.raises(SizeError, match="rows: this run needs at least 5, and most is 4"):
        network({**feeds, "limit": np.array(12.5, np.float32)})
    if "n" in words:
        agree(network, made, {**feeds, "limit": np.float32(99), "n": 4})
        with pytest.raises(SizeError):
            network({**feeds, "limit": np.array(99, np.float32), "n": np.array(5)})


def test_bounds_are_whole_numbers_of_any_type() -> None:
    network = compile_network(loop(False, "n yes"), "estimate", most={"rows": np.int64(2)})
    agree(network, loop(False, "n yes"), {"s0": reals(2), "n": 2})


def test_a_loop_that_stacks_nothing_may_be_bounded() -> None:
    made = looped([*GROWS[:1], node("Identity", "on", "on2")], {"s": (F, [2])}, [],
                  {"s0": (F, [2]), "n": (L, [])}, "n yes s0", "last",
                  {"one": NUMBERS["one"]})  # fmt: skip
    feeds = {"s0": reals(2), "n": np.array(7)}
    agree(network_of(read(made)), made, feeds)
    with pytest.raises(SizeError, match="last: this run needs at least 7, and most is 6"):
        bounded(made, last=6)(feeds)


def sized(nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: str) -> onnx.ModelProto:
    used = {name for part in nodes for name in part.input}
    kept = {name: value for name, value in NUMBERS.items() if name in used}
    made = graph(nodes, inputs, dict.fromkeys(outputs.split(), F), kept)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


SHAPES = [
    node("Range", "zero n step", "places"), node("Cast", "places", "y", to=1),
    node("Unsqueeze", "n axis", "list"), node("Concat", "list four", "shape", axis=0),
    node("Expand", "v shape", "wide"), node("Unsqueeze", "y at", "column"),
    node("Mul", "wide column", "rows"), node("ReduceSum", "rows axis", "sum", keepdims=0),
    node("ConstantOfShape", "shape", "noughts"), node("Add", "noughts rows", "same"),
    node("Shape", "same", "told"), node("Reshape", "same told", "again"),
    node("Slice", "again at list axis", "rest"), node("Gather", "told zero", "length"),
    node("Unsqueeze", "length axis", "lengths"), node("Slice", "nine axis lengths axis", "head"),
    node("Mul", "head y", "weighted"),
]  # fmt: skip


def test_shapes_of_one_size() -> None:
    """One option bounds all tensors that are as long as the same number says."""
    made = sized(SHAPES, {"n": (L, []), "v": (F, [4])},
                 "y rows sum noughts again rest weighted")  # fmt: skip
    with pytest.raises(UnsupportedError) as caught:
        read(made)
    assert "'places': give the most there may be, as in --most places=1000" in str(caught.value)
    network, v = bounded(made, 2, places=4), reals(4)
    for count in (0, 1, 3, 4):
        agree(network, made, {"n": count, "v": v})
    with pytest.raises(SizeError, match="places: this run needs at least 5, and most is 4"):
        network({"n": np.array(5), "v": v})


WHOLE = [(0, 5, 2), (5, 0, -2), (5, 5, 1), (3, 9, 3), (0, -9, 3), (-4, 0, 1)]
TOO_MANY = [(0, 5, 1), (1, 2, 0), (-(2**63), 2**63 - 1, 1), (5, 0, -1)]


@pytest.mark.parametrize("kind", [L, F])
def test_ranges(kind: int) -> None:
    inputs = dict.fromkeys(("start", "limit", "delta"), (kind, []))
    made = sized([node("Range", "start limit delta", "y")], inputs, "y")
    made.graph.output[0].type.tensor_type.elem_type = kind
    network, dtype = bounded(made, y=4), helper.tensor_dtype_to_np_dtype(kind)
    real = kind == F
    for ends in [*WHOLE, *([(0, 0.6, 0.2), (0, 1, 0.3)] * real)]:
        agree(network, made, dict(zip(inputs, np.array(ends, dtype), strict=True)))
    for ends in [*TOO_MANY, *([(0, np.nan, 1), (0, np.inf, 1)] * real)]:
        with pytest.raises(SizeError, match="y: this run needs at least"):
            network(dict(zip(inputs, map(np.array, np.array(ends, dtype)), strict=True)))


def test_ends_of_slices() -> None:
    """An axis bounds its parts, so that they need no option."""
    nodes = [
        node("Slice", "x axis n axis", "head"), node("Slice", "x n four axis", "y"),
        node("Add", "n at", "next"), node("Slice", "x n next at", "part"),
        node("MatMul", "head w", "product"), node("TopK", "x size", "best places"),
    ]  # fmt: skip
    made = sized(nodes, {"x": (F, [5, 6]), "n": (L, [1]), "size": (L, [1]), "w": (F, [6, 3])},
                 "head y part product best")  # fmt: skip
    network, feeds = network_of(read(made)), {"x": reals(5, 6), "w": reals(6, 3)}
    for n in (-9, -5, -2, -1, 0, 1, 3, 5, 6, 9):
        agree(network, made, {**feeds, "n": [n], "size": [abs(n) % 7]})
    short = bounded(made, head=2)
    agree(short, made, {**feeds, "n": [2], "size": [1]})
    with pytest.raises(SizeError, match="head: this run needs at least 3, and most is 2"):
        short({**feeds, "n": np.array([3]), "size": np.array([1])})


def test_bounds_that_the_model_has() -> None:
    """The least of several numbers, and counts that are bounded themselves."""
    nodes = [
        node("NonZero", "x", "found"), node("Shape", "found", "told"),
        node("Gather", "told step", "count"), node("Range", "zero count step", "first"),
        node("Min", "n three", "few"), node("Range", "zero few step", "second"),
        node("Cast", "first", "a", to=1), node("Cast", "second", "b", to=1),
    ]  # fmt: skip
    made = sized(nodes, {"x": (F, [4]), "n": (L, []), "three": (L, [])}, "a b")
    del made.graph.input[2]
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(3), "three"))
    network = network_of(read(made))
    for n, x in ((0, [0, 0, 0, 0]), (2, [0, 1, 0, 1]), (9, [1, 2, 3, 4])):
        agree(network, made, {"n": n, "x": np.float32(x)})
    fewer = bounded(made, found=2)  # a bound that is less than what there may be
    agree(fewer, made, {"n": 1, "x": np.float32([0, 1, 0, 1])})
    with pytest.raises(SizeError, match="found: this run needs at least 3, and most is 2"):
        fewer({"n": np.array(1), "x": np.float32([2, 1, 0, 1])})


def test_what_is_not_needed_is_not_checked() -> None:
    """Neither the sizes of a branch that is not taken, nor of what no output needs."""
    long, short = (
        graph(nodes, {}, {"r": F}, {})
        for nodes in (
            [node("Range", "zero n step", "i"), node("Cast", "i", "f", to=1),
             node("ReduceSum", "f axis", "r")],
            [node("Identity", "lows", "r")],
        )
    )  # fmt: skip
    nodes = [
        node("If", "taken", "y", then_branch=long, else_branch=short),
        node("Range", "zero n step", "unused"),
    ]
    made = sized(nodes, {"taken": (B, []), "n": (L, [])}, "y")
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(NUMBERS[name]), name)
        for name in ("axis", "lows") if name not in {x.name for x in made.graph.initializer}
    )  # fmt: skip
    with pytest.raises(UnsupportedError) as caught:
        read(made)
    name = str(caught.value).split("length of '")[1].split("'")[0]
    network = bounded(made, **{name: 4, "unused": 1})
    agree(network, made, {"taken": True, "n": 4})
    agree(network, made, {"taken": False, "n": 9})
    with pytest.raises(SizeError, match=f"{name}: this run needs at least 9"):
        network({"taken": np.array(True), "n": np.array(9)})


def test_all_that_a_network_is_used_for(tmp_path: Path) -> None:
    """C's return value, memory of the caller's, another process, and what the header says."""
    network = bounded(loop(False, "n yes"), rows=3)
    ffi, runner = network.runner.library.ffi, network.runner
    kinds = [port.name for port in network.outputs]
    assert kinds[:2] == ["last", "rows"] and network.outputs[-1].most == (("rows", 3),)
    feeds = {"s0": reals(2), "n": np.array(2)}
    for count, code in ((2, 0), (4, 6)):
        arrays = [{**feeds, "n": np.array(count)}[port.name] for port in network.inputs]
        results = runner.results()
        pointers = [ffi.from_buffer(f"{kind}[]", array) for array, kind in (
            (array, {"f": "float", "i": "int64_t"}[array.dtype.kind])
            for array in (*arrays, *results)
        )]  # fmt: skip
        assert runner.network.run(runner.context(), *pointers) == code
        assert results[-1].tolist() == [count]
    header = network.code.files["small.h"]
    assert "enum { SMALL_OK = 0, SMALL_TOO_LONG = 6 };\nint small_run(" in header
    assert "(sizes): what data asked for, rows at most 3" in header
    out = dict(zip(kinds, runner.results(), strict=True))
    run = network.bind(feeds, out)
    run()
    assert out["sizes"].tolist() == [2]
    feeds["n"][...] = 4
    for call in (run, lambda: network(feeds, out)):
        with pytest.raises(SizeError, match="rows: this run needs at least 4"):
            call()
    with pytest.raises(SizeError, match="rows: this run needs at least 4"):
        pickle.loads(pickle.dumps(network))(feeds)
    store(network.code, runner.library.path, tmp_path)
    other = restore(tmp_path)
    results = other([{**feeds, "n": np.array(1)}[port.name] for port in other.inputs])
    assert cut_results(other.outputs, results)["rows"].shape == (1, 2)
    assert [*cut_results(other.outputs, results)] == ["last", "rows"]


def test_beside_a_range_of_sizes() -> None:
    nodes = [node("Range", "zero n step", "r"), node("Cast", "r", "f", to=1),
             node("ReduceSum", "x axis", "s", keepdims=0), node("Unsqueeze", "f at", "u"),
             node("Mul", "u s", "y")]  # fmt: skip
    made = sized(nodes, {"n": (L, []), "x": (F, ["T", 3])}, "y")
    network = compile_sizes(made, {"T": range(5, 7)}, "estimate", verify=False, most={"r": 4})
    for rows in (5, 6):
        feeds = {"n": np.array(3), "x": reals(rows, 3)}
        (wanted,) = ReferenceEvaluator(made).run(None, feeds)
        assert np.allclose(network(feeds)["y"], wanted, 1e-5, 1e-5)
        with pytest.raises(SizeError, match="r: this run needs at least 5, and most is 4"):
            network({**feeds, "n": np.array(5)})


def test_wrong_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = loop(False, "n yes")
    for most, said in (
        ({"rows": 0}, "most: 'rows'=0: expected a whole number of at least 1"),
        ({"other": 2, "rows": 3}, "most: 'other': data decides the length of no tensor of that"),
    ):
        with pytest.raises(SpecError, match=said):
            compile_network(made, "estimate", most=most)
    with pytest.raises(TypeError, match="most: 'rows': expected a whole number, got"):
        compile_network(made, "estimate", most={"rows": "many"})
    with pytest.raises(TypeError, match="most: expected"):
        compile_network(made, "estimate", most=3)
    with pytest.raises(SpecError, match="most: 'rows': bounds what data decides, in an ONNX model"):
        compile_network("mlp:1x64x10", "estimate", most={"rows": 3})
    path = tmp_path / "loop.onnx"
    onnx.save(made, path)
    for words, said in (
        ("rows=0", "expected a positive"),
        ("rows", "expected NAME=N, as in rows="),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["compile", str(path), "--most", words])
        assert ended.value.code == 2 and said in capsys.readouterr().err
    assert main(["compile", str(path), "--most", "rows=2", "--most", "rows=3"]) == 2
    assert "--most rows: given more than once" in capsys.readouterr().err
    assert main(["explain", str(path), "--most", "rows=4"]) == 0


def growing(by_condition: bool) -> onnx.ModelProto:
    """A Loop whose state gets a row more in each iteration, as tokens that are generated."""
    body = [
        node("ReduceSum", "s axis", "total", keepdims=1), node("Mul", "total half", "next"),
        node("Concat", "s next", "s2", axis=0), node("Add", "t next", "t2"),
        node("ReduceMax", "s2", "high", keepdims=0), node("Squeeze", "next axis", "row"),
        node("Less", "high limit", "on2") if by_condition else node("Identity", "on", "on2"),
    ]  # fmt: skip
    made = looped(body, {"s": (F, [1, 2]), "t": (F, [1, 2])}, ["row"],
                  {"s0": (F, [1, 2]), "t0": (F, [1, 2]), "n": (L, []), "limit": (F, [])},
                  "n yes s0 t0", "last total_of rows",
                  {"axis": NUMBERS["axis"], "half": np.float32(0.75)},
                  (node("MatMul", "last w", "behind"),))  # fmt: skip
    (loop,) = (part for part in made.graph.node if part.op_type == "Loop")
    state = loop.attribute[0].g.input[2]
    state.type.tensor_type.shape.dim[0].dim_param = "rows"
    made.graph.input.append(onnx.helper.make_tensor_value_info("w", F, [2, 3]))
    return made


@pytest.mark.parametrize("by_condition", [False, True])
def test_states_that_grow(by_condition: bool) -> None:
    made = growing(by_condition)
    network = bounded(made, rows=4)
    feeds = {"s0": np.float32([[1, 2]]), "t0": reals(1, 2), "w": reals(2, 3)}
    for count, limit in ((1, 9), (3, 99), (4, 99), *([(100, 2), (100, 5)] * by_condition)):
        agree(network, made, {**feeds, "n": count, "limit": np.float32(limit)})
    none = network({**feeds, "n": np.array(0), "limit": np.array(9, np.float32)})
    assert np.array_equal(none["last"], feeds["s0"]) and none["rows"].shape == (0, 2)
    for count in (5, 100):
        wrong = f"rows: this run needs at least {5 if by_condition else count}, and most is 4"
        with pytest.raises(SizeError, match=wrong):
            network({**feeds, "n": np.array(count), "limit": np.array(1e9, np.float32)})


def test_sizes_that_the_number_of_the_iteration_bounds() -> None:
    """A loop in C, whose steps are longer and longer."""
    body = [
        node("Add", "i step", "end"), node("Range", "zero end step", "r"),
        node("Cast", "r", "f", to=1), node("Gather", "w r", "part"),
        node("Mul", "part f", "weighted"), node("ReduceSum", "weighted axis", "t"),
        node("Add", "s t", "s2"), node("Identity", "on", "on2"), node("Identity", "t", "row"),
    ]  # fmt: skip
    made = looped(body, {"s": (F, [1])}, ["row"], {"s0": (F, [1]), "n": (L, []), "w": (F, [9])},
                  "n yes s0", "last rows",
                  {name: NUMBERS[name] for name in ("zero", "step", "axis")})  # fmt: skip
    network, feeds = bounded(made, rows=9), {"s0": reals(1), "w": reals(9)}
    assert any(isinstance(stage, RepeatStage) for stage in network.prepared.program.stages)
    for count in (1, 5, 9):
        agree(network, made, {**feeds, "n": count})


def test_loops_inside_a_loop_of_data() -> None:
    """Steps of steps are written out; those that do not count change nothing."""
    inner = graph(
        [node("Add", "p one", "p2"), node("Identity", "more", "more2")],
        {"j": (L, []), "more": (B, []), "p": (F, [2])},
        {"more2": B, "p2": F},
        {},
    )
    body = [node("Loop", "six on s", "s2", body=inner), node("Identity", "on", "on2")]
    made = looped(body, {"s": (F, [2])}, [], {"s0": (F, [2]), "n": (L, [])}, "n yes s0", "last",
                  {"one": NUMBERS["one"], "six": np.int64(6)})  # fmt: skip
    network, feeds = bounded(made, last=3), {"s0": reals(2)}
    for count in (0, 1, 3):
        agree(network, made, {**feeds, "n": count})
    with pytest.raises(SizeError, match="last: this run needs at least 4, and most is 3"):
        network({**feeds, "n": np.array(4)})


def test_attention_to_as_many_as_data_says() -> None:
    """Columns of scores, their softmax, and sums over as many rows of values."""
    nodes = [
        node("NonZero", "mask", "found"), node("Squeeze", "found axis", "at_rows"),
        node("Gather", "keys at_rows", "k"), node("Gather", "values at_rows", "v"),
        node("Shape", "k", "told"), node("Slice", "told axis at", "length"),
        node("Concat", "length heads", "split", axis=0), node("Reshape", "k split", "k3"),
        node("Reshape", "v split", "v3"), node("Transpose", "k3", "kt", perm=[1, 2, 0]),
        node("Transpose", "v3", "vt", perm=[1, 0, 2]), node("MatMul", "q kt", "scores"),
        node("Softmax", "scores", "shares"), node("MatMul", "shares vt", "y"),
    ]  # fmt: skip
    made = sized(nodes, {"mask": (B, [7]), "keys": (F, [7, 6]), "values": (F, [7, 6]),
                         "q": (F, [2, 4, 3])}, "shares y")  # fmt: skip
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 3]), "heads"))
    network, fewer = network_of(read(made), 2), bounded(made, found=3)
    random = np.random.default_rng(0)
    for count in (1, 3, 7):
        mask = np.isin(np.arange(7), random.permutation(7)[:count])
        feeds = {"mask": mask, "keys": reals(7, 6), "values": reals(7, 6, seed=1),
                 "q": reals(2, 4, 3, seed=2)}  # fmt: skip
        feeds["keys"][~mask] = np.nan
        feeds["values"][~mask] = np.inf
        agree(network, made, feeds)
        if count <= 3:
            agree(fewer, made, feeds)
