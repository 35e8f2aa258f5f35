"""Exported layers whose sums end in an activation pass their own test, and notice faults."""

from pathlib import Path

import pytest

from polysci.export import ExportedLayer, export_c
from polysci.numerics.scalar_functions import ACTIVATIONS
from polysci.ops import parse_problem
from polysci.space import schedule
from tests.support.exported import edited, run

PLANS = {
    "f32": "p:2 k:8 p > brgemm_portable_f32_6x8",
    "bf16": "pack(A) p:2 k:8 p > brgemm_portable_f32_6x8",
}


def layers(*names: str) -> list[ExportedLayer]:
    """One with each function, in turns of f32 and bf16."""
    made = []
    for at, name in enumerate(names):
        dtype = ("f32", "bf16")[at % 2]
        problem = parse_problem(f'mb1ic8ih5oc11kh3ph1 act={name} n"l{at}"', dtype=dtype)
        made.append(ExportedLayer(problem, schedule.parse(PLANS[dtype])))
    return made


def check(folder: Path) -> str:
    """What the self-test of a folder prints."""
    return run("make", "check", "CFLAGS=-O1", cwd=folder).stdout


@pytest.mark.exhaustive
def test_the_self_test_knows_activations(tmp_path: Path) -> None:
    export_c(layers(*ACTIVATIONS), tmp_path / "net")
    assert f"{2 * len(ACTIVATIONS)} passed, 0 failed" in check(tmp_path / "net")


@pytest.mark.exhaustive
@pytest.mark.parametrize("wrong", ["ps_f_exp_below(z)", "ps_f_exp_below(-1.0001f * z)"])
def test_a_wrong_function_fails(tmp_path: Path, wrong: str) -> None:
    export_c(layers("silu"), tmp_path / "net")
    edited(tmp_path / "net" / "net.c", "ps_f_exp_below(-z)", wrong)
    assert "0 passed, 2 failed" in check(tmp_path / "net")
