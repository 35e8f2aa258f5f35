"""Conversions between narrow and 32-bit numbers: every pattern of 16 bits, between guard pages."""

from pathlib import Path

import pytest

from polysci.runtime.build import cache
from polysci.target.extensions import resource
from polysci.target.isas import ISAS
from tests.support import narrowunit
from tests.support.kernelunit import FLAGS, runs_here

Units = dict[str, Path]
CHECKED = [isa for isa in ISAS if resource("microkernels", f"narrow_{isa}.h").exists()]
# Wrong conversions of the portable header: each must be noticed.
FAULTS = {
    "bf16_value": "ps_bf16_value(x) ps_float_of((uint32_t)((x) & 0xfffe) << 16)",
    "f16_value": "ps_f16_value(x) ps_float_of((uint32_t)(x) << 16)",
    "bf16_of": "ps_bf16_of(x) (uint16_t)((ps_bits_of(x) + 0x8000u) >> 16)",
    "f16_of": "ps_f16_of(x) (uint16_t)((ps_f16_of)(x) & 0x7fffu)",
    "load_bf16": "ps_load_bf16(p, n) ((void)(n), ps_load_bf16(p, PS_LANES))",
    "load_u8": "ps_load_u8(p, n) ps_load_s8((const void *)(p), n)",
    "store_f16": "ps_store_f16(p, x, n) ((void)(n), ps_store_f16(p, x, PS_LANES))",
    "store_u8": "ps_store_u8(p, x, n) ps_store_s8((void *)(p), x, n)",
    "store_s8": "ps_store_s8(p, x, n) ps_store_u8((void *)(p), x, n)",
    "to_int": "ps_to_int(x) ps_to_int((x) - 0.5f)",
    "pairs": "ps_pairs(x, y, z) ps_int_min(ps_pairs(x, y, z), ps_int_splat(32767))",
}


@pytest.fixture(scope="module")
def units() -> Units:
    chosen = [isa for isa in CHECKED if runs_here(isa)]
    texts = [narrowunit.text(isa, stand_in=True) for isa in chosen]
    return dict(zip(chosen, cache.build_many(texts, flags=FLAGS), strict=True))


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", CHECKED)
def test_conversions_equal_those_of_numpy(units: Units, isa: str) -> None:
    if isa not in units:
        pytest.skip(f"this CPU lacks {isa}")
    done = narrowunit.run(units[isa])
    assert done.returncode == 0, f"{done.stdout[-600:]}{done.stderr[-600:]}"
    assert done.stdout.split() == [check.name for check in narrowunit.CHECKS]


@pytest.fixture(scope="module")
def faulty() -> Units:
    texts = [narrowunit.text("portable", fault=fault) for fault in FAULTS.values()]
    return dict(zip(FAULTS, cache.build_many(texts, flags=FLAGS), strict=True))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_conversion_is_noticed(faulty: Units, name: str) -> None:
    done = narrowunit.run(faulty[name])
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1].startswith(name), done.stdout
