"""What no network computes, by a compiler of PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import getitem
from typing import Any, Final

import torch
from torch.fx.passes.split_module import split_module

EAGER: Final = "eager"
RESTS: Final = ("inductor", EAGER)


class CompiledRest(torch.nn.Module):  # type: ignore[misc]
    """Calls that inductor compiles when they are first made, for inputs of those sizes."""

    def __init__(self, calls: Any) -> None:
        super().__init__()
        self._calls = calls
        self._runs: Any = None

    def forward(self, *inputs: Any) -> Any:
        """What the calls make."""
        if self._runs is None:
            with torch._guards.tracing(None):
                self._runs = torch._inductor.compile(self._calls, [*inputs])
        return self._runs(*inputs)


def with_rest(runs: Any, inputs: Sequence[Any], rest: str) -> Any:
    """What runs a program, with the calls between its parts by a compiler of RESTS."""
    if rest == EAGER or not isinstance(runs, torch.fx.GraphModule):
        return runs
    nodes = [node for node in runs.graph.nodes if node.op not in ("placeholder", "output")]
    of_part = [node.op == "call_module" or _is_result(node) for node in nodes]
    numbers, number = {nodes[0]: 0}, 0
    for (_, before), (node, after) in pairwise(zip(nodes, of_part, strict=True)):
        number += before != after
        numbers[node] = number
    whole = split_module(runs, runs, numbers.__getitem__)
    for name, child in [*whole.named_children()]:
        if not any(node.op == "call_module" for node in child.graph.nodes):
            setattr(whole, name, CompiledRest(child))
    with torch.no_grad():
        whole(*inputs)  # which compiles them
    return whole


def _is_result(node: Any) -> bool:
    """Whether a node takes a result of a part."""
    return node.target is getitem and node.args[0].op == "call_module"
