"""Prices of a network's stages: features times the machine's coefficients."""

from dataclasses import replace

import pytest

from polysci.cost.networks import LayerGroup, StageCosts, StageWork
from polysci.target.machine import assume_rates
from tests.support.samples import FIXED

MACHINE = replace(assume_rates(FIXED), peak=100.0, l2=50.0, l3=10.0, memory=5.0)
COSTS = StageCosts(MACHINE, FIXED)
L2, L3 = FIXED.second_level.size, FIXED.last_level.size


def test_layers_wait_for_weights_from_where_all_fit() -> None:
    small, large = ((size, size) for size in (L2 // 2, L2))
    near, far = (StageWork((LayerGroup((1.0, 1.0), own),)) for own in (small, large))
    assert COSTS.serial(near) == pytest.approx(2 * (L2 // 2) / 50 * 1e-3)
    assert COSTS.serial(far) == pytest.approx(2 * L2 / 10 * 1e-3)
    busy = StageWork((LayerGroup((1e9, 1.0), small, times=3),))
    assert COSTS.serial(busy) == pytest.approx(3 * (1e9 / 100 + L2 // 2 / 50) * 1e-3)


def test_loops_cost_their_functions_and_threads_their_barriers() -> None:
    costs = replace(
        COSTS,
        machine=MACHINE.with_coefficients(
            {"function_ns": 2.0, "scalar_ns": 5.0, "barrier_us": 7.0}
        ),
    )
    work = StageWork(functions=3000, scalars=1000)
    assert costs.serial(work) == pytest.approx(11.0)
    assert costs.shared(work, 2, 3) == pytest.approx(11.0 / 2 + 21.0)


def test_a_fused_update_costs_more_once_a_step_leaves_its_cache() -> None:
    seconds = [COSTS.fused_update_s(10, 1e-3, 1000, L2, room) for room in (L2, L3, 2 * L3)]
    assert seconds[0] == pytest.approx(10e-3)
    assert seconds[1] - seconds[0] == pytest.approx(10 * 2000 / 10e9)
    assert seconds[2] - seconds[0] == pytest.approx(10 * 2000 / 5e9)
    assert COSTS.fused_update_s(10, 1e-3, 1000, 2 * L3, 2 * L3) == pytest.approx(10e-3)


def test_stacks_go_to_threads_in_nearly_equal_parts() -> None:
    assert COSTS.shares_evenly(8, 4) and COSTS.shares_evenly(100, 3)
    assert not COSTS.shares_evenly(5, 4) and not COSTS.shares_evenly(0, 4)
    assert not COSTS.shares_evenly(8, 1)
