"""An explanation of a Winograd schedule: tiles, buffers, and where the predicted time goes."""

from __future__ import annotations

from typing import Any

from polysci.algorithms.winograd.cost import WinogradEstimate, estimate
from polysci.algorithms.winograd.plan import WinogradPlan
from polysci.target.host import Target
from polysci.target.machine import Machine
from polysci.text.tables import bytes_text, columns, time_text


def render(
    title: str,
    plan: WinogradPlan,
    target: Target,
    machine: Machine,
    *,
    origin: str = "estimate",
    measured: float | None = None,
) -> str:
    """Sections with a heading each; ``measured`` seconds if the schedule was ever run."""
    found = estimate(plan, target, machine)
    peak = machine.peak * plan.threads
    rows = [("schedule", str(plan.schedule)), ("from", origin), ("machine", str(target))]
    rows.append(("predicted", _speed(plan, found.seconds, peak)))
    if measured is not None:
        rows.append(("measured", _speed(plan, measured, peak)))
    parts = [
        (name, time_text(seconds), f"{100 * seconds / found.seconds:.1f} %")
        for name, seconds in found.parts.items()
    ]
    sections = {
        "Schedule": columns(rows, (0, 1)),
        "Winograd": columns(_algorithm(plan), (0, 1)),
        "Buffers": columns(_buffers(plan, found), (0, 2)),
        "Prediction": columns([*parts, ("sum", time_text(found.seconds), "")]),
    }
    return "\n".join([title, *(f"\n{head}\n{body}" for head, body in sections.items())]) + "\n"


def members(
    title: str, plan: WinogradPlan, target: Target, machine: Machine, measured: float | None
) -> dict[str, Any]:
    """The same as JSON members; times in seconds, sizes in bytes."""
    found = estimate(plan, target, machine)
    return {
        "title": title, "schedule": str(plan.schedule), "threads": plan.threads,
        "predicted": found.seconds, "measured": measured, "terms": found.parts,
        "tiles": plan.tiles, "points": plan.points,
        "sizes": dict(zip(("U", "V", "M"), found.sizes, strict=True)),
    }  # fmt: skip


def _speed(plan: WinogradPlan, seconds: float, peak: float) -> str:
    rate = plan.problem.flops / seconds * 1e-9
    return (
        f"{time_text(seconds)}, {rate:.1f} GFLOP/s as the convolution counts, "
        f"{rate / peak:.2f} of the peak"
    )


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


def _buffers(plan: WinogradPlan, found: WinogradEstimate) -> list[tuple[str, str, str]]:
    told = (
        "weights, transformed and packed ahead",
        "input in the transform's domain, " + ("of a block" if plan.fused else "of all tiles"),
        "products of a block",
    )
    return [
        (name, bytes_text(size), what)
        for name, size, what in zip("UVM", found.sizes, told, strict=True)
    ]
