"""Single operators beside ONNX Runtime: the same numbers, or a refusal."""

from collections.abc import Iterable

import numpy as np
import pytest

from polysci.errors import PolysciError
from polysci.frontends.onnx import importer
from polysci.graph.graph import Graph
from polysci.graph.operators.lower import SUPPORTED, lower
from polysci.graph.passes.table import simplify
from polysci.network.compiled import compile_network
from polysci.peers.networks.conformance import merge_graphs
from tests.support.flags import QUICK
from tests.support.operatorcase import OperatorCase
from tests.support.randomoperators import OPERATORS, cases

TOGETHER = 100
Result = list[np.ndarray]


def graph_of(case: OperatorCase) -> Graph | None:
    """None where it is refused."""
    try:
        graph = simplify(importer.graph_of(case.model(), supported=SUPPORTED))
        lower(graph)
    except PolysciError:
        return None
    return graph


def of_peer(case: OperatorCase) -> Result | None:
    """None where ONNX Runtime refuses it."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = runtime.InferenceSession(
            case.model().SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, case.inputs))
    except Exception:  # it has many, of no common type
        return None


def ours(parts: list[tuple[OperatorCase, Graph]]) -> list[Result | PolysciError]:
    """All in one library; where that fails, in halves."""
    try:
        return list(together(parts))
    except PolysciError as error:
        half = len(parts) // 2
        return ours(parts[:half]) + ours(parts[half:]) if half else [error]


def together(parts: list[tuple[OperatorCase, Graph]]) -> list[Result]:
    network = compile_network(merge_graphs([graph for _, graph in parts]), "estimate",
                              isa="portable", flags=QUICK)  # fmt: skip
    arrays = [case.inputs[t.name] for case, graph in parts for t in graph.inputs]
    feeds = {port.name: array for port, array in zip(network.inputs, arrays, strict=True)}
    made = network(feeds)
    results = iter([made[port.name] for port in network.outputs])
    return [[next(results) for _ in graph.outputs] for _, graph in parts]


def difference(made: Result | PolysciError, expected: Result) -> str:
    if isinstance(made, PolysciError):
        return str(made)
    for ours, theirs in zip(made, expected, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"{ours.dtype}{ours.shape}, not {theirs.dtype}{theirs.shape}"
        if not np.allclose(ours, theirs, 1e-4, 1e-5, equal_nan=True):
            return f"{ours.ravel()[:8]}, not {theirs.ravel()[:8]}"
    return ""


def faults(drawn: Iterable[OperatorCase]) -> tuple[list[str], list[str], int]:
    """Cases that differ, cases that only ONNX Runtime computes, and how many both do."""
    both, refused = list[tuple[OperatorCase, Graph, Result]](), list[str]()
    with np.errstate(all="ignore"):
        for case in drawn:
            if (expected := of_peer(case)) is None:
                continue
            if (graph := graph_of(case)) is None:
                refused.append(str(case))
            else:
                both.append((case, graph, expected))
    wrong = list[str]()
    for first in range(0, len(both), TOGETHER):
        some = both[first : first + TOGETHER]
        made = ours([(case, graph) for case, graph, _ in some])
        for (case, _, expected), result in zip(some, made, strict=True):
            if text := difference(result, expected):
                wrong.append(f"{case}: {text}")
    return wrong, refused, len(both)


def check(count: int, seed: int) -> None:
    wrong, refused, both = faults(cases(count, seed))
    assert not wrong, "\n".join(wrong)
    assert both >= 0.85 * count and len(refused) <= 0.03 * count, "\n".join(refused)


def test_each_operator_once() -> None:
    check(len(OPERATORS), 1)


@pytest.mark.exhaustive
def test_two_thousand_random_operators() -> None:
    check(2000, 2)


def test_a_difference_is_noticed() -> None:
    one = np.zeros((2, 3), np.float32)
    assert not difference([one], [one])
    assert "not float32(3, 2)" in difference([one], [one.reshape(3, 2)])
    assert "not float64" in difference([one], [one.astype(float)])
    assert "not [1." in difference([one], [one + 1])
