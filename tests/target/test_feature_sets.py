"""Every set of instruction sets that a CPU may have: what may run on it is chosen, no other."""

from pathlib import Path

import pytest

from polysci import tune
from polysci.numerics.dtypes import PRECISIONS
from polysci.ops.convolutions import Conv2d
from polysci.target.isas import ISAS
from polysci.target.machine import assume_rates
from polysci.target.microkernels import find, shorter
from polysci.tune import calibrate
from tests.support.featuresets import CPUS, MASKED, target_with

LAYER = Conv2d(N=1, C=16, H=6, W=6, K=32, R=3, S=3, pad=1)
INPUTS = sorted({row.x.name for row in PRECISIONS.values()})


@pytest.fixture(autouse=True)
def no_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYSCI_ISA", raising=False)


@pytest.mark.parametrize("flags", [*CPUS.values(), *MASKED])
def test_all_that_run_and_no_other(tmp_path: Path, flags: str) -> None:
    target = target_with(tmp_path, flags)
    words = {*flags.split()}
    runs = [isa for isa in ISAS.values() if {*isa.features} <= words]
    assert list(target.runnable) == runs and target.isa is runs[-1]
    assert runs[0].name == "scalar" and not any(map(target.refusal, map(str, runs)))
    for isa in {*ISAS.values()} - {*runs}:
        assert target.refusal(isa.name)
    for x in INPUTS:
        kernels = calibrate.kernels_for(target.isa.name, x)
        assert {"brgemm", "depthwise"} <= {kernel.family for kernel in kernels}
        assert {kernel.isa for kernel in kernels} <= {
            *target.isa.chain,
            *shorter(target.isa.name),
            "scalar",
            "portable",
        }
        assert all({*ISAS[kernel.isa].features} <= words for kernel in kernels)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8:s8:u8"])
@pytest.mark.parametrize("cpu", CPUS)
def test_a_search_chooses_what_runs(tmp_path: Path, cpu: str, dtype: str) -> None:
    target = target_with(tmp_path, CPUS[cpu])
    layer = LAYER.with_(dtype=dtype)
    result = tune.optimize(layer, "estimate", target=target, machine=assume_rates(target))
    assert find(result.schedule.kernel).isa in map(str, target.allowed)
    assert not target.refusal(result.source.isa)
