"""Prices from measured schedules: recovered where they show, kept where nothing does."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysci.cost.shortlist import as_family
from polysci.cost.traffic import work
from polysci.errors import CheckError
from polysci.target import microkernels
from polysci.target.coefficients import FITTED, TABLE
from polysci.target.host import detect
from polysci.target.machine import Machine, assume_rates
from polysci.tune import fit
from polysci.tune.fit import LAYERS, fit_coefficients, sample_schedules
from tests.support import samples

ASSUMED = assume_rates(detect())


@settings(max_examples=20)
@given(
    st.lists(st.floats(0.3, 2.0), min_size=3, max_size=3),
    st.integers(0, 1000),
)
def test_prices_that_explain_the_times_are_found(true: list[float], seed: int) -> None:
    rng, names = np.random.default_rng(seed), FITTED[:3]
    rows = []
    for _ in range(200):
        counts = dict.fromkeys(FITTED, 0.0)
        counts |= dict(zip(names, rng.uniform(0, 1, 3), strict=True))
        seconds = 1.0 + sum(price * counts[name] for name, price in zip(names, true, strict=True))
        rows.append((seconds, 1.0, counts, seconds))
    fitted = fit.fit(rows, ASSUMED)
    found = fitted.values
    assert list(found) == list(names)  # what no schedule has keeps its price
    # The assumed prices pull a little, most on a price that others outweigh.
    assert list(found.values()) == pytest.approx(true, rel=0.3, abs=0.3)
    for seconds, fixed, counts, _ in rows:
        predicted = fixed + sum(price * counts[name] for name, price in found.items())
        assert predicted == pytest.approx(seconds, rel=0.15)


def test_a_price_is_no_lower_than_physics_allows() -> None:
    counts = dict.fromkeys(FITTED, 0.0) | {"call_ns": 1.0, "hidden_l2": 1.0}
    fitted = fit.fit([(0.5, 1.0, counts, 0.5)] * 50, ASSUMED).values
    assert fitted["call_ns"] == pytest.approx(TABLE["call_ns"].least)
    assert fitted["hidden_l2"] == pytest.approx(0.0, abs=1e-6)


def test_no_more_than_a_whole_transfer_shows() -> None:
    counts = dict.fromkeys(FITTED, 0.0) | {"hidden_l2": 1.0}
    fitted = fit.fit([(9.0, 1.0, counts, 9.0)] * 50, ASSUMED)
    assert fitted.values["hidden_l2"] == pytest.approx(1.0)


def test_standard_errors_tell_how_well_a_price_is_known() -> None:
    """Ten times the noise is ten times the error, and what the prior holds is known best by it."""
    rng = np.random.default_rng(1)
    errors = []
    for noise in (0.01, 0.1):
        rows = []
        for share, chance in zip(rng.uniform(0, 1, 300), rng.normal(0, noise, 300), strict=True):
            counts = dict.fromkeys(FITTED, 0.0) | {"store_ns": share}
            rows.append((1.0 + 2.0 * share + chance, 1.0, counts, 1.0 + 2.0 * share + chance))
        fitted = fit.fit(rows, ASSUMED)
        assert list(fitted.errors) == ["store_ns"] == list(fitted.values)
        assert abs(fitted.values["store_ns"] - 2.0) < 4 * fitted.errors["store_ns"] + 0.1
        errors.append(fitted.errors["store_ns"])
    assert 5 < errors[1] / errors[0] < 20


def test_priors_are_within_the_bounds_and_say_where_they_are_from() -> None:
    for name, row in TABLE.items():
        assert row.least <= row.prior <= row.most, name
        assert row.unit and row.meaning and row.machine, name
        assert ASSUMED.coefficients[name] == row.prior


@pytest.mark.exhaustive
def test_the_layers_exercise_every_price() -> None:
    seen = set[str]()
    for layer in LAYERS:
        context = samples.fixed_context(layer)
        for plan in sample_schedules(context, 24):
            _, counts = work(*as_family(context, plan))
            seen |= {name for name, count in counts.items() if count[0] > 0}
    missing = set(FITTED) - seen
    assert not missing - {"hidden_memory"}  # none of them leaves a large last-level cache


def test_calibration_fits_this_machine(machine: Machine) -> None:
    assert machine.measured
    assert all(machine.coefficient(name) >= 0 for name in FITTED)
    assert any(machine.coefficient(name) != ASSUMED.coefficient(name) for name in FITTED)
    assert machine.memory_all > 0 and machine.coefficient("fork_us") > 0
    assert {*FITTED} & {*machine.errors} and {"jump_ns"} <= {*machine.errors}


@pytest.mark.exhaustive
def test_a_machine_on_which_no_schedule_works_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(bench: object, built: list[object]) -> list[tuple[object, CheckError]]:
        return [(schedule, CheckError("wrong result")) for schedule in built]

    monkeypatch.setattr(fit, "time_trials", fail)
    chosen = fit.schedules_to_measure(detect())[:1]
    with pytest.raises(CheckError, match="none of the schedules that calibration times"):
        fit_coefficients(detect(), ASSUMED, chosen)


@pytest.mark.parametrize("true", [4.0, 10.0])
def test_the_rates_of_kernels_tell_how_many_sums_hide_latency(true: float) -> None:
    (kernels,) = microkernels.ways("brgemm", "avx512", "f32")
    machine = ASSUMED.with_coefficients({"in_flight": true})
    rates = {str(kernel): machine.of_kernel("", kernel.rows, kernel.vecs) for kernel in kernels}
    fitted = fit.fit_latency(replace(ASSUMED, efficiency=rates))
    assert fitted.coefficient("in_flight") == pytest.approx(true, rel=0.01)
    assert fitted.errors["in_flight"] < 0.01 * true
    tall = [kernel for kernel in kernels if kernel.rows * kernel.vecs > TABLE["in_flight"].most]
    known = replace(ASSUMED, efficiency=dict.fromkeys(map(str, tall), 1.0))
    assert fit.fit_latency(known) == known
    assert fit.fit_latency(ASSUMED) == ASSUMED
