"""Every node test of the onnx package whose operators are supported, or why it is refused.

In one go: tests of one version of the operators become one model, so that C is compiled once for
many of them.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.backend.test.runner import Runner

from polysci.errors import PolysciError, UnsupportedError
from polysci.network.frontends.onnx import importer, simplify
from polysci.network.operators.lower import SUPPORTED, lower
from polysci.network.tools.onnx_backend import PolysciBackend, with_fixed
from tests.support.flags import QUICK

# Cases (a pattern of the whole name) and what the refusal says of them.
REFUSED = (
    ("test_batchnorm_.*_training_mode|test_training_dropout.*", "training"),
    ("test_maxpool_with_argmax_2d_precomputed_(pads|strides)", "the second output, Indices"),
    ("test_resize_.*_cubic.*", "mode cubic"),
    ("test_resize_downsample_(scales|sizes)_linear_antialias", "antialias"),
    ("test_(quantize|dequantize)linear_blocked.*", "blocks"),
    ("test_quantizelinear_blocked_symmetric", "float32 to int16"),
    ("test_dequantizelinear_(u?int(2|4|16)|e4m3fn.*|e5m2|float4e2m1)", " to float"),
    ("test_quantizelinear_(u?int(2|4|16)|e4m3fn|e5m2|float4e2m1)", "float32 to "),
    ("test_identity_(sequence|opt)", "is no tensor of known rank"),
)
TOGETHER = 60  # cases of one library
# Inputs that say a shape, an axis or a size must be constant; so must those of Pad and Clip.
SAYING = ("Reshape", "Slice", "Resize", "Pad", "ReduceMean", "Squeeze", "Unsqueeze", "Split",
          "Dropout", "ConstantOfShape")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A test: a model, inputs that are constant in it, the others, what comes out."""

    name: str
    model: onnx.ModelProto
    given: tuple[np.ndarray, ...]
    wanted: tuple[np.ndarray, ...]
    tolerance: tuple[float, float]

    @property
    def opset(self) -> int:
        return max(one.version for one in self.model.opset_import if not one.domain)


def fixed(model: onnx.ModelProto, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs that are constants: by the operators that read them as anything but their first."""
    told = {
        name for node in model.graph.node if node.op_type in SAYING
        for name in node.input[node.op_type != "ConstantOfShape" :]
    }  # fmt: skip
    return {
        one.name: value
        for one, value in zip(model.graph.input, inputs, strict=False) if one.name in told
    }  # fmt: skip


@cache
def cases() -> tuple[Case, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, in references that overflow on purpose
        from onnx.backend.test.loader import load_model_tests

        found = load_model_tests(kind="node")
    return tuple(
        case(one) for one in found
        if all(node.op_type in SUPPORTED for node in one.model.graph.node)
    )  # fmt: skip


def case(one: Any) -> Case:
    ((inputs, outputs),) = one.data_sets
    inputs, outputs = ([array(value) for value in values] for values in (inputs, outputs))
    known = fixed(one.model, inputs)
    names = [value.name for value in one.model.graph.input]
    given = [value for n, value in zip(names, inputs, strict=False) if n not in known]
    model = with_fixed(one.model, known) if known else one.model
    return Case(one.name, model, tuple(given), tuple(outputs), (one.rtol, one.atol))


def array(value: Any) -> Any:
    """A tensor as NumPy's; lists are left to be refused."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, list) else np.asarray(value)


def refusal(one: Case) -> str:
    """What the case is refused with; empty where it is not."""
    try:
        lower(simplify.simplify(importer.graph_of(one.model, supported=SUPPORTED)))
    except UnsupportedError as error:
        return str(error)
    return ""


def renamed(one: Case, prefix: str) -> onnx.GraphProto:
    """Its graph with other names for all tensors."""
    graph = onnx.GraphProto()
    graph.CopyFrom(one.model.graph)
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = prefix + value.name
    for node in graph.node:
        node.input[:] = [name and prefix + name for name in node.input]
        node.output[:] = [name and prefix + name for name in node.output]
    return graph


def together(group: Sequence[Case]) -> onnx.ModelProto:
    """One model of many."""
    graphs = [renamed(one, f"c{at}_") for at, one in enumerate(group)]
    every = {
        part: [value for graph in graphs for value in getattr(graph, part)]
        for part in ("node", "input", "output", "initializer")
    }
    graph = helper.make_graph(every["node"], "many", every["input"], every["output"],
                              every["initializer"])  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", group[0].opset)])


def groups(every: Iterable[Case]) -> Iterator[list[Case]]:
    by_opset: dict[int, list[Case]] = {}
    for one in every:
        by_opset.setdefault(one.opset, []).append(one)
    for same in by_opset.values():
        for first in range(0, len(same), TOGETHER):
            yield same[first : first + TOGETHER]


def wrong(one: Case, got: Sequence[np.ndarray]) -> str:
    rtol, atol = one.tolerance
    try:
        Runner.assert_similar_outputs(one.wanted, list(got), rtol=rtol, atol=atol)
    except AssertionError as error:
        return f"{one.name}: {' '.join(str(error).split())[:300]}"
    return ""


def faults(group: Sequence[Case], **options: object) -> list[str]:
    """What is wrong with the results of cases that are compiled together."""
    made = PolysciBackend.prepare(together(group), level="estimate", **options)
    found = iter(made.run([value for one in group for value in one.given]))
    return [told for one in group if (told := wrong(one, [next(found) for _ in one.wanted]))]


def test_node_tests_agree_or_are_refused() -> None:
    told = {one.name: refusal(one) for one in cases()}
    surprises = [
        f"{name}: {message}" for name, message in told.items()
        if message and not any(re.fullmatch(pattern, name) and words in message
                               for pattern, words in REFUSED)
    ]  # fmt: skip
    assert not surprises, "\n".join(surprises)
    idle = [
        row for row in REFUSED if not any(re.fullmatch(row[0], n) for n, m in told.items() if m)
    ]
    assert not idle, "no case is refused for that any more"
    good = [one for one in cases() if not told[one.name]]
    assert len(good) >= 300
    bad = [one for group in groups(good) for one in faults(group, isa="portable", flags=QUICK)]
    assert not bad, "\n".join(bad)


def test_some_node_tests_agree() -> None:
    """One of 120; the rest stands in the long test above."""
    good = [case for case in list(cases())[::120] if not refusal(case)]
    assert len(good) >= 3
    bad = [fault for group in groups(good) for fault in faults(group, isa="portable", flags=QUICK)]
    assert not bad, "\n".join(bad)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_every_node_test_by_itself(threads: int) -> None:
    """On this CPU's instruction set, as users compile them."""
    bad = []
    for one in cases():
        if not refusal(one):
            try:
                bad += faults([one], threads=threads)
            except PolysciError as error:
                bad.append(f"{one.name}: {error}")
    assert not bad, "\n".join(bad)
