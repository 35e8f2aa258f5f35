"""Options of a network: one by one, or as one value that Python and the command line build."""

from pathlib import Path

import numpy as np
import pytest

import polysci
from polysci import CompileOptions
from polysci.errors import SpecError
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.tune import Progress
from tests.support.compiling import saved, tiny

MODEL = "mlp:2x8x3 act=relu"


@pytest.mark.exhaustive
def test_one_value_or_keywords() -> None:
    options = CompileOptions("estimate", isa="portable", name="net")
    whole = polysci.compile_network(MODEL, options)
    parts = polysci.compile_network(MODEL, "estimate", isa="portable", name="net")
    assert whole.code.files == parts.code.files and whole.name == "net"
    x = np.ones((2, 8), np.float32)
    assert np.array_equal(whole(x), parts(x))


def test_options_are_given_once_and_known() -> None:
    for name, value in (("threads", 2), ("dtype", "bf16"), ("fuse", False)):
        with pytest.raises(TypeError, match=f"{name}: given twice"):
            polysci.compile_network(MODEL, CompileOptions("estimate"), **{name: value})
    with pytest.raises(TypeError, match=r"treads: no option of a network.*threads"):
        polysci.compile_network(MODEL, treads=2)


def test_nothing_runs_on_a_described_machine() -> None:
    with pytest.raises(SpecError, match="nothing runs on a described machine"):
        polysci.compile_network(MODEL, machine=assume_rates(detect()))


def test_progress_hears_how_many_layers_there_are(tmp_path: Path) -> None:
    steps = list[Progress]()
    path = saved(tiny(), tmp_path / "tiny.onnx")
    network = polysci.compile_network(
        path, "estimate", watch=lambda *_: None, progress=steps.append
    )
    assert [(step.stage, step.total) for step in steps] == [("layers", len(network.results))]
