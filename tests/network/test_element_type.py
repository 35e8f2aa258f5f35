"""A network asked for in bf16 is in f32 where that is faster."""

from pathlib import Path

import numpy as np
import pytest

from polysci.network import compiled, report
from polysci.network.compiled import compile_network
from tests.support.compiling import ISA, saved
from tests.support.onnxmodels import model, node, reals


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = model([node("Conv", "x w", "y")], {"x": (1, 4, 6, 6)}, {"y": None},
                 {"w": reals(8, 4, 1, 1)})  # fmt: skip
    return saved(made, tmp_path / "m.onnx")


@pytest.mark.parametrize(("plain", "dtype"), [(0.9, "f32"), (0.99, "bf16"), (2.0, "bf16")])
def test_the_least_of_several_medians_decides(
    monkeypatch: pytest.MonkeyPatch, plain: float, dtype: str
) -> None:
    """One disturbed turn changes nothing, and a tie keeps the narrow one."""
    seconds = {
        "plain": [9 * plain, plain, plain, plain, plain],
        "narrow": [1.0, 9.0, 1.0, 1.0, 1.0],
    }
    monkeypatch.setattr(report, "latency", lambda runner: seconds[runner].pop(0))
    faster = report.is_faster("plain", "narrow")  # type: ignore[arg-type]
    assert faster == (dtype == "f32")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("faster", "dtype"), [(True, "f32"), (False, "bf16")])
def test_the_faster_type_is_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch, faster: bool, dtype: str
) -> None:
    monkeypatch.setattr(compiled, "is_faster", lambda plain, narrow: faster)
    network = compile_network(path, "measure", dtype="bf16", isa=ISA, time_limit=0.5)
    assert network.dtype == dtype
    kinds = {value.dtype for value in network.prepared.program.values.values()}
    assert ("bf16" in kinds) == (dtype == "bf16")
    x = reals(1, 4, 6, 6, seed=1)
    exact = np.einsum("nchw,kc->nkhw", x, reals(8, 4, 1, 1)[:, :, 0, 0])
    assert np.abs(network(x) - exact).max() < (1e-5 if dtype == "f32" else 0.1)


def test_nothing_is_timed_at_levels_that_do_not_measure(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "is_faster", lambda plain, narrow: pytest.fail("timed"))
    assert compile_network(path, "estimate", dtype="bf16", isa=ISA).dtype == "bf16"
