"""The table of operators beside ONNX's schemas, ATen's calls and the table of functions."""

import onnx
import pytest

from polysci.graph import operators
from polysci.graph.operators import OPERATORS, operator_of_onnx
from polysci.numerics.scalar_functions import FUNCTIONS


def test_names_are_those_of_one_row() -> None:
    rows = [row for family in operators._FAMILIES for row in family.ROWS]
    assert sorted(row.name for row in rows) == sorted(OPERATORS)
    names = [name for row in rows for name in row.onnx_names]
    assert len(names) == len({*names})
    assert [operator_of_onnx(name) for name in names] == [
        row.name for row in rows for _ in row.onnx_names
    ]


def test_onnx_has_what_rows_name() -> None:
    unknown = [name for row in OPERATORS.values() for name in row.onnx_names
               if not onnx.defs.has(name)]  # fmt: skip
    assert not unknown


def test_every_function_with_an_operator_has_a_row() -> None:
    assert {row.operator for row in FUNCTIONS.values() if row.operator} <= {*OPERATORS}


def test_pytorch_has_what_rows_name() -> None:
    torch = pytest.importorskip("torch")
    names = [row.torch for row in FUNCTIONS.values() if row.torch]
    names += [name for row in OPERATORS.values() for name in row.torch]
    assert names and not [name for name in names if not hasattr(torch.ops.aten, name)]
