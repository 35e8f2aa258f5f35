"""compile: a problem, or its words, to a primitive in one call."""

from __future__ import annotations

from collections.abc import Callable

from polysci.errors import SpecError
from polysci.ops import parse_problem
from polysci.ops.conv2d import Conv2d
from polysci.primitive import Primitive
from polysci.target import Target
from polysci.tune import Progress, optimize
from polysci.wisdom import Wisdom


def compile(
    problem: Conv2d | str,
    level: str = "measure",
    threads: int = 1,
    *,
    layout: str | None = None,
    target: Target | None = None,
    ranker: str = "traffic",
    time_limit: float | None = None,
    wisdom: Wisdom | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Primitive:
    """Find a schedule for ``problem`` and build it: ``y = prim(x, prim.pack_weights(w))``.

    ``problem`` is a Conv2d or benchdnn's words, which ``layout`` (default "nhwc") completes. One
    without images gets the primitive of one image, whose result for none is empty. The other
    arguments and what they raise are those of ``polysci.optimize``; BuildError where there is no
    working C compiler.
    """
    asked = _problem(problem, layout)
    return optimize(
        asked if asked.N else asked.with_(N=1), level, threads,
        target=target, ranker=ranker, time_limit=time_limit, wisdom=wisdom, progress=progress,
    ).primitive()  # fmt: skip


def _problem(problem: Conv2d | str, layout: str | None) -> Conv2d:
    if isinstance(problem, str):
        return parse_problem(problem, layout or "nhwc")
    if not isinstance(problem, Conv2d):
        raise TypeError(
            f"problem: expected a Conv2d or benchdnn's words, got {type(problem).__name__}"
        )
    if layout not in (None, problem.layout):
        raise SpecError(f"layout: the problem has {problem.layout!r}, got {layout!r} beside it")
    return problem
