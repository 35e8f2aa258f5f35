"""What is noticed of tensors that are replaced or written to."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
from polysci.torch.state import TensorState  # noqa: E402


def tensors() -> list[Any]:
    with torch.inference_mode():
        last = torch.zeros(6)
    kinds = [torch.float32, torch.bfloat16, torch.int8, torch.float64]
    wide = torch.zeros(8, 6)[:, ::2]  # with gaps: none of its elements is read
    one, none = torch.zeros(()), torch.zeros(0, 3)
    return [*[torch.zeros(4, 5, dtype=kind) for kind in kinds], wide, one, none, last]


def write_last(x: Any) -> None:
    """As a NumPy view does: nothing counts it."""
    with torch.inference_mode(x.is_inference()):
        x.data.view(-1)[-1] = 7


@pytest.mark.parametrize("at", [0, 1, 2, 3, 5, 7])
def test_a_write_that_nothing_counts_is_noticed(at: int) -> None:
    mine = tensors()
    state = TensorState(mine)
    assert not state.has_changed()
    assert state.is_of(mine)
    version = None if mine[at].is_inference() else mine[at]._version
    write_last(mine[at])
    assert version is None or mine[at]._version == version
    assert state.has_changed()
    assert not state.is_of(mine)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1),
        lambda x: setattr(x, "data", torch.zeros(4, 5)),
        lambda x: x.untyped_storage().resize_(0),
    ],
)
def test_changes_that_are_counted_or_move_a_tensor(change: Callable[[Any], None]) -> None:
    mine = tensors()
    state = TensorState(mine)
    change(mine[0])
    assert state.has_changed()


def test_other_tensors_of_equal_values_are_others() -> None:
    mine = tensors()
    state = TensorState(mine)
    others = [mine[0].clone(), *mine[1:]]
    assert not state.is_of(others)
    assert not state.has_changed()


def test_no_tensors_never_change() -> None:
    assert not TensorState([]).has_changed()
