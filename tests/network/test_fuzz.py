"""Random small graphs against float64: fused and not, in both element types, by two threads."""

import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.support.networks import disagreement, read
from tests.support.randomgraphs import models

# Threads, element type, fused: one build each.
WAYS = ((1, "f32", True), (2, "f32", True), (1, "f32", False), (2, "bf16", True))
MORE = (*WAYS, (2, "f32", False), (1, "bf16", False))
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def told(model: onnx.ModelProto, ways: tuple[tuple[int, str, bool], ...]) -> str:
    """What is wrong, with the graph; empty if nothing is."""
    graph = read(model)
    found = [disagreement(graph, threads, dtype, fuse=fuse) for threads, dtype, fuse in ways]
    wrong = [one for one in found if one]
    return "\n".join([*wrong, *graph.lines()]) if wrong else ""


# Shrinking would compile hundreds of networks.
@settings(max_examples=2, derandomize=True, phases=[Phase.generate], **QUIET)
@given(model=models())
def test_random_graphs_agree_with_float64(model: onnx.ModelProto) -> None:
    assert not told(model, WAYS)


@pytest.mark.slow
@settings(max_examples=300, **QUIET)
@given(model=models(12))
def test_many_random_graphs_agree_with_float64(model: onnx.ModelProto) -> None:
    assert not told(model, MORE)
