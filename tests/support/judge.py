"""Is compiled code right? One worker process asked in exact and in bound mode; quick builds."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polysci.lower.registry import algorithm_of
from polysci.measure.bench import bound_of
from polysci.ops.problem import Problem
from polysci.runtime.build import cache
from polysci.runtime.build.process import Child
from polysci.runtime.source import Source, assemble
from polysci.space.schedule import Schedule
from polysci.target.target import HOST
from tests.support.flags import QUICK


class Judge:
    """One worker process for all problems: exact and bound mode between guard pages."""

    def __init__(self) -> None:
        self._child = Child([sys.executable, "-m", "polysci.measure.worker", HOST])
        self._prepared: Problem | None = None

    def judge(
        self, problem: Problem, so: Path, symbol: str, schedule: Schedule | None = None
    ) -> None:
        """Fail unless both modes pass; ``schedule`` says whose integers and bound they are."""
        if not self._child.alive:
            self._child.restart()
            self._prepared = None
        if self._prepared != problem:
            words = {"problem": str(problem), "layout": problem.layout, "dtype": problem.dtype}
            self._ask(op="prepare", **words, seed=0)
            self._prepared = problem
        exact = {"exact": asdict(algorithm_of(schedule).exact_inputs(problem))} if schedule else {}
        terms = bound_of(schedule) if schedule else {}
        self._ask(op="check", so=str(so), symbol=symbol, **exact)
        assert self._ask(op="bound", so=str(so), symbol=symbol, **terms)["worst"] <= 1

    def _ask(self, **question: Any) -> dict[str, Any]:
        answer = self._child.ask(question, 60)
        assert "fault" not in answer, answer["fault"]
        return answer

    def close(self) -> None:
        self._child.close()


def build(sources: Sequence[Source], flags: Sequence[str] = QUICK) -> Path:
    """The shared object of several primitives of one unit."""
    return cache.build(assemble(sources), flags=flags)
