"""Which problems Winograd's algorithm computes, and why it refuses the others."""

from __future__ import annotations

from polysci.errors import UnsupportedError
from polysci.ops.convolutions import Conv2d
from polysci.ops.problem import Problem

SIZES = (2, 4)  # outputs of a tile along each edge


def refusal(problem: Problem) -> str:
    """The field, its value and the rule that keep a problem from Winograd; empty for none."""
    if not isinstance(problem, Conv2d):
        return "it is a loop nest: only convolutions have a transform"
    rules = (
        ("dtype", problem.dtype, "f32"),
        ("filter", (problem.R, problem.S), (3, 3)),
        ("stride", problem.stride, (1, 1)),
        ("dilation", problem.dilation, (1, 1)),
        ("groups", problem.groups, 1),
    )
    wrong = [f"{name}={value}: expected {rule}" for name, value, rule in rules if value != rule]
    return "; ".join(wrong)


def convolution(problem: Problem) -> Conv2d:
    """The problem itself. Raises UnsupportedError for one without a Winograd transform."""
    if why := refusal(problem):
        raise UnsupportedError(f"{problem}: algorithm winograd: {why}")
    assert isinstance(problem, Conv2d)
    return problem
