"""An explanation of a Winograd schedule: tiles, buffers, and where the predicted time goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polysci.lower.algorithm import ExplainRequest
from polysci.lower.winograd.cost import WinogradEstimate, estimate
from polysci.lower.winograd.plan import WinogradPlan
from polysci.text.tables import bytes_text, columns, pairs, time_text


@dataclass(frozen=True, slots=True)
class WinogradExplanation:
    """Sections with a heading each, or JSON members; no loops of the nest are run."""

    request: ExplainRequest
    plan: WinogradPlan

    @property
    def nest(self) -> None:
        return None

    @property
    def estimate(self) -> WinogradEstimate:
        return estimate(self.plan, self.request.context)

    def render(self, width: int | None = None) -> str:
        plan, predicted = self.plan, self.estimate
        parts = [
            (name, time_text(seconds), f"{100 * seconds / predicted.seconds:.1f} %")
            for name, seconds in predicted.parts.items()
        ]
        sections = {
            "Winograd": pairs(_algorithm(plan), width),
            "Buffers": columns(_buffers(plan, predicted), (0, 2)),
            "Prediction": columns([*parts, ("sum", time_text(predicted.seconds), "")]),
        }
        return self.request.render(predicted.seconds, sections, width) + "\n"

    def members(self) -> dict[str, Any]:
        """The same as JSON members; times in seconds, sizes in bytes."""
        plan, predicted = self.plan, self.estimate
        return {
            **self.request.members(predicted.seconds),
            "terms": predicted.parts, "tiles": plan.tiles, "points": plan.points,
            "sizes": dict(zip(("U", "V", "M"), predicted.sizes, strict=True)),
        }  # fmt: skip


def _algorithm(plan: WinogradPlan) -> list[tuple[str, str]]:
    conv, m = plan.problem, plan.m
    less = 9 * m * m / plan.points
    done = 9 * conv.P * conv.Q * conv.N / (plan.points * plan.tiles)
    return [
        ("algorithm", f"F({m}x{m}, 3x3): {plan.points} products for {9 * m * m} of a tile"),
        ("fewer products", f"{less:.3g} times; {done:.3g} times with the tiles that overhang"),
        ("tiles", f"{conv.N} x {plan.down} x {plan.across} = {plan.tiles} of {m}x{m} outputs"),
        ("block", f"{plan.t} tiles by {plan.k} filters, {plan.points} GEMMs of depth {conv.C}"),
        ("register tile", f"{plan.kernel.rows} tiles by {plan.kernel.cols} filters"),
        ("order", "each block is transformed, multiplied and transformed back before the next"
         if plan.fused or plan.t == plan.tiles else "all of V first, then block by block"),
    ]  # fmt: skip


def _buffers(plan: WinogradPlan, predicted: WinogradEstimate) -> list[tuple[str, str, str]]:
    purposes = (
        "weights, transformed and packed ahead",
        "input in the transform's domain, " + ("of a block" if plan.fused else "of all tiles"),
        "products of a block",
    )
    return [
        (name, bytes_text(size), what)
        for name, size, what in zip("UVM", predicted.sizes, purposes, strict=True)
    ]
