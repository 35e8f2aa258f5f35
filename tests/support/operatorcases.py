"""Operators as cases: a node and its inputs; many are compiled together and compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from polysci.errors import PolysciError, UnsupportedError
from polysci.frontends.onnx import importer, reference
from polysci.graph.operators.lower import SUPPORTED, lower
from polysci.graph.passes.table import simplify
from tests.support.networks import network_of, read
from tests.support.nodecases import difference

Arrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OperatorCase:
    """A node of ``op``: ``inputs`` are computed at run time, ``weights`` are constant.

    Inputs of the node are those of both in the order of ``names``; ``expected`` are results, where
    ONNX's reference has none or is wrong. ``around``: operators of one input before and behind it.
    """

    op: str
    names: str
    inputs: Arrays
    weights: Arrays = field(default_factory=dict)
    words: Mapping[str, Any] = field(default_factory=dict)
    outputs: str = "y"
    expected: tuple[Any, ...] | None = None
    before: tuple[str, ...] = ()
    behind: str = ""

    def graph(self, prefix: str) -> onnx.GraphProto:
        """Its graph, all names behind a prefix."""
        inputs, outputs = (
            [name if name == "" else prefix + name for name in
             ("" if word == "-" else word for word in text.split())]
            for text in (self.names, self.outputs)
        )  # fmt: skip
        nodes, made = list[onnx.NodeProto](), [name for name in outputs if name]
        for name in self.before:
            nodes.append(helper.make_node("Tanh", [prefix + name], [f"{prefix}{name}.tanh"]))
            inputs = [f"{n}.tanh" if n == prefix + name else n for n in inputs]
        nodes.append(helper.make_node(self.op, inputs, outputs, name=f"{prefix}{self.op}",
                                      **self.words))  # fmt: skip
        if self.behind:
            nodes.append(helper.make_node(self.behind, made[:1], [f"{made[0]}.behind"]))
            made = [f"{made[0]}.behind", *made[1:]]
        info = helper.make_tensor_value_info
        kind = helper.np_dtype_to_tensor_dtype
        arrays = {name: np.asarray(value) for name, value in self.inputs.items()}
        constants = {name: np.asarray(value) for name, value in self.weights.items()}
        return helper.make_graph(
            nodes, "case",
            [info(prefix + n, kind(v.dtype), v.shape) for n, v in arrays.items()],
            [helper.make_empty_tensor_value_info(n) for n in made],
            [numpy_helper.from_array(v, prefix + n) for n, v in constants.items()],
        )  # fmt: skip


def joined(cases: Sequence[OperatorCase], opset: int) -> onnx.ModelProto:
    """One model of all."""
    graphs = [case.graph(f"c{at}_") for at, case in enumerate(cases)]
    parts = {
        part: [value for graph in graphs for value in getattr(graph, part)]
        for part in ("node", "input", "output", "initializer")
    }
    graph = helper.make_graph(parts["node"], "cases", parts["input"], parts["output"],
                              parts["initializer"])  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def faults(
    cases: Sequence[OperatorCase], opset: int = 18, threads: int = 1, *, tolerance: float = 1e-5,
    **options: Any,
) -> list[str]:  # fmt: skip
    """What is wrong with the results of cases that are compiled together."""
    graph = importer.graph_of(joined(cases, opset), supported=SUPPORTED)
    inputs = {
        f"c{at}_{name}": np.asarray(value)
        for at, case in enumerate(cases) for name, value in case.inputs.items()
    }  # fmt: skip
    known = _reference_of(cases, opset)
    results = network_of(graph, threads, **options)(inputs)
    assert isinstance(results, dict)
    told = list[str]()
    for at, case in enumerate(cases):
        names = [name for name in results if name.startswith(f"c{at}_")]
        for name, wanted in zip(names, known[at], strict=True):
            fault = difference(results[name], np.asarray(wanted), tolerance)
            told += [f"{at} {case.op} {dict(case.words)} {name}: {fault}"] if fault else []
    return told


def refusal(case: OperatorCase, opset: int = 18) -> str:
    """Why the case cannot be computed."""
    with pytest.raises(UnsupportedError) as caught:
        lower(simplify(read(joined([case], opset))))
    return str(caught.value)


def _reference_of(cases: Sequence[OperatorCase], opset: int) -> list[list[Any]]:
    """The results of every case by itself."""
    results = list[list[Any]]()
    for at, case in enumerate(cases):
        if case.expected is not None:
            results.append(list(case.expected))
            continue
        graph = importer.graph_of(joined([case], opset), supported=SUPPORTED)
        inputs = {f"c0_{name}": np.asarray(value) for name, value in case.inputs.items()}
        try:
            tensors = reference.run(graph, inputs)
        except PolysciError as error:
            raise AssertionError(f"case {at}: {error}") from error
        results.append([tensors[output.name] for output in graph.outputs])
    return results
