"""A directive that this file adds to the table goes all the way from text to C and to records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from polysci import tune
from polysci.cost import Context, shortlist
from polysci.errors import SpecError, WisdomError
from polysci.explain import loop_comments
from polysci.loop_ir.index import Index, as_index
from polysci.loop_ir.nodes import (
    Buffer,
    Comment,
    Invoke,
    LoopFunction,
    LoopStatement,
    Named,
    Unused,
    block,
)
from polysci.measure.check import check
from polysci.ops.convolutions import Conv2d
from polysci.runtime.measurement import host_of
from polysci.runtime.source import emit
from polysci.space import directives
from polysci.space.directives import (
    DIRECTIVES,
    Directive,
    EntryPoint,
    Place,
    Stream,
    TilePart,
)
from polysci.space.enumerate import LoopOrder
from polysci.space.plan import Tile
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.tune.wisdom import Wisdom
from tests.support import samples

PROBLEM = Conv2d(N=1, C=16, H=8, W=8, K=32, R=1, S=1)


@dataclass(frozen=True, slots=True)
class Note(Directive):
    """``note(C)``: tells tiles their first column, and calls a function that does nothing."""

    word = "note(C)"
    place = Place.LAST
    sentence = "Somebody takes note of C."
    own_turns = True

    def fault(self, schedule: Schedule) -> str:
        return f"{Stream.word} leaves nothing to note" if schedule.has(Stream) else ""

    @classmethod
    def variants(cls, order: LoopOrder) -> Sequence[NDArray[np.bool_]]:
        without = np.zeros(len(order.steps), dtype=bool)
        return without, ~without

    def enter(self, entry: EntryPoint) -> Sequence[LoopStatement]:
        return (Comment(self.sentence),)

    def tile_part(self, tile: Tile) -> TilePart:
        return TilePart(("column",), (Unused(("column",)),))

    def tile_operands(self, tile: Tile, origin: Mapping[str, Index]) -> Sequence[Index]:
        return (origin.get(tile.plan.column, as_index(0)),)

    def finish(self, entry: EntryPoint) -> Sequence[LoopStatement]:
        return (Invoke(f"{entry.symbol}_note", (Named("y"),)),)

    def functions(self, entry: EntryPoint) -> Sequence[LoopFunction]:
        y = Buffer("y", entry.plan.precision.y.stored)
        return (LoopFunction(f"{entry.symbol}_note", (y,), block(Unused(("y",)))),)


@pytest.fixture(autouse=True)
def with_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directives, "DIRECTIVES", (*DIRECTIVES, Note))


def context() -> Context:
    return samples.fixed_context(PROBLEM, target=detect())


def noted() -> tuple[Schedule, Schedule]:
    """The best schedule, without the directive and with it."""
    best = shortlist.choices(context(), 1)[0].schedule
    return best, best.having(Note())


def test_its_text_is_read_and_written() -> None:
    _, schedule = noted()
    assert str(schedule).endswith(f" note(C) > {schedule.kernel}")
    assert Schedule.parse(str(schedule)) == schedule
    assert schedule.has(Note) and schedule.find(Note) == Note()
    schedule.check_parts()
    with pytest.raises(SpecError, match=r"a last 'ahead\(B\) stream\(C\) note\(C\)'"):
        Schedule.parse("note(C) p > brgemm_portable_f32_6x8")
    with pytest.raises(SpecError, match=r"stream\(C\) leaves nothing to note"):
        schedule.having(Stream()).check(context().contraction.extents)


def test_enumeration_offers_it_beside_every_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    families = samples.families(context())
    for family in families:
        assert np.count_nonzero(family.has(Note)) * 2 == len(family)
    texts = {str(choice.schedule) for choice in shortlist.rank_all(context(), 20)}
    assert any("note(C)" in text for text in texts)
    assert {text.replace(" note(C)", "") for text in texts} <= texts
    monkeypatch.setattr(directives, "DIRECTIVES", DIRECTIVES)
    assert sum(map(len, samples.families(context()))) * 2 == sum(map(len, families))


def test_the_plan_and_the_cost_are_those_of_the_loops() -> None:
    plain, schedule = noted()
    roles, strides = context().contraction, context().strides
    plans = [resolve(roles, strides, each) for each in (plain, schedule)]
    assert replace(plans[1], schedule=plans[0].schedule) == plans[0]
    seconds = [shortlist.predict_seconds(context(), each) for each in (plain, schedule)]
    assert seconds[0] == seconds[1]
    assert loop_comments(roles, plain, (1, 2, 3)) == loop_comments(roles, schedule, (1, 2, 3))


@pytest.mark.sampled
@pytest.mark.parametrize("loops", ["p k:8 q:4", "p* k:8 q:4"])
def test_its_lowering_is_its_own(loops: str) -> None:
    plain = Schedule.parse(f"{loops} > brgemm_portable_f32_6x8")
    schedule = plain.having(Note())
    modules = [emit(PROBLEM, each, 2).module for each in (plain, schedule)]
    names = [set(module.functions) for module in modules]
    assert names[1] - names[0] == {"primitive_note"}
    text = str(modules[1])
    assert f"# {Note.sentence}" in text and "column=" in text
    assert text.count("primitive_note(y=y)") == 1
    assert all(verdict.passed for verdict in check(PROBLEM, [schedule], 2))


def test_records_keep_it_and_are_ignored_where_nobody_knows_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, schedule = noted()
    target, wisdom = detect(), Wisdom(tmp_path / "wisdom.sqlite")
    wisdom.record(
        PROBLEM.key, 1, target.isa.features, "patient", str(schedule), 1e-9,
        host=host_of(target), isa=target.isa.name,
    )  # fmt: skip
    result = tune.optimize(PROBLEM, "wisdom-only", wisdom=wisdom)
    assert result.schedule == schedule
    monkeypatch.setattr(directives, "DIRECTIVES", DIRECTIVES)
    with pytest.raises(WisdomError, match="no record"):
        tune.optimize(PROBLEM, "wisdom-only", wisdom=wisdom)
    assert "'note(C)' is neither a loop" in caplog.text
