"""Reports on a module: parts that are compiled, calls that are not, and the gain."""

from __future__ import annotations

from dataclasses import dataclass

from polysci.graph.refusals import NodeRefusal
from polysci.text.tables import time_text
from polysci.tune.result import cost_text


@dataclass(frozen=True, slots=True)
class PartReport:
    """A part of a module that is one compiled network.

    ``calls`` of ATen's operators became ``stages``; ``error`` is the largest difference from eager
    in f64 on the example inputs, over the largest number or 1, of an output that is nearest to its
    ``bound``; from eager itself where that is a few units of rounding. ``predicted`` seconds are
    those of its layers by the cost model or as measured, None where it has none. ``reason``: why it
    was left to PyTorch after all, of a part without stages because it does not compile.
    ``any_order_cost``: of reproducible sums, the most that one of its layers takes, over its time
    in any order.
    """

    calls: int
    stages: int = 0
    error: float = 0.0
    bound: float = 0.0
    predicted: float | None = None
    reason: str = ""
    any_order_cost: float | None = None

    def __str__(self) -> str:
        if not self.stages:
            return f"{self.calls} calls; left to PyTorch: {self.reason}"
        spent = "" if self.predicted is None else f", layers {time_text(self.predicted)}"
        error = f"error {self.error:.1e} of {self.bound:.1e} allowed"
        cost = "" if self.any_order_cost is None else f", {cost_text(self.any_order_cost)}"
        text = f"{self.calls} calls as {self.stages} stages, {error}{spent}{cost}"
        return f"{text}; left to PyTorch: {self.reason}" if self.reason else text


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """``refused`` are calls that PyTorch computes, with reasons; seconds a run of both, if timed.

    ``reason``: why the module as a whole is left to PyTorch; empty where it is not.
    """

    parts: tuple[PartReport, ...]
    refused: tuple[NodeRefusal, ...] = ()
    eager_seconds: float | None = None
    own_seconds: float | None = None
    reason: str = ""

    @property
    def gain(self) -> float | None:
        """How many times faster than eager, measured on the example inputs."""
        if self.eager_seconds is None or not self.own_seconds:
            return None
        return self.eager_seconds / self.own_seconds

    def __str__(self) -> str:
        lines = [f"compiled: {part}" for part in self.parts]
        lines += [f"PyTorch: {call.op} ({call.node}): {call.reason}" for call in self.refused]
        if self.eager_seconds is not None and self.own_seconds is not None:
            lines.append(
                f"eager {time_text(self.eager_seconds)}, now {time_text(self.own_seconds)}: "
                f"{self.gain:.2f} times as fast"
            )
        if self.reason:
            lines.append(f"left to PyTorch as a whole: {self.reason}")
        return "\n".join(lines)
