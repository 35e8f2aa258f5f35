"""Choose stages that run together in one kernel of groups of work-items, which hold their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from polysci.cost.fusion import FusedWork, MemberWork
from polysci.cost.group_fusion import GroupFusionCosts, GroupLaunch
from polysci.errors import UnsupportedError
from polysci.loop_ir.expressions import loads, reductions
from polysci.numerics.affine import Affine
from polysci.program.passes.held_rows import HeldRows, held_bytes, hold_rows
from polysci.program.passes.row_fusion import HEIGHTS, Member, RowCode, RowFuser, Run
from polysci.program.stages import LayerStage, LoopStage, RowFusion
from polysci.text.tables import bytes_text

MORE_HEIGHTS: Final = (*HEIGHTS, 32, 64, 128)  # of rows that groups make
MOST_TERMS: Final = 4096  # of an element, all of which one work-item takes


def terms_of(stage: LoopStage) -> int:
    """Return how many elements are reduced to one of a loop's."""
    return prod(size for it in reductions(stage.expr)[:1] for _, size in it.over)


@dataclass(slots=True)
class GroupFuser(RowFuser):
    """Row fusions whose members take turns in a group, for a block of rows of the last one."""

    @property
    def costs(self) -> GroupFusionCosts:
        """The costs of kernels of the device."""
        assert isinstance(self.setting.costs, GroupFusionCosts)
        return self.setting.costs

    def refuse_link(self, first: Member, second: Member) -> str:
        """Return why groups cannot hold what one stage makes for the next; empty if they can."""
        if not self.costs.limit:
            return "groups of the device have no memory of their own"
        name = first.output
        if (dtype := self.placed.program.values[name].dtype) != "float32":
            return f"groups hold rows of float32, not {dtype}"
        if isinstance(first, LayerStage) and first.residual:
            return "the layer adds another tensor"
        if isinstance(second, LoopStage) and any(
            not isinstance(at, Affine)
            for load in loads(second.expr) if load.tensor == name for at in load.index
        ):  # fmt: skip
            return "which of its elements are read depends on data"
        if isinstance(second, LoopStage) and (terms := terms_of(second)) > MOST_TERMS:
            return f"a work-item reduces {MOST_TERMS} elements at most, not {terms}"
        return RowFuser.refuse_link(self, first, second)

    def alone(self, member: Member) -> float:
        """Return the predicted seconds of a stage by itself, with its launch."""
        launch = self.costs.launch if isinstance(member, LayerStage) else 0.0
        return launch + RowFuser.alone(self, member)

    def heights(self, run: Sequence[Member]) -> Sequence[int]:
        """Return the rows of a block of the last member for which a group has memory."""
        fitting = [
            height for height in MORE_HEIGHTS
            if held_bytes(self.held(run, height)) <= self.costs.limit
        ]  # fmt: skip
        return fitting or MORE_HEIGHTS[:1]

    def held(self, run: Sequence[Member], height: int) -> tuple[HeldRows, ...]:
        """Return the rows that a group makes; none where members have no pace in common."""
        try:
            return hold_rows(self.placed, run, height)
        except UnsupportedError:
            return ()

    def price(self, members: Sequence[Member], start: int, end: int) -> tuple[float, Run] | None:
        """Return the seconds of a run of members, a row fusion; None where it must not be one."""
        run = members[start:end]
        together = len(run) == 1 or self.held(run, MORE_HEIGHTS[0])
        return RowFuser.price(self, members, start, end) if together else None

    def keep_apart(self, run: Sequence[Member]) -> str:
        """Return what keeps members out of one kernel; or nothing."""
        held = held_bytes(self.held(run, MORE_HEIGHTS[0]))
        if held > self.costs.limit:
            limit = bytes_text(self.costs.limit)
            return f"a group holds {bytes_text(held)} of rows at least, of {limit} that it may"
        return RowFuser.keep_apart(self, run)

    def work(self, run: Sequence[Member], height: int) -> FusedWork:
        """Return the features of members that run together."""
        fusion, values = RowFusion(tuple(run), height), self.placed.program.values
        rows = self.held(run, height)
        launch = GroupLaunch(rows[-1].blocks, held_bytes(rows))
        members = [
            self.held_member(member, own, fusion, launch)
            for member, own in zip(run, rows, strict=True)
        ]
        around = (*fusion.inputs, fusion.output)
        return FusedWork(
            tuple(members), tuple(values[name].bytes for name in fusion.internal),
            tuple(values[name].bytes for name in around if name in values), launch.held,
        )  # fmt: skip

    def held_member(
        self, member: Member, rows: HeldRows, fusion: RowFusion, launch: GroupLaunch
    ) -> MemberWork:
        """Return the features of one member."""
        alone, values = self.alone(member), self.placed.program.values
        repeated = max(0.0, rows.blocks * rows.count / rows.extent - 1)
        if isinstance(member, LoopStage):
            together = self.costs.rows(rows.elements, terms_of(member), launch)
            return MemberWork(alone, together, 0.0, repeated)
        code = self.code(member, fusion.height)
        assert isinstance(code, RowCode) and code.tile is not None
        outside = sum(
            values[name].bytes for name in (member.x.tensor, member.output)
            if name not in fusion.internal
        )  # fmt: skip
        together = self.costs.layer(code.tile, rows.count, outside, launch)
        return MemberWork(alone, together, code.least, repeated)
