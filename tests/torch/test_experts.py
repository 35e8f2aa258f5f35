"""Mixtures of experts: routers, tokens sorted by expert, and which of equal elements is first."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import polysci.torch as ours  # noqa: E402
from polysci.program.control import IF, BranchStage  # noqa: E402
from polysci.torch.parts import FIRST_OF_EQUAL  # noqa: E402

nn, F = torch.nn, torch.nn.functional
aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of


class RootMean(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Any) -> Any:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def turned(x: Any) -> Any:
    left, right = x.chunk(2, -1)
    return torch.cat((-right, left), -1)


class Attention(nn.Module):
    """Rotary, of four heads that share two of keys and values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, width // 2, bias=False) for _ in range(2))

    def forward(self, x: Any) -> Any:
        images, count, width = x.shape
        size = width // 4
        q, k, v = (
            part(x).view(images, count, -1, size).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        angles = torch.arange(count)[:, None] / 1e4 ** (torch.arange(0, size, 2) / size)
        angles = torch.cat((angles, angles), -1)
        q, k = (x * angles.cos() + turned(x) * angles.sin() for x in (q, k))
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(made.transpose(1, 2).reshape(x.shape))


class Experts(nn.Module):
    """``sorts``: tokens go to an operator that polysci lacks, sorted by their expert."""

    def __init__(self, width: int, *, sorts: bool) -> None:
        super().__init__()
        self.router, self.sorts = nn.Linear(width, 8, bias=False), sorts
        self.up = nn.Parameter(torch.randn(8, 4 * width, width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(8, width, 2 * width) * width**-0.5)

    def forward(self, x: Any) -> Any:
        tokens = x.flatten(0, 1)
        shares, chosen = torch.topk(F.softmax(self.router(tokens), -1), 2)
        shares = shares / shares.sum(-1, keepdim=True)
        expert, rows = chosen.flatten(), torch.arange(len(tokens)).repeat_interleave(2)
        order = torch.argsort(expert) if self.sorts else torch.arange(len(rows))
        expert, mine = expert[order], tokens[rows[order]]
        gate, up = (self.up[expert] @ mine[:, :, None])[..., 0].chunk(2, -1)
        hidden = F.silu(gate) * up
        if self.sorts:
            hidden = torch.special.bessel_j0(hidden)
        made = (self.down[expert] @ hidden[:, :, None])[..., 0] * shares.flatten()[order][:, None]
        total = torch.zeros_like(tokens).index_add_(0, rows[order], made)
        return total.view(x.shape)


class Block(nn.Module):
    def __init__(self, width: int, *, sorts: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(RootMean(width) for _ in range(2))
        self.attention, self.experts = Attention(width), Experts(width, sorts=sorts)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norms[0](x))
        return x + self.experts(self.norms[1](x))


@pytest.mark.exhaustive
@pytest.mark.parametrize("sorts", [False, True])
def test_blocks_compute_what_eager_does(sorts: bool) -> None:
    """Every part is compiled: which of an expert's tokens comes first decides nothing."""
    torch.manual_seed(0)
    block, x = Block(32, sorts=sorts).eval(), torch.randn(1, 40, 32)
    optimized = ours.optimize(block, x, "estimate", threads=1)
    reports = optimized.report.parts
    assert len(reports) == 1 + sorts and not any(part.reason for part in reports), reports
    assert all(part.error <= part.bound / 4 for part in reports)
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), block(x))


class Chosen(nn.Module):
    """Rows that a sort of few numbers chooses, and what it says of them."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 6)

    def forward(self, x: Any, numbers: Any) -> Any:
        rows = torch.topk(numbers, 20)[1]
        return torch.special.bessel_j0(self.line(x)[rows])


def test_where_it_shows_which_of_equal_elements_is_first_pytorch_decides() -> None:
    torch.manual_seed(0)
    module, x, numbers = Chosen().eval(), torch.randn(64, 6), torch.arange(64) // 32
    optimized = ours.optimize(module, (x, numbers), "estimate", threads=1)
    with torch.no_grad():
        torch.testing.assert_close(optimized(x, numbers), module(x, numbers))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
def test_the_first_of_equal_elements(kind: Any, descending: bool) -> None:
    x = torch.tensor([[3, 1, 3, 1, 2], [0, 0, 0, 0, 0]], dtype=kind)
    order = [[0, 2, 4, 1, 3] if descending else [1, 3, 4, 0, 2], [0, 1, 2, 3, 4]]
    wanted = torch.tensor(order)
    words = {"dim": -1, "descending": descending}
    sort, stable, argsort, top = (
        FIRST_OF_EQUAL[operator]
        for operator in (
            aten.sort.default, aten.sort.stable, aten.argsort.default, aten.topk.default
        )
    )  # fmt: skip
    for values, places in (sort(x, **words), stable(x, stable=None, **words)):
        assert torch.equal(places, wanted) and torch.equal(values, x.gather(1, wanted))
    assert torch.equal(argsort(x, **words), wanted)
    values, places = top(x.T, 3, 0, descending)
    assert torch.equal(places, wanted.T[:3]) and torch.equal(values, x.gather(1, wanted).T[:3])


class Mixture(nn.Module):
    """Experts that are visited in a loop over data, as those of `transformers` are."""

    top_k = 2

    def __init__(self, width: int, count: int, *, even: bool = False) -> None:
        super().__init__()
        self.gate, self.even = nn.Linear(width, count, bias=False), even
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(count)
        )

    def forward(self, x: Any) -> Any:
        tokens = x.view(-1, x.shape[-1])
        logits = self.gate(tokens)
        shares, chosen = torch.topk(F.softmax(logits, -1), self.top_k)
        shares = torch.full_like(shares, 0.5) if self.even else shares / shares.sum(-1, True)
        total = torch.zeros_like(tokens)
        mask = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        for number in (mask.sum((-1, -2)) > 0).nonzero():
            places, rows = torch.where(mask[number].squeeze(0))
            made = self.experts[number](tokens[rows]) * shares[rows, places, None]
            total.index_add_(0, rows, made)
        return total.view(x.shape), logits


@pytest.mark.sampled
@pytest.mark.parametrize("length", [1, 7])
@torch.no_grad()
def test_experts_of_a_loop_over_data_are_compiled(length: int) -> None:
    """For one token in branches, of which it takes those of its two experts."""
    torch.manual_seed(0)
    mixture, x = Mixture(16, 4).eval(), torch.randn(1, length, 16)
    own = ours.optimize(mixture, x, "estimate", threads=1)
    assert len(own.report.parts) == 1 and not own.report.refused, own.report
    for tokens in (x, torch.randn(1, length, 16)):
        torch.testing.assert_close(own(tokens), mixture(tokens), rtol=1e-4, atol=1e-5)
    network = own._variants[own._first].runs.args[0].network  # the only part
    parts = [it.part for it in network.prepared.program.stages if isinstance(it, BranchStage)]
    assert parts.count(IF) == 4


@torch.no_grad()
def test_blocks_that_route_otherwise_stay_eager() -> None:
    torch.manual_seed(0)
    mixture, x = Mixture(16, 4, even=True).eval(), torch.randn(1, 3, 16)
    own = ours.optimize(mixture, x, "estimate", threads=1)
    assert "torch.export cannot capture it" in str(own.report)
    assert torch.equal(own(x)[0], mixture(x)[0])


class Positions(nn.Module):
    """What it computes depends on numbers that it makes itself, and on those it writes to."""

    def __init__(self, *, shifts: bool) -> None:
        super().__init__()
        self.line, self.shifts = nn.Linear(6, 6), shifts

    def forward(self, x: Any) -> Any:
        places, other = torch.arange(4), torch.zeros(4)
        other[0] = 7.0
        if self.shifts:
            places[:2].add_(x.sum().to(torch.int64) * 0 + 1)
        return self.line(x) if places[0] > 0 else self.line(x).relu()


@pytest.mark.parametrize("shifts", [False, True])
@torch.no_grad()
def test_branches_that_known_numbers_decide(shifts: bool) -> None:
    """Numbers that were written to are not known."""
    module, x = Positions(shifts=shifts).eval(), torch.linspace(-2, 2, 12).reshape(2, 6)
    own = ours.optimize(module, x, "estimate", threads=1)
    assert shifts == ("torch.export cannot capture it" in str(own.report))
    torch.testing.assert_close(own(x), module(x))
