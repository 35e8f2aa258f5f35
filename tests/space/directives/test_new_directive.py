"""A directive that this file adds to the table goes all the way from text to C and to records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from polysci import tune
from polysci.cost import Context, shortlist
from polysci.errors import SpecError, WisdomError
from polysci.explain import loop_comments
from polysci.lower.lowering import emit
from polysci.ops.convolutions import Conv2d
from polysci.runtime.measurement import host_of
from polysci.space import directives
from polysci.space.directives import DIRECTIVES, Directive, Place, Stream
from polysci.space.enumerate import LoopOrder
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.tune.wisdom import Wisdom
from tests.support import samples

PROBLEM = Conv2d(N=1, C=16, H=8, W=8, K=32, R=1, S=1)


@dataclass(frozen=True, slots=True)
class Note(Directive):
    """``note(C)``: changes nothing."""

    word = "note(C)"
    place = Place.LAST
    sentence = "Somebody takes note of C."

    def fault(self, schedule: Schedule) -> str:
        return f"{Stream.word} leaves nothing to note" if schedule.has(Stream) else ""

    @classmethod
    def variants(cls, order: LoopOrder) -> Sequence[NDArray[np.bool_]]:
        without = np.zeros(len(order.steps), dtype=bool)
        return without, ~without


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


def test_the_plan_the_cost_and_the_code_are_those_of_the_loops() -> None:
    plain, schedule = noted()
    roles, strides = context().contraction, context().strides
    plans = [resolve(roles, strides, each) for each in (plain, schedule)]
    assert replace(plans[1], schedule=plans[0].schedule) == plans[0]
    seconds = [shortlist.predict_seconds(context(), each) for each in (plain, schedule)]
    assert seconds[0] == seconds[1]
    assert loop_comments(roles, plain, (1, 2, 3)) == loop_comments(roles, schedule, (1, 2, 3))
    texts = [emit(PROBLEM, each).text for each in (plain, schedule)]
    assert texts[0] != texts[1] and texts[1].replace(" note(C)", "") == texts[0]


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
