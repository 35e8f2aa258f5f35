"""The loss by narrower numbers: a network's outputs beside those of its graph in f32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from polysci.network.compiled import Network, build_network
from polysci.network.prepare import prepare
from polysci.network.runner import order_inputs
from polysci.numerics.differences import largest_error
from polysci.tune.wisdom import Wisdom

Array = NDArray[Any]


def f32_loss(network: Network, inputs: Mapping[str, Array], wisdom: Wisdom | None = None) -> float:
    """max |y - f32's y| / max(1, max |f32's y|), the largest of all outputs.

    The f32 network has the schedules on record, else those that the model prefers.
    """
    options = replace(network.options, level="estimate", dtype="f32", algorithm="direct")
    plain = build_network(
        prepare(network.prepared.graph, "f32"), options, network.name, wisdom=wisdom
    )
    ours, theirs = (
        compiled.runner(order_inputs(compiled.inputs, inputs)) for compiled in (network, plain)
    )
    return largest_error(ours, theirs, "f32")
