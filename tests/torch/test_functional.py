"""Programs of torch.export whose changes in place become new tensors, or are left to PyTorch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from polysci.frontends.pytorch import program as programs
from polysci.frontends.pytorch.program import functional_graph, program_of, run_program

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
from polysci.torch import optimize  # noqa: E402

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


ALIASES: dict[str, Callable[[Any], Any]] = {
    "dropout": lambda y: F.dropout(y, training=False),
    "dropout of nothing": lambda y: F.dropout(y, p=0.0, training=True),
    "feature_dropout": lambda y: F.dropout2d(y, training=False),
    "alpha_dropout": lambda y: F.alpha_dropout(y, training=False),
    "einsum": lambda y: torch.einsum("ncij->cnji", y),
    "detach": lambda y: y.detach(),
    "identity": nn.Identity(),
    "to": lambda y: y.to(y.dtype),
    "contiguous": lambda y: y.contiguous(),
    "view": lambda y: y.view(-1),
    "flatten": lambda y: y.flatten(1),
    "reshape": lambda y: y.reshape(2, -1),
    "expand": lambda y: y.expand(3, *y.shape),
    "transpose": lambda y: y.transpose(1, 2),
    "slice": lambda y: y[:, 1:],
    "chunk": lambda y: y.chunk(2, 1)[1],
}


def change_behind(alias: Callable[[Any], Any], y: Any) -> Any:
    z = alias(y)
    y.add_(1)
    return z


def change_on_both_sides(alias: Callable[[Any], Any], y: Any) -> Any:
    z = alias(y)
    y.add_(1)
    z.mul_(2)
    return z * y.square().mean()


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
    assert (functional_graph(torch, check(Changed(function).eval())) is not None) == is_plain


def check(module: Any) -> Any:
    """The program of a module, which computes the same."""
    torch.manual_seed(0)
    x = torch.randn(2, 2, 4, 5)
    with torch.no_grad():
        exported = torch.export.export(module, (x,))
    program = program_of(torch, "changed", exported)
    assert [node.name for node in program.inputs] == ["input"]
    made = run_program(program, {"input": x.numpy()})
    with torch.no_grad():
        wanted = module.double()(x.double())
    (result,) = program.made
    torch.testing.assert_close(torch.from_numpy(made[result.name]), wanted)
    return exported


@pytest.mark.parametrize(
    "module",
    [nn.BatchNorm2d(2).train(), Changed(partial(change_behind, ALIASES["einsum"])).eval()],
)
def test_what_schemas_do_not_tell_is_left_to_pytorch(module: Any) -> None:
    """Statistics that change, and a result that is the operand itself."""
    exported = torch.export.export(module, (torch.randn(2, 2, 4, 5),))
    assert functional_graph(torch, exported) is None


@pytest.mark.parametrize("name", ALIASES)
def test_changes_reach_all_that_shares_memory(name: str) -> None:
    """Of what is returned and of what is read later, whether or not the schema tells of it."""
    one_way = name == "expand"  # elements that share a place cannot be changed
    change = change_behind if one_way else change_on_both_sides
    check(Changed(partial(change, ALIASES[name])).eval())


def test_changes_reach_what_optimized_dropout_returns() -> None:
    module, x = Changed(partial(change_behind, ALIASES["dropout"])).eval(), torch.randn(2, 2, 4, 5)
    optimized = optimize(module, x, "estimate")
    assert optimized.report.parts and not optimized.report.reason
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), module(x))


def test_programs_that_compute_something_else_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their results beside those of the module, which stays eager; not where it is random."""
    module, x = Changed(partial(change_behind, ALIASES["dropout"])).eval(), torch.randn(2, 2, 4, 5)
    random = Changed(lambda y: y * torch.rand_like(y)).eval()
    assert not optimize(random, x, "estimate").report.reason
    monkeypatch.setattr(programs, "_with_aliases", lambda _, program: program)
    optimized = optimize(module, x, "estimate")
    assert "computes something else" in optimized.report.reason
    with torch.no_grad():
        assert torch.equal(optimized(x), module(x))
