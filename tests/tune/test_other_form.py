"""A search tries its fastest schedule in the other form: weights prefetched, or not."""

from dataclasses import replace
from typing import cast

import pytest

from polysci import tune
from polysci.measure.bench import Bench
from polysci.ops.conv2d import Conv2d
from polysci.polyhedral.schedule import parse
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.tune import LEVELS
from polysci.tune.result import Trial
from polysci.tune.trials import Trials

TARGET = detect("portable")


def test_the_fastest_schedule_is_tried_with_and_without_prefetches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, tried = Conv2d(N=1, C=64, H=6, W=6, K=96, R=1, S=1), list[str]()
    target = replace(TARGET, l2=16 << 10)
    context = tune.context_of(problem, target=target, machine=assume_rates(target))
    plain, ahead = (f"k:8 p {mark}> brgemm_portable_f32_6x8" for mark in ("", "ahead(B) "))
    slow = "k:16 p > brgemm_portable_f32_6x16"
    monkeypatch.setattr(
        Trials, "_try", lambda _, bench, batch: tried.extend(str(x.schedule) for x in batch)
    )
    for known, other in (
        ([slow, plain], [ahead]),
        ([ahead], [plain]),
        ([plain, ahead], []),
        ([], []),
    ):
        trials = Trials(problem, context, LEVELS["measure"], 0.0, None, print, "")
        trials.trials |= {
            text: Trial(parse(text), 1.0, 2.0 if text == slow else 1.0) for text in known
        }
        tried.clear()
        trials._try_other_form(cast(Bench, None))
        assert tried == other
