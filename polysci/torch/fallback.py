"""Calls that no network computes: left to PyTorch with a warning, or compiled by inductor."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from operator import getitem
from typing import Any, Final

import torch
from torch.fx.passes.split_module import split_module

from polysci.border.guard import is_expected, report_of

_log = logging.getLogger(__name__)
_told = set[str]()  # reasons


def reason_of(error: Exception) -> str:
    """Return why something is left to PyTorch; what nobody could expect is to be reported."""
    known = error if is_expected(error) else report_of(error)
    text = " ".join(str(known).split())
    return f"it does not compile: {type(known).__name__}: {text:.400}"


def leave(what: str, reason: str) -> str:
    """Warn that ``what`` is left to PyTorch, once for each reason, which is returned."""
    _warn(what, reason)
    return reason


def leave_by(backend: str, what: str, error: Exception) -> None:
    """Warn that another backend failed to compile ``what``."""
    _warn(what, f"{backend} cannot compile it: {' '.join(str(error).split()):.300}")


def _warn(what: str, reason: str) -> None:
    if reason not in _told:
        _told.add(reason)
        _log.warning("%s is left to PyTorch: %s", what, reason)


EAGER: Final = "eager"
RESTS: Final = ("inductor", EAGER)


class CompiledRest(torch.nn.Module):  # type: ignore[misc]
    """Calls that inductor compiles when they are first made, for inputs of those sizes."""

    def __init__(self, calls: Any) -> None:
        super().__init__()
        self._calls = calls
        self._runs: Any = None

    def forward(self, *inputs: Any) -> Any:
        """Return the results of the calls."""
        if self._runs is None:
            try:
                with torch._guards.tracing(None):
                    self._runs = torch._inductor.compile(self._calls, [*inputs])
            except Exception as error:  # of many kinds, of inductor's or its compiler's
                leave_by("inductor", "calls between parts", error)
                self._runs = self._calls
        return self._runs(*inputs)


def with_rest(runs: Any, inputs: Sequence[Any], rest: str) -> Any:
    """Return a program whose calls between parts are compiled by one of RESTS."""
    if not isinstance(runs, torch.fx.GraphModule):
        return runs
    if rest == EAGER:
        return partial(_run_as_traced, runs, [_dense_strides(x) for x in inputs])
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
    return partial(_run_as_traced, whole, [_dense_strides(x) for x in inputs])


def _dense_strides(x: Any) -> tuple[int, ...] | None:
    """Return strides; None of a tensor with gaps, or with elements that share memory."""
    dense = x.layout == torch.strided and torch.ops.aten.is_non_overlapping_and_dense(x)
    return x.stride() if dense else None


def _run_as_traced(runs: Any, strides: Sequence[tuple[int, ...] | None], *inputs: Any) -> Any:
    """Run with inputs that lie as they did when traced: some operators mistake strides.

    The calls say what autocast casts.
    """
    dense = [
        x if traced is None or x.stride() == traced
        else torch.empty_strided(x.shape, traced, dtype=x.dtype, device=x.device).copy_(x)
        for x, traced in zip(inputs, strides, strict=True)
    ]  # fmt: skip
    kind = "cuda" if any(x.is_cuda for x in dense) else "cpu"
    if not torch.is_autocast_enabled(kind):
        return runs(*dense)
    with torch.autocast(kind, enabled=False):
        return runs(*dense)


def _is_result(node: Any) -> bool:
    """Tell whether a node takes a result of a part."""
    return node.target is getitem and node.args[0].op == "call_module"
