"""A search tries its fastest schedule in the other form: weights prefetched, or not."""

from typing import cast

import pytest

from polysci import tune
from polysci.ops.convolutions import Conv2d
from polysci.space.schedule import parse
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.tune import LEVELS
from polysci.tune.records import SearchRecords
from polysci.tune.result import Trial
from polysci.tune.runner import TrialRunner
from polysci.tune.trials import Trials
from tests.support.samples import resized

TARGET = resized(detect("portable"), L2=16 << 10)
RATES = assume_rates(TARGET)


@pytest.mark.parametrize(
    ("taps", "loops", "slow"),
    [(1, "k:8 p", "k:16 p"), (3, "winograd(2) k:8", "winograd(2) k:16")],
)
def test_the_fastest_schedule_is_tried_with_and_without_prefetches(
    monkeypatch: pytest.MonkeyPatch, taps: int, loops: str, slow: str
) -> None:
    problem = Conv2d(N=1, C=64, H=6, W=6, K=96, R=taps, S=taps, pad=taps // 2)
    tried, context = list[str](), tune.context_of(problem, target=TARGET, machine=RATES)
    plain, ahead = (f"{loops} {mark}> brgemm_portable_f32_6x8" for mark in ("", "ahead(B) "))
    slow += " > brgemm_portable_f32_6x8"
    monkeypatch.setattr(
        Trials, "_try", lambda _, runner, batch: tried.extend(str(x.schedule) for x in batch)
    )
    for known, other in (
        ([slow, plain], [ahead]),
        ([ahead], [plain]),
        ([plain, ahead], []),
        ([], []),
    ):
        trials = Trials(
            problem, context, LEVELS["measure"], 0.0, None, print, cast(SearchRecords, None)
        )
        trials.trials |= {
            text: Trial(parse(text), 1.0, 2.0 if text == slow else 1.0) for text in known
        }
        tried.clear()
        trials._try_other_form(cast(TrialRunner, None))
        assert tried == other
