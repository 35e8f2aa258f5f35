"""Winograd's algorithm as a row: F(m x m, 3 x 3), the bound of its error, its explanation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from polysci.cost import Context
from polysci.lower.algorithm import (
    Algorithm,
    Candidate,
    EmitOptions,
    ErrorTerms,
    ExactInputs,
    ExplainRequest,
    SpaceLimits,
)
from polysci.lower.lowering import Source
from polysci.lower.winograd import cost
from polysci.lower.winograd.nest import lower_winograd
from polysci.lower.winograd.plan import WinogradPlan, convolution, refusal, resolve
from polysci.numerics.arrays import Doubles
from polysci.ops.problem import Problem
from polysci.space.directives.ahead import toggle_ahead
from polysci.space.schedule import Schedule
from polysci.text.tables import bytes_text, columns, pairs, time_text

# Inputs for which every number is an integer that f32 holds: 24 x 24 is what G w G^T divides by at
# most. With |x| <= 1 a sum and all its partial sums stay within 576 x 48 x 48 a channel (48: the
# largest row sum of |A^T| times those of |G| and |B^T|).
EXACT: Final = ExactInputs(largest=1, scale=576, channels=12)


# Lavin and Gray, Fast algorithms for convolutional neural networks, CVPR 2016: B^T, G and A^T.
INPUT: Mapping[int, Doubles] = MappingProxyType(
    {
        2: np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], float),
        4: np.array([
            [4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1],
        ], float),
    }
)  # fmt: skip
FILTER: Mapping[int, Doubles] = MappingProxyType(
    {
        2: np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]], float) / 2,
        4: np.array([
            [6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24],
        ], float) / 24,
    }
)  # fmt: skip
OUTPUT: Mapping[int, Doubles] = MappingProxyType(
    {
        2: np.array([[1, 1, 1, 0], [0, 1, -1, -1]], float),
        4: np.array([
            [1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1],
        ], float),
    }
)  # fmt: skip

# Roundings on the longest path through a transform's two passes, with or without fused
# multiply-adds: 2 of the filter's (double, then rounded), 2 x 1 or 2 x 3 into, 2 x 2 or 2 x 3 back.
_ROUNDINGS: Mapping[int, int] = MappingProxyType({2: 8, 4: 14})


class Winograd(Algorithm[WinogradPlan]):
    """Convolutions of 3x3 filters in f32; ``winograd(m)`` computes m x m outputs a tile."""

    @property
    def exact_inputs(self) -> ExactInputs:
        return EXACT

    def refusal(self, problem: Problem) -> str:
        return refusal(problem)

    def candidates(
        self, problem: Problem, context: Context, count: int | None, limits: SpaceLimits
    ) -> list[Candidate]:
        return cost.rank_schedules(problem, context, count)

    def predict_seconds(self, problem: Problem, context: Context, schedule: Schedule) -> float:
        plan = resolve(problem, schedule, context.threads)
        return cost.estimate(plan, context).seconds

    def other_form(self, problem: Problem, context: Context, schedule: Schedule) -> Schedule | None:
        plan = resolve(problem, schedule, context.threads)
        large = cost.exceeds_l2(plan, context)
        return toggle_ahead(schedule) if large else None

    def lower_bound(self, context: Context, schedule: Schedule) -> float:
        return 0.0

    def resolve(self, problem: Problem, schedule: Schedule, threads: int) -> WinogradPlan:
        return resolve(problem, schedule, threads)

    def lower(self, plan: WinogradPlan, options: EmitOptions) -> Source:
        return lower_winograd(plan, options)

    def error_terms(
        self, problem: Problem, numbers: Sequence[int], x: Doubles, w: Doubles
    ) -> ErrorTerms:
        (m,) = numbers
        return ErrorTerms(bound_sizes(problem, x, w, m), count_roundings(problem, m))

    def explain(self, request: ExplainRequest) -> WinogradExplanation:
        plan = resolve(request.problem, request.schedule, request.context.threads)
        return WinogradExplanation(request, plan)


@dataclass(frozen=True, slots=True)
class WinogradExplanation:
    """The explanation of a Winograd schedule: tiles, buffers, and where the predicted time goes."""

    request: ExplainRequest
    plan: WinogradPlan

    @property
    def nest(self) -> None:
        return None

    @property
    def estimate(self) -> cost.WinogradEstimate:
        return cost.estimate(self.plan, self.request.context)

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
        """Return the explanation as JSON members; times are in seconds, sizes in bytes."""
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


def _buffers(plan: WinogradPlan, predicted: cost.WinogradEstimate) -> list[tuple[str, str, str]]:
    purposes = (
        "weights, transformed and packed ahead",
        "input in the transform's domain, " + ("of a block" if plan.fused else "of all tiles"),
        "products of a block",
    )
    return [
        (name, bytes_text(size), what)
        for name, size, what in zip("UVM", predicted.sizes, purposes, strict=True)
    ]


def count_roundings(problem: Problem, m: int) -> int:
    """c of the bound: roundings that one product meets on its way into a result."""
    return convolution(problem).C + _ROUNDINGS[m]


def bound_sizes(problem: Problem, x: NDArray[Any], w: NDArray[Any], m: int) -> Doubles:
    """``|A^T| [sum over c of (|G| |w| |G^T|) . (|B^T| |x| |B|)] |A|`` in float64, shaped as y.

    Times gamma of ``count_roundings`` it bounds the error of F(m x m, 3 x 3), in any order of the
    sums: Barabasz, Anderson, Soodhalter and Gregg, Error analysis and improving the accuracy of
    Winograd convolution for deep neural networks, ACM TOMS 46(4), 2020, section 4.
    """
    conv = convolution(problem)
    into, g, back = (abs(matrix[m]) for matrix in (INPUT, FILTER, OUTPUT))
    images = np.asarray(abs(x), np.float64)
    images = images if conv.layout == "nhwc" else images.transpose(0, 2, 3, 1)
    filters = np.einsum("ar,kcrs,bs->abck", g, np.asarray(abs(w), np.float64), g, optimize=True)
    results = np.empty((conv.N, conv.P, conv.Q, conv.K))
    for image, result in zip(images, results, strict=True):
        v = np.einsum("ai,pqcij,bj->abpqc", into, _tiles(image, conv, m), into, optimize=True)
        points = v.reshape(*v.shape[:2], -1, conv.C) @ filters
        points = points.reshape(*v.shape[:4], conv.K)
        whole = np.einsum("ia,abpqk,jb->piqjk", back, points, back, optimize=True)
        down, _, across, *_ = whole.shape
        result[...] = whole.reshape(down * m, across * m, conv.K)[: conv.P, : conv.Q]
    return results if conv.layout == "nhwc" else np.ascontiguousarray(results.transpose(0, 3, 1, 2))


def _tiles(image: Doubles, conv: Any, m: int) -> Doubles:
    """Tiles of (m + 2)^2 pixels, zeros where they leave the image: [p, q, c, i, j]."""
    high, wide = (-(-extent // m) * m + 2 for extent in (conv.P, conv.Q))
    padded = np.zeros((high, wide, conv.C))
    top, left = conv.pad
    part = image[: max(0, high - top), : max(0, wide - left)]
    padded[top : top + part.shape[0], left : left + part.shape[1]] = part
    windows = sliding_window_view(padded, (m + 2, m + 2), axis=(0, 1))
    return windows[::m, ::m]
