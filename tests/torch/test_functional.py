"""Programs of torch.export whose changes in place become new tensors, or are left to PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest

from polysci.network.frontends.pytorch.functional import functional_graph
from polysci.network.frontends.pytorch.program import program_of, run_program

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of


def change_a_result(y: Any) -> Any:
    F.relu_(y)
    y += 1
    return y * y.mean((2, 3), keepdim=True).sigmoid_()


def change_what_is_read_before(y: Any) -> Any:
    z = y.sum(1)
    y.mul_(2)
    return z + y.sum(1)


def change_a_tensor_behind_its_view(y: Any) -> Any:
    z = y.view(-1)
    y.relu_()
    return z


def change_what_dropout_hands_on(y: Any) -> Any:
    z = F.dropout(y, training=False)
    y.add_(1)
    return z


def change_a_part(y: Any) -> Any:
    y[:, :1] *= 2
    return y


def change_to_another_type(y: Any) -> Any:
    return y.add_(y.double())


def count_the_batch(y: Any) -> Any:
    return F.batch_norm(y, None, None, training=True)


CASES: dict[Callable[[Any], Any], bool] = {
    change_a_result: True,
    change_what_is_read_before: True,
    change_a_tensor_behind_its_view: False,
    change_a_part: False,
    change_to_another_type: False,
    count_the_batch: True,
}


class Changed(nn.Module):
    """A function of what a convolution makes, its input called ``input`` as one of Python's."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(2, 3, 3, padding="same"), function

    def forward(self, input: Any) -> Any:  # noqa: A002
        return self.function(self.conv(input))


@pytest.mark.parametrize(("function", "is_plain"), CASES.items(), ids=lambda part: str(part)[:30])
def test_programs_compute_what_modules_do(function: Callable[[Any], Any], is_plain: bool) -> None:
    torch.manual_seed(0)
    module, x = Changed(function).eval(), torch.randn(2, 2, 4, 5)
    exported = torch.export.export(module, (x,))
    assert (functional_graph(torch, exported) is not None) == is_plain
    program = program_of(torch, "changed", exported)
    assert [node.name for node in program.inputs] == ["input"]
    made = run_program(program, {"input": x.numpy()})
    with torch.no_grad():
        wanted = module.double()(x.double())
    (result,) = program.made
    torch.testing.assert_close(torch.from_numpy(made[result.name]), wanted)


@pytest.mark.parametrize(
    "module", [nn.BatchNorm2d(2).train(), Changed(change_what_dropout_hands_on).eval()]
)
def test_what_schemas_do_not_tell_is_left_to_pytorch(module: Any) -> None:
    """Statistics that change, and a result that is the operand itself."""
    exported = torch.export.export(module, (torch.randn(2, 2, 4, 5),))
    assert functional_graph(torch, exported) is None
