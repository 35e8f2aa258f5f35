"""Choose stages that run together in one kernel of groups of work-items, which hold their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from polysci.cost.fusion import FusedWork, MemberWork
from polysci.cost.group_fusion import GroupFusionCosts, GroupLaunch
from polysci.loop_ir.expressions import loads
from polysci.numerics.affine import Affine
from polysci.program.passes.held_rows import HeldRows, held_bytes, hold_rows
from polysci.program.passes.operands import part_height
from polysci.program.passes.row_fusion import HEIGHTS, RowCode, RowFuser, terms_of
from polysci.program.passes.row_links import Member, RowLinks
from polysci.program.passes.row_turns import read_names
from polysci.program.stages import LayerStage, LoopStage, RowFusion, Stage
from polysci.text.tables import bytes_text

MORE_HEIGHTS: Final = (*HEIGHTS, 32, 64, 128)  # of rows that groups make
MOST_TERMS: Final = 4096  # of an element, all of which one work-item takes


@dataclass(slots=True)
class GroupLinks(RowLinks):
    """Those that groups can hold: between layers whose weights are constants."""

    def refuse_tensor(self, maker: Member, readers: Sequence[Stage]) -> str:
        """Return why groups cannot hold what a stage makes, whoever reads it; or nothing."""
        return RowLinks.refuse_tensor(self, maker, readers) or self.refuse_member(maker)

    def refuse_read(self, name: str, reader: Member) -> str:
        """Return why a stage cannot read rows of a tensor out of a group; empty if it can."""
        if why := RowLinks.refuse_read(self, name, reader) or self.refuse_member(reader):
            return why
        if read_names(self.placed, reader, name) != [name]:
            return "rows that groups hold have no other name"
        if isinstance(reader, LayerStage):
            return ""
        places = (at for its in loads(reader.expr) if its.tensor == name for at in its.index)
        moves = not all(isinstance(at, Affine) for at in places)
        return "which of its elements are read depends on data" if moves else ""

    def refuse_member(self, member: Member) -> str:
        """Return why a stage cannot take turns with others in a group; empty if it can."""
        if isinstance(member, LoopStage):
            over = (terms := terms_of(member)) > MOST_TERMS
            return f"a work-item reduces {MOST_TERMS} elements at most, not {terms}" * over
        if member.stack:
            return "it is one of several products"
        computed = member.w or member.weights not in self.placed.program.constants
        return "its weights are computed" if computed else ""


@dataclass(slots=True)
class GroupFuser(RowFuser):
    """Row fusions whose members take turns in a group, for a block of rows of the last one."""

    @property
    def costs(self) -> GroupFusionCosts:
        """The costs of kernels of the device."""
        assert isinstance(self.setting.costs, GroupFusionCosts)
        return self.setting.costs

    def links_without(self, refused: Mapping[str, str]) -> RowLinks:
        """Return what may join stages; ``refused`` says why some tensors may not."""
        without = "" if self.costs.limit else "groups of the device have no memory of their own"
        return GroupLinks(self.placed, refused, without)

    def alone(self, member: Member) -> float:
        """Return the predicted seconds of a stage by itself, with its launch."""
        launch = self.costs.launch if isinstance(member, LayerStage) else 0.0
        return launch + RowFuser.alone(self, member)

    def heights(self, run: Sequence[Member]) -> Sequence[int]:
        """Return the rows of a block of the last member for which a group has memory.

        Tall blocks come first: the fewest of their rows are made twice, of whole images none.
        """
        rows = self.placed.rows_of(run[-1].output)
        assert rows is not None
        image = part_height(run[-1], rows) if isinstance(run[-1], LayerStage) else rows.height
        whole = (image * images for images in MORE_HEIGHTS)
        fitting = [
            height for height in sorted({*MORE_HEIGHTS, *whole}, reverse=True)
            if height < 2 * rows.height and self.has_rows(run, height)
            and held_bytes(self.held(run, height)) <= self.costs.limit
        ]  # fmt: skip
        return fitting or MORE_HEIGHTS[:1]

    def held(self, run: Sequence[Member], height: int) -> tuple[HeldRows, ...]:
        """Return the rows that a group makes."""
        return hold_rows(self.placed, run, height)

    def refuse_room(self, work: FusedWork) -> str:
        """Return why a group has no memory for the rows between members; empty if it has."""
        if work.rings <= self.costs.limit:
            return ""
        held, limit = bytes_text(work.rings), bytes_text(self.costs.limit)
        return f"a group holds {held} of rows at least, of {limit} that it may"

    def work(self, run: Sequence[Member], height: int) -> FusedWork:
        """Return the features of members that run together."""
        fusion, values = RowFusion(tuple(run), height), self.placed.program.values
        rows = self.held(run, height)
        launch = GroupLaunch(rows[-1].blocks, held_bytes(rows))
        members = [
            self.held_member(member, own, fusion, launch)
            for member, own in zip(run, rows, strict=True)
        ]
        return FusedWork(tuple(members), values[fusion.output].bytes, launch.held)

    def held_member(
        self, member: Member, rows: HeldRows, fusion: RowFusion, launch: GroupLaunch
    ) -> MemberWork:
        """Return the features of one member."""
        alone, values = self.alone(member), self.placed.program.values
        repeated = (rows.blocks - 1) * max(0, rows.count - rows.step) / rows.extent
        if isinstance(member, LoopStage):
            together = self.costs.rows(rows.elements, terms_of(member), launch)
            return MemberWork(alone, together, repeated=repeated)
        code = self.code(member, fusion.height)
        assert isinstance(code, RowCode) and code.tile is not None
        outside = sum(
            values[name].bytes for name in (member.x.tensor, member.residual, member.output)
            if name and name not in fusion.internal
        )  # fmt: skip
        products = rows.count * code.tile.all_rows // rows.extent
        together = self.costs.layer(code.tile, products, outside, launch)
        return MemberWork(alone, together, least=code.least, repeated=repeated)
