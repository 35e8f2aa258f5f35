"""Values that example inputs lack: infinities, NaNs, quotients by little, rows that see nothing."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
import polysci  # noqa: E402
import polysci.torch as ps  # noqa: E402
from polysci.frontends.pytorch.program import load_program  # noqa: E402
from tests.torch.test_program_operators import Functions  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of
F = torch.nn.functional
TAME = torch.linspace(0.1, 0.9, 16)
INF, NAN = float("inf"), float("nan")
WILD = torch.tensor([0.0, 1, -1, 0.5, 2.5, -2.5, 6, -180, 180, 1e4, -1e4, -1e30, INF, -INF, NAN, 3])
DIVISORS = torch.tensor([0.0, 0.1, 0.1, 0.1, 0.1, -0.1, INF, INF, 0.2, -0.1, 7, 2, 2, -3, 1, -INF])


def compare(functions: list[Any], *inputs: Any) -> None:
    """A network of functions, compiled for tame inputs, on these; no call is left to PyTorch."""

    class Called(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *args: Any) -> list[Any]:
            return [function(*args) for function in functions]

    tame = tuple(TAME.clone() if x.dtype.is_floating_point else x.clone() for x in inputs)
    program = torch.export.export(Called(), tame)
    network = polysci.compile_network(program, level="estimate", threads=1)
    made = network({
        tensor.name: x.numpy() for tensor, x in zip(load_program(program).inputs, inputs,
                                                    strict=True)
    })  # fmt: skip
    for actual, wanted in zip(made.values(), Called()(*inputs), strict=True):
        torch.testing.assert_close(
            torch.from_numpy(actual), wanted, rtol=1e-5, atol=1e-6, equal_nan=True
        )


def test_functions_of_infinities_and_nans_are_pytorchs() -> None:
    functions = [
        torch.expm1, F.celu, F.elu, F.relu, F.softplus, F.hardtanh, F.logsigmoid, torch.log1p,
        lambda x: F.threshold(x, 0.5, 7.0), lambda x: x.clamp(-1, 2), torch.trunc,
    ]  # fmt: skip
    compare(functions, WILD)


def test_quotients_without_a_rest_are_those_of_remainders() -> None:
    functions = [
        torch.floor_divide, torch.remainder, torch.fmod,
        lambda x, y: torch.floor_divide(x, 0.1), lambda x, y: torch.remainder(x, -0.1),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    ]  # fmt: skip
    compare(functions, WILD, DIVISORS)


def test_quotients_of_whole_numbers_are_exact() -> None:
    x = torch.tensor([2**62 + 1, -(2**62) + 1, 2**53 + 1, -(2**53) - 1, 7, -7])
    y = torch.tensor([3, 3, 3, 3, -2, -2])
    functions = [
        torch.floor_divide, torch.remainder, lambda x, y: x // 3,
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    ]  # fmt: skip
    compare(functions, x, y)


def test_sums_and_choices_of_truths_are_truths() -> None:
    functions = [
        lambda x: (x > 0) + (x < 1), lambda x: torch.maximum(x > 0, x < 1),
        lambda x: torch.minimum(x > 0, x < 1), lambda x: torch.where(x > 0, True, x < -3),
        lambda x: (x > 0).masked_fill(x > 2, False),
    ]  # fmt: skip
    compare(functions, WILD)


def test_norms_are_of_the_type_that_is_asked_for() -> None:
    compare([lambda x: torch.linalg.vector_norm(x, dtype=torch.float64)], TAME)


def test_rules_that_make_another_type_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of the type that PyTorch promises would be too small."""
    from polysci.frontends.pytorch import importer

    wrong = {**importer.OPERATORS, "gt": lambda call, x, other: call.graph.add("abs", (x,), (16,))}
    monkeypatch.setattr(importer, "OPERATORS", wrong)
    module = Functions([lambda x: x > 0, torch.exp]).eval()
    optimized = ps.optimize(module, TAME, "estimate")
    assert [call.op for call in optimized.report.refused] == ["aten.gt.Scalar"]
    assert optimized(WILD)[0].tolist() == (WILD > 0).tolist()


def test_numbers_beyond_an_element_type_are_left_to_pytorch() -> None:
    module = Functions([lambda x: x == 300, lambda x: x + 1]).eval()
    optimized = ps.optimize(module, torch.arange(4, dtype=torch.uint8), "estimate")
    assert [call.op for call in optimized.report.refused] == ["aten.eq.Scalar"]


@pytest.mark.parametrize("real", [False, True])
def test_queries_that_see_no_key_attend_to_nothing(real: bool) -> None:
    class Attention(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, mask: Any) -> Any:
            return F.scaled_dot_product_attention(x, x, x, mask)

    x, seen = torch.randn(2, 3, 5, 8), torch.ones(2, 1, 5, 5, dtype=torch.bool)
    hidden = seen.clone()
    hidden[1, :, 2] = False
    hidden[0, :, 1, 3:] = False
    masks = [seen, hidden]
    if real:
        masks = [torch.zeros(mask.shape).masked_fill(~mask, -INF) for mask in masks]
    optimized = ps.optimize(Attention().eval(), (x, masks[0]), "estimate")
    assert not optimized.report.refused
    wanted = Attention()(x, masks[1])
    assert not wanted[1, :, 2].any()
    torch.testing.assert_close(optimized(x, masks[1]), wanted)


def test_means_of_doubles_are_doubles() -> None:
    x = torch.linspace(0, 1, 77, dtype=torch.float64).reshape(1, 1, 7, 11)
    program = torch.export.export(Functions([lambda x: F.adaptive_avg_pool2d(x, (3, 5))]), (x,))
    made = polysci.compile_network(program, level="estimate", threads=1)(x.numpy())
    wanted = F.adaptive_avg_pool2d(x, (3, 5))
    torch.testing.assert_close(torch.from_numpy(made), wanted, rtol=1e-14, atol=0)
