"""Primitives and packed weights travel as text and bytes, and are built again where they arrive."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import polysci
from polysci.runtime import primitive as primitives
from polysci.runtime.measurement import Measurement
from tests.support.onnxmodels import reals

TINY = "mb1ic8ih5oc8kh3ph1"
PLAN = "p q:4 > brgemm_portable_f32_4x8"
X, W = reals(1, 5, 5, 8), reals(8, 8, 3, 3, seed=1)
LOAD = """
import pickle, sys
prim, wp, x = pickle.load(open(sys.argv[1], "rb"))
sys.stdout.buffer.write(prim(x, wp).tobytes())
"""


@pytest.fixture(scope="module")
def prim() -> polysci.Primitive:
    return polysci.compile(TINY, schedule=PLAN)


@pytest.mark.exhaustive
def test_another_process_computes_the_same(prim: polysci.Primitive, tmp_path: Path) -> None:
    wp = prim.pack_weights(W)
    (tmp_path / "all").write_bytes(pickle.dumps((prim, wp, X)))
    command = [sys.executable, "-W", "error", "-c", LOAD, tmp_path / "all"]
    ran = subprocess.run(command, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == prim(X, wp).tobytes()


def test_a_primitive_is_short_text_without_code(prim: polysci.Primitive) -> None:
    data = pickle.dumps(prim)
    assert len(data) < 400
    assert str(prim.problem).encode() in data and PLAN.encode() in data
    assert b"\x7fELF" not in data and b"void" not in data


@pytest.mark.parametrize(
    ("problem", "plan", "options"),
    [
        (TINY, PLAN, {"layout": "nchw"}),
        (TINY, "p* q > brgemm_portable_f32_4x8", {"threads": 2}),
        ("mm:6x8x8", "i:2 > brgemm_portable_f32_4x8", {}),
        (f'{TINY}n"named"', PLAN, {}),
    ],
)
def test_everything_is_as_before(problem: str, plan: str, options: dict[str, object]) -> None:
    before = polysci.compile(problem, schedule=plan, **options)  # type: ignore[arg-type]
    before.measurement = Measurement((1e-3,), 1, plan, "alone", 1, "host")
    for after in (pickle.loads(pickle.dumps(before)), copy.deepcopy(before)):
        assert after.problem == before.problem and after.problem.name == before.problem.name
        assert after.problem.layout == before.problem.layout
        assert (after.schedule, after.threads) == (before.schedule, before.threads)
        assert after.source == before.source and after.measurement == before.measurement


def test_packed_weights_are_aligned_and_cannot_be_changed(prim: polysci.Primitive) -> None:
    wp = prim.pack_weights(W)
    again = pickle.loads(pickle.dumps(wp))
    assert np.array_equal(again.array, wp.array) and again.identity == wp.identity
    assert again.array.ctypes.data % 64 == 0 and not again.array.flags.writeable
    assert np.array_equal(prim(X, again), prim(X, wp))
    with pytest.raises(ValueError, match="wp: expected weights packed for"):
        polysci.compile(TINY, schedule="p q:2 > brgemm_portable_f32_4x8")(X, again)


def test_narrow_weights_travel_too() -> None:
    prim = polysci.compile("mb1ic8ih4oc8kh1", schedule="p > brgemm_portable_i16_4x8", dtype="int8")
    x, w = np.full((1, 4, 4, 8), 3, np.uint8), np.full((8, 8, 1, 1), 2, np.int8)
    wp = prim.pack_weights(w, x_zero=1)
    assert np.array_equal(prim(x, pickle.loads(pickle.dumps(wp))), prim(x, wp))


def test_weights_of_another_version_are_refused(
    prim: polysci.Primitive, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("polysci.runtime.primitive.__version__", "0.0.1")
        data = pickle.dumps(prim.pack_weights(W))
    with pytest.raises(polysci.errors.SpecError, match=r"packed by polysci 0\.0\.1, and this is"):
        pickle.loads(data)


def test_a_cpu_without_the_instruction_set_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = "avx512" if os.uname().machine == "aarch64" else "neon"
    plan = f"p q:4 > brgemm_{foreign}_f32_4x{32 if foreign == 'avx512' else 8}"
    words = (TINY, "nhwc", "f32", plan, 1, None)
    with pytest.raises(polysci.errors.UnsupportedError, match=f"needs {foreign}, which this CPU"):
        primitives.restore_primitive(*words)
