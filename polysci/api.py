"""compile: a problem, or its words, to a primitive in one call."""

from __future__ import annotations

from collections.abc import Callable

from polysci.border.guard import guard
from polysci.ops import problem_of
from polysci.ops.problem import Problem
from polysci.polyhedral.schedule import Schedule
from polysci.runtime.primitive import Primitive
from polysci.target.host import Target
from polysci.tune import Progress, optimize
from polysci.tune.wisdom import Wisdom


@guard
def compile(
    problem: Problem | str,
    level: str = "measure",
    threads: int = 1,
    *,
    layout: str | None = None,
    dtype: str | None = None,
    target: Target | None = None,
    isa: str | None = None,
    ranker: str = "traffic",
    time_limit: float | None = None,
    algorithm: str = "direct",
    wisdom: Wisdom | None = None,
    progress: Callable[[Progress], None] | None = None,
    schedule: Schedule | str | None = None,
) -> Primitive:
    """Find a schedule for ``problem`` and build it: ``y = prim(x, prim.pack_weights(w))``.

    ``problem`` is a Conv2d, a Nest, or the text of one; ``layout`` (default "nhwc") and ``dtype``
    (default "f32"; see ``polysci.numerics.dtypes``) complete benchdnn's words. A convolution
    without images gets the primitive of one image, whose result for none is empty. ``schedule``,
    a Schedule or its text, is built as it is: nothing is searched or measured. The other
    arguments and what they raise are those of ``polysci.optimize``; BuildError
    where there is no working C compiler.
    """
    parsed = problem_of(problem, layout, dtype)
    return optimize(
        parsed.with_batch(1) if 0 in parsed.y_shape else parsed, level, threads,
        target=target, isa=isa, ranker=ranker, time_limit=time_limit, algorithm=algorithm,
        wisdom=wisdom, progress=progress, schedule=schedule,
    ).primitive()  # fmt: skip
