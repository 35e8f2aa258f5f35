"""What a call keeps in its workspace: packed copies of A and of B, then private copies of C."""

from __future__ import annotations

from dataclasses import dataclass

from polysci.lower.direct.panels import panel_bytes
from polysci.lower.direct.reduction import reads_on
from polysci.space.packed_copy import ALIGNMENT, round_up
from polysci.space.resolve import Plan


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where each copy begins, in bytes. ``threads`` have copies of their own of what loops pack."""

    plan: Plan
    threads: int

    @property
    def shares_a(self) -> bool:
        """Whether A is packed once, before all loops."""
        return self.plan.box is not None and self.plan.schedule.pack_depth == 0

    @property
    def panels_at(self) -> int:
        """Where panels of B begin."""
        if self.plan.box is None:
            return 0
        copies = 1 if self.shares_a else self.threads
        behind = ALIGNMENT if reads_on(self.plan) else 0  # the last word may end there
        return self.plan.box.bytes * self.plan.box.size * copies + behind

    @property
    def panel_elements(self) -> int:
        """Elements from one thread's panels of B to the next one's."""
        item = self.plan.compute.bytes
        return round_up(panel_bytes(self.plan), ALIGNMENT) // item

    @property
    def sums_at(self) -> int:
        """Where private copies of C begin."""
        plan = self.plan
        used = self.panels_at + (panel_bytes(plan) if plan.packs_b else 0)
        if plan.schedule.packs_parts_of_b:
            used += plan.compute.bytes * self.panel_elements * (self.threads - 1)
        return round_up(used, ALIGNMENT) if plan.private else used

    @property
    def bytes(self) -> int:
        """Of all of it."""
        private = self.plan.private
        return self.sums_at + private.bytes if private else self.sums_at
