"""Which schedules are timed once more, side by side."""

from __future__ import annotations

import pytest

from polysci.space.schedule import Schedule
from polysci.tune.result import Trial
from polysci.tune.trials import MOST_NEAR, finalists


def trial(rows: int, seconds: float | None) -> Trial:
    return Trial(Schedule.parse(f"p q:{rows} > brgemm_avx512_f32_{rows}x16"), 1.0, seconds)


@pytest.mark.parametrize(
    ("seconds", "rows"),
    [
        ([1.0, 2.0, 3.0, 4.0], [1, 2]),  # at least so many, however slow
        ([1.19, 1.0, 1.1, 1.21, None], [2, 3, 1]),  # all that are near; none that fell out
        ([None, 5.0], [2]),
        ([None], []),
        ([1.0 + number / 1000 for number in range(MOST_NEAR + 3)], [*range(1, MOST_NEAR + 1)]),
    ],
)
def test_finalists(seconds: list[float | None], rows: list[int]) -> None:
    trials = [trial(number, time) for number, time in enumerate(seconds, 1)]
    named = {str(one.schedule): number for number, one in enumerate(trials, 1)}
    assert [named[name] for name in finalists(trials, 2)] == rows
