"""Modules whose products have narrower weights, on request: what that loses, and what it saves."""

import pytest

torch = pytest.importorskip("torch")

from polysci.errors import SpecError  # noqa: E402
from polysci.torch import optimize  # noqa: E402


class Block(torch.nn.Module):
    """Two layers with a gate, of a width that holds whole blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = (torch.nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


def block() -> Block:
    torch.manual_seed(0)
    return Block().eval()


X = torch.linspace(-2, 2, 5 * 64).sin().reshape(5, 64)


# Type -> the error that it may have at most, and the bytes of a weight.
@pytest.mark.parametrize(
    ("weights", "most", "size"),
    [("bf16", 0.01, 2), ("int8", 0.01, 1.2), ("int4", 0.1, 0.7), ("int4a8", 0.1, 0.7)],
)
@torch.no_grad()
def test_a_module_of_narrower_weights(weights: str, most: float, size: float) -> None:
    module = block()
    own = optimize(module, X, "estimate", weights=weights)
    y, expected, report = own(X), module(X), own.report
    error = float((y - expected).abs().max() / expected.abs().max())
    assert 0 < error < most and not report.reason
    (part,) = report.parts
    assert part.error == pytest.approx(error, rel=0.2) and part.error < part.bound
    assert part.bytes < size * 3 * 64 * 64 + 8192 < 4 * 3 * 64 * 64


@torch.no_grad()
def test_torch_compile_takes_them() -> None:
    module = block()
    options = {"level": "estimate", "rest": "eager", "weights": "int4"}
    own = torch.compile(module, backend="polysci", options=options)
    same = optimize(module, X, "estimate", weights="int4")
    torch._dynamo.reset()
    assert torch.equal(own(X), same(X)) and not torch.allclose(own(X), module(X), atol=1e-4)


@torch.no_grad()
def test_all_sizes_of_a_range_have_them() -> None:
    module, rows = block(), torch.export.Dim("rows", max=6)
    own = optimize(module, X, "estimate", weights="int8", dynamic_shapes=({0: rows},), ranges=True)
    for count in (1, 3, 5):
        y, expected = own(X[:count]), module(X[:count])
        assert 0 < float((y - expected).abs().max()) < 0.01


def test_another_type_is_refused() -> None:
    with pytest.raises(SpecError, match="weights 'int5': expected f32, bf16, int8"):
        optimize(block(), X, "estimate", weights="int5")
