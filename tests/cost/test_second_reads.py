"""What sums of results save where tiles make them: by hand."""

from dataclasses import replace

import pytest

from polysci.cost.second_reads import level_rates, moments_gain
from polysci.target.host import detect
from polysci.target.machine import Machine

TARGET = replace(detect("portable"), l2=1000, l3=5000, l2_cores=1, l3_cores=2, cores=2)
MACHINE = Machine(peak=50.0, l2=40.0, l3=30.0, memory=12.0, l3_all=40.0, memory_all=16.0)


def test_threads_share_l3_and_memory() -> None:
    assert level_rates(MACHINE, TARGET, 1) == (40, 30, 12)
    assert level_rates(MACHINE, TARGET, 2) == (40, 20, 8)


@pytest.mark.parametrize(
    ("threads", "elements", "rows", "nanoseconds"),
    [
        (1, 250, 4, 250 * 4 / 40 - 4.5 * 250 * 0.04),  # in L2, where sums take longer
        (1, 251, 4, 251 * 4 / 30 - 4.5 * 251 * 0.04),
        (2, 500, 6, (500 * 4 / 40 - 4 * 500 * 0.04) / 2),
        (2, 1250, 12, (1250 * 4 / 20 - 3.5 * 1250 * 0.04) / 2),
        (1, 1300, 12, 1300 * 4 / 12 - 3.5 * 1300 * 0.04),  # gains
    ],
)
def test_gain(threads: int, elements: int, rows: int, nanoseconds: float) -> None:
    gain = moments_gain(MACHINE, TARGET, threads, elements, rows)
    assert gain == pytest.approx(nanoseconds * 1e-9)
