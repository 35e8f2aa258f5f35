"""The table of operators beside ONNX's schemas, ATen's calls and the table of functions."""

import onnx
import pytest

from polysci.graph import operators
from polysci.graph.operators import OPERATORS, onnx_name, operator_of_onnx
from polysci.numerics.scalar_functions import FUNCTIONS


def test_names_are_those_of_one_row() -> None:
    rows = [row for family in operators._FAMILIES for row in family.ROWS]
    assert sorted(row.name for row in rows) == sorted(OPERATORS)
    named = {row.onnx: row.name for row in rows if row.onnx}
    assert len(named) == sum(bool(row.onnx) for row in rows)
    assert {name: operator_of_onnx(name) for name in named} == named
    assert {onnx_name(op): op for op in named.values()} == named
    assert operator_of_onnx("Bernoulli") == onnx_name("Bernoulli") == "Bernoulli"


def test_onnx_has_what_rows_name() -> None:
    unknown = [row.onnx for row in OPERATORS.values() if row.onnx and not onnx.defs.has(row.onnx)]
    assert not unknown


def test_every_function_with_an_operator_has_a_row() -> None:
    assert {name for name, row in FUNCTIONS.items() if row.onnx} <= {*OPERATORS}


def test_pytorch_has_what_rows_name() -> None:
    torch = pytest.importorskip("torch")
    names = [row.torch for row in FUNCTIONS.values() if row.torch]
    names += [name for row in OPERATORS.values() for name in row.torch]
    assert names and not [name for name in names if not hasattr(torch.ops.aten, name)]
