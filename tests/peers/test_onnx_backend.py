"""ONNX's node tests: none is wrong but by a decision that the documentation states."""

import numpy as np
import onnx
import pytest
from onnx import helper

from polysci.errors import SpecError
from polysci.peers.networks.conformance import (
    OUTSIDE,
    PASSED,
    REFUSED,
    WRONG,
    CaseResult,
    NodeCase,
    judge_batch,
    judge_cases,
    load_cases,
    markdown,
    summary,
    text,
)
from polysci.peers.networks.onnx_backend import PolysciBackend
from tests.support.flags import QUICK
from tests.support.onnxmodels import model, node, reals


def judge(cases: list[NodeCase]) -> list[CaseResult]:
    return judge_batch(cases, "portable", QUICK)


@pytest.mark.exhaustive
def test_all_node_tests() -> None:
    cases, _ = load_cases()
    verdicts = judge_cases(cases, isa="portable", flags=QUICK, jobs=2)
    wrong = [one for one in verdicts if one.kind == WRONG]
    assert not wrong, "\n".join(f"{one.case}: {one.reason}" for one in wrong)
    assert sum(one.kind == PASSED for one in verdicts) >= 0.95 * len(cases)


@pytest.mark.exhaustive
def test_a_sample_of_them() -> None:
    cases, outside = load_cases(
        "test_(relu|reshape_one_dim|unique_sorted_without_axis|cast_BFLOAT16_to_FLOAT)$"
    )
    kinds = {one.case: one for one in judge(cases)}
    assert kinds["test_relu"].kind == PASSED
    assert kinds["test_reshape_one_dim"].constant == ("shape",)
    assert "depends on data" in kinds["test_unique_sorted_without_axis"].reason
    assert outside and all("elements of bfloat16" in one.reason for one in outside)


@pytest.mark.exhaustive
def test_a_wrong_result_is_noticed() -> None:
    relu = model([node("Relu", "x", "y")], {"x": [3, 4, 5]}, {"y": None}).SerializeToString()
    x = reals(3, 4, 5)
    y = np.maximum(x, 0)
    right, other, flat = judge([
        NodeCase("test_relu", "Relu", relu, (x,), (outputs,), (1e-3, 1e-7))
        for outputs in (y, y + 1, y.reshape(-1))
    ])  # fmt: skip
    assert right.kind == PASSED and other.kind == flat.kind == WRONG
    assert "differs by up to 1" in other.reason and "float32[3, 4, 5], not " in flat.reason


VERDICTS = [
    CaseResult("test_a", "Abs", PASSED), CaseResult("test_b", "Abs", PASSED, "", ("n",)),
    CaseResult("test_c", "Det", REFUSED, "Det: polysci has no such operator"),
    CaseResult("test_d", "Mul", WRONG, "differs by up to 3"),
    CaseResult("test_e", "If", OUTSIDE, "text"),
]  # fmt: skip


def test_tables() -> None:
    told = text(VERDICTS, 100)
    assert summary(VERDICTS) in told and "2 of 4 cases in scope pass (50.0 %)" in told
    assert [line.split() for line in told.splitlines()][1:4] == [
        ["Abs", "2", "2", "1"], ["Det", "1", "1"], ["Mul", "1", "1"],
    ]  # fmt: skip
    page = markdown(VERDICTS)
    assert "| Abs | 2 | 2 |  |  |  | 1 |" in page and "| 1 | differs by up to 3 | d |" in page


def test_the_backend_of_onnx() -> None:
    one = model([node("Relu", "x", "y")], {"x": [2, 3]}, {"y": None})
    x = reals(2, 3)
    made = PolysciBackend.prepare(one, level="estimate", isa="portable", flags=QUICK).run([x])
    np.testing.assert_array_equal(made[0], np.maximum(x, 0))
    assert PolysciBackend.is_compatible(one) and not PolysciBackend.is_compatible(one, "CUDA")
    other = model([node("Wibble", "x", "y")], {"x": [2, 3]}, {"y": None})
    assert not PolysciBackend.is_compatible(other)
    with pytest.raises(SpecError, match="device 'CUDA'"):
        PolysciBackend.prepare(one, "CUDA")


def test_the_backend_fixes_inputs() -> None:
    one = model([node("Reshape", "x to", "y")], {"x": [2, 3]}, {"y": None})
    one.graph.input.append(helper.make_tensor_value_info("to", onnx.TensorProto.INT64, [1]))
    fixed = {"to": np.array([6])}
    made = PolysciBackend.prepare(one, level="estimate", isa="portable", flags=QUICK, fixed=fixed)
    assert made.run(reals(2, 3))[0].shape == (6,)
