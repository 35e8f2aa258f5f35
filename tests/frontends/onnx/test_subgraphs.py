"""Branches, loops, functions and sequences become plain nodes, or are refused by name."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.onnx import importer, reader, reference
from polysci.graph.operators import operator_of_onnx
from polysci.graph.operators.lower import SUPPORTED
from tests.support.onnxmodels import model, node, reals

X = {"x": [2, 3]}
BASIC = (*SUPPORTED, "select", "gather", "greater")


def graph(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], inputs: Mapping[str, Any] = {},
          weights: Mapping[str, np.ndarray] = {}) -> onnx.GraphProto:  # fmt: skip
    """A subgraph; shapes are left to inference."""
    info = helper.make_tensor_value_info
    return helper.make_graph(
        nodes, "inner",
        [info(name, kind, None) for name, kind in inputs.items()],
        [info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip


def choice(condition: str, output: str, then: onnx.GraphProto, other: onnx.GraphProto) -> Any:
    return helper.make_node("If", [condition], [output], f"choice of {output}",
                            then_branch=then, else_branch=other)  # fmt: skip


def with_inputs(one: onnx.ModelProto, **kinds: tuple[int, Sequence[int]]) -> onnx.ModelProto:
    for name, (kind, shape) in kinds.items():
        one.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
    return one


def agree(one: onnx.ModelProto, values: Mapping[str, Any] | None = None) -> list[str]:
    """Compare with ONNX's reference, which runs the model as it is; gives the operators left."""
    read = importer.graph_of(one, values=values, supported=BASIC)
    random = np.random.default_rng(1)
    feeds = {t.name: random.normal(size=t.shape).astype(t.dtype) for t in read.inputs}
    made = reference.run(read, feeds, "float32")
    told = {name: np.asarray(value) for name, value in (values or {}).items()}
    kinds = {t.name: helper.tensor_dtype_to_np_dtype(t.type.tensor_type.elem_type)
             for t in one.graph.input}  # fmt: skip
    told = {name: value.astype(kinds[name]) for name, value in told.items()}
    expected = ReferenceEvaluator(one).run(None, feeds | told)
    for tensor, value in zip(read.outputs, expected, strict=True):
        np.testing.assert_allclose(made[tensor.name], value, rtol=1e-5, atol=1e-6)
    return [one.op for one in read.nodes]


def rated() -> onnx.ModelProto:
    """As in speech models: the sample rate chooses weights; both branches use the same names."""
    then = graph(
        [node("MatMul", "x w", "h"), node("Relu", "h", "r")], ["r"], {}, {"w": reals(3, 4)}
    )
    other = graph([node("MatMul", "x w", "h")], ["h"], {}, {"w": reals(3, 4, seed=1)})
    nodes = [node("Equal", "rate fast", "c"), choice("c", "t", then, other), node("Relu", "t", "y")]
    one = model(nodes, X, {"y": None}, {"fast": np.array(16000)})
    return with_inputs(one, rate=(TensorProto.INT64, []))


@pytest.mark.parametrize(("rate", "left"), [(16000, 3), (8000, 2)])
def test_a_condition_that_a_value_decides(rate: int, left: int) -> None:
    assert len(agree(rated(), {"rate": rate})) == left


def test_both_branches_are_kept_where_data_decides() -> None:
    then, other = graph([node("Relu", "x", "a")], ["a"]), graph([node("Tanh", "x", "a")], ["a"])
    nodes = [node("ReduceMean", "x", "m", keepdims=0), node("Greater", "m zero", "c"),
             choice("c", "y", then, other)]  # fmt: skip
    ops = agree(model(nodes, X, {"y": None}, {"zero": np.float32(0)}))
    assert ops == ["reduce_mean", "greater", "relu", "tanh", "if"]


def test_branches_of_other_shapes_ask_for_the_value() -> None:
    then = graph([node("MatMul", "x w", "h")], ["h"], {}, {"w": reals(3, 4)})
    other = graph([node("MatMul", "x w", "h")], ["h"], {}, {"w": reals(3, 5)})
    one = with_inputs(model([choice("c", "y", then, other)], X, {"y": None}),
                      c=(TensorProto.BOOL, []))  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"1 x if \('if choice of y'\): its condition is not "
                       r"constant.*differ in shape; bind this input.*--value c=V"):  # fmt: skip
        importer.graph_of(one, supported=BASIC)
    assert agree(one, {"c": True}) == ["matmul"]


def test_branches_inside_each_other() -> None:
    """With captures at both depths, a branch that hands on an outer tensor, and a constant one."""
    inner = choice("d", "i", graph([node("Add", "x t", "s")], ["s"]), graph([], ["t"]))
    then = graph([inner, node("Relu", "i", "o")], ["o"])
    other = graph([], ["k"], {}, {"k": reals(2, 3)})
    nodes = [node("Tanh", "x", "t"), choice("c", "u", then, other), node("Add", "u x", "y")]
    for c in (True, False):
        for d in (True, False):
            weights = {"c": np.array(c), "d": np.array(d)}
            agree(model(nodes, X, {"y": None}, weights))


def test_a_branch_that_reads_what_nothing_makes() -> None:
    body = graph([node("Relu", "nowhere", "a")], ["a"])
    one = model([choice("c", "y", body, body)], X, {"y": None}, {"c": np.array(True)})
    with pytest.raises(SpecError, match="reads 'nowhere', which nothing before it makes"):
        importer.graph_of(one, supported=BASIC)


def loop(count: str, condition: str = "") -> onnx.ModelProto:
    """``s`` becomes ``s + x * i`` ``count`` times; every ``s`` comes out as well."""
    body = graph(
        [node("Cast", "i", "f", to=1), node("Mul", "x f", "p"), node("Add", "s p", "s2"),
         node("Identity", "s2", "z"), node("Identity", "on", "on2")],
        ["on2", "s2", "z"],
        {"i": TensorProto.INT64, "on": TensorProto.BOOL, "s": TensorProto.FLOAT},
    )  # fmt: skip
    body.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    nodes = [helper.make_node("Loop", [count, condition, "x"], ["last", "all"], "the loop",
                              body=body), node("Relu", "last", "y")]  # fmt: skip
    one = model(nodes, X, {"y": None, "all": None}, {"three": np.array(3)})
    return with_inputs(one, n=(TensorProto.INT64, []))


def test_a_loop_of_known_length() -> None:
    x = reals(2, 3)
    for name, trips in (("three", 3), ("n", 2), ("n", 0)):
        states = [x + x * sum(range(at + 1)) for at in range(trips)]
        if not trips:
            states = [x]
        made = reference.run(importer.graph_of(loop(name), values={"n": trips}, supported=BASIC),
                             {"x": x}, "float32")  # fmt: skip
        np.testing.assert_allclose(made["y"], np.maximum(states[-1], 0), rtol=1e-6)
        np.testing.assert_allclose(made["all"], np.stack(states)[:trips], rtol=1e-6)


@pytest.mark.exhaustive
def test_a_loop_of_unknown_length_asks_for_it() -> None:
    with pytest.raises(
        UnsupportedError,
        match=r"1 x Loop \('Loop the loop'\): its number of "
        r"iterations is not constant, and it stacks results: give the most "
        r"there may be, as in --most all=1000; bind this input.*--value n=V",
    ):
        importer.graph_of(loop("n"), supported=BASIC)
    with pytest.raises(UnsupportedError, match=r"has shape \[1099511627776, 2, 3\]"):
        importer.graph_of(loop("n"), values={"n": 1 << 40}, supported=BASIC)


BACKWARD = {"scan_input_directions": [1], "scan_input_axes": [1],
            "scan_output_directions": [1], "scan_output_axes": [1]}  # fmt: skip


@pytest.mark.parametrize("words", [{}, BACKWARD])
def test_a_scan(words: dict[str, Any]) -> None:
    body = graph([node("Add", "s v", "s2"), node("Tanh", "s2", "z")], ["s2", "z"],
                 {"s": TensorProto.FLOAT, "v": TensorProto.FLOAT})  # fmt: skip
    size = 2 if words else 3
    scan = helper.make_node("Scan", ["zero", "x"], ["y", "all"], "scan", body=body,
                            num_scan_inputs=1, **words)  # fmt: skip
    one = model([scan], X, {"y": None, "all": None}, {"zero": np.zeros(size, np.float32)})
    x = reals(2, 3)
    slices = x.T[::-1] if words else x
    states = np.cumsum(slices, 0)
    stacked = np.tanh(states)[::-1].T if words else np.tanh(states)
    made = reference.run(importer.graph_of(one, supported=BASIC), {"x": x}, "float32")
    np.testing.assert_allclose(made["y"], states[-1], rtol=1e-6)
    np.testing.assert_allclose(made["all"], stacked, rtol=1e-6)


def called(**words: Any) -> onnx.ModelProto:
    """A function with a default, an optional input and one that it calls, twice."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    leaky = helper.make_node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=1))
    inner = helper.make_function(
        "mine",
        "Leak",
        ["a"],
        ["b"],
        [leaky],
        imports,
        attribute_protos=[helper.make_attribute("slope", 0.5)],
    )
    call = helper.make_node("Leak", ["t"], ["b"], domain="mine")
    call.attribute.append(onnx.AttributeProto(name="slope", ref_attr_name="slope", type=1))
    outer = helper.make_function("mine", "Block", ["a"], ["b"], [node("Tanh", "a", "t"), call],
                                 imports, ["slope"])  # fmt: skip
    nodes = [helper.make_node("Block", ["x"], ["h"], domain="mine", **words),
             helper.make_node("Leak", ["h"], ["y"], domain="mine")]  # fmt: skip
    one = model(nodes, X, {"y": None})
    one.opset_import.append(imports[1])
    one.functions.extend([inner, outer])
    return one


def test_functions_of_the_model_are_expanded() -> None:
    read = importer.graph_of(called(slope=0.25), supported=BASIC)
    assert [one.op for one in read.nodes] == ["tanh", "leaky", "leaky"]
    assert [one.attributes.get("alpha") for one in read.nodes] == [None, 0.25, 0.5]


def test_functions_that_call_themselves() -> None:
    one = called()
    one.functions[0].node[0].CopyFrom(helper.make_node("Leak", ["a"], ["b"], domain="mine"))
    with pytest.raises(SpecError, match="more than 50 branches, loops and functions inside each"):
        importer.graph_of(one, supported=BASIC)


def test_functions_that_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty functions, each of which calls the next twice."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    one = model([helper.make_node("F0", ["x"], ["y"], domain="mine")], X, {"y": None})
    one.opset_import.append(imports[1])
    monkeypatch.setattr(reader, "MOST_EXPANDED", 500)
    for at in range(30):
        calls = [helper.make_node(f"F{at + 1}", [a], [b], domain="mine") for a, b in ("ab", "bc")]
        if at == 29:
            calls = [node("Relu", "a", "c")]
        one.functions.append(helper.make_function("mine", f"F{at}", ["a"], ["c"], calls, imports))
    with pytest.raises(SpecError, match="more than 500 nodes in branches, loops and"):
        importer.graph_of(one, supported=BASIC)


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        ([node("MeanVarianceNormalization", "x", "y", axes=[1])], 18),
        ([node("LogSoftmax", "x", "y")], 17),
        ([node("Elu", "x", "y", alpha=0.5)], 18),
    ],
)
def test_operators_that_onnx_defines_by_others(nodes: list[onnx.NodeProto], opset: int) -> None:
    name = operator_of_onnx(nodes[0].op_type)
    basic = {*BASIC, "less", "exp", "log", "pow", "sqrt", "cast", "reduce_max", "reduce_sum"} - {
        name
    }
    one = model(nodes, X, {"y": None}, opset=opset)
    read = importer.graph_of(one, supported=basic)
    x = reals(2, 3)
    assert name not in {part.op for part in read.nodes} and len(read.nodes) > 1
    (expected,) = ReferenceEvaluator(one).run(None, {"x": x})
    np.testing.assert_allclose(reference.run(read, {"x": x}, "float32")["y"], expected, rtol=1e-5)


def test_sequences_are_other_names() -> None:
    nodes = [
        node("Tanh", "x", "t"), node("SequenceConstruct", "x t", "s"),
        node("SequenceInsert", "s x first", "s3"), node("SequenceErase", "s3 last", "s2"),
        node("SequenceAt", "s2 last", "a"), node("SequenceLength", "s3", "n"),
        node("Cast", "n", "f", to=1), node("Add", "a f", "b"),
        node("ConcatFromSequence", "s3", "c", axis=1), node("ConcatFromSequence", "s", "d", axis=0,
                                                            new_axis=1),
        node("SplitToSequence", "x two", "p", axis=1), node("SequenceAt", "p last", "q"),
        node("SplitToSequence", "x", "u", axis=0, keepdims=0), node("SequenceAt", "u first", "v"),
    ]  # fmt: skip
    weights = {"first": np.array(0), "last": np.array(-1), "two": np.array(2)}
    agree(model(nodes, X, dict.fromkeys("bcdqv"), weights))


def test_optional_values_are_other_names() -> None:
    nodes = [node("Optional", "x", "o"), node("OptionalGetElement", "o", "g"),
             node("OptionalHasElement", "o", "h"), node("Cast", "h", "f", to=1),
             node("Add", "g f", "y")]  # fmt: skip
    read = importer.graph_of(model(nodes, X, {"y": None}, opset=18), supported=BASIC)
    assert read.nodes[-1].op == "add" and float(read.constants["f"]) == 1


def test_sequences_that_cannot_be_resolved() -> None:
    nodes = [node("SequenceConstruct", "x x", "s"), node("SequenceAt", "s at", "y")]
    one = with_inputs(model(nodes, X, {"y": None}), at=(TensorProto.INT64, []))
    with pytest.raises(UnsupportedError, match=r"its position is not constant; .*--value at=V"):
        importer.graph_of(one, supported=BASIC)
    with pytest.raises(SpecError, match="output 's' is a sequence"):
        importer.graph_of(model(nodes[:1], X, {"s": None}), supported=BASIC)


def test_functions_of_another_opset() -> None:
    """Softmax of opset 11 takes all axes from one on, that of the model one axis."""
    imports = [helper.make_opsetid("", 11), helper.make_opsetid("mine", 1)]
    body = [node("Softmax", "a", "b", axis=1)]
    function = helper.make_function("mine", "Shares", ["a"], ["b"], body, imports)
    call = helper.make_node("Shares", ["x"], ["h"], domain="mine")
    one = model([call, node("Softmax", "h", "y", axis=1)], {"x": [2, 3, 4]}, {"y": None})
    one.opset_import.append(imports[1])
    one.functions.append(function)
    x = reals(2, 3, 4)
    inner = np.exp(x) / np.exp(x).sum((1, 2), keepdims=True)
    expected = np.exp(inner) / np.exp(inner).sum(1, keepdims=True)
    made = reference.run(importer.graph_of(one, supported=SUPPORTED), {"x": x}, "float32")
    np.testing.assert_allclose(made["y"], expected, rtol=1e-5)
    function.opset_import[0].version = 99
    one.functions[0].CopyFrom(function)
    with pytest.raises(UnsupportedError, match="a function follows opset 99 of the operators"):
        importer.graph_of(one)
