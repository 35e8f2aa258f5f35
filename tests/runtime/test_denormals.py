"""Denormals count as 0 inside a call, on request they do not; the caller's mode stays its own."""

import pickle
import platform
from collections.abc import Iterator

import numpy as np
import pytest

import polysci
from polysci.printers.interface import KEEP
from polysci.target.host import detect
from tests.support.fpmode import flush, modes

pytestmark = [
    pytest.mark.skipif(
        platform.machine() not in ("x86_64", "aarch64"),
        reason="no such mode is known of this machine",
    ),
    pytest.mark.sampled,
]
TINY, HUGE = np.float32(2.0**-130), np.float32(2.0**100)
WORDS = "mb1ic4ih6oc8kh1"
ISAS = [isa.name for isa in detect().runnable if isa.name in ("portable", "avx2", "avx512", "neon")]


@pytest.fixture(params=[False, True], ids=["keeping caller", "flushing caller"])
def caller(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the calling thread flushes denormals itself."""
    flush(request.param)
    yield request.param
    flush(False)


def result(primitive: polysci.Primitive, x: float, w: float) -> float:
    """y of a pointwise convolution whose first input channel alone is not 0."""
    inputs, weights = np.zeros((1, 6, 6, 4), np.float32), np.zeros((8, 4, 1, 1), np.float32)
    inputs[..., 0], weights[:, 0] = x, w
    return float(primitive(inputs, primitive.pack_weights(weights)).max())


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_layer(isa: str, threads: int, caller: bool) -> None:
    before = modes(threads)
    layer = polysci.compile(WORDS, "estimate", threads, isa=isa)
    assert layer.flush_denormals
    assert result(layer, TINY, HUGE) == 0 == result(layer, HUGE, TINY)
    assert result(layer, 2.0**-70, 2.0**-70) == 0 < result(layer, 2.0**-60, 2.0**-60)
    assert modes(threads) == before


@pytest.mark.exhaustive
def test_a_winograd_layer(caller: bool) -> None:
    before = modes(2)
    x, w = np.full((1, 12, 12, 8), TINY), np.full((8, 8, 3, 3), HUGE)
    for threads in (1, 2):
        layer = polysci.compile(
            "mb1ic8ih12oc8kh3ph1", "estimate", threads, isa="portable", algorithm="winograd"
        )
        assert "winograd" in str(layer.schedule)
        assert not layer(x, layer.pack_weights(w)).any() and modes(2) == before


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_denormals_are_kept_on_request(threads: int) -> None:
    layer = polysci.compile(WORDS, "estimate", threads, isa="portable", flush_denormals=False)
    for kept in (layer, pickle.loads(pickle.dumps(layer))):
        assert not kept.flush_denormals
        assert result(kept, TINY, HUGE) == 2.0**-30 == result(kept, HUGE, TINY)


@pytest.mark.exhaustive
def test_f16_has_denormals_that_are_large() -> None:
    """Its smallest numbers are normal ones of f32: none is lost, whatever converts them."""
    for isa in ISAS:
        layer = polysci.compile(WORDS, "estimate", dtype="f16", isa=isa)
        x, w = np.zeros((1, 6, 6, 4), np.float16), np.zeros((8, 4, 1, 1), np.float16)
        x[..., 0], w[:, 0] = 2.0**-24, 1
        assert (layer(x, layer.pack_weights(w)) == 2.0**-24).all(), isa


def test_whole_numbers_leave_the_mode_alone() -> None:
    source = polysci.compile(WORDS, "estimate", dtype="int8", isa="portable").source
    assert "ps_flush_denormals" not in source.file and KEEP not in source.file
