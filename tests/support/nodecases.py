"""Many operators in one model, each with inputs of its own, beside ONNX's reference in float64."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from polysci.frontends.onnx import reference
from tests.support.networks import network_of, read

Array = np.ndarray
NEAR = 2e-6  # relative, and absolute around 0: some 16 ulp of f32
OF_BF16 = 2.0**-6


@dataclass(frozen=True, slots=True)
class Case:
    """A node: its inputs, of which those in ``fixed`` are constants of the model.

    ``exact`` is the result where ONNX's reference has none or another one.
    """

    op: str
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fixed: tuple[int, ...] = ()
    exact: Array | None = None

    def __str__(self) -> str:
        told = [f"{x.dtype}{list(x.shape)}" for x in self.inputs if x is not None]
        return f"{self.op}({', '.join(told)}, {dict(self.attributes)}, fixed={self.fixed})"


def model_of(cases: Sequence[Case], opset: int) -> onnx.ModelProto:
    """One node a case: inputs ``cN_M``, output ``yN``."""
    nodes, inputs, outputs, weights = [], [], [], []
    for at, case in enumerate(cases):
        names = []
        for number, value in enumerate(case.inputs):
            names.append("" if value is None else f"c{at}_{number}")
            if value is None:
                continue
            if number in case.fixed:
                weights.append(numpy_helper.from_array(value, names[-1]))
            else:
                kind = helper.np_dtype_to_tensor_dtype(value.dtype)
                inputs.append(helper.make_tensor_value_info(names[-1], kind, value.shape))
        nodes.append(helper.make_node(case.op, names, [f"y{at}"], **case.attributes))
        outputs.append(helper.make_empty_tensor_value_info(f"y{at}"))
    graph = helper.make_graph(nodes, "cases", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def faults(cases: Sequence[Case], opset: int, **options: Any) -> list[str]:
    """What is wrong with the results of cases that are compiled together."""
    graph = read(model_of(cases, opset))
    feeds = {
        f"c{at}_{number}": np.asarray(value)
        for at, case in enumerate(cases)
        for number, value in enumerate(case.inputs)
        if value is not None and number not in case.fixed
    }
    known = {name: _wide(value) for name, value in (feeds | dict(graph.constants)).items()}
    nodes = {node.outputs[0]: node for node in graph.nodes}
    results = network_of(graph, **options)(feeds)
    assert isinstance(results, dict)
    limit = OF_BF16 if options.get("dtype") == "bf16" else NEAR
    told = []
    for at, case in enumerate(cases):
        wanted = case.exact
        if wanted is None:
            with np.errstate(all="ignore"):
                (wanted,) = reference.of_node(graph, nodes[f"y{at}"], known)
        fault = difference(results[f"y{at}"], wanted, limit)
        told += [f"{case}: {fault}"] * bool(fault)
    return told


def _wide(value: Array) -> Array:
    return value.astype(np.float64) if value.dtype.kind == "f" else value


def difference(result: Array, wanted: Array, limit: float = NEAR) -> str:
    """The first element that is wrong; empty where none is."""
    if result.shape != wanted.shape:
        return f"shape {result.shape}, not {wanted.shape}"
    kinds = {result.dtype.kind, wanted.dtype.kind}
    if result.dtype != wanted.dtype and kinds != {"f"}:
        return f"{result.dtype}, not {wanted.dtype}"
    if kinds != {"f"}:
        right = result == wanted
    else:
        with np.errstate(all="ignore"):
            error = np.abs(result.astype(np.float64) - wanted)
            narrow = wanted.astype(result.dtype)
        near = error <= limit * np.maximum(np.abs(wanted), 1)
        right = near | (result == narrow) | (np.isnan(result) & np.isnan(wanted))
    if right.all():
        return ""
    at = np.unravel_index(int(np.argmin(right)), right.shape)
    return f"{list(map(int, at))}: {result[at]!r}, not {wanted[at]!r}"
