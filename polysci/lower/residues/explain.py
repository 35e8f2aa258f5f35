"""An explanation of residue classes: what each computes, and where the predicted time goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from polysci import explain
from polysci.explain import Explanation
from polysci.lower.algorithm import ExplainRequest
from polysci.lower.residues.plan import ResiduePlan, resolve
from polysci.lower.residues.space import class_contexts, predict_parts
from polysci.text.tables import columns, time_text


@dataclass(frozen=True, slots=True)
class ResiduesExplanation:
    """The classes with their predicted ``seconds``, and ``most``, that of most products."""

    request: ExplainRequest
    plan: ResiduePlan
    seconds: tuple[float, ...]
    most: Explanation

    @classmethod
    def of(cls, request: ExplainRequest) -> Self:
        """Raises as ``resolve`` does."""
        plan = resolve(request.problem, request.schedule, request.context.threads)
        own = class_contexts(plan, request.context)[0]
        title = "The class with most products"
        most = explain.account(title, plan.classes[0].scop, own, plan.schedules[0])
        return cls(request, plan, tuple(predict_parts(plan, request.context)), most)

    @property
    def nest(self) -> None:
        """None: several nests are run."""
        return None

    def render(self, width: int | None = None) -> str:
        classes = {"Residue classes": columns([*self._classes()], (0, 3))}
        head = self.request.render(sum(self.seconds), classes, width)
        return f"{head}\n\n{explain.render(self.most, width)}"

    def _classes(self) -> Iterator[tuple[str, ...]]:
        yield ("pixels", "of them", "taps", "schedule", "predicted")
        for it, own, seconds in zip(
            self.plan.classes, self.plan.schedules, self.seconds, strict=True
        ):
            scattered = [axis for axis, step in enumerate(it.steps) if step > 1]
            where = ", ".join(f"{it.steps[axis]}i+{it.first[axis]}" for axis in scattered)
            sizes = " x ".join(str(it.contraction.out.shape[axis]) for axis in scattered)
            yield (where, sizes, str(it.taps or "none: zeros"), str(own), time_text(seconds))

    def members(self) -> dict[str, Any]:
        """The same as JSON members; times in seconds."""
        return {
            **self.request.members(sum(self.seconds)),
            "classes": [
                {"first": list(it.first), "steps": list(it.steps), "taps": it.taps,
                 "schedule": str(own), "predicted": seconds}
                for it, own, seconds in zip(
                    self.plan.classes, self.plan.schedules, self.seconds, strict=True
                )
            ],
            "most": explain.members(self.most),
        }  # fmt: skip
