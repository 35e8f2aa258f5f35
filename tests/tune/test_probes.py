"""The C of a calibration's probes: what they read does not fit into the cache above."""

import re
from dataclasses import replace

import pytest

from polysci.target.isas import ISAS
from polysci.target.target import MIB
from polysci.tune.probes import bandwidth_text, reference_kernel, together_text
from tests.support.samples import FIXED, resized


@pytest.mark.parametrize("cores", [2, 8, 64])
@pytest.mark.parametrize("l3", [8 * MIB, 64 * MIB])
def test_a_core_reads_more_from_l3_than_its_l2_holds(cores: int, l3: int) -> None:
    target = replace(resized(FIXED, L2=2 * MIB, L3=l3), cores=cores)
    (alone,) = re.findall(r"float l3_buffer\[(\d+)\]", bandwidth_text(target))
    (each,) = re.findall(r"float l3_buffer\[(\d+)\]", together_text(target))
    for count in (int(alone), int(each) // cores):
        assert 4 * count > 1.25 * target.memory("L2").size
        assert 4 * count <= max(target.memory("L3").size / 3, 1.5 * target.memory("L2").size)


@pytest.mark.parametrize("isa", ISAS)
def test_the_reference_has_sums_enough_and_more_loads_than_the_peak(isa: str) -> None:
    kernel = reference_kernel(isa)
    sums = 8 if isa.startswith("wasm") else 12  # of which an engine keeps fewer in registers
    vecs = 2
    if isa == "helium":  # which has eight registers
        sums, vecs = 7, 1
    assert (kernel.family, kernel.rows * kernel.vecs, kernel.vecs) == ("brgemm", sums, vecs)
