"""The parameters of a machine: as text, by default, as calibrated and as found again."""

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.errors import SpecError
from polysci.runtime.build import cache
from polysci.target.coefficients import ASSUMED, PRIORS, SHARED, TABLE
from polysci.target.host import detect
from polysci.target.isas import ISAS
from polysci.target.machine import Machine, assume_rates, from_json
from polysci.target.machine_file import origin_of
from polysci.target.target import Target
from polysci.tune import calibrate, fit, probes
from tests.support.flags import QUICK
from tests.support.rates import write_rates
from tests.support.samples import FIXED, resized

rates = st.floats(1e-3, 1e6)
machines = st.builds(
    Machine, rates, rates, rates, rates, rates, rates, cpu=st.text(max_size=9),
    coefficients=st.fixed_dictionaries(dict.fromkeys(PRIORS, rates)),
    errors=st.dictionaries(st.sampled_from([*PRIORS]), rates, max_size=4),
    measured=st.booleans(), efficiency=st.dictionaries(st.text(max_size=9), rates, max_size=4),
)  # fmt: skip


@pytest.mark.exhaustive
@given(machines)
def test_a_machine_reads_back_what_it_writes(machine: Machine) -> None:
    assert from_json(machine.to_json()) == machine
    assert from_json(machine.to_json()).to_json() == machine.to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peak": "fast"}, "could not convert"),
        ({"peak": 0}, "must be positive"),
        ({"l2": -1.0}, "must be positive"),
        ({"memory": float("nan")}, "must be positive and finite"),
        ({"l3_all": float("inf")}, "must be positive and finite"),
        ({"coefficients": {**PRIORS, "copy_ns": -1.0}}, "must be finite and not negative"),
        ({"coefficients": {"copy_us": 1.0}}, "the coefficients of this polysci"),
        ({"errors": {"copy_us": 1.0}}, "the coefficients of this polysci"),
        ({"efficiency": {"kernel": 0.0}}, "must be positive"),
        ({"efficiency": None}, "machine parameters"),
        ({"peak": [1]}, "machine parameters"),
        ({"colour": 1}, "colour"),
    ],
)
def test_bad_members_are_refused(change: dict[str, object], message: str) -> None:
    text = json.dumps(json.loads(assume_rates(FIXED).to_json()) | change)
    with pytest.raises(SpecError, match=message):
        from_json(text)


def test_every_coefficient_says_how_well_it_is_known() -> None:
    """A prior has a standard error, or a reason why nothing was fitted; so has every machine."""
    for name, row in {**TABLE, **SHARED, **ASSUMED}.items():
        assert row.error is not None or row.reason, name
        told = f"± {row.error:.3g}" if row.error is not None else f"not fitted: {row.reason}"
        assert row.origin.startswith("prior") and told in row.origin and row.machine in row.origin
    machine = assume_rates(FIXED)
    assert all(origin_of(machine, name) for name in TABLE)
    given = machine.with_coefficients(dict.fromkeys(TABLE, 0.123))
    assert {origin_of(given, name) for name in TABLE} == {"not fitted: given"}


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "{}", '{"peak": 1}'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="machine parameters"):
        from_json(text)


def test_assumed_rates_follow_the_vectors() -> None:
    machines = [assume_rates(replace(FIXED, isa=isa)) for isa in ISAS.values()]
    peaks = [(isa.lanes_f32, m.peak) for isa, m in zip(ISAS.values(), machines, strict=True)]
    assert len(dict(peaks)) == len(set(peaks)) == len({peak for _, peak in peaks})
    assert sorted(peaks, key=lambda pair: pair[1]) == sorted(peaks)
    assert all(not m.measured and m.l2 > m.l3 > m.memory for m in machines)


def test_kernels_that_were_not_measured_are_estimated() -> None:
    """More accumulators hide more latency; a tile wider than tall needs more loads."""
    machine = assume_rates(FIXED)
    shares = [machine.of_kernel("?", rows, vecs) for rows, vecs in ((1, 1), (2, 2), (6, 4))]
    assert shares == sorted(set(shares)) and shares[0] > 0 and shares[-1] <= 1
    measured = replace(machine, efficiency={"?": 0.25})
    assert measured.of_kernel("?", 6, 4) == 0.25


def test_calibration_measures_every_kernel_of_the_isa(machine: Machine) -> None:
    kernels = list(map(str, calibrate.kernels_for(detect().isa.name, "f32")))
    assert machine.measured
    assert sorted(machine.efficiency) == sorted(kernels)
    assert all(0 < share <= 1 for share in machine.efficiency.values())
    assert max(machine.efficiency.values()) > 0.2, "no kernel comes near the peak"
    assert all(value > 0 for value in (machine.peak, machine.l2, machine.l3, machine.memory))


@pytest.mark.exhaustive
def test_a_calibration_of_a_few_kernels(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of a calibration, in one pass over few probes and a fit to one layer."""
    few = calibrate.kernels_for(detect().isa.name, "f32")[::40]
    few += [probes.reference_kernel(detect().isa.name)]
    monkeypatch.setattr(calibrate, "kernels_for", lambda isa, x: few)
    monkeypatch.setattr(calibrate, "PATIENCE_S", 0.0)
    monkeypatch.setattr(fit, "LAYERS", fit.LAYERS[5:6])
    monkeypatch.setattr(fit, "COUNT", 3)
    machine = calibrate.calibrate(detect())
    assert calibrate.load_rates(detect()) == machine and machine.measured
    assert sorted(machine.efficiency) == sorted(map(str, few))
    assert all(0 < share <= 1 for share in machine.efficiency.values())
    assert all(value > 0 for value in (machine.peak, machine.l2, machine.l3, machine.memory))


@pytest.mark.parametrize(("x", "compute"), [("f32", "f32"), ("bf16", "bf16"), ("u8", "i8")])
def test_rates_of_another_precision_are_estimated(x: str, compute: str) -> None:
    machine = assume_rates(FIXED)
    speed = PRIORS.get(f"speed_{compute}", 1.0)
    assert machine.fastest(compute) == speed
    assert machine.of_kernel("?", 6, 4, compute) == speed * machine.of_kernel("?", 6, 4)
    name = f"brgemm_avx512bf16_{compute}_14x32"
    known = replace(machine, efficiency={name: 1.5, "brgemm_avx512_f32_14x32": 0.9})
    assert known.fastest(compute) == (1.0 if compute == "f32" else 1.5)
    assert known.of_kernel(name, 14, 2, compute) == 1.5


@pytest.mark.exhaustive
def test_another_precision_adds_its_kernels(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but their rates is taken from f32; a few kernels stand for all."""
    machine = assume_rates(detect())
    target, few = detect(), calibrate.kernels_for(detect().isa.name, "bf16")[::40]
    monkeypatch.setattr(calibrate, "kernels_for", lambda isa, x: few if x == "bf16" else [])
    monkeypatch.setattr(
        calibrate, "load_rates", lambda target, x="f32": None if x != "f32" else machine
    )
    found = calibrate.machine_of(target, x="bf16")
    assert {name for name in found.efficiency if name not in machine.efficiency} == {
        str(kernel) for kernel in few if str(kernel) not in machine.efficiency
    }
    assert all(0 < found.efficiency[str(kernel)] < 64 for kernel in few)
    assert replace(found, efficiency=machine.efficiency) == machine
    monkeypatch.undo()
    assert calibrate.machine_path(target, "bf16") != calibrate.machine_path(target)


@pytest.mark.exhaustive
@pytest.mark.parametrize("x", ["bf16", "f16", "s8", "u8"])
@pytest.mark.parametrize("isa", [isa.name for isa in detect().allowed])
def test_probes_of_every_precision_compile(isa: str, x: str) -> None:
    """One tile of each family and way to multiply, and the peak of each way."""
    kernels = calibrate.kernels_for(isa, x)
    few = {(kernel.family, kernel.compute): kernel for kernel in kernels}.values()
    assert {"brgemm", "depthwise"} <= {kernel.family for kernel in few}
    texts = [probes.peak_text(unit) for unit in probes.peak_units(isa, x).values()]
    texts += [probes.tile_text([kernel], x) for kernel in few]
    assert len(cache.build_many(texts, flags=QUICK)) == len(texts)


def test_a_calibration_is_found_again(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = replace(assume_rates(detect()), measured=True)
    write_rates(machine, detect(), "f32")
    monkeypatch.setenv("CC", "/nonexistent/cc")  # nothing could be measured now
    assert calibrate.machine_of(detect()) == machine


def other_targets() -> list[Target]:
    here = detect()
    others = [
        resized(here, L2=here.memory("L2").size * 2),
        replace(here, features=(*here.features, "avx99")),
    ]
    return others + [detect(isa) for isa in here.allowed[:-1]]


@pytest.mark.parametrize("target", other_targets(), ids=str)
def test_another_machine_has_another_file(target: Target) -> None:
    assert calibrate.machine_path(target) != calibrate.machine_path(detect())
    assert calibrate.machine_path(target).parent == Path(os.environ["POLYSCI_CACHE_DIR"])


@pytest.mark.parametrize("text", [None, "", "not JSON", '{"peak": 0}'])
def test_without_a_compiler_assumed_rates_serve(
    text: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CC", "/nonexistent/cc")
    monkeypatch.setattr(calibrate, "_refused", set())
    if text is not None:
        calibrate.machine_path(detect()).write_text(text)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert calibrate.machine_of(detect()) == assume_rates(detect())
    assert caplog.text.count("calibration failed, using assumed rates") == 1
    assert "CC='/nonexistent/cc'" in caplog.text
