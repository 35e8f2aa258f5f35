"""What tests of whole networks share: fast builds, and what is wrong with a result."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from polysci.frontends.onnx import importer, reference
from polysci.graph.graph import Graph
from polysci.graph.operators.lower import SUPPORTED
from polysci.graph.passes.table import simplify
from polysci.network.compiled import Network, build_network, rebuild_network
from polysci.network.debug import compare_tensors
from polysci.network.options import PlanOptions
from polysci.network.prepare import prepare
from polysci.target.host import detect
from tests.support.flags import QUICK
from tests.support.graphbound import bounds

Arrays = Mapping[str, np.ndarray]


def read(model: onnx.ModelProto, **options: Any) -> Graph:
    """The graph of a model, as it is written."""
    return importer.graph_of(model, supported=SUPPORTED, **options)


def network_of(
    graph: Graph, threads: int = 1, dtype: str = "f32", *, fuse: bool = True, isa: str = "portable",
    **options: Any,
) -> Network:  # fmt: skip
    """Of a graph, on assumed rates and without measuring."""
    target, apart = detect(isa), bool(options.pop("apart", False))
    prepared = prepare(simplify(graph), dtype, fuse=fuse, target=target)
    compile_options = PlanOptions("estimate", threads, dtype, "direct", target)
    found = build_network(prepared, compile_options, "small", **{"flags": QUICK, **options})
    return rebuild_network(found, apart=True) if apart else found


def given(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs: normal, or of small whole numbers."""
    random = np.random.default_rng(seed)
    return {one.name: random.normal(size=one.shape).astype(one.dtype) for one in graph.inputs}


def fault(graph: Graph, network: Network, inputs: Arrays, exact: Arrays, limits: Arrays) -> str:
    """The first output that is further from the exact one than its bound; empty if none is."""
    found = network(inputs)
    assert isinstance(found, dict)
    for one in graph.outputs:
        got, limit = found[one.name], limits[one.name]
        if got.shape != one.shape:
            return f"{one.name}: shape {got.shape}, not {one.shape}"
        error = np.abs(got.astype(np.float64) - exact[one.name])
        if not (error <= limit).all():
            at = np.unravel_index(int(np.nan_to_num(error / limit, nan=9e9).argmax()), error.shape)
            return (
                f"{one.name}{list(map(int, at))}: {got[at]}, not {exact[one.name][at]}: "
                f"{error[at] / limit[at]:.3g} bounds"
            )
    return ""


def disagreement(graph: Graph, threads: int, dtype: str, *, fuse: bool, **options: Any) -> str:
    """What is wrong with a compiled graph, and the first wrong stage; empty if nothing is."""
    inputs = given(graph)
    exact = reference.run(graph, inputs)
    limits = bounds(graph, exact, dtype)
    network = network_of(graph, threads, dtype, fuse=fuse, **options)
    told = fault(graph, network, inputs, exact, limits)
    if not told:
        return ""
    apart = network_of(graph, threads, dtype, fuse=fuse, apart=True, **options)
    known = {one.tensor: one for one in compare_tensors(apart, inputs)}
    limit = 1e-4 if dtype == "f32" else 0.05
    wrong = [one for one in known.values() if not one.error <= limit]
    first = f"; first wrong stage: {wrong[0].stage} -> {wrong[0].tensor}" if wrong else ""
    return f"{threads} threads, {dtype}, fuse={fuse}: {told}{first}"
